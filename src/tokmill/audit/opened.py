"""A run, opened to be read: its artifacts by step, what is missing, and the tables of a shard.

manifest.json of the run   ─ it lists every step                     a finished run
none                       ─ the step directories that have their own, each made from the one beside it

open_run         a finished run, or an error
find_artifacts   as much as there is; an artifact that was made from another input than the one here is set
                 aside
read_ledgers     what clean, dedup and split decided about the documents of a shard
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.artifacts.directory import Artifact, open_artifact
from tokmill.artifacts.manifest import FileEntry, Manifest, fingerprint_of
from tokmill.artifacts.progress import load_journal
from tokmill.artifacts.runs import load_finished as load_finished
from tokmill.artifacts.runs import open_run as open_run
from tokmill.artifacts.runs import refuse_pending
from tokmill.artifacts.upstream import shard_key
from tokmill.errors import StorageError, TokmillError
from tokmill.storage.tables import load_table


class ShardTables(NamedTuple):
    """One shard of documents: where it is in the run, and the files that speak of it."""

    number: int  # through all sources
    source: str
    key: str
    documents: FileEntry

    @property
    def name(self) -> str:
        return f"{self.source}/{self.key}"


def list_shard_tables(run: Mapping[str, Artifact]) -> Iterator[ShardTables]:
    number = 0
    for name, artifact in run.items():
        if artifact.manifest.kind == "ingest":
            source = name.removeprefix("ingest/")
            for entry in artifact.manifest.entries("documents"):
                yield ShardTables(number, source, shard_key(entry), entry)
                number += 1


def load_of(artifact: Artifact | None, path: str, columns: list[str] | None = None) -> Any | None:
    """The table in `path` of the artifact, or None where it has none, or the run has not got there."""
    if artifact is None or all(entry.path != path for entry in artifact.manifest.files):
        return None
    return load_table(artifact.directory / path, columns)


def read_ledgers(
    artifacts: Mapping[str, Artifact], shard: ShardTables, columns: list[str] | None = None
) -> Iterator[tuple[str, Any | None]]:
    """Of each step that there is: who left, edits aside; None: it has no ledger, and kept them all."""
    by_number = f"ledger-{shard.number:05d}.parquet"
    for step, path in (
        (f"clean/{shard.source}", f"ledger-{shard.key}.parquet"),
        ("scores", by_number),
        ("dedup", by_number),
        ("split", by_number),
    ):
        if step in artifacts:
            ledger = load_of(artifacts[step], path, columns)
            if ledger is not None:
                ledger = ledger.filter(pc.not_equal(ledger.column("verdict"), "edit"))
            yield step.partition("/")[0], ledger


def numbers_in(table: Any, column: str) -> NDArray[Any]:
    """Numbers without nulls, as they lie in memory. `np.asarray` would load pandas where it is installed:
    0.3 s."""
    whole = table.column(column)
    return np.from_dlpack(whole.chunk(0) if whole.num_chunks == 1 else whole.combine_chunks())


KINDS = (
    *("ingest", "clean", "inference", "examples", "score", "scores", "dedup", "split"),
    *("tokenizer", "tokens", "mixture", "stage", "build", "curriculum", "texts"),
)
_BEFORE_CLEAN = ("ingest", "inference", "examples", "score")
_MADE = (*_BEFORE_CLEAN, *(kind for kind in KINDS if kind not in _BEFORE_CLEAN))  # each after what it needs
_NAMED = (*_BEFORE_CLEAN, "clean", "stage", "build", "texts")  # a directory per source, score, stage or build


class Found(NamedTuple):
    directory: Path
    name: str
    root: Manifest | None  # None: the run is not finished
    artifacts: dict[str, Artifact]  # by step, in the order of the run
    missing: list[str]  # steps that were begun or planned, and have no artifact
    set_aside: dict[str, str]  # step -> why its artifact is not read

    @property
    def is_finished(self) -> bool:
        return self.root is not None and not self.missing and not self.set_aside

    @property
    def digest(self) -> str:
        """As `tokmill verify` says it."""
        return fingerprint_of(sorted([name, a.manifest.identity] for name, a in self.artifacts.items()))

    def of_kind(self, kind: str) -> dict[str, Artifact]:
        """By the name of the source or build."""
        chosen = {name: a for name, a in self.artifacts.items() if a.manifest.kind == kind}
        return {name.partition("/")[2] or name: artifact for name, artifact in chosen.items()}

    @property
    def not_cleaned(self) -> tuple[str, ...]:
        """Sources of a run that was cut short."""
        steps = [*self.missing, *self.set_aside]
        return tuple(name.removeprefix("clean/") for name in steps if name.startswith("clean/"))

    def shards(self) -> list[ShardTables]:
        return list(list_shard_tables(self.artifacts))


def existing(directory: str | Path) -> Path:
    if not Path(directory).is_dir():
        raise StorageError(
            "no such directory", where=str(directory), next="give the output directory of a run"
        )
    return Path(directory)


def find_artifacts(directory: str | Path) -> Found:
    """Reads manifests only."""
    directory = existing(directory)
    refuse_pending(directory)
    root = open_artifact(directory)
    if root is not None and root.manifest.kind == "run":
        steps = [Path(entry.path).parent.as_posix() for entry in root.manifest.entries("manifest")]
        return _read(directory, root.manifest.step, root.manifest, steps)
    journal = load_journal(directory)
    planned = journal.steps if journal is not None else []
    steps = [*planned, *(step for step in _begun(directory) if step not in planned)]
    if root is not None or not steps:
        raise StorageError(
            "is not the directory of a run",
            where=str(directory),
            next="give the output directory of `tokmill run`",
        )
    found = _read(directory, journal.recipe if journal is not None else directory.resolve().name, None, steps)
    return found if planned else found._replace(artifacts=_in_order(found.artifacts))


def _read(directory: Path, name: str, root: Manifest | None, steps: Iterable[str]) -> Found:
    artifacts: dict[str, Artifact] = {}
    missing: list[str] = []
    set_aside: dict[str, str] = {}
    for step in sorted(steps, key=_place):  # stable: sources and builds stay in the order of the recipe
        try:
            artifact = open_artifact(directory / step)
        except TokmillError as error:
            set_aside[step] = error.what
            continue
        if artifact is None:
            missing.append(step)
            continue
        why = _why_not(artifact, artifacts)
        if why is not None:
            set_aside[step] = why
        else:
            artifacts[step] = artifact
    return Found(directory, name, root, artifacts, missing, set_aside)


def _why_not(artifact: Artifact, upstream: dict[str, Artifact]) -> str | None:
    """None: it was made from what lies here."""
    for label, identity in artifact.manifest.inputs.items():
        name = label.removeprefix("step ")
        if not label.startswith("step "):
            continue
        if name not in upstream:
            return f"was made from what is not here ({name})"
        if upstream[name].manifest.identity != identity:
            return f"was made from another {name} than the one here"
    return None


def _begun(directory: Path) -> Iterator[str]:
    for kind in KINDS:
        if kind in _NAMED:
            yield from (f"{kind}/{path.name}" for path in sorted((directory / kind).glob("*/")))
        elif (directory / kind).is_dir():
            yield kind


def _place(step: str) -> int:
    kind = step.partition("/")[0]
    return _MADE.index(kind) if kind in _MADE else len(_MADE)


def _in_order(artifacts: dict[str, Artifact]) -> dict[str, Artifact]:
    """Sources as deduplication numbered them: a shard's number is its place among all shards."""
    shards: list[str] = artifacts["dedup"].manifest.facts.get("shards", []) if "dedup" in artifacts else []
    order = list(dict.fromkeys(name.rpartition("/")[0] for name in shards))

    def place(step: str) -> tuple[int, int]:
        source = step.partition("/")[2]
        return _place(step), order.index(source) if source in order else len(order)

    return {step: artifacts[step] for step in sorted(artifacts, key=place)}

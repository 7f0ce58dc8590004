"""Prove a run, or any part of it, from its files alone.

    every manifest.json below DIR   sealed? · every file there, of its size, with its sha256?
                                    any file nobody listed? · inputs the ones its neighbours hold?
                                    in = kept + dropped + quarantined, and out of one step = into the next?
    every build                     lengths, pointers, ids and description agree?
    forgotten.parquet               is none of these documents in a shard, and has none of them tokens?

`digest` is one string for the content of all artifacts: two runs are equal when it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tokmill.artifact import Artifact
from tokmill.audit.forgetting_proof import find_forgotten
from tokmill.errors import StorageError, TokmillError
from tokmill.forgotten import PENDING_FILE
from tokmill.formats.megatron import MegatronFile
from tokmill.formats.memmap import open_memmap
from tokmill.formats.npy import NpyRows
from tokmill.formats.parquet import read_parquet
from tokmill.formats.token_cache import TokenCache
from tokmill.journal import JOURNAL
from tokmill.manifest import (
    MANIFEST,
    RECEIPTS,
    STALE_MANIFEST,
    FileEntry,
    Json,
    Manifest,
    check_conservation,
    fingerprint_of,
    load_manifest,
    sum_counts,
)
from tokmill.storage.commit import TEMP_PREFIX
from tokmill.storage.location import file_sha256
from tokmill.storage.lock import LOCK

# Made from a run, beside it: no artifact needs them, and each can be made again.
_BESIDE = ("report.html", "report.json", "DATACARD.md", "croissant.json", JOURNAL, LOCK)
_COUNTED = ("ingest", "clean", "dedup", "split", "tokens", "mixture", "build")


@dataclasses.dataclass(frozen=True)
class Problem:
    where: str  # relative to the verified directory
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclasses.dataclass(frozen=True)
class Verification:
    directory: Path
    problems: list[Problem]
    digest: str
    artifacts: int
    files: int
    bytes: int

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_json(self) -> Json:
        return {
            "ok": self.ok,
            "directory": str(self.directory),
            "digest": self.digest,
            "artifacts": self.artifacts,
            "files": self.files,
            "bytes": self.bytes,
            "problems": [dataclasses.asdict(problem) for problem in self.problems],
        }


def verify(directory: str | Path, on_bytes: Callable[[int, int], None] | None = None) -> Verification:
    """Read every byte below `directory`. `on_bytes(done, total)` is told how far it is."""
    root = Path(directory)
    if not root.is_dir():
        raise StorageError("no such directory", where=str(root), next="give the output directory of a run")
    problems: list[Problem] = []
    artifacts = dict(_open_all(root, problems))
    if not artifacts and not problems:
        problems.append(Problem(".", "no artifact here: no manifest.json in it or below"))
    problems += _unfinished(root, artifacts)
    problems += _strangers(root, artifacts)
    problems += _files(root, artifacts, on_bytes or (lambda done, total: None))
    problems += _chain(artifacts)
    problems += _flow(artifacts)
    if not problems:
        problems += _builds(root, artifacts)
        problems += [Problem(where, what) for where, what in find_forgotten(root, artifacts)]
    steps = {name: artifact for name, artifact in artifacts.items() if artifact.manifest.kind != "run"}
    entries = [entry for artifact in steps.values() for entry in artifact.manifest.files]
    return Verification(
        directory=root,
        problems=sorted(set(problems), key=lambda problem: (problem.where, problem.what)),
        digest=fingerprint_of(sorted([name, artifact.manifest.identity] for name, artifact in steps.items())),
        artifacts=len(steps),
        files=len(entries),
        bytes=sum(entry.bytes for entry in entries),
    )


def _open_all(root: Path, problems: list[Problem]) -> Iterator[tuple[str, Artifact]]:
    for path in sorted(root.rglob(MANIFEST)):
        name = path.parent.relative_to(root).as_posix()
        try:
            yield name, Artifact(path.parent, load_manifest(path.parent))
        except TokmillError as error:
            problems.append(Problem(path.relative_to(root).as_posix(), error.what))


def _unfinished(root: Path, artifacts: dict[str, Artifact]) -> Iterator[Problem]:
    """A run directory says itself what belongs to it; without that it was cut short."""
    top = artifacts.get(".")
    if top is None:
        if (root / "ingest").is_dir() and not (root / MANIFEST).exists():
            yield Problem(
                ".", "the run is not finished: it has no manifest.json (run the recipe again to resume)"
            )
    elif top.manifest.kind == "run":
        listed = {str(Path(entry.path).parent) for entry in top.manifest.files}
        for name in artifacts.keys() - listed - {"."}:
            yield Problem(name, "is not part of this run, or was made from other inputs")


def _strangers(root: Path, artifacts: dict[str, Artifact]) -> Iterator[Problem]:
    known = {root / MANIFEST}
    for artifact in artifacts.values():
        known.add(artifact.directory / MANIFEST)
        known.update(artifact.path(entry) for entry in artifact.manifest.files)
    for path in sorted(root.rglob("*")):
        if path.is_dir() or path in known or path.name == MANIFEST:
            continue
        if path.parent == root and path.name in _BESIDE:
            continue
        leftover = (
            path.name.startswith(TEMP_PREFIX) or path.name == STALE_MANIFEST or path.parent.name == RECEIPTS
        )
        what = "left over from an interrupted run" if leftover else "extra file: no manifest lists it"
        if path == root / PENDING_FILE:
            what = "a takedown was cut short: give the same `tokmill forget` again"
        yield Problem(path.relative_to(root).as_posix(), what)


def _files(
    root: Path, artifacts: dict[str, Artifact], on_bytes: Callable[[int, int], None]
) -> Iterator[Problem]:
    listed = [
        (artifact.path(entry), entry) for artifact in artifacts.values() for entry in artifact.manifest.files
    ]
    total, done = sum(entry.bytes for _, entry in listed), 0
    for path, entry in listed:
        fault = _file_fault(path, entry)
        if fault:
            yield Problem(path.relative_to(root).as_posix(), fault)
        done += entry.bytes
        on_bytes(done, total)


def _file_fault(path: Path, entry: FileEntry) -> str | None:
    if not path.is_file():
        return "missing"
    size = path.stat().st_size
    if size != entry.bytes:
        kind = "truncated" if size < entry.bytes else "too long"
        return f"{kind}: {size:,} bytes, the manifest says {entry.bytes:,}"
    if file_sha256(path) != entry.sha256:
        return "damaged: its bytes are not the ones that were written (sha256 differs)"
    return None


def _chain(artifacts: dict[str, Artifact]) -> Iterator[Problem]:
    """An input that lies in the same directory must be the one that the step was made from."""
    by_step = {
        artifact.manifest.step: artifact for artifact in artifacts.values() if artifact.manifest.kind != "run"
    }
    for name, artifact in artifacts.items():
        for label, identity in artifact.manifest.inputs.items():
            neighbour = by_step.get(label.removeprefix("step "))
            if neighbour is not None and neighbour.manifest.identity != identity:
                yield Problem(name, f"was made from another {label.removeprefix('step ')} than the one here")


def _flow(artifacts: dict[str, Artifact]) -> Iterator[Problem]:
    by_step = {artifact.manifest.step: artifact.manifest for artifact in artifacts.values()}
    for name, artifact in artifacts.items():
        manifest = artifact.manifest
        if manifest.kind not in _COUNTED:
            continue
        try:
            check_conservation(manifest.counts, where=name)
        except TokmillError as error:
            yield Problem(name, error.what)
        if manifest.kind == "dedup":
            counted = sum_counts(receipt for receipt in manifest.receipts() if receipt.counts)
        else:
            counted = sum_counts(manifest.receipts())
        if counted != manifest.counts and manifest.tasks:
            yield Problem(name, "the counts of its tasks do not add up to its own")
    for into, out_of in (("clean", "ingest"), ("dedup", "clean"), ("split", "dedup"), ("tokens", "split")):
        takers = [m for m in by_step.values() if m.kind == into]
        givers = [m for m in by_step.values() if m.kind == out_of]
        if takers and givers:
            taken, given = sum(m.counts["in"] for m in takers), sum(m.counts["kept"] for m in givers)
            if taken != given:
                yield Problem(into, f"{given:,} documents left {out_of} but {taken:,} arrived")
    if "tokens" in by_step:
        yield from _flow_of_tokens(by_step["tokens"], by_step)


def _flow_of_tokens(tokens: Manifest, by_step: Mapping[str, Manifest]) -> Iterator[Problem]:
    """A build holds every document of every split, or those that the mixture gave a turn, each turn once."""
    documents = dict.fromkeys(tokens.facts["splits"], 0)
    for entry in tokens.entries("lengths"):
        documents[entry.path.partition("/")[0]] += entry.rows
    mixture = by_step.get("mixture")
    expected = dict(documents)
    if mixture is not None:
        turns = {entry.path: entry.rows for entry in mixture.entries("order")}
        mixed = [split for split in documents if f"order-{split}.parquet" in turns]
        offered = sum(documents[split] for split in mixed)
        if mixture.counts["in"] != offered:
            yield Problem(
                "mixture", f"{offered:,} documents were to be mixed but {mixture.counts['in']:,} were"
            )
        expected |= {split: turns[f"order-{split}.parquet"] for split in mixed}
    for manifest in by_step.values():
        if manifest.kind != "build" or manifest.config["sources"]:
            continue
        if manifest.counts["in"] != sum(expected.values()):
            yield Problem(
                manifest.step,
                f"was made from {manifest.counts['in']:,} of {sum(expected.values()):,} documents",
            )


def _builds(root: Path, artifacts: dict[str, Artifact]) -> Iterator[Problem]:
    """What a trainer will map, opened as a trainer would."""
    for artifact in artifacts.values():
        for entry in artifact.manifest.files:
            path = artifact.path(entry)
            try:
                if entry.table == "sequences":
                    MegatronFile(path.with_suffix("")).check()
                elif entry.table == "rows":
                    open_memmap(path.parent)
                elif entry.table == "meta" and artifact.manifest.kind == "build":
                    _open_shards(artifact.manifest.config["format"], path.parent)
            except TokmillError as error:
                yield Problem(path.relative_to(root).as_posix(), error.what)


def _open_shards(build_format: str, directory: Path) -> None:
    if build_format == "npy":
        for _ in NpyRows(directory).read_shards():
            pass
    elif build_format == "parquet":
        for _ in read_parquet(directory):
            pass
    elif build_format == "token_cache":
        for _ in TokenCache(directory, model_sha256=None).read_parts():
            pass

"""What a stage is given and what it gives back: the contract between the run and the stages.

    conduct(step, upstream)  yields tasks, is sent their receipts, returns an Outcome      in the driver
    <function>(task) -> Made(files, counts, facts)                                         in a worker

Receipts come back in the order of the tasks.
Steps that do not need each other are conducted side by side, and their tasks share the engine.

A task: a pure function of its options and inputs, named so that any process can run it.

    Task(function, key, options, inputs, directory)  ->  files in directory + Receipt

The fingerprint covers what can change a byte: function, key, options and the content of the inputs. Where the
inputs lie on this machine or in a store (`tokmill.artifacts.stored`), what may follow in the same pass, and
what earlier runs found out (`tokmill.artifacts.cache`), is not part of it.

The life of an artifact directory.

    begin    manifest.json that no longer fits  ->  manifest.stale.json   (the artifact is gone,
                                                                           its receipts are not)
             leftovers of killed writers        ->  removed
    reuse    a receipt holds when a task has its fingerprint and every file its sha256; of a finished one,
             files that nobody wrote to after its manifest are not read for that
    finish   manifest.json written  ->  files of no task removed, for good  ->  receipts and stale manifest
             removed

Killing the process, or the machine, between any two of these steps loses at most the work of the tasks in
flight. A disk without power keeps removals in any order, so a directory is synced before that goes which says
that there is more to do.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Generic, NamedTuple

import msgspec
import numpy as np
from typing_extensions import TypeVar

from tokmill.artifacts.cache import Cached
from tokmill.artifacts.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    RECEIPTS,
    STALE_MANIFEST,
    FileEntry,
    Json,
    Manifest,
    Receipt,
    config_of,
    file_entry,
    fingerprint_of,
    load_manifest,
    load_receipts,
    write_manifest,
)
from tokmill.artifacts.plugins import Plugin, hook_files, show_hooks
from tokmill.artifacts.stored import RunFiles, Stored
from tokmill.errors import TokmillError
from tokmill.storage.disk import (
    TEMP_PREFIX,
    make_directory,
    remove_file,
    storage_error,
    sync_directory,
    told_as_unreadable,
)
from tokmill.storage.location import file_sha256
from tokmill.storage.on_demand import place_of
from tokmill.storage.tables import load_table, table_sha256, write_sorted_table, write_table


class Artifact(NamedTuple):
    directory: Path
    manifest: Manifest

    def path(self, entry: FileEntry) -> Path:
        return self.directory / entry.path


def open_artifact(directory: Path) -> Artifact | None:
    """The finished artifact, or None where there is none."""
    with told_as_unreadable(directory / MANIFEST):
        is_there = (directory / MANIFEST).is_file()
    if not is_there:
        return None
    return Artifact(directory, load_manifest(directory))


def has_all_files(artifact: Artifact) -> bool:
    """Present and of the recorded size: the quick look before a step is skipped.
    `verify` reads every byte."""
    elsewhere = _elsewhere(artifact.directory)
    if elsewhere is not None:
        return elsewhere.has_all(artifact.directory, artifact.manifest.files)
    for entry in artifact.manifest.files:
        path = artifact.path(entry)
        with told_as_unreadable(path):
            if not path.is_file() or path.stat().st_size != entry.bytes:
                return False
    return True


def damaged_file(artifact: Artifact, max_bytes: int | None = None) -> str | None:
    """A file whose bytes are not those of the manifest, of some that are chosen at random and have so many
    bytes together, on average: one that is larger than what is left is read as often as that is a part of it,
    so that none is never read. None: of all."""
    files = [entry for entry in artifact.manifest.files if entry.table != "manifest"]
    if _elsewhere(artifact.directory) is not None:  # what a task reads there is proven on the way
        files = [entry for entry in files if artifact.path(entry).is_file()]
    left = sum(entry.bytes for entry in files) if max_bytes is None else max_bytes
    for entry in random.sample(files, len(files)):
        if random.random() * entry.bytes > left:
            return None
        left -= entry.bytes
        if file_sha256(artifact.path(entry)) != entry.sha256:
            return entry.path
    return None


def begin(directory: Path) -> None:
    """Open the directory for (re)building."""
    try:
        make_directory(directory)
        if (directory / MANIFEST).is_file():
            (directory / MANIFEST).replace(directory / STALE_MANIFEST)
            sync_directory(directory)  # or it might be back, and vouch for files that are others by then
        for path in sorted(directory.rglob(f"{TEMP_PREFIX}*")):
            if path.is_dir():  # scratch of a task, and all that lies in it
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise storage_error(error, directory) from error


def remove_leftovers(directory: Path) -> None:
    """What killed writers left in a run's own directory; those of its steps go when they begin."""
    for path in sorted(directory.glob(f"{TEMP_PREFIX}*")):
        if path.is_file():
            remove_file(path)


# When a receipt vouches for its files since, that a task of this very run has written: always.
_ALWAYS = 1 << 63


class Evidence:
    """Receipts of earlier work in a directory, finished or killed, as they are now. `verify`: their files are
    read, all of them. `before`: fingerprints of those that were there when this run began; who wrote the
    others, in the pass of another step, is believed like every task of the run."""

    def __init__(
        self, directory: Path, *, verify: bool = False, before: Container[str] | None = None
    ) -> None:
        self._directory = directory
        self._found: dict[str, list[tuple[Receipt, int]]] = {}  # and since when it vouches for its files
        for receipt in load_receipts(directory):
            is_new = before is not None and receipt.fingerprint not in before
            self.add(receipt, _ALWAYS if is_new else 0)
        stale = directory / STALE_MANIFEST
        if stale.is_file():
            with contextlib.suppress(TokmillError):  # damaged evidence is no evidence: the tasks run again
                since = 0 if verify else stale.stat().st_mtime_ns
                for receipt in load_manifest(directory, stale.name).receipts():
                    self.add(receipt, since)

    def add(self, receipt: Receipt, since: int = 0) -> None:
        self._found.setdefault(receipt.fingerprint, []).append((receipt, since))

    def usable(self, wanted: Iterable[str]) -> dict[str, Receipt]:
        """By fingerprint: those whose files are all intact."""
        found: dict[str, Receipt] = {}
        wanted = list(dict.fromkeys(wanted))
        elsewhere = _elsewhere(self._directory)
        if elsewhere is not None:
            known = {fingerprint: [r for r, _ in self._found.get(fingerprint, ())] for fingerprint in wanted}
            return elsewhere.usable(self._directory, known)
        for fingerprint in wanted:
            for receipt, since in self._found.get(fingerprint, ()):
                if _intact(self._directory, receipt, since):
                    found[fingerprint] = receipt
                    break
        return found


def usable_receipts(directory: Path, wanted: Iterable[str], *, verify: bool = False) -> dict[str, Receipt]:
    return Evidence(directory, verify=verify).usable(wanted)


def finish(directory: Path, manifest: Manifest) -> Artifact:
    """What the manifest does not list is still there (`sweep`)."""
    write_manifest(directory, manifest)
    return Artifact(directory, manifest)


def sweep(artifact: Artifact) -> None:
    """Remove what the manifest does not list; the scaffolding last,
    because it says that this is still to do."""
    keep = {entry.path for entry in artifact.manifest.files} | {MANIFEST, STALE_MANIFEST}
    scaffolding = artifact.directory / RECEIPTS
    changed = set()
    try:
        for path in sorted(artifact.directory.rglob("*"), reverse=True):  # files before their directories
            if path.is_relative_to(scaffolding):
                continue
            if path.is_dir():
                if any(path.iterdir()):
                    continue
                path.rmdir()
                changed.discard(path)
            elif path.relative_to(artifact.directory).as_posix() in keep:
                continue
            else:
                path.unlink()
            changed.add(path.parent)
        for directory in sorted(changed):
            sync_directory(directory)
        if scaffolding.is_dir():
            shutil.rmtree(scaffolding)
        (artifact.directory / STALE_MANIFEST).unlink(missing_ok=True)
        sync_directory(artifact.directory)
    except OSError as error:
        raise storage_error(error, artifact.directory) from error


def discard(directory: Path) -> None:
    """Remove an artifact, finished or not. Its evidence goes last: an interrupted removal can be resumed."""
    evidence = directory / RECEIPTS
    changed = set()
    if not directory.exists():
        return
    try:
        for path in sorted(directory.rglob("*"), reverse=True):  # files before their directories
            if path.is_relative_to(evidence) or path == directory / MANIFEST:
                continue
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
                changed.discard(path)
            else:
                path.unlink()
            changed.add(path.parent)
        for parent in sorted(changed):
            sync_directory(parent)
        if evidence.is_dir():
            shutil.rmtree(evidence)
        (directory / MANIFEST).unlink(missing_ok=True)
        sync_directory(directory)
        directory.rmdir()
        sync_directory(directory.parent)
    except OSError as error:
        raise storage_error(error, directory) from error


def is_unswept(artifact: Artifact) -> bool:
    """A kill came between the manifest and the end of the sweep,
    or while the manifest was written once more."""
    return (
        (artifact.directory / RECEIPTS).exists()
        or (artifact.directory / STALE_MANIFEST).exists()
        or any(artifact.directory.glob(f"{TEMP_PREFIX}*"))
    )


def _elsewhere(directory: Path) -> RunFiles | None:
    """The store that has the files of a run, where no disk of this machine has them all."""
    place = place_of(directory)
    return place if isinstance(place, RunFiles) else None


def _intact(directory: Path, receipt: Receipt, since: int) -> bool:
    return all(is_intact(directory / entry.path, entry, since) for entry in receipt.files)


def is_intact(path: Path, entry: FileEntry, since: int) -> bool:
    """Has the file the bytes that it had? It is not read where it was last written to before `since`,
    nanoseconds: the time of what says so. Of the same tick of the clock it is."""
    with told_as_unreadable(path):
        if not path.is_file():
            return False
        there = path.stat()
    if there.st_size != entry.bytes:
        return False
    return there.st_mtime_ns < since or file_sha256(path) == entry.sha256


Options = TypeVar("Options", covariant=True, default=Any)


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a task is told, frozen. A field that has a default is not in the config while it has that
    value."""


class Input(msgspec.Struct, frozen=True):
    """A file that a task reads, known by its content."""

    role: str
    path: str
    content_sha256: str
    rows: int = 0


class Task(msgspec.Struct, Generic[Options], frozen=True, kw_only=True):
    function: str
    key: str
    options: Options
    inputs: list[Input]
    directory: str
    followers: list[Task] = []  # to run in the same pass, on what this one makes
    cached: Cached | None = None  # what earlier runs found out: it changes how long the task takes
    stored: Stored | None = None  # where its files are, if not on a disk that all workers share

    @property
    def config(self) -> Json:
        return config_of(self.options)

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(
            {
                "function": self.function,
                "key": self.key,
                "format_version": FORMAT_VERSION,
                "config": self.config,
                "inputs": [[item.role, item.content_sha256] for item in self.inputs],
            }
        )

    def receipt(self, files: list[FileEntry], counts: Json, facts: Json | None) -> Receipt:
        return Receipt(
            key=self.key, fingerprint=self.fingerprint, files=files, counts=counts, facts=facts or {}
        )

    def paths(self, role: str) -> list[Path]:
        return [Path(item.path) for item in self.inputs if item.role == role]

    def load(self, role: str, columns: list[str] | None = None) -> Any:
        """The one table of that role."""
        (path,) = self.paths(role)
        return load_table(path, columns)


_HOOK = "hook "


def hook_inputs(plugins: Iterable[Plugin]) -> list[Input]:
    """The Python files beside the recipe that the plugins are in:
    what is not installed travels as an input."""
    hooks = dict.fromkeys(plugin for plugin in plugins if plugin.is_hook)
    return [Input(_HOOK + hook.name, str(hook.path), hook.digest) for hook in hooks]


def read_with(item: Input) -> list[Path]:
    """Files that a task reads besides an input because it names them, on the driver's machine."""
    return hook_files(Path(item.path)) if item.role.startswith(_HOOK) else []


def accept_hooks(task: Task) -> None:
    """In the worker: what the task names may be run here."""
    for item in (item for one in (task, *task.followers) for item in one.inputs):
        if item.role.startswith(_HOOK):
            show_hooks(Path(item.path), item.content_sha256)


def table_input(role: str, directory: Path, entry: FileEntry) -> Input:
    return Input(role, str(directory / entry.path), entry.content_sha256, entry.rows)


def tables_of(step: Step, receipts: Iterable[Receipt], table: str) -> list[Input]:
    """What these tasks wrote of one table, for the tasks after them."""
    return [
        table_input(table, step.directory, entry)
        for receipt in receipts
        for entry in receipt.files
        if entry.table == table
    ]


Asked = TypeVar("Asked")
Extra = TypeVar("Extra", covariant=True, default=Any)


@dataclass(frozen=True)
class Step(Generic[Options, Extra]):
    """One artifact of the run. `options` hold all that can change a byte of it."""

    name: str
    kind: str
    directory: Path
    options: Options
    needs: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)  # outside input: label -> sha256
    # what the stage needs besides, and what cannot change a byte
    extra: Extra = None  # type: ignore[assignment]

    @property
    def config(self) -> Json:
        """For fingerprints and the manifest."""
        return config_of(self.options)


class Made(NamedTuple):
    """What a task function returns; it becomes the receipt."""

    files: list[FileEntry]
    counts: Json
    facts: Json | None = None


class Outcome(NamedTuple):
    """What a step's manifest is written from."""

    receipts: list[Receipt]
    counts: Json
    facts: Json


class Unawaited(list[Task]):
    """Tasks of which the first few take long, and what comes next does not need them: the conduct goes on
    when the others are done. The receipts of the first come before those of the tasks that it asks for
    then."""

    def __init__(self, first: Sequence[Task], others: Sequence[Task]) -> None:
        super().__init__([*first, *others])
        self.first = len(first)


Conduct = Generator[list[Task], list[Receipt], Outcome]


@dataclass(frozen=True)
class TaskFunction(Generic[Asked]):
    """What a worker calls, and what its options are: they are decoded once, before the call."""

    options: type[Asked]
    perform: Callable[[Task[Asked]], Made]


def _nothing(step: Any, receipts: Sequence[Receipt]) -> Json:
    return {}


def _accept(step: Any, counts: Json) -> None:
    pass


@dataclass(frozen=True)
class Stage(Generic[Asked]):
    """All that the run knows of a kind of step."""

    kind: str
    options: type[Asked] | UnionType  # of a step; a manifest's config is decoded into them
    conduct: Callable[[Step[Asked, Any], Mapping[str, Artifact]], Conduct]
    tasks: Mapping[str, TaskFunction[Any]]  # by the names that receipts know them by
    environment: Callable[[Step[Asked, Any], Sequence[Receipt]], Json] = _nothing  # for the manifest's block
    # raises where the counts are over a limit that is in no fingerprint:
    # asked of steps that are up to date too
    check: Callable[[Step[Asked, Any], Json], None] = _accept


class Shard(NamedTuple):
    """One shard of documents with what cleaning said about it; `number` counts through all sources."""

    number: int
    name: str  # "<source>/<key>"
    source: str
    domain: str
    documents: Input
    marks: Input
    edits: Input | None
    text_bytes: int = 0  # as received: its share of the source, by documents
    edited_by: str | None = None  # what made the texts from the documents, where one does not hang on others
    is_chat: bool = False  # its texts have marks

    @property
    def key(self) -> str:
        return self.name.rpartition("/")[2]

    def inputs(self) -> list[Input]:
        return [self.documents, self.marks, *([self.edits] if self.edits else [])]

    def made_of(self, layers: Iterable[Input]) -> list[tuple[str, str]]:
        """What the texts are made of, for the cache. Edits are of documents that are kept: by what makes them
        the text of one is known whoever else is kept."""
        known = [(item.role, item.content_sha256) for item in layers]
        if self.edited_by is None:
            return known
        return [("edits", self.edited_by), *((role, sha256) for role, sha256 in known if role != "edits")]


class _Lines(msgspec.Struct):
    line_edits: Json | None = None


class _Edited(msgspec.Struct):
    """Of how a source is cleaned, what makes texts from documents."""

    normalize: Json
    sieve: _Lines
    redact: list[str]
    version: int
    unicode_data: str
    word_classes: str
    transforms: list[Json] = []


def _edited_by(cleaned: Artifact) -> str | None:
    """None where a function of somebody else makes them, which is given many documents at once."""
    try:
        asked = cleaned.manifest.options(_Edited)
    except TokmillError:  # of another version: by their content, then
        return None
    return None if asked.transforms else fingerprint_of(msgspec.to_builtins(asked))


class _Domain(msgspec.Struct):
    domain: str


class _Ingested(msgspec.Struct):
    reading: _Domain


def is_chat(ingest: Artifact) -> bool:
    """Are the documents of the source conversations? Then their texts have marks."""
    return "chat" in ingest.manifest.config["reading"]["options"]


def domain_of(ingested: Artifact) -> str:
    """Of a source, as its ingest step has it."""
    return ingested.manifest.options(_Ingested).reading.domain


def mixture_of(artifacts: Mapping[str, Artifact], build: Artifact | None = None) -> Artifact | None:
    """The mixture that a build was made with, of several stages its own; without a build, the only one."""
    if "mixture" in artifacts:
        return artifacts["mixture"]
    stages = {name: one for name, one in artifacts.items() if one.manifest.kind == "mixture"}
    if build is not None:
        stages = {name: one for name, one in stages.items() if f"step {name}" in build.manifest.inputs}
    return next(iter(stages.values())) if len(stages) == 1 else None


def mixtures_of(artifacts: Mapping[str, Artifact]) -> list[Artifact]:
    """All that chose documents of a run: its mixture, or that of each stage, one after the other."""
    if "mixture" in artifacts:
        return [artifacts["mixture"]]
    followers = {
        one.manifest.config["stage"]["after"]: one
        for one in artifacts.values()
        if one.manifest.kind == "mixture"
    }
    found: list[Artifact] = []
    former = None
    while former in followers:
        found.append(followers[former])
        former = found[-1].manifest.config["stage"]["name"]
    assert len(found) == len(followers), "a run has its stages from the first on"
    return found


def list_shards(upstream: Mapping[str, Artifact]) -> list[Shard]:
    """All shards in stable order: sources as in the recipe, then chunk, then part."""
    shards: list[Shard] = []
    # rules on percentiles leave fewer than cleaning did
    ranked = (
        {entry.path: entry for entry in upstream["scores"].manifest.files} if "scores" in upstream else {}
    )
    for name, ingested in upstream.items():
        if not name.startswith("ingest/"):
            continue
        source = name.removeprefix("ingest/")
        cleaned = upstream[f"clean/{source}"]
        tables = {entry.path: entry for entry in cleaned.manifest.files}
        counts, edited_by = ingested.manifest.counts, _edited_by(cleaned)
        for entry in ingested.manifest.entries("documents"):
            key = shard_key(entry)
            marks = table_input("marks", cleaned.directory, tables[f"marks-{key}.parquet"])
            if ranked:
                marks = table_input(
                    "marks", upstream["scores"].directory, ranked[f"marks-{len(shards):05d}.parquet"]
                )
            edits = tables.get(f"edits-{key}.parquet")
            shards.append(
                Shard(
                    number=len(shards),
                    name=f"{source}/{key}",
                    source=source,
                    domain=domain_of(ingested),
                    documents=table_input("documents", ingested.directory, entry),
                    marks=marks,
                    edits=table_input("edits", cleaned.directory, edits) if edits else None,
                    text_bytes=int(counts["text_bytes"] * entry.rows // max(counts["kept"], 1)),
                    edited_by=edited_by,
                    is_chat=is_chat(ingested),
                )
            )
    return shards


def shard_key(entry: FileEntry) -> str:
    """documents-00003-001.parquet -> 00003-001"""
    return entry.path.removeprefix("documents-").removesuffix(".parquet")


def texts_in_order(splits: Sequence[str], files: Sequence[FileEntry]) -> dict[str, list[FileEntry]]:
    """The files of each split that has any."""
    found = {
        split: sorted(
            (e for e in files if e.table == "texts" and e.path.startswith(f"{split}/")),
            key=text_file_number,
        )
        for split in splits
    }
    return {split: own for split, own in found.items() if own}


def text_file_number(entry: FileEntry) -> int:
    """train/texts-00003.jsonl.zst -> 3: that of its shard, where no mixture orders the split."""
    return int(Path(entry.path).name.removeprefix("texts-").partition(".")[0])


def kept_inputs(upstream: Mapping[str, Artifact], shards: list[Shard]) -> list[Input]:
    """Per shard the table whose `kept` column is the last word so far: verdicts, or marks without dedup."""
    if "dedup" not in upstream:
        return [
            Input("kept", shard.marks.path, shard.marks.content_sha256, shard.marks.rows) for shard in shards
        ]
    dedup = upstream["dedup"]
    return [table_input("kept", dedup.directory, entry) for entry in dedup.manifest.entries("verdicts")]


UNKNOWN = "unknown"


def tally(names: Any, **amounts: Any) -> Json:
    """Documents by name, and what they add up to; a null is unknown."""
    coded = names.fill_null(UNKNOWN).dictionary_encode()
    numbers = np.asarray(coded.indices)
    totals = {}
    for code, name in enumerate(coded.dictionary.to_pylist()):
        rows = numbers == code
        sums = {label: int(column[rows].sum()) for label, column in amounts.items()}
        totals[name] = {"docs": int(rows.sum()), **sums}
    return dict(sorted(totals.items()))


def write_shard_table(directory: str, path: str, table_name: str, table: Any) -> FileEntry:
    written = write_table(Path(directory) / path, table)
    return file_entry(path, table_name, written, rows=table.num_rows, content_sha256=table_sha256(table))


def write_sorted_shard_table(directory: str, path: str, table_name: str, table: Any, by: str) -> FileEntry:
    """A table in order of column `by`, of which `load_range` reads a part."""
    written = write_sorted_table(Path(directory) / path, table, by=by)
    return file_entry(path, table_name, written, rows=table.num_rows, content_sha256=table_sha256(table))


def write_task_table(task: Task, name: str, table: Any, by: str) -> FileEntry:
    """The same, as <name>-<key of the task>."""
    return write_sorted_shard_table(task.directory, f"{name}-{task.key}.parquet", name, table, by)

"""What a stage is given and what it gives back: the contract between the run and the stages.

    conduct(step, upstream)  yields tasks, is sent their receipts, returns an Outcome      in the driver
    <function>(task) -> Made(files, counts, facts)                                         in a worker

Receipts come back in the order of the tasks. Steps that do not need each other are conducted side by side, and
their tasks share the engine.

A task: a pure function of its options and inputs, named so that any process can run it.

    Task(function, key, options, inputs, directory)  ->  files in directory + Receipt

The fingerprint covers what can change a byte: function, key, options and the content of the inputs. Where the
inputs lie on this machine, and what may follow in the same pass, is not part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Generic, NamedTuple

import msgspec
import numpy as np
from typing_extensions import TypeVar

from tokmill.artifacts.artifact import Artifact
from tokmill.artifacts.manifest import (
    FORMAT_VERSION,
    FileEntry,
    Json,
    Receipt,
    config_of,
    file_entry,
    fingerprint_of,
)
from tokmill.storage.digest import table_sha256
from tokmill.storage.parquet import load_table, write_sorted_table, write_table

Options = TypeVar("Options", covariant=True, default=Any)


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a task is told, frozen. A field that has a default is not in the config while it has that value."""


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


def table_input(role: str, directory: Path, entry: FileEntry) -> Input:
    return Input(role, str(directory / entry.path), entry.content_sha256, entry.rows)


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
    extra: Extra = None  # type: ignore[assignment]  # what the stage needs besides, and what cannot change a byte

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


Conduct = Generator[list[Task], list[Receipt], Outcome]


@dataclass(frozen=True)
class TaskFunction(Generic[Asked]):
    """What a worker calls, and what its options are: they are decoded once, before the call."""

    options: type[Asked]
    perform: Callable[[Task[Asked]], Made]


def _no_kernels(options: Any) -> set[str]:
    return set()


def _nothing(step: Any, receipts: Sequence[Receipt]) -> Json:
    return {}


@dataclass(frozen=True)
class Stage(Generic[Asked]):
    """All that the run knows of a kind of step."""

    kind: str
    options: type[Asked] | UnionType  # of a step; a manifest's config is decoded into them
    conduct: Callable[[Step[Asked, Any], Mapping[str, Artifact]], Conduct]
    tasks: Mapping[str, TaskFunction[Any]]  # by the names that receipts know them by
    kernels: Callable[[Asked], set[str]] = _no_kernels  # modules to compile before the first task
    environment: Callable[[Step[Asked, Any], Sequence[Receipt]], Json] = _nothing  # for the manifest's block


class Shard(NamedTuple):
    """One shard of documents with what cleaning said about it; `number` counts through all sources."""

    number: int
    name: str  # "<source>/<key>"
    source: str
    domain: str
    documents: Input
    marks: Input
    edits: Input | None

    @property
    def key(self) -> str:
        return self.name.rpartition("/")[2]

    def inputs(self) -> list[Input]:
        return [self.documents, self.marks, *([self.edits] if self.edits else [])]


class _Domain(msgspec.Struct):
    domain: str


class _Ingested(msgspec.Struct):
    reading: _Domain


def domain_of(ingested: Artifact) -> str:
    """Of a source, as its ingest step has it."""
    return ingested.manifest.options(_Ingested).reading.domain


def list_shards(upstream: Mapping[str, Artifact]) -> list[Shard]:
    """All shards in stable order: sources as in the recipe, then chunk, then part."""
    shards: list[Shard] = []
    for name, ingested in upstream.items():
        if not name.startswith("ingest/"):
            continue
        source = name.removeprefix("ingest/")
        cleaned = upstream[f"clean/{source}"]
        tables = {entry.path: entry for entry in cleaned.manifest.files}
        for entry in ingested.manifest.entries("documents"):
            key = shard_key(entry)
            edits = tables.get(f"edits-{key}.parquet")
            shards.append(
                Shard(
                    number=len(shards),
                    name=f"{source}/{key}",
                    source=source,
                    domain=domain_of(ingested),
                    documents=table_input("documents", ingested.directory, entry),
                    marks=table_input("marks", cleaned.directory, tables[f"marks-{key}.parquet"]),
                    edits=table_input("edits", cleaned.directory, edits) if edits else None,
                )
            )
    return shards


def shard_key(entry: FileEntry) -> str:
    """documents-00003-001.parquet -> 00003-001"""
    return entry.path.removeprefix("documents-").removesuffix(".parquet")


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

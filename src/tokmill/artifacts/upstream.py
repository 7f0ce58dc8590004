"""What a step finds in the steps before it, and tables that it leaves for those after it, shard by shard.

ingest/<source>   documents-<key>   ─┐
clean/<source>    marks, edits       ├─ Shard, numbered through all sources
scores            marks              ┘
dedup             verdicts          ── whose `kept` is the last word
mixture, stages   order             ── what a build was made with
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import FileEntry, Json, file_entry, fingerprint_of
from tokmill.artifacts.step import Input, Task, table_input
from tokmill.errors import TokmillError
from tokmill.storage.digests import table_sha256
from tokmill.storage.tables import write_sorted_table, write_table


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

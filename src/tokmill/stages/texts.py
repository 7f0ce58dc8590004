"""The kept texts of a shard, as cleaning left them: the one way later stages read documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tokmill.artifacts.artifact import Artifact
from tokmill.artifacts.step import Input, Shard, kept_inputs, list_shards, table_input
from tokmill.clean.edits import apply_edits
from tokmill.kernels.characters import measure_text
from tokmill.schema import NO_SPLIT, one_piece, string_column
from tokmill.storage.parquet import load_table

_TEXTS = pa.schema(
    [
        pa.field("row", pa.int64()),
        pa.field("split", pa.uint8()),
        pa.field("doc_id", pa.string()),
        pa.field("text", pa.large_string()),
        pa.field("language", pa.string()),
        pa.field("license", pa.string()),
        pa.field("chars", pa.int64()),
    ]
)


def text_inputs(shard: Shard, kept: Input, labels: Input) -> list[Input]:
    """What a task needs to read the texts of one shard."""
    return [*shard.inputs(), kept, labels]


def labelled_shards(upstream: dict[str, Artifact]) -> list[tuple[Shard, list[Input]]]:
    """Every shard with the inputs for `load_texts`."""
    shards = list_shards(upstream)
    split = upstream["split"]
    trims = trim_inputs(upstream)
    labels = [
        Input("labels", str(split.path(entry)), entry.content_sha256, entry.rows)
        for entry in split.manifest.entries("labels")
    ]
    return [
        (shard, [*text_inputs(shard, kept, label), *trims.get(shard.number, [])])
        for shard, kept, label in zip(shards, kept_inputs(upstream, shards), labels, strict=True)
    ]


def trim_inputs(upstream: dict[str, Artifact]) -> dict[int, list[Input]]:
    """By shard: texts that lost passages to deduplication."""
    dedup = upstream.get("dedup")
    entries = dedup.manifest.entries("trims") if dedup is not None else []
    return {
        int(entry.path.removeprefix("trims-").removesuffix(".parquet")): [
            table_input("trims", dedup.directory, entry)  # type: ignore[union-attr]
        ]
        for entry in entries
    }


def load_texts(inputs: list[Input], split: int) -> Any:
    """Table row, split, doc_id, text, language, license, chars of the kept documents of a split, in row order."""
    by_role = {item.role: item.path for item in inputs}
    labels = _labels(by_role)
    return _load_rows(by_role, np.flatnonzero(labels == split), labels)


def load_split_texts(inputs: list[Input]) -> Any:
    """The same of all kept documents that are in some split: one reading for them all."""
    by_role = {item.role: item.path for item in inputs}
    labels = _labels(by_role)
    return _load_rows(by_role, np.flatnonzero(labels != NO_SPLIT), labels)


def _labels(by_role: dict[str, str]) -> Any:
    """The split of every document; NO_SPLIT where it was dropped."""
    kept = np.asarray(_load(by_role["kept"], ["kept"]).column("kept"))
    labels = np.asarray(_load(by_role["labels"], ["split"]).column("split"))
    return np.where(kept, labels, NO_SPLIT).astype(np.uint8)


def _load_rows(by_role: dict[str, str], rows: Any, labels: Any) -> Any:
    if not len(rows):
        return _TEXTS.empty_table()
    documents = _load(by_role["documents"], ["text", "doc_id"])
    texts = [one_piece(documents.column("text"))]
    order = np.arange(documents.num_rows)
    for role in ("edits", "trims"):  # a trim is of the edited text
        if role in by_role:
            edits = _load(by_role[role], ["row", "text"])
            order[np.asarray(edits.column("row"))] = sum(map(len, texts)) + np.arange(edits.num_rows)
            texts.append(one_piece(edits.column("text")))
    wanted = ["language", "license", "chars"]
    marks = _load(by_role["marks"], wanted)
    columns = [one_piece(documents.column("doc_id")), *(one_piece(marks.column(name)) for name in wanted)]
    doc_ids, *named = (_taken(column, rows) for column in columns)
    chosen = _taken(texts[0] if len(texts) == 1 else pa.concat_arrays(texts), order[rows])
    if "trims" in by_role:  # the marks are of the text before
        named[-1] = pa.array(measure_text(*string_column(chosen)[:2]).chars)
    return pa.table([rows, labels[rows], doc_ids, chosen, *named], schema=_TEXTS)


def _taken(column: Any, rows: Any) -> Any:
    """Not copied where all is taken as it stands: a corpus that loses nothing is the common case of the large ones."""
    if len(rows) == len(column) and (rows == np.arange(len(rows))).all():
        return column
    return column.take(pa.array(rows))


def load_clean(inputs: list[Input]) -> tuple[Any, Any]:
    """The document table of what cleaning kept of a shard, edits laid over, and trims where they are among the
    inputs; and the characters of each after cleaning."""
    by_role = {item.role: item.path for item in inputs}
    marks = _load(by_role["marks"], ["kept", "chars"])
    kept = np.asarray(marks.column("kept"))
    documents = load_table(Path(by_role["documents"]))
    for role in ("edits", "trims"):  # a trim is of the edited text
        if role in by_role:
            edits = _load(by_role[role], ["row", "text"])
            texts = apply_edits(
                one_piece(documents.column("text")),
                np.asarray(edits.column("row")),
                one_piece(edits.column("text")),
            )
            documents = documents.set_column(0, documents.schema.field(0), texts)
    return documents.filter(pa.array(kept)), np.asarray(marks.column("chars"))[kept]


def _load(path: str, columns: list[str]) -> Any:
    return load_table(Path(path), columns)


# For planning only: what a limit in tokens, and an estimate in a manifest, take a token for.
CHARS_PER_TOKEN = 4


def estimate_tokens(chars: Any) -> int:
    """Of documents with so many characters each."""
    return int((-(-chars // CHARS_PER_TOKEN)).sum())


class DocIds:
    """doc_id of any document by shard and row; shards that were asked for stay in memory."""

    def __init__(self, shards: list[Shard]) -> None:
        self._paths = {shard.name: Path(shard.documents.path) for shard in shards}
        self._columns: dict[str, Any] = {}

    def of(self, shard: str, row: int) -> str:
        if shard not in self._columns:
            self._columns[shard] = load_table(self._paths[shard], ["doc_id"]).column("doc_id")
        return str(self._columns[shard][row])

"""Documents as deduplication and splits left them: texts, or what is told of them, by shard and row.

documents ─ edits ─ stripped ─ trims ─> texts        each layer is of the text that the one before left
kept, labels ─> which of them, and for which split
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.step import Input, table_input
from tokmill.artifacts.upstream import Shard, kept_inputs, list_shards
from tokmill.clean.edits import apply_edits
from tokmill.kernels.characters import measure_text
from tokmill.schema import DEDUP_EDITS, NO_SPLIT, one_piece, string_column
from tokmill.storage.tables import load_table
from tokmill.tokenizers.regions import strip_marks

Numbers = NDArray[np.int64]

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


def labelled_shards(upstream: dict[str, Artifact]) -> list[tuple[Shard, list[Input]]]:
    """Every shard with the inputs for `load_split_texts`."""
    shards = list_shards(upstream)
    split = upstream["split"]
    trims = trim_inputs(upstream)
    labels = [table_input("labels", split.directory, entry) for entry in split.manifest.entries("labels")]
    return [
        (shard, [*shard.inputs(), kept, label, *trims.get(shard.number, [])])
        for shard, kept, label in zip(shards, kept_inputs(upstream, shards), labels, strict=True)
    ]


def trim_inputs(upstream: dict[str, Artifact]) -> dict[int, list[Input]]:
    """By shard: texts that lost lines or passages to deduplication."""
    found: dict[int, list[Input]] = {}
    if "dedup" in upstream:
        dedup = upstream["dedup"]
        for table in DEDUP_EDITS:
            for entry in dedup.manifest.entries(table):
                number = int(entry.path.removeprefix(f"{table}-").removesuffix(".parquet"))
                found.setdefault(number, []).append(table_input(table, dedup.directory, entry))
    return found


def load_split_texts(inputs: list[Input], split: int | None = None, *, is_marked: bool = False) -> Any:
    """Table row, split, doc_id, text, language, license, chars of the kept documents of a split,
    in row order; or of all splits: one reading for them all. The marks of conversations are for who
    encodes them (`is_marked`), and nobody else."""
    by_role = {item.role: Path(item.path) for item in inputs}
    labels = load_labels(inputs)
    rows = np.flatnonzero(labels != NO_SPLIT if split is None else labels == split)
    if not len(rows):
        return _TEXTS.empty_table()

    documents = load_table(by_role["documents"], ["text", "doc_id"])
    texts = [one_piece(documents.column("text"))]
    order = np.arange(documents.num_rows)
    for role in ("edits", *DEDUP_EDITS):  # each is of the text that the one before left
        if role in by_role:
            edits = load_table(by_role[role], ["row", "text"])
            order[np.asarray(edits.column("row"))] = sum(map(len, texts)) + np.arange(edits.num_rows)
            texts.append(one_piece(edits.column("text")))
    wanted = ["language", "license", "chars"]
    marks = load_table(by_role["marks"], wanted)
    columns = [one_piece(documents.column("doc_id")), *(one_piece(marks.column(name)) for name in wanted)]
    doc_ids, *named = (taken(column, rows) for column in columns)
    chosen = taken(texts[0] if len(texts) == 1 else pa.concat_arrays(texts), order[rows])
    if not by_role.keys().isdisjoint(DEDUP_EDITS):  # the marks are of the text before
        named[-1] = pa.array(measure_text(*string_column(chosen)[:2]).chars)
    if not is_marked and (plain := strip_marks(chosen)) is not chosen:
        chosen, named[-1] = plain, pa.array(measure_text(*string_column(plain)[:2]).chars)
    return pa.table([rows, labels[rows], doc_ids, chosen, *named], schema=_TEXTS)


def load_labels(inputs: list[Input]) -> Any:
    """The split of every document; NO_SPLIT where it was dropped."""
    by_role = {item.role: Path(item.path) for item in inputs}
    kept = np.asarray(load_table(by_role["kept"], ["kept"]).column("kept"))
    labels = np.asarray(load_table(by_role["labels"], ["split"]).column("split"))
    return np.where(kept, labels, NO_SPLIT).astype(np.uint8)


def taken(column: Any, rows: Any) -> Any:
    """Not copied where all is taken as it stands: a corpus that loses nothing is the common case of the large
    ones."""
    if len(rows) == len(column) and (rows == np.arange(len(rows))).all():
        return column
    return column.take(pa.array(rows))


def load_clean(inputs: list[Input]) -> tuple[Any, Any]:
    """The document table of what cleaning kept of a shard, edits laid over,
    and trims where they are among the inputs; and the characters of each after cleaning."""
    by_role = {item.role: Path(item.path) for item in inputs}
    marks = load_table(by_role["marks"], ["kept", "chars"])
    kept = np.asarray(marks.column("kept"))
    documents = load_table(by_role["documents"])
    for role in ("edits", *DEDUP_EDITS):  # each is of the text that the one before left
        if role in by_role:
            edits = load_table(by_role[role], ["row", "text"])
            texts = apply_edits(
                one_piece(documents.column("text")),
                np.asarray(edits.column("row")),
                one_piece(edits.column("text")),
            )
            documents = documents.set_column(0, documents.schema.field(0), texts)
    return documents.filter(pa.array(kept)), np.asarray(marks.column("chars"))[kept]


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


def load_described(inputs: list[Input], rows: Numbers) -> Any:
    """What `load_split_texts` tells of these rows, without their texts."""
    by_role = {item.role: Path(item.path) for item in inputs}
    named = ["language", "license", "chars"]
    marks = load_table(by_role["marks"], named)
    chars = np.asarray(marks.column("chars")).copy()
    for role in DEDUP_EDITS:  # the marks are of the text before
        if role in by_role:
            edits = load_table(by_role[role], ["row", "text"])
            lengths = measure_text(*string_column(edits.column("text"))[:2]).chars
            chars[np.asarray(edits.column("row"))] = lengths
    documents = load_table(by_role["documents"], ["doc_id"])
    columns = [documents.column("doc_id"), marks.column("language"), marks.column("license"), pa.array(chars)]
    chosen = [taken(one_piece(column), rows) for column in columns]
    labels = load_labels(inputs)[rows]
    return pa.table([rows, labels, *chosen], names=["row", "split", "doc_id", *named])

"""The tables that move through a run, and how their columns are laid out in memory.

    documents   one row per document as received                 ingest writes it, once
    edits       row, text: only documents that cleaning changed  clean
    marks       one row per document: kept, chars, exact hash    clean
    measures    one row per document: a column per measure,      clean (columns as the rules ask)
                null where the document is out for good
    examples    some of what was dropped, to read                clean
    ledger      one row per decision that was not a plain keep   every stage
    matches, drops    who goes, for whom                              dedup
    clusters    members of every connected component             dedup
    spans, contamination   passages said before, items of a benchmark  dedup
    stripped, template_spans   texts without the lines of their site, and what went  dedup
    keys, selection   which documents a sample takes                ingest, while it works
    verdicts    one row per document: kept after deduplication   dedup
    labels      one row per document: the number of its split     split
    lengths     one row per encoded document, beside its ids     tokens
    forgotten   one row per id that was taken down               forget

`marks`, `measures`, `verdicts` and `labels` have exactly the rows of the `documents` shard they speak of, in
its order: the key is the position (shard, row), so nothing is ever joined. A document without a ledger row
was kept unchanged; the counts in each manifest prove that none is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

DOCUMENTS = pa.schema(
    [
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("domain", pa.string(), nullable=False),
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("license_tag", pa.string()),
        pa.field("created_at", pa.string()),
        pa.field("meta", pa.string()),
    ]
)

EDITS = pa.schema(
    [pa.field("row", pa.uint32(), nullable=False), pa.field("text", pa.large_string(), nullable=False)]
)

MARKS = pa.schema(
    [
        pa.field("kept", pa.bool_(), nullable=False),
        pa.field("chars", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("exact_high", pa.uint64(), nullable=False),  # of the folded text; 0: nothing to be seen
        pa.field("exact_low", pa.uint64(), nullable=False),
        pa.field("text_high", pa.uint64(), nullable=False),  # of the text as it is
        pa.field("text_low", pa.uint64(), nullable=False),
        pa.field("language", pa.string()),  # null: not looked at
        pa.field("license", pa.string()),  # SPDX; null: not known
    ]
)

EXAMPLES = pa.schema(
    [
        pa.field("row", pa.uint32(), nullable=False),
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("value", pa.float64()),
        pa.field("threshold", pa.float64()),
        pa.field("text", pa.large_string(), nullable=False),  # its beginning
    ]
)

LEDGER = pa.schema(
    [
        pa.field("shard", pa.string()),  # "<source>/<key>"; null for a record that never became a document
        pa.field("row", pa.uint32()),
        pa.field("source", pa.string(), nullable=False),
        pa.field("doc_id", pa.string()),
        pa.field("stage", pa.string(), nullable=False),
        pa.field("verdict", pa.string(), nullable=False),  # drop | edit | quarantine
        pa.field("reason", pa.string(), nullable=False),
        pa.field("value", pa.float64()),
        pa.field("threshold", pa.float64()),
        pa.field("match_shard", pa.string()),  # the survivor
        pa.field("match_row", pa.uint32()),
        pa.field("similarity", pa.float64()),
        pa.field("file", pa.string()),  # where a quarantined record lies
        pa.field("offset", pa.int64()),  # bytes into the decompressed file, or the row of a Parquet file
        pa.field("detail", pa.string()),
    ]
)

MATCHES = pa.schema(
    [
        pa.field("shard", pa.uint32(), nullable=False),  # the shard's number in the step's inputs
        pa.field("row", pa.uint32(), nullable=False),
        pa.field("survivor_shard", pa.string(), nullable=False),
        pa.field("survivor_row", pa.uint32(), nullable=False),
    ]
)

KEYS = pa.schema([pa.field("key", pa.uint64(), nullable=False)])
DISTINCT_KEYS = KEYS.append(pa.field("draw", pa.uint64(), nullable=False))  # equal draws are copies

SELECTION = pa.schema(
    [pa.field("chunk", pa.uint32(), nullable=False), pa.field("row", pa.uint32(), nullable=False)]
)

DROPS = pa.schema(
    [
        pa.field("shard", pa.uint32(), nullable=False),
        pa.field("row", pa.uint32(), nullable=False),
        pa.field("survivor_shard", pa.string()),
        pa.field("survivor_row", pa.uint32()),
        pa.field("similarity", pa.float64()),
        pa.field("cluster", pa.int64()),
        pa.field("cluster_size", pa.int64()),
        pa.field("detail", pa.string()),
    ]
)

SPANS = pa.schema(
    [
        pa.field(name, pa.int64(), nullable=False)
        for name in (
            *("document", "first_word", "words", "start", "end"),  # bytes [start, end) of the document
            *("first_document", "first_start", "first_end"),  # the earlier copy
        )
    ]
)

STRIPPED = pa.schema(
    [
        *EDITS,
        pa.field("chars", pa.int64(), nullable=False),  # that went
        pa.field("lines", pa.int64(), nullable=False),  # that went, blank ones not counted
        pa.field("host", pa.string(), nullable=False),
    ]
)

# Texts that deduplication changed (`row`, `text`), in the order in which they are laid over the cleaned ones.
DEDUP_EDITS = ("stripped", "trims")

TEMPLATE_SPANS = pa.schema(
    [
        pa.field("row", pa.uint32(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),  # bytes of the cleaned text
        pa.field("end", pa.int64(), nullable=False),
        pa.field("pages", pa.int64(), nullable=False),  # of the host, that have the rarest of its lines
        pa.field("host_pages", pa.int64(), nullable=False),
    ]
)

CONTAMINATION = pa.schema(
    [
        pa.field("row", pa.uint32(), nullable=False),
        pa.field("item", pa.string(), nullable=False),  # "<file>:<record>"
        pa.field("start", pa.int64(), nullable=False),  # bytes of the cleaned text
        pa.field("end", pa.int64(), nullable=False),
        pa.field("grams", pa.int64(), nullable=False),
        pa.field("share", pa.float64(), nullable=False),  # of the item, in the whole document
    ]
)

CLUSTERS = pa.schema(
    [
        pa.field("cluster", pa.int64(), nullable=False),
        pa.field("cluster_size", pa.int64(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),
        pa.field("row", pa.uint32(), nullable=False),
        pa.field("kept", pa.bool_(), nullable=False),
        pa.field("survivor_shard", pa.string(), nullable=False),  # itself, where nothing before it is like it
        pa.field("survivor_row", pa.uint32(), nullable=False),
        pa.field("similarity", pa.float64(), nullable=False),  # with the survivor
    ]
)

VERDICTS = pa.schema(
    [
        pa.field("kept", pa.bool_(), nullable=False),
        pa.field("reason", pa.string()),  # of the method that dropped it: url_dup, exact_dup, …
        pa.field("survivor_shard", pa.string()),
        pa.field("survivor_row", pa.uint32()),
        pa.field("similarity", pa.float64()),
        pa.field("cluster", pa.int64()),
        pa.field("cluster_size", pa.int64()),
    ]
)

# the number of the split in the manifest's `splits`; NO_SPLIT: in none
LABELS = pa.schema([pa.field("split", pa.uint8(), nullable=False)])
NO_SPLIT = 255

LENGTHS = pa.schema(
    [
        pa.field("row", pa.uint32(), nullable=False),
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("text_bytes", pa.int64(), nullable=False),
        pa.field("language", pa.string()),
        pa.field("license", pa.string()),
    ]
)


# which documents are built, in turn: the number of a working shard, and of a sequence of its token file
ORDER = pa.schema(
    [pa.field("shard", pa.uint32(), nullable=False), pa.field("sequence", pa.uint32(), nullable=False)]
)


# what was taken down, by the hash of its id; parent: the digest of the run before
FORGOTTEN_IDS = pa.schema([pa.field("id_sha256", pa.string(), nullable=False)])

FORGOTTEN = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("id_sha256", pa.string(), nullable=False),
        pa.field("parent", pa.string(), nullable=False),
    ]
)


# how often documents had been trained on when a run began; id: the first eight bytes of the SHA-256 of theirs
SEEN = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("id", pa.uint64(), nullable=False),
        pa.field("passes", pa.uint16(), nullable=False),  # whole
        pa.field("partly", pa.bool_(), nullable=False),  # and some of its tokens once more
        pa.field("tokens", pa.int64(), nullable=False),  # of all of these
    ]
)


# measures of scores: score.edu, and score.edu.percentile, which is known after all shards
SCORE, PERCENTILE = "score.", ".percentile"


class StringColumn(NamedTuple):
    """Arrow's own buffers of a string column: bytes, n + 1 offsets into them, and which rows are not null."""

    data: np.ndarray[Any, np.dtype[np.uint8]]
    offsets: np.ndarray[Any, np.dtype[np.int64]]
    is_valid: np.ndarray[Any, np.dtype[np.bool_]]


def one_piece(column: Any) -> Any:
    """The column as one array. Not copied where it is in one piece already, as `combine_chunks` would do."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def string_column(column: Any) -> StringColumn:
    """Zero-copy for a large_string array in one piece; anything else is cast and joined first."""
    array = one_piece(column)
    if array.type != pa.large_string():
        array = array.cast(pa.large_string())
    if array.null_count:
        is_valid = np.asarray(array.is_valid())
        array = array.fill_null("")
    else:
        is_valid = np.ones(len(array), np.bool_)
    _, offsets, data = array.buffers()
    if not len(array):
        return StringColumn(_bytes_of(None), _NO_ROWS, is_valid)
    all_offsets = np.frombuffer(offsets, np.int64)
    return StringColumn(_bytes_of(data), all_offsets[array.offset : array.offset + len(array) + 1], is_valid)


_NO_ROWS = np.frombuffer(bytes(8), np.int64)


def _bytes_of(buffer: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(buffer if buffer is not None and buffer.size else b"\0", np.uint8)


def large_strings(data: np.ndarray[Any, Any], offsets: np.ndarray[Any, Any]) -> Any:
    """The other way: a large_string array around a kernel's output, without a copy."""
    return pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data))


def ledger_table(columns: Mapping[str, Any], rows: int) -> Any:
    """A ledger from the columns a stage fills; the rest is null. A scalar stands for every row."""
    arrays = []
    for field in LEDGER:
        value = columns.get(field.name)
        if value is None:
            arrays.append(pa.nulls(rows, field.type))
        elif isinstance(value, (pa.Array, pa.ChunkedArray)):
            arrays.append(value.cast(field.type))
        elif isinstance(value, (np.ndarray, Sequence)) and not isinstance(value, str):
            arrays.append(pa.array(value, field.type))
        else:
            arrays.append(pa.repeat(pa.scalar(value, field.type), rows))
    return pa.table(arrays, schema=LEDGER)

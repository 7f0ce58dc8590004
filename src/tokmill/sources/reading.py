"""What every reader of a source gives, and how it becomes documents.

    resolve(source, files) -> options                          driver: what the recipe left open, from the files
    split(path, size, options, target_bytes) -> spans          driver: parts that can be read on their own
    read(path, name, span, reading) -> Taken, Taken, …         worker: records, bad records, dropped records

A reader module has these three functions; `tokmill.sources.readers` knows them all. Records have five columns;
source, domain, the default licence and derived ids are added here, the same for every reader. Records that name
their own source and domain have a column for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokmill.artifacts.manifest import Json
from tokmill.kernels import hashing
from tokmill.schema import DOCUMENTS, one_piece, string_column
from tokmill.storage.records import BadRecord

RECORDS = pa.schema(
    [
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("id", pa.string()),  # null: derived from the text
        pa.field("license", pa.string()),  # null: that of the source
        pa.field("created_at", pa.string()),
        pa.field("meta", pa.string()),  # a JSON object
    ]
)


class Reading(msgspec.Struct, frozen=True):
    """How the files of a source become documents: everything that can change a byte of them."""

    source: str
    domain: str
    license: str | None
    format: str
    options: Json
    max_record_bytes: int


class Dropped(NamedTuple):
    """A well-formed record that is left out on purpose: a redirect, an unanswered question, …"""

    offset: int
    id: str | None
    reason: str
    value: float | None = None
    threshold: float | None = None
    file: str = ""  # where a reader takes records from several files at once


class Taken(NamedTuple):
    """One batch: what was read, what could not be, and what was not wanted."""

    records: Any
    bad: list[BadRecord]
    dropped: list[Dropped]
    presence: Mapping[str, int] = MappingProxyType(
        {}
    )  # records, and how many of them have each field that the recipe names


class Batch(NamedTuple):
    """The same with the records as documents."""

    documents: Any
    bad: list[BadRecord]
    dropped: list[Dropped]
    presence: Mapping[str, int] = MappingProxyType({})


def record_table(
    texts: list[str],
    ids: list[str | None],
    licenses: list[str | None],
    dates: list[str | None],
    metas: list[Json | None],
) -> Any:
    """Records from Python values, for readers whose parser gives them one by one anyway."""
    spelled = [None if meta is None else msgspec.json.encode(meta).decode() for meta in metas]
    return pa.table([texts, ids, licenses, dates, spelled], schema=RECORDS)


def to_documents(records: Any, reading: Reading) -> Any:
    text = one_piece(records.column("text"))
    doc_id, license_tag = one_piece(records.column("id")), one_piece(records.column("license"))
    if doc_id.null_count:
        doc_id = pc.coalesce(doc_id, content_ids(text))
    if reading.license is not None:
        license_tag = license_tag.fill_null(reading.license)
    return pa.table(
        [
            text,
            _label(records, "source", reading.source),
            _label(records, "domain", reading.domain),
            doc_id,
            license_tag,
            one_piece(records.column("created_at")),
            one_piece(records.column("meta")),
        ],
        schema=DOCUMENTS,
    )


def _label(records: Any, name: str, default: str) -> Any:
    if name in records.column_names:
        return one_piece(records.column(name)).fill_null(default)
    return pa.repeat(pa.scalar(default, pa.string()), records.num_rows)


def content_ids(text: Any) -> Any:
    """32 hex digits of the text's own hash: the same text has the same id wherever it comes from."""
    state = np.zeros((len(text), 2), np.uint64)
    hashing.mix_column(*string_column(text), state)
    nibbles = np.frombuffer(b"0123456789abcdef", np.uint8)
    raw = state.astype(">u8").view(np.uint8).reshape(len(text), 16)
    spelled = np.stack([nibbles[raw >> 4], nibbles[raw & 15]], axis=-1).reshape(len(text), 32)
    offsets = np.arange(0, 32 * len(text) + 1, 32, dtype=np.int32)
    return pa.StringArray.from_buffers(
        len(text), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(spelled))
    )

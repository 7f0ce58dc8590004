"""Members of objects: what `translation.fr` names in {"translation": {"en": …, "fr": …}}.

nested_wanted(name, "translation.fr", kind)    -> the columns to read: the key as it is spelled, and the object
read_nested(table, name, "translation.fr")     -> the texts, and the rows that have none
with_offsets(batches, …)                       -> batches with the place of each row, to say where such a row lies
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tokmill.kernels import jsonlines
from tokmill.schema import one_piece
from tokmill.storage import parquet
from tokmill.storage.location import AnyPath
from tokmill.storage.records import BadRecord, Batch, Kind, Span, Wanted
from tokmill.storage.streams import Oversize, read_blocks

Faults = dict[int, tuple[str, str]]  # by row: reason and detail


def outer_of(key: str) -> str:
    """The object that a key with a dot names a member of; any other key itself."""
    outer, dot, member = key.partition(".")
    return outer if outer and dot and member else key


def nested_wanted(name: str, key: str, kind: Kind) -> list[Wanted]:
    """The columns that `read_nested` looks into: the key as it is spelled, and the object."""
    if outer_of(key) == key:
        return [Wanted(name, key, kind, True)]
    return [
        Wanted(name, key, kind, False),
        Wanted(f"object:{outer_of(key)}", outer_of(key), Kind.JSON, False),
    ]


def read_nested(table: Any, name: str, key: str, *, kind: Any = str) -> tuple[Any, Faults]:
    """The texts, record by record under the key as it is spelled, else in the object; and the rows that have none."""
    column, outer = one_piece(table.column(name)), outer_of(key)
    if outer == key or not column.null_count:
        return column, {}
    lacking = column.is_null()
    rows = np.flatnonzero(np.asarray(lacking)).tolist()
    objects = one_piece(table.column(f"object:{outer}")).filter(lacking)
    texts, faults = read_members(objects, [outer, key.removeprefix(f"{outer}.")], kind=kind)
    return pc.replace_with_mask(column, lacking, texts), {rows[row]: fault for row, fault in faults.items()}


def read_members(objects: Any, path: list[str], *, kind: Any = str) -> tuple[Any, Faults]:
    """The member of each JSON object, and the rows that have none. `kind`: what it may be; numbers are spelled."""
    key, member = path
    fields: list[Any] = [("side", kind)]
    shape = msgspec.defstruct("Object", fields, rename={"side": member}, gc=False)
    decoder: Any = msgspec.json.Decoder(shape)
    spelled = objects.fill_null("null").to_pylist()
    try:
        texts = [_text(item.side) for item in decoder.decode_lines("\n".join(spelled))]
        return pa.array(texts, pa.large_string()), {}
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass  # one of them has no such text: find out which
    texts, faults = [], Faults()
    for row, item in enumerate(spelled):
        try:
            texts.append(_text(decoder.decode(item).side))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            texts.append("")
            is_missing = "missing required field" in str(error) or "got `null`" in str(error)
            faults[row] = (
                ("missing_field", f"no text at `{key}.{member}`")
                if is_missing
                else ("wrong_type", f"`{key}`: {error}")
            )
    return pa.array(texts, pa.large_string()), faults


def without_faults(
    columns: list[Any], bad: list[BadRecord], offsets: NDArray[np.int64], faults: Faults
) -> tuple[list[Any], list[BadRecord], NDArray[np.int64]]:
    """Rows that lack a member leave the columns and join the bad records."""
    if not faults:
        return columns, bad, offsets
    keep = np.ones(len(offsets), np.bool_)
    keep[list(faults)] = False
    bad = sorted([*bad, *(BadRecord(int(offsets[row]), *fault) for row, fault in faults.items())])
    return [column.filter(pa.array(keep)) for column in columns], bad, offsets[keep]


def carry_meta(table: Any, keys: Sequence[str]) -> Any:
    """A JSON object of the columns `meta:<key>`, in their order; keys that a record lacks are left out."""
    if not keys:
        return pa.nulls(table.num_rows, pa.large_string())
    nothing = pa.scalar("", pa.large_string())
    members = []
    for key in keys:
        label = pa.scalar(f",{msgspec.json.encode(key).decode()}:", pa.large_string())
        values = one_piece(table.column(f"meta:{key}"))
        members.append(pc.binary_join_element_wise(label, values, nothing).fill_null(""))
    # not null_handling="skip", with which Arrow leaves out a row where every member is null
    body = pc.utf8_slice_codeunits(pc.binary_join_element_wise(*members, nothing), 1)
    return pc.binary_join_element_wise(
        pa.scalar("{", pa.large_string()), body, pa.scalar("}", pa.large_string()), nothing
    )


def count_members(objects: Any, key: str) -> int:
    """How many of the JSON objects have this key, and not null under it."""
    decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
    found = decoder.decode_lines("\n".join(objects.drop_null().to_pylist()))
    return sum(bytes(item.get(key, b"null")) != b"null" for item in found)


def _text(value: str | float | bool) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def with_offsets(
    batches: Iterator[Batch], path: AnyPath, span: Span, max_record_bytes: int
) -> Iterator[tuple[Batch, NDArray[np.int64]]]:
    """Batches with the place of each row: what the codec passed over is in `bad`, every other record is a row."""
    if path.name.endswith(parquet.SUFFIXES):
        row = _first_row(path, span)
        for batch in batches:
            count = batch.table.num_rows + len(batch.bad)
            yield batch, _without(np.arange(row, row + count), batch.bad)
            row += count
        return
    # the codec makes one batch of each block; reading the blocks again is 8 % of the time, 16 % where they are gzip
    blocks = read_blocks(path, max_record_bytes=max_record_bytes, start=span.start, end=span.end)
    for batch, block in zip(batches, blocks, strict=True):
        if isinstance(block, Oversize):
            yield batch, np.empty(0, np.int64)
        else:
            starts = jsonlines.audit_lines(block.data).starts + block.offset
            yield batch, _without(starts, batch.bad)


def _without(places: NDArray[np.int64], bad: list[BadRecord]) -> NDArray[np.int64]:
    return places[~np.isin(places, [record.offset for record in bad])] if bad else places


def _first_row(path: AnyPath, span: Span) -> int:
    if not span.start:
        return 0
    with pq.ParquetFile(path) as file:
        return sum(file.metadata.row_group(group).num_rows for group in range(span.start))

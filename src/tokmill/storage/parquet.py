"""Parquet files of others, read as records."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokmill.errors import InputError
from tokmill.storage.location import AnyPath, open_binary
from tokmill.storage.records import (
    WHOLE,
    BadRecord,
    Batch,
    Kind,
    Peek,
    Span,
    Wanted,
    as_object,
    join_list,
    known_id,
    objects_of,
    outer_of,
    steps_of,
)
from tokmill.storage.tables import group_statistics, told_as_damaged

SUFFIXES = (".parquet",)
_BATCH_ROWS = 8192


def read_batches(
    path: AnyPath, wanted: list[Wanted], *, max_record_bytes: int, span: Span = WHOLE
) -> Iterator[Batch]:
    with told_as_damaged(path), pq.ParquetFile(_source(path)) as file:
        present = file.schema_arrow.names
        groups = list(range(span.start, file.num_row_groups if span.end is None else span.end))
        columns = sorted({key for want in wanted for key in _asked(want, file, groups)} & set(present))
        refuse_twins([key for key in present if key in columns], path)
        row = sum(file.metadata.row_group(group).num_rows for group in range(span.start))
        for batch in file.iter_batches(
            batch_size=_BATCH_ROWS, row_groups=groups, columns=columns, use_threads=False
        ):
            yield usable_rows(batch, row, wanted, max_record_bytes)
            row += batch.num_rows


def refuse_twins(names: Sequence[str], path: AnyPath) -> None:
    for name in sorted(set(names)):
        if names.count(name) > 1:
            raise InputError(
                f"two columns are called `{name}`",
                where=str(path),
                next="rename one of them, or read another field",
            )


def _asked(want: Wanted, file: Any, groups: list[int]) -> tuple[str, ...]:
    """The keys of a column; the first alone where the file says that it has no null,
    and the others are not read."""
    if want.others and want.key in file.schema_arrow.names:
        places = [n for n in range(len(file.schema)) if file.schema.column(n).path == want.key]
        if len(places) == 1 and all(
            (found := group_statistics(file, group, want.key, places[0])) is not None
            and found.has_null_count
            and not found.null_count
            for group in groups
        ):
            return (want.key,)
    return want.keys


def peek(path: AnyPath) -> Peek:
    with told_as_damaged(path), pq.ParquetFile(_source(path)) as file:
        return Peek(list(file.schema_arrow.names), True)


def row_count(path: AnyPath) -> int:
    with told_as_damaged(path), pq.ParquetFile(_source(path)) as file:
        rows: int = file.metadata.num_rows
    return rows


def row_group_spans(path: AnyPath, target_bytes: int) -> list[Span]:
    """Consecutive row groups gathered until they hold `target_bytes` uncompressed."""
    with told_as_damaged(path), pq.ParquetFile(_source(path)) as file:
        sizes = [file.metadata.row_group(group).total_byte_size for group in range(file.num_row_groups)]
    spans, start, gathered = [], 0, 0
    for group, size in enumerate(sizes):
        gathered += size
        if gathered >= target_bytes:
            spans.append(Span(start, group + 1))
            start, gathered = group + 1, 0
    if start < len(sizes) or not spans:
        spans.append(Span(start, len(sizes)))
    return spans


def _source(path: AnyPath) -> Any:
    """Arrow opens local files by itself, and faster."""
    return path if isinstance(path, Path) else open_binary(path)


def usable_rows(batch: Any, first_row: int, wanted: list[Wanted], max_record_bytes: int) -> Batch:
    """The wanted columns as strings, without the rows that have a fault."""
    rows = batch.num_rows
    faults: dict[int, tuple[str, str]] = {}
    columns = []
    found_at = {key: _column_at(batch, key) for want in wanted for key in want.keys}
    # objects are spelled out as JSON only for paths that no column answers
    unanswered = {outer_of(key) for key, column in found_at.items() if column is None}
    for want in wanted:
        column = pa.nulls(rows, pa.large_string())
        for key in want.keys if not want.for_paths or want.key in unanswered else ():
            if found_at[key] is None or not column.null_count:
                continue
            found, reason, detail, at_fault = _strings(found_at[key], want.kind, key)
            lacking = np.asarray(column.is_null())
            for row in at_fault:
                if lacking[row]:
                    faults.setdefault(row, (reason, detail))
            column = found if column.null_count == rows else pc.coalesce(column, found)
        if want.required and column.null_count:
            for row in np.flatnonzero(np.asarray(column.is_null())).tolist():
                faults.setdefault(row, ("missing_field", f"no field `{want.key}`"))
        for row in np.flatnonzero(
            np.asarray(pc.binary_length(column).fill_null(0)) > max_record_bytes
        ).tolist():
            faults.setdefault(
                row, ("too_large", f"more than max_record_bytes {max_record_bytes:,} in `{want.key}`")
            )
        columns.append(column)
    table = pa.table(columns, names=[want.name for want in wanted])
    offsets = np.arange(first_row, first_row + rows)
    bad: list[BadRecord] = []
    if faults:
        at, keep = sorted(faults), np.ones(rows, np.bool_)
        keep[at] = False
        ids = (
            table.column("id").take(pa.array(at)).to_pylist()
            if "id" in table.column_names
            else [""] * len(at)
        )
        bad = [
            BadRecord(first_row + row, *faults[row], id=known_id(id)) for row, id in zip(at, ids, strict=True)
        ]
        table, offsets = table.filter(pa.array(keep)), offsets[keep]
    return Batch(table, bad, offsets)


def _column_at(batch: Any, key: str) -> Any:
    """The column of this name, or the member of structs that the path leads to;
    None: neither, or a list is on the way."""
    if key in batch.schema.names:
        return batch.column(key)
    if outer_of(key) not in batch.schema.names:
        return None
    column = batch.column(outer_of(key))
    for rest, step in steps_of(key):
        if not pa.types.is_struct(column.type):
            return None
        if rest is not None and column.type.get_field_index(rest) >= 0:
            return pc.struct_field(column, column.type.get_field_index(rest))
        place = column.type.get_field_index(step) if isinstance(step, str) else -1
        if place < 0:
            return None
        column = pc.struct_field(column, place)
    return column


class _Strings(NamedTuple):
    """A column as large_string, and the fault of the rows that have no such value (they are null in it)."""

    column: Any
    reason: str = ""
    detail: str = ""
    at_fault: Sequence[int] = ()


def _strings(column: Any, want: Kind, key: str) -> _Strings:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        texts, invalid = _valid_strings(column)
        if want is Kind.OBJECT:
            texts = pa.array(objects_of(texts.to_pylist(), key), pa.large_string())
        elif want is Kind.JSON:
            texts = _to_json(texts)[0]
        return _Strings(texts, "invalid_utf8", f"column `{key}`", invalid)
    if want in (Kind.JSON, Kind.OBJECT):
        encoded, invalid = _to_json(column)
        if want is Kind.OBJECT and not pa.types.is_struct(kind):
            values = [None if value is None else as_object(value, key) for value in encoded.to_pylist()]
            encoded = pa.array(values, pa.large_string())
        return _Strings(encoded, "invalid_utf8", f"column `{key}`", invalid)
    if want in (Kind.LINES, Kind.TERMS) and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return _joined(column, want, key)
    if want in (Kind.SCALAR, Kind.TERMS) and pa.types.is_floating(kind):
        # as JSON lines spell them: 1.0, where Arrow writes 1
        spelled = [None if v is None or not math.isfinite(v) else repr(v) for v in column.to_pylist()]
        return _Strings(pa.array(spelled, pa.large_string()))
    if want in (Kind.SCALAR, Kind.TERMS) and (pa.types.is_primitive(kind) or pa.types.is_decimal(kind)):
        return _Strings(column.cast(pa.large_string()))
    nothing = pa.nulls(len(column), pa.large_string())
    if want is Kind.NAME:
        return _Strings(column.cast(pa.large_string()) if pa.types.is_primitive(kind) else nothing)
    present = np.flatnonzero(np.asarray(column.is_valid())).tolist()
    return _Strings(nothing, "wrong_type", f"`{key}` is {column.type}, not a {want}", present)


def _joined(column: Any, want: Kind, key: str) -> _Strings:
    if want is Kind.LINES and column.type.value_type in (pa.string(), pa.large_string()):
        inner = column.flatten()
        with contextlib.suppress(pa.ArrowInvalid):  # not UTF-8: told row by row
            inner.validate(full=True)
            if not inner.null_count:
                return _Strings(pc.binary_join(column, "\n").cast(pa.large_string()))
    values: list[str | None] = []
    at_fault = []
    for row, scalar in enumerate(column):
        try:
            value = scalar.as_py()
            values.append(join_list(value, want))
        except (UnicodeDecodeError, TypeError, AttributeError):
            values.append(None)
            at_fault.append(row)
    return _Strings(
        pa.array(values, pa.large_string()),
        "wrong_type",
        f"`{key}` has more in its list than texts",
        at_fault,
    )


def _valid_strings(column: Any) -> tuple[Any, list[int]]:
    """As large_string, with rows that are not UTF-8 made null and named."""
    column = column.cast(pa.large_string())
    try:
        column.validate(full=True)
        return column, []
    except pa.ArrowInvalid:
        invalid, values = [], column.cast(pa.large_binary()).to_pylist()
        for row, value in enumerate(values):
            try:
                value is None or value.decode()
            except UnicodeDecodeError:
                invalid.append(row)
                values[row] = None
        return pa.array(values, pa.large_binary()).cast(pa.large_string()), invalid


def _to_json(column: Any) -> tuple[Any, list[int]]:
    """Each value as JSON, where a NaN is a null; and the rows that hold a string that is not UTF-8."""
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.large_string())  # nanoseconds do not fit Python's datetime
    values: list[str | None] = []
    invalid = []
    for row, scalar in enumerate(column):
        try:
            spelled = msgspec.json.encode(scalar.as_py(), enc_hook=str).decode()
        except UnicodeDecodeError:
            invalid.append(row)
            spelled = "null"
        values.append(None if spelled == "null" else spelled)
    return pa.array(values, pa.large_string()), invalid

"""Arrow's own files (.arrow, .feather) that others wrote: columns, laid out as in memory.

    file      "ARROW1" 00 00 │ messages │ footer: where each batch lies │ "ARROW1"     read from any batch on
    stream    messages, one after the other                                            read from the first on
    "FEA1"    Feather before version 2, which no reader has any more: refused

`datasets` writes streams, pandas and Polars files. What is read is checked before it is used: Arrow believes
offsets that a file has, and would follow them anywhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tokmill.errors import CorruptFile, InputError
from tokmill.storage.disk import is_fault_of_reading, unreadable
from tokmill.storage.location import AnyPath, open_binary
from tokmill.storage.parquet import refuse_twins, usable_rows
from tokmill.storage.records import WHOLE, Batch, Peek, Span, Wanted

SUFFIXES = (".arrow", ".feather")
_BATCH_ROWS = 8192
_FILE, _FEATHER_1 = b"ARROW1", b"FEA1"
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def read_batches(
    path: AnyPath, wanted: list[Wanted], *, max_record_bytes: int, span: Span = WHOLE
) -> Iterator[Batch]:
    with _told_as_damaged(path), _open_source(path) as source:
        names = _names(source)
        asked = {key for want in wanted for key in want.keys}
        columns = [place for place, name in enumerate(names) if name in asked]
        refuse_twins([name for name in names if name in asked], path)
        first = 0
        # without a wanted column there still are rows, each of which lacks it
        for batch, is_before in _batches(source, columns or [0] if names else [], span):
            if not is_before:
                _check(batch)
                for start in range(0, batch.num_rows, _BATCH_ROWS):
                    part = batch.slice(start, _BATCH_ROWS)
                    yield usable_rows(part, first + start, wanted, max_record_bytes)
            first += batch.num_rows


def peek(path: AnyPath) -> Peek:
    with _told_as_damaged(path), _open_source(path) as source:
        return Peek(_names(source), True)


def row_count(path: AnyPath) -> int | None:
    """None: a stream, which does not say."""
    with _told_as_damaged(path), _open_source(path) as source:
        rows: int | None = pa.ipc.open_file(source).count_rows() if _is_file(source) else None
    return rows


def batch_spans(path: AnyPath, size: int, target_bytes: int) -> list[Span]:
    """Consecutive batches of a file, as many as are about `target_bytes`; a stream is one part."""
    with _told_as_damaged(path), _open_source(path) as source:
        if not _is_file(source):
            return [WHOLE]
        count = pa.ipc.open_file(source).num_record_batches
    step = max(1, target_bytes * count // max(size, 1))
    return [Span(start, min(start + step, count)) for start in range(0, count, step)] or [Span(0, 0)]


@contextlib.contextmanager
def _open_source(path: AnyPath) -> Iterator[Any]:
    """A local file is mapped: only what is wanted is read."""
    if isinstance(path, Path):
        with open_binary(path), pa.memory_map(str(path)) as source:
            yield source
    else:
        with open_binary(path) as raw, pa.PythonFile(raw, "r") as source:
            yield source


def _is_file(source: Any) -> bool:
    head = source.read(len(_FILE))
    source.seek(0)
    if head.startswith(_FEATHER_1):
        raise pa.ArrowInvalid("Feather version 1; write it again with version 2")
    return bool(head == _FILE)


def _names(source: Any) -> list[str]:
    is_file = _is_file(source)
    names: list[str] = (pa.ipc.open_file if is_file else pa.ipc.open_stream)(source).schema.names
    source.seek(0)
    return names


def _batches(source: Any, columns: list[int], span: Span) -> Iterator[tuple[Any, bool]]:
    """Batches up to the end of the span, and whether each lies before it: those are only counted."""
    options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=columns)
    if _is_file(source):
        file = pa.ipc.open_file(source, options=options)
        for number in range(file.num_record_batches if span.end is None else span.end):
            yield file.get_batch(number), number < span.start
    else:
        if not _ends(source):
            raise pa.ArrowInvalid("the stream has no end marker: the file is truncated")
        for batch in pa.ipc.open_stream(source, options=options):
            yield batch, False


def _ends(source: Any) -> bool:
    """Arrow takes the end of a file for the end of the stream, wherever a copy stopped."""
    source.seek(max(source.size() - len(_END_OF_STREAM), 0))
    tail = source.read(len(_END_OF_STREAM))
    source.seek(0)
    return bool(tail == _END_OF_STREAM)


def _check(batch: Any) -> None:
    """That every offset stays within its buffer. Of strings the bytes are looked at later, row by row."""
    batch.validate()
    for column in batch.columns:
        as_bytes = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}.get(column.type)
        if as_bytes is not None:
            column = pa.Array.from_buffers(as_bytes, len(column), column.buffers(), offset=column.offset)
        column.validate(full=True)


@contextlib.contextmanager
def _told_as_damaged(path: AnyPath) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        if isinstance(error, OSError) and is_fault_of_reading(error):
            raise unreadable(error, path) from error
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CorruptFile(
            f"cannot be read as an Arrow file ({first_line})",
            where=str(path),
            next="copy or download the file again",
        ) from error

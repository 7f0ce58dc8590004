"""Tables that we write, and read again.

Working shards are Parquet, LZ4: measured on the bench texts 283–407 MB/s to write and 566–1,396 to read,
against 191–266 and 179–778 for zstd at level 1; they take 1.45 times the space.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tokmill.errors import CorruptFile
from tokmill.storage.disk import Written, commit_bytes, is_fault_of_reading, unreadable
from tokmill.storage.location import AnyPath
from tokmill.storage.on_demand import at_hand

_FEW_ROWS = 256
_ROOM_FOR_METADATA = 4 << 20
_DAMAGE = (
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,
    OSError,
    UnicodeDecodeError,
)  # column names are bytes too


# Columns of few values; a dictionary of texts or hashes would only cost time.
_FEW_VALUES = (
    "source",
    "domain",
    "license_tag",
    "shard",
    "stage",
    "verdict",
    "reason",
    "match_shard",
    "file",
)


def write_table(path: Path, table: Any) -> Written:
    """Serialized in memory first: a shard is bounded, and the disk then sees one commit."""
    return _write(path, table, row_group_size=max(table.num_rows, 1), write_statistics=False)


def write_sorted_table(path: Path, table: Any, by: str) -> Written:
    """A table in order of column `by`, in small row groups with its bounds,
    so that `load_range` reads a part."""
    return _write(path, table, row_group_size=65536, write_statistics=[by])


def write_interchange(path: Path, table: Any) -> Written:
    """A file that leaves the run: zstd, which every reader of Parquet knows and which takes less room."""
    return _write(
        path, table, compression="zstd", row_group_size=max(table.num_rows, 1), write_statistics=False
    )


def write_for_rows(path: Path, table: Any) -> Written:
    """A file that leaves the run, in row groups so small that `take_rows` reads little for one row."""
    return _write(path, table, compression="zstd", row_group_size=4096, write_statistics=False)


def take_rows(path: Path, rows: NDArray[np.int64]) -> Any:
    """Rows of a table, ascending; only the row groups that they lie in are read."""
    with told_as_damaged(path), pq.ParquetFile(path) as file:
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        starts = np.cumsum([0, *sizes])
        groups, own = np.unique(np.searchsorted(starts, rows, side="right") - 1, return_inverse=True)
        table = file.read_row_groups(groups.tolist(), use_threads=False)
        before = np.cumsum([0, *(sizes[group] for group in groups.tolist())])
        return table.take(pa.array(rows - starts[groups][own] + before[own])).combine_chunks()


def load_rows(path: Path, first: int, stop: int) -> Any:
    """The rows [first, stop) of a table; of the others no more than what shares their row groups."""
    with told_as_damaged(path), pq.ParquetFile(path) as file:
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        ends = np.cumsum([0, *sizes])
        low, high = (int(np.searchsorted(ends, at, side="right")) - 1 for at in (first, max(stop - 1, first)))
        table = file.read_row_groups(list(range(low, min(high + 1, len(sizes)))), use_threads=False)
        return table.slice(first - int(ends[low]), stop - first).combine_chunks()


def load_range(path: Path, column: str, value: int) -> Any:
    """The rows of a sorted table in which `column` is `value`."""
    with told_as_damaged(path), pq.ParquetFile(path) as file:
        place = file.schema_arrow.get_field_index(column)
        bounds = [group_statistics(file, group, column, place) for group in range(file.num_row_groups)]
        groups = [
            group
            for group, bound in enumerate(bounds)
            if bound is None or not bound.has_min_max or bound.min <= value <= bound.max
        ]
        table = file.read_row_groups(groups, use_threads=False)
        return table.filter(pc.equal(table.column(column), value)).combine_chunks()


def _write(path: Path, table: Any, compression: str = "lz4", **options: Any) -> Written:
    # A buffer that is large enough from the start:
    # pages that stay empty are never touched, and growing copies.
    buffer = pa.allocate_buffer(table.nbytes + table.nbytes // 8 + _ROOM_FOR_METADATA)
    sink = pa.FixedSizeBufferWriter(buffer)
    few = [
        name
        for name in table.column_names
        if name in _FEW_VALUES and pa.types.is_string(table.schema.field(name).type)
    ]
    pq.write_table(
        table,
        sink,
        compression=compression,
        use_dictionary=few or False,
        **options,
    )
    return commit_bytes(path, buffer.slice(0, sink.tell()))


def load_table(path: Path, columns: Sequence[str] | None = None) -> Any:
    """A whole working shard, or some of its columns, in one piece per column."""
    # not read_table: that goes through datasets, 0.36 s to load and 0.25 s against 0.06 for 80 MB of integers
    with told_as_damaged(path), pq.ParquetFile(path) as file:
        table = file.read(columns=columns, use_threads=False)
        return (table if columns is None else table.select(columns)).combine_chunks()


def load_categories(path: Path, column: str) -> Any:
    """A column of few different strings, as Arrow's numbers and names: strings are not made of it."""
    with told_as_damaged(path), pq.ParquetFile(path, read_dictionary=[column]) as file:
        found = file.read(columns=[column], use_threads=False).column(column)
        return found.unify_dictionaries().combine_chunks()


def load_schema(path: Path) -> Any:
    """Names and types of the columns of a working shard."""
    with told_as_damaged(path), pq.ParquetFile(path) as file:
        return file.schema_arrow


def load_strings(path: Path, column: str, rows: NDArray[np.int64]) -> Any:
    """A few of the strings of a column, which ascend. What is not asked for is not kept: memory that is used
    again needs no new pages, and those are half of what it takes to read a shard."""
    parts = [pa.array([], pa.large_string())]
    if not len(rows):
        return parts[0]
    start = 0
    with told_as_damaged(path), pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_FEW_ROWS, columns=[column], use_threads=False):
            first, last = np.searchsorted(rows, [start, start + batch.num_rows])
            if last > first:
                parts.append(batch.column(0).take(pa.array(rows[first:last] - start)))
            start += batch.num_rows
            if last == len(rows):
                break
    return pa.concat_arrays(parts)


def group_statistics(file: Any, group: int, name: str, place: int) -> Any:
    """Of a column that can be read. Of one that cannot Arrow's reader raises an error,
    and its metadata end the process."""
    next(file.iter_batches(batch_size=1, row_groups=[group], columns=[name], use_threads=False), None)
    return file.metadata.row_group(group).column(place).statistics


@contextlib.contextmanager
def told_as_damaged(path: AnyPath) -> Iterator[None]:
    """What Arrow raises in the block: bytes that are no Parquet, unless the system could not read them."""
    at_hand(path)
    try:
        yield
    except _DAMAGE as error:
        if isinstance(error, OSError) and is_fault_of_reading(error):
            raise unreadable(error, path) from error
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CorruptFile(
            f"cannot be read as Parquet ({first_line})",
            where=str(path),
            next="copy or download the file again",
        ) from error


# Arrow's own file format, uncompressed: rows that are read here and there, mapped instead of loaded


def write_arrow(path: Path, table: Any) -> Written:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return commit_bytes(path, sink.getvalue())


def open_arrow(path: Path) -> Any:
    """The whole table, of which only what is touched is read from the disk."""
    try:
        with pa.memory_map(str(path)) as source:
            return pa.ipc.open_file(source).read_all()
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and is_fault_of_reading(error):
            raise unreadable(error, path) from error
        raise CorruptFile(
            f"cannot be read as an Arrow file ({error})", where=str(path), next="run again to rebuild it"
        ) from error

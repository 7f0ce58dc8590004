"""Tables in order of a number, however many rows there are: sorted in runs on the disk, and merged.

    tables ─ a run is sorted in memory ─> file without a name:  run 0 ▏run 1 ▏ …    each in ascending batches
    merge    a batch or two of every run is in memory; what lies below the end of the first of them to end is
             in order

The numbers of two rows are never equal. So the order is one, whatever the runs, the batches and the memory.
The file has no name: it is gone with the process, however that ends.

Runs: columns of numbers in order of a key, of which a range is read alone.

    run of n rows    key 8 x n │ column │ column …       raw, little-endian, each column from a multiple of 8
                                                         bytes

    shard 0 ─ run ─┐
    shard 1 ─ run ─┼─ keys from .. to ─> one partition, whatever the number of partitions
    shard 2 ─ run ─┘

A run does not know how many partitions there will be: that is decided when its rows are counted, so that a
partition is as large as a task can hold. A range is found by bisection and read with pread: 0.1 ms for a run,
where a range of a Parquet file takes 3 ms and never less than a row group. Runs are scaffolding: nothing that
lasts is one.

A table that is longer than a task can hold: written part by part, read like any other.

open_table(task, path, name, schema)  ->  append(table) … append(table)  ->  row groups, statistics of `by`
leave the block                       ->  entry, with the digest of the whole as if it had been one table

What is read by shard is in order of `by`, and `load_range` finds it by the statistics.

Rows that a task puts aside in an order that is not the one in which it needs them.

    rows, drawer of each ─ put ─> one file per drawer, appended to        drawer ─ load ─> its rows

The files are temporary: they go with the block,
and a task that was killed leaves them to the sweep of its step.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tokmill.artifacts.manifest import FileEntry, file_entry
from tokmill.artifacts.step import Input, Task
from tokmill.errors import CorruptFile
from tokmill.schema import one_piece
from tokmill.storage.disk import (
    TEMP_PREFIX,
    CommitFile,
    Written,
    is_fault_of_reading,
    load_array,
    open_commit,
    read_array_at,
    read_arrays,
    read_at,
    told_as_unreadable,
    told_as_unwritable,
    unreadable,
)
from tokmill.storage.tables import TableDigest

Column = NDArray[Any]

# Name and type of each column, as NumPy knows it; the first is the key, 8 bytes wide.
Layout = Mapping[str, Any]

# Partitions are ranges of the upper 16 bits of a hash, so rows need to be in order of those alone:
# a radix sort.
_KEY_BITS = 16
_SHIFT = np.uint64(64 - _KEY_BITS)
MAX_PARTITIONS = 1 << _KEY_BITS
_SHARED_DOCUMENTS, _MOST_SHARED = 32_768, 16

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_OTHER = np.uint64(0xC2B2AE3D27D4EB4F)


def partitions_for(rows: int, most: int, at_least: int) -> int:
    """How many partitions hold at most so many rows each, if hashes are spread evenly."""
    return min(max(at_least, -(-rows // most)), max(MAX_PARTITIONS, at_least))


def partitions_to_share(documents: int) -> int:
    """So that many cores have a task each; one of fewer documents would cost more than it does."""
    return min(documents // _SHARED_DOCUMENTS, _MOST_SHARED)


def by_hash(keys: Column) -> Column:
    """The order in which rows with these hashes are written."""
    return np.argsort((keys >> _SHIFT).astype(np.uint16), kind="stable")


def hash_range(partition: int, partitions: int, bits: int = _KEY_BITS) -> tuple[int, int]:
    """From the first hash of a partition to the first after it, told apart by so many upper bits."""
    low, high = (-(-(number << bits) // partitions) for number in (partition, partition + 1))
    return low << (64 - bits), high << (64 - bits)


def hash_pairs(a: Column, b: Column) -> Column:
    """Pairs of numbers, spread evenly: a pair that is met twice meets itself."""
    mixed = (a.astype(np.uint64) * _GOLDEN) ^ (b.astype(np.uint64) * _OTHER)
    spread: Column = (mixed ^ (mixed >> np.uint64(29))) * _GOLDEN
    return spread


def write_run(
    task: Task, name: str, columns: Sequence[Column], layout: Layout, part: str = "", key: str | None = None
) -> FileEntry:
    """<name>-<key of the task><part>.bin; rows are in order of the first column already."""
    path = f"{name}-{key or task.key}{part}.bin"
    with open_commit(Path(task.directory) / path) as file:
        for column, kind in zip(columns, layout.values(), strict=True):
            plain = np.ascontiguousarray(column, np.dtype(kind).base)
            if plain.size:
                file.write(plain.view(np.uint8))
            file.write(bytes(-plain.nbytes % 8))
    return file_entry(path, name, file.written, rows=len(columns[0]))


class Run:
    """Closed between reads: what is mapped or cached of a file does not stay in the memory of the task."""

    def __init__(self, path: Path, rows: int, layout: Layout) -> None:
        self.rows = rows
        self._path = path
        self._columns: dict[str, tuple[int, np.dtype[Any]]] = {}
        at = 0
        for name, kind in layout.items():
            self._columns[name] = (at, np.dtype(kind))
            at += -(-rows * np.dtype(kind).itemsize // 8) * 8
        self._bytes = at

    def read(self, start: int, stop: int, names: Sequence[str] | None = None) -> list[Column]:
        """Rows from `start` to `stop` of the columns asked for."""
        descriptor = self._open()
        try:
            return [self._read(descriptor, name, start, stop) for name in names or self._columns]
        finally:
            os.close(descriptor)

    def take(self, places: Column, names: Sequence[str]) -> list[Column]:
        """Single rows, in ascending order; only the pages that they lie on are read."""
        return [self._map(name)[places] if len(places) else self._empty(name) for name in names]

    def find(self, bounds: Sequence[Any], name: str | None = None, within: slice | None = None) -> list[int]:
        """The first place of a key that is not below each bound."""
        part = within or slice(0, self.rows)
        if part.start >= part.stop:
            return [part.start] * len(bounds)
        column = self._map(name or next(iter(self._columns)))[part]
        last = int(np.iinfo(column.dtype).max)
        found = [
            len(column) if bound > last else int(np.searchsorted(column, column.dtype.type(bound)))
            for bound in bounds
        ]
        return [part.start + place for place in found]

    def search(self, values: Column, name: str, side: Literal["left", "right"] = "left") -> Column:
        """The first place in an ascending column that is not below each value; `right`: that is above it."""
        return np.searchsorted(self._map(name), values, side)

    def every(self, step: int, names: Sequence[str]) -> list[Column]:
        """Each `step`-th row, beginning with the first."""
        return [self._map(name)[::step].copy() if self.rows else self._empty(name) for name in names]

    def _open(self) -> int:
        with told_as_unreadable(self._path):
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                size = os.fstat(descriptor).st_size
            except OSError:
                os.close(descriptor)
                raise
        if size != self._bytes:
            os.close(descriptor)
            raise CorruptFile(
                f"is not {self._bytes:,} bytes long", where=str(self._path), next="run again to rebuild it"
            )
        return descriptor

    def _read(self, descriptor: int, name: str, start: int, stop: int) -> Column:
        at, kind = self._columns[name]
        return read_array_at(descriptor, max(stop - start, 0), kind, at + start * kind.itemsize, self._path)

    def _map(self, name: str) -> Column:
        """Not by np.memmap, which resolves the path and opens the file once more: a tenth of a millisecond,
        and a run is mapped for every few documents that are asked for."""
        at, kind = self._columns[name]
        if not self.rows:
            return self._empty(name)
        descriptor = self._open()
        try:
            with told_as_unreadable(self._path):
                begin = at - at % mmap.ALLOCATIONGRANULARITY
                size = at - begin + self.rows * kind.itemsize
                mapped = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ, offset=begin)
        finally:
            os.close(descriptor)
        return np.frombuffer(mapped, kind, self.rows, at - begin)

    def _empty(self, name: str) -> Column:
        return np.empty(0, self._columns[name][1])


def open_runs(inputs: Sequence[Input], role: str, layout: Layout) -> list[Run]:
    return [Run(Path(item.path), item.rows, layout) for item in inputs if item.role == role]


def take_numbered(
    runs: Mapping[int, Run] | Sequence[Run], starts: Column, numbers: Column, names: Sequence[str]
) -> list[Column]:
    """Columns of documents by their numbers, ascending:
    the run of a shard begins with number `starts` of it."""
    cuts = np.searchsorted(numbers, starts).tolist()
    parts = [
        runs[shard].take(numbers[start:stop] - starts[shard], names)
        for shard, (start, stop) in enumerate(itertools.pairwise(cuts))
        if stop > start
    ]
    nothing = [np.empty(0, np.int64)] * len(names)
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)] if parts else nothing


def load_partition(runs: Sequence[Run], partition: int, partitions: int) -> Iterator[list[Column]]:
    """The rows of a partition, run by run."""
    bounds = hash_range(partition, partitions)
    for run in runs:
        start, stop = run.find(bounds)
        yield run.read(start, stop)


def load_between(runs: Sequence[Run], low: int, high: int) -> Iterator[list[Column]]:
    """The rows with a key from `low` to before `high`, run by run."""
    for run in runs:
        start, stop = run.find((low, high))
        yield run.read(start, stop)


def joined(parts: Iterator[list[Column]], layout: Layout) -> list[Column]:
    """Rows of all runs, one run after the other."""
    nothing = [np.empty(0, kind) for kind in layout.values()]
    return [np.concatenate(columns) for columns in zip(nothing, *parts, strict=True)]


def load_numbered(
    runs: Sequence[Run], layout: Layout, partition: int, partitions: int, starts: Sequence[int]
) -> list[Column]:
    """The rows of a partition, joined. A run is of a shard;
    `index`, its second column, becomes a number of the whole."""
    numbered = (
        [key, index.astype(np.int64) + start, *others]
        for start, (key, index, *others) in zip(
            starts, load_partition(runs, partition, partitions), strict=False
        )
    )
    return joined(numbered, {**layout, "index": "<i8"})


def read_in_order(runs: Sequence[Run], rank: str, number: str, rows: int) -> Iterator[list[Column]]:
    """All rows of runs that are in order of (rank, number), in that order; some `rows` at a time.

    The rows of one document stay together. Every few rows of each run are looked at first,
    to know where to cut.
    """
    step = max(rows // (4 * max(len(runs), 1)), 1)
    looked = [run.every(step, [rank, number]) for run in runs]
    cuts = _cuts(looked, max(rows // step, 1)) if looked else []
    starts = [0] * len(runs)
    for cut in [*cuts, None]:
        stops = [run.rows if cut is None else _place(run, rank, number, *cut) for run in runs]
        parts = [
            run.read(start, stop)
            for run, start, stop in zip(runs, starts, stops, strict=True)
            if stop > start
        ]
        starts = stops
        if parts:
            columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
            names = list(runs[0]._columns)
            order = np.lexsort((columns[names.index(number)], columns[names.index(rank)]))
            yield [column[order] for column in columns]


def _cuts(looked: list[list[Column]], every: int) -> list[tuple[int, int]]:
    ranks, numbers = (np.concatenate(columns) for columns in zip(*looked, strict=True))
    order = np.lexsort((numbers, ranks))[every::every]
    return sorted(set(zip(ranks[order].tolist(), numbers[order].tolist(), strict=True)))


def _place(run: Run, rank: str, number: str, of_rank: int, of_number: int) -> int:
    """Where the first row is that does not come before (rank, number)."""
    start, stop = run.find((of_rank, of_rank + 1), rank)
    return run.find((of_number,), number, slice(start, stop))[0]


_GROUP_ROWS = 65536


class AppendedTable:
    entry: FileEntry  # there when the block is left
    written: Written  # likewise

    def __init__(self, schema: Any, writer: Any) -> None:
        self._writer = writer
        self.digest = TableDigest(schema)
        self.rows = 0

    def append(self, table: Any) -> None:
        for start in range(0, table.num_rows, _GROUP_ROWS):  # the digest copies what it reads
            part = table.slice(start, _GROUP_ROWS).combine_chunks()
            self.digest.update(part)
            self._writer.write_table(part, row_group_size=_GROUP_ROWS)
        self.rows += table.num_rows


@contextlib.contextmanager
def open_table(task: Task, path: str, name: str, schema: Any, *, by: str) -> Iterator[AppendedTable]:
    few = [field.name for field in schema if field.name.endswith("shard") and pa.types.is_string(field.type)]
    with open_parquet(
        Path(task.directory) / path, schema, use_dictionary=few or False, write_statistics=[by]
    ) as table:
        yield table
    table.entry = file_entry(
        path, name, table.written, rows=table.rows, content_sha256=table.digest.hexdigest()
    )


@contextlib.contextmanager
def open_parquet(path: Path, schema: Any, **how: Any) -> Iterator[AppendedTable]:
    """A file that has its name when the block is left; `how` are options of Arrow's writer."""
    with open_commit(path) as file:
        sink = pa.PythonFile(_Sink(file), mode="w")
        with pq.ParquetWriter(sink, schema, **{"compression": "lz4", **how}) as writer:
            table = AppendedTable(schema, writer)
            yield table
        sink.close()
    table.written = file.written


def read_tables(path: Path, columns: Sequence[str]) -> Iterator[Any]:
    """The rows again, some at a time."""
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_GROUP_ROWS, columns=list(columns), use_threads=False):
                yield pa.Table.from_batches([batch])
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and is_fault_of_reading(error):
            raise unreadable(error, path) from error
        raise CorruptFile(
            f"cannot be read as Parquet ({error})", where=str(path), next="run again to rebuild it"
        ) from error


class _Sink(io.RawIOBase):
    """What Arrow needs of a file, of one that only takes bytes."""

    def __init__(self, file: CommitFile) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.written.bytes


_READ_ROWS = 1 << 19


class Drawers:
    def __init__(self, folder: Path, name: str, record: Any) -> None:
        self._folder = folder
        self._name = name
        self._record = np.dtype(record)

    def put(self, drawers: NDArray[Any], *columns: NDArray[Any]) -> None:
        """Rows of one drawer stay in the order in which they are put."""
        order = np.argsort(drawers, kind="stable")
        rows = np.empty(len(order), self._record)
        for name, column in zip(self._record.names or (), columns, strict=True):
            rows[name] = column[order]
        numbers, starts = np.unique(drawers[order], return_index=True)
        for number, part in zip(numbers.tolist(), np.split(rows, starts[1:]), strict=False):
            path = self._path(number)
            with told_as_unwritable(path), path.open("ab") as file:
                file.write(part.data)

    def load(self, drawer: int) -> NDArray[Any]:
        path = self._path(drawer)
        return load_array(path, self._record) if path.exists() else np.empty(0, self._record)

    def read(self, drawer: int) -> Iterator[NDArray[Any]]:
        """The same, some rows at a time."""
        path = self._path(drawer)
        if path.exists():
            yield from read_arrays(path, self._record, _READ_ROWS)

    def _path(self, drawer: int) -> Path:
        return self._folder / f"{self._name}-{drawer:05d}"


@contextlib.contextmanager
def open_scratch(task: Task) -> Iterator[Path]:
    # what cannot be removed now is swept with the step
    with tempfile.TemporaryDirectory(
        prefix=TEMP_PREFIX, dir=task.directory, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


# Rows, and bytes, that are sorted in memory at once: with what sorting takes on the way, 150 MB.
_RUN_ROWS = 1 << 19
_RUN_BYTES = 64 << 20

# Batches are no smaller: a read costs as much as a few hundred rows.
# A thousand runs are then 20 MB, of 500 million rows.
_MIN_BATCH_ROWS = 256


def sort_tables(
    tables: Iterable[Any], by: str, rows: int, directory: Path, memory_rows: int
) -> Iterator[Any]:
    """The `rows` of all tables in order of column `by` (uint64), in tables of some `memory_rows` at most."""
    batch_rows = max(memory_rows // max(-(-rows // _RUN_ROWS), 1) // 2, _MIN_BATCH_ROWS)
    with open_scratch_file(directory) as scratch:
        runs = [
            _Run(scratch, whole.schema, by, list(_write_run(scratch, whole, by, batch_rows)))
            for whole in _run_sized(tables)
        ]
        while runs:
            yield _merge_next(runs, by, batch_rows)
            runs = [run for run in runs if not run.is_empty]


@contextlib.contextmanager
def open_scratch_file(directory: Path) -> Iterator[ScratchFile]:
    with contextlib.ExitStack() as opened:
        with told_as_unwritable(directory):
            directory.mkdir(parents=True, exist_ok=True)
            file = opened.enter_context(tempfile.TemporaryFile(dir=directory, buffering=0))
        yield ScratchFile(file.fileno(), directory)


class ScratchFile:
    """Bytes put aside, to be read again by place."""

    def __init__(self, descriptor: int, directory: Path) -> None:
        self._descriptor, self._directory, self._end = descriptor, directory, 0

    def append(self, data: Any) -> _Place:
        view, begin = memoryview(data).cast("B"), self._end
        with told_as_unwritable(self._directory):
            while self._end < begin + len(view):
                self._end += os.pwrite(self._descriptor, view[self._end - begin :], self._end)
        return _Place(begin, len(view))

    def read(self, place: _Place) -> bytes:
        data = read_at(self._descriptor, place.size, place.begin, self._directory)
        assert len(data) == place.size, f"{len(data)} of {place.size} bytes that were put aside"
        return data


class _Place(NamedTuple):
    begin: int
    size: int


def _run_sized(tables: Iterable[Any]) -> Iterator[Any]:
    """Tables joined, or cut, to the size of a run; one without a row is none."""
    waiting: list[Any] = []
    for table in tables:
        for first in range(0, table.num_rows, _RUN_ROWS):
            part = table.slice(first, _RUN_ROWS)
            rows, size = (sum(getattr(one, of) for one in [*waiting, part]) for of in ("num_rows", "nbytes"))
            if waiting and (rows > _RUN_ROWS or size > _RUN_BYTES):
                yield pa.concat_tables(waiting)
                waiting = []
            waiting.append(part)
    if waiting:
        yield pa.concat_tables(waiting)


def _write_run(scratch: ScratchFile, table: Any, by: str, batch_rows: int) -> Iterator[_Place]:
    order = np.argsort(np.asarray(table.column(by)))
    table = table.combine_chunks()
    for first in range(0, len(order), batch_rows):
        sorted_rows = table.take(pa.array(order[first : first + batch_rows]))
        (batch,) = sorted_rows.combine_chunks().to_batches()
        yield scratch.append(batch.serialize())


class _Run:
    """What is left of a run: some rows in memory, and the places of the others."""

    def __init__(self, scratch: ScratchFile, schema: Any, by: str, places: list[_Place]) -> None:
        self._scratch, self._schema, self._by = scratch, schema, by
        self._places = places[::-1]
        self._rows = schema.empty_table()
        self._numbers: NDArray[np.uint64] = np.empty(0, np.uint64)

    @property
    def is_empty(self) -> bool:
        return not self._rows.num_rows and not self._places

    @property
    def last(self) -> int | None:
        """The last number in memory; None where the run ends with it."""
        return int(self._numbers[-1]) if self._places else None

    def load(self, rows: int) -> None:
        """At least so many into memory, if there are."""
        parts = [self._rows]
        while sum(part.num_rows for part in parts) < rows and self._places:
            data = pa.py_buffer(self._scratch.read(self._places.pop()))
            parts.append(pa.Table.from_batches([pa.ipc.read_record_batch(data, self._schema)]))
        if len(parts) > 1:
            self._rows = pa.concat_tables(parts)
            self._numbers = np.asarray(one_piece(self._rows.column(self._by)))

    def take(self, bound: int | None) -> Any:
        """What has a number up to the bound, out of memory."""
        count = len(self._numbers)
        if bound is not None:
            count = int(np.searchsorted(self._numbers, np.uint64(bound), "right"))
        found = self._rows.slice(0, count)
        self._rows, self._numbers = self._rows.slice(count), self._numbers[count:]
        return found


def _merge_next(runs: list[_Run], by: str, batch_rows: int) -> Any:
    """As every run has a batch in memory, so much of each is in order, more or less:
    few rounds for many runs."""
    for run in runs:
        run.load(batch_rows)
    bound = min((run.last for run in runs if run.last is not None), default=None)
    parts = [run.take(bound) for run in runs]
    whole = pa.concat_tables(parts).combine_chunks()
    return whole.take(pa.array(np.argsort(np.asarray(one_piece(whole.column(by))))))

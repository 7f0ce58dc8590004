"""Columns of numbers in order of a key, of which a range is read alone.

    run of n rows    key 8 x n │ column │ column …       raw, little-endian, each column from a multiple of 8
                                                         bytes

    shard 0 ─ run ─┐
    shard 1 ─ run ─┼─ keys from .. to ─> one partition, whatever the number of partitions
    shard 2 ─ run ─┘

A run does not know how many partitions there will be: that is decided when its rows are counted, so that a
partition is as large as a task can hold. A range is found by bisection and read with pread: 0.1 ms for a run,
where a range of a Parquet file takes 3 ms and never less than a row group. Runs are scaffolding: nothing that
lasts is one.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import FileEntry, file_entry
from tokmill.artifacts.step import Input, Task
from tokmill.errors import CorruptFile
from tokmill.storage.disk import open_commit, read_array_at, told_as_unreadable

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


def joined(parts: Iterable[list[Column]], layout: Layout) -> list[Column]:
    """Join the rows of all runs, one run after the other; of no runs, empty columns."""
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

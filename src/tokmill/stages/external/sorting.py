"""Tables in order of a number, however many rows there are: sorted in runs on the disk, and merged.

    tables ─ a run is sorted in memory ─> file without a name:  run 0 ▏run 1 ▏ …    each in ascending batches
    merge    a batch or two of every run is in memory; what lies below the end of the first of them to end is
             in order

The numbers of two rows are never equal. So the order is one, whatever the runs, the batches and the memory.
The file has no name: it is gone with the process, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.schema import one_piece
from tokmill.storage.disk import read_at, told_as_unwritable

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

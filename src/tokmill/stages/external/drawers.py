"""Rows that a task puts aside in an order that is not the one in which it needs them.

    rows, drawer of each ─ put ─> one file per drawer, appended to        drawer ─ load ─> its rows

The files are temporary: they go with the block,
and a task that was killed leaves them to the sweep of its step.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.step import Task
from tokmill.storage.disk import load_array, read_arrays, temp_beside, told_as_unwritable

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
    folder = temp_beside(Path(task.directory) / "drawers")
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # what cannot be removed now is swept with the step

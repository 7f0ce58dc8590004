"""Tables of many shards read at once, by DuckDB: a third of the time of opening 1,700 files one by one.

    files of one table, in order ─ some at a time, side by side ─ read_parquet ─> columns, in that order
    ledgers of one step          ─ likewise ─> place of the file, row, number of the reason

A connection reads one file after the other, so there is one for each thread: two columns of 1,700 files take
0.27 s with two, and 0.95 with one that has two threads. Asked for Arrow it spends two thirds of the CPU that
it takes to make arrays of numpy. A connection may read below the directory of the run and nowhere else. What
it cannot read is read again by the code that tells what is wrong with a file.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.schema import one_piece
from tokmill.storage.on_demand import at_hand

MEMORY = "250MB"  # of a connection
THREADS = 2
_AT_ONCE = 300  # files of one statement


class Unreadable(Exception):
    """DuckDB could not: why is told by whoever opens the files one by one."""


class Left(NamedTuple):
    """Lines of ledgers: the place of the file, the row in its shard, the number of the reason."""

    file: NDArray[np.int64]
    row: NDArray[np.int64]
    reason: NDArray[np.int64]
    reasons: list[str]


class BulkReader:
    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()
        self._lock = threading.Lock()
        self._free: list[Any] = []  # connections that nobody uses: to make one takes 0.03 s

    def columns(self, paths: Sequence[Path], names: Sequence[str]) -> Any:
        """A table of these columns of all files, in their order."""
        listed = ", ".join(quoted(name) for name in names)
        return pa.concat_tables(
            [table for _, table in self.ask(f"SELECT {listed} FROM read_parquet(?)", paths)]
        )

    def sparse(self, paths: Sequence[Path], value: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Place of the file, row and value, of tables that have some rows of a shard."""
        parts = self.ask(f"SELECT file_index, row, {quoted(value)} AS value FROM read_parquet(?)", paths)
        files = [_numbers(table, "file_index") + first for first, table in parts]
        rows, values = ([_numbers(table, name) for _, table in parts] for name in ("row", "value"))
        return np.concatenate(files), np.concatenate(rows), np.concatenate(values)

    def ledgers(self, paths: Sequence[Path]) -> Left:
        """Who left, edits aside."""
        parts = self.ask("SELECT file_index, row, reason FROM read_parquet(?) WHERE verdict != 'edit'", paths)
        files = np.concatenate([_numbers(table, "file_index") + first for first, table in parts])
        reasons = pa.chunked_array([one_piece(table.column("reason")) for _, table in parts])
        coded = one_piece(reasons.dictionary_encode().unify_dictionaries())
        names = coded.dictionary.to_pylist()
        order = sorted(names)
        places = np.array([order.index(name) for name in names], np.int64)
        rows = np.concatenate([_numbers(table, "row") for _, table in parts])
        codes = np.asarray(coded.indices)
        return Left(files, rows, places[codes] if len(codes) else codes.astype(np.int64), order)

    def ask(self, statement: str, paths: Sequence[Path]) -> list[tuple[int, Any]]:
        """A statement about `read_parquet(?)`, of some files at a time: the number of the first of them, and
        what it gives."""
        files = _here(paths)
        firsts = range(0, len(files), _AT_ONCE)

        def some(first: int) -> tuple[int, Any]:
            with self._connected() as connection:
                found = connection.sql(statement, params=[files[first : first + _AT_ONCE]])
                return first, found.to_arrow_table()

        if len(firsts) < 2:
            return [some(first) for first in firsts]
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(some, firsts))

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Any]:
        with self._lock:
            connection = self._free.pop() if self._free else None
        try:
            connection = connection or connect_to(self._directory)
            yield connection
        except duckdb.Error as error:
            raise Unreadable(str(error)) from error
        finally:
            with self._lock:
                if connection is not None:
                    self._free.append(connection)


def _numbers(table: Any, name: str) -> NDArray[np.int64]:
    return np.asarray(one_piece(table.column(name))).astype(np.int64)


def connect_to(directory: Path) -> Any:
    """DuckDB that reads below the directory, and has no network, extension or setting to be changed."""
    connection = duckdb.connect(
        ":memory:",
        config={
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "allow_community_extensions": "false",
            "python_enable_replacements": "false",
            "memory_limit": MEMORY,
            "threads": "1",
        },
    )
    below = f"{directory}/".replace("'", "''")
    for setting in (
        f"SET allowed_directories = ['{below}']",
        "SET enable_external_access = false",
        "SET lock_configuration = true",
    ):
        connection.execute(setting)
    return connection


def _here(paths: Sequence[Path]) -> list[str]:
    """DuckDB takes * ? [ in a name for a pattern."""
    found = [str(at_hand(path).absolute()) for path in paths]
    if any(one in name for name in found for one in "*?["):
        raise Unreadable("a path has a sign of patterns in it")
    return found


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

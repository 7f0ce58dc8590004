"""A table that is longer than a task can hold: written part by part, read like any other.

open_table(task, path, name, schema)  ->  append(table) … append(table)  ->  row groups, statistics of `by`
leave the block                       ->  entry, with the digest of the whole as if it had been one table

What is read by shard is in order of `by`, and `load_range` finds it by the statistics.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tokmill.artifacts.manifest import FileEntry, file_entry
from tokmill.artifacts.step import Task
from tokmill.errors import CorruptFile
from tokmill.storage.digests import TableDigest
from tokmill.storage.disk import CommitFile, Written, is_fault_of_reading, open_commit, unreadable

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

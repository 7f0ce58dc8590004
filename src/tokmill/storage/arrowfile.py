"""Arrow's own file format, uncompressed: rows that are read here and there, mapped instead of loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from tokmill.errors import CorruptFile
from tokmill.storage.commit import Written, commit_bytes
from tokmill.storage.reading import is_fault_of_reading, unreadable


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

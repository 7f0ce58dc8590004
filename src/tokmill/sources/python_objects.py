"""Records that are Python objects, written down once so that tasks in other processes can read them.

    an iterable of dicts · a function that gives one · an Arrow table, batch or reader
    a pandas or Polars frame · a `datasets.Dataset`          ─> <name>.jsonl, which ingest reads as it reads any file

The file is the same for the same records, so their content is their identity: a second run with equal objects finds
everything up to date.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from tokmill.errors import InputError
from tokmill.storage.commit import open_commit
from tokmill.storage.location import InputFile, find_files

_BATCH_ROWS = 10_000


def write_objects(data: Any, path: Path, source: str) -> None:
    """As JSON Lines, in their order; a record that JSON cannot hold is an error that names it."""
    encoder = msgspec.json.Encoder()
    with open_commit(path) as file:
        row = 0
        for records in _batches(data, source):
            lines = bytearray()
            for record in records:
                if not isinstance(record, Mapping):
                    raise _unusable(
                        source, row, f"is a {type(record).__name__}, not a dict", 'for example {"text": "…"}'
                    )
                try:
                    lines += encoder.encode(record)
                except (TypeError, ValueError, UnicodeEncodeError) as error:
                    raise _unusable(
                        source, row, f"cannot be written as JSON: {error}", "give text, numbers and lists"
                    ) from None
                lines += b"\n"
                row += 1
            file.write(lines)


def written_file(data: Any, source: str) -> InputFile:
    """The file that `write_objects` made."""
    if not isinstance(data, Path):
        raise InputError(
            f"source `{source}`: its records were given in Python, and are not written down here",
            where="data",
            next="run the recipe in Python with the records, or put them into a file and name it with `files`",
        )
    (file,) = find_files(glob.escape(str(data)), data.parent)
    return file


def _batches(data: Any, source: str) -> Iterator[Iterable[Any]]:
    if isinstance(data, Callable) and not hasattr(data, "__iter__"):  # type: ignore[arg-type]
        data = data()
    kind = type(data).__module__.partition(".")[0]
    if isinstance(data, pa.RecordBatch):
        data = pa.table(data)
    elif kind == "pandas":
        data = pa.Table.from_pandas(data, preserve_index=False)
    elif kind == "polars":
        data = (data.collect() if hasattr(data, "collect") else data).to_arrow()
    elif kind == "datasets" and hasattr(data, "with_format") and hasattr(data, "__len__"):
        yield from (table.to_pylist() for table in data.with_format("arrow").iter(_BATCH_ROWS))
        return
    if isinstance(data, pa.Table):
        data = data.to_reader(_BATCH_ROWS)
    if isinstance(data, pa.RecordBatchReader):
        yield from (batch.to_pylist() for batch in data)
    elif isinstance(data, (str, bytes, Mapping)) or not isinstance(data, Iterable):
        raise InputError(
            f"source `{source}`: its `data` is a {type(data).__name__}, and no records can be read from one",
            where="data",
            next="give an iterable of dicts, a function that returns one, an Arrow table, a frame or a dataset",
        )
    else:
        yield data


def _unusable(source: str, row: int, what: str, next: str) -> InputError:
    return InputError(f"source `{source}`: record {row:,} of its `data` {what}", where="data", next=next)

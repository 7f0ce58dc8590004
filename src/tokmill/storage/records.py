"""What every codec reads into: whole columns of strings, and the records that had to be left out.

A codec is asked for `Wanted` columns and yields `Batch`es in file order:

    read_batches(path, wanted, ...) -> Batch(table, bad), Batch(table, bad), …

`table` has one large_string column per wanted name. A record that cannot be used is not in `table`; it is in
`bad` with where it lies and why, so that rows + bad = records, always.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import pyarrow as pa


class Kind(StrEnum):
    TEXT = "text"  # must be a string
    SCALAR = "scalar"  # a string, or a number or boolean written as one
    JSON = "json"  # any value, kept as its JSON
    NAME = "name"  # a string, or a number written as one; any other value is no name, and null
    OBJECT = "object"  # a JSON object, or a string that spells one; any other value as {"<key>": value}


class Wanted(NamedTuple):
    """Read `key` of each record into column `name`; where a record has none, or a null, the first of `others`.

    What `others` hold is looked at in those records alone: of another record it may be anything.
    """

    name: str
    key: str
    kind: Kind
    required: bool
    others: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key, *self.others)


class BadRecord(NamedTuple):
    """`offset`: bytes into the decompressed file, or the row number in a Parquet file."""

    offset: int
    reason: str
    detail: str
    file: str = ""  # where a reader takes records from several files at once


class Batch(NamedTuple):
    table: Any
    bad: list[BadRecord]


class Peek(NamedTuple):
    """What the beginning of a file shows."""

    keys: list[str]
    is_whole: bool  # there are no others: it was all of the file, or a file says which columns it has


class Span(NamedTuple):
    """A part of a file: bytes [start, end) of a plain one, row groups [start, end) of a Parquet one."""

    start: int = 0
    end: int | None = None


WHOLE = Span()


def string_table(wanted: Sequence[Wanted], columns: list[Any]) -> Any:
    """`columns`: lists of strings and None, or large_string arrays."""
    arrays = [
        pa.array(column, pa.large_string()) if isinstance(column, list) else column for column in columns
    ]
    return pa.table(arrays, names=[want.name for want in wanted])

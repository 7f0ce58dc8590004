"""Comma- and tab-separated values: the first row names the columns, every other one is a record.

    stream ─ 4 MiB, more for a row that is longer ─ kernels.csvrows ─┬─ wanted cells ─ gather ─> columns
                                                                     └─ a row with a fault ───> bad

Not pyarrow's reader: it joins what follows a closing quote to the cell, does not say where in the file a row
lies, and refuses a whole block for one row that is not UTF-8 or longer than the block.

A record has as many cells as the header, or it is a bad record; cells are never shifted. Values are the
strings that lie there, nothing is guessed. An empty cell without quotes is no value, and an empty text
where there must be one. A quote that is never closed makes one cell of all that follows: that is an error.

A row ends at a newline that is not between quotes, so where one begins is only known from the first byte on:
a file is one part.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.errors import CorruptFile
from tokmill.kernels import csvrows
from tokmill.schema import large_strings
from tokmill.storage.blocks import BLOCK_BYTES, UTF8_BOM, Stream, open_stream, packed, read_exactly
from tokmill.storage.location import AnyPath
from tokmill.storage.parquet import refuse_twins
from tokmill.storage.records import (
    BadRecord,
    Batch,
    Kind,
    Peek,
    Wanted,
    known_id,
    no_rows,
    objects_of,
    string_table,
    too_large,
)

CSV, TSV = packed(".csv"), packed(".tsv")
SUFFIXES = (*CSV, *TSV)

_BATCH_ROWS = 1 << 16  # each may be a bad record, which takes 500 bytes until it is written
_HEADER_BYTES = 64 << 10
_NOTHING = np.empty(0, np.int64)


def read_batches(path: AnyPath, wanted: list[Wanted], *, max_record_bytes: int) -> Iterator[Batch]:
    with open_stream(path) as stream:
        rows = _Rows(path, stream, max_record_bytes)
        if rows.header:
            yield from rows.read(wanted)


def peek(path: AnyPath, *, max_record_bytes: int) -> Peek:
    with open_stream(path) as stream:
        return Peek(_Rows(path, stream, max_record_bytes, _HEADER_BYTES).header, True)


class _Columns(NamedTuple):
    """Which cells of a row are read, and how many it must have."""

    names: list[str]  # of those that are read
    places: NDArray[np.int64]  # for each column of the file its place among those, or -1


class _Rows:
    def __init__(
        self, path: AnyPath, stream: Stream, max_record_bytes: int, block_bytes: int | None = None
    ) -> None:
        self._path, self._stream, self._max_record_bytes = path, stream, max_record_bytes
        self._delimiter = b"\t" if path.name.endswith(TSV) else b","
        self._block_bytes = block_bytes or BLOCK_BYTES
        self._data, self._offset, self._line = b"", 0, 1  # what is not read yet, and where it lies
        self._is_last = False
        self.header = self._take_header()

    def _fill(self) -> None:
        """As much again as there is, so that a long row is scanned twice and not for every block."""
        size = max(self._block_bytes, len(self._data))
        fresh = read_exactly(self._stream, size, self._path)
        self._is_last = len(fresh) < size
        self._data += fresh

    def _pass(self, count: int) -> None:
        self._line += self._data.count(b"\n", 0, count)
        self._offset += count
        self._data = self._data[count:]

    def _take_header(self) -> list[str]:
        self._fill()
        self._pass(len(UTF8_BOM) if self._data.startswith(UTF8_BOM) else 0)
        while True:
            found = self._scan(_NOTHING, max_rows=1)
            if len(found.starts):
                break
            if self._is_last:
                if self._data[found.at :]:
                    raise self._unclosed()
                return []
            if len(self._data) > self._max_record_bytes:
                raise CorruptFile(
                    f"its first row has more than max_record_bytes {self._max_record_bytes:,}",
                    where=str(self._path),
                    next="is this file comma- or tab-separated text?",
                )
            self._fill()
        count = int(found.counts[0])
        if count < 0:
            raise CorruptFile(
                "the quotes of its first row, which names the columns, do not match",
                where=str(self._path),
                next="repair the header, or name the file as what it is",
            )
        found = self._scan(np.arange(count), max_rows=1)
        data, ends = csvrows.gather(self._data, found.cells[0], found.kinds[0])
        try:
            names = large_strings(data, ends)
            names.validate(full=True)
        except pa.ArrowInvalid as error:
            raise CorruptFile(
                "its first row, which names the columns, is not UTF-8",
                where=str(self._path),
                next="convert the file to UTF-8 (for example `iconv -f UTF-16 -t UTF-8`)",
            ) from error
        self._pass(found.at)
        header: list[str] = names.to_pylist()
        return header

    def _scan(self, places: NDArray[np.int64], max_rows: int = 0) -> csvrows.Rows:
        return csvrows.scan_rows(
            self._data or b"\n", 0, self._delimiter, places, is_last=self._is_last, max_rows=max_rows
        )

    def _unclosed(self) -> CorruptFile:
        return CorruptFile(
            f"a quote of the row at line {self._line:,} is never closed: the file is truncated, or all that "
            "follows would be one cell",
            where=str(self._path),
            next="copy or download it again, or close the quote (a quote within quotes is doubled)",
        )

    def read(self, wanted: list[Wanted]) -> Iterator[Batch]:
        columns = self._columns(wanted)
        while True:
            rows = self._scan(columns.places, _BATCH_ROWS)
            yield self._batch(rows, columns.names, wanted)
            self._pass(rows.at)
            if len(rows.starts) == _BATCH_ROWS:
                continue  # there may be more in what was read
            if self._is_last:
                if self._data:
                    raise self._unclosed()
                return
            if len(self._data) > self._max_record_bytes:
                yield no_rows(wanted, [self._skip_row(rows.state)])
            else:
                self._fill()

    def _columns(self, wanted: list[Wanted]) -> _Columns:
        asked = {key for want in wanted for key in want.keys}
        names = [name for name in self.header if name in asked]
        refuse_twins(names, self._path)
        places = [names.index(name) if name in asked else -1 for name in self.header]
        return _Columns(names, np.array(places, np.int64))

    def _skip_row(self, state: int) -> BadRecord:
        """One that is longer than the reader accepts; its bytes are let go."""
        offset, size = self._offset, len(self._data)
        while True:
            self._offset += len(self._data)
            self._line += self._data.count(b"\n")
            self._data = b""
            self._fill()
            end, state = csvrows.skip_row(
                self._data or b"\n", state, self._delimiter, is_last=self._is_last and bool(self._data)
            )
            if end >= 0:
                end = min(end, len(self._data))
                size += len(self._data[:end].removesuffix(b"\n"))
                self._pass(end)
                return too_large(offset, size, self._max_record_bytes, "row")
            size += len(self._data)
            if self._is_last:
                raise self._unclosed()

    def _batch(self, rows: csvrows.Rows, names: list[str], wanted: list[Wanted]) -> Batch:
        faults = self._faults(rows)
        lacking = [
            want.key for want in wanted if want.required and not any(key in names for key in want.keys)
        ]
        if lacking:
            for row in range(len(rows.starts)):
                faults.setdefault(row, ("missing_field", f"no field `{lacking[0]}`"))
        keep = np.ones(len(rows.starts), np.bool_)
        keep[list(faults)] = False
        cells, kinds = (rows.cells, rows.kinds) if not faults else (rows.cells[keep], rows.kinds[keep])

        @functools.cache
        def column(name: str) -> Any:
            place = names.index(name)
            own, kind = cells[:, place], np.ascontiguousarray(kinds[:, place])
            texts = large_strings(*csvrows.gather(self._data or b"\n", own, kind))
            is_nothing = (kind == csvrows.PLAIN) & (own[:, 0] == own[:, 1])
            return pc.if_else(pa.array(is_nothing), None, texts) if is_nothing.any() else texts

        table = string_table(wanted, [_values(want, names, column, int(keep.sum())) for want in wanted])
        bad = [
            BadRecord(
                self._offset + int(rows.starts[row]), *faults[row], id=self._id_of(rows, row, names, wanted)
            )
            for row in sorted(faults)
        ]
        return Batch(table, bad, rows.starts[keep] + self._offset)

    def _id_of(self, rows: csvrows.Rows, row: int, names: list[str], wanted: list[Wanted]) -> str:
        """Of an unusable row; one with other cells than the header has none that can be relied on."""
        if rows.counts[row] != len(self.header):
            return ""
        keys = next((want.keys for want in wanted if want.name == "id"), ())
        for place in (names.index(key) for key in keys if key in names):
            data, _ = csvrows.gather(
                self._data or b"\n",
                rows.cells[row : row + 1, place],
                np.ascontiguousarray(rows.kinds[row : row + 1, place]),
            )
            if len(data):
                return known_id(data.tobytes())
        return ""

    def _faults(self, rows: csvrows.Rows) -> dict[int, tuple[str, str]]:
        """By row. Why the first of several; with the line of the file that the row begins in."""
        is_wrong = (rows.counts != len(self.header)) | (rows.ends - rows.starts > self._max_record_bytes)
        if not _is_utf8(self._data, 0, rows.at):
            is_wrong |= [
                not _is_utf8(self._data, start, end)
                for start, end in zip(rows.starts.tolist(), rows.ends.tolist(), strict=True)
            ]
        faults: dict[int, tuple[str, str]] = {}
        line, reach = self._line, 0
        for row in np.flatnonzero(is_wrong).tolist():
            start, end, count = int(rows.starts[row]), int(rows.ends[row]), int(rows.counts[row])
            line, reach = line + self._data.count(b"\n", reach, start), start
            if end - start > self._max_record_bytes:
                faults[row] = too_large(0, end - start, self._max_record_bytes, "row")[1:3]
            elif not _is_utf8(self._data, start, end):
                faults.setdefault(row, ("invalid_utf8", f"the row at line {line:,}"))
            elif count < 0:
                faults.setdefault(
                    row, ("invalid_csv", f"line {line:,}: text after the closing quote of a cell")
                )
            else:
                has = f"{count:,} cell{'s' if count > 1 else ''}, and the header has {len(self.header):,}"
                faults.setdefault(row, ("invalid_csv", f"line {line:,}: {has}"))
        return faults


def _values(want: Wanted, names: list[str], column: Any, rows: int) -> Any:
    """A column of what is wanted: of the first key that a row has a value for."""
    values = None
    for key in want.keys:
        if key in names:
            found = _as_kind(column(key), want.kind, key)
            values = found if values is None else pc.coalesce(values, found)
    if values is None:
        return pa.nulls(rows, pa.large_string())
    return values.fill_null("") if want.required else values


def _as_kind(texts: Any, kind: Kind, key: str) -> Any:
    if kind is Kind.JSON:
        spelled = [None if text is None else msgspec.json.encode(text).decode() for text in texts.to_pylist()]
        return pa.array(spelled, pa.large_string())
    if kind is Kind.OBJECT:
        return pa.array(objects_of(texts.to_pylist(), key), pa.large_string())
    return texts


def _is_utf8(data: bytes, start: int, end: int) -> bool:
    try:
        large_strings(np.frombuffer(data or b"\n", np.uint8), np.array([start, end])).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True

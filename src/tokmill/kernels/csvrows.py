r"""Rows of comma- or tab-separated values, and where the wanted cells of each lie in the raw bytes.

    block    id,text\n1,"a ""b"",\nc"\n2,d\n         whole rows; the last may be cut by the end of the block
    starts   0        8                  24          a line without a byte is no row
    counts   2        2                  2           cells
    cells    where the wanted ones lie, between their quotes; PLAIN, QUOTED or DOUBLED

A cell is quoted if its first byte is a quote, and then ends at a quote that is not doubled; a quote within
any other cell is a byte like all. Rows end at \n or \r\n outside of quotes, and nowhere else. A row in which
something else than the end of the cell follows the closing quote is BROKEN, up to the end of that line.

`gather` makes a column of text of the cells, without a Python string in between:

    cells    d   a ""b"",\nc
    column   d   a "b",\nc
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import (
    Bytes,
    Int,
    Offsets,
    bytes_before,
    first_zero,
    frozen,
    load_word,
    raw_kernel,
    store_word,
)

U64 = np.uint64
NEWLINES = U64(0x0A0A0A0A0A0A0A0A)
QUOTES = U64(0x2222222222222222)
EVERY = U64(0x0101010101010101)
QUOTE, NEWLINE, RETURN = 0x22, 0x0A, 0x0D

# Where in a row a scan is.
CELL, UNQUOTED, IN_QUOTES, CLOSED, LOST = 0, 1, 2, 3, 4
# What a cell is: as it lies there, between quotes, between quotes and with doubled ones inside.
PLAIN, QUOTED, DOUBLED = 0, 1, 2


class Rows(NamedTuple):
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    counts: NDArray[np.int64]  # cells; -1: BROKEN
    cells: NDArray[np.int64]  # [row, wanted, first byte and end]
    kinds: NDArray[np.uint8]  # [row, wanted]
    at: int  # the first byte of a row that does not end here
    state: int  # and where the scan is in it


def scan_rows(
    block: bytes, at: Int, delimiter: bytes, places: NDArray[np.int64], *, is_last: bool, max_rows: int = 0
) -> Rows:
    """Rows from byte `at` on. `places`: for each column which of the wanted it is, or -1."""
    data = frozen(np.frombuffer(block, np.uint8), np.uint8)
    wanted = int((places >= 0).sum())
    room = max_rows or data.size // 512 + 16
    columns: list[NDArray[Any]] = [
        *(np.empty(room, np.int64) for _ in range(3)),
        np.zeros((room, wanted, 2), np.int64),
        np.zeros((room, wanted), np.uint8),
    ]
    rows: Int = 0
    state: Int = CELL
    while True:
        rows, at, state = _scan_rows(
            data, at, CELL, False, ord(delimiter), is_last, frozen(places, np.int64), rows, *columns
        )
        if rows < len(columns[0]) or at >= data.size or max_rows:
            starts, ends, counts, cells, kinds = (column[:rows] for column in columns)
            return Rows(starts, ends, counts, cells, kinds, int(at), int(state))
        columns = [np.concatenate((column, np.zeros_like(column))) for column in columns]


def skip_row(block: bytes, state: Int, delimiter: bytes, *, is_last: bool) -> tuple[int, int]:
    """Where the row ends that a scan is in, -1 if not here; and where in it the scan then is."""
    data = frozen(np.frombuffer(block, np.uint8), np.uint8)
    starts, ends, counts = np.empty((3, 1), np.int64)
    nothing, cells, kinds = np.empty(0, np.int64), np.empty((1, 0, 2), np.int64), np.empty((1, 0), np.uint8)
    rows, at, state = _scan_rows(
        data, 0, state, True, ord(delimiter), is_last, frozen(nothing, np.int64), 0, starts, ends, counts,
        cells, kinds,
    )  # fmt: skip
    return (int(at) if rows else -1), int(state)


@raw_kernel(
    lambda: (
        scan_rows(b'a,"b"\n', 0, b",", np.array([0, -1]), is_last=True),
        skip_row(b"a\n", UNQUOTED, b",", is_last=True),
    )
)
def _scan_rows(
    data: Bytes,
    at: Int,
    state: Int,
    is_resumed: bool,
    delimiter: Int,
    is_last: bool,
    places: NDArray[np.int64],
    rows: Int,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    counts: NDArray[np.int64],
    cells: NDArray[np.int64],
    kinds: NDArray[np.uint8],
) -> tuple[Int, Int, Int]:
    """Until the block ends, or the room for rows."""
    delimiters = U64(delimiter) * EVERY
    size = data.size
    while at < size and rows < starts.size:
        start = at
        count: Int = 0
        is_broken = False
        ends_row = False
        end: Int = at
        while not ends_row:
            first: Int = -1
            kind: Int = PLAIN
            if state == CELL:
                first = at
                state = UNQUOTED
                if at < size and data[at] == QUOTE:
                    at += 1
                    first = at
                    kind = QUOTED
                    state = IN_QUOTES
            if state == UNQUOTED:
                while at < size:
                    if size - at >= 8:
                        word = load_word(data, at)
                        marks = first_zero(word ^ NEWLINES) | first_zero(word ^ delimiters)
                        if marks == U64(0):
                            at += 8
                            continue
                        at += bytes_before(marks)
                    if data[at] == NEWLINE or data[at] == delimiter:
                        break
                    at += 1
                if at >= size and not is_last:
                    return rows, start, CELL if at == first else UNQUOTED
                end = at
                ends_row = bool(at >= size or data[at] == NEWLINE)
                if ends_row and end > start and data[end - 1] == RETURN and end > first:
                    end -= 1
            while state == IN_QUOTES or state == CLOSED:
                if state == IN_QUOTES:
                    while at < size:
                        if size - at >= 8:
                            word = load_word(data, at)
                            marks = first_zero(word ^ QUOTES)
                            if marks == U64(0):
                                at += 8
                                continue
                            at += bytes_before(marks)
                        if data[at] == QUOTE:
                            break
                        at += 1
                    if at >= size:
                        return rows, start, IN_QUOTES
                    end = at
                    at += 1
                    state = CLOSED
                if at < size and data[at] == QUOTE:
                    kind = DOUBLED
                    at += 1
                    state = IN_QUOTES
                    continue
                if at >= size:
                    if not is_last:
                        return rows, start, CLOSED
                    ends_row = True
                elif data[at] == NEWLINE:
                    ends_row = True
                elif data[at] == RETURN:
                    if at + 1 >= size:
                        if not is_last:
                            return rows, start, CLOSED
                        ends_row = True
                    elif data[at + 1] == NEWLINE:
                        at += 1
                        ends_row = True
                    else:
                        state = LOST
                elif data[at] != delimiter:
                    state = LOST
                break
            if state == LOST:
                is_broken = True
                while at < size and data[at] != NEWLINE:
                    at += 1
                if at >= size and not is_last:
                    return rows, start, LOST
                ends_row = True
            elif count < places.size and places[count] >= 0:
                place = places[count]
                cells[rows, place, 0] = first
                cells[rows, place, 1] = end
                kinds[rows, place] = kind
            count += 1
            at += 1
            state = CELL
        if count > 1 or end > start or is_broken or is_resumed or data[start] == QUOTE:
            starts[rows] = start
            ends[rows] = min(at - 1, size)
            counts[rows] = -1 if is_broken else count
            rows += 1
        is_resumed = False
    return rows, min(at, size), CELL


def gather(
    block: bytes, cells: NDArray[np.int64], kinds: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], Offsets]:
    """The column of the cells of one wanted column."""
    data = frozen(np.frombuffer(block, np.uint8), np.uint8)
    firsts, ends = frozen(cells[:, 0], np.int64), frozen(cells[:, 1], np.int64)
    text = np.empty(int((ends - firsts).sum()) + 8, np.uint8)
    offsets = np.zeros(len(firsts) + 1, np.int64)
    _gather(data, firsts, ends, frozen(kinds, np.uint8), text, offsets)
    return text[: offsets[-1]], offsets


@raw_kernel(lambda: gather(b"abcdefgh", np.array([[0, 8]]), np.zeros(1, np.uint8)))
def _gather(data: Bytes, firsts: Offsets, ends: Offsets, kinds: Bytes, text: Bytes, offsets: Offsets) -> None:
    used: Int = 0
    for row in range(firsts.size):
        at, end = firsts[row], ends[row]
        is_doubled = kinds[row] == DOUBLED
        while at < end:
            if data.size - at >= 8:
                word = load_word(data, at)
                taken: Int = min(end - at, 8)
                if is_doubled:
                    marks = first_zero(word ^ QUOTES)
                    if marks != U64(0):
                        taken = min(taken, bytes_before(marks) + 1)
                if text.size - used >= 8:
                    store_word(text, used, word)
                else:
                    for k in range(taken):
                        text[used + k] = data[at + k]
            else:
                taken = 1
                text[used] = data[at]
            at += taken
            used += taken
            if is_doubled and data[at - 1] == QUOTE:
                at += 1  # the second of the two
        offsets[row + 1] = used

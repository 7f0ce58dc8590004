"""Rows of an XML dump as columns of text, taken from the raw bytes where they have the plain form.

    <row Id="1" Body="&lt;p&gt;café&lt;/p&gt;&#xA;" />          plain: what every published dump is made of

    wanted   Id  Body                                            every other attribute is checked and left out
    data     1            <p>café</p>\\n                        per wanted attribute, one row after the other
    offsets  0 1          0 13
    present  True         True

A row is plain when nothing in it leaves a question to an XML parser: names of ASCII letters, none of them
twice, values in double quotes, well-formed UTF-8 without control characters, and no escapes but the five
named ones and numbers of characters that XML allows. The scan ends before the first byte that is not part of
a plain row or white space, and says whether the row there is odd or only cut by the end of the data. Nothing
is an error here: whoever calls gives what is odd to a parser that knows all of XML.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import Bytes, Int, frozen, inlined, kernel, put_code

# Why the scan ended.
AT_END, CUT, ODD, FULL = 0, 1, 2, 3
# What a value is when it is read as a number: nothing, at most 18 digits with or without a minus,
# anything else.
NO_NUMBER, NUMBER, NOT_A_NUMBER = 0, 1, 2

# Attributes of one row; those of a dump have 23.
MAX_ATTRIBUTES = 64

U64 = np.uint64
_HASH_START, _HASH_FACTOR = U64(0xCBF29CE484222325), U64(0x100000001B3)
_PLAIN, _QUOTE, _ESCAPE, _HIGH, _REFUSED = 0, 1, 2, 3, 4


class Wanted(NamedTuple):
    """Names of attributes, for the kernel."""

    hashes: NDArray[np.uint64]
    data: Bytes
    offsets: NDArray[np.int64]


class Room:
    """Where a scan writes, used again for every block;
    a row's columns are views that the next scan overwrites."""

    def __init__(self, columns: int, max_bytes: int, max_rows: int) -> None:
        self.max_bytes = max_bytes
        # The last column is for what is not wanted. Memory that is never written is never taken.
        self.data = np.empty((columns + 1) * max_bytes, np.uint8)
        self.offsets = np.zeros((columns + 1, max_rows + 1), np.int64)
        self.present = np.empty((columns + 1, max_rows), np.bool_)
        self.numbers = np.empty((columns, max_rows), np.int64)
        self.number_kinds = np.empty((columns, max_rows), np.uint8)
        self.starts = np.empty(max_rows, np.int64)


class Scan(NamedTuple):
    rows: int
    at: int  # first byte that was not taken
    last_end: int  # behind the last row, -1 without one
    why: int


def wanted_names(names: list[str]) -> Wanted:
    spelled = [name.encode() for name in names]
    hashes = []
    for name in spelled:
        value = int(_HASH_START)
        for byte in name:
            value = (value ^ byte) * int(_HASH_FACTOR) & 0xFFFFFFFFFFFFFFFF
        hashes.append(value)
    ends = np.cumsum([0, *(len(name) for name in spelled)])
    return Wanted(
        frozen(np.array(hashes, np.uint64), np.uint64),
        frozen(np.frombuffer(b"".join(spelled), np.uint8), np.uint8),
        frozen(ends.astype(np.int64), np.int64),
    )


def scan_rows(block: bytes | memoryview | Bytes, at: int, wanted: Wanted, numbers: int, room: Room) -> Scan:
    """Take plain rows from byte `at` on. The first `numbers` of the wanted attributes are read as numbers
    too."""
    data = frozen(np.frombuffer(block, np.uint8), np.uint8)
    if data.size > room.max_bytes:
        raise ValueError(f"a block of {data.size} bytes has no room in {room.max_bytes}")
    rows, end, last_end, why = _scan_rows(
        data,
        at,
        *wanted,
        numbers,
        room.max_bytes,
        room.data,
        room.offsets,
        room.present,
        room.numbers,
        room.number_kinds,
        room.starts,
        _CLASSES,
    )
    return Scan(int(rows), int(end), int(last_end), int(why))


def _classes() -> NDArray[np.uint8]:
    kinds = np.full(256, _PLAIN, np.uint8)
    kinds[:0x20] = _REFUSED  # white space too: a parser makes spaces of it
    kinds[0x80:] = _HIGH
    kinds[ord("<")], kinds[ord("&")], kinds[ord('"')] = _REFUSED, _ESCAPE, _QUOTE
    return kinds


_CLASSES = frozen(_classes(), np.uint8)


@kernel(lambda: scan_rows(b" ", 0, wanted_names(["a"]), 1, Room(1, 1, 1)))
def _scan_rows(
    data: Bytes,
    at: Int,
    name_hashes: NDArray[np.uint64],
    names: Bytes,
    name_offsets: NDArray[np.int64],
    number_columns: Int,
    stride: Int,
    out: Bytes,
    offsets: NDArray[np.int64],
    present: NDArray[np.bool_],
    numbers: NDArray[np.int64],
    number_kinds: NDArray[np.uint8],
    starts: NDArray[np.int64],
    classes: Bytes,
) -> tuple[Int, Int, Int, Int]:
    size = data.size
    columns = name_hashes.size
    seen = np.empty(MAX_ATTRIBUTES, np.uint64)
    rows = 0
    last_end: Int = -1
    while True:
        while at < size and (data[at] == 0x20 or data[at] == 0x0A or data[at] == 0x0D or data[at] == 0x09):
            at += 1
        if at == size:
            return rows, at, last_end, AT_END
        if rows == starts.size:
            return rows, at, last_end, FULL
        start = at
        if size - at < 6:
            return rows, start, last_end, CUT
        if (
            data[at] != 0x3C
            or data[at + 1] != 0x72
            or data[at + 2] != 0x6F
            or data[at + 3] != 0x77
            or (data[at + 4] != 0x20 and data[at + 4] != 0x2F)
        ):
            return rows, start, last_end, ODD
        at += 4
        for column in range(columns):
            present[column, rows] = False
            offsets[column, rows + 1] = offsets[column, rows]
        attributes = 0
        while True:
            # The next attribute's name, or the end of the row.
            spaces = at
            while at < size and data[at] == 0x20:
                at += 1
            if size - at < 2:
                return rows, start, last_end, CUT
            if data[at] == 0x2F:
                if data[at + 1] != 0x3E:
                    return rows, start, last_end, ODD
                at += 2
                break
            if at == spaces or attributes == MAX_ATTRIBUTES:
                return rows, start, last_end, ODD
            name = at
            key = _HASH_START
            while at < size and U64(data[at] | 0x20) - U64(0x61) < U64(26):
                key = (key ^ U64(data[at])) * _HASH_FACTOR
                at += 1
            if size - at < 2:
                return rows, start, last_end, CUT
            if at == name or data[at] != 0x3D or data[at + 1] != 0x22:
                return rows, start, last_end, ODD
            for other in range(attributes):
                if seen[other] == key:
                    return rows, start, last_end, ODD
            seen[attributes] = key
            attributes += 1
            column = columns
            for candidate in range(columns):
                if name_hashes[candidate] == key and _is_equal(
                    data, name, at, names, name_offsets[candidate], name_offsets[candidate + 1]
                ):
                    column = candidate
            at += 2

            # Its value.
            to = column * stride + offsets[column, rows]
            while True:
                while at < size and classes[data[at]] == _PLAIN:
                    out[to] = data[at]
                    to += 1
                    at += 1
                if at == size:
                    return rows, start, last_end, CUT
                kind = classes[data[at]]
                if kind == _QUOTE:
                    at += 1
                    break
                if kind == _REFUSED:
                    return rows, start, last_end, ODD
                if kind == _ESCAPE:
                    code, width = _escape(data, at)
                    if width <= 0:
                        return rows, start, last_end, CUT if width == 0 else ODD
                    at += width
                    to = put_code(out, to, code)
                else:
                    width = _utf8_width(data, at)
                    if width <= 0:
                        return rows, start, last_end, CUT if width == 0 else ODD
                    for _ in range(width):
                        out[to] = data[at]
                        to += 1
                        at += 1
            if column < columns:
                offsets[column, rows + 1] = to - column * stride
                present[column, rows] = True

        for column in range(number_columns):
            base = column * stride
            first, end = base + offsets[column, rows], base + offsets[column, rows + 1]
            number_kinds[column, rows] = NO_NUMBER
            numbers[column, rows] = 0
            if first == end:
                continue
            is_negative = out[first] == 0x2D
            if is_negative:
                first += 1
            is_number = 1 <= end - first <= 18
            value: Int = 0
            if is_number:
                for i in range(first, end):
                    is_number &= 0x30 <= out[i] <= 0x39
                    value = 10 * value + (np.int64(out[i]) - 0x30)
            number_kinds[column, rows] = NUMBER if is_number else NOT_A_NUMBER
            if is_number:
                numbers[column, rows] = -value if is_negative else value
        starts[rows] = start
        last_end = at
        rows += 1


@inlined
def _is_equal(data: Bytes, first: Int, end: Int, other: Bytes, other_first: Int, other_end: Int) -> bool:
    if end - first != other_end - other_first:
        return False
    is_equal = True
    for i in range(end - first):
        is_equal &= bool(data[first + i] == other[other_first + i])
    return is_equal


@inlined
def _escape(data: Bytes, at: Int) -> tuple[Int, Int]:
    """The character that the escape at `at` stands for, and its length: 0 if it is cut, -1 if it is odd."""
    end = at + 1
    while end < data.size and end < at + 12 and data[end] != 0x3B:
        end += 1
    if end == data.size:
        return 0, 0
    if data[end] != 0x3B:
        return 0, -1
    width = end + 1 - at
    second = data[at + 1]
    if second == 0x6C and width == 4 and data[at + 2] == 0x74:
        return 0x3C, width
    if second == 0x67 and width == 4 and data[at + 2] == 0x74:
        return 0x3E, width
    if second == 0x61 and width == 5 and data[at + 2] == 0x6D and data[at + 3] == 0x70:
        return 0x26, width
    if (
        width == 6
        and second == 0x71
        and data[at + 2] == 0x75
        and data[at + 3] == 0x6F
        and data[at + 4] == 0x74
    ):
        return 0x22, width
    if (
        width == 6
        and second == 0x61
        and data[at + 2] == 0x70
        and data[at + 3] == 0x6F
        and data[at + 4] == 0x73
    ):
        return 0x27, width
    if second != 0x23:
        return 0, -1
    is_hex = data[at + 2] == 0x78
    first = at + 3 if is_hex else at + 2
    if first == end or end - first > 8:
        return 0, -1
    code: Int = 0
    for i in range(first, end):
        byte = np.int64(data[i])
        if 0x30 <= byte <= 0x39:
            digit = byte - 0x30
        elif is_hex and 0x61 <= (byte | 0x20) <= 0x66:
            digit = (byte | 0x20) - 0x57
        else:
            return 0, -1
        code = code * (16 if is_hex else 10) + digit
    is_allowed = (
        0x20 <= code < 0xD800
        or 0xE000 <= code < 0xFFFE
        or 0x10000 <= code < 0x110000
        or code == 0x09
        or code == 0x0A
        or code == 0x0D
    )
    return code, width if is_allowed else -1


@inlined
def _utf8_width(data: Bytes, at: Int) -> Int:
    """Of the character at `at`: 0 if it is cut, -1 if XML does not allow it (a surrogate, U+FFFE,
    bad UTF-8)."""
    lead = data[at]
    width = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    if lead < 0xC2 or lead > 0xF4:
        return -1
    if data.size - at < width:
        return 0
    second = data[at + 1]
    for i in range(1, width):
        if data[at + i] & 0xC0 != 0x80:
            return -1
    if (lead == 0xE0 and second < 0xA0) or (lead == 0xED and second > 0x9F):
        return -1
    if (lead == 0xF0 and second < 0x90) or (lead == 0xF4 and second > 0x8F):
        return -1
    if lead == 0xEF and second == 0xBF and data[at + 2] > 0xBD:
        return -1
    return width

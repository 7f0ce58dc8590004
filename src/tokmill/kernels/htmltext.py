"""Columns of HTML fragments laid out as plain text, in one pass over their bytes.

    html  ─ text ──────────── visible bytes, white space collapsed ─> out
          ├ tag ── its act ── ends or begins a block, a line, a cell
          └ entity ────────── its character

What a block, a list or a table looks like is said in `tokmill.sources.html`, whose function for one string is the
twin of this kernel: every row that is not marked `left` has exactly the bytes that it gives. Marked are rows with
something rare that the twin knows and this does not: scripts, entities without a semicolon, numbers of control
characters, lists in lists beyond MAX_LISTS, attributes of <ol> other than a plain `start`.

A block is written at once, with the blank line and the marker before it; where it can turn out to be without text
(code, rows of a table), `block` is where to return to.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import TEXT, Bytes, Int, Offsets, frozen, frozen_text, inlined, kernel
from tokmill.kernels.steps import SPREAD

# What a tag does. An inline tag does nothing.
INLINE, BLOCK, BREAK, PRE, PRE_END, LIST, NUMBERED, LIST_END = 0, 1, 2, 3, 4, 5, 6, 7
ITEM, ITEM_END, TABLE, TABLE_END, ROW, ROW_END, CELL = 8, 9, 10, 11, 12, 13, 14
HIDDEN = 15  # left to the twin, with all it holds
_END = 16  # of the fragment

MAX_LISTS = 64
# Letters and digits of six bits each that fit a word: all tags, 1,831 of the 2,125 entities.
MAX_NAME = 10
# <li>x becomes two newlines, 16 spaces, a number of 10 digits with its point and space, a newline and x.
_MAX_GROWTH = 8

U64 = np.uint64
_PLAIN, _SPACE, _TAG, _ENTITY = 0, 1, 2, 3
_BULLET = -1
_SLASH, _CLOSE = 0x2F, 0x3E


class Names(NamedTuple):
    """A hash table of names: `values` of `keys`, 0 where there is none."""

    keys: NDArray[np.uint64]
    values: NDArray[np.uint64]


class LaidOut(NamedTuple):
    """A column, and which of its rows are left to the twin; those are empty."""

    data: Bytes
    offsets: Offsets
    left: NDArray[np.bool_]


def name_table(names: dict[str, int]) -> Names:
    """Of names of at most MAX_NAME letters and digits of ASCII; values are not 0."""
    size = 256
    while size < 4 * len(names):
        size *= 2
    keys, values = np.zeros(size, np.uint64), np.zeros(size, np.uint64)
    for name, value in names.items():
        key = 0
        for character in name.encode():
            key = key << 6 | int(_CODES[character])
        slot = (key * int(SPREAD) & 0xFFFFFFFFFFFFFFFF) >> 32 & (size - 1)
        while values[slot]:
            slot = (slot + 1) & (size - 1)
        keys[slot], values[slot] = key, value
    return Names(frozen(keys, np.uint64), frozen(values, np.uint64))


def packed_text(text: str) -> int:
    """The value of an entity: at most seven bytes of UTF-8, and their number in the lowest byte."""
    data = text.encode()
    return int.from_bytes(data, "little") << 8 | len(data)


def lay_out(
    data: Bytes, offsets: Offsets, tags: Names, entities: Names, *, max_indented_lists: int
) -> LaidOut:
    """`tags`: the act of an opening tag, and that of a closing one times 256, by names in lower case."""
    data, offsets, rows = frozen_text(data, offsets)
    out = np.empty(_MAX_GROWTH * int(offsets[-1] - offsets[0]) + 64, np.uint8)
    ends, left = np.zeros(rows + 1, np.int64), np.zeros(rows, np.bool_)
    _lay_out(data, offsets, *tags, *entities, max_indented_lists, _CLASSES, _CODES, out, ends, left)
    return LaidOut(out[: ends[-1]].copy(), ends, left)


def _classes() -> NDArray[np.uint8]:
    kinds = np.full(256, _PLAIN, np.uint8)
    kinds[[ord(space) for space in " \n\t\r\f"]] = _SPACE
    kinds[ord("<")], kinds[ord("&")] = _TAG, _ENTITY
    return kinds


def _codes() -> NDArray[np.uint8]:
    """1 to 62 for what can stand in a name."""
    codes = np.zeros(256, np.uint8)
    for code, character in enumerate(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", 1):
        codes[character] = code
    return codes


_CLASSES, _CODES = frozen(_classes(), np.uint8), frozen(_codes(), np.uint8)


@kernel(lambda: lay_out(*TEXT, name_table({"a": 1}), name_table({"a": 1}), max_indented_lists=1))
def _lay_out(
    data: Bytes,
    offsets: Offsets,
    tag_keys: NDArray[np.uint64],
    tag_values: NDArray[np.uint64],
    entity_keys: NDArray[np.uint64],
    entity_values: NDArray[np.uint64],
    max_indented_lists: Int,
    classes: Bytes,
    codes: Bytes,
    out: Bytes,
    ends: Offsets,
    left: NDArray[np.bool_],
) -> None:
    lists = np.empty(MAX_LISTS, np.int64)
    to: Int = 0
    at: Int = 0
    end: Int = 0
    for row in range(offsets.size - 1):
        at, end = offsets[row], offsets[row + 1]
        base = to
        act: Int = _END
        width: Int = 0
        marker: Int = _BULLET  # its number; what waits is told by has_marker
        list_start: Int = 1
        depth = items = gap = breaks = 0
        indent: Int = 0
        has_marker = is_begun = has_space = is_pre = False
        is_row = is_cell = is_line = has_cells = False
        is_first = False  # the next character of <pre> is its first
        cells = 0
        block = content = to
        is_left = False
        while True:
            # Text up to the next tag, one character or run of plain bytes at a time.
            act = _END
            while at < end:
                kind = classes[data[at]]
                width = 0  # of a character that is not copied; 0 copies a run
                word = U64(0)
                if kind == _SPACE and not is_pre:
                    has_space = True
                    at += 1
                    continue
                if kind == _TAG:
                    follower = data[at + 1] if at + 1 < end else 0
                    second = data[at + 2] if at + 2 < end else 0
                    is_closing = follower == _SLASH
                    if _is_letter(second if is_closing else follower):
                        name = at + 2 if is_closing else at + 1
                        close = _tag_end(data, name + 1, end)
                        key, length = _name(data, name, close, codes)
                        if length < 0:
                            is_left = True
                            break
                        value = U64(0)
                        if length <= MAX_NAME:
                            value = _find(tag_keys, tag_values, key)
                        act = np.int64(value >> U64(8) if is_closing else value & U64(0xFF))
                        if act == NUMBERED:
                            list_start = _list_start(data, name + 2, close)
                            is_left = bool(list_start < 0)
                        at = min(close + 1, end)
                        if act == HIDDEN:
                            is_left = True
                        if act != INLINE or is_left:
                            break
                        act = _END
                        continue
                    if follower == 0x21 or follower == 0x3F or is_closing:
                        is_comment = (
                            follower == 0x21 and second == 0x2D and at + 3 < end and data[at + 3] == 0x2D
                        )
                        at = _comment_end(data, at + 4, end) if is_comment else _bogus_end(data, at + 2, end)
                        continue
                    word, width = U64(0x3C), 1
                    at += 1
                elif kind == _ENTITY:
                    word, width, length = _entity(data, at, end, entity_keys, entity_values, codes)
                    if length == 0:
                        is_left = True
                        break
                    at += length
                    if width == 1 and classes[word] == _SPACE and not is_pre:
                        has_space = True
                        continue

                # Something is visible: what waits before it is written first.
                if is_pre:
                    if is_first:
                        is_first = False
                        if width == 1 and word == U64(0x0A):
                            continue
                        if width == 0 and data[at] == 0x0A:
                            at += 1
                            continue
                elif is_row:
                    if not is_line:
                        is_line = has_cells = True
                        if cells:
                            out[to] = 0x09
                            to += 1
                    elif has_space:
                        out[to] = 0x20
                        to += 1
                elif not is_begun:
                    is_begun = True
                    to = _begin(out, to, base, gap)
                    if has_marker:
                        to = _mark(out, to, indent, marker)
                        has_marker = False
                    gap = 2
                elif breaks:
                    for _ in range(breaks):
                        out[to] = 0x0A
                        to += 1
                elif has_space:
                    out[to] = 0x20
                    to += 1
                has_space = False
                breaks = 0
                if width:
                    for _ in range(width):
                        out[to] = np.uint8(word & U64(0xFF))
                        word >>= U64(8)
                        to += 1
                elif is_pre:
                    while at < end and classes[data[at]] <= _SPACE:
                        out[to] = data[at]
                        to += 1
                        at += 1
                else:
                    while at < end and classes[data[at]] == _PLAIN:
                        out[to] = data[at]
                        to += 1
                        at += 1
            if is_left:
                break

            # The act of the tag.
            if act != _END:
                ends_cell = TABLE <= act <= CELL
                if is_row and not ends_cell:
                    has_space = True  # a cell is one line, whatever it holds
                    continue
                if is_pre and act != PRE_END:
                    if act == BREAK:
                        if not is_first:
                            out[to] = 0x0A
                            to += 1
                        is_first = False
                    continue
                if act == BREAK:
                    breaks += is_begun
                    has_space = False
                    continue
                if act == ROW_END and not is_row and not is_pre:
                    continue
            elif not (is_row or is_pre):
                break
            if is_row:
                if not is_line and is_cell:
                    if cells:
                        out[to] = 0x09
                        to += 1
                    is_line = True
                cells += is_line
                is_line = False
                is_cell = False
                has_space = False
                if act == CELL:
                    is_cell = True
                    continue
                is_row = False
                if has_cells:
                    has_marker = False
                    gap = 2
                else:
                    to = block
                if act == ROW_END:
                    gap = 1
                    continue
            elif is_pre:
                while to > content and out[to - 1] == 0x0A:
                    to -= 1
                judged = _has_text(out, content, to)
                if judged < 0:
                    is_left = True
                    break
                if judged:
                    has_marker = False
                    gap = 2
                else:
                    to = block
            is_begun = has_space = False
            breaks = 0
            if act == _END:
                break
            if act in (BLOCK, TABLE):
                if not has_marker:
                    gap = 2
            elif act == PRE:
                if not has_marker:
                    gap = 2
                is_pre = is_first = True
                block = to
                to = _begin(out, to, base, gap)
                if has_marker:
                    to = _mark(out, to, indent, marker) - 1
                    out[to] = 0x0A
                    to += 1
                content = to
            elif act == PRE_END:
                is_pre = False
            elif act in (LIST, NUMBERED):
                if depth == MAX_LISTS:
                    is_left = True
                    break
                gap = 1 if depth else 2
                lists[depth] = list_start if act == NUMBERED else _BULLET
                depth += 1
                items = 0
            elif act == LIST_END:
                depth = max(depth - 1, 0)
                has_marker = False
                gap = 1 if depth else 2
                items = 1
            elif act == ITEM:
                if items or not depth:
                    gap = 1
                items += 1
                marker = _BULLET
                if depth:
                    marker = lists[depth - 1]
                    if marker >= 0:
                        lists[depth - 1] += 1
                has_marker = True
                indent = 2 * min(depth - 1, max_indented_lists)
            elif act == ITEM_END:
                has_marker = False
                gap = 1 if depth else 2
            elif act == TABLE_END:
                gap = 2
            elif act in (ROW, CELL):
                is_row = True
                is_cell = act == CELL
                is_line = has_cells = False
                cells = 0
                block = to
                to = _begin(out, to, base, gap)
                if has_marker:
                    to = _mark(out, to, indent, marker)
        if is_left:
            left[row] = True
            to = base
        ends[row + 1] = to


@inlined
def _is_letter(byte: Int) -> bool:
    return bool(0x61 <= (byte | 0x20) <= 0x7A)


@inlined
def _tag_end(data: Bytes, at: Int, end: Int) -> Int:
    """Where the ">" of a tag is, or the end; one inside a quoted value is not."""
    while at < end and data[at] != _CLOSE:
        is_assigned = data[at] == 0x3D
        at += 1
        if is_assigned:
            while at < end and (data[at] == 0x20 or 0x09 <= data[at] <= 0x0D) and data[at] != 0x0B:
                at += 1
            if at < end and (data[at] == 0x22 or data[at] == 0x27):
                quote = data[at]
                at += 1
                while at < end and data[at] != quote:
                    at += 1
                at = min(at + 1, end)
    return at


@inlined
def _name(data: Bytes, at: Int, end: Int, codes: Bytes) -> tuple[np.uint64, Int]:
    """The name of a tag as a key, in lower case, and its length: -1 if it has what only the twin can judge."""
    key = U64(0)
    length = 0
    while at < end and data[at] != _SLASH and data[at] != 0x20 and not 0x09 <= data[at] <= 0x0D:
        byte = data[at]
        if byte < 0x20 or byte >= 0x80:
            return key, -1
        code = codes[byte]
        if code == 0:
            length = MAX_NAME  # and one more: no tag is called so
        elif 27 <= code <= 52:
            code -= 26
        key = key << U64(6) | U64(code)
        length += 1
        at += 1
    return key, length


@inlined
def _find(keys: NDArray[np.uint64], values: NDArray[np.uint64], key: np.uint64) -> np.uint64:
    last = U64(keys.size - 1)
    slot: np.uint64 = ((key * SPREAD) >> U64(32)) & last
    while values[slot] != U64(0) and keys[slot] != key:
        slot = (slot + U64(1)) & last
    found: np.uint64 = values[slot]
    return found


@inlined
def _list_start(data: Bytes, at: Int, end: Int) -> Int:
    """Of <ol>: 1, or N in <ol start="N">; -1 if it says anything else."""
    if at == end:
        return 1
    spelled = b' start="'
    if end - at < 10 or end - at > 18 or data[end - 1] != 0x22:
        return -1
    for i in range(8):
        if data[at + i] != spelled[i]:
            return -1
    number: Int = 0
    for i in range(at + 8, end - 1):
        if not 0x30 <= data[i] <= 0x39:
            return -1
        number = 10 * number + (np.int64(data[i]) - 0x30)
    return number


@inlined
def _comment_end(data: Bytes, at: Int, end: Int) -> Int:
    """Behind the "-->" or "--!>"."""
    while at + 2 < end:
        if data[at] == 0x2D and data[at + 1] == 0x2D:
            if data[at + 2] == _CLOSE:
                return at + 3
            if data[at + 2] == 0x21 and at + 3 < end and data[at + 3] == _CLOSE:
                return at + 4
        at += 1
    return end


@inlined
def _bogus_end(data: Bytes, at: Int, end: Int) -> Int:
    while at < end and data[at] != _CLOSE:
        at += 1
    return min(at + 1, end)


@inlined
def _entity(
    data: Bytes,
    at: Int,
    end: Int,
    keys: NDArray[np.uint64],
    values: NDArray[np.uint64],
    codes: Bytes,
) -> tuple[np.uint64, Int, Int]:
    """What the "&" at `at` begins: the bytes in a word, their number, and how many it takes; 0 if the twin must."""
    follower = data[at + 1] if at + 1 < end else 0x20
    if follower == 0x20 or follower == 0x0A or follower == 0x09 or follower == 0x0C:
        return U64(0x26), 1, 1
    if follower == 0x3C or follower == 0x26 or follower == 0x3B:
        return U64(0x26), 1, 1
    i = at + 1
    if follower == 0x23:
        i += 1
        is_hex = i < end and (data[i] | 0x20) == 0x78
        i += is_hex
        first = i
        code: Int = 0
        while i < end and i - first < 7 and data[i] != 0x3B:
            byte = np.int64(data[i])
            if 0x30 <= byte <= 0x39:
                code = code * (16 if is_hex else 10) + (byte - 0x30)
            elif is_hex and 0x61 <= (byte | 0x20) <= 0x66:
                code = code * 16 + ((byte | 0x20) - 0x57)
            else:
                return U64(0), 0, 0
            i += 1
        if i in (first, end) or data[i] != 0x3B:
            return U64(0), 0, 0
        length = i + 1 - at
        if 0x20 <= code < 0x7F or code == 0x09 or code == 0x0A:
            return U64(code), 1, length
        if 0xA0 <= code < 0x800:
            return U64(0xC0 | code >> 6 | (0x80 | code & 0x3F) << 8), 2, length
        if 0x800 <= code < 0xD800 or 0xE000 <= code < 0xFDD0:
            return (
                U64(0xE0 | code >> 12 | (0x80 | code >> 6 & 0x3F) << 8 | (0x80 | code & 0x3F) << 16),
                3,
                length,
            )
        return U64(0), 0, 0
    key = U64(0)
    while i < end and i - at <= MAX_NAME and codes[data[i]] != 0:
        key = key << U64(6) | U64(codes[data[i]])
        i += 1
    if i == end or data[i] != 0x3B:
        return U64(0), 0, 0
    value = _find(keys, values, key)
    if value == U64(0):
        return U64(0), 0, 0
    return value >> U64(8), np.int64(value & U64(0xFF)), i + 1 - at


@inlined
def _begin(out: Bytes, to: Int, base: Int, gap: Int) -> Int:
    """The newlines between two blocks."""
    if to > base:
        out[to] = 0x0A
        to += 1
        if gap != 1:
            out[to] = 0x0A
            to += 1
    return to


@inlined
def _mark(out: Bytes, to: Int, indent: Int, number: Int) -> Int:
    for _ in range(indent):
        out[to] = 0x20
        to += 1
    if number < 0:
        out[to] = 0x2D
    else:
        rest = number // 10
        while rest:
            to += 1
            rest //= 10
        i = to
        while True:
            out[i] = 0x30 + number % 10
            number //= 10
            if not number:
                break
            i -= 1
        to += 1
        out[to] = 0x2E
    out[to + 1] = 0x20
    return to + 2


@inlined
def _has_text(out: Bytes, first: Int, end: Int) -> Int:
    """Is anything but white space there? -1 where only Unicode's tables can tell."""
    judged = 0
    for i in range(first, end):
        byte = out[i]
        if byte >= 0x80:
            judged = -1
        elif byte > 0x20 or byte < 0x09 or 0x0E <= byte < 0x1C:
            return 1
    return judged

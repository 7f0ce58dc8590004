"""Columns of HTML fragments laid out as plain text, in one pass over their bytes.

    html  ─ text ──────────── visible bytes, white space collapsed ─> out
          ├ tag ── its act ── ends or begins a block, a line, a cell
          └ entity ────────── its character

What a block, a list or a table looks like, and which tags make one, is said in `tokmill.sources.posts`.

A block is written at once, with the blank line and the marker before it;
where it can turn out to be without text (code, rows of a table), `block` is where to return to.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.htmlentities import (
    CHUNK,
    NAME_CODES,
    Entities,
    Names,
    entity_at,
    find_name,
    name_table,
    space_width,
)
from tokmill.kernels.jit import TEXT, Bytes, Int, Offsets, frozen, frozen_text, inlined, kernel

# What a tag does. An inline tag does nothing.
INLINE, BLOCK, BREAK, PRE, PRE_END, LIST, NUMBERED, LIST_END = 0, 1, 2, 3, 4, 5, 6, 7
ITEM, ITEM_END, TABLE, TABLE_END, ROW, ROW_END, CELL = 8, 9, 10, 11, 12, 13, 14
HIDDEN = 15  # dropped with all it holds
_END = 16  # of the fragment

_MAX_START_DIGITS = 9
# Where `start` of <ol> is looked for, in characters from the "<"
_MAX_TAG = 200
# <li>x becomes two newlines, 16 spaces, a number of 10 digits with its point and space, a newline and x.
_MAX_GROWTH = 8

U64 = np.uint64
_PLAIN, _SPACE, _TAG, _ENTITY = 0, 1, 2, 3
_BULLET = -1
_SLASH, _CLOSE = 0x2F, 0x3E


def _no_entities() -> Entities:
    return Entities(name_table({"a": 1}), frozen(np.zeros(1, np.int32), np.int32))


def lay_out(
    data: Bytes, offsets: Offsets, tags: Names, entities: Entities, *, max_indented_lists: int
) -> tuple[Bytes, Offsets]:
    """`tags`: the act of an opening tag, and that of a closing one times 256, by names in lower case."""
    data, offsets, rows = frozen_text(data, offsets)
    out = np.empty(_MAX_GROWTH * int(offsets[-1] - offsets[0]) + 64, np.uint8)
    lists = np.empty(int(np.diff(offsets).max(initial=0)) // len("<ul>") + 1, np.int64)
    ends = np.zeros(rows + 1, np.int64)
    _lay_out(
        data,
        offsets,
        *tags,
        *entities.names,
        entities.controls,
        max_indented_lists,
        _CLASSES,
        NAME_CODES,
        _FOLDED_CODES,
        lists,
        out,
        ends,
    )
    return out[: ends[-1]].copy(), ends


def _classes() -> NDArray[np.uint8]:
    kinds = np.full(256, _PLAIN, np.uint8)
    kinds[[ord(space) for space in " \n\t\r\f"]] = _SPACE
    kinds[ord("<")], kinds[ord("&")] = _TAG, _ENTITY
    return kinds


_CLASSES = frozen(_classes(), np.uint8)
_FOLDED_CODES = frozen(
    np.where((NAME_CODES > 26) & (NAME_CODES <= 52), NAME_CODES - 26, NAME_CODES), np.uint8
)
_START = frozen(np.frombuffer(b"start", np.uint8), np.uint8)


@kernel(lambda: lay_out(*TEXT, name_table({"a": 1}), _no_entities(), max_indented_lists=1))
def _lay_out(
    data: Bytes,
    offsets: Offsets,
    tag_keys: NDArray[np.uint64],
    tag_values: NDArray[np.uint64],
    entity_keys: NDArray[np.uint64],
    entity_values: NDArray[np.uint64],
    controls: NDArray[np.int32],
    max_indented_lists: Int,
    classes: Bytes,
    codes: Bytes,
    folded_codes: Bytes,
    lists: Offsets,
    out: Bytes,
    ends: Offsets,
) -> None:
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
                        letters, name_end = _short_name(data, name, end, folded_codes)
                        if name_end < end and (data[name_end] == _CLOSE or data[name_end] == 0x20):
                            value = find_name(tag_keys, tag_values, letters)
                        else:
                            value, name_end = _tag(data, name, end, tag_keys, tag_values, folded_codes)
                        act = np.int64(value >> U64(8) if is_closing else value & U64(0xFF))
                        if act == HIDDEN:
                            at = _hidden_end(data, name, name_end, end, folded_codes)
                            continue
                        close = _tag_end(data, name + 1, end)
                        if act == NUMBERED:
                            list_start = _list_start(data, name_end, close, folded_codes)
                        at = min(close + 1, end)
                        if act != INLINE:
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
                    word, width, at = entity_at(data, at, end, entity_keys, entity_values, controls, codes)
                    if width == 0:
                        continue
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
                if _has_text(out, content, to):
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
def _short_name(data: Bytes, at: Int, end: Int, codes: Bytes) -> tuple[np.uint64, Int]:
    """The key of a name that fits a word, as nearly all do, and where it ends."""
    letters = U64(0)
    last = min(at + CHUNK - 1, end)
    while at < last and codes[data[at]] != 0:
        letters = letters << U64(6) | U64(codes[data[at]])
        at += 1
    return letters, at


@inlined
def _tag(
    data: Bytes,
    at: Int,
    end: Int,
    keys: NDArray[np.uint64],
    values: NDArray[np.uint64],
    codes: Bytes,
) -> tuple[np.uint64, Int]:
    """The value of the tag whose name begins at `at`, in any case, and where the name ends."""
    before = letters = value = U64(0)
    length = 0
    is_known, is_folded = True, False
    while at < end and data[at] != _SLASH and data[at] != _CLOSE:
        code: Int = codes[data[at]]
        width: Int = 1
        if code == 0:
            if space_width(data, at, end):
                break
            code, width = _folded(data, at, end)
            is_folded |= width == 2
            is_known &= code != 0
        letters = letters << U64(6) | U64(code)
        length += 1
        at += width
        if length % CHUNK == 0 and is_known:
            value = find_name(keys, values, before | letters)
            is_known = value != U64(0)
            before, letters = value << U64(6 * CHUNK), U64(0)
    value = find_name(keys, values, before | letters) if is_known else U64(0)
    if value == U64(HIDDEN):
        return value if at < end else U64(0), at
    return U64(0) if is_folded else value, at


@inlined
def _folded(data: Bytes, at: Int, end: Int) -> tuple[Int, Int]:
    """The code of a letter outside ASCII that has its other case there, and its number of bytes.

    The Kelvin sign is a k in any name; the i without a dot,
    that with one and the long s count in hidden tags alone.
    """
    if at + 2 < end and data[at] == 0xE2 and data[at + 1] == 0x84 and data[at + 2] == 0xAA:
        return 11, 3
    if at + 1 < end and data[at] == 0xC4 and (data[at + 1] == 0xB0 or data[at + 1] == 0xB1):
        return 9, 2
    if at + 1 < end and data[at] == 0xC5 and data[at + 1] == 0xBF:
        return 19, 2
    return 0, 1


@inlined
def _spells(data: Bytes, at: Int, end: Int, word: Bytes, first: Int, last: Int, codes: Bytes) -> Int:
    """Behind the letters of `word[first:last]` in any case, or -1 if `at` begins otherwise."""
    while first < last:
        width: Int = 1
        wanted_width: Int = 1
        code: Int = codes[data[at]] if at < end else 0
        wanted: Int = codes[word[first]]
        if code == 0:
            code, width = _folded(data, at, end)
        if wanted == 0:
            wanted, wanted_width = _folded(word, first, last)
        if code != wanted:
            return -1
        at += width
        first += wanted_width
    return at


@inlined
def _hidden_end(data: Bytes, name: Int, at: Int, end: Int, codes: Bytes) -> Int:
    """Behind the tag that closes what the one with the name `data[name:at]` opened."""
    name_end = at
    while at + 1 < end:
        if data[at] == 0x3C and data[at + 1] == _SLASH:
            behind = _spells(data, at + 2, end, data, name, name_end, codes)
            if behind >= 0:
                return _bogus_end(data, behind, end)
        at += 1
    return end


@inlined
def _list_start(data: Bytes, at: Int, end: Int, codes: Bytes) -> Int:
    """Of <ol>: N of the first `start=N` among its first characters, else 1."""
    stop, characters = at, len("<ol")
    while stop < end:
        characters += (data[stop] & 0xC0) != 0x80
        if characters > _MAX_TAG:
            break
        stop += 1
    while at < stop:
        width = space_width(data, at, stop)
        if width:
            i = _spells(data, at + width, stop, _START, 0, _START.size, codes)
            i = _skip_space(data, i, stop)
            if 0 <= i < stop and data[i] == 0x3D:
                i = _skip_space(data, i + 1, stop)
                if i < stop and (data[i] == 0x22 or data[i] == 0x27):
                    i += 1
                first, number = i, np.int64(0)
                while i < stop and i - first < _MAX_START_DIGITS and 0x30 <= data[i] <= 0x39:
                    number = 10 * number + (np.int64(data[i]) - 0x30)
                    i += 1
                if i > first:
                    return number
        at += max(width, 1)
    return 1


@inlined
def _skip_space(data: Bytes, at: Int, end: Int) -> Int:
    while 0 <= at < end:
        width = space_width(data, at, end)
        if width == 0:
            break
        at += width
    return at


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
def _has_text(out: Bytes, first: Int, end: Int) -> bool:
    """Is anything but white space there?"""
    while first < end:
        width = space_width(out, first, end)
        if width == 0:
            return True
        first += width
    return False

"""Where a text may be cut: at the ends of sentences and of lines.

    cut_spans        spans  -> what lies between the first and the last boundary in each

    … and so on. │The passage begins.  It has │a sentence more. It ends│ here. …
                 └──────── cut ────────────────────────────────┘

    │ in the span, or right beside it            a boundary: the first byte of a sentence

A sentence ends with a stop, perhaps closing quotes or brackets, and a space (none after 。). A full stop ends
none if it belongs to an abbreviation or an initial, or if the next word is in lower case. A line ends at its
newline; not in the middle of wrapped prose: after a long line without a stop, or between a word and a word in
lower case. Where in doubt there is no boundary, and less is cut.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import (
    HASHES,
    ROWS,
    TEXT,
    Bytes,
    Int,
    Offsets,
    code_at,
    frozen,
    frozen_text,
    holds,
    raw_kernel,
    raw_step,
    start_before,
)

Hashes = NDArray[np.uint64]
Places = NDArray[np.int64]

# What a code point is to a boundary, in `kinds`.
OTHER, SPACE, LOWER, WORD, STOP, CLOSER, FULL_STOP_OF_NO_SPACE = 0, 1, 2, 3, 4, 5, 6

# A line this long that ends in no punctuation is taken for wrapped prose, and its end for no boundary.
# Wrapped text has lines of 60 to 80; 50 leaves room for the last word.
WRAPPED_BYTES = 50

# Brackets and quotes after a full stop, in bytes; a million of them end no sentence.
_MOST_CLOSERS = 16

DOT, NEWLINE, COMMA, BAR, DASH, PLUS, BLANK = 46, 10, 44, 124, 45, 43, 32
SEMICOLON, OPEN_BRACE, CLOSE_BRACE, COLON, MORE = 59, 123, 125, 58, 62

U64 = np.uint64
I64 = np.int64


def cut_spans(
    data: Bytes,
    offsets: Offsets,
    kinds: NDArray[np.uint8],
    abbreviations: Hashes,
    rows: Places,
    starts: Places,
    ends: Places,
) -> tuple[Places, Places]:
    """Of each span the bytes from one boundary to another that hold no word outside it;
    an empty piece if there are none.

    kinds is per code point; abbreviations are packed little-endian with their full stop, up to 8 bytes,
    sorted.
    """
    data, offsets, _ = frozen_text(data, offsets)
    cuts = np.zeros(rows.size, np.int64), np.zeros(rows.size, np.int64)
    _cut_spans(
        data,
        offsets,
        frozen(kinds, np.uint8),
        frozen(abbreviations, np.uint64),
        frozen(rows, np.int64),
        frozen(starts, np.int64),
        frozen(ends, np.int64),
        *cuts,
    )
    return cuts


@raw_kernel(lambda: cut_spans(*TEXT, np.zeros(256, np.uint8), HASHES, ROWS, ROWS, ROWS))
def _cut_spans(
    data: Bytes,
    offsets: Offsets,
    kinds: NDArray[np.uint8],
    abbreviations: Hashes,
    rows: Places,
    starts: Places,
    ends: Places,
    cut_starts: Places,
    cut_ends: Places,
) -> None:
    for span in range(rows.size):
        begin, end = offsets[rows[span]], offsets[rows[span] + 1]
        start, stop = begin + starts[span], begin + ends[span]
        # Between the words next to the span there is nothing that anybody would miss.
        at: Int = start
        while at > begin:
            before = start_before(data, at)
            if _is_word(_kind_at(data, before, kinds)[0]):
                break
            at = before
        while stop < end:
            kind, width = _kind_at(data, stop, kinds)
            if _is_word(kind):
                break
            stop += width
        first: Int = -1
        last: Int = -1
        is_fresh = (
            True  # no word since the first boundary: of several in one gap the last, so blank lines stay
        )
        while at <= stop:
            if _is_boundary(data, at, begin, end, kinds, abbreviations):
                if is_fresh:
                    first = at
                last = at
            if at == end:
                break
            kind, width = _kind_at(data, at, kinds)
            if first >= 0 and _is_word(kind):
                is_fresh = False
            at += width
        if last > max(first, start):
            cut_starts[span], cut_ends[span] = first - begin, last - begin


@raw_step
def _is_boundary(
    data: Bytes, at: Int, begin: Int, end: Int, kinds: NDArray[np.uint8], abbreviations: Hashes
) -> bool:
    """Whether a line or a sentence begins at `at`."""
    if at == begin or at == end:
        return True
    before = start_before(data, at)
    kind = _kind_at(data, before, kinds)[0]
    is_line = data[before] == NEWLINE
    here = _kind_at(data, at, kinds)[0]
    if not is_line and (
        here == SPACE or (kind != SPACE and kind != FULL_STOP_OF_NO_SPACE and kind != CLOSER)
    ):
        return False
    # Back over the spaces, then over what closes a sentence.
    while kind == SPACE:
        if before == begin:
            return True
        previous = start_before(data, before)
        if is_line and data[previous] == NEWLINE:
            return True  # a blank line before
        before = previous
        kind = _kind_at(data, before, kinds)[0]
        if not is_line and data[before] == NEWLINE:
            return False  # in the indentation: the line's own boundary is before it
    next_at: Int = at
    while next_at < end and _kind_at(data, next_at, kinds)[0] == SPACE:
        if is_line and data[next_at] == NEWLINE:
            return True  # a blank line after
        next_at += _kind_at(data, next_at, kinds)[1]
    if next_at >= end:
        return bool(is_line)
    next_kind = _kind_at(data, next_at, kinds)[0]
    last, last_kind = before, kind
    while kind == CLOSER and before > begin and last - before < _MOST_CLOSERS:
        before = start_before(data, before)
        kind = _kind_at(data, before, kinds)[0]
    if kind == FULL_STOP_OF_NO_SPACE:
        return bool(here != CLOSER and here != STOP and here != FULL_STOP_OF_NO_SPACE)
    is_apart = start_before(data, at) != last or is_line
    if kind == STOP and is_apart:
        if data[before] != DOT:
            return True
        return bool(next_kind != LOWER and not _is_abbreviation(data, before, begin, kinds, abbreviations))
    if not is_line:
        return False
    byte = data[last]
    if byte == SEMICOLON or byte == OPEN_BRACE or byte == CLOSE_BRACE or byte == COLON or byte == MORE:
        return True
    byte_after = data[next_at + 1] if next_at + 1 < end else np.uint8(BLANK)
    if data[next_at] == BAR or ((data[next_at] == DASH or data[next_at] == PLUS) and byte_after == BLANK):
        return True
    line: Int = last
    while line > begin and data[line - 1] != NEWLINE and last - line < WRAPPED_BYTES:
        line -= 1
    if last - line >= WRAPPED_BYTES - 1:
        return False
    return not (next_kind == LOWER and (_is_word(last_kind) or data[last] == COMMA))


@raw_step
def _is_abbreviation(
    data: Bytes, dot: Int, begin: Int, kinds: NDArray[np.uint8], abbreviations: Hashes
) -> bool:
    """Mr. and e.g. by the list; J. and U.S. because a lone letter stands before the stop."""
    if dot == begin:
        return False
    before = start_before(data, dot)
    if not _is_word(_kind_at(data, before, kinds)[0]):
        return False
    if data[before] >= 48 and data[before] <= 57:
        return False
    if before == begin:
        return True
    if not _is_word(_kind_at(data, start_before(data, before), kinds)[0]):
        return True
    packed = U64(0)
    at: Int = dot
    while at > begin and data[at - 1] > 32 and dot - at < 8:
        at -= 1
        # brackets and quotes in front are no part of it
        if not _is_word(_kind_at(data, _character_at(data, at), kinds)[0]) and data[at] != DOT:
            at += 1
            break
    if dot + 1 - at > 8:
        return False
    for step in range(dot + 1 - at):
        packed |= U64(data[at + step]) << U64(8 * step)
    return holds(abbreviations, packed)


@raw_step
def _is_word(kind: Int) -> bool:
    return bool(kind == LOWER or kind == WORD)


@raw_step
def _character_at(data: Bytes, at: Int) -> Int:
    while at > 0 and data[at] & np.uint8(0xC0) == np.uint8(0x80):
        at -= 1
    return at


@raw_step
def _kind_at(data: Bytes, at: Int, kinds: NDArray[np.uint8]) -> tuple[Int, Int]:
    """The kind of the character at `at`, and its bytes."""
    code, width = code_at(data, at)
    return I64(kinds[code]), width

"""Characters of a document: counted by kind, NULs and line ends edited.

    measure_text   bytes -> code points, NULs, carriage returns, is it ASCII      every document
    edit_text      bytes -> bytes without NULs, with \\n for \\r\\n and \\r         new buffers
    measure_marks  bytes -> code points, newlines, braces, hashes, ellipses       filters that need no class
    measure_chars  bytes -> code points -> class table -> letters, digits, capitals, spaces, controls,
                   symbols, longest run

The first two look at eight bytes at a time as one word (jit.py).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import (
    CONTROL,
    DIGIT,
    HIGH_BITS,
    LETTER,
    LOW_BITS,
    SPACE,
    SYMBOL,
    TEXT,
    UPPER,
    Bytes,
    Int,
    Offsets,
    code_at,
    frozen,
    frozen_text,
    inlined,
    kernel,
    load_word,
    raw_kernel,
    raw_step,
    store_word,
    zero_marks,
)

NUL, NEWLINE, RETURN = np.uint8(0), np.uint8(10), np.uint8(13)

# numba makes a float of uint64 + int, so every operand of word arithmetic is a uint64 with a name or a cast.
U8, U64 = np.uint8, np.uint64
RETURNS = U64(0x0D0D0D0D0D0D0D0D)
EVEN_BYTES = U64(0x00FF00FF00FF00FF)
EVEN_ONES = U64(0x0001000100010001)

# A byte of a counter word grows by at most one per word, and must not pass 255.
_WORDS_PER_COUNT = 255


class TextMeasures(NamedTuple):
    chars: NDArray[np.int64]
    nuls: NDArray[np.int64]
    carriage_returns: NDArray[np.int64]
    is_ascii: NDArray[np.bool_]


def measure_text(data: Bytes, offsets: Offsets) -> TextMeasures:
    """Count, per row of a valid UTF-8 column, what the normalization and the reports ask for."""
    data, offsets, rows = frozen_text(data, offsets)
    measures = TextMeasures(
        chars=np.empty(rows, np.int64),
        nuls=np.empty(rows, np.int64),
        carriage_returns=np.empty(rows, np.int64),
        is_ascii=np.empty(rows, np.bool_),
    )
    _measure_text(data, offsets, measures.chars, measures.nuls, measures.carriage_returns, measures.is_ascii)
    return measures


def edit_text(data: Bytes, offsets: Offsets, *, strip_nul: bool, lf_newlines: bool) -> tuple[Bytes, Offsets]:
    """The column with the edits asked for, as new buffers whose first offset is 0.

    NULs go first, so a carriage return and a newline with only NULs between them are one line end.
    """
    data, offsets, rows = frozen_text(data, offsets)
    edited = np.empty(offsets[-1] - offsets[0], np.uint8)
    edited_offsets = np.empty(rows + 1, np.int64)
    used = _edit_text(data, offsets, bool(strip_nul), bool(lf_newlines), edited, edited_offsets)
    return edited[:used], edited_offsets


@kernel(lambda: measure_text(*TEXT))
def _measure_text(
    data: Bytes,
    offsets: Offsets,
    chars: NDArray[np.int64],
    nuls: NDArray[np.int64],
    returns: NDArray[np.int64],
    is_ascii: NDArray[np.bool_],
) -> None:
    for row in range(offsets.size - 1):
        at, end = offsets[row], offsets[row + 1]
        length = end - at
        followers: Int = 0
        row_nuls: Int = 0
        row_returns: Int = 0
        seen = U64(0)
        while end - at >= 8:
            words = min((end - at) >> 3, _WORDS_PER_COUNT)
            follower_counts = nul_counts = return_counts = U64(0)
            for word_index in range(words):
                word = load_word(data, at + 8 * word_index)
                seen |= word
                follower_counts += (word >> U64(7)) & ~(word >> U64(6)) & LOW_BITS  # 0b10xxxxxx
                nul_counts += zero_marks(word) >> U64(7)
                return_counts += zero_marks(word ^ RETURNS) >> U64(7)
            followers += _sum_of_bytes(follower_counts)
            row_nuls += _sum_of_bytes(nul_counts)
            row_returns += _sum_of_bytes(return_counts)
            at += 8 * words
        while at < end:
            byte = data[at]
            seen |= U64(byte)
            followers += (byte & np.uint8(0xC0)) == np.uint8(0x80)
            row_nuls += byte == NUL
            row_returns += byte == RETURN
            at += 1
        chars[row] = length - followers
        nuls[row] = row_nuls
        returns[row] = row_returns
        is_ascii[row] = (seen & HIGH_BITS) == U64(0)


@kernel(lambda: edit_text(*TEXT, strip_nul=True, lf_newlines=True))
def _edit_text(
    data: Bytes, offsets: Offsets, strip_nul: bool, lf_newlines: bool, edited: Bytes, edited_offsets: Offsets
) -> int:
    used = 0
    edited_offsets[0] = 0
    for row in range(offsets.size - 1):
        at, end = offsets[row], offsets[row + 1]
        after_return = False
        while at < end:
            if end - at >= 8:
                word = load_word(data, at)
                marks = U64(0)
                if strip_nul:
                    marks |= zero_marks(word)
                if lf_newlines:
                    marks |= zero_marks(word ^ RETURNS)
                if marks == U64(0) and not (after_return and data[at] == NEWLINE):
                    store_word(edited, used, word)
                    after_return = False
                    used += 8
                    at += 8
                    continue
            # Something to edit in these eight bytes, or fewer than eight left: one by one.
            stop = min(at + 8, end)
            while at < stop:
                byte = data[at]
                at += 1
                if byte == NUL and strip_nul:
                    continue
                if byte == RETURN and lf_newlines:
                    edited[used] = NEWLINE
                    used += 1
                    after_return = True
                    continue
                if not (byte == NEWLINE and after_return):
                    edited[used] = byte
                    used += 1
                after_return = False
        edited_offsets[row + 1] = used
    return used


@inlined
def _sum_of_bytes(counts: np.uint64) -> Int:
    pairs = (counts & EVEN_BYTES) + ((counts >> U64(8)) & EVEN_BYTES)
    return np.int64((pairs * EVEN_ONES) >> U64(48))


# --- for filters ---

HASH, DOT, BRACE = 35, 46, 123

# So many bytes are looked at in one go, 32 at the end of a row.
# A sum of twice as many must fit eight bits, so 127 at most; 96 and 128 are equally fast, 64 a tenth slower.
_BLOCK, _REST = 96, 32


class CharMeasures(NamedTuple):
    chars: NDArray[np.int64]
    ascii: NDArray[np.int64]
    letters: NDArray[np.int64]
    upper: NDArray[np.int64]
    digits: NDArray[np.int64]
    spaces: NDArray[np.int64]
    controls: NDArray[np.int64]
    symbols: NDArray[np.int64]
    longest_run: NDArray[np.int64]  # of a character that is not a space


class MarkMeasures(NamedTuple):
    """What needs no class: counted on the bytes alone."""

    chars: NDArray[np.int64]
    newlines: NDArray[np.int64]
    braces: NDArray[np.int64]
    hashes: NDArray[np.int64]
    ellipses: NDArray[np.int64]  # … and, from the left, every three dots


def measure_chars(data: Bytes, offsets: Offsets, classes: NDArray[np.uint16]) -> CharMeasures:
    data, offsets, rows = frozen_text(data, offsets)
    found = np.zeros((len(CharMeasures._fields), rows), np.int64)
    _measure_chars(data, offsets, frozen(classes, np.uint16), found)
    return CharMeasures(*found)


def measure_marks(data: Bytes, offsets: Offsets) -> MarkMeasures:
    data, offsets, rows = frozen_text(data, offsets)
    found = np.zeros((len(MarkMeasures._fields), rows), np.int64)
    _measure_marks(data, offsets, found)
    return MarkMeasures(*found)


@raw_kernel(lambda: measure_marks(*TEXT))
def _measure_marks(data: Bytes, offsets: Offsets, found: NDArray[np.int64]) -> None:
    """Block by block, 16 bytes at a time; only a block where an ellipsis may begin is looked at byte by byte.

    No ellipsis begins in the last two bytes of a row:
    they are left out of the blocks, so that a block can look two bytes ahead.
    """
    for row in range(offsets.size - 1):
        begin, end = offsets[row], offsets[row + 1]
        followers: Int = 0
        newlines: Int = 0
        braces: Int = 0
        hashes: Int = 0
        ellipses: Int = 0
        free: Int = begin  # where the last ellipsis ended
        at: Int = begin
        while at < end - 2:
            if end - 2 - at >= _BLOCK:  # a size that the compiler knows: 0.041 s, not 0.050, for 110 MB
                stop = at + _BLOCK
                counts = _mark_counts(data, at, _BLOCK)
            else:
                stop = min(at + _REST, end - 2)
                counts = _mark_counts(data, at, stop - at)
            followers += counts[0]
            newlines += counts[1]
            braces += counts[2]
            hashes += counts[3]
            if counts[4]:
                for place in range(at, stop):
                    if place >= free and _is_ellipsis(data, place):
                        ellipses += 1
                        free = place + 3
            at = stop
        while at < end:
            byte = data[at]
            followers += (byte & 0xC0) == 0x80
            newlines += byte == NEWLINE
            braces += byte == BRACE
            hashes += byte == HASH
            at += 1
        found[0, row], found[1, row], found[2, row] = end - begin - followers, newlines, braces
        found[3, row], found[4, row] = hashes, ellipses


@raw_step
def _mark_counts(data: Bytes, at: Int, size: Int) -> tuple[Int, Int, Int, Int, Int]:
    """Of so many bytes: those that begin no character, newlines, braces, hashes; and whether ..
    or the ends of … are among them and the two that follow.

    Sums of eight bits, so that LLVM compares and adds 16 bytes at once. They count in twos:
    of a sum of ones it makes a dot product of 32 bits, which takes a tenth longer.
    """
    followers = newlines = braces = hashes = may_be_ellipsis = U8(0)
    for k in range(U64(size)):
        i = U64(at) + k
        byte = data[i]
        followers = U8(followers + 2 * ((byte & U8(0xC0)) == U8(0x80)))
        newlines = U8(newlines + 2 * (byte == U8(NEWLINE)))
        braces = U8(braces + 2 * (byte == U8(BRACE)))
        hashes = U8(hashes + 2 * (byte == U8(HASH)))
        is_dots = (byte == U8(DOT)) & (data[i + U64(1)] == U8(DOT))
        may_be_ellipsis = U8(
            may_be_ellipsis | (is_dots | ((byte == U8(0xE2)) & (data[i + U64(2)] == U8(0xA6))))
        )
    return (
        np.int64(followers >> 1),
        np.int64(newlines >> 1),
        np.int64(braces >> 1),
        np.int64(hashes >> 1),
        np.int64(may_be_ellipsis),
    )


@raw_step
def _is_ellipsis(data: Bytes, at: Int) -> bool:
    if data[at] == DOT:
        return bool(data[at + 1] == DOT and data[at + 2] == DOT)
    return bool(data[at] == 0xE2 and data[at + 1] == 0x80 and data[at + 2] == 0xA6)


@raw_kernel(lambda: measure_chars(*TEXT, np.zeros(256, np.uint16)))
def _measure_chars(
    data: Bytes, offsets: Offsets, classes: NDArray[np.uint16], found: NDArray[np.int64]
) -> None:
    for row in range(offsets.size - 1):
        at: Int = offsets[row]
        end = offsets[row + 1]
        chars = letters = upper = digits = spaces = controls = symbols = 0
        ascii_chars: Int = 0
        run: Int = 0
        longest: Int = 0
        before: Int = -1
        while at < end:
            code, width = code_at(data, at)
            kind = classes[code]
            chars += 1
            ascii_chars += code < 128
            letters += (kind & LETTER) != 0
            upper += (kind & UPPER) != 0
            digits += (kind & DIGIT) != 0
            spaces += (kind & SPACE) != 0
            controls += (kind & CONTROL) != 0
            symbols += (kind & SYMBOL) != 0
            run = run + 1 if code == before else 1
            before = code
            if run > longest and (kind & SPACE) == 0:
                longest = run
            at += width
        found[0, row], found[1, row], found[2, row], found[3, row] = chars, ascii_chars, letters, upper
        found[4, row], found[5, row], found[6, row], found[7, row] = digits, spaces, controls, symbols
        found[8, row] = longest

"""Characters of a document by kind, and its longest run of one character.

bytes ─ code points ─ class table ─> letters, digits, capitals, spaces, controls, symbols, ASCII
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.classes import CONTROL, DIGIT, LETTER, SPACE, SYMBOL, UPPER
from tokmill.kernels.columns import Bytes, Int, Offsets, frozen, frozen_text
from tokmill.kernels.raw import raw_kernel, raw_step

U8, U64 = np.uint8, np.uint64
NEWLINE, HASH, DOT, BRACE = 10, 35, 46, 123

# So many bytes are looked at in one go, 32 at the end of a row. A sum of twice as many must fit eight bits, so 127 at
# most; 96 and 128 are equally fast, 64 a tenth slower.
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


@raw_kernel
def _measure_marks(data: Bytes, offsets: Offsets, found: NDArray[np.int64]) -> None:
    """Block by block, 16 bytes at a time; only a block where an ellipsis may begin is looked at byte by byte.

    No ellipsis begins in the last two bytes of a row: they are left out of the blocks, so that a block can look two
    bytes ahead.
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
    """Of so many bytes: those that begin no character, newlines, braces, hashes; and whether .. or the ends of … are
    among them and the two that follow.

    Sums of eight bits, so that LLVM compares and adds 16 bytes at once. They count in twos: of a sum of ones it makes
    a dot product of 32 bits, which takes a tenth longer.
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


@raw_kernel
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
            code, width = _code_at(data, at)
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


@raw_step
def _code_at(data: Bytes, at: Int) -> tuple[Int, Int]:
    """The code point at `at`, and its bytes."""
    i = U64(at)
    lead = np.int64(data[i])
    if lead < 0x80:
        return lead, 1
    second = np.int64(data[i + U64(1)]) & 0x3F
    if lead < 0xE0:
        return ((lead & 0x1F) << 6) | second, 2
    third = np.int64(data[i + U64(2)]) & 0x3F
    if lead < 0xF0:
        return ((lead & 0x0F) << 12) | (second << 6) | third, 3
    fourth = np.int64(data[i + U64(3)]) & 0x3F
    return ((lead & 0x07) << 18) | (second << 12) | (third << 6) | fourth, 4

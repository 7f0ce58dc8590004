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

U64 = np.uint64
LOW_BITS = U64(0x0101010101010101)
LOW_SEVEN = U64(0x7F7F7F7F7F7F7F7F)
NEWLINES = U64(0x0A0A0A0A0A0A0A0A)
HASHES = U64(0x2323232323232323)
DOTS = U64(0x2E2E2E2E2E2E2E2E)
BRACES = U64(0x7B7B7B7B7B7B7B7B)
E2_BYTES = U64(0xE2E2E2E2E2E2E2E2)

NEWLINE, HASH, DOT, BRACE = 10, 35, 46, 123


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
    """Eight bytes at a time; only where a dot or the first byte of … is among them, byte by byte."""
    for row in range(offsets.size - 1):
        at, end = offsets[row], offsets[row + 1]
        size = end - at
        followers: Int = 0
        newlines: Int = 0
        braces: Int = 0
        hashes: Int = 0
        ellipses = run = 0
        while at < end:
            if end - at >= 8:
                word = _load_word(data, at)
                followers += _ones((word >> U64(7)) & ~(word >> U64(6)) & LOW_BITS)
                newlines += _ones(_zero_marks(word ^ NEWLINES) >> U64(7))
                braces += _ones(_zero_marks(word ^ BRACES) >> U64(7))
                hashes += _ones(_zero_marks(word ^ HASHES) >> U64(7))
                if _zero_marks(word ^ DOTS) | _zero_marks(word ^ E2_BYTES) == U64(0):
                    run = 0
                    at += 8
                    continue
                stop = at + 8
            else:
                stop = end
                for rest in range(at, end):
                    byte = data[rest]
                    followers += (byte & 0xC0) == 0x80
                    newlines += byte == NEWLINE
                    braces += byte == BRACE
                    hashes += byte == HASH
            while at < stop:
                byte = data[at]
                run = run + 1 if byte == DOT else 0
                if run == 3 or (byte == 0xE2 and data[at + 1] == 0x80 and data[at + 2] == 0xA6):
                    ellipses += 1
                    run = 0
                at += 1
        found[0, row], found[1, row], found[2, row] = size - followers, newlines, braces
        found[3, row], found[4, row] = hashes, ellipses


@raw_step
def _ones(marks: np.uint64) -> Int:
    """How many bytes are 1, where each is 0 or 1."""
    return np.int64((marks * LOW_BITS) >> U64(56))


@raw_step
def _load_word(data: Bytes, at: Int) -> np.uint64:
    """Eight bytes. LLVM makes one load of it, because the unsigned index cannot be negative."""
    i = U64(at)
    return (
        U64(data[i])
        | U64(data[i + U64(1)]) << U64(8)
        | U64(data[i + U64(2)]) << U64(16)
        | U64(data[i + U64(3)]) << U64(24)
        | U64(data[i + U64(4)]) << U64(32)
        | U64(data[i + U64(5)]) << U64(40)
        | U64(data[i + U64(6)]) << U64(48)
        | U64(data[i + U64(7)]) << U64(56)
    )


@raw_step
def _zero_marks(word: np.uint64) -> np.uint64:
    """0x80 in each byte that is zero."""
    return ~(((word & LOW_SEVEN) + LOW_SEVEN) | word | LOW_SEVEN)


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

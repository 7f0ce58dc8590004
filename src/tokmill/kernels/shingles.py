"""Text as a row of 32-bit units, which the fingerprints of near duplicates are made of.

    word_units   "Call me Ishmael, 1851!"  ->  call│me│ishmael│0000         one unit per word
    char_units   the same                  ->  c│a│l│l│ │m│e│ │…│0│0        one per character,
                                                                            one space between words

Text comes folded (NFKC and casefold; ASCII as it is: its case is folded here). Letters, marks and decimal
digits make words; whatever else there is separates them. A letter of a script without spaces is a word with
the marks on it, so a run of Han, kana or Thai falls to character n-grams.

Digits are kept, or each is a 0 and the unit says so: its lowest bit is 1 where a digit was replaced, and the
row has a hash of all its digits as written. Rows in which more than MAX_DIGIT_SHARE of the word characters
are digits keep them in any case: there the numbers are what the text says, and tables of one form would be
one table.

A word's unit is twice a polynomial of its bytes mod 2^31, c0 B^(k-1) + … + c(k-1): no carry leaves 32 bits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import TEXT, Bytes, Int, Offsets, decode, frozen, frozen_text, raw_kernel, raw_step

Units = NDArray[np.uint32]

# One in ten: 95 % of encyclopedia articles and 99.8 % of web pages are below it,
# 60 % of problems in arithmetic above.
MAX_DIGIT_SHARE = (1, 10)

# Odd, so that it has an inverse mod 2^32. Nothing up the sleeve: the first 8 hex digits of
# sha256(b"tokmill unit base"), plus one.
UNIT_BASE = 0x8F8DADF3

# What a code point does, in `kinds`.
SEPARATOR, PART, WHOLE, MARK, DIGIT = 0, 1, 2, 3, 4

_ZERO = np.uint32(48)
_SPACE = np.uint32(32)

U32 = np.uint32
U64 = np.uint64
I64 = np.int64


class UnitRows(NamedTuple):
    """Row i has units[offsets[i]:offsets[i + 1]]."""

    units: Units
    offsets: Offsets
    numbers: Units  # per row, a hash of the digits that became zeros, in order


def word_units(data: Bytes, offsets: Offsets, kinds: NDArray[np.uint8], *, keep_digits: bool) -> UnitRows:
    data, offsets, rows = frozen_text(data, offsets)
    # Two bytes a unit at least: a letter and a separator, or one letter beyond ASCII.
    units = np.empty((offsets[-1] - offsets[0] + rows) // 2 + 1, np.uint32)
    unit_offsets, numbers = np.zeros(rows + 1, np.int64), np.empty(rows, np.uint32)
    used = _word_units(
        data,
        offsets,
        _BYTES,
        frozen(kinds, np.uint8),
        int(keep_digits),
        U32(UNIT_BASE),
        *MAX_DIGIT_SHARE,
        units,
        unit_offsets,
        numbers,
    )
    return UnitRows(units[:used], unit_offsets, numbers)


def char_units(data: Bytes, offsets: Offsets, kinds: NDArray[np.uint8], *, keep_digits: bool) -> UnitRows:
    """A character's unit is twice its code point, so the lowest bit is free."""
    data, offsets, rows = frozen_text(data, offsets)
    units = np.empty(offsets[-1] - offsets[0] + rows + 1, np.uint32)
    unit_offsets, numbers = np.zeros(rows + 1, np.int64), np.empty(rows, np.uint32)
    used = _char_units(
        data,
        offsets,
        _BYTES,
        frozen(kinds, np.uint8),
        int(keep_digits),
        U32(UNIT_BASE),
        *MAX_DIGIT_SHARE,
        units,
        unit_offsets,
        numbers,
    )
    return UnitRows(units[:used], unit_offsets, numbers)


def _byte_table() -> NDArray[np.uint8]:
    """Two rows: digits as 0, digits as they are. Per byte, itself in lower case; 0 separates;
    255 is beyond ASCII."""
    table = np.zeros((2, 256), np.uint8)
    for byte in range(128):
        character = chr(byte)
        if character.isalnum():
            table[0, byte] = ord("0") if character.isdigit() else ord(character.lower())
            table[1, byte] = ord(character.lower())
    table[:, 128:] = 255
    return frozen(table.ravel(), np.uint8)


_BYTES = _byte_table()


@raw_kernel(lambda: word_units(*TEXT, np.zeros(256, np.uint8), keep_digits=False))
def _word_units(
    data: Bytes,
    offsets: Offsets,
    table: NDArray[np.uint8],
    kinds: NDArray[np.uint8],
    keep_digits: int,
    base: np.uint32,
    share: int,
    of: int,
    units: Units,
    unit_offsets: Offsets,
    numbers: Units,
) -> Int:
    used: Int = 0
    for row in range(offsets.size - 1):
        first = used
        end = offsets[row + 1]
        # Digits as zeros first; most rows need no second look.
        for keeps_digits in range(keep_digits, 2):
            used = first
            shift = U64(keeps_digits << 8)
            zeroed = U32(1 - keeps_digits)
            digits: Int = 0
            chars: Int = 0
            numbers[row] = U32(0)
            unit = U32(0)
            numeric = U32(0)  # a digit of this word became a 0
            is_open: Int = 0  # 1 within a word
            at = offsets[row]
            while at < end:
                byte = table[shift | U64(data[U64(at)])]
                # Written at every byte and counted where a word ends: no branch to guess.
                units[U64(used)] = _marked(unit, numeric)
                if byte != 255:
                    is_part = I64(byte != 0)
                    is_digit = I64(np.uint8(byte - np.uint8(1)) < np.uint8(57))
                    used += is_open & ~is_part
                    unit = U32(unit * U32(base * U32(is_part)) + U32(byte))
                    numeric = U32(numeric & U32(is_part)) | U32(is_digit) & zeroed
                    if is_digit & I64(zeroed) != 0:
                        numbers[row] = U32(numbers[row] * base + U32(data[U64(at)]))
                    digits += is_digit
                    chars += is_part
                    is_open = is_part
                    at += 1
                    continue
                code, width = decode(data, at)
                kind = kinds[code]
                if kind == SEPARATOR or kind == WHOLE:
                    used += is_open
                    unit, numeric, is_open = U32(0), U32(0), 0
                if kind == SEPARATOR:
                    at += width
                    continue
                if kind == DIGIT:
                    digits += 1
                    numeric = zeroed
                if kind == DIGIT and keeps_digits == 0:
                    numbers[row] = U32(numbers[row] * base + U32(code))
                    unit = U32(unit * base + _ZERO)
                else:
                    unit = _appended(unit, base, data, at, width)
                chars += 1
                is_open = 1
                at += width
                if kind == WHOLE:
                    while at < end and data[at] >= 128:
                        code, width = decode(data, at)
                        if kinds[code] != MARK:
                            break
                        unit = _appended(unit, base, data, at, width)
                        chars += 1
                        at += width
                    units[used] = _marked(unit, numeric)
                    used += 1
                    unit, is_open = U32(0), 0
            if is_open != 0:
                units[used] = _marked(unit, numeric)
                used += 1
            if digits * of <= chars * share:
                break
        unit_offsets[row + 1] = used
    return used


@raw_kernel(lambda: char_units(*TEXT, np.zeros(256, np.uint8), keep_digits=False))
def _char_units(
    data: Bytes,
    offsets: Offsets,
    table: NDArray[np.uint8],
    kinds: NDArray[np.uint8],
    keep_digits: int,
    base: np.uint32,
    share: int,
    of: int,
    units: Units,
    unit_offsets: Offsets,
    numbers: Units,
) -> Int:
    used: Int = 0
    for row in range(offsets.size - 1):
        first = used
        end = offsets[row + 1]
        for keeps_digits in range(keep_digits, 2):
            used = first
            digits: Int = 0
            chars: Int = 0
            numbers[row] = U32(0)
            after_space = False
            at = offsets[row]
            while at < end:
                byte = table[keeps_digits << 8 | I64(data[at])]
                code: Int = I64(byte)
                width: Int = 1
                is_separator = byte == 0
                is_digit = bool(data[at] >= 48 and data[at] <= 57)
                if byte == 255:
                    code, width = decode(data, at)
                    is_separator = kinds[code] == SEPARATOR
                    is_digit = bool(kinds[code] == DIGIT)
                if is_digit and keeps_digits == 0:
                    written = I64(data[at]) if byte != 255 else code
                    numbers[row] = U32(numbers[row] * base + U32(written))
                    code = 48
                at += width
                if is_separator:
                    after_space = bool(used > first)
                    continue
                if after_space:
                    units[used] = U32(2) * _SPACE
                    used += 1
                    after_space = False
                units[used] = U32(2 * code) | U32(is_digit and keeps_digits == 0)
                used += 1
                digits += is_digit
                chars += 1
            if digits * of <= chars * share:
                break
        unit_offsets[row + 1] = used
    return used


@raw_step
def _marked(unit: np.uint32, numeric: np.uint32) -> np.uint32:
    return U32((unit << U32(1)) | numeric)


@raw_step
def _appended(unit: np.uint32, base: np.uint32, data: Bytes, at: Int, width: Int) -> np.uint32:
    for step in range(width):
        unit = U32(unit * base + U32(data[at + step]))
    return unit

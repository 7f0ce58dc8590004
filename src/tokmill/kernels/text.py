"""Counts and small edits on the UTF-8 bytes of a text column.

    measure_text   bytes -> code points, NULs, carriage returns, is it ASCII      nothing is changed
    edit_text      bytes -> bytes without NULs, with \\n for \\r\\n and \\r         new buffers

Both look at eight bytes at a time as one 64-bit word: byte k of the text is bits 8k..8k+7 of the word. A mark
is a word whose byte k is 0x80 where byte k of the text has some property and 0 where it has not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.columns import Bytes, Int, Offsets, frozen_text
from tokmill.kernels.jit import inlined, kernel

NUL, NEWLINE, RETURN = np.uint8(0), np.uint8(10), np.uint8(13)

# numba makes a float of uint64 + int, so every operand of word arithmetic is a uint64 with a name or a cast.
U64 = np.uint64
LOW_BITS = U64(0x0101010101010101)
LOW_SEVEN = U64(0x7F7F7F7F7F7F7F7F)
HIGH_BITS = U64(0x8080808080808080)
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


@kernel
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
                word = _load_word(data, at + 8 * word_index)
                seen |= word
                follower_counts += (word >> U64(7)) & ~(word >> U64(6)) & LOW_BITS  # 0b10xxxxxx
                nul_counts += _zero_marks(word) >> U64(7)
                return_counts += _zero_marks(word ^ RETURNS) >> U64(7)
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


@kernel
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
                word = _load_word(data, at)
                marks = U64(0)
                if strip_nul:
                    marks |= _zero_marks(word)
                if lf_newlines:
                    marks |= _zero_marks(word ^ RETURNS)
                if marks == U64(0) and not (after_return and data[at] == NEWLINE):
                    _store_word(edited, used, word)
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
def _load_word(data: Bytes, at: Int) -> np.uint64:
    """Eight bytes as one little-endian word. LLVM makes one load of it, because the unsigned index cannot
    be negative and so needs no wrap-around."""
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


@inlined
def _store_word(data: Bytes, at: Int, word: np.uint64) -> None:
    i = U64(at)
    data[i] = np.uint8(word)
    data[i + U64(1)] = np.uint8(word >> U64(8))
    data[i + U64(2)] = np.uint8(word >> U64(16))
    data[i + U64(3)] = np.uint8(word >> U64(24))
    data[i + U64(4)] = np.uint8(word >> U64(32))
    data[i + U64(5)] = np.uint8(word >> U64(40))
    data[i + U64(6)] = np.uint8(word >> U64(48))
    data[i + U64(7)] = np.uint8(word >> U64(56))


@inlined
def _zero_marks(word: np.uint64) -> np.uint64:
    """0x80 in each byte that is zero, exactly (the shorter trick also marks a 1 above a 0)."""
    return ~(((word & LOW_SEVEN) + LOW_SEVEN) | word | LOW_SEVEN)


@inlined
def _sum_of_bytes(counts: np.uint64) -> Int:
    pairs = (counts & EVEN_BYTES) + ((counts >> U64(8)) & EVEN_BYTES)
    return np.int64((pairs * EVEN_ONES) >> U64(48))

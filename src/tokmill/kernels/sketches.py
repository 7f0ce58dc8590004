"""Sketches of one bit for each position: in how many of them two rows differ.

    one[left[i]]     0110…   ─┐
    other[right[i]]  0101…   ─┴─ xor ─ bits that are set, counted in halves, quarters, bytes ─> 2

Rows are taken where they lie: nothing is copied for a pair.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import ROWS, Int, frozen, raw_kernel, raw_step

Bits = NDArray[np.uint64]
Rows = NDArray[np.int64]

U64 = np.uint64


def differing_bits(one: Bits, left: Rows, other: Bits, right: Rows) -> Rows:
    """Of each pair of row numbers."""
    if one.ndim != 2 or one.shape[1:] != other.shape[1:] or left.shape != right.shape:
        raise ValueError(f"rows of {one.shape} and {other.shape}, {left.size} and {right.size} of them")
    for rows, bits in ((left, one), (right, other)):
        if rows.size and not (rows.min() >= 0 and rows.max() < len(bits)):
            raise ValueError(f"a pair has a row beyond the {len(bits)} there are")
    counts = np.empty(left.size, np.int64)
    _differing_bits(
        frozen(one, np.uint64),
        frozen(left, np.int64),
        frozen(other, np.uint64),
        frozen(right, np.int64),
        counts,
    )
    return counts


@raw_kernel(lambda: differing_bits(np.zeros((1, 1), U64), ROWS, np.zeros((1, 1), U64), ROWS))
def _differing_bits(one: Bits, left: Rows, other: Bits, right: Rows, counts: Rows) -> None:
    for pair in range(left.size):
        count: Int = 0
        for word in range(one.shape[1]):
            count += _count_bits(one[left[pair], word] ^ other[right[pair], word])
        counts[pair] = count


@raw_step
def _count_bits(word: np.uint64) -> np.int64:
    word = word - ((word >> U64(1)) & U64(0x5555555555555555))
    word = (word & U64(0x3333333333333333)) + ((word >> U64(2)) & U64(0x3333333333333333))
    word = (word + (word >> U64(4))) & U64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * U64(0x0101010101010101)) >> U64(56))

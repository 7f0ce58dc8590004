"""Which groups of three characters a block of documents has: one bit for each of 65,536 classes of them.

    text ─ characters, each as the least of those that differ from it in case alone ─ three in a row
         ─ hashed to 16 bits ─> a bit of the block ─ all blocks of a shard ─> grams x blocks, a row by gram

A row of the matrix says in which blocks a gram is, so that a question reads a row for each of its grams and
nothing else. Grams do not reach from one document into the next.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import TEXT, Bytes, Int, Offsets, code_at, frozen, frozen_text, raw_kernel, raw_step

GRAMS = 1 << 16  # classes of three characters
FOLDED = 0x1F000  # characters from here on have no case

U64 = np.uint64
_SPREAD = U64(0x9E3779B97F4A7C15)


def mark_trigrams(
    data: Bytes,
    offsets: Offsets,
    blocks: NDArray[np.int64],
    folds: NDArray[np.uint32],
    found: NDArray[np.uint8],
    first: int,
) -> None:
    """`blocks` are the first rows of blocks, and where the last one ends; the first of them is number `first`
    in `found`, which has GRAMS rows: bit b % 8 of byte b // 8 of a gram is that of block b."""
    data, offsets, _ = frozen_text(data, offsets)
    blocks, folds = frozen(blocks, np.int64), frozen(folds, np.uint32)
    _mark(data, offsets, blocks, folds, np.zeros(GRAMS // 64, np.uint64), found, first)


def hash_trigrams(points: NDArray[np.int64]) -> NDArray[np.int64]:
    """The classes of the grams of folded characters."""
    codes = points.astype(np.uint64)
    if len(codes) < 3:
        return np.zeros(0, np.int64)
    joined = codes[:-2] << U64(42) | codes[1:-1] << U64(21) | codes[2:]
    return (joined * _SPREAD >> U64(48)).astype(np.int64)


@raw_step
def _class_of(joined: np.uint64) -> np.uint64:
    return joined * _SPREAD >> U64(48)


@raw_kernel(
    lambda: mark_trigrams(
        *TEXT,
        np.array([0, 1], np.int64),
        np.arange(FOLDED, dtype=np.uint32),
        np.zeros((GRAMS, 1), np.uint8),
        0,
    )
)
def _mark(
    data: Bytes,
    offsets: Offsets,
    blocks: NDArray[np.int64],
    folds: NDArray[np.uint32],
    bits: NDArray[np.uint64],
    found: NDArray[np.uint8],
    first: Int,
) -> Int:
    for block in range(len(blocks) - 1):
        bits[:] = U64(0)
        for row in range(blocks[block], blocks[block + 1]):
            at, end = offsets[row], offsets[row + 1]
            joined, have = U64(0), 0
            while at < end:
                code, size = code_at(data, at)
                at += size
                folded = U64(folds[U64(code)]) if code < FOLDED else U64(code)
                joined = (joined << U64(21) | folded) & U64(0x7FFFFFFFFFFFFFFF)
                have += 1
                if have >= 3:
                    gram = _class_of(joined)
                    bits[gram >> U64(6)] |= U64(1) << (gram & U64(63))
        byte, bit = (first + block) >> 3, np.uint8(1 << ((first + block) & 7))
        for word in range(len(bits)):
            left, number = bits[word], word << 6
            while left:
                if left & U64(1):
                    found[number, byte] |= bit
                left >>= U64(1)
                number += 1
    return 0

"""Odds of words: how much more often one is in what is kept of a page than in what is not.

word ─ hash ─> a table of a power of two ─> sixteenths of a binary logarithm; 0 of a word that is not there
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.htmltree import name_hash
from tokmill.kernels.jit import Int, frozen, raw_step

U64 = np.uint64


class Odds(NamedTuple):
    """A table by the hashes of words, which are odd: 0 is a free place."""

    hashes: NDArray[np.uint64]
    values: NDArray[np.int32]


def word_hash(word: bytes) -> int:
    """Of a word in lower case."""
    return name_hash(word) | 1


def odds_table(odds: dict[int, int]) -> Odds:
    size = 256
    while size < 2 * len(odds):
        size *= 2
    hashes, values = np.zeros(size, np.uint64), np.zeros(size, np.int32)
    for value, number in sorted(odds.items()):
        slot = value >> 32 & size - 1
        while hashes[slot]:
            slot = (slot + 1) & size - 1
        hashes[slot], values[slot] = value, number
    return Odds(frozen(hashes, np.uint64), frozen(values, np.int32))


@raw_step
def odds_of(hashes: NDArray[np.uint64], values: NDArray[np.int32], value: np.uint64) -> Int:
    mask = hashes.size - 1
    slot = np.int64(value >> U64(32)) & mask
    while hashes[slot]:
        if hashes[slot] == value:
            return np.int64(values[slot])
        slot = (slot + 1) & mask
    return np.int64(0)

"""Exact Jaccard similarity of pairs of rows of units.

    both rows of a pair  ->  sets of 64-bit n-gram hashes  ->  how many they share, how many there are in all

The n-grams are those of kernels.minhash: a row with fewer units than n is one n-gram, a row without units has none.
The left row's hashes go into a table of twice their number, then the right row's ask for their place in it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.columns import Int, Offsets, frozen
from tokmill.kernels.raw import raw_kernel, raw_step

# Nothing up the sleeve: sha256(b"tokmill wide shingle base"), made odd.
_BASE = 0xD8F20AA5E0DC853B

U64 = np.uint64
_LEFT, _BOTH, _RIGHT = np.uint8(1), np.uint8(2), np.uint8(3)


class Overlap(NamedTuple):
    shared: NDArray[np.int64]
    either: NDArray[np.int64]


def overlap(
    units: NDArray[np.uint32],
    offsets: Offsets,
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    n: int,
) -> Overlap:
    """`left` and `right` are row numbers, a pair each."""
    rows = offsets.size - 1
    if left.shape != right.shape or n < 1:
        raise ValueError(f"{left.size} and {right.size} rows, n = {n}")
    if left.size and not (min(left.min(), right.min()) >= 0 and max(left.max(), right.max()) < rows):
        raise ValueError(f"a pair has a row beyond the {rows} there are")
    found = Overlap(np.zeros(left.size, np.int64), np.zeros(left.size, np.int64))
    lengths = np.diff(offsets)
    slots = _slots(int((lengths[left] + lengths[right]).max(initial=0)))
    _overlap(
        frozen(units, np.uint32),
        frozen(offsets, np.int64),
        frozen(left, np.int64),
        frozen(right, np.int64),
        n,
        U64(_BASE),
        U64(pow(_BASE, n, 1 << 64)),
        np.empty(slots, np.uint64),
        np.empty(slots, np.uint8),
        *found,
    )
    return found


def _slots(units: int) -> int:
    slots = 16
    while slots < 2 * units:
        slots *= 2
    return slots


@raw_kernel
def _overlap(
    units: NDArray[np.uint32],
    offsets: Offsets,
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    n: int,
    base: np.uint64,
    base_to_n: np.uint64,
    hashes: NDArray[np.uint64],
    marks: NDArray[np.uint8],
    shared: NDArray[np.int64],
    either: NDArray[np.int64],
) -> None:
    for pair in range(left.size):
        total = (
            offsets[left[pair] + 1] - offsets[left[pair]] + offsets[right[pair] + 1] - offsets[right[pair]]
        )
        slots: Int = 16
        while slots < 2 * total:
            slots *= 2
        marks[:slots] = 0
        for side in range(2):
            row = left[pair] if side == 0 else right[pair]
            at, end = offsets[row], offsets[row + 1]
            shingle = U64(0)
            for index in range(at, end):
                shingle = shingle * base + U64(units[index])
                if index - at >= n:
                    shingle -= U64(units[index - n]) * base_to_n
                elif index + 1 == end and index + 1 - at < n:
                    shingle += U64(end - at) * base_to_n  # as if its length came first: it is no n-gram
                elif index + 1 - at < n:
                    continue
                hashed = _mixed(shingle)
                slot: Int = np.int64(hashed & U64(slots - 1))
                while marks[slot] != 0 and hashes[slot] != hashed:
                    slot = (slot + 1) & (slots - 1)
                if marks[slot] == 0:
                    hashes[slot] = hashed
                    marks[slot] = _LEFT if side == 0 else _RIGHT
                    either[pair] += 1
                elif side == 1 and marks[slot] == _LEFT:
                    marks[slot] = _BOTH
                    shared[pair] += 1


@raw_step
def _mixed(word: np.uint64) -> np.uint64:
    """MurmurHash3's last step for 64 bits (public domain, Austin Appleby)."""
    word = (word ^ (word >> U64(33))) * U64(0xFF51AFD7ED558CCD)
    word = (word ^ (word >> U64(33))) * U64(0xC4CEB9FE1A85EC53)
    return word ^ (word >> U64(33))

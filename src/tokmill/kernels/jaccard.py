"""Exact Jaccard similarity of two columns of rows of units, row by row.

    row i of both columns  ->  sets of 64-bit n-gram hashes  ->  how many they share, how many there are in all

The n-grams are those of kernels.minhash: a row with fewer units than n is one n-gram, a row without units has none.
The left row's hashes go into a table of twice their number, then the right row's ask for their place in it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.columns import Offsets, frozen
from tokmill.kernels.raw import raw_kernel, raw_step

# Nothing up the sleeve: sha256(b"tokmill wide shingle base"), made odd.
_BASE = 0xD8F20AA5E0DC853B

U64 = np.uint64
_LEFT, _BOTH, _RIGHT = np.uint8(1), np.uint8(2), np.uint8(3)


class Overlap(NamedTuple):
    shared: NDArray[np.int64]
    either: NDArray[np.int64]


def overlap(
    left: NDArray[np.uint32],
    left_offsets: Offsets,
    right: NDArray[np.uint32],
    right_offsets: Offsets,
    n: int,
) -> Overlap:
    if left_offsets.size != right_offsets.size or n < 1:
        raise ValueError(f"{left_offsets.size - 1} and {right_offsets.size - 1} rows, n = {n}")
    rows = left_offsets.size - 1
    found = Overlap(np.zeros(rows, np.int64), np.zeros(rows, np.int64))
    units = int((np.diff(left_offsets) + np.diff(right_offsets)).max(initial=0))
    slots = _slots(units)
    _overlap(
        frozen(left, np.uint32),
        frozen(left_offsets, np.int64),
        frozen(right, np.uint32),
        frozen(right_offsets, np.int64),
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
    left: NDArray[np.uint32],
    left_offsets: Offsets,
    right: NDArray[np.uint32],
    right_offsets: Offsets,
    n: int,
    base: np.uint64,
    base_to_n: np.uint64,
    hashes: NDArray[np.uint64],
    marks: NDArray[np.uint8],
    shared: NDArray[np.int64],
    either: NDArray[np.int64],
) -> None:
    for row in range(left_offsets.size - 1):
        units = left_offsets[row + 1] - left_offsets[row] + right_offsets[row + 1] - right_offsets[row]
        slots = 16
        while slots < 2 * units:
            slots *= 2
        for slot in range(slots):
            marks[slot] = np.uint8(0)
        for side in range(2):
            column = left if side == 0 else right
            at = left_offsets[row] if side == 0 else right_offsets[row]
            end = left_offsets[row + 1] if side == 0 else right_offsets[row + 1]
            shingle = U64(0)
            for index in range(at, end):
                shingle = shingle * base + U64(column[index])
                if index - at >= n:
                    shingle -= U64(column[index - n]) * base_to_n
                elif index + 1 == end and index + 1 - at < n:
                    shingle += U64(end - at) * base_to_n  # as if its length came first: it is no n-gram
                elif index + 1 - at < n:
                    continue
                hashed = _mixed(shingle)
                slot = np.int64(hashed & U64(slots - 1))
                while marks[slot] != 0 and hashes[slot] != hashed:
                    slot = (slot + 1) & (slots - 1)
                if marks[slot] == 0:
                    hashes[slot] = hashed
                    marks[slot] = _LEFT if side == 0 else _RIGHT
                    either[row] += 1
                elif side == 1 and marks[slot] == _LEFT:
                    marks[slot] = _BOTH
                    shared[row] += 1


@raw_step
def _mixed(word: np.uint64) -> np.uint64:
    """MurmurHash3's last step for 64 bits (public domain, Austin Appleby)."""
    word = (word ^ (word >> U64(33))) * U64(0xFF51AFD7ED558CCD)
    word = (word ^ (word >> U64(33))) * U64(0xC4CEB9FE1A85EC53)
    return word ^ (word >> U64(33))

"""MinHash by separate permutations, the way that was not kept:
h_i(x) = (a_i x + b_i) mod 2^32, mixed, the least of each.

Same units and shingles as tokmill.kernels.minhash, so that bench/neardup.py compares the sketches alone.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from tokmill.duplicates.near import NearOptions
from tokmill.duplicates.shingling import unit_batches
from tokmill.kernels.minhash import SHINGLE_BASE

U32 = np.uint32


def permutation_signatures(texts: Any, options: NearOptions) -> NDArray[np.uint32]:
    draw = np.random.Generator(np.random.PCG64(1))
    factors = draw.integers(0, 1 << 32, options.positions, np.uint32) | U32(1)
    addends = draw.integers(0, 1 << 32, options.positions, np.uint32)
    values = np.full((len(texts), options.positions), 0xFFFFFFFF, np.uint32)
    for start, part in unit_batches(texts, options.unit, keep_digits=False):
        _sketch(
            part.units,
            part.offsets,
            options.ngram,
            U32(SHINGLE_BASE),
            U32(pow(SHINGLE_BASE, options.ngram, 1 << 32)),
            factors,
            addends,
            values[start : start + len(part.offsets) - 1],
        )
    return values


def _sketch_rows(
    units: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    n: int,
    base: np.uint32,
    base_to_n: np.uint32,
    factors: NDArray[np.uint32],
    addends: NDArray[np.uint32],
    values: NDArray[np.uint32],
) -> None:
    for row in range(offsets.size - 1):
        shingle = U32(0)
        at, end = offsets[row], offsets[row + 1]
        for index in range(at, end):
            shingle = U32(shingle * base + units[index])
            if index - at >= n:
                shingle = U32(shingle - units[index - n] * base_to_n)
            elif index - at + 1 < n and index + 1 < end:
                continue
            word = U32((shingle ^ (shingle >> U32(16))) * U32(0x85EBCA6B))
            word = U32((word ^ (word >> U32(13))) * U32(0xC2B2AE35))
            word = U32(word ^ (word >> U32(16)))
            for position in range(factors.size):
                value = U32(word * factors[position] + addends[position])
                if value < values[row, position]:
                    values[row, position] = value


_sketch = numba.njit(nogil=True)(_sketch_rows)

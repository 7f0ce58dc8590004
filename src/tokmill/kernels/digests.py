"""One digest of all rows, whatever the cut into files or shards: row states (hashing.py) as a polynomial.

    fold_sequence    row states in order -> two residues mod 2^61 - 1            a digest of a run of rows
    join_sequences   digests of two runs -> digest of one after the other        shards, files, the corpus

A corpus has one digest whatever its format or shard layout:

    rows      r0 r1 r2 | r3 | r4 r5          any cut
    digest    D = sum of (r_i + 1) * B^(n-1-i)  mod p,   so   D(left + right) = D(left) * B^|right| + D(right)

Two lanes, each a polynomial over a prime field: two corpora that differ by accident agree in both with
probability about 2^-122. It finds damage and drift; it does not stand against an adversary (the files'
SHA-256 do).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.columns import frozen
from tokmill.kernels.jit import inlined, kernel

Hashes = NDArray[np.uint64]
Digest = tuple[int, int]

MERSENNE_61 = (1 << 61) - 1

# Nothing up the sleeve: first 16 hex digits of sha256(b"tokmill sequence base 0"), and of base 1, mod p.
SEQUENCE_BASES: Digest = (0x1245A028B94A1A67, 0x054C63ED6BEAB3F7)

# numba makes a float of uint64 + int, so every operand of word arithmetic is a uint64 with a name or a cast.
U64 = np.uint64


def fold_sequence(row_hashes: Hashes) -> Digest:
    """The digest of these rows in this order; of no rows, (0, 0)."""
    first, second = _fold_sequence(
        frozen(row_hashes, np.uint64), U64(SEQUENCE_BASES[0]), U64(SEQUENCE_BASES[1])
    )
    return int(first), int(second)


def join_sequences(left: Digest, right: Digest, right_rows: int) -> Digest:
    """The digest of the rows of `left` followed by the `right_rows` rows of `right`."""
    first, second = (
        (before * pow(base, right_rows, MERSENNE_61) + after) % MERSENNE_61
        for before, after, base in zip(left, right, SEQUENCE_BASES, strict=True)
    )
    return first, second


@kernel
def _fold_sequence(
    row_hashes: Hashes, first_base: np.uint64, second_base: np.uint64
) -> tuple[np.uint64, np.uint64]:
    first = second = U64(0)
    for row in range(row_hashes.shape[0]):
        first = _reduced(_times(first, first_base) + _reduced(row_hashes[row, 0]) + U64(1))
        second = _reduced(_times(second, second_base) + _reduced(row_hashes[row, 1]) + U64(1))
    return first, second


# --- arithmetic mod 2^61 - 1 ---


@inlined
def _reduced(value: np.uint64) -> np.uint64:
    prime = U64(0x1FFFFFFFFFFFFFFF)
    value = (value & prime) + (value >> U64(61))
    return value - prime if value >= prime else value


@inlined
def _times(left: np.uint64, right: np.uint64) -> np.uint64:
    """The product of two residues. With l = l1 * 2^31 + l0 and r alike, and 2^61 = 1:

    l * r  =  2 * l1 * r1  +  2^31 * (l1 * r0 + l0 * r1)  +  l0 * r0      every part below 2^62
    """
    low_31, low_30 = U64(0x7FFFFFFF), U64(0x3FFFFFFF)
    left_high, left_low = left >> U64(31), left & low_31
    right_high, right_low = right >> U64(31), right & low_31
    cross = left_high * right_low + left_low * right_high
    return _reduced(
        U64(2) * left_high * right_high
        + (cross >> U64(30))
        + ((cross & low_30) << U64(31))
        + left_low * right_low
    )

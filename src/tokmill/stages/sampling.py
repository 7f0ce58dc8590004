"""Which documents are drawn: decided by identity, never by order or chance.

    draws(documents, seed)      uint64 per document from (seed, doc_id, text): as good as random, the same
                                anywhere
    hash_draws(hashes, seed)    the same of a hash of the text alone: all copies of a text draw one number
    bottom_k(draws, k)          the k smallest: a uniform sample, which merges across chunks and needs one
                                pass
    weighted_keys(draws, w)     -ln(u)/w: the k smallest are a weighted sample (A-ES, Efraimidis & Spirakis
                                2006)
    below_fraction(ids, f)      stable under growth: a document is in or out whatever else is there, and its
                                side of a split, which goes by the same ids, has no part in it
    shuffle_buffer(n, k, size)  which of the first n records a shuffle buffer hands out: near the head, not
                                uniform

A classic reservoir draws a number per record from a generator and so depends on the order in which workers
read. Keeping the k smallest of one number per record has the same distribution and depends on the records
alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels import hashing
from tokmill.schema import string_column

# Two odd constants set the two lanes of the hash apart; the seed moves both.
_LANES = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)
_MASK = (1 << 64) - 1

# Of the finalizer of splitmix64 (Steele et al. 2014), which ends with a shift by 31.
_STIRS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def draws(documents: Any, seed: int, by: Sequence[str] = ("doc_id", "text")) -> NDArray[np.uint64]:
    state = np.empty((documents.num_rows, 2), np.uint64)
    for lane, constant in enumerate(_LANES):
        state[:, lane] = ((seed + 1) * constant) & _MASK
    for name in by:
        hashing.mix_column(*string_column(documents.column(name)), state)
    return np.ascontiguousarray(state[:, 0])


def hash_draws(hashes: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """A uint64 per hash of a text: copies of a text draw the same number."""
    state = hashes[:, 0] + np.uint64((seed + 1) * _LANES[0] & _MASK)
    for shift, factor in _STIRS:
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    return state ^ (state >> np.uint64(31))


def bottom_k(keys: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Indices of the k smallest keys, in row order; of equal keys the earlier row."""
    if len(keys) <= k:
        return np.arange(len(keys))
    return np.sort(np.argsort(keys, kind="stable")[:k])


def weighted_keys(drawn: NDArray[np.uint64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """A weight of zero is never taken while there is anything else."""
    uniform = (drawn.astype(np.float64) + 0.5) / 2.0**64
    with np.errstate(divide="ignore"):
        return np.where(weights > 0, -np.log(np.minimum(uniform, 1 - 2.0**-53)) / weights, np.inf)


def below_fraction(doc_ids: Any, fraction: Decimal, seed: int) -> NDArray[np.bool_]:
    """A hash of the id for samples alone, against the fraction in integer arithmetic: who is held out goes by
    sha256(doc_id), and of those a sample has its fair share."""
    threshold = int(Fraction(fraction) * (1 << 64))
    if threshold >> 64:
        return np.ones(len(doc_ids), np.bool_)
    start = np.frombuffer(hashlib.sha256(f"sample {seed}".encode()).digest()[:16], "<u8")
    state = np.tile(start.astype(np.uint64), (len(doc_ids), 1))
    hashing.mix_column(*string_column(doc_ids), state)
    is_below: NDArray[np.bool_] = state[:, 0] < np.uint64(threshold)
    return is_below


def shuffle_buffer(count: int, k: int, size: int, seed: int) -> NDArray[np.int64]:
    """Records, in order, that leave a buffer of `size` in k draws; of a stream of which `count` were read.

    Each draw takes a random place of the buffer and the next record fills it: k + size - 1 records are looked
    at, the rest of the stream never. Places depend on the seed and the number of the draw alone.
    """
    buffer = list(range(min(size, count)))
    upcoming = len(buffer)
    taken = []
    for number in range(min(k, count)):
        place = _mixed(seed * _LANES[0] + number) * len(buffer) >> 64
        taken.append(buffer[place])
        if upcoming < count:
            buffer[place] = upcoming
            upcoming += 1
        else:
            buffer[place] = buffer[-1]
            buffer.pop()
    return np.array(sorted(taken), np.int64)


def _mixed(value: int) -> int:
    """64 bits that look random."""
    value = (value + _LANES[0]) & _MASK
    for shift, factor in _STIRS:
        value = ((value ^ (value >> shift)) * factor) & _MASK
    return value ^ (value >> 31)

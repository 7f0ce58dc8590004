"""Candidates: documents that share the key of a band, from one partition of (key, document) rows.

    band keys ─ range of keys ─ one partition at a time ─ buckets of equal keys ─> pairs worth comparing

A bucket can hold a million documents, and pairs of all with all would be 5 * 10^11. What is promised instead:

    up to LEADERS + NEIGHBOURS + 1 different fingerprints    every pair
    more than that       every document with the bucket's first LEADERS, and with the NEIGHBOURS before it
    equal fingerprints   each with the first of its equals, and with all that this first is compared with

So a bucket costs at most LEADERS + NEIGHBOURS + 1 pairs per document. The first ones of a bucket are those that the
greedy walk keeps most often; the neighbours are for what lies together, such as versions of one page. A document
that is similar to a kept one but meets it in none of its buckets survives: an error on the side of keeping. The pairs
depend on what is in each bucket and on the order of precedence alone, never on where partitions or batches were cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.buckets import count_links, list_links, repeated

LEADERS, NEIGHBOURS = 8, 8

# Pairs that are listed at a time: 16 MB. Of 4 million rows in large buckets there may be 68 million, 1.1 GB.
_LISTED_PAIRS = 1_000_000


class Pairs(NamedTuple):
    """Document numbers; `a` comes before `b` in keep order."""

    a: NDArray[np.int64]
    b: NDArray[np.int64]


def read_pairs(
    keys: NDArray[np.uint64],
    docs: NDArray[np.int64],
    *,
    digests: NDArray[np.uint64] | None = None,
    ranks: NDArray[np.int64] | None = None,
    leaders: int = LEADERS,
    neighbours: int = NEIGHBOURS,
    most: int = _LISTED_PAIRS,
) -> Iterator[Pairs]:
    """One row per (document, band) of the partition, in any order; key 0 is no key. Some `most` pairs at a time.

    `digests` tell equal fingerprints (without them all count as different); `ranks` are the documents' precedence,
    ties by number (without them the number alone).
    """
    chosen = np.flatnonzero(repeated(keys))
    keys, docs = keys[chosen], docs[chosen]
    ranks = docs if ranks is None else ranks[chosen]
    order = np.lexsort((docs, ranks, keys))
    keys, docs = keys[order], docs[order]
    firsts = _firsts(keys, np.arange(len(keys)) if digests is None else digests[chosen][order])
    links = count_links(keys, firsts, leaders, neighbours)
    start = 0
    while start < len(docs):
        listed = int(links.ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(links.ends, listed + most, side="right")), start + 1)
        earlier, later = list_links(links, start, stop)
        yield Pairs(docs[earlier], docs[later])
        start = stop


def pairs_in_buckets(
    keys: NDArray[np.uint64],
    docs: NDArray[np.int64],
    *,
    digests: NDArray[np.uint64] | None = None,
    ranks: NDArray[np.int64] | None = None,
    leaders: int = LEADERS,
    neighbours: int = NEIGHBOURS,
) -> Pairs:
    """All of them at once."""
    found = list(read_pairs(keys, docs, digests=digests, ranks=ranks, leaders=leaders, neighbours=neighbours))
    nothing = np.empty(0, np.int64)
    return (
        Pairs(*(np.concatenate([nothing, *ends]) for ends in zip(*found, strict=True)))
        if found
        else Pairs(nothing, nothing)
    )


def unique_pairs(a: NDArray[np.int64], b: NDArray[np.int64]) -> Pairs:
    """Sorted by (a, b), each once: the same pair meets in many bands."""
    order = np.lexsort((b, a))
    a, b = a[order], b[order]
    is_new = np.ones(len(a), np.bool_)
    is_new[1:] = (a[1:] != a[:-1]) | (b[1:] != b[:-1])
    return Pairs(a[is_new], b[is_new])


def _firsts(keys: NDArray[np.uint64], digests: NDArray[np.generic]) -> NDArray[np.int64]:
    """For rows sorted by key, the first row with the same key and digest."""
    order = np.lexsort((np.arange(len(keys)), digests, keys))
    is_first = np.ones(len(keys), np.bool_)
    is_first[1:] = (np.diff(keys[order]) != 0) | (digests[order][1:] != digests[order][:-1])
    firsts = np.empty(len(keys), np.int64)
    firsts[order] = order[np.maximum.accumulate(np.where(is_first, np.arange(len(keys)), 0))]
    return firsts

"""Exact numbers of documents, from the least key on. Documents that must not be parted are taken or left as
one, at the key of the first of them:

    keys of single documents, sorted   s s s s s s s s s s s s …
    clusters, each at its key              C     C       C  too large for what is left of a split: passed over
    valid takes                        └───────┘└┘          from the left until it is full
    test takes                                    └──────┘  passed clusters first, if they fit
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.schema import NO_SPLIT
from tokmill.stages.split.keys import Bound, Docs, Keys, Labels


class Quota(NamedTuple):
    """How many documents a split takes from each group (a domain, or all)."""

    split: int
    sizes: list[int]


class Clusters(NamedTuple):
    """In order of their keys: how many documents of each group it has (clusters x groups)."""

    keys: Keys
    documents: NDArray[np.uint32]


class Singles(NamedTuple):
    """Documents that no other is held together with, of one shard: in order of their numbers."""

    group: int
    numbers: Docs
    keys: Keys


# All shards again, each time that it is called: no pass holds more than one of them.
ReadSingles = Callable[[], Iterable[Singles]]

# Keys are as good as random: one in 65,536 shares the upper 16 bits with a bound.
_KEY_BITS = 16
_SHIFT = np.uint64(64 - _KEY_BITS)


class Counted(NamedTuple):
    """Single documents by the upper bits of their keys (groups x 65,536),
    and before each cluster (clusters x groups)."""

    by_bits: Docs
    before: Docs

    def totals(self) -> list[int]:
        found: list[int] = self.by_bits.sum(axis=1).tolist()
        return found


class Allotment(NamedTuple):
    ends: list[list[int]]  # per quota and group: single documents, by key, that it and those before it took
    clusters: Labels  # NO_SPLIT: left over
    short: list[list[int]]  # per quota and group: documents that no unparted cluster could fill


def count_singles(read: ReadSingles, groups: int, cluster_keys: Keys) -> Counted:
    by_bits = np.zeros((groups, 1 << _KEY_BITS), np.int64)
    before = np.zeros((len(cluster_keys) + 1, groups), np.int64)
    for group, _, keys in read():
        by_bits[group] += np.bincount((keys >> _SHIFT).astype(np.int64), minlength=1 << _KEY_BITS)
        # of equal keys the cluster comes first
        places, documents = np.unique(np.searchsorted(cluster_keys, keys, side="right"), return_counts=True)
        before[places, group] += documents
    np.cumsum(before, axis=0, out=before)
    return Counted(by_bits, before[:-1])


def allot(counted: Counted, clusters: Clusters, quotas: Sequence[Quota]) -> Allotment:
    """Each quota walks from the least key and takes what fits."""
    labels = np.full(len(clusters.keys), NO_SPLIT, np.uint8)
    totals = counted.totals()
    at = [0] * len(totals)
    ends, short = [], []
    for split, sizes in quotas:
        left = list(sizes)
        to_go = sum(left)
        for cluster, parts in _waiting(clusters, counted.before, labels):
            if not to_go:
                break
            for group, _, before in parts:  # single documents that come before it
                passed = min(max(before - at[group], 0), left[group])
                at[group] += passed
                left[group] -= passed
                to_go -= passed
            if all(documents <= left[group] for group, documents, _ in parts):
                labels[cluster] = split
                for group, documents, _ in parts:
                    left[group] -= documents
                    to_go -= documents
        for group, total in enumerate(totals):
            taken = min(left[group], total - at[group])
            at[group] += taken
            left[group] -= taken
        ends.append(list(at))
        short.append(left)
    return Allotment(ends, labels, short)


def _waiting(
    clusters: Clusters, before: Docs, labels: Labels
) -> Iterator[tuple[int, list[tuple[int, int, int]]]]:
    """Clusters that no quota took, with (group, documents, singles before it)
    of the groups that they have."""
    for start in range(0, len(labels), _LISTED_CLUSTERS):
        chosen = start + np.flatnonzero(labels[start : start + _LISTED_CLUSTERS] == NO_SPLIT)
        rows = zip(clusters.documents[chosen].tolist(), before[chosen].tolist(), strict=True)
        for cluster, (documents, singles) in zip(chosen.tolist(), rows, strict=True):
            yield (
                cluster,
                [(group, count, singles[group]) for group, count in enumerate(documents) if count],
            )


# A cluster as Python numbers is 300 bytes and more: so many at a time.
_LISTED_CLUSTERS = 1 << 14


def find_bounds(
    read: ReadSingles, counted: Counted, ends: Sequence[Sequence[int]], quotas: Sequence[Quota]
) -> list[list[Bound]]:
    """By group, in order of the quotas: the bound after so many single documents by (key, number)."""
    groups = range(len(counted.by_bits))
    reach = np.cumsum(counted.by_bits, axis=1)
    bits = {
        (group, end): int(np.searchsorted(reach[group], end, side="right"))
        for row in ends
        for group, end in enumerate(row)
        if end < reach[group, -1]
    }
    near = _keys_near(read, {(group, key_bits) for (group, _), key_bits in bits.items()})
    found: dict[tuple[int, int], tuple[int, int]] = {}  # key, and how many equal ones come before the bound
    for (group, end), key_bits in bits.items():
        keys = near[group, key_bits]
        place = end - int(reach[group, key_bits - 1] if key_bits else 0)
        found[group, end] = int(keys[place]), place - int(np.searchsorted(keys, keys[place], side="left"))
    numbers = _numbers_of(read, {(group, *at) for (group, _), at in found.items() if at[1]})

    def bound(split: int, group: int, end: int) -> Bound:
        if (group, end) not in found:
            return Bound(split, None)
        key, equal_before = found[group, end]
        return Bound(split, key, numbers[group, key, equal_before] if equal_before else 0)

    return [
        [bound(quota.split, group, row[group]) for quota, row in zip(quotas, ends, strict=True)]
        for group in groups
    ]


def _keys_near(read: ReadSingles, wanted: AbstractSet[tuple[int, int]]) -> dict[tuple[int, int], Keys]:
    """Of (group, upper bits): all keys that have them, sorted."""
    found: dict[tuple[int, int], list[Keys]] = {place: [] for place in sorted(wanted)}
    for group, _, keys in read() if wanted else ():
        upper = (keys >> _SHIFT).astype(np.int64)
        for place in found:
            if place[0] == group:
                found[place].append(keys[upper == place[1]])
    return {place: np.sort(np.concatenate(parts)) for place, parts in found.items()}


def _numbers_of(
    read: ReadSingles, wanted: AbstractSet[tuple[int, int, int]]
) -> dict[tuple[int, int, int], int]:
    """Of (group, key, n): the number of the n-th document with this key, from 0."""
    seen = dict.fromkeys(sorted(wanted), 0)
    found: dict[tuple[int, int, int], int] = {}
    for group, numbers, keys in read() if wanted else ():
        for place in seen:
            if place[0] == group and place not in found:
                equal = np.flatnonzero(keys == np.uint64(place[1]))
                if seen[place] + len(equal) > place[2]:
                    found[place] = int(numbers[equal[place[2] - seen[place]]])
                seen[place] += len(equal)
    return found

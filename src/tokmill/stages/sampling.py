"""Which documents are drawn and which are held out: decided by identity, never by order or chance.

    draws(documents, seed)      uint64 per document from (seed, doc_id, text): as good as random, the same
                                anywhere
    bottom_k(draws, k)          the k smallest: a uniform sample, which merges across chunks and needs one
                                pass
    weighted_keys(draws, w)     -ln(u)/w: the k smallest are a weighted sample (A-ES, Efraimidis & Spirakis
                                2006)
    below_fraction(ids, f)      stable under growth: a document is in or out whatever else is there, and its
                                side of a split, which goes by the same ids, has no part in it
    shuffle_buffer(n, k, size)  which of the first n records a shuffle buffer hands out: near the head, not
                                uniform

split   hash      key = uint64(sha256(doc_id)[:8])         valid below floor(valid_fraction * 2^64), then test
        counts    key = hash(seed, source, doc_id, text)   the least keys are valid, the next test …
        formula   the same keys, domain by domain          formula_size(n) of n documents
        field     no key: the document says it itself

A classic reservoir draws a number per record from a generator and so depends on the order in which workers
read. Keeping the k smallest of one number per record has the same distribution and depends on the records
alone.

In order of their keys the documents of a split lie together, so a split is known by the `Bound` where it
ends, and a shard can be labelled by itself. Documents that must not be parted are taken or left as one, at
the key of the first of them:

    keys of single documents, sorted   s s s s s s s s s s s s …
    clusters, each at its key              C     C       C  too large for what is left of a split: passed over
    valid takes                        └───────┘└┘          from the left until it is full
    test takes                                    └──────┘  passed clusters first, if they fit

A decimal fraction is exact; growing a corpus never moves a document that is split by hash to the other side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.formats.ids import SPLITS as SPLITS
from tokmill.kernels import hashing
from tokmill.schema import NO_SPLIT, string_column

# Two odd constants set the two lanes of the hash apart; the seed moves both.
_LANES = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)
_MASK = (1 << 64) - 1


# --- draws ---


def draws(documents: Any, seed: int, by: Sequence[str] = ("doc_id", "text")) -> NDArray[np.uint64]:
    state = np.empty((documents.num_rows, 2), np.uint64)
    for lane, constant in enumerate(_LANES):
        state[:, lane] = ((seed + 1) * constant) & _MASK
    for name in by:
        hashing.mix_column(*string_column(documents.column(name)), state)
    return np.ascontiguousarray(state[:, 0])


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
    """64 bits that look random (the finalizer of splitmix64, Steele et al. 2014)."""
    value = (value + _LANES[0]) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


TRAIN, VALID, TEST = range(3)

Keys = NDArray[np.uint64]
Docs = NDArray[np.int64]
Labels = NDArray[np.uint8]


# --- keys ---


def shuffle_keys(doc_ids: Any, text_hashes: Keys, source: str, seed: int) -> Keys:
    """As good as random. Documents that share source, id and text (n × 2 hashes) have one key;
    position parts them.

    The text counts because ids need not be unique: without it the first chapters of a book would be held out.
    """
    start = np.frombuffer(hashlib.sha256(f"split {seed} {source}".encode()).digest()[:16], "<u8")
    state = np.ascontiguousarray(text_hashes ^ start)
    hashing.mix_column(*string_column(doc_ids), state)
    return np.ascontiguousarray(state[:, 0])


# --- labels from bounds ---


class Bound(NamedTuple):
    """Where a split ends: before document `number` of those with this key; None: at the end of all."""

    split: int
    key: int | None
    number: int = 0


def label_keys(keys: Keys, numbers: Docs, bounds: Sequence[Bound], rest: int) -> Labels:
    """The first bound that a document lies before says its split."""
    labels = np.full(len(keys), rest, np.uint8)
    for bound in reversed(bounds):
        if bound.key is None:
            labels[:] = bound.split
        else:
            key = np.uint64(bound.key)
            labels[(keys < key) | ((keys == key) & (numbers < bound.number))] = bound.split
    return labels


# --- how many ---


def formula_size(documents: int) -> int:
    """min(max(10, 5 %), 10 %), both rounded down: of fewer than ten documents none is held out."""
    return min(max(10, documents // 20), documents // 10)


# --- exact numbers ---


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


# --- a field of the document ---

NOWHERE = -1


def spelled_field(metas: Any, field: str) -> list[str | None]:
    """Strings as they are, all else as JSON; None where there is no such key, or a null."""
    found = [None if meta is None else msgspec.json.decode(meta).get(field) for meta in metas.to_pylist()]
    return [
        value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()
        for value in found
    ]


def label_values(values: Sequence[str | None], splits: Mapping[str, Sequence[str]]) -> NDArray[np.int16]:
    """The number of the split that has the value in its list; NOWHERE: none has."""
    number = {value: SPLITS.index(split) for split, wanted in splits.items() for value in wanted}
    return np.array(
        [number.get(value, NOWHERE) if value is not None else NOWHERE for value in values], np.int16
    )


# --- `split` of a recipe, by its method ---


class _Shuffled(msgspec.Struct, frozen=True, kw_only=True, tag_field="method"):
    by: Literal["document", "cluster"]


class HashSplit(_Shuffled, frozen=True, tag="hash"):
    valid_fraction: Decimal
    test_fraction: Decimal

    @property
    def has_test(self) -> bool:
        return self.test_fraction > 0

    def bounds(self) -> tuple[Bound, ...]:
        valid = Fraction(self.valid_fraction)
        held_out = valid + Fraction(self.test_fraction)
        return Bound(VALID, int(valid * (1 << 64))), Bound(TEST, int(held_out * (1 << 64)))


class SplitCounts(msgspec.Struct, frozen=True):
    train: int | None  # None: the rest
    valid: int
    test: int


class CountsSplit(_Shuffled, frozen=True, tag="counts"):
    counts: SplitCounts
    seed: int

    @property
    def has_test(self) -> bool:
        return bool(self.counts.test)


class FormulaSplit(_Shuffled, frozen=True, tag="formula"):
    test: bool
    seed: int

    @property
    def has_test(self) -> bool:
        return self.test


class FieldSplit(msgspec.Struct, frozen=True, kw_only=True, tag_field="method", tag="field"):
    field: str
    values: dict[str, tuple[str, ...]]  # by split
    unknown: Literal["fail", "drop", "train"]

    @property
    def has_test(self) -> bool:
        return bool(self.values["test"])


ShuffledSplit = HashSplit | CountsSplit | FormulaSplit
SplitOptions = ShuffledSplit | FieldSplit

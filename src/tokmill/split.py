"""Which documents are held out: decided by identity, never by order or chance.

    hash      key = uint64(sha256(doc_id)[:8])         valid below floor(valid_fraction * 2^64), then test
    counts    key = hash(seed, source, doc_id, text)   the documents with the least keys are valid, the next test …
    formula   the same keys, domain by domain          formula_size(n) of n documents
    field     no key: the document says it itself

In order of their keys the documents of a split lie together, so a split is known by the `Bound` where it ends, and
a shard can be labelled by itself. Documents that must not be parted are taken or left as one, at the key of the
first of them:

    keys of single documents, sorted   s s s s s s s s s s s s …
    clusters, each at its key              C     C       C          too large for what is left of a split: passed over
    valid takes                        └───────┘└┘                  from the left until it is full
    test takes                                    └──────┘          passed clusters first, if they fit

A decimal fraction is exact; growing a corpus never moves a document that is split by hash to the other side.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.dedup.components import linked
from tokmill.kernels import hashing, sha256
from tokmill.kernels.survivors import join_components
from tokmill.schema import NO_SPLIT, string_column

TRAIN, VALID, TEST = range(3)
SPLITS = ("train", "valid", "test")  # by number

Keys = NDArray[np.uint64]
Docs = NDArray[np.int64]
Labels = NDArray[np.uint8]


# --- keys ---


def hash_keys(doc_ids: Any) -> Keys:
    column = string_column(doc_ids)
    return sha256.sha256_prefixes(column.data, column.offsets)


def shuffle_keys(doc_ids: Any, text_hashes: Keys, source: str, seed: int) -> Keys:
    """As good as random. Documents that share source, id and text (n × 2 hashes) have one key; position parts them.

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


def hash_bounds(valid_fraction: Decimal, test_fraction: Decimal) -> list[Bound]:
    valid = Fraction(valid_fraction)
    return [
        Bound(VALID, int(valid * (1 << 64))),
        Bound(TEST, int((valid + Fraction(test_fraction)) * (1 << 64))),
    ]


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


# --- documents that must not be parted ---


class Together(NamedTuple):
    """Documents that are not alone, ascending, and the first of those that each is held together with."""

    docs: Docs
    firsts: Docs


def hold_together(groups: Iterable[tuple[Docs, NDArray[Any]]]) -> Together:
    """Documents with one name in any of the groups (documents, a name for each); who shares one shares them all."""
    earlier, later = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for docs, names in groups:
        order = np.lexsort((docs, names))
        same = names[order][1:] == names[order][:-1]
        earlier.append(docs[order][:-1][same])
        later.append(docs[order][1:][same])
    found = linked(np.concatenate(earlier), np.concatenate(later))
    roots = join_components(len(found.docs), np.minimum(found.a, found.b), np.maximum(found.a, found.b))
    return Together(found.docs, found.docs[roots])


# --- exact numbers ---


class Quota(NamedTuple):
    """How many documents a split takes from each group (a domain, or all)."""

    split: int
    sizes: list[int]


class Clusters(NamedTuple):
    """In order of their keys: how many documents of which group each has."""

    keys: Keys
    parts: list[list[tuple[int, int]]]  # (group, documents)


class Allotment(NamedTuple):
    ends: list[list[int]]  # per quota and group: single documents, by key, that it and those before it took
    clusters: Labels  # NO_SPLIT: left over
    short: list[list[int]]  # per quota and group: documents that no unparted cluster could fill


def allot(singles: Sequence[Keys], clusters: Clusters, quotas: Sequence[Quota]) -> Allotment:
    """`singles` are sorted keys by group. Each quota walks from the least key and takes what fits."""
    labels = np.full(len(clusters.parts), NO_SPLIT, np.uint8)
    # of equal keys the cluster comes first
    places = [np.searchsorted(keys, clusters.keys, side="left").tolist() for keys in singles]
    at = [0] * len(singles)
    ends, short = [], []
    for split, sizes in quotas:
        left = list(sizes)
        to_go = sum(left)
        for cluster in np.flatnonzero(labels == NO_SPLIT).tolist():
            if not to_go:
                break
            parts = clusters.parts[cluster]
            for group, _ in parts:  # single documents that come before it
                passed = min(max(places[group][cluster] - at[group], 0), left[group])
                at[group] += passed
                left[group] -= passed
                to_go -= passed
            if all(documents <= left[group] for group, documents in parts):
                labels[cluster] = split
                for group, documents in parts:
                    left[group] -= documents
                    to_go -= documents
        for group, keys in enumerate(singles):
            taken = min(left[group], len(keys) - at[group])
            at[group] += taken
            left[group] -= taken
        ends.append(list(at))
        short.append(left)
    return Allotment(ends, labels, short)


def bound_at(keys: Keys, is_single: NDArray[np.bool_], ordered: Keys, end: int, split: int) -> Bound:
    """The bound after the first `end` single documents by (key, number); `ordered` are their keys, sorted."""
    if end == len(ordered):
        return Bound(split, None)
    key = ordered[end]
    equal_before = end - int(np.searchsorted(ordered, key, side="left"))
    if not equal_before:
        return Bound(split, int(key))
    return Bound(split, int(key), int(np.flatnonzero(is_single & (keys == key))[equal_before]))


def list_clusters(together: Together, keys: Keys, groups: Docs) -> tuple[Clusters, Docs]:
    """Clusters, each at the key of its first document; and the place of each document's cluster among them.

    `keys` and `groups` (0, 1, 2 …) are those of the documents in `together`.
    """
    names, cluster = np.unique(together.firsts, return_inverse=True)
    key = keys[np.searchsorted(together.docs, names)]
    order = np.argsort(key, kind="stable")  # of equal keys the one whose first document comes before
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    place = place[cluster]
    width = int(groups.max(initial=0)) + 1
    pairs, documents = np.unique(place * width + groups, return_counts=True)
    told = list(zip((pairs % width).tolist(), documents.tolist(), strict=True))
    ends = np.searchsorted(pairs, np.arange(len(order) + 1) * width).tolist()
    return Clusters(key[order], [told[start:end] for start, end in itertools.pairwise(ends)]), place


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

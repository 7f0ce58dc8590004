"""Near duplicates: fingerprints, bands, and the check of every pair before it may delete anything.

    texts ─ signatures ─ band_keys ─┐                                     in the cleaning pass, into `marks`
                                    ├─ read_pairs ─ verify_pairs ─> edges ─ resolve ─> survivors
    signatures, texts by number ────┴─────────────────┘

Finding candidates may guess; deleting may not.

**Fingerprints.** Shingles are word 5-grams of the text in SHINGLE_NORMALIZATION: NFKC, casefold, what is no
letter, mark or digit as a space, spaces collapsed; a letter of a script without spaces counts as a word. A
text of fewer words than n is one shingle; a text without words has no fingerprint and is never a candidate.
Fingerprints take every digit for a 0, so they find what differs in dates and counters alone. But a form
letter or a table differs in nothing else: exact Jaccard takes digits as written, and an estimate decides
without it only where the agreement without any digit is enough.

**Candidates** share the key of a band. Keys are cut into ranges, one partition at a time, and equal keys are
a bucket. A bucket can hold a million documents, and pairs of all with all would be 5 * 10^11. What is
promised instead:

    up to LEADERS + NEIGHBOURS + 1 different fingerprints    every pair
    more than that       every document with the bucket's first LEADERS, and with the NEIGHBOURS before it
    equal fingerprints   each with the first of its equals, and with all that this first is compared with

So a bucket costs at most LEADERS + NEIGHBOURS + 1 pairs per document. The first ones of a bucket are those
that the greedy walk keeps most often; the neighbours are for what lies together, such as versions of one
page. A document that is similar to a kept one but meets it in none of its buckets survives: an error on the
side of keeping. The pairs depend on what is in each bucket and on the order of precedence alone, never on
where partitions or batches were cut.

**Survivors.** Documents in keep order: dropped if similar enough to one that is kept already, else kept. A
chain A ~ B ~ C with A unlike C keeps A and C: B is dropped for A, and then nothing is left that C could be
dropped for. Every dropped document has an edge of its own to its survivor.

**Clusters** are the components of the edges (union-find). `Members` and `Components` find them where a corpus
has more documents than fit in memory as numbers: with n documents of which m have an edge, n / 8 bytes for
the bits and n / 64 to count them, 4 m for the components, and 8 m for ranks, if they are not all the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.duplicates.shingling import Shingle, all_units, unit_batches
from tokmill.errors import DedupLimit, InputError
from tokmill.kernels import minhash, wordclasses
from tokmill.kernels.minhash import band_keys, count_links, list_links, overlap, repeated
from tokmill.kernels.survivors import (
    KEPT,
    count_before,
    join_members,
    list_roots,
    no_bits,
    numbers_at,
    places_of,
    set_bits,
    walk_edges,
)

# Grows when the same text may get other shingles; the Unicode version grows by itself.
SHINGLE_NORMALIZATION = f"nfkc-casefold-digits0-words-1 ({wordclasses.VERSION})"

# 14 x 8: finds 92 % of pairs at Jaccard 0.8, 99 % at 0.85 and 56 % at 0.7 in theory;
# docs/near-duplicates.md measures it.
BANDS, ROWS = 14, 8
# What a choice of bands must find of the pairs right at the threshold; 14 x 8 does at 0.8.
MIN_FOUND = 0.92
# Standard errors around the threshold within which an estimate decides nothing.
SIGMAS = 3.0

# Documents of a bucket that every other one in it is compared with: its first ones, and those before it.
LEADERS, NEIGHBOURS = 8, 8

# Pairs that are listed at a time: 16 MB. Of 4 million rows in large buckets there may be 68 million, 1.1 GB.
_LISTED_PAIRS = 1_000_000
# Pairs looked at together: 2 x 8192 fingerprints of 112 positions are 7 MB.
_ESTIMATED_PAIRS = 8192
_EXACT_PAIRS = 256

Docs = NDArray[np.int64]
Values = NDArray[np.uint32]
Similarity = NDArray[np.float64]


class NearOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`dedup.near` of a recipe with its bands chosen."""

    threshold: Decimal = Decimal("0.8")
    unit: Shingle = "word"
    ngram: int = 5
    bands: int = BANDS
    rows: int = ROWS
    verify: Literal["exact", "signature"] = "exact"
    policy: Literal["drop", "report"] = "drop"
    normalization: str | msgspec.UnsetType = msgspec.UNSET  # tasks say it: their signatures depend on it

    @property
    def positions(self) -> int:
        return self.bands * self.rows


class Signatures(NamedTuple):
    values: Values  # documents x positions
    shingles: NDArray[np.int64]  # all n-grams, repeated ones counted again; 0: no words, no fingerprint
    digests: NDArray[np.uint64]  # of all positions and of the digits as written; 0: no fingerprint


class Judged(NamedTuple):
    """Of pairs: the estimate, and what it decides. Neither similar nor doubtful: not similar."""

    similarity: Similarity
    is_similar: NDArray[np.bool_]
    is_doubtful: NDArray[np.bool_]


class Edges(NamedTuple):
    """Pairs that are similar enough, `a` before `b` in keep order, and what decided it."""

    a: Docs
    b: Docs
    similarity: Similarity
    is_exact: NDArray[np.bool_]  # exact Jaccard; else estimated from the fingerprints


# --- fingerprints ---


def signatures(texts: Any, options: NearOptions) -> Signatures:
    rows = len(texts)
    found = Signatures(
        np.empty((rows, options.positions), np.uint32), np.empty(rows, np.int64), np.empty(rows, np.uint64)
    )
    for start, part in unit_batches(texts, options.unit, keep_digits=False):
        sketches = minhash.sketch(part.units, part.offsets, options.ngram, options.positions)
        stop = start + len(sketches.values)
        found.values[start:stop] = sketches.values
        found.shingles[start:stop] = sketches.shingles
        found.digests[start:stop] = signature_digests(sketches.values, part.numbers)
    return found


def signature_digests(values: Values, numbers: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """One band of all positions, and the numbers: who has both in common is as good as equal. 0:
    no fingerprint."""
    keys = band_keys(values, 1, values.shape[1])[:, 0]
    return np.where(keys == 0, keys, (keys ^ numbers.astype(np.uint64)) | np.uint64(1))


# --- bands ---


def found_share(similarity: float, bands: int, rows: int) -> float:
    """How many pairs of this similarity share the key of at least one band."""
    return 1.0 - (1.0 - similarity**rows) ** bands


def probability_curve(bands: int, rows: int) -> list[tuple[float, float]]:
    """(similarity, share of such pairs that are found), from 0 to 1."""
    return [(step / 20, found_share(step / 20, bands, rows)) for step in range(21)]


def choose_bands(threshold: float, permutations: int = BANDS * ROWS) -> tuple[int, int]:
    """The most rows, which is the fewest false candidates,
    that still find MIN_FOUND of pairs at the threshold."""
    if not 0.0 < threshold <= 1.0:
        raise InputError(
            f"a threshold of {threshold}",
            where="threshold",
            next="give a similarity above 0 and up to 1, such as 0.8",
        )
    for rows in range(permutations, 1, -1):
        if found_share(threshold, permutations // rows, rows) >= MIN_FOUND:
            return permutations // rows, rows
    return permutations, 1


# --- candidates ---


class Pairs(NamedTuple):
    """Document numbers; `a` comes before `b` in keep order."""

    a: NDArray[np.int64]
    b: NDArray[np.int64]


def read_pairs(
    keys: NDArray[np.uint64],
    docs: NDArray[np.int64],
    *,
    digests: NDArray[np.uint64],
    ranks: NDArray[np.int64],
    leaders: int = LEADERS,
    neighbours: int = NEIGHBOURS,
    most: int = _LISTED_PAIRS,
) -> Iterator[Pairs]:
    """One row per (document, band) of the partition, in any order; key 0 is no key.
    Some `most` pairs at a time.

    `digests` tell equal fingerprints; `ranks` are the documents' precedence, ties by number.
    """
    chosen = np.flatnonzero(repeated(keys))
    keys, docs = keys[chosen], docs[chosen]
    order = np.lexsort((docs, ranks[chosen], keys))
    keys, docs = keys[order], docs[order]
    links = count_links(keys, _firsts(keys, digests[chosen][order]), leaders, neighbours)
    start = 0
    while start < len(docs):
        listed = int(links.ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(links.ends, listed + most, side="right")), start + 1)
        earlier, later = list_links(links, start, stop)
        yield Pairs(docs[earlier], docs[later])
        start = stop


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


# --- verification ---


def estimate(values_a: Values, values_b: Values) -> Similarity:
    """Of each pair of fingerprints, the share of positions that agree."""
    agreeing: Similarity = np.count_nonzero(values_a == values_b, axis=1) / values_a.shape[1]
    return agreeing


def estimate_least(values_a: Values, values_b: Values) -> Similarity:
    """The share that agrees in shingles without a digit: what is left if all digits should differ."""
    agreeing = (values_a == values_b) & (values_a & np.uint32(1) == 0)
    least: Similarity = np.count_nonzero(agreeing, axis=1) / values_a.shape[1]
    return least


def judge(values_a: Values, values_b: Values, options: NearOptions) -> Judged:
    """What fingerprints alone say.

        estimate < threshold - 3 sigma                          not similar
        estimate without digits >= threshold + 3 sigma          similar
        in between, or the threshold is 1                       doubtful: exact Jaccard of the shingle sets
                                                                decides

    With `verify: signature` there is no doubt: the estimate decides, and any two digits are equal.
    """
    similarity, threshold = estimate(values_a, values_b), float(options.threshold)
    if options.verify == "signature":
        return Judged(similarity, similarity >= threshold, np.zeros(len(similarity), np.bool_))
    margin = SIGMAS * math.sqrt(threshold * (1.0 - threshold) / options.positions)
    # at 1 the margin is 0, and of pairs with a Jaccard of 0.99 a third agree in all positions
    is_similar = (estimate_least(values_a, values_b) >= threshold + margin) & (threshold < 1.0)
    return Judged(similarity, is_similar, ~is_similar & (similarity >= threshold - margin))


def judge_pairs(a: Docs, b: Docs, options: NearOptions, load_values: Callable[[Docs], Values]) -> Judged:
    """`judge` for pairs of documents, a batch at a time.
    The loader gets ascending numbers without repeats."""
    judged = Judged(np.empty(len(a), np.float64), np.empty(len(a), np.bool_), np.empty(len(a), np.bool_))
    for part in _slices(len(a), _ESTIMATED_PAIRS):
        docs, (left, right) = _loaded(a[part], b[part])
        values = load_values(docs)
        for whole, some in zip(judged, judge(values[left], values[right], options), strict=True):
            whole[part] = some
    return judged


def compare_pairs(a: Docs, b: Docs, options: NearOptions, load_texts: Callable[[Docs], Any]) -> Similarity:
    """Jaccard similarity of the shingle sets, digits as written, likewise; 0 where neither text has words.
    A text of many pairs is split into words once."""
    similarity = np.empty(len(a), np.float64)
    for part in _slices(len(a), _EXACT_PAIRS):
        docs, (left, right) = _loaded(a[part], b[part])
        rows = all_units(load_texts(docs), options.unit, keep_digits=True)
        found = overlap(rows.units, rows.offsets, left, right, options.ngram)
        similarity[part] = found.shared / np.maximum(found.either, 1)
    return similarity


def verify_pairs(
    a: Docs,
    b: Docs,
    options: NearOptions,
    load_values: Callable[[Docs], Values],
    load_texts: Callable[[Docs], Any],
) -> Edges:
    """The pairs whose similarity is at least the threshold:
    by their fingerprints, or exactly where those leave a doubt. Loaders may read files by position."""
    similarity, is_edge, is_doubtful = judge_pairs(a, b, options, load_values)
    doubtful = np.flatnonzero(is_doubtful)
    similarity[doubtful] = compare_pairs(a[doubtful], b[doubtful], options, load_texts)
    is_edge[doubtful] = similarity[doubtful] >= float(options.threshold)
    return Edges(a[is_edge], b[is_edge], similarity[is_edge], is_doubtful[is_edge])


# --- survivors and clusters ---


class Resolved(NamedTuple):
    """One row per document."""

    survivor: Docs  # the document it is dropped for, -1: it is kept
    similarity: NDArray[np.float64]  # with the survivor; 0 where kept
    component: Docs  # the first document of its connected component; itself if it is alone


def resolve(
    n_docs: int,
    a: Docs,
    b: Docs,
    similarity: NDArray[np.float64],
    is_safe: NDArray[np.bool_] | None = None,
) -> Resolved:
    """Edges in any order, either end first, repeated or not;
    of two documents the first is kept, and who is safe."""
    by_later = np.argsort(np.maximum(a, b), kind="stable")
    by_later = by_later[a[by_later] != b[by_later]]
    a, b, similarity = a[by_later], b[by_later], similarity[by_later]
    components = Components(n_docs, None)
    components.join(a, b)
    components.seal()
    resolved = Resolved(
        np.full(n_docs, KEPT, np.int64), np.zeros(n_docs, np.float64), components.roots.astype(np.int64)
    )
    found = walk_edges(
        np.minimum(a, b),
        np.zeros_like(a),
        np.maximum(a, b),
        similarity,
        (np.zeros(n_docs, np.bool_) if is_safe is None else is_safe)[np.maximum(a, b)],
        no_bits(n_docs),
    )
    resolved.survivor[found.documents] = found.survivors
    resolved.similarity[found.documents] = found.similarity
    return resolved


# A member is known by 4 bytes.
_MOST = (1 << 32) - 1
_COUNTED = 1 << 20


class Members:
    def __init__(self, documents: int) -> None:
        self.count = 0
        self._bits = no_bits(documents)
        self._before = np.zeros(1, np.int64)

    def add(self, numbers: Docs) -> None:
        set_bits(self._bits, numbers)

    def seal(self) -> None:
        """All have been added: from here on they have places."""
        self._before = count_before(self._bits)
        self.count = int(self._before[-1])
        if self.count > _MOST:
            raise DedupLimit(
                f"{self.count:,} documents are like another one, more than {_MOST:,}",
                where="dedup.near",
                next="raise `near.threshold`, or deduplicate sources by themselves with `scope: per-source`",
            )

    def places(self, numbers: Docs) -> Docs:
        return places_of(self._bits, self._before, numbers)

    def numbers(self, places: Docs) -> Docs:
        """The other way."""
        return numbers_at(self._bits, self._before, places)

    def between(self, start: int, stop: int) -> Docs:
        """Members from number `start` to before `stop`, ascending."""
        words = self._bits[start >> 6 : (stop + 63) >> 6]
        bits = np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little")
        found = np.flatnonzero(bits) + (start >> 6 << 6)
        return found[(found >= start) & (found < stop)]


class Components:
    """`ranks` are those of all members, by place; none where all have the same."""

    def __init__(self, members: int, ranks: Docs | None) -> None:
        self.roots = np.arange(members, dtype=np.uint32)
        self._ranks = np.empty(0, np.int64) if ranks is None else ranks

    def join(self, one: Docs, other: Docs) -> None:
        """Members by their places, either first."""
        join_members(self.roots, self._ranks, one, other)

    def seal(self) -> None:
        list_roots(self.roots)
        self._ranks = np.empty(0, np.int64)

    def count(self) -> int:
        places = np.arange(0, len(self.roots), _COUNTED)
        return sum(
            int(np.count_nonzero(part == np.arange(start, start + len(part), dtype=np.uint32)))
            for start, part in ((at, self.roots[at : at + _COUNTED]) for at in places.tolist())
        )


# --- all of it, in memory ---


def find_near_duplicates(
    texts: Any,
    options: NearOptions,
    *,
    groups: NDArray[np.int64] | None = None,
    is_safe: NDArray[np.bool_] | None = None,
) -> Resolved:
    """All of it, for a column that fits in memory, in keep order.
    Documents of two groups are not compared."""
    values, _, digests = signatures(texts, options)
    keys = band_keys(values, options.bands, options.rows)
    if groups is not None:  # a bucket is of one group
        salts = groups.astype(np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15)
        keys = np.where(keys == 0, keys, keys ^ salts)
    docs = np.arange(len(values))
    found = [Pairs(docs[:0], docs[:0])]
    for band in range(options.bands):
        found += read_pairs(keys[:, band], docs, digests=digests, ranks=docs)
    a, b = unique_pairs(*map(np.concatenate, zip(*found, strict=True)))
    edges = verify_pairs(a, b, options, values.__getitem__, lambda rows: texts.take(pa.array(rows)))
    return resolve(len(values), edges.a, edges.b, edges.similarity, is_safe)


def _loaded(a: Docs, b: Docs) -> tuple[Docs, tuple[Docs, Docs]]:
    """The documents of both columns, each once, and where each end of a pair is among them."""
    docs, places = np.unique(np.concatenate([a, b]), return_inverse=True)
    return docs, (places[: len(a)], places[len(a) :])


def _slices(count: int, step: int) -> Iterator[slice]:
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))

"""Near duplicates: fingerprints, bands, and the check of every pair before it may delete anything.

    texts ─ signatures ─ band_keys ─┐                                    in the cleaning pass, into `marks`
                                    ├─ pairs_in_buckets ─ verify_pairs ─ resolve ─> survivors
    signatures, texts by number ────┴───────────────────────┘            dedup.buckets, dedup.components

Shingles are word 5-grams of the text in SHINGLE_NORMALIZATION: NFKC, casefold, what is no letter, mark or digit as a
space, spaces collapsed; a letter of a script without spaces counts as a word. A text of fewer words than n is one
shingle; a text without words has no fingerprint and is never a candidate.

Fingerprints take every digit for a 0, so they find what differs in dates and counters alone. But a form letter or a
table differs in nothing else: exact Jaccard takes digits as written, and an estimate decides without it only where
the agreement without any digit is enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill import wordclasses
from tokmill.dedup.buckets import pairs_in_buckets, unique_pairs
from tokmill.dedup.components import Resolved, resolve
from tokmill.dedup.shingling import Shingle, all_units, unit_batches
from tokmill.kernels import minhash
from tokmill.kernels.jaccard import overlap
from tokmill.kernels.minhash import band_keys
from tokmill.schema import one_piece

# Grows when the same text may get other shingles; the Unicode version grows by itself.
SHINGLE_NORMALIZATION = f"nfkc-casefold-digits0-words-1 ({wordclasses.VERSION})"

# 14 x 8: finds 92 % of pairs at Jaccard 0.8, 99 % at 0.85 and 56 % at 0.7 in theory; docs/near-duplicates.md measures it.
BANDS, ROWS = 14, 8
# What a choice of bands must find of the pairs right at the threshold; 14 x 8 does at 0.8.
MIN_FOUND = 0.92
# Standard errors around the threshold within which an estimate decides nothing.
SIGMAS = 3.0

# Pairs looked at together: 2 x 8192 fingerprints of 112 positions are 7 MB.
_ESTIMATED_PAIRS = 8192
_EXACT_PAIRS = 256

Values = NDArray[np.uint32]
Docs = NDArray[np.int64]
Similarity = NDArray[np.float64]


@dataclass(frozen=True)
class NearOptions:
    threshold: float = 0.8
    shingle: Shingle = "word"
    ngram: int = 5
    bands: int = BANDS
    rows: int = ROWS
    verify: Literal["exact", "signature"] = "exact"

    @property
    def positions(self) -> int:
        return self.bands * self.rows


class Signatures(NamedTuple):
    values: Values  # documents x positions
    shingles: NDArray[np.int64]  # all n-grams, repeated ones counted again; 0: no words, no fingerprint
    digests: NDArray[np.uint64]  # of all positions and of the digits as written; 0: no fingerprint


class Judged(NamedTuple):
    """Of pairs: the estimate, and what it settles. Neither similar nor doubtful is settled, too: not similar."""

    similarity: Similarity
    is_similar: NDArray[np.bool_]
    is_doubtful: NDArray[np.bool_]


class Edges(NamedTuple):
    """Pairs that are similar enough, `a` before `b` in keep order, and what decided it."""

    a: Docs
    b: Docs
    similarity: Similarity
    is_exact: NDArray[np.bool_]  # exact Jaccard; else estimated from the fingerprints


def signatures(texts: Any, options: NearOptions) -> Signatures:
    rows = len(texts)
    found = Signatures(
        np.empty((rows, options.positions), np.uint32), np.empty(rows, np.int64), np.empty(rows, np.uint64)
    )
    for start, part in unit_batches(texts, options.shingle, keep_digits=False):
        sketches = minhash.sketch(part.units, part.offsets, options.ngram, options.positions)
        stop = start + len(sketches.values)
        found.values[start:stop] = sketches.values
        found.shingles[start:stop] = sketches.shingles
        found.digests[start:stop] = signature_digests(sketches.values, part.numbers)
    return found


def signature_digests(values: Values, numbers: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """One band of all positions, and the numbers: who has both in common is as good as equal. 0: no fingerprint."""
    keys = band_keys(values, 1, values.shape[1])[:, 0]
    return np.where(keys == 0, keys, (keys ^ numbers.astype(np.uint64)) | np.uint64(1))


# --- bands ---


def found_share(similarity: float, bands: int, rows: int) -> float:
    """How many pairs of this similarity share the key of at least one band."""
    return 1.0 - (1.0 - similarity**rows) ** bands


def probability_curve(bands: int, rows: int, steps: int = 20) -> list[tuple[float, float]]:
    """(similarity, share of such pairs that are found), from 0 to 1."""
    return [(step / steps, found_share(step / steps, bands, rows)) for step in range(steps + 1)]


def choose_bands(threshold: float, permutations: int = BANDS * ROWS) -> tuple[int, int]:
    """The most rows, which is the fewest false candidates, that still find MIN_FOUND of pairs at the threshold."""
    if not 0.0 < threshold <= 1.0 or permutations < 1:
        raise ValueError(f"no bands for threshold {threshold} with {permutations} permutations")
    for rows in range(permutations, 1, -1):
        if found_share(threshold, permutations // rows, rows) >= MIN_FOUND:
            return permutations // rows, rows
    return permutations, 1


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


def estimate_error(similarity: float, positions: int) -> float:
    """One standard error of an estimate."""
    return math.sqrt(similarity * (1.0 - similarity) / positions)


def judge(values_a: Values, values_b: Values, options: NearOptions) -> Judged:
    """What fingerprints alone say.

        estimate < threshold - 3 sigma                          not similar
        estimate without digits >= threshold + 3 sigma          similar
        in between                                              doubtful: exact Jaccard of the shingle sets decides

    With `verify: signature` there is no doubt: the estimate decides, and any two digits are equal.
    """
    similarity = estimate(values_a, values_b)
    if options.verify == "signature":
        return Judged(similarity, similarity >= options.threshold, np.zeros(len(similarity), np.bool_))
    margin = SIGMAS * estimate_error(options.threshold, options.positions)
    is_similar = estimate_least(values_a, values_b) >= options.threshold + margin
    return Judged(similarity, is_similar, ~is_similar & (similarity >= options.threshold - margin))


def exact_jaccard(texts_a: Any, texts_b: Any, options: NearOptions) -> Similarity:
    """Jaccard similarity of the shingle sets, digits as written, row by row; 0 where neither text has words."""
    texts = pa.concat_arrays([one_piece(texts_a), one_piece(texts_b)])
    rows = np.arange(len(texts_a), dtype=np.int64)
    return exact_jaccard_of_pairs(texts, rows, rows + len(texts_a), options)


def exact_jaccard_of_pairs(texts: Any, left: Docs, right: Docs, options: NearOptions) -> Similarity:
    """The same for pairs of rows of one column: a text of many pairs is split into words once."""
    rows = all_units(texts, options.shingle, keep_digits=True)
    found = overlap(rows.units, rows.offsets, left, right, options.ngram)
    similarity: Similarity = found.shared / np.maximum(found.either, 1)
    return similarity


def judge_pairs(a: Docs, b: Docs, options: NearOptions, load_values: Callable[[Docs], Values]) -> Judged:
    """`judge` for pairs of documents, a batch at a time. The loader gets ascending numbers without repeats."""
    judged = Judged(np.empty(len(a), np.float64), np.empty(len(a), np.bool_), np.empty(len(a), np.bool_))
    for part in _slices(len(a), _ESTIMATED_PAIRS):
        docs, (left, right) = _loaded(a[part], b[part])
        values = load_values(docs)
        for whole, some in zip(judged, judge(values[left], values[right], options), strict=True):
            whole[part] = some
    return judged


def compare_pairs(a: Docs, b: Docs, options: NearOptions, load_texts: Callable[[Docs], Any]) -> Similarity:
    """Exact Jaccard for pairs of documents, likewise."""
    similarity = np.empty(len(a), np.float64)
    for part in _slices(len(a), _EXACT_PAIRS):
        docs, (left, right) = _loaded(a[part], b[part])
        similarity[part] = exact_jaccard_of_pairs(load_texts(docs), left, right, options)
    return similarity


def verify_pairs(
    a: Docs,
    b: Docs,
    options: NearOptions,
    load_values: Callable[[Docs], Values],
    load_texts: Callable[[Docs], Any],
) -> Edges:
    """The pairs whose similarity is at least the threshold: by their fingerprints, or exactly where those leave a
    doubt. Loaders may read files by position."""
    similarity, is_edge, is_doubtful = judge_pairs(a, b, options, load_values)
    doubtful = np.flatnonzero(is_doubtful)
    similarity[doubtful] = compare_pairs(a[doubtful], b[doubtful], options, load_texts)
    is_edge[doubtful] = similarity[doubtful] >= options.threshold
    return Edges(a[is_edge], b[is_edge], similarity[is_edge], is_doubtful[is_edge])


def find_near_duplicates(
    texts: Any,
    options: NearOptions,
    *,
    order: Docs | None = None,
    is_reference: NDArray[np.bool_] | None = None,
) -> Resolved:
    """All of it, for a column that fits in memory."""
    values, _, digests = signatures(texts, options)
    keys = band_keys(values, options.bands, options.rows)
    docs = np.arange(len(values))
    ranks = _ranks(len(values), order, is_reference)
    found = [
        pairs_in_buckets(keys[:, band], docs, digests=digests, ranks=ranks) for band in range(options.bands)
    ]
    a, b = unique_pairs(*(np.concatenate(ends) for ends in zip(*found, strict=True)))
    edges = verify_pairs(a, b, options, values.__getitem__, lambda rows: texts.take(pa.array(rows)))
    return resolve(len(values), edges.a, edges.b, edges.similarity, order, is_reference)


def _ranks(rows: int, order: Docs | None, is_reference: NDArray[np.bool_] | None) -> Docs:
    ranks = np.arange(rows) if order is None else order
    if is_reference is None:
        return ranks
    by_precedence = np.lexsort((np.arange(rows), ranks, ~is_reference))
    ranks = np.empty(rows, np.int64)
    ranks[by_precedence] = np.arange(rows)
    return ranks


def _loaded(a: Docs, b: Docs) -> tuple[Docs, tuple[Docs, Docs]]:
    """The documents of both columns, each once, and where each end of a pair is among them."""
    docs, places = np.unique(np.concatenate([a, b]), return_inverse=True)
    return docs, (places[: len(a)], places[len(a) :])


def _slices(count: int, step: int) -> Iterator[slice]:
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))

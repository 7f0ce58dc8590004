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

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill import wordclasses
from tokmill.codepoints import fold, fold_table
from tokmill.dedup.buckets import pairs_in_buckets, unique_pairs
from tokmill.dedup.components import Resolved, resolve
from tokmill.kernels import classes, folding, minhash, shingles
from tokmill.kernels.columns import Bytes, Offsets
from tokmill.kernels.jaccard import overlap
from tokmill.kernels.minhash import band_keys
from tokmill.schema import large_strings, string_column

# Grows when the same text may get other shingles; the Unicode version grows by itself.
SHINGLE_NORMALIZATION = f"nfkc-casefold-digits0-words-1 ({wordclasses.VERSION})"

# 14 x 8: finds 92 % of pairs at Jaccard 0.8, 99 % at 0.85 and 56 % at 0.7 in theory; docs/near-duplicates.md measures it.
BANDS, ROWS = 14, 8
# What a choice of bands must find of the pairs right at the threshold; 14 x 8 does at 0.8.
MIN_FOUND = 0.92
# Standard errors around the threshold within which an estimate decides nothing.
SIGMAS = 3.0

# Text shingled at a time: its units stay in the second-level cache.
_BATCH_BYTES = 1 << 20
# Pairs looked at together: 2 x 8192 fingerprints of 112 positions are 7 MB.
_ESTIMATED_PAIRS = 8192
_EXACT_PAIRS = 256

Values = NDArray[np.uint32]
Docs = NDArray[np.int64]
Similarity = NDArray[np.float64]


@dataclass(frozen=True)
class NearOptions:
    threshold: float = 0.8
    shingle: Literal["word", "char"] = "word"
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


class Edges(NamedTuple):
    """Pairs that are similar enough, `a` before `b` in keep order, and what decided it."""

    a: Docs
    b: Docs
    similarity: Similarity
    is_exact: NDArray[np.bool_]  # exact Jaccard; else estimated from the fingerprints


def signatures(texts: Any, options: NearOptions) -> Signatures:
    rows = len(texts)
    found = Signatures(np.empty((rows, options.positions), np.uint32), np.empty(rows, np.int64))
    for start, part in _unit_batches(texts, options, keep_digits=False):
        sketches = minhash.sketch(part.units, part.offsets, options.ngram, options.positions)
        found.values[start : start + len(sketches.values)] = sketches.values
        found.shingles[start : start + len(sketches.values)] = sketches.shingles
    return found


def signature_digests(values: Values) -> NDArray[np.uint64]:
    """One 64-bit hash of each whole fingerprint; 0 where there is none."""
    return band_keys(values, 1, values.shape[1])[:, 0]


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


def exact_jaccard(texts_a: Any, texts_b: Any, options: NearOptions) -> Similarity:
    """Jaccard similarity of the shingle sets, digits as written, row by row; 0 where neither text has words."""
    left, right = _units(texts_a, options), _units(texts_b, options)
    found = overlap(left.units, left.offsets, right.units, right.offsets, options.ngram)
    similarity: Similarity = found.shared / np.maximum(found.either, 1)
    return similarity


def verify_pairs(
    a: Docs,
    b: Docs,
    options: NearOptions,
    load_values: Callable[[Docs], Values],
    load_texts: Callable[[Docs], Any],
) -> Edges:
    """The pairs whose similarity is at least the threshold.

        estimate < threshold - 3 sigma                          not similar
        estimate without digits >= threshold + 3 sigma          similar, by its estimate
        in between                                              exact Jaccard of the shingle sets decides

    With `verify: signature` the estimate alone decides, any two digits are equal, and texts are never asked for. Both
    loaders get ascending document numbers without repeats, a batch at a time, so they may read files by position.
    """
    similarity, least = np.empty(len(a), np.float64), np.empty(len(a), np.float64)
    for part in _slices(len(a), _ESTIMATED_PAIRS):
        docs, (left, right) = _loaded(a[part], b[part])
        values = load_values(docs)
        similarity[part] = estimate(values[left], values[right])
        least[part] = estimate_least(values[left], values[right])
    if options.verify == "signature":
        chosen = np.flatnonzero(similarity >= options.threshold)
        return Edges(a[chosen], b[chosen], similarity[chosen], np.zeros(len(chosen), np.bool_))
    margin = SIGMAS * estimate_error(options.threshold, options.positions)
    is_edge = least >= options.threshold + margin
    doubtful = np.flatnonzero((similarity >= options.threshold - margin) & ~is_edge)
    for part in _slices(len(doubtful), _EXACT_PAIRS):
        rows = doubtful[part]
        docs, (left, right) = _loaded(a[rows], b[rows])
        texts = load_texts(docs)
        similarity[rows] = exact_jaccard(texts.take(pa.array(left)), texts.take(pa.array(right)), options)
    is_edge[doubtful] = similarity[doubtful] >= options.threshold
    is_exact = np.zeros(len(a), np.bool_)
    is_exact[doubtful] = True
    return Edges(a[is_edge], b[is_edge], similarity[is_edge], is_exact[is_edge])


def find_near_duplicates(
    texts: Any,
    options: NearOptions,
    *,
    order: Docs | None = None,
    is_reference: NDArray[np.bool_] | None = None,
) -> Resolved:
    """All of it, for a column that fits in memory."""
    values = signatures(texts, options).values
    keys, digests = band_keys(values, options.bands, options.rows), signature_digests(values)
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


# --- text to units ---


@functools.cache
def unit_kinds() -> NDArray[np.uint8]:
    """What each code point does to words, for kernels.shingles."""
    bits = wordclasses.class_table()
    kinds = np.full(len(bits), shingles.SEPARATOR, np.uint8)
    for bit, kind in (
        (classes.LETTER, shingles.PART),
        (classes.SPACELESS, shingles.WHOLE),
        (classes.MARK, shingles.MARK),
        (classes.DIGIT, shingles.DIGIT),
    ):
        kinds[bits & bit != 0] = kind
    kinds.flags.writeable = False
    return kinds


def _unit_batches(
    texts: Any, options: NearOptions, *, keep_digits: bool
) -> Iterator[tuple[int, shingles.UnitRows]]:
    """Consecutive rows of about a megabyte of text, and the number of the first."""
    column = string_column(texts)
    start, rows = 0, len(column.offsets) - 1
    while start < rows:
        reach = column.offsets[start] + _BATCH_BYTES
        stop = max(int(np.searchsorted(column.offsets, reach, side="right")) - 1, start + 1)
        data, offsets = _folded(column.data, column.offsets[start : stop + 1])
        make = shingles.word_units if options.shingle == "word" else shingles.char_units
        yield start, make(data, offsets, unit_kinds(), keep_digits=keep_digits)
        start = stop


def _units(texts: Any, options: NearOptions) -> shingles.UnitRows:
    parts = [part for _, part in _unit_batches(texts, options, keep_digits=True)]
    if len(parts) == 1:
        return parts[0]
    lengths = [np.zeros(1, np.int64), *(np.diff(part.offsets) for part in parts)]
    units = np.concatenate([np.empty(0, np.uint32), *(part.units for part in parts)])
    return shingles.UnitRows(units, np.cumsum(np.concatenate(lengths)))


def _folded(data: Bytes, offsets: Offsets) -> tuple[Bytes, Offsets]:
    """NFKC and casefold, but for the case of ASCII rows, which the kernels fold as they go."""
    if data[offsets[0] : offsets[-1]].max(initial=0) < 128:
        return data, offsets
    folded = folding.fold_rows(data, offsets, fold_table())
    if folded.is_exact.all():
        return folded.data, folded.offsets
    # Marks compose or change places in some rows: those through `unicodedata`, one by one.
    slow = ~folded.is_exact
    rows = large_strings(data, offsets).filter(pa.array(slow)).to_pylist()
    column = string_column(
        pc.replace_with_mask(
            large_strings(folded.data, folded.offsets),
            pa.array(slow),
            pa.array([fold(text) for text in rows], pa.large_string()),
        )
    )
    return column.data, column.offsets

"""What follows from marks that two documents share (kernels.windows makes the marks and the words).

first_marks     equal hashes         -> the one in the earliest document         linear, one table
extend_runs     two places           -> the run of equal words around them       compares the words themselves
resolve_spans   spans in keep order  -> which documents go, and which spans still count      a piece at a time
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import HASHES, ROWS, SPREAD, Bytes, Int, Offsets, frozen, raw_kernel, raw_step
from tokmill.kernels.windows import FoldedWords, one_word

Hashes = NDArray[np.uint64]
Places = NDArray[np.int64]

# What a run comes to that is none: its window is covered by runs before it, or the words differ.
COVERED, DIFFERENT = 0, -1

U64 = np.uint64
I64 = np.int64
# The golden ratio in 64 bits: hashes of one partition share their top bits, this spreads the others.


class Runs(NamedTuple):
    """Of each match: the run's first word in either row and its words, or COVERED, or DIFFERENT."""

    first_words: Places
    other_first_words: Places
    words: Places


def first_marks(hashes: Hashes, documents: Places, ranks: Places) -> Places:
    """Per mark, the mark with the same hash in the document of least rank; -1 where that is its own document.

    Ties of rank go to the smaller document, and within a document to the first mark.
    Two words of memory per mark and at most three for the table.
    """
    if not hashes.size == documents.size == ranks.size:
        raise ValueError(f"{hashes.size} hashes, {documents.size} documents, {ranks.size} ranks")
    slots = 16
    while slots < hashes.size + hashes.size // 2:
        slots *= 2
    found = np.empty(hashes.size, np.int64)
    _first_marks(
        frozen(hashes, np.uint64),
        frozen(documents, np.int64),
        frozen(ranks, np.int64),
        np.full(slots, -1, np.int64),
        found,
    )
    return found


def extend_runs(
    words: FoldedWords, rows: Places, places: Places, others: Places, other_places: Places, n: int
) -> Runs:
    """Matches of one row lie together. A run goes on as long as the words are equal and not covered yet.

    So each word of a row belongs to the first match that reaches it (but for the n words of a window),
    and all of it is linear in the words of `rows` and in n times the matches, whatever repeats in them.
    """
    runs = Runs(*(np.zeros(rows.size, np.int64) for _ in range(3)))
    _extend_runs(
        frozen(words.offsets, np.int64),
        frozen(words.hashes, np.uint64),
        frozen(words.folds, np.int64),
        frozen(words.folded, np.uint8),
        frozen(rows, np.int64),
        frozen(places, np.int64),
        frozen(others, np.int64),
        frozen(other_places, np.int64),
        n,
        np.zeros(words.hashes.size, np.uint8),
        *runs,
    )
    return runs


def equal_runs(
    left: FoldedWords, left_words: Places, right: FoldedWords, right_words: Places, counts: Places
) -> NDArray[np.bool_]:
    """Whether `counts` words from either place on (numbered through all rows) are the same."""
    found = np.zeros(left_words.size, np.bool_)
    _equal_runs(
        frozen(left.folds, np.int64),
        frozen(left.folded, np.uint8),
        frozen(left_words, np.int64),
        frozen(right.folds, np.int64),
        frozen(right.folded, np.uint8),
        frozen(right_words, np.int64),
        frozen(counts, np.int64),
        found,
    )
    return found


def resolve_spans(
    rows: Places,
    first_words: Places,
    words: Places,
    others: Places,
    totals: Places,
    max_share: float,
    min_words: int,
    dropped: Hashes,
) -> NDArray[np.bool_]:
    """Does the span count? `dropped` has a bit for every document, and gets those that go.

    Spans come in keep order of their documents, all of one document together, and by `first_words` within
    each; `totals` are the words of its document. A span counts if the other document is still there. A
    document goes if more than max_share of its words lie in spans that count, or if fewer than min_words of
    them lie in none.
    """
    counts = np.zeros(rows.size, np.bool_)
    _resolve_spans(
        frozen(rows, np.int64),
        frozen(first_words, np.int64),
        frozen(words, np.int64),
        frozen(others, np.int64),
        frozen(totals, np.int64),
        float(max_share),
        int(min_words),
        dropped,
        counts,
    )
    return counts


@raw_kernel(lambda: first_marks(HASHES, ROWS, ROWS))
def _first_marks(hashes: Hashes, documents: Places, ranks: Places, table: Places, found: Places) -> None:
    mask = I64(table.size - 1)
    for look in range(2):
        for mark in range(hashes.size):
            slot = I64((hashes[mark] * SPREAD) >> U64(32)) & mask
            while table[slot] >= 0 and hashes[table[slot]] != hashes[mark]:
                slot = (slot + 1) & mask
            other = table[slot]
            if look == 1:
                found[mark] = other if documents[other] != documents[mark] else -1
            elif (
                other < 0
                or ranks[mark] < ranks[other]
                or (ranks[mark] == ranks[other] and documents[mark] < documents[other])
            ):
                table[slot] = mark


@raw_kernel(lambda: extend_runs(one_word(), ROWS, ROWS, ROWS, ROWS, 1))
def _extend_runs(
    offsets: Offsets,
    hashes: Hashes,
    folds: Offsets,
    folded: Bytes,
    rows: Places,
    places: Places,
    others: Places,
    other_places: Places,
    n: int,
    is_covered: NDArray[np.uint8],
    first_words: Places,
    other_first_words: Places,
    words: Places,
) -> None:
    for match in range(rows.size):
        begin, end = offsets[rows[match]], offsets[rows[match] + 1]
        other_begin, other_end = offsets[others[match]], offsets[others[match] + 1]
        a, b = begin + places[match], other_begin + other_places[match]
        words[match] = DIFFERENT
        if a < begin or b < other_begin or a + n > end or b + n > other_end:
            continue
        step: Int = 0
        while step < n and is_covered[a + step] != 0:
            step += 1
        if step == n:
            words[match] = COVERED
            continue
        step = 0
        while step < n and _is_same(hashes, folds, folded, a + step, b + step):
            step += 1
        if step < n:
            continue
        stop, other_stop = a + n, b + n
        while a > begin and b > other_begin and is_covered[a - 1] == 0:
            if not _is_same(hashes, folds, folded, a - 1, b - 1):
                break
            a -= 1
            b -= 1
        while stop < end and other_stop < other_end and is_covered[stop] == 0:
            if not _is_same(hashes, folds, folded, stop, other_stop):
                break
            stop += 1
            other_stop += 1
        for word in range(a, stop):
            is_covered[word] = np.uint8(1)
        first_words[match], other_first_words[match], words[match] = a - begin, b - other_begin, stop - a


@raw_step
def _is_same(hashes: Hashes, folds: Offsets, folded: Bytes, a: Int, b: Int) -> bool:
    length = folds[a + 1] - folds[a]
    if hashes[a] != hashes[b] or folds[b + 1] - folds[b] != length:
        return False
    step: Int = 0
    while step < length and folded[folds[a] + step] == folded[folds[b] + step]:
        step += 1
    return bool(step == length)


@raw_kernel(lambda: equal_runs(one_word(), ROWS, one_word(), ROWS, ROWS))
def _equal_runs(
    left_folds: Offsets,
    left: Bytes,
    left_words: Places,
    right_folds: Offsets,
    right: Bytes,
    right_words: Places,
    counts: Places,
    found: NDArray[np.bool_],
) -> None:
    for pair in range(left_words.size):
        a, b = left_words[pair], right_words[pair]
        if a < 0 or b < 0 or a + counts[pair] >= left_folds.size or b + counts[pair] >= right_folds.size:
            continue
        is_same = True
        for word in range(counts[pair]):
            length = left_folds[a + word + 1] - left_folds[a + word]
            is_same &= right_folds[b + word + 1] - right_folds[b + word] == length
            step: Int = 0
            while is_same and step < length:
                is_same = left[left_folds[a + word] + step] == right[right_folds[b + word] + step]
                step += 1
            if not is_same:
                break
        found[pair] = is_same


@raw_kernel(lambda: resolve_spans(ROWS, ROWS, ROWS, ROWS, ROWS, 0.5, 0, HASHES))
def _resolve_spans(
    rows: Places,
    first_words: Places,
    words: Places,
    others: Places,
    totals: Places,
    max_share: float,
    min_words: int,
    dropped: Hashes,
    counts: NDArray[np.bool_],
) -> None:
    reach: Int = 0
    repeated: Int = 0
    for span in range(rows.size):
        row, other = rows[span], others[span]
        if span == 0 or rows[span - 1] != row:
            reach = repeated = 0
        if (dropped[other >> 6] >> U64(other & 63)) & U64(1) == U64(0):
            counts[span] = True
            stop = first_words[span] + words[span]
            repeated += max(stop - max(first_words[span], reach), 0)
            reach = max(reach, stop)
        is_last = span + 1 == rows.size or rows[span + 1] != row
        if is_last and repeated > 0:
            if float(repeated) > max_share * float(totals[span]) or totals[span] - repeated < min_words:
                dropped[row >> 6] |= U64(1) << U64(row & 63)

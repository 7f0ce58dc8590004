"""Repeated passages: runs of words that a document shares with one before it.

texts ─ window_marks ─ match_marks ─ extend_matches ─> Spans     resolve_piece ─ trim_texts ─> what is left
        one pass       hashes alone   the words themselves       keep order

A passage of `words + winnow - 1` words that two documents share is always found, one of fewer than `words`
never. Nothing is decided by a hash: a span is a run of equal words around two equal marks, and marks without
such a run come to nothing. What a word is: `shingling`. docs/passages.md says what each policy does with the
spans.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.duplicates.shingling import abbreviations, boundary_kinds, word_table
from tokmill.kernels import boundaries, passages, windows
from tokmill.kernels.windows import WindowMarks
from tokmill.schema import large_strings, string_column

# 31: a shared passage of 80 words is always found, and a document has 1 mark per 17 words or 120 bytes.
WORDS, WINNOW = 50, 31

Docs = NDArray[np.int64]
Flags = NDArray[np.bool_]


class WindowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`dedup.window` of a recipe. `max_share` is for drop, `min_words` (in no passage) for trim."""

    words: int = WORDS
    winnow: int = WINNOW
    policy: Literal["report", "drop", "trim"] = "report"
    max_share: Decimal = Decimal("0.5")
    min_words: int = 50
    normalization: str | msgspec.UnsetType = msgspec.UNSET  # tasks say it: their marks depend on it


class Matches(NamedTuple):
    """Marks that an earlier document has too, and its first such mark: places among the marks compared."""

    marks: Docs
    firsts: Docs


class Pairs(NamedTuple):
    """Where two documents may have the same words: row and word number of the later and of the earlier."""

    rows: Docs
    words: Docs
    first_rows: Docs
    first_words: Docs


class Spans(NamedTuple):
    """Runs of equal words. Bytes are [starts, ends) of the text of `rows`,
    and of `first_rows` for the earlier copy."""

    rows: Docs
    first_words: Docs
    words: Docs
    starts: Docs
    ends: Docs
    first_rows: Docs
    first_starts: Docs
    first_ends: Docs

    def take(self, chosen: NDArray[Any]) -> Spans:
        return Spans(*(column[chosen] for column in self))


class Extended(NamedTuple):
    spans: Spans
    different: int  # pairs whose words were not the same after all


class Trimmed(NamedTuple):
    """All texts, with `rows` shortened by the bytes [starts, ends) of the text as it was."""

    texts: Any
    rows: Docs
    starts: Docs
    ends: Docs


def window_marks(texts: Any, options: WindowOptions) -> WindowMarks:
    column = string_column(texts)
    return windows.window_marks(column.data, column.offsets, word_table(), options.words, options.winnow)


def count_words(texts: Any) -> Docs:
    column = string_column(texts)
    return windows.count_words(column.data, column.offsets, word_table())


def match_marks(hashes: NDArray[np.uint64], documents: Docs, ranks: Docs) -> Matches:
    """Each mark with the first one of its hash, where that is in another document: the one of least rank.

    All marks of a hash have to be here; any range of hashes will do.
    `ranks` is per mark, equal ones go by document.
    """
    found = passages.first_marks(hashes, documents, ranks)
    marks = np.flatnonzero(found >= 0)
    return Matches(marks, found[marks])


def extend_matches(texts: Any, pairs: Pairs, options: WindowOptions, ranks: Docs | None = None) -> Extended:
    """The maximal run of equal words around each pair, in order of row and word.

    All pairs of a document have to be here, and the texts of both sides (row numbers are those of `texts`).
    Pairs with the earliest document come first, and a word that is in a run already does not start or
    lengthen another: it is charged to the earliest document, and a text that repeats itself a million times
    costs no more than another.
    """
    ranks = np.arange(len(texts)) if ranks is None else ranks
    order = np.lexsort((pairs.words, pairs.first_rows, ranks[pairs.first_rows], pairs.rows))
    pairs = Pairs(*(column[order] for column in pairs))
    used, places = np.unique(np.concatenate([pairs.rows, pairs.first_rows]), return_inverse=True)
    rows, others = places[: len(order)], places[len(order) :]
    column = string_column(texts.take(pa.array(used)))
    words = windows.fold_words(column.data, column.offsets[:-1], column.offsets[1:], word_table())
    runs = passages.extend_runs(words, rows, pairs.words, others, pairs.first_words, options.words)
    found = np.flatnonzero(runs.words > 0)
    first = words.offsets[rows[found]] + runs.first_words[found]
    other = words.offsets[others[found]] + runs.other_first_words[found]
    last = runs.words[found] - 1
    spans = Spans(
        pairs.rows[found],
        runs.first_words[found],
        runs.words[found],
        words.starts[first],
        words.ends[first + last],
        pairs.first_rows[found],
        words.starts[other],
        words.ends[other + last],
    )
    spans = spans.take(np.lexsort((spans.first_words, spans.rows)))
    return Extended(spans, int(np.count_nonzero(runs.words == passages.DIFFERENT)))


def merge_spans(spans: Spans) -> Spans:
    """Spans of one document that touch or overlap, as one; its earlier copy is that of the first of them."""
    spans = spans.take(np.lexsort((spans.first_words, spans.rows)))
    if not len(spans.rows):
        return spans
    stops = spans.first_words + spans.words
    # Rows apart by more than any word number, so that one running maximum serves them all.
    apart = spans.rows * (int(stops.max()) + 1)
    reach = np.maximum.accumulate(apart + stops)
    is_new = np.ones(len(stops), np.bool_)
    is_new[1:] = (apart + spans.first_words)[1:] > reach[:-1]
    firsts = np.flatnonzero(is_new)
    merged = spans.take(firsts)
    ends = np.maximum.reduceat(spans.ends, firsts)
    words = np.maximum.reduceat(stops, firsts) - merged.first_words
    return merged._replace(words=words, ends=ends)


def resolve_piece(
    rows: Docs,
    first_words: Docs,
    words: Docs,
    first_rows: Docs,
    totals: Docs,
    options: WindowOptions,
    dropped: NDArray[np.uint64],
) -> Flags:
    """Of a piece of the spans, in keep order: does each count? All of a document's come together.
    No text is needed.

        report   nothing goes
        drop     more than max_share of a document's words are in passages
        trim     fewer than min_words of them are in none (the others are cut by trim_texts)

    A passage counts only if the document with its earlier copy stays, so that no passage is lost from all of
    them. `totals` is words of the document, per span. `dropped` has a bit per document that says what became
    of those before, and is added to.
    """
    max_share = float(options.max_share) if options.policy == "drop" else 1.0
    min_words = options.min_words if options.policy == "trim" else 0
    return passages.resolve_spans(rows, first_words, words, first_rows, totals, max_share, min_words, dropped)


def trim_texts(texts: Any, spans: Spans) -> Trimmed:
    """Cut what lies between the first and the last sentence or line boundary in each span (of those that
    count)."""
    merged = merge_spans(spans)
    column = string_column(texts)
    starts, ends = boundaries.cut_spans(
        column.data,
        column.offsets,
        boundary_kinds(),
        abbreviations(),
        merged.rows,
        merged.starts,
        merged.ends,
    )
    is_cut = ends > starts
    rows, starts, ends = merged.rows[is_cut], starts[is_cut], ends[is_cut]
    if not len(rows):
        return Trimmed(texts, rows, starts, ends)
    begins = column.offsets[rows]
    firsts, stops = [column.offsets[0], *(begins + ends)], [*(begins + starts), column.offsets[-1]]
    left = np.concatenate([column.data[first:stop] for first, stop in zip(firsts, stops, strict=True)])
    lengths = np.diff(column.offsets)
    np.subtract.at(lengths, rows, ends - starts)
    texts = large_strings(left, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]))
    return Trimmed(texts, rows, starts, ends)

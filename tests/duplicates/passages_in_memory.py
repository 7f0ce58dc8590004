"""A policy for passages on a column that fits in memory: what the tasks of a run do shard by shard."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tokmill.duplicates.window import (
    Docs,
    Pairs,
    Spans,
    Trimmed,
    WindowOptions,
    count_words,
    extend_matches,
    match_marks,
    resolve_piece,
    trim_texts,
    window_marks,
)
from tokmill.kernels.survivors import get_bits, no_bits


class Resolved(NamedTuple):
    is_dropped: Any  # per document
    counts: Any  # per span: its earlier copy is in a document that stays


class Done(NamedTuple):
    texts: Any  # dropped ones as they were
    is_dropped: Any
    spans: Spans
    cuts: Trimmed


def find_passages(texts: Any, options: WindowOptions, ranks: Docs | None = None) -> Spans:
    """Marks to spans."""
    ranks = np.arange(len(texts)) if ranks is None else ranks
    marks = window_marks(texts, options)
    matches = match_marks(marks.hashes, marks.rows, ranks[marks.rows])
    ends = (matches.marks, matches.firsts)
    pairs = Pairs(*(column[end] for end in ends for column in (marks.rows, marks.first_words)))
    return extend_matches(texts, pairs, options, ranks).spans


def resolve(spans: Spans, totals: Docs, options: WindowOptions, ranks: Docs | None = None) -> Resolved:
    """Which documents go, of a whole column of spans."""
    ranks = np.arange(len(totals)) if ranks is None else ranks
    order = np.lexsort((spans.first_words, spans.rows, ranks[spans.rows]))
    rows, first_words, words, first_rows = (
        column[order] for column in (spans.rows, spans.first_words, spans.words, spans.first_rows)
    )
    dropped, counts = no_bits(len(totals)), np.zeros(len(order), np.bool_)
    counts[order] = resolve_piece(rows, first_words, words, first_rows, totals[rows], options, dropped)
    return Resolved(get_bits(dropped, np.arange(len(totals))), counts)


def apply_policy(texts: Any, options: WindowOptions) -> Done:
    spans = find_passages(texts, options)
    resolved = resolve(spans, count_words(texts), options)
    is_cut = resolved.counts & ~resolved.is_dropped[spans.rows] & (options.policy == "trim")
    cuts = trim_texts(texts, spans.take(is_cut))
    return Done(cuts.texts, resolved.is_dropped, spans, cuts)

"""A policy for passages on a column that fits in memory: what the tasks of a run do shard by shard."""

from __future__ import annotations

from typing import Any, NamedTuple

from tokmill.duplicates.window import (
    Spans,
    Trimmed,
    WindowOptions,
    count_words,
    find_passages,
    settle,
    trim_texts,
)


class Done(NamedTuple):
    texts: Any  # dropped ones as they were
    is_dropped: Any
    spans: Spans
    cuts: Trimmed


def apply_policy(texts: Any, options: WindowOptions) -> Done:
    spans = find_passages(texts, options)
    settled = settle(spans, count_words(texts), options)
    is_cut = settled.counts & ~settled.is_dropped[spans.rows] & (options.policy == "trim")
    cuts = trim_texts(texts, spans.take(is_cut))
    return Done(cuts.texts, settled.is_dropped, spans, cuts)

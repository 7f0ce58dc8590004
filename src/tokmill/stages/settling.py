"""Which documents go for their passages, over all spans, without holding them.

    shard ─ spans-<s>, its totals ─> walk-<s>, a run in keep order
    walk-<s> of all shards, a piece at a time ─ settle ─> a bit per document: gone, a bit per span: counts
    spans-<s>, shard by shard ─ these bits ─> window (who goes, and for whom)   counted (spans that count)

Memory: n / 8 bytes for n documents, s / 8 for s spans, one piece, one shard.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.dedup.window import Spans, WindowOptions, settle_piece
from tokmill.kernels.survivors import get_bits, no_bits, set_bits
from tokmill.manifest import Json
from tokmill.schema import DROPS, SPANS
from tokmill.stages.appending import open_table
from tokmill.stages.runs import Layout, Run, open_runs, read_in_order, write_run
from tokmill.stages.step import Made
from tokmill.storage.parquet import load_table
from tokmill.task import Task

TOTALS: Layout = {"row": "<i8", "words": "<i8", "rank": "<i8"}
# A span, the words that its document has in all, and its place in the table of spans of the shard.
WALK: Layout = {
    "rank": "<i8",
    "number": "<i8",
    "first_word": "<i8",
    "words": "<i8",
    "first": "<i8",
    "total": "<i8",
    "place": "<i8",
}
COUNTED = pa.schema([DROPS.field("shard"), *SPANS])

# 56 bytes a span, and three times that to sort them.
AT_ONCE = 500_000

Numbers = NDArray[np.int64]


def window_options(window: Json) -> WindowOptions:
    return WindowOptions(
        words=window["words"],
        winnow=window["winnow"],
        policy=window["policy"],
        max_share=float(window["max_share"]),
        min_words=window["min_words"],
    )


class Settled(NamedTuple):
    dropped: Any  # a bit per document
    counts: Any  # a bit per span, of all shards one after the other


def perform_walk(task: Task) -> Made:
    """The spans of a shard in keep order, with what settling needs to know of their documents."""
    table = task.load("spans")
    spans = Spans(*(np.asarray(table.column(name)) for name in SPANS.names))
    (totals,) = open_runs(task.inputs, "totals", TOTALS)
    words, ranks = totals.take(spans.rows - task.config["start"], ["words", "rank"])
    order = np.lexsort((spans.first_words, spans.rows, ranks))
    places = np.arange(len(order))
    columns = (ranks, spans.rows, spans.first_words, spans.words, spans.first_rows, words, places)
    return Made([write_run(task, "walk", [column[order] for column in columns], WALK)], {})


def perform_settle(task: Task) -> Made:
    starts, names = np.asarray(task.config["starts"], np.int64), pa.array(task.config["shards"], pa.string())
    totals = open_runs(task.inputs, "totals", TOTALS)
    walks = open_runs(task.inputs, "walk", WALK)
    firsts = [0, *itertools.accumulate(run.rows for run in walks)]  # of each shard, among all spans
    settled = _settle(walks, starts, firsts, window_options(task.config["window"]))
    facts = {"passages": firsts[-1], "documents": 0, "repeated_words": 0}
    with (
        open_table(task, f"window-{task.key}.parquet", "window", DROPS, by="shard") as window,
        open_table(task, f"counted-{task.key}.parquet", "counted", COUNTED, by="shard") as counted,
    ):
        for shard, path in enumerate(task.paths("spans")):
            table = load_table(path)
            spans = Spans(*(np.asarray(table.column(name)) for name in SPANS.names))
            if not len(spans.rows):
                continue
            counts = get_bits(settled.counts, firsts[shard] + np.arange(len(spans.rows)))
            docs, repeated, survivors = _documents(spans, counts)
            facts["documents"] += len(docs)
            facts["repeated_words"] += int(repeated.sum())
            is_gone = get_bits(settled.dropped, docs)
            dropped, others = docs[is_gone], survivors[is_gone]
            rows, words = totals[shard].take(dropped - starts[shard], ["row", "words"])
            other_shards = np.searchsorted(starts, others, side="right") - 1
            window.append(
                pa.table(
                    [
                        np.full(len(dropped), shard, np.uint32),
                        rows.astype(np.uint32),
                        names.take(pa.array(other_shards)),
                        _rows(totals, starts, others).astype(np.uint32),
                        repeated[is_gone] / np.maximum(words, 1),
                        pa.nulls(len(dropped), pa.int64()),
                        pa.nulls(len(dropped), pa.int64()),
                        pa.nulls(len(dropped), pa.string()),
                    ],
                    schema=DROPS,
                )
            )
            kept = spans.take(counts & ~get_bits(settled.dropped, spans.rows))
            shards = np.full(len(kept.rows), shard, np.uint32)
            counted.append(pa.table([shards, *kept], schema=COUNTED))
    return Made([window.entry, counted.entry], {}, facts)


def _settle(walks: Sequence[Run], starts: Numbers, firsts: Sequence[int], options: WindowOptions) -> Settled:
    settled = Settled(no_bits(int(starts[-1])), no_bits(firsts[-1]))
    offsets = np.asarray(firsts, np.int64)
    for _, number, first_word, words, first, total, place in read_in_order(walks, "rank", "number", AT_ONCE):
        counts = settle_piece(number, first_word, words, first, total, options, settled.dropped)
        shards = np.searchsorted(starts, number, side="right") - 1
        set_bits(settled.counts, (offsets[shards] + place)[counts])
    return settled


def _documents(spans: Spans, counts: NDArray[np.bool_]) -> tuple[Numbers, Numbers, Numbers]:
    """Documents with spans; their words in those that count; and who has the earlier copy of the longest of them."""
    docs, places = np.unique(spans.rows, return_inverse=True)
    survivors = np.full(len(docs), -1, np.int64)
    order = np.argsort(np.where(counts, spans.words, 0), kind="stable")
    survivors[places[order]] = spans.first_rows[order]
    repeated = np.zeros(len(docs), np.int64)
    chosen = np.flatnonzero(counts)
    if len(chosen):
        own, first = places[chosen], spans.first_words[chosen]
        stop = first + spans.words[chosen]
        # Documents apart by more than any word number, so that one running maximum serves them all.
        apart = own * (int(stop.max()) + 1)
        reach = np.maximum.accumulate(apart + stop)
        before = np.concatenate([[0], reach[:-1]])
        fresh = np.maximum(apart + stop - np.maximum(apart + first, before), 0)
        np.add.at(repeated, own, fresh)
    return docs, repeated, survivors


def _rows(totals: Sequence[Run], starts: Numbers, numbers: Numbers) -> Numbers:
    """Rows, in their shards, of numbers in any order."""
    wanted, places = np.unique(numbers, return_inverse=True)
    cuts = np.searchsorted(wanted, starts).tolist()
    found = [np.empty(0, np.int64)]
    for shard, run in enumerate(totals):
        own = wanted[cuts[shard] : cuts[shard + 1]] - starts[shard]
        if len(own):
            found += run.take(own, ["row"])
    return np.concatenate(found)[places]

"""Repeated passages as tasks.

    shard ─ windows ─> windows-<s>           marks, a run by hash;  totals-<s>: row, words and rank of each
                                             document
    partition ─ meetings ─> meetings-<p>     marks that an earlier document has too, a run by document
                          └ ends-<p>         documents of either side
    shard ─ extract ─> passage-texts-<s>     texts of both sides, to be mapped
    shard ─ spans ─> spans-<s>               runs of equal words around each meeting, verified
    shard ─ walk ─> walk-<s>                 its spans in keep order          tokmill.stages.dedup.window
    all spans ─ resolve ─> window, counted   which documents go, which spans count
    shard ─ cut ─> edits-<s>                 texts without their later copies (policy trim)

Documents have numbers as in `tokmill.stages.dedup.near`: their place among all that are considered. From
spans on a number is the row, counted through all shards. There are as many partitions as the marks call for.

Which documents are dropped for their passages, over all spans, without holding them.

    shard ─ spans-<s>, its totals ─> walk-<s>, a run in keep order
    walk-<s> of all shards, a piece at a time ─ resolve ─> a bit per document: dropped, a bit per span: counts
    spans-<s>, shard by shard ─ these bits ─> window (dropped documents, and their survivors)
                                              counted (spans that count)
    exact copies of dropped documents ──────> window, for the same survivors

A document that others were dropped for, as of its URL or as similar to it, is not dropped: they would be left
without a survivor.

Memory: two bits per document, one per span, one piece, one shard.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Json, Receipt
from tokmill.artifacts.step import Input, Made, Task, TaskFunction, TaskOptions, table_input, tables_of
from tokmill.artifacts.upstream import Shard, write_shard_table
from tokmill.duplicates.shingling import WORD_NORMALIZATION
from tokmill.duplicates.window import (
    Pairs,
    Spans,
    WindowOptions,
    extend_matches,
    match_marks,
    resolve_piece,
    trim_texts,
)
from tokmill.kernels.survivors import count_before, get_bits, no_bits, set_bits
from tokmill.schema import DROPS, EDITS, SPANS
from tokmill.stages.dedup.marked import PASSAGES, ROW_BYTES, SHARE, mark_config, marked_rows
from tokmill.stages.dedup.method import (
    TABLES,
    Considered,
    DedupOptions,
    DedupStep,
    Edited,
    Keep,
    Method,
    Phase,
    cached_shards,
    considered_rows,
    load_ranked,
    load_ranks,
    load_texts,
    row_starts,
    scope_salts,
)
from tokmill.stages.dedup.survivors import (
    NUMBERS,
    ByNumber,
    NumberedTexts,
    Places,
    wanted_numbers,
    write_numbered_texts,
)
from tokmill.stages.external.appended import open_table
from tokmill.stages.external.drawers import open_scratch
from tokmill.stages.external.runs import (
    Layout,
    Run,
    by_hash,
    joined,
    load_between,
    load_numbered,
    open_runs,
    partitions_for,
    read_in_order,
    take_numbered,
    write_run,
)
from tokmill.storage.tables import load_range, load_table

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


class WalkOptions(TaskOptions, frozen=True):
    start: int  # number of the shard's first row


class ResolveSpansOptions(TaskOptions, frozen=True):
    window: WindowOptions
    starts: tuple[int, ...]  # number of the first row of each shard, and how many rows there are
    shards: tuple[str, ...]
    is_reference: tuple[bool, ...] = ()  # per shard: its source loses nothing; (): there is none
    # Exact copies have the words of the document that they were dropped for. Where templates of a site are
    # taken out, they may not.
    has_equal_copies: bool = True


# Words of a document that is not dropped whatever is repeated of it.
_NEVER_MOST = 1 << 62
# A dropped document, its survivor, and the share of its words in passages; an exact copy of a dropped one.
_GONE: list[tuple[str, str]] = [("number", "<i8"), ("survivor", "<i8"), ("share", "<f8")]
_COPY = [("number", "<i8"), ("copy", "<i8")]


def perform_walk(task: Task[WalkOptions]) -> Made:
    """The spans of a shard in keep order, with what resolving needs to know of their documents."""
    table = task.load("spans")
    spans = Spans(*(np.asarray(table.column(name)) for name in SPANS.names))
    (totals,) = open_runs(task.inputs, "totals", TOTALS)
    words, ranks = _totals_of(totals, spans.rows - task.options.start, ["words", "rank"])
    order = np.lexsort((spans.first_words, spans.rows, ranks))
    places = np.arange(len(order))
    columns = (ranks, spans.rows, spans.first_words, spans.words, spans.first_rows, words, places)
    return Made([write_run(task, "walk", [column[order] for column in columns], WALK)], {})


def _totals_of(totals: Run, rows: Numbers, names: Sequence[str]) -> list[Any]:
    """Of these rows of a shard, ascending."""
    return totals.take(totals.search(rows, "row"), names)


def perform_resolve_spans(task: Task[ResolveSpansOptions]) -> Made:
    options = task.options
    places = Places(options.starts, options.shards)
    totals = open_runs(task.inputs, "totals", TOTALS)
    walks = open_runs(task.inputs, "walk", WALK)
    firsts = [0, *itertools.accumulate(run.rows for run in walks)]  # of each shard, among all spans
    is_safe = np.array(options.is_reference or [False] * len(walks), np.bool_)
    is_needed = _survivors_before(task, places)
    is_dropped, is_counted = _resolve(walks, firsts, options, is_safe, is_needed)
    facts = {"passages": firsts[-1], "documents": 0, "repeated_words": 0}
    documents, gone = options.starts[-1], int(count_before(is_dropped)[-1])
    with (
        open_scratch(task) as scratch,
        open_table(task, f"window-{task.key}.parquet", "window", DROPS, by="shard") as window,
        open_table(task, f"counted-{task.key}.parquet", "counted", COUNTED, by="shard") as counted,
    ):
        dropped = ByNumber(scratch, "dropped", _GONE, documents, gone)
        for shard, path in enumerate(task.paths("spans")):
            table = load_table(path)
            spans = Spans(*(np.asarray(table.column(name)) for name in SPANS.names))
            if not len(spans.rows):
                continue
            counts = get_bits(is_counted, firsts[shard] + np.arange(len(spans.rows)))
            docs, repeated, survivors = _documents(spans, counts)
            facts["documents"] += len(docs)
            facts["repeated_words"] += int(repeated.sum())
            (words,) = _totals_of(totals[shard], docs - options.starts[shard], ["words"])
            is_gone = get_bits(is_dropped, docs)
            shares = repeated / np.maximum(words, 1)
            dropped.put(*(column[is_gone] for column in (docs, survivors, shares)))
            stays = ~is_gone & (words - repeated >= options.window.min_words)  # else it is kept whole
            kept = spans.take(counts & stays[np.searchsorted(docs, spans.rows)] & ~is_safe[shard])
            shards = np.full(len(kept.rows), shard, np.uint32)
            counted.append(pa.table([shards, *kept], schema=COUNTED))
        for part in _with_copies(task, places, scratch, dropped, is_dropped, gone):
            window.append(_drops(part, places))
    return Made([window.entry, counted.entry], {}, facts)


def _survivors_before(task: Task[ResolveSpansOptions], places: Places) -> Any:
    """A bit per document: others were dropped for it, and are not equal to it."""
    needed = no_bits(task.options.starts[-1])
    followed = [TABLES["exact"]] if task.options.has_equal_copies else []
    for item in task.inputs:
        if item.role in TABLES.values() and item.role not in followed:
            for _, survivors in places.read_drops(item):
                set_bits(needed, survivors)
    return needed


def _with_copies(
    task: Task[ResolveSpansOptions],
    places: Places,
    scratch: Path,
    dropped: ByNumber,
    is_dropped: Any,
    gone: int,
) -> Iterator[Any]:
    """Dropped documents and their exact copies, which are dropped for the same survivors, by number."""
    documents, found = task.options.starts[-1], 0
    copies = ByNumber(scratch, "copies", _COPY, documents, gone)
    for item in task.inputs:
        if item.role == TABLES["exact"]:
            for own, firsts in places.read_drops(item):
                is_gone = get_bits(is_dropped, firsts)
                copies.put(firsts[is_gone], own[is_gone])
                found += int(is_gone.sum())
    both = ByNumber(scratch, "both", _GONE, documents, gone + found)
    for part, own in zip(dropped.read(), copies.read(), strict=True):
        at = np.searchsorted(part["number"], own["number"])
        both.put(*(part[name] for name, _ in _GONE))
        both.put(own["copy"], part["survivor"][at], part["share"][at])
    yield from both.read()


def _drops(part: Any, places: Places) -> Any:
    nothing = pa.nulls(len(part), pa.int64())
    columns = [
        *(*places.counted(part["number"]), *places.named(part["survivor"]), part["share"]),
        *(nothing, nothing, pa.nulls(len(part), pa.string())),
    ]
    return pa.table(columns, schema=DROPS)


def _resolve(
    walks: Sequence[Run],
    firsts: Sequence[int],
    options: ResolveSpansOptions,
    is_safe: NDArray[np.bool_],
    is_needed: Any,
) -> tuple[Any, Any]:
    """A bit per document: dropped; a bit per span, of all shards one after the other: it counts. All spans of
    a reference do: it comes before all others, and none of its documents is dropped."""
    starts, offsets = np.asarray(options.starts, np.int64), np.asarray(firsts, np.int64)
    is_dropped, is_counted = no_bits(options.starts[-1]), no_bits(firsts[-1])
    for _, number, first_word, words, first, total, place in read_in_order(walks, "rank", "number", AT_ONCE):
        shards = np.searchsorted(starts, number, side="right") - 1
        counts = is_safe[shards]
        others = ~counts
        total[get_bits(is_needed, number)] = _NEVER_MOST
        counts[others] = resolve_piece(
            number[others],
            first_word[others],
            words[others],
            first[others],
            total[others],
            options.window,
            is_dropped,
        )
        set_bits(is_counted, (offsets[shards] + place)[counts])
    return is_dropped, is_counted


def _documents(spans: Spans, counts: NDArray[np.bool_]) -> tuple[Numbers, Numbers, Numbers]:
    """Documents with spans; their words in those that count;
    and who has the earlier copy of the longest of them."""
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


WINDOWS: Layout = {"hash": "<u8", "index": "<u4", "word": "<i8", "rank": "<i8"}
MEETINGS: Layout = {"number": "<i8", "word": "<i8", "first": "<i8", "first_word": "<i8"}

# 28 bytes a mark, and five times that while they are matched. A billion documents of 1,000 words make 59,000
# partitions.
MARKS_AT_ONCE = 1_000_000


class MarkOptions(TaskOptions, frozen=True):
    window: WindowOptions
    keep: Keep
    number: int
    group: int
    by_source: bool = False


class MeetingOptions(TaskOptions, frozen=True):
    window: WindowOptions
    starts: tuple[int, ...]
    partition: int
    partitions: int


class SpanOptions(TaskOptions, frozen=True):
    window: WindowOptions
    starts: tuple[int, ...]
    number: int
    row_starts: tuple[int, ...]  # number of the first row of each shard, and how many rows there are


class TextOptions(SpanOptions, frozen=True):
    keep: Keep


def _find_repeated(step: DedupStep, asked: WindowOptions, considered: Sequence[Considered]) -> Phase:
    """The receipts of resolving and, for trim, of every cut; then those of the spans."""
    window = replace(asked, normalization=WORD_NORMALIZATION)
    if window.policy == "trim":  # a document without a word of its own would be left without a text
        window = replace(window, min_words=max(window.min_words, 1))
    shards = [one.shard for one in considered]
    directory, rows = str(step.directory), row_starts(shards)
    kept = cached_shards(step, considered, PASSAGES, mark_config(window), row_bytes=ROW_BYTES, share=SHARE)
    marked = yield [
        Task(
            function="dedup.windows",
            key=f"w{shard.number:05d}",
            options=MarkOptions(
                window=window, keep=keep, number=shard.number, group=group, by_source=step.options.by_source
            ),
            inputs=inputs,
            directory=directory,
            cached=cached,
        )
        for (shard, keep, inputs), group, cached in zip(
            considered, step.options.groups(shards), kept, strict=True
        )
    ]
    totals = tables_of(step, marked, "totals")
    starts = (0, *itertools.accumulate(item.rows for item in totals))
    marks = tables_of(step, marked, "windows")
    partitions = partitions_for(sum(item.rows for item in marks), MARKS_AT_ONCE, step.options.partitions)
    met = yield [
        Task(
            function="dedup.meetings",
            key=f"m{partition:04d}",
            options=MeetingOptions(window=window, starts=starts, partition=partition, partitions=partitions),
            inputs=marks,
            directory=directory,
        )
        for partition in range(partitions)
    ]
    meetings, ends = (tables_of(step, met, name) for name in ("meetings", "ends"))
    stored = yield [
        Task(
            function="dedup.passage_texts",
            key=f"t{shard.number:05d}",
            options=TextOptions(
                window=window, starts=starts, number=shard.number, row_starts=rows, keep=keep
            ),
            inputs=[*inputs, *ends],
            directory=directory,
        )
        for shard, keep, inputs in considered
    ]
    texts = tables_of(step, stored, "texts")
    extended = yield [
        Task(
            function="dedup.spans",
            key=f"s{shard.number:05d}",
            options=SpanOptions(window=window, starts=starts, number=shard.number, row_starts=rows),
            inputs=[*meetings, *texts, *totals],
            directory=directory,
        )
        for shard in shards
    ]
    spans = tables_of(step, extended, "spans")
    walked = yield [
        Task(
            function="dedup.walk",
            key=f"o{shard.number:05d}",
            options=WalkOptions(start=start),
            inputs=[own, total],
            directory=directory,
        )
        for shard, start, own, total in zip(shards, rows, spans, totals, strict=False)
    ]
    resolved = yield [
        Task(
            function="dedup.settle",
            key="window",
            options=ResolveSpansOptions(
                window=window,
                starts=rows,
                shards=tuple(shard.name for shard in shards),
                is_reference=_are_references(step, shards) if window.policy != "report" else (),
                has_equal_copies=not getattr(step.options, "templates", None),
            ),
            inputs=[*spans, *tables_of(step, walked, "walk"), *totals, *_drops_before(considered)],
            directory=directory,
        )
    ]
    if window.policy != "trim":
        return [*resolved, *extended]
    counted = table_input("counted", step.directory, resolved[0].files[1])
    cut = yield [
        Task(
            function="dedup.cut",
            key=f"{shard.number:05d}",
            options=TextOptions(
                window=window, starts=starts, number=shard.number, row_starts=rows, keep=keep
            ),
            inputs=[*inputs, counted],
            directory=directory,
        )
        for shard, keep, inputs in considered
    ]
    return [*resolved, *cut, *extended]


def _drops_before(considered: Sequence[Considered]) -> list[Input]:
    """Tables of documents that were dropped, which any shard has; one of a shard alone names no survivor."""
    found = considered[0].inputs if considered else []
    return [item for item in found if item.role in TABLES.values()]


def _are_references(step: DedupStep, shards: Sequence[Shard]) -> tuple[bool, ...]:
    found = tuple(shard.source in step.options.reference for shard in shards)
    return found if any(found) else ()


def perform_windows(task: Task[MarkOptions]) -> Made:
    options = task.options
    rows = considered_rows(task.inputs, options.number)
    ranks = load_ranks(task.inputs, options.keep)[rows]
    marked = marked_rows(task, rows, options.window)
    places = np.repeat(np.arange(len(rows)), marked.counts)  # of the document of each mark
    salt = scope_salts(task, rows, group=options.group, by_source=options.by_source)
    hashes = marked.hashes ^ (salt[places] if np.ndim(salt) else salt)
    order = by_hash(hashes)
    columns = (hashes, places, marked.first_words, ranks[places])
    totals = [rows, marked.words, ranks]
    return Made(
        [
            write_run(task, "windows", [column[order] for column in columns], WINDOWS),
            write_run(task, "totals", totals, TOTALS),
        ],
        {},
    )


def perform_meetings(task: Task[MeetingOptions]) -> Made:
    options, runs = task.options, open_runs(task.inputs, "windows", WINDOWS)
    if not runs:
        return Made([], {})
    hashes, number, word, rank = load_numbered(
        runs, WINDOWS, options.partition, options.partitions, options.starts
    )
    marks, firsts = match_marks(hashes, number, rank)
    order = np.argsort(number[marks], kind="stable")
    marks, firsts = marks[order], firsts[order]
    found = [number[marks], word[marks], number[firsts], word[firsts]]
    ends = np.unique(np.concatenate([found[0], found[2]]))
    return Made([write_run(task, "meetings", found, MEETINGS), write_run(task, "ends", [ends], NUMBERS)], {})


def perform_passage_texts(task: Task[TextOptions]) -> Made:
    number, wanted = task.options.number, wanted_numbers(task, "ends")
    texts = pa.array([], pa.large_string())
    if len(wanted):
        rows = considered_rows(task.inputs, number)[wanted - task.options.starts[number]]
        texts = load_texts(task.inputs, rows)
    return Made([write_numbered_texts(task, wanted, texts)], {})


def perform_spans(task: Task[SpanOptions]) -> Made:
    options = task.options
    start, end = options.starts[options.number : options.number + 2]
    runs = open_runs(task.inputs, "meetings", MEETINGS)
    number, word, first, first_word = joined(load_between(runs, start, end), MEETINGS)
    table = SPANS.empty_table()
    if len(number):
        used, places = np.unique(np.concatenate([number, first]), return_inverse=True)
        totals = open_runs(task.inputs, "totals", TOTALS)
        (ranks,) = take_numbered(totals, np.asarray(options.starts, np.int64), used, ["rank"])
        held = NumberedTexts(task, options.starts).take(used)
        pairs = Pairs(places[: len(number)], word, places[len(number) :], first_word)
        spans = extend_matches(held, pairs, options.window, ranks).spans
        shards = np.searchsorted(options.starts, used, side="right") - 1
        (rows,) = take_numbered(totals, np.asarray(options.starts, np.int64), used, ["row"])
        counted = np.asarray(options.row_starts, np.int64)[shards] + rows
        named = spans._replace(rows=counted[spans.rows], first_rows=counted[spans.first_rows])
        table = pa.table(list(named), schema=SPANS)
    return Made([write_shard_table(task.directory, f"spans-{task.key}.parquet", "spans", table)], {})


def perform_cut(task: Task[TextOptions]) -> Made:
    """The texts of one shard without their later copies."""
    options = task.options
    (path,) = task.paths("counted")
    found = load_range(path, "shard", options.number)
    if not found.num_rows:
        return Made([], {}, {"bytes_cut": 0})
    spans = Spans(*(np.asarray(found.column(name)) for name in SPANS.names))
    ranked = load_ranked(task.inputs, options.number, options.keep)
    places = np.searchsorted(ranked.rows, spans.rows - options.row_starts[options.number])
    trimmed = trim_texts(ranked.texts, spans._replace(rows=places))
    rows = np.unique(trimmed.rows)
    if not len(rows):
        return Made([], {}, {"bytes_cut": 0})
    table = pa.table([ranked.rows[rows].astype(np.uint32), trimmed.texts.take(pa.array(rows))], schema=EDITS)
    cut = int((trimmed.ends - trimmed.starts).sum())
    entry = write_shard_table(task.directory, f"trims-{task.key}.parquet", "trims", table)
    return Made([entry], {}, {"bytes_cut": cut})


def _facts(step: DedupStep, receipts: Sequence[Receipt]) -> Json:
    cut = sum(receipt.facts.get("bytes_cut", 0) for receipt in receipts)
    return {**receipts[0].facts, "bytes_cut": cut}


def _versions(options: DedupOptions, asked: WindowOptions, has_chats: bool) -> list[str]:
    spared = ["a reference loses nothing"] if options.reference and asked.policy != "report" else []
    emptied = ["none is left empty"] if asked.policy == "trim" and not asked.min_words else []
    return [WORD_NORMALIZATION, *spared, *emptied]


METHOD = Method(
    key="window",
    options=WindowOptions,
    reason="window_dup",
    find=_find_repeated,
    tasks={
        "dedup.windows": TaskFunction(MarkOptions, perform_windows),
        "dedup.meetings": TaskFunction(MeetingOptions, perform_meetings),
        "dedup.passage_texts": TaskFunction(TextOptions, perform_passage_texts),
        "dedup.spans": TaskFunction(SpanOptions, perform_spans),
        "dedup.walk": TaskFunction(WalkOptions, perform_walk),
        "dedup.settle": TaskFunction(ResolveSpansOptions, perform_resolve_spans),
        "dedup.cut": TaskFunction(TextOptions, perform_cut),
    },
    facts=_facts,
    cached=(PASSAGES,),
    edits=Edited("trims", "passages_trimmed"),
    versions=_versions,
)

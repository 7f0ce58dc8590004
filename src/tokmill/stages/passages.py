"""Repeated passages as tasks.

    shard ─ windows ─> windows-<s>           marks, a run by hash;  totals-<s>: row, words and rank of each document
    partition ─ meetings ─> meetings-<p>     marks that an earlier document has too, a run by document
                          └ ends-<p>         documents of either side
    shard ─ extract ─> passage-texts-<s>     texts of both sides, to be mapped
    shard ─ spans ─> spans-<s>               runs of equal words around each meeting, verified
    shard ─ walk ─> walk-<s>                 its spans in keep order                    tokmill.stages.settling
    all spans ─ settle ─> settled            which documents go, which spans count
    shard ─ cut ─> edits-<s>                 texts without their later copies (policy trim)

Documents have numbers as in `tokmill.stages.neardup`: their place among all that are considered. There are as many
partitions as the marks call for.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tokmill.dedup.window import (
    Pairs,
    Spans,
    count_words,
    extend_matches,
    match_marks,
    trim_texts,
    window_marks,
)
from tokmill.dedup.wordforms import WORD_NORMALIZATION
from tokmill.manifest import Receipt
from tokmill.schema import EDITS, SPANS
from tokmill.stages.numbered import NumberedTexts, write_numbered_texts
from tokmill.stages.ranking import OWN_SOURCE, Considered, load_ranked, scope_salts
from tokmill.stages.runs import (
    Layout,
    by_hash,
    joined,
    load_between,
    load_partition,
    open_runs,
    partitions_for,
    write_run,
)
from tokmill.stages.settling import TOTALS, window_options
from tokmill.stages.step import Made, Step, write_shard_table
from tokmill.storage.parquet import load_range
from tokmill.task import Input, Task, table_input

WINDOWS: Layout = {"hash": "<u8", "index": "<u4", "word": "<i8", "rank": "<i8"}
MEETINGS: Layout = {"number": "<i8", "word": "<i8", "first": "<i8", "first_word": "<i8"}
ENDS: Layout = {"number": "<i8"}

# 28 bytes a mark, and five times that while they are matched. A billion documents of 1,000 words make 59,000
# partitions.
MARKS_AT_ONCE = 1_000_000

Phase = Generator[list[Task], list[Receipt], list[Receipt]]


def find_repeated(step: Step, considered: Sequence[Considered]) -> Phase:
    """The receipts of `settle` and, for trim, of every cut; then those of the spans."""
    window = {**step.config["window"], "normalization": WORD_NORMALIZATION}
    shards = [one.shard for one in considered]
    directory = str(step.directory)
    sources = list(dict.fromkeys(shard.source for shard in shards))
    per_source = step.config["scope"] == "per-source"
    marked = yield [
        Task(
            function="dedup.windows",
            key=f"w{shard.number:05d}",
            config={
                "window": window,
                "keep": keep,
                "number": shard.number,
                "group": sources.index(shard.source) + 1 if per_source else 0,
                **({"by_source": True} if step.config["scope"] == OWN_SOURCE else {}),
            },
            inputs=inputs,
            directory=directory,
        )
        for shard, keep, inputs in considered
    ]
    totals = _tables(step, marked, "totals")
    starts = [0, *itertools.accumulate(item.rows for item in totals)]
    common = {"window": window, "starts": starts}
    marks = _tables(step, marked, "windows")
    partitions = partitions_for(sum(item.rows for item in marks), MARKS_AT_ONCE, step.config["partitions"])
    met = yield [
        Task(
            function="dedup.meetings",
            key=f"m{partition:04d}",
            config={**common, "partition": partition, "partitions": partitions},
            inputs=marks,
            directory=directory,
        )
        for partition in range(partitions)
    ]
    meetings, ends = (_tables(step, met, name) for name in ("meetings", "ends"))
    stored = yield [
        Task(
            function="dedup.passage_texts",
            key=f"t{shard.number:05d}",
            config={**common, "number": shard.number, "keep": keep},
            inputs=[*inputs, *ends],
            directory=directory,
        )
        for shard, keep, inputs in considered
    ]
    texts = _tables(step, stored, "texts")
    extended = yield [
        Task(
            function="dedup.spans",
            key=f"s{shard.number:05d}",
            config={**common, "number": shard.number},
            inputs=[*meetings, *texts, *totals],
            directory=directory,
        )
        for shard in shards
    ]
    spans = _tables(step, extended, "spans")
    walked = yield [
        Task(
            function="dedup.walk",
            key=f"o{shard.number:05d}",
            config={"start": start},
            inputs=[own, total],
            directory=directory,
        )
        for shard, start, own, total in zip(shards, starts, spans, totals, strict=False)
    ]
    settled = yield [
        Task(
            function="dedup.settle",
            key="window",
            config={**common, "shards": [shard.name for shard in shards]},
            inputs=[*spans, *_tables(step, walked, "walk"), *totals],
            directory=directory,
        )
    ]
    if window["policy"] != "trim":
        return [*settled, *extended]
    counted = table_input("counted", step.directory, settled[0].files[1])
    cut = yield [
        Task(
            function="dedup.cut",
            key=f"{shard.number:05d}",
            config={**common, "number": shard.number, "keep": keep},
            inputs=[*inputs, counted],
            directory=directory,
        )
        for shard, keep, inputs in considered
    ]
    return [*settled, *cut, *extended]


def _tables(step: Step, receipts: Sequence[Receipt], name: str) -> list[Input]:
    return [
        table_input(name, step.directory, entry)
        for receipt in receipts
        for entry in receipt.files
        if entry.table == name
    ]


def perform_windows(task: Task) -> Made:
    ranked = load_ranked(task.inputs, task.config["number"], task.config["keep"])
    marks = window_marks(ranked.texts, window_options(task.config["window"]))
    salt = scope_salts(task, ranked.rows)
    hashes = marks.hashes ^ (salt[marks.rows] if np.ndim(salt) else salt)
    order = by_hash(hashes)
    columns = (hashes, marks.rows, marks.first_words, ranked.ranks[marks.rows])
    totals = [ranked.rows, count_words(ranked.texts), ranked.ranks]
    return Made(
        [
            write_run(task, "windows", [column[order] for column in columns], WINDOWS),
            write_run(task, "totals", totals, TOTALS),
        ],
        {},
    )


def perform_meetings(task: Task) -> Made:
    config, runs = task.config, open_runs(task.inputs, "windows", WINDOWS)
    parts = []
    for start, (hashes, index, word, rank) in zip(
        config["starts"], load_partition(runs, config["partition"], config["partitions"]), strict=False
    ):
        parts.append((hashes, index.astype(np.int64) + start, word, rank))
    if not parts:
        return Made([], {})
    hashes, number, word, rank = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    del parts
    marks, firsts = match_marks(hashes, number, rank)
    order = np.argsort(number[marks], kind="stable")
    marks, firsts = marks[order], firsts[order]
    found = [number[marks], word[marks], number[firsts], word[firsts]]
    ends = np.unique(np.concatenate([found[0], found[2]]))
    return Made([write_run(task, "meetings", found, MEETINGS), write_run(task, "ends", [ends], ENDS)], {})


def perform_passage_texts(task: Task) -> Made:
    number = task.config["number"]
    start, end = task.config["starts"][number : number + 2]
    (wanted,) = joined(load_between(open_runs(task.inputs, "ends", ENDS), start, end), ENDS)
    wanted = np.unique(wanted)
    texts = pa.array([], pa.large_string())
    if len(wanted):
        ranked = load_ranked(task.inputs, number, task.config["keep"])
        texts = ranked.texts.take(pa.array(wanted - start))
    return Made([write_numbered_texts(task, wanted, texts)], {})


def perform_spans(task: Task) -> Made:
    options, shard = window_options(task.config["window"]), task.config["number"]
    start, end = task.config["starts"][shard : shard + 2]
    runs = open_runs(task.inputs, "meetings", MEETINGS)
    number, word, first, first_word = joined(load_between(runs, start, end), MEETINGS)
    table = SPANS.empty_table()
    if len(number):
        used, places = np.unique(np.concatenate([number, first]), return_inverse=True)
        ranks = _ranks(task, used)
        held = NumberedTexts(task).take(used)
        pairs = Pairs(places[: len(number)], word, places[len(number) :], first_word)
        spans = extend_matches(held, pairs, options, ranks).spans
        named = spans._replace(rows=used[spans.rows], first_rows=used[spans.first_rows])
        table = pa.table(list(named), schema=SPANS)
    return Made([write_shard_table(task.directory, f"spans-{task.key}.parquet", "spans", table)], {})


def _ranks(task: Task, numbers: Any) -> Any:
    """Of these numbers, ascending."""
    starts = np.asarray(task.config["starts"], np.int64)
    cuts = np.searchsorted(numbers, starts).tolist()
    found = [np.empty(0, np.int64)]
    for shard, run in enumerate(open_runs(task.inputs, "totals", TOTALS)):
        own = numbers[cuts[shard] : cuts[shard + 1]] - starts[shard]
        if len(own):
            found += run.take(own, ["rank"])
    return np.concatenate(found)


def perform_cut(task: Task) -> Made:
    """The texts of one shard without their later copies."""
    (path,) = task.paths("counted")
    found = load_range(path, "shard", task.config["number"])
    if not found.num_rows:
        return Made([], {}, {"bytes_cut": 0})
    start = task.config["starts"][task.config["number"]]
    spans = Spans(*(np.asarray(found.column(name)) for name in SPANS.names))
    ranked = load_ranked(task.inputs, task.config["number"], task.config["keep"])
    trimmed = trim_texts(ranked.texts, spans._replace(rows=spans.rows - start))
    rows = np.unique(trimmed.rows)
    if not len(rows):
        return Made([], {}, {"bytes_cut": 0})
    table = pa.table([ranked.rows[rows].astype(np.uint32), trimmed.texts.take(pa.array(rows))], schema=EDITS)
    cut = int((trimmed.ends - trimmed.starts).sum())
    entry = write_shard_table(task.directory, f"trims-{task.key}.parquet", "trims", table)
    return Made([entry], {}, {"bytes_cut": cut})

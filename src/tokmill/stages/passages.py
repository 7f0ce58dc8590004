"""Repeated passages as tasks.

    shard ─ windows ─> windows-<s>           marks by partition of their hashes; words per document
    partition ─ meetings ─> meetings-<p>     marks that an earlier document has too
    shard ─ extract ─> passage-texts-<s>     texts of both sides, to be mapped
    shard ─ spans ─> spans-<s>               runs of equal words around each meeting, verified
    all spans ─ settle ─> settled            which documents go, which spans count
    shard ─ cut ─> edits-<s>                 texts without their later copies (policy trim)

Documents have numbers as in `tokmill.stages.neardup`: their place among all that are considered.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tokmill.dedup.exact import partition_of
from tokmill.dedup.window import (
    Pairs,
    Spans,
    WindowOptions,
    count_words,
    extend_matches,
    match_marks,
    settle,
    trim_texts,
    window_marks,
)
from tokmill.dedup.wordforms import WORD_NORMALIZATION
from tokmill.manifest import Json, Receipt
from tokmill.schema import DROPS, EDITS, SPANS
from tokmill.stages.numbered import load_numbered_texts, write_numbered_texts
from tokmill.stages.ranking import Considered, load_ranked
from tokmill.stages.step import Made, Step, write_shard_table, write_task_table
from tokmill.storage.parquet import load_range, load_table
from tokmill.task import Task, table_input

WINDOWS = pa.schema(
    [
        pa.field("partition", pa.uint16(), nullable=False),
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("index", pa.uint32(), nullable=False),
        pa.field("word", pa.int64(), nullable=False),
        pa.field("rank", pa.int64(), nullable=False),
    ]
)
TOTALS = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("row", "words", "rank")])
MEETINGS = pa.schema(
    [
        pa.field("shard", pa.uint32(), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in ("number", "word", "first", "first_word")),
    ]
)

Phase = Generator[list[Task], list[Receipt], list[Receipt]]


def find_repeated(step: Step, considered: Sequence[Considered]) -> Phase:
    """The receipts of `settle` and, for trim, of every cut; then those of the spans."""
    window = {**step.config["window"], "normalization": WORD_NORMALIZATION}
    shards = [one.shard for one in considered]
    partitions, directory = step.config["partitions"], str(step.directory)
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
                "partitions": partitions,
                "group": sources.index(shard.source) + 1 if per_source else 0,
            },
            inputs=inputs,
            directory=directory,
        )
        for shard, keep, inputs in considered
    ]
    totals = [table_input("totals", step.directory, receipt.files[1]) for receipt in marked]
    starts = [0, *itertools.accumulate(item.rows for item in totals)]
    common = {"window": window, "starts": starts}
    marks = [table_input("windows", step.directory, receipt.files[0]) for receipt in marked]
    met = yield [
        Task(
            function="dedup.meetings",
            key=f"m{partition:04d}",
            config={**common, "partition": partition},
            inputs=marks,
            directory=directory,
        )
        for partition in range(partitions)
    ]
    meetings = [table_input("meetings", step.directory, receipt.files[0]) for receipt in met]
    stored = yield [
        Task(
            function="dedup.passage_texts",
            key=f"t{shard.number:05d}",
            config={**common, "number": shard.number, "keep": keep},
            inputs=[*inputs, *meetings],
            directory=directory,
        )
        for shard, keep, inputs in considered
    ]
    texts = [table_input("texts", step.directory, receipt.files[0]) for receipt in stored]
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
    spans = [table_input("spans", step.directory, receipt.files[0]) for receipt in extended]
    settled = yield [
        Task(
            function="dedup.settle",
            key="window",
            config={**common, "shards": [shard.name for shard in shards]},
            inputs=[*spans, *totals],
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


def window_options(window: Json) -> WindowOptions:
    return WindowOptions(
        words=window["words"],
        winnow=window["winnow"],
        policy=window["policy"],
        max_share=float(window["max_share"]),
        min_words=window["min_words"],
    )


def perform_windows(task: Task) -> Made:
    ranked = load_ranked(task.inputs, task.config["number"], task.config["keep"])
    marks = window_marks(ranked.texts, window_options(task.config["window"]))
    salt = np.uint64((task.config["group"] * 0x9E3779B97F4A7C15) & (2**64 - 1))
    hashes = marks.hashes ^ salt
    partition = partition_of(hashes, task.config["partitions"]).astype(np.uint16)
    order = np.argsort(partition, kind="stable")
    ranks = ranked.ranks[marks.rows]
    columns = (partition, hashes, marks.rows.astype(np.uint32), marks.first_words, ranks)
    table = pa.table([column[order] for column in columns], schema=WINDOWS)
    totals = pa.table([ranked.rows, count_words(ranked.texts), ranked.ranks], schema=TOTALS)
    return Made(
        [
            write_task_table(task, "windows", table, "partition"),
            write_shard_table(task.directory, f"totals-{task.key}.parquet", "totals", totals),
        ],
        {},
    )


def perform_meetings(task: Task) -> Made:
    starts = np.asarray(task.config["starts"], np.int64)
    found = []
    for start, path in zip(starts.tolist(), task.paths("windows"), strict=False):
        table = load_range(path, "partition", task.config["partition"])
        number = np.asarray(table.column("index")).astype(np.int64) + start
        found.append(
            (
                np.asarray(table.column("hash")),
                number,
                *(np.asarray(table.column(c)) for c in ("word", "rank")),
            )
        )
    hashes, number, word, rank = (np.concatenate(columns) for columns in zip(*found, strict=True))
    matches = match_marks(hashes, number, rank)
    shard = (np.searchsorted(starts, number[matches.marks], side="right") - 1).astype(np.uint32)
    order = np.argsort(shard, kind="stable")
    columns = (
        shard,
        number[matches.marks],
        word[matches.marks],
        number[matches.firsts],
        word[matches.firsts],
    )
    table = pa.table([column[order] for column in columns], schema=MEETINGS)
    return Made([write_task_table(task, "meetings", table, "shard")], {})


def perform_passage_texts(task: Task) -> Made:
    number = task.config["number"]
    start, end = task.config["starts"][number : number + 2]
    ends: list[Any] = [np.empty(0, np.int64)]
    for path in task.paths("meetings"):
        table = load_table(path, ["number", "first"])
        for name in ("number", "first"):
            column = np.asarray(table.column(name))
            ends.append(column[(column >= start) & (column < end)])
    wanted = np.unique(np.concatenate(ends))
    texts = pa.array([], pa.large_string())
    if len(wanted):
        ranked = load_ranked(task.inputs, number, task.config["keep"])
        texts = ranked.texts.take(pa.array(wanted - start))
    return Made([write_numbered_texts(task, wanted, texts)], {})


def perform_spans(task: Task) -> Made:
    options = window_options(task.config["window"])
    found = pa.concat_tables(
        [load_range(path, "shard", task.config["number"]) for path in task.paths("meetings")]
    )
    number, word, first, first_word = (np.asarray(found.column(name)) for name in MEETINGS.names[1:])
    table = SPANS.empty_table()
    if len(number):
        used, places = np.unique(np.concatenate([number, first]), return_inverse=True)
        ranks = _ranks(task, used)
        held = load_numbered_texts(task).take(used)
        pairs = Pairs(places[: len(number)], word, places[len(number) :], first_word)
        spans = extend_matches(held, pairs, options, ranks).spans
        named = spans._replace(rows=used[spans.rows], first_rows=used[spans.first_rows])
        table = pa.table(list(named), schema=SPANS)
    return Made([write_shard_table(task.directory, f"spans-{task.key}.parquet", "spans", table)], {})


def _ranks(task: Task, numbers: Any) -> Any:
    """Of these numbers, ascending."""
    starts = np.asarray(task.config["starts"], np.int64)
    shards = np.searchsorted(starts, numbers, side="right") - 1
    paths = task.paths("totals")
    found = [np.empty(0, np.int64)]
    for shard in np.unique(shards).tolist():
        ranks = np.asarray(load_table(paths[shard], ["rank"]).column("rank"))
        found.append(ranks[numbers[shards == shard] - starts[shard]])
    return np.concatenate(found)


def perform_settle(task: Task) -> Made:
    options, starts = window_options(task.config["window"]), np.asarray(task.config["starts"], np.int64)
    spans = Spans(*_columns([load_table(path) for path in task.paths("spans")], SPANS))
    totals = _columns([load_table(path) for path in task.paths("totals")], TOTALS)
    row, words, rank = totals
    settled = settle(spans, words, options, rank)
    names = pa.array(task.config["shards"], pa.string())
    dropped = np.flatnonzero(settled.is_dropped)
    # for whom: the document with the earlier copy of the longest passage that counts
    survivor = np.full(len(words), -1, np.int64)
    order = np.argsort(np.where(settled.counts, spans.words, 0), kind="stable")
    survivor[spans.rows[order]] = spans.first_rows[order]
    other = survivor[dropped]
    shard, other_shard = (np.searchsorted(starts, docs, side="right") - 1 for docs in (dropped, other))
    table = pa.table(
        [
            shard.astype(np.uint32),
            row[dropped].astype(np.uint32),
            names.take(pa.array(other_shard)),
            row[other].astype(np.uint32),
            settled.repeated_words[dropped] / np.maximum(words[dropped], 1),
            pa.nulls(len(dropped), pa.int64()),
            pa.nulls(len(dropped), pa.int64()),
            pa.nulls(len(dropped), pa.string()),
        ],
        schema=DROPS,
    )
    kept = settled.counts & ~settled.is_dropped[spans.rows]
    counted = pa.table(
        [
            (np.searchsorted(starts, spans.rows[kept], side="right") - 1).astype(np.uint32),
            *(column[kept] for column in spans),
        ],
        schema=pa.schema([MEETINGS.field("shard"), *SPANS]),
    )
    facts = {
        "passages": len(spans.rows),
        "documents": len(np.unique(spans.rows)),
        "repeated_words": int(settled.repeated_words.sum()),
    }
    return Made(
        [
            write_task_table(task, "window", table, "shard"),
            write_task_table(task, "counted", counted, "shard"),
        ],
        {},
        facts,
    )


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


def _columns(tables: list[Any], schema: Any) -> list[Any]:
    whole = pa.concat_tables([schema.empty_table(), *tables])
    return [np.asarray(whole.column(name)) for name in schema.names]

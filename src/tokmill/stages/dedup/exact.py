"""Exact duplicates as tasks: equal hashes, one range of them at a time.

    shard ─ marks ─> hashes-<s>                 a run by hash: row and rank of what is considered
    range p of the hashes ─ equal? ─> matches-<p>       duplicate -> survivor, by shard

Memory is bounded by a range, and there are as many of them as the documents call for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from tokmill.artifacts.manifest import Receipt
from tokmill.artifacts.step import Made, Task, TaskFunction, TaskOptions, table_input
from tokmill.artifacts.upstream import Shard, write_task_table
from tokmill.duplicates.shingling import match_equal
from tokmill.schema import MATCHES
from tokmill.stages.dedup.method import (
    Considered,
    DedupStep,
    Keep,
    Method,
    Phase,
    considered_rows,
    load_ranks,
    scope_salts,
)
from tokmill.stages.external.runs import (
    Layout,
    hash_range,
    joined,
    load_between,
    open_runs,
    partitions_for,
    partitions_to_share,
    write_run,
)

HASHES: Layout = {"high": "<u8", "low": "<u8", "rank": "<i8", "row": "<u4"}

# 28 bytes a document, and four times that to sort them. A billion documents make 1,000 ranges.
HASHES_AT_ONCE = 1_000_000
# Ranges are told apart by the upper 32 bits, as `partition_of` does it.
_RANGE_BITS = 32


class HashOptions(TaskOptions, frozen=True):
    number: int
    keep: Keep
    by_source: bool = False


class MatchOptions(TaskOptions, frozen=True):
    partition: int
    partitions: int
    groups: tuple[int, ...]  # per shard, likewise the others
    shards: tuple[str, ...]
    is_reference: tuple[bool, ...]
    table: str = "matches"


def _find_equal(step: DedupStep, asked: bool, considered: Sequence[Considered]) -> Phase:
    """The receipts of all ranges."""
    shards = [one.shard for one in considered]
    hashed = yield [
        Task(
            function="dedup.hashes",
            key=f"h{shard.number:05d}",
            options=HashOptions(number=shard.number, keep=keep, by_source=step.options.by_source),
            inputs=inputs,
            directory=str(step.directory),
        )
        for shard, keep, inputs in considered
    ]
    return (yield match_tasks(step, shards, hashed))


def match_tasks(
    step: DedupStep,
    shards: Sequence[Shard],
    hashed: Sequence[Receipt],
    key: str = "p",
    table: str = "matches",
) -> list[Task]:
    """A task for every range of what `hashed` wrote, one run for each shard."""
    options = step.options
    hashes = [table_input("hashes", step.directory, receipt.files[0]) for receipt in hashed]
    documents = sum(item.rows for item in hashes)
    at_least = max(options.partitions, partitions_to_share(documents))
    partitions = partitions_for(documents, HASHES_AT_ONCE, at_least)
    whole = MatchOptions(
        partition=0,
        partitions=partitions,
        groups=tuple(max(group - 1, 0) for group in options.groups(shards)),
        shards=tuple(shard.name for shard in shards),
        is_reference=tuple(shard.source in options.reference for shard in shards),
        table=table,
    )
    return [
        Task(
            function="dedup.match",
            key=f"{key}{partition:04d}",
            options=replace(whole, partition=partition),
            inputs=hashes,
            directory=str(step.directory),
        )
        for partition in range(partitions)
    ]


def perform_hashes(task: Task[HashOptions]) -> Made:
    marks = task.load("marks", ["exact_high", "exact_low"])
    rows = considered_rows(task.inputs, task.options.number)
    high, low = (np.asarray(marks.column(name))[rows] for name in ("exact_high", "exact_low"))
    return write_hashes(task, rows, high, low)


def write_hashes(task: Task[Any], rows: Any, high: Any, low: Any) -> Made:
    """The run of a shard: 128 bits of each of these rows."""
    if task.options.by_source:
        high = high ^ scope_salts(task, rows, group=0, by_source=True)
    order = np.argsort(high, kind="stable")
    ranks = load_ranks(task.inputs, task.options.keep)[rows]
    columns = [column[order] for column in (high, low, ranks, rows)]
    return Made([write_run(task, "hashes", columns, HASHES)], {})


def perform_match(task: Task[MatchOptions]) -> Made:
    """Duplicates within one range of the hash space."""
    options = task.options
    bounds = hash_range(options.partition, options.partitions, _RANGE_BITS)
    parts = list(load_between(open_runs(task.inputs, "hashes", HASHES), *bounds))
    shard = np.repeat(
        np.arange(len(parts), dtype=np.uint32), np.array([len(part[0]) for part in parts], np.int64)
    )
    high, low, rank, row = joined(iter(parts), HASHES)
    del parts
    # positions decide between equal ranks, and a run is in order of its hashes
    by_position = np.lexsort((row, shard))
    high, low, rank, row = (column[by_position] for column in (high, low, rank, row))
    group = np.asarray(options.groups, np.uint32)[shard]
    found = match_equal(high, low, group, rank)
    may_go = ~np.asarray(options.is_reference, np.bool_)[shard[found.duplicates]]
    duplicates, survivors = found.duplicates[may_go], found.survivors[may_go]
    in_order = np.lexsort((row[duplicates], shard[duplicates]))
    duplicates, survivors = duplicates[in_order], survivors[in_order]
    names = pa.array(options.shards, pa.string())
    table = pa.table(
        [
            shard[duplicates],
            row[duplicates],
            names.take(pa.array(shard[survivors])),
            row[survivors],
        ],
        schema=MATCHES,
    )
    return Made([write_task_table(task, options.table, table, "shard")], {})


METHOD = Method(
    key="exact",
    options=bool,
    reason="exact_dup",
    find=_find_equal,
    tasks={
        "dedup.hashes": TaskFunction(HashOptions, perform_hashes),
        "dedup.match": TaskFunction(MatchOptions, perform_match),
    },
    # hashes are in the marks; which source a document says it is of, in the documents
    reads=lambda options, shard: [shard.marks, *([shard.documents] if options.by_source else [])],
)

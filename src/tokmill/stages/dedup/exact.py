"""Exact duplicates as tasks: equal hashes, one range of them at a time.

    shard ─ marks ─> hashes-<s>                 a run by hash: row and rank of what is considered
    range p of the hashes ─ equal? ─┬─> matches-<p>              where no other method may drop the first of
                                    │                            several: duplicate -> survivor, by shard
                                    └─> edges-<p>, later-<p>     elsewhere: groups, which
                                                                 tokmill.stages.dedup.survivors resolves

Memory is bounded by a range, and there are as many of them as the documents call for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from tokmill.artifacts.manifest import Receipt
from tokmill.artifacts.step import Made, Task, TaskFunction, TaskOptions, table_input
from tokmill.artifacts.upstream import Shard, write_task_table
from tokmill.duplicates.shingling import Matches, match_equal
from tokmill.kernels.survivors import EXACT, URL
from tokmill.schema import MATCHES
from tokmill.stages.dedup.method import (
    LATER,
    Considered,
    DedupStep,
    Keep,
    Method,
    Phase,
    considered_rows,
    later_copies,
    load_ranks,
    resolves_copies,
    row_starts,
    scope_salts,
)
from tokmill.stages.dedup.survivors import EDGES
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

HASHES: Layout = {"high": "<u8", "low": "<u8", "rank": "<i8", "row": "<u4", "is_later": "|u1"}

# How texts are compared: as they are, or after NFKC, case folding and collapsing of whitespace.
Form = Literal["text", "folded"]
_COLUMNS = {"text": ["text_high", "text_low"], "folded": ["exact_high", "exact_low"]}
FOLDED = "folded"

# 29 bytes a document, and four times that to sort them. A billion documents make 1,000 ranges.
HASHES_AT_ONCE = 1_000_000
# Ranges are told apart by the upper 32 bits, as `partition_of` does it.
_RANGE_BITS = 32


class HashOptions(TaskOptions, frozen=True):
    number: int
    keep: Keep
    form: Form
    by_source: bool = False


class MatchOptions(TaskOptions, frozen=True):
    partition: int
    partitions: int
    kind: int  # URL or EXACT
    starts: tuple[int, ...]  # number of the first row of each shard, and how many rows there are
    groups: tuple[int, ...]  # per shard, likewise the others
    shards: tuple[str, ...]
    is_reference: tuple[bool, ...]
    is_resolved: bool  # elsewhere; else the first of several is kept
    has_settled: bool  # copies may be left out of the search for near duplicates


def form_of(asked: bool | str) -> Form:
    return "folded" if asked == FOLDED else "text"


def _find_equal(step: DedupStep, asked: bool | str, considered: Sequence[Considered]) -> Phase:
    """The receipts of all ranges."""
    shards = [one.shard for one in considered]
    hashed = yield [
        Task(
            function="dedup.hashes",
            key=f"h{shard.number:05d}",
            options=HashOptions(
                number=shard.number, keep=keep, form=form_of(asked), by_source=step.options.by_source
            ),
            inputs=inputs,
            directory=str(step.directory),
        )
        for shard, keep, inputs in considered
    ]
    return (yield match_tasks(step, shards, hashed, "p", EXACT))


def match_tasks(
    step: DedupStep,
    shards: Sequence[Shard],
    hashed: Sequence[Receipt],
    key: str,
    kind: int,
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
        kind=kind,
        starts=row_starts(shards),
        groups=tuple(max(group - 1, 0) for group in options.groups(shards)),
        shards=tuple(shard.name for shard in shards),
        is_reference=tuple(shard.source in options.reference for shard in shards),
        is_resolved=resolves_copies(options),
        has_settled=kind == EXACT and not getattr(options, "templates", None),
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
    marks = task.load("marks", _COLUMNS[task.options.form])
    rows = considered_rows(task.inputs, task.options.number)
    high, low = (np.asarray(marks.column(name))[rows] for name in marks.column_names)
    return write_hashes(task, rows, high, low)


def write_hashes(task: Task[Any], rows: Any, high: Any, low: Any) -> Made:
    """The run of a shard: 128 bits of each of these rows."""
    if task.options.by_source:
        high = high ^ scope_salts(task, rows, group=0, by_source=True)
    order = np.argsort(high, kind="stable")
    ranks = load_ranks(task.inputs, task.options.keep)
    is_later = later_copies(task.inputs, task.options.number, len(ranks)).by_url[rows]
    columns = [column[order] for column in (high, low, ranks[rows], rows, is_later)]
    return Made([write_run(task, "hashes", columns, HASHES)], {})


def perform_match(task: Task[MatchOptions]) -> Made:
    """Duplicates within one range of the hash space."""
    options = task.options
    bounds = hash_range(options.partition, options.partitions, _RANGE_BITS)
    parts = list(load_between(open_runs(task.inputs, "hashes", HASHES), *bounds))
    shard = np.repeat(
        np.arange(len(parts), dtype=np.uint32), np.array([len(part[0]) for part in parts], np.int64)
    )
    high, low, rank, row, is_later = joined(iter(parts), HASHES)
    del parts
    # positions decide between equal ranks, and a run is in order of its hashes
    by_position = np.lexsort((row, shard))
    high, low, rank, row, is_later = (column[by_position] for column in (high, low, rank, row, is_later))
    shard = shard[by_position]
    group = np.asarray(options.groups, np.uint32)[shard]
    found = match_equal(high, low, group, rank)
    if options.is_resolved:
        return _write_groups(task, found, shard, row, rank, is_later.astype(np.bool_))
    may_go = ~np.asarray(options.is_reference, np.bool_)[shard[found.duplicates]]
    duplicates, survivors = found.duplicates[may_go], found.survivors[may_go]
    in_order = np.argsort(duplicates)
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
    return Made([write_task_table(task, "matches", table, "shard")], {})


def _write_groups(
    task: Task[MatchOptions], found: Matches, shard: Any, row: Any, rank: Any, is_later: Any
) -> Made:
    """Members of groups, each with the first of its group; and who is not the first."""
    options = task.options
    first = np.arange(len(row))
    first[found.duplicates] = found.survivors
    members = np.unique(np.concatenate([found.duplicates, found.survivors]))
    members = members[np.lexsort((members, rank[members], first[members]))]
    # a document is settled by one before it that no URL can drop: what becomes of that one becomes of it
    before = np.cumsum(~is_later[members]) - ~is_later[members]
    of_group = np.searchsorted(first[members], first[members])
    is_settled = (before > before[of_group]) & options.has_settled
    is_copy = first[members] != members
    copies, is_settled = members[is_copy], is_settled[is_copy]
    in_order = np.argsort(copies)
    is_page = np.full(len(copies), options.kind == URL)
    later = pa.table(
        [shard[copies[in_order]], row[copies[in_order]], is_page, is_settled[in_order]], schema=LATER
    )
    numbers = np.asarray(options.starts, np.int64)[shard] + row
    members = members[np.lexsort((members, rank[members]))]
    firsts = first[members]
    edges = [
        *(rank[members], numbers[members], rank[firsts], numbers[firsts]),
        *(np.ones(len(members)), np.full(len(members), options.kind, np.uint8)),
    ]
    return Made([write_run(task, "edges", edges, EDGES), write_task_table(task, "later", later, "shard")], {})


METHOD = Method(
    key="exact",
    options=cast(type[bool | str], bool | Literal["folded"]),
    reason="exact_dup",
    find=_find_equal,
    tasks={
        "dedup.hashes": TaskFunction(HashOptions, perform_hashes),
        "dedup.match": TaskFunction(MatchOptions, perform_match),
    },
    # hashes are in the marks; which source a document says it is of, in the documents
    reads=lambda options, shard: [shard.marks, *([shard.documents] if options.by_source else [])],
)

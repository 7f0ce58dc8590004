"""Exact duplicates as tasks: equal hashes, one range of them at a time.

    shard ─ marks ─> hashes-<s>                 a run by hash: row and rank of what is considered
    range p of the hashes ─ equal? ─> matches-<p>       duplicate -> survivor, by shard

Memory is bounded by a range, and there are as many of them as the documents call for.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np
import pyarrow as pa

from tokmill.dedup.exact import match_equal
from tokmill.manifest import Receipt
from tokmill.schema import MATCHES
from tokmill.stages.ranking import OWN_SOURCE, Considered, load_ranks, scope_salts
from tokmill.stages.runs import Layout, hash_range, joined, load_between, open_runs, partitions_for, write_run
from tokmill.stages.step import Made, Step, write_task_table
from tokmill.storage.parquet import load_range
from tokmill.task import Task, table_input

HASHES: Layout = {"high": "<u8", "low": "<u8", "rank": "<i8", "row": "<u4"}

# 28 bytes a document, and four times that to sort them. A billion documents make 1,000 ranges.
HASHES_AT_ONCE = 1_000_000
# Ranges are told apart by the upper 32 bits, as `partition_of` does it.
_RANGE_BITS = 32

Phase = Generator[list[Task], list[Receipt], list[Receipt]]


def find_equal(step: Step, considered: Sequence[Considered]) -> Phase:
    """The receipts of all ranges."""
    shards, directory = [one.shard for one in considered], str(step.directory)
    by_source = {"by_source": True} if step.config["scope"] == OWN_SOURCE else {}
    hashed = yield [
        Task(
            function="dedup.hashes",
            key=f"h{shard.number:05d}",
            config={"number": shard.number, "keep": keep, **by_source},
            inputs=inputs,
            directory=directory,
        )
        for shard, keep, inputs in considered
    ]
    hashes = [table_input("hashes", step.directory, receipt.files[0]) for receipt in hashed]
    documents = sum(item.rows for item in hashes)
    partitions = partitions_for(documents, HASHES_AT_ONCE, step.config["partitions"])
    sources = list(dict.fromkeys(shard.source for shard in shards))
    per_source = step.config["scope"] == "per-source"
    common = {
        "partitions": partitions,
        "groups": [sources.index(shard.source) if per_source else 0 for shard in shards],
        "shards": [shard.name for shard in shards],
        "is_reference": [shard.source in step.config["reference"] for shard in shards],
    }
    return (
        yield [
            Task(
                function="dedup.match",
                key=f"p{partition:04d}",
                config={**common, "partition": partition},
                inputs=hashes,
                directory=directory,
            )
            for partition in range(partitions)
        ]
    )


def perform_hashes(task: Task) -> Made:
    marks = task.load("marks", ["kept", "exact_high", "exact_low"])
    kept = np.asarray(marks.column("kept")).copy()
    for drops in task.paths("contaminated"):
        kept[np.asarray(load_range(drops, "shard", task.config["number"]).column("row"))] = False
    rows = np.flatnonzero(kept)
    high, low = (np.asarray(marks.column(name))[rows] for name in ("exact_high", "exact_low"))
    if task.config.get("by_source"):
        high = high ^ scope_salts(task, rows)
    order = np.argsort(high, kind="stable")
    ranks = load_ranks(task.inputs, task.config["keep"])[rows]
    columns = [column[order] for column in (high, low, ranks, rows)]
    return Made([write_run(task, "hashes", columns, HASHES)], {})


def perform_match(task: Task) -> Made:
    """Duplicates within one range of the hash space."""
    config = task.config
    bounds = hash_range(config["partition"], config["partitions"], _RANGE_BITS)
    parts = list(load_between(open_runs(task.inputs, "hashes", HASHES), *bounds))
    shard = np.repeat(
        np.arange(len(parts), dtype=np.uint32), np.array([len(part[0]) for part in parts], np.int64)
    )
    high, low, rank, row = joined(iter(parts), HASHES)
    del parts
    # positions decide between equal ranks, and a run is in order of its hashes
    by_position = np.lexsort((row, shard))
    high, low, rank, row = (column[by_position] for column in (high, low, rank, row))
    group = np.asarray(config["groups"], np.uint32)[shard]
    found = match_equal(high, low, group, rank)
    may_go = ~np.asarray(config["is_reference"], np.bool_)[shard[found.duplicates]]
    duplicates, survivors = found.duplicates[may_go], found.survivors[may_go]
    in_order = np.lexsort((row[duplicates], shard[duplicates]))
    duplicates, survivors = duplicates[in_order], survivors[in_order]
    names = pa.array(config["shards"], pa.string())
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

"""Dedup: which documents say what another one already says. Every drop names its survivor.

    marks of all shards ─ range p of the hashes ─ equal? ─> matches-<p>   duplicate -> survivor
    what is left ─ tokmill.stages.neardup ──────────────> near, clusters
    matches, near ─ shard s ─> verdicts-<s>  every row      ledger-<s>  what was dropped and for whom

The result depends on the order of documents and the policy alone, not on shards or partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tokmill.artifact import Artifact
from tokmill.dedup.exact import match_equal, partition_of
from tokmill.errors import DedupLimit
from tokmill.manifest import Json, Receipt, file_entry, sum_counts
from tokmill.schema import MATCHES, NEAR, VERDICTS, ledger_table
from tokmill.stages.neardup import Considered, find_near
from tokmill.stages.ranking import keep_config, load_ranks, rank_inputs
from tokmill.stages.step import Conduct, Made, Outcome, Shard, Step, list_shards, write_shard_table
from tokmill.storage.digest import table_sha256
from tokmill.storage.parquet import load_range, load_table, write_sorted_table
from tokmill.task import Input, Task, table_input

EXACT, NEARLY = "exact_dup", "near_dup"


def conduct(step: Step, upstream: Mapping[str, Artifact]) -> Conduct:
    shards = list_shards(upstream)
    facts: Json = {"shards": [shard.name for shard in shards]}
    matched: list[Receipt] = []
    if step.config["exact"]:
        matched = yield [
            _match_task(step, partition, shards, upstream) for partition in range(step.config["partitions"])
        ]
    matches = [table_input("matches", step.directory, receipt.files[0]) for receipt in matched]
    found: list[Input] = list(matches)
    clusters: list[Receipt] = []
    if step.config["near"] is not None:
        considered = [
            Considered(
                shard,
                keep_config(step.config, shard, upstream),
                [*_roles(shard.inputs(), rank_inputs(step.config, shard, upstream)), *matches],
            )
            for shard in shards
        ]
        clusters = yield from find_near(step, considered)
        (resolved,) = clusters
        facts["near"] = resolved.facts
        found.append(table_input("near", step.directory, resolved.files[0]))
        _check_cluster(step, resolved)
    verdicts = yield [_verdict_task(step, shard, found) for shard in shards]
    _check_losses(step, verdicts, shards)
    return Outcome([*matched, *clusters, *verdicts], sum_counts(verdicts), facts)


def _roles(first: list[Input], more: list[Input]) -> list[Input]:
    """Each input once."""
    known = {item.role for item in first}
    return [*first, *(item for item in more if item.role not in known)]


def perform_match(task: Task) -> Made:
    """Duplicates within one range of the hash space; memory is bounded by the range."""
    high, low, numbers, rows, ranks = [], [], [], [], []
    for number, (inputs, keep) in enumerate(zip(_by_shard(task), task.config["keep"], strict=True)):
        (path,) = [Path(item.path) for item in inputs if item.role == "marks"]
        marks = load_table(path, ["kept", "exact_high", "exact_low"])
        column = np.asarray(marks.column("exact_high"))
        in_range = partition_of(column, task.config["partitions"]) == task.config["partition"]
        chosen = np.flatnonzero(np.asarray(marks.column("kept")) & in_range)
        high.append(column[chosen])
        low.append(np.asarray(marks.column("exact_low"))[chosen])
        rows.append(chosen.astype(np.uint32))
        ranks.append(load_ranks(inputs, keep)[chosen])
        numbers.append(np.full(len(chosen), number, np.uint32))
    shard, row = np.concatenate(numbers), np.concatenate(rows)
    group = np.asarray(task.config["groups"], np.uint32)[shard]
    found = match_equal(np.concatenate(high), np.concatenate(low), group, np.concatenate(ranks))
    may_go = ~np.asarray(task.config["is_reference"], np.bool_)[shard[found.duplicates]]
    duplicates, survivors = found.duplicates[may_go], found.survivors[may_go]
    names = pa.array(task.config["shards"], pa.string())
    table = pa.table(
        [
            shard[duplicates],
            row[duplicates],
            names.take(pa.array(shard[survivors])),
            row[survivors],
        ],
        schema=MATCHES,
    ).sort_by([("shard", "ascending"), ("row", "ascending")])
    file = f"matches-{task.key}.parquet"
    written = write_sorted_table(Path(task.directory) / file, table, by="shard")
    content = table_sha256(table)
    return Made([file_entry(file, "matches", written, rows=table.num_rows, content_sha256=content)], {})


def _by_shard(task: Task) -> list[list[Input]]:
    """The inputs lie one shard after the other, its marks first."""
    found: list[list[Input]] = []
    for item in task.inputs:
        if item.role == "marks":
            found.append([])
        found[-1].append(item)
    return found


def perform_verdicts(task: Task) -> Made:
    kept = np.asarray(task.load("marks", ["kept"]).column("kept")).copy()
    considered = int(kept.sum())
    doc_ids = task.load("documents", ["doc_id"]).column("doc_id")
    exact = [load_range(path, "shard", task.config["number"]) for path in task.paths("matches")]
    near = [load_range(path, "shard", task.config["number"]) for path in task.paths("near")]
    found = pa.concat_tables([_drops(exact, EXACT), _drops(near, NEARLY)]).sort_by("row").combine_chunks()
    rows = np.asarray(found.column("row"))
    kept[rows] = False
    place = np.full(len(kept), -1, np.int64)
    place[rows] = np.arange(len(rows))
    where = pa.array(place, mask=place < 0)
    told = [found.column(name).combine_chunks().take(where) for name in VERDICTS.names[1:]]
    verdicts = pa.table([kept, *told], schema=VERDICTS)
    files = [write_shard_table(task.directory, f"verdicts-{task.key}.parquet", "verdicts", verdicts)]
    if len(rows):
        ledger = _ledger(task, doc_ids, found)
        files.append(write_shard_table(task.directory, f"ledger-{task.key}.parquet", "ledger", ledger))
    reasons = found.column("reason").to_pylist()
    dropped = {reason: reasons.count(reason) for reason in (EXACT, NEARLY) if reason in reasons}
    return Made(files, {"in": considered, "kept": int(kept.sum()), "dropped": dropped, "quarantined": {}})


def _drops(tables: list[Any], reason: str) -> Any:
    """Rows of one reason, with the columns of a verdict."""
    table = pa.concat_tables([NEAR.empty_table(), *tables], promote_options="default")
    similarity = table.column("similarity").fill_null(1.0)  # equal texts
    table = table.set_column(table.column_names.index("similarity"), "similarity", similarity)
    return table.append_column("reason", pa.repeat(pa.scalar(reason, pa.string()), table.num_rows))


def _match_task(step: Step, partition: int, shards: list[Shard], upstream: Mapping[str, Artifact]) -> Task:
    sources = list(dict.fromkeys(shard.source for shard in shards))
    per_source = step.config["scope"] == "per-source"
    config = {
        "partition": partition,
        "partitions": step.config["partitions"],
        "groups": [sources.index(shard.source) if per_source else 0 for shard in shards],
        "shards": [shard.name for shard in shards],
        "keep": [keep_config(step.config, shard, upstream) for shard in shards],
        "is_reference": [shard.source in step.config["reference"] for shard in shards],
    }
    inputs = [item for shard in shards for item in (shard.marks, *rank_inputs(step.config, shard, upstream))]
    return Task(
        function="dedup.match",
        key=f"p{partition:04d}",
        config=config,
        inputs=inputs,
        directory=str(step.directory),
    )


def _verdict_task(step: Step, shard: Shard, found: list[Input]) -> Task:
    return Task(
        function="dedup.verdicts",
        key=f"{shard.number:05d}",
        config={"number": shard.number, "shard": shard.name, "source": shard.source},
        inputs=[shard.documents, shard.marks, *found],
        directory=str(step.directory),
    )


def _ledger(task: Task, doc_ids: Any, found: Any) -> Any:
    columns = {
        "shard": task.config["shard"],
        "row": found.column("row"),
        "source": task.config["source"],
        "doc_id": doc_ids.take(found.column("row")),
        "stage": "dedup",
        "verdict": "drop",
        "reason": found.column("reason"),
        "match_shard": found.column("survivor_shard"),
        "match_row": found.column("survivor_row"),
        "similarity": found.column("similarity"),
    }
    return ledger_table(columns, found.num_rows)


def _check_cluster(step: Step, resolved: Receipt) -> None:
    limit, largest = step.config["max_cluster"], resolved.facts["largest_cluster"]
    if limit is not None and largest > limit:
        clusters = load_table(step.directory / resolved.files[1].path)
        sizes = np.asarray(clusters.column("cluster_size"))
        first = clusters.slice(int(np.argmax(sizes)), 1).to_pylist()[0]
        raise DedupLimit(
            f"a cluster of {largest:,} near duplicates is larger than max_cluster {limit:,}; "
            f"its first member is row {first['row']} of {first['shard']}",
            where="dedup",
            next="look at it with the limit raised (`tokmill clusters DIR`); boilerplate often calls for a filter "
            "or a higher `near.threshold`",
        )


def _check_losses(step: Step, verdicts: list[Receipt], shards: list[Shard]) -> None:
    limit = step.config["max_source_loss"]
    if limit is None:
        return
    considered: dict[str, int] = {}
    lost: dict[str, int] = {}
    for shard, receipt in zip(shards, verdicts, strict=True):
        considered[shard.source] = considered.get(shard.source, 0) + receipt.counts["in"]
        lost[shard.source] = lost.get(shard.source, 0) + sum(receipt.counts["dropped"].values())
    over = [
        f"{source} loses {lost[source]:,} of {considered[source]:,}"
        for source in considered
        if lost[source] * 10**9 > considered[source] * int(float(limit) * 10**9)
    ]
    if over:
        raise DedupLimit(
            f"{'; '.join(over)}: more than max_source_loss {limit}",
            where="dedup",
            next="check that the source is not a copy of another; set its `priority`, or raise the limit",
        )

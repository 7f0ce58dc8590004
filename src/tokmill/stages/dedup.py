"""Dedup: which documents say what another one already says. Every drop names its survivor.

    against    tokmill.stages.decontamination          ─> contaminated-<s>   items of a benchmark
    exact      marks ─ range p of the hashes ─ equal?  ─> matches-<p>        duplicate -> survivor
    near       tokmill.stages.neardup                  ─> near, clusters
    window     tokmill.stages.passages                 ─> window, trims-<s>  passages said before
    all of these ─ shard s ─> verdicts-<s>  every row      ledger-<s>  what was dropped and for whom

The result depends on the order of documents and the policy alone, not on shards or partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tokmill.artifact import Artifact
from tokmill.dedup.exact import match_equal, partition_of
from tokmill.errors import DedupLimit
from tokmill.manifest import Json, Receipt, sum_counts
from tokmill.schema import DROPS, MATCHES, VERDICTS, ledger_table
from tokmill.stages.decontamination import contamination_facts, find_contaminated
from tokmill.stages.neardup import find_near
from tokmill.stages.passages import find_repeated
from tokmill.stages.ranking import Considered, keep_config, load_ranks, rank_inputs
from tokmill.stages.step import (
    Conduct,
    Made,
    Outcome,
    Shard,
    Step,
    list_shards,
    write_shard_table,
    write_task_table,
)
from tokmill.storage.parquet import load_range, load_table
from tokmill.task import Input, Task, table_input

TRIMMED = "passages_trimmed"

# Reasons by the table that says so. A document is looked at in this order, and goes for the first.
REASONS = {
    "contaminated": "contaminated",
    "matches": "exact_dup",
    "near": "near_dup",
    "window": "window_dup",
}


def conduct(step: Step, upstream: Mapping[str, Artifact]) -> Conduct:
    shards = list_shards(upstream)
    facts: Json = {"shards": [shard.name for shard in shards]}
    found: list[Input] = []  # who goes, by what was looked at so far
    kept: list[Receipt] = []  # whose files stay

    def considered() -> list[Considered]:
        return [
            Considered(
                shard,
                keep_config(step.config, shard, upstream),
                [*_roles(shard.inputs(), rank_inputs(step.config, shard, upstream)), *found],
            )
            for shard in shards
        ]

    def note(receipts: Sequence[Receipt], table: str) -> None:
        found.extend(
            table_input(table, step.directory, entry)
            for receipt in receipts
            for entry in receipt.files
            if entry.table == table
        )
        kept.extend(receipts)

    if step.config["against"] is not None:
        receipts = yield from find_contaminated(step, considered())
        facts["against"] = contamination_facts(receipts)
        note(receipts, "contaminated")
    if step.config["exact"]:
        partitions = range(step.config["partitions"])
        note((yield [_match_task(step, part, shards, upstream, found) for part in partitions]), "matches")
    if step.config["near"] is not None:
        (resolved,) = yield from find_near(step, considered())
        facts["near"] = resolved.facts
        note([resolved], "near")
        _check_cluster(step, resolved)
    if step.config["window"] is not None:
        receipts = yield from find_repeated(step, considered())
        cut = sum(receipt.facts.get("bytes_cut", 0) for receipt in receipts)
        facts["window"] = {**receipts[0].facts, "bytes_cut": cut}
        note(receipts, "window")
        found += [
            table_input("trims", step.directory, entry)
            for receipt in receipts
            for entry in receipt.files
            if entry.table == "trims"
        ]
    verdicts = yield [_verdict_task(step, shard, found) for shard in shards]
    _check_losses(step, verdicts, shards)
    return Outcome([*kept, *verdicts], sum_counts(verdicts), facts)


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
        stays = np.asarray(marks.column("kept")) & in_range
        for drops in task.paths("contaminated"):
            stays[np.asarray(load_range(drops, "shard", number).column("row"))] = False
        chosen = np.flatnonzero(stays)
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
    return Made([write_task_table(task, "matches", table, "shard")], {})


def _by_shard(task: Task) -> list[list[Input]]:
    """The inputs lie one shard after the other, its marks first."""
    found: list[list[Input]] = []
    for item in task.inputs:
        if item.role == "marks":
            found.append([])
        if item.role != "contaminated":
            found[-1].append(item)
    return found


def perform_verdicts(task: Task) -> Made:
    kept = np.asarray(task.load("marks", ["kept"]).column("kept")).copy()
    considered = int(kept.sum())
    doc_ids = task.load("documents", ["doc_id"]).column("doc_id")
    parts = [
        _drops([load_range(path, "shard", task.config["number"]) for path in task.paths(role)], reason)
        for role, reason in REASONS.items()
    ]
    found = pa.concat_tables(parts).sort_by("row").combine_chunks()
    rows = np.asarray(found.column("row"))
    kept[rows] = False
    place = np.full(len(kept), -1, np.int64)
    place[rows] = np.arange(len(rows))
    where = pa.array(place, mask=place < 0)
    told = [found.column(name).combine_chunks().take(where) for name in VERDICTS.names[1:]]
    verdicts = pa.table([kept, *told], schema=VERDICTS)
    files = [write_shard_table(task.directory, f"verdicts-{task.key}.parquet", "verdicts", verdicts)]
    trims = [load_table(path, ["row"]) for path in task.paths("trims") if _is_of(path, task.key)]
    ledger = pa.concat_tables([_ledger(task, doc_ids, found), *(_edits(task, doc_ids, t) for t in trims)])
    if ledger.num_rows:
        files.append(
            write_shard_table(task.directory, f"ledger-{task.key}.parquet", "ledger", ledger.combine_chunks())
        )
    reasons = found.column("reason").to_pylist()
    dropped = {reason: reasons.count(reason) for reason in REASONS.values() if reason in reasons}
    counts = {"in": considered, "kept": int(kept.sum()), "dropped": dropped, "quarantined": {}}
    return Made(
        files, {**counts, "edited": {TRIMMED: sum(table.num_rows for table in trims)} if trims else {}}
    )


def _drops(tables: list[Any], reason: str) -> Any:
    """Rows of one reason, with the columns of a verdict."""
    table = pa.concat_tables([DROPS.empty_table(), *tables], promote_options="default")
    similarity = table.column("similarity").fill_null(1.0)  # equal texts
    table = table.set_column(table.column_names.index("similarity"), "similarity", similarity)
    return table.append_column("reason", pa.repeat(pa.scalar(reason, pa.string()), table.num_rows))


def _is_of(path: Path, key: str) -> bool:
    return path.stem.endswith(f"-{key}")


def _match_task(
    step: Step, partition: int, shards: list[Shard], upstream: Mapping[str, Artifact], found: list[Input]
) -> Task:
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
        inputs=[*inputs, *found],
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
        "detail": found.column("detail"),
    }
    return ledger_table(columns, found.num_rows)


def _edits(task: Task, doc_ids: Any, trims: Any) -> Any:
    columns = {
        "shard": task.config["shard"],
        "row": trims.column("row"),
        "source": task.config["source"],
        "doc_id": doc_ids.take(trims.column("row")),
        "stage": "dedup",
        "verdict": "edit",
        "reason": TRIMMED,
    }
    return ledger_table(columns, trims.num_rows)


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

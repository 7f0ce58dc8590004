"""Dedup: first every range of hashes finds its duplicates, then every shard gets its verdicts.

    marks of all shards ─ range p of the hashes ─ equal? ─> matches-<p>   duplicate -> survivor
    matches ─ shard s ─> verdicts-<s>  kept: every row      ledger-<s>  what was dropped and for whom

The result depends on the stable order of documents alone, not on shards or partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tokmill.artifact import Artifact
from tokmill.dedup.exact import match_equal, partition_of
from tokmill.manifest import file_entry, sum_counts
from tokmill.schema import MATCHES, VERDICTS, ledger_table
from tokmill.stages.step import Conduct, Made, Outcome, Shard, Step, list_shards, write_shard_table
from tokmill.storage.digest import table_sha256
from tokmill.storage.parquet import load_range, load_table, write_sorted_table
from tokmill.task import Input, Task, table_input


def conduct(step: Step, upstream: Mapping[str, Artifact]) -> Conduct:
    shards = list_shards(upstream)
    matched = yield [_match_task(step, partition, shards) for partition in range(step.config["partitions"])]
    matches = [table_input("matches", step.directory, receipt.files[0]) for receipt in matched]
    verdicts = yield [_verdict_task(step, shard, matches) for shard in shards]
    return Outcome([*matched, *verdicts], sum_counts(verdicts), {"shards": [shard.name for shard in shards]})


def perform_match(task: Task) -> Made:
    """Duplicates within one range of the hash space; memory is bounded by the range."""
    high, low, numbers, rows = [], [], [], []
    for number, path in enumerate(task.paths("marks")):
        marks = load_table(path, ["kept", "exact_high", "exact_low"])
        column = np.asarray(marks.column("exact_high"))
        in_range = partition_of(column, task.config["partitions"]) == task.config["partition"]
        chosen = np.flatnonzero(np.asarray(marks.column("kept")) & in_range)
        high.append(column[chosen])
        low.append(np.asarray(marks.column("exact_low"))[chosen])
        rows.append(chosen.astype(np.uint32))
        numbers.append(np.full(len(chosen), number, np.uint32))
    shard, row = np.concatenate(numbers), np.concatenate(rows)
    group = np.asarray(task.config["groups"], np.uint32)[shard]
    found = match_equal(np.concatenate(high), np.concatenate(low), group)
    names = pa.array(task.config["shards"], pa.string())
    table = pa.table(
        [
            shard[found.duplicates],
            row[found.duplicates],
            names.take(pa.array(shard[found.survivors])),
            row[found.survivors],
        ],
        schema=MATCHES,
    ).sort_by([("shard", "ascending"), ("row", "ascending")])
    file = f"matches-{task.key}.parquet"
    written = write_sorted_table(Path(task.directory) / file, table, by="shard")
    content = table_sha256(table)
    return Made([file_entry(file, "matches", written, rows=table.num_rows, content_sha256=content)], {})


def perform_verdicts(task: Task) -> Made:
    kept = np.asarray(task.load("marks", ["kept"]).column("kept")).copy()
    considered = int(kept.sum())
    doc_ids = task.load("documents", ["doc_id"]).column("doc_id")
    found = pa.concat_tables(
        [load_range(path, "shard", task.config["number"]) for path in task.paths("matches")]
    )
    found = found.sort_by("row").combine_chunks()
    rows = np.asarray(found.column("row"))
    kept[rows] = False
    verdicts = pa.table([kept], schema=VERDICTS)
    files = [write_shard_table(task.directory, f"verdicts-{task.key}.parquet", "verdicts", verdicts)]
    if len(rows):
        files.append(
            write_shard_table(
                task.directory, f"ledger-{task.key}.parquet", "ledger", _ledger(task, doc_ids, found)
            )
        )
    dropped = {"exact_duplicate": len(rows)} if len(rows) else {}
    return Made(files, {"in": considered, "kept": int(kept.sum()), "dropped": dropped, "quarantined": {}})


def _match_task(step: Step, partition: int, shards: list[Shard]) -> Task:
    sources = list(dict.fromkeys(shard.source for shard in shards))
    per_source = step.config["scope"] == "per-source"
    config = {
        "partition": partition,
        "partitions": step.config["partitions"],
        "groups": [sources.index(shard.source) if per_source else 0 for shard in shards],
        "shards": [shard.name for shard in shards],
    }
    return Task(
        function="dedup.match",
        key=f"p{partition:04d}",
        config=config,
        inputs=[shard.marks for shard in shards],
        directory=str(step.directory),
    )


def _verdict_task(step: Step, shard: Shard, matches: list[Input]) -> Task:
    return Task(
        function="dedup.verdicts",
        key=f"{shard.number:05d}",
        config={"number": shard.number, "shard": shard.name, "source": shard.source},
        inputs=[shard.documents, shard.marks, *matches],
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
        "reason": "exact_duplicate",
        "match_shard": found.column("survivor_shard"),
        "match_row": found.column("survivor_row"),
        "similarity": 1.0,
    }
    return ledger_table(columns, found.num_rows)

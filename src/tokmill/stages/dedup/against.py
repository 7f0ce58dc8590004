"""Benchmark items in documents, as tasks: one per shard, each with the whole index in memory.

benchmark files ─ index ─┐
shard ───────────────────┴─> contamination-<s>  item, place, share      contaminated-<s>  rows to drop
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from tokmill.artifacts.manifest import Json, Receipt
from tokmill.artifacts.step import Input, Made, Task, TaskFunction, TaskOptions
from tokmill.artifacts.upstream import write_shard_table, write_task_table
from tokmill.duplicates.decontaminate import (
    AgainstOptions,
    BenchmarkIndex,
    Items,
    contaminated_rows,
    find_contamination,
    load_benchmark,
    ngram_index,
)
from tokmill.duplicates.shingling import WORD_NORMALIZATION
from tokmill.schema import CONTAMINATION, DROPS
from tokmill.stages.dedup.method import Considered, DedupStep, Keep, Method, Phase, load_ranked


class ContaminationOptions(TaskOptions, frozen=True):
    against: AgainstOptions
    names: tuple[str, ...]  # of the benchmark files
    number: int
    keep: Keep


def _find_contaminated(step: DedupStep, asked: AgainstOptions, considered: Sequence[Considered]) -> Phase:
    against = replace(asked, normalization=WORD_NORMALIZATION)
    files = [
        Input("benchmark", str(file.path), step.files[f"against {file.name}"]) for file in step.extra.against
    ]
    names = tuple(file.name for file in step.extra.against)
    return (
        yield [
            Task(
                function="dedup.contamination",
                key=f"b{shard.number:05d}",
                options=ContaminationOptions(against=against, names=names, number=shard.number, keep=keep),
                inputs=[*inputs, *files],
                directory=str(step.directory),
            )
            for shard, keep, inputs in considered
        ]
    )


def perform_contamination(task: Task[ContaminationOptions]) -> Made:
    options, against = task.options, task.options.against
    paths = tuple(str(path) for path in task.paths("benchmark"))
    digests = tuple(item.content_sha256 for item in task.inputs if item.role == "benchmark")
    items, index = _index(paths, digests, against.fields, against.ngram, against.min_words)
    ranked = load_ranked(task.inputs, options.number, options.keep)
    hits = find_contamination(ranked.texts, index)
    labels = [f"{options.names[items.files[item]]}:{items.records[item]}" for item in hits.items.tolist()]
    table = pa.table(
        [ranked.rows[hits.rows].astype(np.uint32), labels, hits.starts, hits.ends, hits.grams, hits.share],
        schema=CONTAMINATION,
    )
    is_dropped = np.zeros(len(ranked.rows), np.bool_)
    if against.policy == "drop":
        is_dropped = contaminated_rows(hits, len(ranked.rows), float(against.min_share))
    drops = _drops(options.number, ranked.rows, is_dropped, hits, labels)
    entry = write_task_table(task, "contaminated", drops, "shard")
    found = write_shard_table(task.directory, f"contamination-{task.key}.parquet", "contamination", table)
    return Made(
        [entry, found], {}, {"documents": len(np.unique(hits.rows)), "unused_items": len(index.unused)}
    )


def _drops(number: int, rows: Any, is_dropped: Any, hits: Any, labels: list[str]) -> Any:
    """Each dropped row with the item of which it holds most."""
    order = np.lexsort((np.arange(len(hits.rows)), -hits.share, hits.rows))
    _, first = np.unique(hits.rows[order], return_index=True)
    best = {int(hits.rows[order[at]]): int(order[at]) for at in first.tolist()}
    chosen = np.flatnonzero(is_dropped)
    told = [best[row] for row in chosen.tolist()]
    return pa.table(
        {
            "shard": pa.array(np.full(len(chosen), number, np.uint32)),
            "row": pa.array(rows[chosen].astype(np.uint32)),
            "survivor_shard": pa.nulls(len(chosen), pa.string()),
            "survivor_row": pa.nulls(len(chosen), pa.uint32()),
            "similarity": pa.array([float(hits.share[hit]) for hit in told], pa.float64()),
            "cluster": pa.nulls(len(chosen), pa.int64()),
            "cluster_size": pa.nulls(len(chosen), pa.int64()),
            "detail": pa.array(
                [f"{labels[hit]} at bytes {hits.starts[hit]}-{hits.ends[hit]}" for hit in told], pa.string()
            ),
        },
        schema=DROPS,
    )


@functools.lru_cache(maxsize=2)
def _index(
    paths: tuple[str, ...], digests: tuple[str, ...], fields: tuple[str, ...], ngram: int, min_words: int
) -> tuple[Items, BenchmarkIndex]:
    """Once per worker process; the digests say which bytes are meant."""
    items = load_benchmark([Path(path) for path in paths], fields)
    return items, ngram_index(items, ngram, min_words)


def _facts(step: DedupStep, receipts: Sequence[Receipt]) -> Json:
    return {
        "documents": sum(receipt.facts["documents"] for receipt in receipts),
        "unused_items": max((receipt.facts["unused_items"] for receipt in receipts), default=0),
    }


METHOD = Method(
    key="against",
    options=AgainstOptions,
    reason="contaminated",
    find=_find_contaminated,
    tasks={"dedup.contamination": TaskFunction(ContaminationOptions, perform_contamination)},
    facts=_facts,
    versions=lambda options, asked, has_chats: [WORD_NORMALIZATION],
)

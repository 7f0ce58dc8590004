"""Split: a label for every document, from its id alone.

documents (doc_id) ─ sha256 ─ threshold ─> labels-<shard>   valid: every row; counted over the kept ones
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

import numpy as np
import pyarrow as pa

from tokmill.artifact import Artifact
from tokmill.manifest import sum_counts
from tokmill.schema import LABELS
from tokmill.split import is_valid_split
from tokmill.stages.step import Conduct, Made, Outcome, Step, kept_inputs, list_shards, write_shard_table
from tokmill.task import Task

TRAIN, VALID = "train", "valid"


def conduct(step: Step, upstream: Mapping[str, Artifact]) -> Conduct:
    shards = list_shards(upstream)
    tasks = [
        Task(
            function="split",
            key=f"{shard.number:05d}",
            config={"valid_fraction": step.config["valid_fraction"]},
            inputs=[shard.documents, kept],
            directory=str(step.directory),
        )
        for shard, kept in zip(shards, kept_inputs(upstream, shards), strict=True)
    ]
    receipts = yield tasks
    return Outcome(receipts, sum_counts(receipts), {})


def perform_split(task: Task) -> Made:
    doc_ids = task.load("documents", ["doc_id"]).column("doc_id")
    kept = np.asarray(task.load("kept", ["kept"]).column("kept"))
    valid = is_valid_split(doc_ids, Decimal(task.config["valid_fraction"]))
    labels = pa.table([valid], schema=LABELS)
    entry = write_shard_table(task.directory, f"labels-{task.key}.parquet", "labels", labels)
    counts = {TRAIN: int((kept & ~valid).sum()), VALID: int((kept & valid).sum())}
    total = {"in": int(kept.sum()), "kept": sum(counts.values()), "dropped": {}, "quarantined": {}}
    return Made([entry], {**total, **counts})

"""One line for every document of a run: what was decided about it, and by which step.

ledgers, verdicts, labels ─ shard by shard ─> decisions.jsonl.zst
{"doc_id": …, "source": …, "domain": …, "keep": false, "stage": "clean", "verdict": "drop",
 "reason": "too_short", "value": 12.0, "threshold": 100.0}    or dup_of and similarity, or the split it is in
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.upstream import list_shards
from tokmill.audit.opened import list_shard_tables, load_of, read_ledgers
from tokmill.schema import NO_SPLIT
from tokmill.stages.tokens.reading import DocIds
from tokmill.storage.disk import Written
from tokmill.storage.jsonl import write_jsonl_tables
from tokmill.storage.tables import load_table

_TOLD = (
    *(("stage", pa.string()), ("verdict", pa.string()), ("reason", pa.string())),
    *(("value", pa.float64()), ("threshold", pa.float64()), ("detail", pa.string())),
    *(("dup_of", pa.string()), ("similarity", pa.float64()), ("split", pa.string())),
)


def write_decisions(path: Path, artifacts: Mapping[str, Artifact]) -> Written:
    """`artifacts` are those of a run, as far as it got."""
    return write_jsonl_tables(path, _tables(dict(artifacts)))


def _tables(artifacts: dict[str, Artifact]) -> Iterator[Any]:
    ids = DocIds(list_shards(artifacts))
    for shard in list_shard_tables(artifacts):
        ingested = artifacts[f"ingest/{shard.source}"]
        documents = load_table(ingested.path(shard.documents), ["doc_id", "source", "domain"])
        kept = np.ones(documents.num_rows, np.bool_)
        told: dict[str, list[Any]] = {name: [None] * len(kept) for name, _ in _TOLD}
        for stage, ledger in read_ledgers(artifacts, shard):
            if ledger is not None and stage != "split":
                _note(told, kept, stage, ledger, ids)
        labels = load_of(artifacts.get("split"), f"labels-{shard.number:05d}.parquet", ["split"])
        if labels is not None:
            names, numbers = artifacts["split"].manifest.facts["splits"], np.asarray(labels.column("split"))
            for row in np.flatnonzero(kept & (numbers != NO_SPLIT)).tolist():
                told["split"][row] = names[numbers[row]]
        columns = {name: documents.column(name) for name in documents.column_names}
        yield pa.table(
            {**columns, "keep": kept, **{name: pa.array(told[name], kind) for name, kind in _TOLD}}
        )


def _note(told: dict[str, list[Any]], kept: Any, stage: str, ledger: Any, ids: DocIds) -> None:
    for line in ledger.to_pylist():
        row = line["row"]
        kept[row], told["stage"][row] = False, stage
        for name in ("verdict", "reason", "value", "threshold", "detail", "similarity"):
            told[name][row] = line[name]
        if line["match_shard"] is not None:
            told["dup_of"][row] = ids.of(line["match_shard"], line["match_row"])

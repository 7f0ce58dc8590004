"""What became of every document of a run, as lines to read: one file for whoever asks no further.

clean/<source>/ledger-*  dedup/verdicts-*  split/labels-* ─ shard by shard ─> decisions.jsonl.zst

{"doc_id": …, "source": …, "domain": …, "keep": false, "stage": "clean", "verdict": "drop", "reason": "too_short",
 "value": 12.0, "threshold": 100.0}                            or dup_of and similarity, or the split it is in
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tokmill.artifact import Artifact
from tokmill.schema import NO_SPLIT
from tokmill.stages.step import Shard, list_shards
from tokmill.storage.commit import Written
from tokmill.storage.jsonl import write_jsonl_tables
from tokmill.storage.parquet import load_table

_TOLD = (
    *(("stage", pa.string()), ("verdict", pa.string()), ("reason", pa.string())),
    *(("value", pa.float64()), ("threshold", pa.float64()), ("detail", pa.string())),
    *(("dup_of", pa.string()), ("similarity", pa.float64()), ("split", pa.string())),
)


def write_decisions(path: Path, artifacts: Mapping[str, Artifact]) -> Written:
    """`artifacts` are those of a run, as far as it got."""
    return write_jsonl_tables(path, _tables(dict(artifacts)))


def _tables(artifacts: dict[str, Artifact]) -> Iterator[Any]:
    shards = list_shards(artifacts)
    ids = _Ids(shards)
    for shard in shards:
        documents = load_table(Path(shard.documents.path), ["doc_id", "source", "domain"])
        kept = np.asarray(load_table(Path(shard.marks.path), ["kept"]).column("kept")).copy()
        told: dict[str, list[Any]] = {name: [None] * len(kept) for name, _ in _TOLD}
        _note_cleaning(told, artifacts[f"clean/{shard.source}"], shard)
        if "dedup" in artifacts:
            _note_copies(told, kept, artifacts["dedup"], shard, ids)
        if "split" in artifacts:
            _note_split(told, artifacts["split"], shard, kept)
        columns = {name: documents.column(name) for name in ("doc_id", "source", "domain")}
        yield pa.table(
            {**columns, "keep": kept, **{name: pa.array(told[name], kind) for name, kind in _TOLD}}
        )


def _note_cleaning(told: dict[str, list[Any]], cleaned: Artifact, shard: Shard) -> None:
    path = cleaned.directory / f"ledger-{shard.key}.parquet"
    if not path.is_file():
        return
    for line in load_table(path).to_pylist():
        if line["verdict"] != "edit":
            told["stage"][line["row"]] = "clean"
            for name in ("verdict", "reason", "value", "threshold", "detail"):
                told[name][line["row"]] = line[name]


def _note_copies(told: dict[str, list[Any]], kept: Any, dedup: Artifact, shard: Shard, ids: _Ids) -> None:
    verdicts = load_table(dedup.directory / f"verdicts-{shard.number:05d}.parquet")
    goes = kept & ~np.asarray(verdicts.column("kept"))
    for row in np.flatnonzero(goes).tolist():
        line = {name: verdicts.column(name)[row].as_py() for name in verdicts.column_names}
        told["stage"][row], told["verdict"][row], told["reason"][row] = "dedup", "drop", line["reason"]
        told["similarity"][row] = line["similarity"]
        if line["survivor_shard"] is not None:
            told["dup_of"][row] = ids.of(line["survivor_shard"], line["survivor_row"])
    kept &= ~goes


def _note_split(told: dict[str, list[Any]], split: Artifact, shard: Shard, kept: Any) -> None:
    entry = split.manifest.entries("labels")[shard.number]
    labels = np.asarray(load_table(split.path(entry), ["split"]).column("split"))
    names = split.manifest.facts["splits"]
    for row in np.flatnonzero(kept & (labels != NO_SPLIT)).tolist():
        told["split"][row] = names[labels[row]]


class _Ids:
    """doc_id of any document by shard and row; shards that were asked for stay in memory."""

    def __init__(self, shards: list[Shard]) -> None:
        self._paths = {shard.name: Path(shard.documents.path) for shard in shards}
        self._columns: dict[str, Any] = {}

    def of(self, shard: str, row: int) -> str:
        if shard not in self._columns:
            self._columns[shard] = load_table(self._paths[shard], ["doc_id"]).column("doc_id")
        return str(self._columns[shard][row])

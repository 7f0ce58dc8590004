"""Who is considered for deduplication in a shard, and who comes before whom.

keep config of a shard: {policy, priority, rules}   the rules are those of its source, for `best`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifact import Artifact
from tokmill.clean.normalize import apply_edits
from tokmill.clean.rules import Rule, Sieve, columns_of
from tokmill.dedup.precedence import priority_of, rank_documents
from tokmill.kernels import hashing
from tokmill.manifest import Json
from tokmill.schema import EDITS, one_piece, string_column
from tokmill.stages.step import Shard
from tokmill.storage.parquet import load_range, load_table
from tokmill.task import Input, Task, table_input

# Tables of who goes already.
EARLIER = ("contaminated", "matches", "near")


# A scope besides those of a recipe: documents of several sources in one, told apart by what their records said.
OWN_SOURCE = "own-source"


class Considered(NamedTuple):
    """What a task needs to know and to read of one shard."""

    shard: Shard
    keep: Json
    inputs: list[Input]


class Ranked(NamedTuple):
    """The considered documents of a shard, in row order."""

    rows: NDArray[np.int64]
    ranks: NDArray[np.int64]
    texts: Any


def keep_config(dedup: Json, shard: Shard, upstream: Mapping[str, Artifact]) -> Json:
    """Reference sources come before all others."""
    priority = priority_of(shard.source, [*dedup["reference"], *dedup["priority"]])
    rules: list[Json] = []
    if dedup["keep"] == "best":
        sieve = msgspec.convert(upstream[f"clean/{shard.source}"].manifest.config["sieve"], Sieve)
        rules = [msgspec.to_builtins(rule) for rule in sieve.rules]
    return {"policy": dedup["keep"], "priority": priority, "rules": rules}


def rank_inputs(dedup: Json, shard: Shard, upstream: Mapping[str, Artifact]) -> list[Input]:
    """What ranking reads besides the marks: dates are in the documents, margins in the measures."""
    if dedup["keep"] == "newest":
        return [shard.documents]
    if dedup["keep"] == "best":
        cleaned = upstream[f"clean/{shard.source}"]
        path = f"measures-{shard.key}.parquet"
        return [
            table_input("measures", cleaned.directory, entry)
            for entry in cleaned.manifest.entries("measures")
            if entry.path == path
        ]
    return []


def scope_salts(task: Task, rows: NDArray[np.int64]) -> Any:
    """What moves the hashes of documents that must not meet: one number for the shard, or one per document."""
    if not task.config.get("by_source"):
        return np.uint64((task.config.get("group", 0) * 0x9E3779B97F4A7C15) & (2**64 - 1))
    sources = task.load("documents", ["source"]).column("source").take(pa.array(rows))
    state = np.zeros((len(rows), 2), np.uint64)
    hashing.mix_column(*string_column(sources), state)
    return np.ascontiguousarray(state[:, 0])


def load_ranks(inputs: Sequence[Input], keep: Json) -> NDArray[np.int64]:
    """One rank per row of the shard; that of a document which cleaning did not keep says nothing."""
    paths = {item.role: Path(item.path) for item in inputs}
    chars = np.asarray(load_table(paths["marks"], ["chars"]).column("chars"))
    dates = measures = None
    if keep["policy"] == "newest":
        dates = one_piece(load_table(paths["documents"], ["created_at"]).column("created_at"))
    if keep["policy"] == "best" and "measures" in paths:
        measures = columns_of(load_table(paths["measures"]))
    rules = [msgspec.convert(rule, Rule) for rule in keep["rules"]]
    return rank_documents(
        keep["policy"], keep["priority"], chars, created_at=dates, measures=measures, rules=rules
    )


def load_ranked(inputs: Sequence[Input], number: int, keep: Json) -> Ranked:
    """Kept by cleaning and not dropped by an earlier look of this step (its tables are sorted by shard)."""
    paths = {item.role: Path(item.path) for item in inputs}
    considered = np.asarray(load_table(paths["marks"], ["kept"]).column("kept")).copy()
    for item in inputs:
        if item.role in EARLIER:
            considered[np.asarray(load_range(Path(item.path), "shard", number).column("row"))] = False
    rows = np.flatnonzero(considered)
    texts = one_piece(load_table(paths["documents"], ["text"]).column("text"))
    edits = load_table(paths["edits"], ["row", "text"]) if "edits" in paths else EDITS.empty_table()
    texts = apply_edits(texts, np.asarray(edits.column("row")), one_piece(edits.column("text")), rows)
    return Ranked(rows, load_ranks(inputs, keep)[rows], texts)

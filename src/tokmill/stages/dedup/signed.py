"""Signatures of the rows of a shard: those of an earlier run, and the others from their texts.

    cache ─ rows that are known ─┐
    texts of the other rows ─────┴─> a signature for each row ─> cache, where there were others

    <entry>.signatures   row 4 │ digest 8 │ values 4 x positions       ascending rows; digest 0: no words

They depend on the text and on how it is shingled. Which documents are looked at, and who comes before whom,
is not in them: a threshold that moves costs the signatures of the documents that it lets in.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.cache import load_columns, save_columns
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.step import Task
from tokmill.duplicates.near import NearOptions, Values, signatures
from tokmill.stages.dedup.method import load_texts

SIGNATURES = "signatures"

Rows = NDArray[np.int64]
Digests = NDArray[np.uint64]


def signature_config(near: NearOptions) -> Json:
    """What signatures depend on besides the text, and exact similarities too."""
    asked = msgspec.to_builtins(near)
    return {name: asked[name] for name in ("unit", "ngram", "normalization")} | {"positions": near.positions}


def signed_rows(task: Task[Any], rows: Rows, near: NearOptions) -> tuple[Digests, Values]:
    """Of each of these rows, which ascend."""
    known_rows, known_digests, known_values = _load(task, near)
    missing = np.setdiff1d(rows, known_rows, assume_unique=True)
    if len(missing):
        made = signatures(load_texts(task.inputs, missing), near)
        known_rows = np.concatenate([known_rows, missing])
        order = np.argsort(known_rows, kind="stable")
        known_rows = known_rows[order]
        known_digests = np.concatenate([known_digests, made.digests])[order]
        known_values = np.concatenate([known_values, made.values])[order]
        if task.cached is not None:
            columns: dict[str, Any] = {
                "row": known_rows.astype(np.uint32),
                "digest": known_digests,
                "values": known_values,
            }
            save_columns(task.cached.path(SIGNATURES), columns, task.cached.room)
    if len(known_rows) == len(rows):
        return known_digests, known_values
    places = np.searchsorted(known_rows, rows)
    return known_digests[places], known_values[places]


def _load(task: Task[Any], near: NearOptions) -> tuple[Rows, Digests, Values]:
    found = load_columns(task.cached.path(SIGNATURES)) if task.cached is not None else None
    if found is None:
        return np.empty(0, np.int64), np.empty(0, np.uint64), np.empty((0, near.positions), np.uint32)
    columns = found.columns
    return columns["row"].astype(np.int64), columns["digest"], columns["values"]

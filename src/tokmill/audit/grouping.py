"""Documents of a split of a build in the groups that people ask for.

    source, domain        of the shard
    license, language     of the document
    score.NAME            tenths of the documents, by their score; equal scores stay together
    score.NAME.percentile tenths of what the percentile is of: 0 to 10, 10 to 20, …

Of each document four bytes are held, and four more while scores are put in order.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifacts.directory import Artifact
from tokmill.audit.places import Turns
from tokmill.errors import InputError
from tokmill.schema import PERCENTILE
from tokmill.stages.build.scored import column_inputs, values_of
from tokmill.storage.on_demand import at_hand
from tokmill.storage.tables import load_categories, load_schema, load_table

BY = ("source", "domain", "license", "language")

_PARTS = 10


class Grouped(NamedTuple):
    names: list[str]
    codes: NDArray[np.uint32]  # of each document, in the order of the shards, the number of its group


def group_documents(turns: Turns, by: str, artifacts: Mapping[str, Artifact]) -> Grouped:
    """`artifacts` are those of the run, where scores are."""
    if by in ("source", "domain"):
        return _by_shard(turns, by)
    if by in BY:
        return _by_column(turns, by)
    if by.startswith("score."):
        return _by_score(turns, by, artifacts)
    raise InputError(
        f"documents are not told apart by {by!r}",
        where="by",
        next=f"one of: {', '.join(BY)}, or a score of the run: score.NAME",
    )


def _by_shard(turns: Turns, by: str) -> Grouped:
    names: dict[str, int] = {}
    of_shards = [
        names.setdefault(shard.source if by == "source" else shard.domain, len(names))
        for shard in turns.shards
    ]
    return Grouped(list(names), np.repeat(np.array(of_shards, np.uint32), _sizes(turns)))


def _by_column(turns: Turns, by: str) -> Grouped:
    names: dict[str, int] = {}
    parts = [np.empty(0, np.uint32)]
    for shard in turns.shards:
        column = load_categories(Path(shard.lengths.path), by)
        own = [
            names.setdefault("none" if name is None else name, len(names))
            for name in [*column.dictionary.to_pylist(), None]
        ]
        places = column.indices.fill_null(len(own) - 1).to_numpy(zero_copy_only=False)
        parts.append(np.array(own, np.uint32)[places])
    return Grouped(list(names), np.concatenate(parts))


def _by_score(turns: Turns, column: str, artifacts: Mapping[str, Artifact]) -> Grouped:
    if not turns.shards:
        return Grouped([], np.empty(0, np.uint32))
    values, first = np.empty(sum(_sizes(turns)), np.float32), 0
    for shard, path in zip(turns.shards, _score_tables(turns, column, artifacts), strict=True):
        rows = np.asarray(load_table(at_hand(Path(shard.lengths.path)), ["row"]).column("row"))
        values[first : first + len(rows)] = values_of(path, column)[rows]
        first += len(rows)
    if column.endswith(PERCENTILE):
        edges = np.arange(1, _PARTS, dtype=np.float32) * (100 / _PARTS)
        bounds = [0, *edges.tolist(), 100]
        names = [f"{low:.0f} to {high:.0f}" for low, high in itertools.pairwise(bounds)]
        return Grouped(names, np.searchsorted(edges, values, side="right").astype(np.uint32))
    places = [first * number // _PARTS for number in range(1, _PARTS)]
    edges = np.unique(np.partition(values, places)[places])
    edges = edges[edges > values.min()]
    spelled = [f"{edge:.6g}" for edge in edges.tolist()]
    inner = (f"{low} to {high}" for low, high in itertools.pairwise(spelled))
    names = [f"below {spelled[0]}", *inner, f"from {spelled[-1]}"] if spelled else ["all the same"]
    return Grouped(names, np.searchsorted(edges, values, side="right").astype(np.uint32))


def _score_tables(turns: Turns, column: str, artifacts: Mapping[str, Artifact]) -> list[Path]:
    numbers = [shard.number for shard in turns.shards]
    if not column.endswith(PERCENTILE) or "scores" in artifacts:
        inputs = column_inputs(artifacts, numbers, column, role="score")
        paths = [at_hand(Path(one.path)) for one in inputs]
        known: pa.Schema = load_schema(paths[0])
        if column in known.names:
            return paths
        others = [name for name in known.names if name.startswith("score.")]
    else:
        others = []
    raise InputError(
        f"the run has no {column}",
        where="by",
        next=f"one of: {', '.join(others)}" if others else "its recipe has no such score",
    )


def _sizes(turns: Turns) -> list[int]:
    return [shard.lengths.rows for shard in turns.shards]

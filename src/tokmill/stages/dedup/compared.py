"""Pairs of texts that were compared once: their similarity is not measured again.

    verify ─ pairs whose texts were compared ─> <out>.cache/dedup.pairs/<partition>.compared
    candidates ─ pairs in doubt ─ look_up ─> the similarity of those that are there

    file   a, a_row, b, b_row │ similarity      a and b: places in the list of names in its header

A text is named by the entry of its shard in the cache, which is the digest of all that the texts of the shard
are made of, and its row there: two documents that have these names have the texts that were compared. What a
threshold made of the similarity is not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.cache import (
    MAX_PAIRS_SHARE,
    Cached,
    cache_of,
    load_columns,
    save_columns,
    sweep_table,
)
from tokmill.artifacts.step import Task
from tokmill.stages.dedup.method import Considered, DedupStep
from tokmill.stages.dedup.survivors import Fingerprints

COMPARED = "compared"
_PAIRS = "dedup.pairs"

Numbers = NDArray[np.int64]


def compared_pairs(
    step: DedupStep, considered: Sequence[Considered], shards: Sequence[Cached | None]
) -> Cached | None:
    directory = cache_of(step.directory.parent, _PAIRS)
    if directory is None:
        return None
    # of the files of the documents: compressed, so that it is less than the same share of the texts
    size = sum(Path(one.shard.documents.path).stat().st_size for one in considered)
    names = tuple(cached.names[0] for cached in shards if cached is not None)
    return Cached(str(directory), names, int(MAX_PAIRS_SHARE * size))


def sweep_compared(cached: Cached | None, partitions: int) -> None:
    """Those of this run have replaced all others, but for partitions that it has no more."""
    if cached is not None:
        sweep_table(Path(cached.directory), COMPARED, [_name(number) for number in range(partitions)])


def _name(partition: int) -> str:
    return f"{partition:05d}"


class ComparedPairs:
    """By the numbers that documents have in this run."""

    def __init__(self, task: Task[Any], fingerprints: Fingerprints) -> None:
        self._keys = np.empty(0, np.uint64)
        self._similarity = np.empty(0, np.float64)
        if task.cached is None:
            return
        shards: dict[str, int] = {}
        for number, name in enumerate(task.cached.names):
            shards.setdefault(name, number)  # of two shards with the same texts the first is known
        self._count = np.uint64(fingerprints.starts[-1])
        # all files at once: a document is looked up by its shard, and each shard is opened then
        places: list[list[Numbers]] = [[], [], [], []]
        similarity = [self._similarity]
        for path in sorted(Path(task.cached.directory).glob(f"*.{COMPARED}")):
            found = load_columns(path)
            if found is None:
                continue
            current = np.array([shards.get(name, -1) for name in found.names], np.int64)
            for column, name in zip(places, ("a", "b", "a_row", "b_row"), strict=True):
                own = found.columns[name]
                column.append(own if name.endswith("row") else current[own])
            similarity.append(found.columns["similarity"])
        if len(similarity) == 1:
            return
        a, b, a_row, b_row = (np.concatenate(column) for column in places)
        ends = fingerprints.numbers_of(np.concatenate([a, b]), np.concatenate([a_row, b_row]))
        first, second = ends[: len(a)], ends[len(a) :]
        is_there = (first >= 0) & (second >= 0)
        keys = self._key(first[is_there], second[is_there])
        self._keys, at = np.unique(keys, return_index=True)
        self._similarity = np.concatenate(similarity)[is_there][at]

    def look_up(self, a: Numbers, b: Numbers) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Which pairs were compared, and the similarity of those."""
        if not len(self._keys):
            return np.zeros(len(a), np.bool_), np.zeros(len(a))
        wanted = self._key(a, b)
        places = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        return self._keys[places] == wanted, self._similarity[places]

    def _key(self, a: Numbers, b: Numbers) -> NDArray[np.uint64]:
        """One number for a pair, whichever comes first: fewer than 2^32 documents have their own each."""
        low, high = (ends.astype(np.uint64) for ends in (np.minimum(a, b), np.maximum(a, b)))
        keys: NDArray[np.uint64] = low * self._count + high
        return keys


def save_compared(task: Task[Any], a: Numbers, b: Numbers, similarity: NDArray[np.float64]) -> None:
    if task.cached is None:
        return
    fingerprints = Fingerprints(task.inputs, task.options)
    columns: dict[str, Any] = {}
    for end, numbers in (("a", a), ("b", b)):
        wanted, places = np.unique(numbers, return_inverse=True)
        shards, rows = fingerprints.places(wanted)
        columns[end], columns[f"{end}_row"] = shards[places].astype(np.uint32), rows[places]
    save_columns(
        Path(task.cached.directory) / f"{_name(task.options.partition)}.{COMPARED}",
        {**columns, "similarity": similarity},
        task.cached.room // task.options.partitions,
        task.cached.names,
    )

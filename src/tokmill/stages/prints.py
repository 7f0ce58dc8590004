"""Fingerprints of all shards by number: what near duplicates are found, judged and named by.

    fingerprints-<s>.bin    rank 8 │ digest 8 │ row 4 │ values 4 x positions        a run of the shard's documents

A document is known by its number: its place among all that have words, in the order of the corpus.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokmill.dedup.near import NearOptions
from tokmill.manifest import FileEntry, Json
from tokmill.stages.runs import Layout, open_runs, write_run
from tokmill.task import Task

Numbers = NDArray[np.int64]


def near_options(near: Json) -> NearOptions:
    return NearOptions(
        threshold=float(near["threshold"]),
        shingle=near["unit"],
        ngram=near["ngram"],
        bands=near["bands"],
        rows=near["rows"],
        verify=near["verify"],
    )


def write_prints(task: Task, ranks: Any, digests: Any, rows: Any, values: Any) -> FileEntry:
    layout = _layout(near_options(task.config["near"]))
    return write_run(task, "fingerprints", [ranks, digests, rows, values], layout)


class Prints:
    """Only what is asked for is read, shard by shard, and nothing stays mapped. `shard`: the only one there is."""

    def __init__(self, task: Task, shard: int = 0) -> None:
        self.starts = np.asarray(task.config["starts"], np.int64)
        runs = open_runs(task.inputs, "fingerprints", _layout(near_options(task.config["near"])))
        self._runs = dict(enumerate(runs, start=shard))

    def load(self, numbers: Numbers, field: str) -> Any:
        """`numbers` ascending."""
        (found,) = self.load_all(numbers, [field])
        return found

    def load_all(self, numbers: Numbers, fields: list[str]) -> list[Any]:
        cuts = np.searchsorted(numbers, self.starts)
        parts = [
            self._runs[shard].take(numbers[start:stop] - self.starts[shard], fields)
            for shard, (start, stop) in enumerate(itertools.pairwise(cuts.tolist()))
            if stop > start
        ]
        nothing = [np.empty(0, np.int64)] * len(fields)
        return [np.concatenate(columns) for columns in zip(*parts, strict=True)] if parts else nothing

    def places(self, numbers: Numbers) -> tuple[Numbers, Any]:
        """Shard and row of each number, ascending."""
        return self.shards(numbers), self.load(numbers, "row")

    def shards(self, numbers: Numbers) -> Numbers:
        return np.searchsorted(self.starts, numbers, side="right") - 1

    def ranges(self) -> Iterator[tuple[int, int]]:
        """First and last number of each shard."""
        yield from itertools.pairwise(self.starts.tolist())


def _layout(options: NearOptions) -> Layout:
    return {"rank": "<i8", "digest": "<u8", "row": "<u4", "values": ("<u4", (options.positions,))}

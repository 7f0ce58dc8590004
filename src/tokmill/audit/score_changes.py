"""How the scores of documents differ between two runs: of those that both runs have and both scored.

    matched rows of a source ─ score.edu here, score.edu there ─> compared, changed, means, the largest change

A document that is matched by its id alone has another text, and so perhaps another score: it counts as well.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Json
from tokmill.audit.opened import load_of
from tokmill.audit.places import RunPlaces
from tokmill.clean.examine import CleanOptions
from tokmill.schema import one_piece


class ScoreChange(NamedTuple):
    measure: str
    compared: int  # documents
    changed: int
    mean: tuple[float, float]  # before and after, of those that were compared
    largest: float  # of all changes, up or down

    def as_json(self) -> Json:
        return {**self._asdict(), "mean": list(self.mean)}


class ScoreChanges:
    """Summed source by source."""

    def __init__(self, a: RunPlaces, b: RunPlaces) -> None:
        self._a, self._b = a, b
        self._sums: dict[str, list[float]] = {}

    def add(self, source: str, at_a: NDArray[np.int64], at_b: NDArray[np.int64]) -> None:
        """Documents of this source that are one, by their numbers in it."""
        for measure in _measures(self._a, source):
            if measure not in _measures(self._b, source):
                continue
            before, after = _values(self._a, source, measure)[at_a], _values(self._b, source, measure)[at_b]
            is_scored = ~(np.isnan(before) | np.isnan(after))
            before, after = before[is_scored], after[is_scored]
            sums = self._sums.setdefault(measure, [0, 0, 0.0, 0.0, 0.0])
            sums[0] += len(before)
            sums[1] += int((before != after).sum())
            sums[2] += float(before.sum())
            sums[3] += float(after.sum())
            sums[4] = max(sums[4], float(np.abs(after - before).max(initial=0.0)))

    def told(self) -> tuple[ScoreChange, ...]:
        return tuple(
            ScoreChange(name, int(docs), int(changed), (before / docs, after / docs), largest)
            for name, (docs, changed, before, after, largest) in self._sums.items()
            if docs
        )


def _measures(run: RunPlaces, source: str) -> list[str]:
    cleaned = run.artifacts.get(f"clean/{source}")
    plans = (cleaned.manifest.options(CleanOptions).scores or ()) if cleaned is not None else ()
    return [plan.column for plan in plans]


def _values(run: RunPlaces, source: str, measure: str) -> NDArray[np.float64]:
    """Of all documents of the source, in their order; NaN: it was out before it was scored."""
    cleaned = run.artifacts[f"clean/{source}"]
    parts = [np.zeros(0)]
    for shard in run.shards:
        if shard.source == source:
            table = load_of(cleaned, f"measures-{shard.key}.parquet", [measure])
            assert table is not None, "where there are scores there are measures"
            column = one_piece(table.column(0))
            values = np.asarray(column.fill_null(0)).astype(np.float64)
            values[np.asarray(column.is_null())] = np.nan
            parts.append(values)
    return np.concatenate(parts)

"""How two scores of a run agree: rank correlation, and the documents that they judge most differently.

    measures of every shard ─ two columns, of what cleaning kept ─ ranks ─> Spearman's correlation
                                                                 └─ farthest apart ─> examples

Any two measures can be compared: two models, or a model and a rule. Ranks of equal values are their average.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.manifest import Json
from tokmill.audit.opened import Found, find_artifacts, load_of
from tokmill.audit.texts import Place, load_texts
from tokmill.errors import InputError
from tokmill.storage.tables import load_table

Column = NDArray[np.float64]

_SHOWN_CHARS = 160


@short_repr
class Agreement(NamedTuple):
    first: str
    second: str
    documents: int
    correlation: float | None  # Spearman's; None where one of them is the same for all
    by_source: dict[str, Json]
    examples: list[Json]  # farthest apart, in percentiles
    missing: tuple[str, ...] = ()  # sources that are not cleaned yet

    def as_json(self) -> Json:
        return self._asdict()


def score_compare(directory: str | Path, first: str, second: str, *, examples: int = 8) -> Agreement:
    """Compare two measures of the run in `directory`: `score.edu` with `score.math`, or with `words`."""
    found = find_artifacts(directory)
    shards = [shard for shard in found.shards() if f"clean/{shard.source}" in found.artifacts]
    rows = [_load(found, shard, first, second) for shard in shards]
    if not rows:
        raise InputError("no source of this run is cleaned yet", where=str(directory), next="run the recipe")
    a, b = (np.concatenate([row[place] for row in rows]) for place in range(2))
    pairs = zip(rows, shards, strict=True)
    sources = np.concatenate([np.full(len(row[0]), shard.source) for row, shard in pairs])
    ranks = _ranks(a), _ranks(b)
    shares = [100 * (rank - 0.5) / max(len(rank), 1) for rank in ranks]
    order = np.lexsort((np.arange(len(a)), -np.abs(shares[0] - shares[1])))[:examples]
    return Agreement(
        first,
        second,
        len(a),
        _correlation(*ranks),
        {
            source: {
                "documents": int(mine.sum()),
                "correlation": _correlation(_ranks(a[mine]), _ranks(b[mine])),
            }
            for source in sorted(set(sources.tolist()))
            for mine in [sources == source]
        },
        list(_examples(found, shards, rows, order, (a, b), shares)),
        found.not_cleaned,
    )


def _load(found: Found, shard: Any, first: str, second: str) -> tuple[Column, Column, NDArray[np.int64]]:
    cleaned = found.artifacts[f"clean/{shard.source}"]
    table = load_of(cleaned, f"measures-{shard.key}.parquet")
    columns = table.column_names if table is not None else []
    for name in (first, second):
        if name not in columns:
            known = ", ".join(sorted(columns)) or "none"
            raise InputError(
                f"{name} was not measured of {shard.source}",
                where=str(found.directory),
                next=f"it has {known}",
            )
    assert table is not None
    marks = load_table(cleaned.directory / f"marks-{shard.key}.parquet", ["kept"])
    kept = np.flatnonzero(np.asarray(marks.column("kept")))
    values = [
        np.asarray(table.column(name).fill_null(0)).astype(np.float64)[kept] for name in (first, second)
    ]
    return values[0], values[1], kept


def _ranks(values: Column) -> Column:
    """From 1; of equal values the average."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    found: Column = (last - (counts - 1) / 2)[inverse]
    return found


def _correlation(a: Column, b: Column) -> float | None:
    a, b = a - a.mean() if len(a) else a, b - b.mean() if len(b) else b
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return round(float((a * b).sum()) / scale, 9) if scale else None


def _examples(found: Found, shards: list[Any], rows: list[Any], order: Any, values: Any, shares: Any) -> Any:
    starts = np.cumsum([0, *(len(row[0]) for row in rows)])
    places = []
    for at in order.tolist():
        number = int(np.searchsorted(starts, at, side="right")) - 1
        places.append((shards[number], int(rows[number][2][at - starts[number]]), at))
    wanted = [Place(shard.name, row) for shard, row, _ in places]
    texts = load_texts(found.artifacts, wanted, _SHOWN_CHARS, until="edits")
    for shard, row, at in places:
        text = texts[Place(shard.name, row)]
        yield {
            "source": shard.source,
            "doc_id": text.doc_id,
            "values": [float(values[0][at]), float(values[1][at])],
            "percentiles": [round(float(shares[0][at]), 4), round(float(shares[1][at]), 4)],
            "text": text.text,
        }

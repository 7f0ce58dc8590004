"""How scores are spread: of all documents, of each source and each domain, with the bounds on them.

    measures-<shard>.score.edu ─ counted by the first 16 bits ─> the middle 99.6 %: where bars begin and end
                               └ counted bar by bar           ─> histograms; the outermost bars are open
    marks-<shard>.kept         ─> how many of them are kept

Two passes over the columns of scores, one shard at a time: no text, and memory for the bars alone. The bars
are the same for any cut into shards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Json
from tokmill.artifacts.upstream import domain_of
from tokmill.audit.bounds import rules_of
from tokmill.audit.opened import Found, ShardTables, load_of
from tokmill.clean.examine import CleanOptions
from tokmill.clean.rules import Rule, judge
from tokmill.schema import PERCENTILE, one_piece
from tokmill.stages.ranking import RankOptions, ordered

_BARS = 40  # about; the step is 1, 2 or 5 times a power of ten
_OUTSIDE = 0.002  # of the documents, at either end: one of a million must not make all others one bar
_FARTHEST = 1e300
_BITS = 16  # of a float64 in order: sign, exponent and four binary digits

Values = NDArray[np.float64]


def describe_scores(found: Found) -> list[Json] | None:
    """Of each score, in the order of the recipe; None where the run has none."""
    measures = _measures(found)
    if not measures:
        return None
    spreads = [_Spread(found, measure) for measure in measures]
    return [spread.described() for spread in spreads]


class _Shard(NamedTuple):
    source: str
    domain: str
    values: Values
    passes: NDArray[np.bool_] | None  # what rules on this score say; None: there are none
    is_kept: NDArray[np.bool_]


def _measures(found: Found) -> list[str]:
    plans = [
        plan
        for cleaned in found.of_kind("clean").values()
        for plan in cleaned.manifest.options(CleanOptions).scores or ()
    ]
    return list(dict.fromkeys(plan.column for plan in plans))


class _Spread:
    """Of one score."""

    def __init__(self, found: Found, measure: str) -> None:
        self._found, self._measure = found, measure
        self._rules = {
            source: [rule for rule in rules_of(cleaned) if rule.column == measure]
            for source, cleaned in found.of_kind("clean").items()
        }

    def described(self) -> Json:
        edges = self._edges()
        groups: dict[str, dict[str, _Group]] = {"source": {}, "domain": {}}
        whole = _Group(len(edges) - 1)
        outside = [0, 0]
        for shard in self._shards():
            place = np.clip(np.searchsorted(edges, shard.values, side="right") - 1, 0, len(edges) - 2)
            outside[0] += int((shard.values < edges[0]).sum())
            outside[1] += int((shard.values > edges[-1]).sum())
            named = (("source", shard.source), ("domain", shard.domain))
            own = [groups[by].setdefault(name, _Group(len(edges) - 1)) for by, name in named]
            for group in (whole, *own):
                group.add(place, shard)
        return {
            "measure": self._measure,
            "edges": edges.tolist(),
            "below": outside[0],
            "above": outside[1],
            "bounds": self._bounds(),
            **whole.described(bool(any(self._rules.values()))),
            "by": {
                by: [
                    {"name": name, **group.described(self._judges(by, name))}
                    for name, group in sorted(own.items())
                ]
                for by, own in groups.items()
            },
        }

    def _judges(self, by: str, name: str) -> bool:
        """Is there a rule on this score for the group?"""
        return any(
            rules and name == (source if by == "source" else self._domain(source))
            for source, rules in self._rules.items()
        )

    def _domain(self, source: str) -> str:
        return domain_of(self._found.artifacts[f"ingest/{source}"])

    def _bounds(self) -> list[Json]:
        """Of rules on the score in cleaning, and on its percentile after it."""
        ranked = self._found.artifacts.get("scores")
        after = ranked.manifest.options(RankOptions).rules if ranked is not None else {}
        return [
            {
                "source": source,
                "domain": self._domain(source),
                "measure": rule.column,
                "bound": rule.bound,
                "threshold": float(rule.threshold),
            }
            for source, own in self._rules.items()
            for rule in [*own, *_on_percentiles(after.get(source, ()), self._measure)]
        ]

    def _edges(self) -> Values:
        counts = np.zeros(1 << _BITS, np.int64)
        least, most = math.inf, -math.inf
        for shard in self._shards():
            if len(shard.values):
                least, most = min(least, float(shard.values.min())), max(most, float(shard.values.max()))
                counts += np.bincount(ordered(shard.values) >> np.uint64(64 - _BITS), minlength=1 << _BITS)
        if not counts.any():
            return np.array([0.0, 1.0])
        up = np.cumsum(counts)
        first = int(np.searchsorted(up, _OUTSIDE * up[-1], side="right"))
        last = int(np.searchsorted(up, (1 - _OUTSIDE) * up[-1], side="left"))
        return bar_edges(max(_value_of(first), least), min(_value_of(last + 1), most))

    def _shards(self) -> Iterator[_Shard]:
        for shard in self._found.shards():
            cleaned = self._found.artifacts.get(f"clean/{shard.source}")
            measures = load_of(cleaned, f"measures-{shard.key}.parquet", [self._measure])
            if measures is None:
                continue
            column = one_piece(measures.column(0))
            is_scored = np.asarray(column.is_valid())
            values = np.asarray(column.drop_null()).astype(np.float64) + 0.0  # minus zero is zero
            rules = self._rules[shard.source]
            judged = judge({self._measure: values}, rules, len(values)) if rules else None
            passes = None if judged is None else judged.first == len(rules)
            is_kept = self._kept(shard)[is_scored]
            yield _Shard(shard.source, self._domain(shard.source), values, passes, is_kept)

    def _kept(self, shard: ShardTables) -> NDArray[np.bool_]:
        """By cleaning, and by rules on percentiles where there are any."""
        ranked, cleaned = self._found.artifacts.get("scores"), self._found.artifacts[f"clean/{shard.source}"]
        marks = load_of(ranked, f"marks-{shard.number:05d}.parquet", ["kept"])
        if marks is None:
            marks = load_of(cleaned, f"marks-{shard.key}.parquet", ["kept"])
        assert marks is not None, "who is measured is marked"
        return np.asarray(marks.column("kept"))


class _Group:
    def __init__(self, bars: int) -> None:
        self._docs, self._kept = np.zeros(bars, np.int64), np.zeros(bars, np.int64)
        self._passes = self._judged = 0

    def add(self, place: NDArray[Any], shard: _Shard) -> None:
        self._docs += np.bincount(place, minlength=len(self._docs))
        self._kept += np.bincount(place[shard.is_kept], minlength=len(self._kept))
        if shard.passes is not None:
            self._passes += int(shard.passes.sum())
            self._judged += len(shard.passes)

    def described(self, is_judged: bool) -> Json:
        """`judged`: documents of sources with a rule on this score; `passes`: those of them that it does not
        drop, None where there is no such rule."""
        return {
            "docs": int(self._docs.sum()),
            "judged": self._judged,
            "passes": self._passes if is_judged else None,
            "kept": int(self._kept.sum()),
            "bars": self._docs.tolist(),
            "bars_kept": self._kept.tolist(),
        }


def _on_percentiles(rules: Sequence[Rule], measure: str) -> list[Rule]:
    return [rule for rule in rules if rule.column == measure + PERCENTILE]


def _value_of(first_bits: int) -> float:
    """The least float64 whose bits, in order, begin so."""
    bits = np.array([min(first_bits, (1 << _BITS) - 1) << (64 - _BITS)], np.uint64)
    top = np.uint64(1 << 63)
    value = float(np.where(bits & top, bits & ~top, ~bits).view(np.float64)[0])
    return value if math.isfinite(value) else math.copysign(_FARTHEST, value)


def bar_edges(least: float, most: float) -> Values:
    """About `_BARS` equal bars over these values, between round numbers."""
    least, most = max(least, -_FARTHEST), min(most, _FARTHEST)
    span = max(most - least, abs(most) * 1e-9, 1e-200)  # bars of equal values, or nearly, have a width too
    power = math.floor(math.log10(span / _BARS))
    factor = next(f for f in (1, 2, 5, 10) if f * 10.0**power * _BARS >= span * (1 - 1e-9))

    def edge(number: int) -> float:
        # one division or product of whole numbers: the float64 that is nearest to the decimal
        return number * factor / 10**-power if power < 0 else float(number * factor * 10**power)

    first = math.floor(least / (factor * 10.0**power))
    while edge(first) > least:
        first -= 1
    edges = [edge(first), edge(first + 1)]
    while edges[-1] < most:
        edges.append(edge(first + len(edges)))
    return np.array(edges)

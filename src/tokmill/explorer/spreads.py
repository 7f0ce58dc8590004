"""How a measure is spread: documents by its value, source by source, and the thresholds that stand in it."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Json
from tokmill.errors import InputError
from tokmill.explorer.described import list_rules
from tokmill.explorer.query import parse_query
from tokmill.explorer.site import Site

MAX_BINS = 400
_HISTOGRAMS = 64


class Spreads:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._lock = threading.Lock()
        self._spread: OrderedDict[tuple[Any, ...], Json] = OrderedDict()

    def spread(self, measure: str, filters: list[str], by: str, bins: int) -> Json:
        began = time.perf_counter()
        columns = self._site.columns
        if columns.column(measure).kind != "number":
            raise InputError(f"{measure} is not counted or measured", where="measure", next="choose a number")
        if by and columns.column(by).kind not in ("category", "bool"):
            raise InputError(f"{by} has too many values", where="by", next="source, domain, verdict …")
        bins = min(max(bins, 1), MAX_BINS)
        key = (measure, tuple(filters), by, bins)
        with self._lock:
            told = self._spread.get(key)
        if told is None:
            told = self._histogram(measure, filters, by, bins)
            with self._lock:
                self._spread[key] = told
                if len(self._spread) > _HISTOGRAMS:
                    self._spread.popitem(last=False)
        return {**told, "thresholds": self._bounds_of(measure), "seconds": time.perf_counter() - began}

    def _histogram(self, measure: str, filters: list[str], by: str, bins: int) -> Json:
        site = self._site
        whole = site.columns.whole(measure).values
        is_valid = np.asarray(whole.is_valid())
        is_asked = np.ones(len(whole), np.bool_)
        if filters:
            is_asked = site.queries.mask(parse_query(site.columns, filters, None))
        is_in = is_asked & is_valid
        values = np.asarray(whole.fill_null(0))[is_in]
        edges, scale = _edges(values, bins)
        if by:
            grouped = site.columns.whole(by)
            names = list(map(str, grouped.names if grouped.names is not None else [False, True]))
            codes = np.asarray(grouped.values.cast(pa.int32()).fill_null(len(names)))[is_in]
            names.append("none")
        else:
            names, codes = ["all"], np.zeros(len(values), np.int32)
        last = len(edges) - 2
        at = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, max(last, 0))
        counts = np.bincount(codes.astype(np.int64) * (last + 1) + at, minlength=len(names) * (last + 1))
        table = counts.reshape(len(names), last + 1)
        return {
            "measure": measure,
            "edges": edges.tolist(),
            "scale": scale,
            "series": [
                {"name": name, "counts": own.tolist()}
                for name, own in zip(names, table, strict=True)
                if own.any()
            ],
            "documents": len(values),
            "without": int(np.count_nonzero(is_asked & ~is_valid)),
        }

    def _bounds_of(self, measure: str) -> list[Json]:
        return [
            {key: rule[own] for key, own in _SHOWN.items()}
            for rule in list_rules(self._site)
            if rule["measure"] == measure
        ]


_SHOWN = {"source": "source", "value": "threshold", "rule": "name", "keep": "keep"}
_SAMPLE = 1 << 17
_WIDE = 30  # times the middle: spaced by factors


def _edges(values: NDArray[Any], bins: int) -> tuple[NDArray[np.float64], str]:
    """Bins are even where most values are; the first and the last reach as far as values do. What spans
    many times its middle, and is positive, has bins that grow by a factor."""
    if not len(values):
        return np.array([0.0, 1.0]), "linear"
    low, high = float(values.min()), float(values.max())
    if low == high:
        return np.array([low, low + 1.0]), "linear"
    some = values[:: max(len(values) // _SAMPLE, 1)]
    inner = np.quantile(some, [0.005, 0.5, 0.995])
    first, last = (float(inner[0]), float(inner[2])) if inner[2] > inner[0] else (low, high)
    if (first > 0 and last > _WIDE * max(float(inner[1]), 1e-300)) or (first > 0 and last / first > _WIDE**2):
        edges, scale = np.geomspace(first, last, bins + 1), "log"
    else:
        edges, scale = np.linspace(first, last, bins + 1), "linear"
    edges[0], edges[-1] = min(low, edges[0]), max(high, edges[-1])
    return np.unique(edges), scale

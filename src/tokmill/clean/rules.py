"""Rules are thresholds on measured columns: measuring never drops, deciding never reads text.

measures {chars, bytes, …} ─ judge ─> Faults: for each document the first rule it breaks, value, threshold
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tokmill.recipe import Filter

Column = np.ndarray[Any, Any]

EMPTY = "empty"


class Faults(NamedTuple):
    """Dropped documents, in row order."""

    rows: Column
    reasons: list[str]
    values: Column
    thresholds: Column


def judge(measures: Mapping[str, Column], filters: list[Filter], is_blank: Column) -> Faults:
    """A document without a visible character is always dropped; then the filters in recipe order."""
    count = len(is_blank)
    reasons = np.full(count, "", object)
    values, thresholds = np.zeros(count), np.zeros(count)
    _mark(is_blank, EMPTY, np.zeros(count), 1, reasons, values, thresholds)
    for rule in filters:
        column = measures[rule.measure]
        if rule.min is not None:
            _mark(
                column < rule.min,
                rule.reason or f"too_few_{rule.measure}",
                column,
                rule.min,
                reasons,
                values,
                thresholds,
            )
        if rule.max is not None:
            _mark(
                column > rule.max,
                rule.reason or f"too_many_{rule.measure}",
                column,
                rule.max,
                reasons,
                values,
                thresholds,
            )
    rows = np.flatnonzero(reasons != "")
    return Faults(rows, reasons[rows].tolist(), values[rows], thresholds[rows])


def _mark(
    broken: Column,
    reason: str,
    column: Column,
    bound: float,
    reasons: Column,
    values: Column,
    thresholds: Column,
) -> None:
    """Only documents that no earlier rule has claimed."""
    fresh = broken & (reasons == "")
    reasons[fresh], values[fresh], thresholds[fresh] = reason, column[fresh], bound

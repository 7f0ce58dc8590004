"""What is decided about each row of a shard: the first claim stays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Column = NDArray[Any]


class Faults(NamedTuple):
    """Documents that are not kept, in row order."""

    rows: Column
    verdicts: list[str]  # drop | quarantine
    reasons: list[str]
    values: Column
    thresholds: Column
    details: list[str | None]


class Open(NamedTuple):
    """The rows that a threshold can still decide about. Where that is all of them nothing is copied."""

    rows: Column
    total: int  # of all rows

    def take(self, column: Any) -> Any:
        return column if len(self.rows) == self.total else column.take(pa.array(self.rows))

    def spread(self, values: Column) -> Column:
        """To all rows; the others, which are claimed already, have 0."""
        if len(self.rows) == self.total:
            return values
        whole = np.zeros(self.total, values.dtype)
        whole[self.rows] = values
        return whole

    def spread_nullable(self, values: Column) -> Any:
        if len(self.rows) == self.total:
            return pa.array(values)
        is_null = np.ones(self.total, np.bool_)
        is_null[self.rows] = False
        return pa.array(self.spread(values), mask=is_null)


class Verdicts:
    """What is decided about each row so far: the first claim stays."""

    def __init__(self, count: int) -> None:
        self._codes = np.full(count, -1, np.int64)  # index into the claims made; -1 kept
        self._is_open = np.ones(count, np.bool_)
        self._claims: list[tuple[str, str]] = []  # verdict, reason
        self._values, self._thresholds = np.full(count, np.nan), np.full(count, np.nan)
        self._details: dict[int, str] = {}

    def kept(self) -> Column:
        return self._codes < 0

    def open(self) -> Open:
        return Open(np.flatnonzero(self._is_open), len(self._is_open))

    def close(self, rows: Column, reason: str, *measured: Any, **more: Any) -> None:
        """A claim that no threshold can undo; it also ends what a threshold has claimed before."""
        self._is_open &= ~rows
        self.claim(rows, reason, *measured, **more)

    def claim(
        self,
        rows: Column,
        reason: str,
        values: Any = np.nan,
        thresholds: Any = np.nan,
        *,
        verdict: str = "drop",
        details: Any = None,
    ) -> None:
        fresh = np.flatnonzero(rows & self.kept())
        if not len(fresh):
            return
        self._codes[fresh] = len(self._claims)
        self._claims.append((verdict, reason))
        for into, given in ((self._values, values), (self._thresholds, thresholds)):
            into[fresh] = given[fresh] if isinstance(given, np.ndarray) else given
        if details is not None:
            texts = details.take(pa.array(fresh)).to_pylist()
            self._details.update(
                (row, detail) for row, detail in zip(fresh.tolist(), texts, strict=True) if detail is not None
            )

    def faults(self) -> Faults:
        rows = np.flatnonzero(~self.kept())
        claims = [self._claims[code] for code in self._codes[rows].tolist()]
        return Faults(
            rows,
            [verdict for verdict, _ in claims],
            [reason for _, reason in claims],
            self._values[rows],
            self._thresholds[rows],
            [self._details.get(row) for row in rows.tolist()],
        )

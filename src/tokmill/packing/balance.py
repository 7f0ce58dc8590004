"""Equal domains: the larger lose rows, chosen by a keyed hash, until all have as many as the smallest.

    row of the domain ─ keyed hash, its number in the low bits ─> mark
                                                                  kept: the rows with the smallest marks
    marks ─ counted by their leading bits, then by the next, … ─> the largest mark that is kept

A mark follows from the number of a row alone, so nothing is stored: one number for each domain decides, and
finding it takes a table of 512 KB, whatever the number of rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.mixing import mark_shuffle
from tokmill.packing.plan import Plan, pieces_of

# Marks are made so many at a time, and narrowed down by so many bits in each look.
_BATCH_ROWS = 1 << 20
_LOOK_BITS = 16


class Balance:
    """As many rows of every group as the smallest has, of groups of so many `rows`.
    One without a row does not count."""

    def __init__(self, rows: Sequence[int], seed: int) -> None:
        self._rows = list(rows)
        fewest = min((count for count in rows if count), default=0)
        self._keys = [_key(seed, group) for group in range(len(rows))]
        self._bounds = [
            _largest_kept(count, fewest, key) for count, key in zip(rows, self._keys, strict=True)
        ]

    def kept_rows(self, groups: NDArray[np.integer], before: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of rows of these groups, `before` each group's first of which there were so many of it:
        those that stay."""
        is_kept = np.zeros(len(groups), np.bool_)
        for group in np.unique(groups).tolist():
            mine = np.flatnonzero(groups == group)
            first = int(before[group])
            marks = _marks(first, first + len(mine), self._rows[group], self._keys[group])
            is_kept[mine] = marks <= np.uint64(self._bounds[group])
        return np.flatnonzero(is_kept)


def row_groups(plan: Plan, groups: NDArray[np.integer]) -> NDArray[np.int32]:
    """The group of each row; a row of two groups is our bug."""
    pieces = pieces_of(plan)
    counts = np.diff(pieces.row_begins)
    assert (counts > 0).all(), f"{plan.layout}: a row holds nothing"
    of_pieces = np.asarray(groups, np.int32)[pieces.document]
    of_rows = of_pieces[pieces.row_begins[:-1]]
    assert np.array_equal(of_pieces, np.repeat(of_rows, counts)), f"{plan.layout}: a row mixes groups"
    return of_rows


def _largest_kept(rows: int, kept: int, key: int) -> int:
    """The `kept`-th smallest mark of all rows: no two are equal."""
    if not rows:
        return 0
    assert 0 < kept <= rows, f"{kept} of {rows} rows"
    prefix, fixed_bits, rank = 0, 0, kept
    while fixed_bits < 64:
        shift = 64 - fixed_bits - _LOOK_BITS
        counts = np.zeros(1 << _LOOK_BITS, np.int64)
        for marks in _all_marks(rows, key):
            if fixed_bits:
                marks = marks[marks >> np.uint64(64 - fixed_bits) == np.uint64(prefix)]
            digits = (marks >> np.uint64(shift)) & np.uint64((1 << _LOOK_BITS) - 1)
            counts += np.bincount(digits.astype(np.int64), minlength=len(counts))
        ends = np.cumsum(counts)
        digit = int(np.searchsorted(ends, rank, "left"))
        rank -= int(ends[digit] - counts[digit])
        prefix, fixed_bits = prefix << _LOOK_BITS | digit, fixed_bits + _LOOK_BITS
    return prefix


def _all_marks(rows: int, key: int) -> Iterator[NDArray[np.uint64]]:
    for first in range(0, rows, _BATCH_ROWS):
        yield _marks(first, min(first + _BATCH_ROWS, rows), rows, key)


def _marks(first: int, stop: int, rows: int, key: int) -> NDArray[np.uint64]:
    return mark_shuffle(np.arange(first, stop, dtype=np.uint64), key, first, rows)


def _key(seed: int, group: int) -> int:
    purpose = f"tokmill.balance.1 {seed} {group}"
    return int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "big")

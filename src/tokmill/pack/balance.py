"""Domains of equal size: the larger ones lose rows, chosen by a keyed hash, until all have as many as the smallest."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.mixing import mark_shuffle
from tokmill.pack.plan import Plan, pieces_of, take_rows


def balance_smallest(plan: Plan, groups: NDArray[np.integer], seed: int) -> Plan:
    """As many rows of every group as the smallest has; rows that stay keep their order.

    The plan's rows must not mix groups. A group without a row does not count.
    """
    group_of_row = row_groups(plan, groups)
    counts = np.bincount(group_of_row, minlength=1)
    fewest = int(counts[counts > 0].min(initial=plan.n_rows))
    kept = []
    for group in np.flatnonzero(counts).tolist():
        mine = np.flatnonzero(group_of_row == group)
        key = hashlib.sha256(f"tokmill.balance.1 {seed} {group}".encode()).digest()[:8]
        marks = mark_shuffle(np.arange(len(mine), dtype=np.uint64), int.from_bytes(key, "big"))
        kept.append(mine[np.argsort(marks)[:fewest]])
    rows = np.sort(np.concatenate(kept)) if kept else np.empty(0, np.int64)
    return take_rows(plan, rows)


def row_groups(plan: Plan, groups: NDArray[np.integer]) -> NDArray[np.int32]:
    """The group of each row; a row of two groups is our bug."""
    pieces = pieces_of(plan)
    counts = np.diff(pieces.row_begins)
    assert (counts > 0).all(), f"{plan.layout}: a row holds nothing"
    of_pieces = np.asarray(groups, np.int32)[pieces.document]
    of_rows = of_pieces[pieces.row_begins[:-1]]
    assert np.array_equal(of_pieces, np.repeat(of_rows, counts)), f"{plan.layout}: a row mixes groups"
    return of_rows

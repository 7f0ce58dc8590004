"""Exact Jaccard against sets of tuples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.kernels.minhash import overlap

Rows = list[list[int]]
ROW = st.lists(st.integers(0, 3) | st.integers(0, 2**32 - 1), max_size=40)


def grams(row: list[int], n: int) -> set[tuple[int, ...]]:
    if len(row) < n:
        return {tuple(row)} if row else set()
    return {tuple(row[at : at + n]) for at in range(len(row) - n + 1)}


def packed(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    return np.array([u for row in rows for u in row], np.uint32), np.cumsum([0, *map(len, rows)])


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(ROW, ROW), max_size=5), st.integers(1, 6))
def test_shared_and_either_are_what_python_sets_say(pairs: list[tuple[list[int], list[int]]], n: int) -> None:
    rows = np.arange(len(pairs))
    found = overlap(*packed([row for pair in pairs for row in pair]), 2 * rows, 2 * rows + 1, n)
    assert found.shared.tolist() == [len(grams(a, n) & grams(b, n)) for a, b in pairs]
    assert found.either.tolist() == [len(grams(a, n) | grams(b, n)) for a, b in pairs]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.integers(0, 1000))
def test_long_rows_that_share_a_middle(before: int, after: int) -> None:
    a, b = list(range(2000)), list(range(before, 2000 + after))
    found = overlap(*packed([a, b]), np.array([0]), np.array([1]), 3)
    assert (found.shared[0], found.either[0]) == (
        len(grams(a, 3) & grams(b, 3)),
        len(grams(a, 3) | grams(b, 3)),
    )


@settings(deadline=None, max_examples=50)
@given(st.lists(ROW, min_size=1, max_size=4), st.integers(1, 6))
def test_a_row_may_be_in_many_pairs(rows: Rows, n: int) -> None:
    left, right = (np.repeat(np.arange(len(rows)), len(rows)), np.tile(np.arange(len(rows)), len(rows)))
    found = overlap(*packed(rows), left, right, n)
    assert found.shared.tolist() == [len(grams(a, n) & grams(b, n)) for a in rows for b in rows]


def test_pairs_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="2 and 1 rows"):
        overlap(*packed([[1], [2]]), np.array([0, 1]), np.array([1]), 5)
    with pytest.raises(ValueError, match="beyond the 2 there are"):
        overlap(*packed([[1], [2]]), np.array([0]), np.array([2]), 5)

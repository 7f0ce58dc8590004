"""Differing bits, against Python's own count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.kernels.sketches import differing_bits

words = st.integers(0, 2**64 - 1)


@settings(deadline=None)
@given(st.lists(st.tuples(words, words), min_size=1, max_size=8), st.data())
def test_bits_are_counted_as_python_counts_them(rows: list[tuple[int, int]], data: st.DataObject) -> None:
    bits = np.array(rows, np.uint64)
    numbers = st.lists(st.integers(0, len(rows) - 1), max_size=6)
    left = data.draw(numbers)
    right = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=len(left), max_size=len(left)))
    found = differing_bits(bits, np.array(left, np.int64), bits[::-1].copy(), np.array(right, np.int64))
    other = rows[::-1]
    expected = [
        sum((a ^ b).bit_count() for a, b in zip(rows[one], other[two], strict=True))
        for one, two in zip(left, right, strict=True)
    ]
    assert found.tolist() == expected


def test_rows_that_are_not_there_are_refused() -> None:
    bits, row = np.zeros((2, 8), np.uint64), np.array([0])
    for left, right, other in (
        (np.array([2]), row, bits),
        (row, np.array([-1]), bits),
        (row, row, bits[:, :4]),
    ):
        with pytest.raises(ValueError, match="row"):
            differing_bits(bits, left, np.ascontiguousarray(other), right)

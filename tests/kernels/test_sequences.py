"""Sequences with an end, against lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.arrow_buffers import QUICK
from tokmill.kernels.packing import end_sequences


@QUICK
@given(
    st.lists(st.lists(st.integers(0, 65535), max_size=20), min_size=1, max_size=8),
    st.data(),
    st.sampled_from(["uint16", "int32"]),
)
def test_each_sequence_asked_for_is_there_with_its_end(
    sequences: list[list[int]], data: st.DataObject, dtype: str
) -> None:
    rows = data.draw(st.lists(st.integers(0, len(sequences) - 1), max_size=10))
    ids = np.array([id for ids in sequences for id in ids], np.int32)
    offsets = np.cumsum([0, *map(len, sequences)])
    found = end_sequences(ids, offsets, np.array(rows, np.int64), 7, dtype)
    assert found.dtype == dtype
    assert found.tolist() == [id for row in rows for id in [*sequences[row], 7]]


@pytest.mark.parametrize(("offsets", "rows"), [([0, 4], [0]), ([0, 3], [1]), ([0, 3], [-1])])
def test_places_outside_are_refused(offsets: list[int], rows: list[int]) -> None:
    with pytest.raises(ValueError, match=r"offsets|rows"):
        end_sequences(np.zeros(3, np.int32), np.array(offsets), np.array(rows), 0, "int32")

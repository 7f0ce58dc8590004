"""Rows of ids, and where documents begin in them, against token-by-token twins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packing.drawn_lengths import documents_and_row_length
from tokmill.errors import VocabTooLarge
from tokmill.packing.plan import (
    LAYOUTS,
    Store,
    gather_rows,
    gather_sequences,
    plan_indexed,
    plan_layout,
    plan_pad,
    row_batches,
)

FIXED = [layout for layout in LAYOUTS if layout != "indexed"]


def flat_store(ids: np.ndarray, lengths: np.ndarray) -> Store:
    """Documents one after the other in one array."""
    return Store([ids], np.cumsum(lengths) - lengths)


@given(
    case=documents_and_row_length(),
    layout=st.sampled_from(FIXED),
    dtype=st.sampled_from(["uint16", "int32"]),
    step=st.integers(1, 30),
)
@settings(deadline=None)
def test_rows_gathered_in_batches_hold_the_tokens_of_their_spans(case, layout, dtype, step):
    lengths, seq_len = case
    ids = np.arange(sum(lengths), dtype=dtype) + 7
    documents = np.split(ids, np.cumsum(lengths)[:-1]) if lengths else []
    plan = plan_layout(layout, np.array(lengths, np.int64), seq_len, None, "pad")
    expected = np.full((plan.n_rows, seq_len), 5, dtype)
    for row, document, start, end, offset in zip(*plan.spans(), strict=True):
        expected[row, start:end] = documents[document][offset : offset + end - start]
    store = flat_store(ids, np.array(lengths, np.int64))
    batches = [
        gather_rows(plan, store, first, stop, pad_id=5) for first, stop in row_batches(plan, step * seq_len)
    ]
    whole = np.concatenate([np.empty((0, seq_len), dtype), *batches])
    assert whole.dtype == dtype
    assert np.array_equal(whole, expected)


@given(case=documents_and_row_length(), layout=st.sampled_from(FIXED), data=st.data())
@settings(deadline=None)
def test_documents_in_many_arrays_and_in_any_order_are_found(case, layout, data):
    """As a mixture has them: document k of the plan lies anywhere, and perhaps twice."""
    lengths, seq_len = case
    arrays = [np.arange(first, first + 99, dtype=np.int32) for first in (0, 1000, 2000)]
    array = np.array([data.draw(st.integers(0, 2)) for _ in lengths], np.int32)
    begin = np.array([data.draw(st.integers(0, 99 - length)) for length in lengths], np.int64)
    plan = plan_layout(layout, np.array(lengths, np.int64), seq_len)
    rows = gather_rows(plan, Store(arrays, begin, array), 0, plan.n_rows, pad_id=-1)
    for row, document, start, end, offset in zip(*plan.spans(), strict=True):
        first = arrays[array[document]][begin[document] + offset]
        assert rows[row, start:end].tolist() == list(range(first, first + end - start))


def test_a_lent_array_is_used_and_what_was_in_it_is_gone():
    plan = plan_pad(np.array([2, 1]), 3)
    lent = np.full((9, 3), 77, np.int32)
    rows = gather_rows(
        plan, flat_store(np.array([1, 2, 3], np.int32), np.array([2, 1])), 0, 2, pad_id=0, into=lent
    )
    assert rows.base is lent
    assert rows.tolist() == [[1, 2, 0], [3, 0, 0]]
    assert lent[2].tolist() == [77, 77, 77]


@given(lengths=st.lists(st.integers(0, 9), max_size=20), step=st.integers(1, 40))
@settings(deadline=None)
def test_sequences_come_one_after_the_other(lengths, step):
    ids = np.arange(sum(lengths), dtype=np.uint16)
    plan, store = plan_indexed(np.array(lengths, np.int64)), flat_store(ids, np.array(lengths, np.int64))
    pieces = [gather_sequences(plan, store, first, stop) for first, stop in row_batches(plan, step)]
    assert np.array_equal(np.concatenate([np.empty(0, np.uint16), *pieces]), ids)


def test_a_padding_id_that_does_not_fit_is_an_error():
    plan, store = plan_pad(np.array([1]), 2), flat_store(np.array([1], np.uint16), np.array([1]))
    with pytest.raises(VocabTooLarge, match="pad id: id 70,000 does not fit uint16"):
        gather_rows(plan, store, 0, 1, pad_id=70_000)


def test_a_document_beyond_the_end_of_its_array_is_refused():
    plan = plan_pad(np.array([2, 2]), 2)
    with pytest.raises(ValueError, match="pieces lie outside the 12 bytes they come from"):
        gather_rows(plan, Store([np.zeros(3, np.int32)], np.array([0, 2])), 0, 2, pad_id=0)

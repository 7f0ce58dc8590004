"""Rows cut from concatenated documents: the plan against an obvious twin that really moves tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.errors import RecipeError
from tokmill.pack.concat import ConcatPlan, plan_concat

PAD = -1


def pack_slowly(lengths: list[int], seq_len: int, tail: str) -> list[list[tuple[int, int]]]:
    """Every token as (document, position), put into rows one by one."""
    rows: list[list[tuple[int, int]]] = []
    row: list[tuple[int, int]] = []
    for document, length in enumerate(lengths):
        for position in range(length):
            row.append((document, position))
            if len(row) == seq_len:
                rows.append(row)
                row = []
    if row and tail == "pad":
        rows.append(row + [(PAD, PAD)] * (seq_len - len(row)))
    return rows


def rows_through_spans(plan: ConcatPlan) -> list[list[tuple[int, int]]]:
    rows = [[(PAD, PAD)] * plan.seq_len for _ in range(plan.n_rows)]
    for row, document, start, end, offset in zip(*(column.tolist() for column in plan.spans()), strict=True):
        assert end > start
        for column in range(start, end):
            assert rows[row][column] == (PAD, PAD), "two spans cover one column"
            rows[row][column] = (document, offset + column - start)
    return rows


@st.composite
def documents_and_row_length(draw: st.DrawFn) -> tuple[list[int], int]:
    seq_len = draw(st.integers(2, 12))
    interesting = [0, 1, seq_len - 1, seq_len, seq_len + 1, 2 * seq_len, 7 * seq_len + 3]
    lengths = draw(st.lists(st.sampled_from(interesting) | st.integers(0, 40), max_size=25))
    return lengths, seq_len


@given(case=documents_and_row_length(), tail=st.sampled_from(["drop", "pad"]))
@settings(deadline=None)
def test_spans_rebuild_the_rows_of_the_slow_twin(case, tail):
    lengths, seq_len = case
    plan = plan_concat(np.array(lengths, dtype=np.int64), seq_len, tail)
    assert rows_through_spans(plan) == pack_slowly(lengths, seq_len, tail)


@given(case=documents_and_row_length(), tail=st.sampled_from(["drop", "pad"]))
@settings(deadline=None)
def test_no_token_is_lost_or_counted_twice(case, tail):
    lengths, seq_len = case
    plan = plan_concat(np.array(lengths, dtype=np.int64), seq_len, tail)
    assert plan.tokens_in == sum(lengths) == plan.tokens_kept + plan.tokens_dropped
    assert plan.n_rows * seq_len == plan.tokens_kept + plan.padding
    assert plan.tokens_dropped < seq_len
    assert plan.padding < seq_len
    assert plan.tokens_dropped == 0 if tail == "pad" else plan.padding == 0
    spans = plan.spans()
    assert int((spans.end - spans.start).sum()) == plan.tokens_kept
    assert all(column.dtype == np.int64 for column in spans)


@given(case=documents_and_row_length(), step=st.integers(1, 5))
@settings(deadline=None)
def test_spans_in_pieces_are_the_spans_of_the_whole(case, step):
    lengths, seq_len = case
    plan = plan_concat(np.array(lengths, dtype=np.int64), seq_len, "pad")
    pieces = [plan.spans(first, min(first + step, plan.n_rows)) for first in range(0, plan.n_rows, step)]
    for number, column in enumerate(plan.spans()):
        joined = np.concatenate([piece[number] for piece in pieces] or [np.empty(0, dtype=np.int64)])
        assert np.array_equal(joined, column)


def test_a_document_longer_than_two_to_the_31_tokens_is_planned_exactly():
    huge = (1 << 31) + 5
    plan = plan_concat(np.array([3, huge, 4], dtype=np.int64), 1 << 20, "drop")
    assert plan.n_rows == (huge + 7) // (1 << 20)
    spans = plan.spans()
    assert spans.offset[-1] == (plan.n_rows - 1) * (1 << 20) - 3
    assert spans.document[-1] == 1


def test_lengths_in_32_bits_do_not_wrap():
    plan = plan_concat(np.full(3, 2**31 - 1, dtype=np.int32), 1 << 30, "drop")
    assert plan.tokens_in == 3 * (2**31 - 1)


def test_no_documents_make_no_rows():
    for tail in ("drop", "pad"):
        plan = plan_concat(np.empty(0, dtype=np.int64), 8, tail)
        assert (plan.n_rows, plan.padding, len(plan.spans().row)) == (0, 0, 0)


@pytest.mark.parametrize("seq_len", [1, 0, -4])
def test_rows_too_short_to_train_on_are_a_recipe_error(seq_len):
    with pytest.raises(
        RecipeError, match=rf"pack.length: rows of {seq_len} tokens.*\n  next: set length to 2"
    ):
        plan_concat(np.array([5]), seq_len, "drop")


def test_an_unknown_tail_is_a_recipe_error():
    with pytest.raises(
        RecipeError, match=r"pack\.tail: unknown tail 'keep'\n  next: set tail: drop or tail: pad"
    ):
        plan_concat(np.array([5]), 4, "keep")

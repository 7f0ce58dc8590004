"""Every strategy against its slow twin, and the laws that all plans obey."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packing.drawn_lengths import documents_and_row_length, grouped_documents
from plain.packing import (
    PAD,
    pack_best_fit,
    pack_concat,
    pack_concat_apart,
    pack_document,
    pack_pad,
    tokens_of,
)
from tokmill import pack
from tokmill.errors import InputError, RecipeError
from tokmill.packing import plan as fitting
from tokmill.packing.plan import plan_layout, take_rows

LAYOUTS = ["concat", "document", "best_fit", "pad", "indexed"]


def array(lengths: list[int]) -> np.ndarray:
    return np.array(lengths, dtype=np.int64)


def rows_through_spans(plan: Any) -> list[list[tuple[int, int]]]:
    rows: list[list[tuple[int, int]]] = [[PAD] * plan.seq_len for _ in range(plan.n_rows)]
    for row, document, start, end, offset in zip(*(column.tolist() for column in plan.spans()), strict=True):
        assert end > start
        if not plan.seq_len:
            rows[row] = [PAD] * end
        for column in range(start, end):
            assert rows[row][column] == PAD, "two spans cover one column"
            rows[row][column] = (document, offset + column - start)
    return rows


@given(case=documents_and_row_length(), tail=st.sampled_from(["drop", "pad"]))
@settings(deadline=None)
def test_concat_rebuilds_the_rows_of_the_slow_twin(case, tail):
    lengths, seq_len = case
    assert rows_through_spans(pack(lengths, seq_len, tail=tail)) == pack_concat(lengths, seq_len, tail)


@given(case=grouped_documents(), tail=st.sampled_from(["drop", "pad"]))
@settings(deadline=None)
def test_concat_of_groups_keeps_each_stream_by_itself(case, tail):
    lengths, seq_len, groups = case
    plan = pack(lengths, seq_len, tail=tail, groups=groups)
    assert rows_through_spans(plan) == pack_concat_apart(lengths, seq_len, tail, groups)


@given(case=grouped_documents(), apart=st.booleans())
@settings(deadline=None, max_examples=300)
def test_best_fit_rebuilds_the_rows_of_the_slow_twin(case, apart):
    lengths, seq_len, groups = case
    plan = pack(lengths, seq_len, layout="best_fit", groups=groups if apart else None)
    assert rows_through_spans(plan) == pack_best_fit(lengths, seq_len, groups if apart else None)


@given(case=grouped_documents(), apart=st.booleans(), open_rows=st.integers(1, 4))
@settings(deadline=None, max_examples=300)
def test_document_rebuilds_the_rows_of_the_slow_twin(case, apart, open_rows):
    lengths, seq_len, groups = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "_OPEN_ROWS", open_rows)
        plan = plan_layout("document", array(lengths), seq_len, np.array(groups, np.int64) if apart else None)
    assert rows_through_spans(plan) == pack_document(lengths, seq_len, open_rows, groups if apart else None)


@given(case=documents_and_row_length())
@settings(deadline=None)
def test_pad_gives_each_example_a_row_and_truncates_once(case):
    lengths, seq_len = case
    assert rows_through_spans(pack(lengths, seq_len, layout="pad")) == pack_pad(lengths, seq_len)


@given(case=documents_and_row_length())
@settings(deadline=None)
def test_indexed_gives_every_document_as_it_is(case):
    lengths, seq_len = case
    plan = pack(lengths, seq_len, layout="indexed")
    assert rows_through_spans(plan) == [tokens_of(lengths, document) for document in range(len(lengths))]
    assert (plan.padding, plan.tokens_kept) == (0, sum(lengths))


@given(case=grouped_documents(), layout=st.sampled_from(LAYOUTS), tail=st.sampled_from(["drop", "pad"]))
@settings(deadline=None, max_examples=300)
def test_no_token_is_lost_or_counted_twice(case, layout, tail):
    lengths, seq_len, groups = case
    plan = pack(lengths, seq_len, layout=layout, groups=groups, tail=tail)
    rows = rows_through_spans(plan)
    placed = [token for row in rows for token in row if token != PAD]
    assert len(placed) == len(set(placed)) == plan.tokens_kept
    assert sum(token == PAD for row in rows for token in row) == plan.padding
    assert plan.tokens_in == sum(lengths) == plan.tokens_kept + plan.tail_dropped + plan.truncated
    if layout != "concat":
        assert plan.tail_dropped == 0
    if layout != "pad":
        assert plan.truncated == 0
    assert all(column.dtype == np.int64 for column in plan.spans())


@given(case=grouped_documents(), layout=st.sampled_from(["best_fit", "document"]))
@settings(deadline=None, max_examples=200)
def test_only_what_is_longer_than_a_row_is_cut_and_rows_do_not_mix_groups(case, layout):
    lengths, seq_len, groups = case
    rows = rows_through_spans(pack(lengths, seq_len, layout=layout, groups=groups))
    on_rows: dict[int, set[int]] = {}
    for number, row in enumerate(rows):
        here = {document for document, _ in row if document >= 0}
        assert len({groups[document] for document in here}) == 1
        for document in here:
            on_rows.setdefault(document, set()).add(number)
    for document, numbers in on_rows.items():
        assert len(numbers) == -(-lengths[document] // seq_len)
        if layout == "document":
            assert max(numbers) - min(numbers) + 1 == len(numbers), "a long document takes consecutive rows"
    firsts = [row[0] for row in rows]
    assert firsts == sorted(firsts), "rows are in the order of their first document"


@given(case=grouped_documents(), layout=st.sampled_from(LAYOUTS), step=st.integers(1, 5))
@settings(deadline=None)
def test_spans_in_pieces_are_the_spans_of_the_whole(case, layout, step):
    lengths, seq_len, groups = case
    plan = pack(lengths, seq_len, layout=layout, groups=groups, tail="pad")
    pieces = [plan.spans(first, min(first + step, plan.n_rows)) for first in range(0, plan.n_rows, step)]
    for number, column in enumerate(plan.spans()):
        joined = np.concatenate([piece[number] for piece in pieces] or [np.empty(0, dtype=np.int64)])
        assert np.array_equal(joined, column)
    assert len(plan.spans(0, 0).row) == len(plan.spans(plan.n_rows, plan.n_rows).row) == 0


@given(case=documents_and_row_length(), layout=st.sampled_from(LAYOUTS), data=st.data())
@settings(deadline=None)
def test_some_rows_of_a_plan_are_a_plan_and_the_rest_is_counted(case, layout, data):
    lengths, seq_len = case
    plan = plan_layout(layout, array(lengths), seq_len, None, "pad")
    numbers = st.integers(0, max(plan.n_rows - 1, 0))
    chosen = data.draw(st.lists(numbers, unique=True, max_size=plan.n_rows))
    some = take_rows(plan, np.array(chosen, np.int64))
    rows = rows_through_spans(plan)
    assert rows_through_spans(some) == [rows[number] for number in chosen]
    assert some.tokens_in == plan.tokens_in
    # a document without a row is left out whole; one in a row may be truncated there, and only there
    there = set(some.spans().document.tolist())
    truncated = sum(lengths[number] - seq_len for number in there if lengths[number] > seq_len)
    assert some.truncated == (truncated if layout == "pad" else 0)
    assert some.left_out == plan.tokens_in - some.tokens_kept - some.truncated - some.tail_dropped


def test_a_document_that_fills_its_row_exactly_shares_it_with_nobody():
    plan = pack([4, 4, 1, 3], 4, layout="best_fit")
    assert plan.spans().row.tolist() == [0, 1, 2, 2]
    assert plan.padding == 0


@pytest.mark.parametrize("layout", ["concat", "document", "best_fit", "pad"])
def test_a_document_longer_than_two_to_the_31_tokens_is_planned_exactly(layout):
    huge = (1 << 31) + 5
    plan = pack([3, huge, 4], 1 << 20, layout=layout)
    spans = plan.spans()
    of_huge = spans.document == 1
    assert int((spans.end - spans.start)[of_huge].sum()) == {
        "concat": plan.n_rows * (1 << 20) - 3,
        "pad": 1 << 20,
    }.get(layout, huge)
    assert int(spans.offset.max()) == {"concat": (plan.n_rows - 1) * (1 << 20) - 3, "pad": huge - 1}.get(
        layout, 1 << 31
    )
    assert plan.tokens_in == huge + 7


def test_a_sequence_longer_than_the_format_allows_is_an_error():
    with pytest.raises(
        InputError, match=r"document 1 has 2,147,483,648 tokens.*\n  next: split the document"
    ):
        pack([1, 1 << 31], 8, layout="indexed")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lengths_in_32_bits_do_not_wrap(layout):
    lengths = np.full(3, 2**31 - 1, dtype=np.int32)
    # best_fit has a place for every room that a row can have: with 1 << 30 of them it takes 10 CPU s
    row = 1 << 20 if layout == "best_fit" else 1 << 30
    assert plan_layout(layout, lengths, row).tokens_in == 3 * (2**31 - 1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tail", ["drop", "pad"])
@pytest.mark.parametrize("lengths", [[], [0, 0]])
def test_no_tokens_make_no_columns(layout, tail, lengths):
    plan = pack(lengths, 8, layout=layout, tail=tail)
    assert (plan.tokens_kept, plan.padding, len(plan.spans().row)) == (0, 0, 0)
    assert plan.n_rows == (len(lengths) if layout == "indexed" else 0)


@pytest.mark.parametrize("layout", ["concat", "document", "best_fit", "pad"])
@pytest.mark.parametrize("seq_len", [1, 0, -4])
def test_rows_too_short_to_train_on_are_a_recipe_error(layout, seq_len):
    with pytest.raises(
        RecipeError, match=rf"pack.length: rows of {seq_len} tokens.*\n  next: set length to 2"
    ):
        pack([5], seq_len, layout=layout)


def test_a_row_longer_than_the_files_can_say_is_a_recipe_error():
    with pytest.raises(RecipeError, match=r"pack.length: rows of 2,147,483,648 tokens are too long"):
        pack([5], 1 << 31, layout="best_fit")


def test_an_unknown_tail_is_an_error():
    with pytest.raises(InputError, match=r"tail: 'keep' is not a choice\n  next: set one of drop, pad"):
        pack([5], 4, tail="keep")

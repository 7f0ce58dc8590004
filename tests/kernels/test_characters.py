"""Marks counted in blocks against Python's own counts: at the ends of rows and where blocks meet."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.arrow_buffers import QUICK, TEXTS, buffers
from tokmill.kernels.characters import measure_marks

# Around the words, the shorter and the longer blocks of a row, two and three of them,
# and what eight bits hold.
SIZES = (*range(5), 7, 8, 9, *range(15, 18), *range(31, 36), *range(94, 101), *range(126, 133),
         *range(190, 197),
         *range(254, 259), 290)  # fmt: skip
MARKS = ("\n", "{", "#", "…", "...", "..", "é", "日", "😀", "\u2026\u2026", ".…..", "⒦", "\u20a6")


def slow_marks(text: str) -> list[int]:
    ellipses = len(re.findall(r"\.\.\.|…", text))
    return [len(text), text.count("\n"), text.count("{"), text.count("#"), ellipses]


def measured(texts: list[str]) -> list[list[int]]:
    data, offsets, _ = buffers(pa.array(texts, pa.large_string()))
    return [list(row) for row in zip(*(c.tolist() for c in measure_marks(data, offsets)), strict=True)]


@pytest.mark.parametrize("mark", MARKS)
def test_a_mark_is_counted_at_every_place_of_rows_of_any_size(mark: str) -> None:
    places = [0, 1, 2, 13, 14, 15, 16, 30, 31, 32, *range(92, 99), *range(124, 130), *range(188, 194)]
    rows = [
        "x" * place + mark + "x" * (size - place - len(mark))
        for size in SIZES
        for place in [*places, *range(max(0, size - 5 - len(mark)), size - len(mark) + 1)]
        if place + len(mark) <= size
    ]
    assert measured(rows) == [slow_marks(row) for row in rows]


@pytest.mark.parametrize("mark", [*MARKS, ".", "x"])
def test_rows_of_nothing_but_one_mark_are_counted_to_the_last(mark: str) -> None:
    rows = [(mark * size)[:size] for size in SIZES]
    assert measured(rows) == [slow_marks(row) for row in rows]


def test_a_run_of_dots_across_blocks_is_cut_into_threes_from_its_start() -> None:
    rows = [
        "x" * before + "." * dots + after
        for before in (0, 1, 90, 93, 94, 95, 96)
        for dots in (1, 2, 3, 4, 5, 6, 100, 191, 192, 193)
        for after in ("", "x", "x" * 40, "….…" * 30)
    ]
    assert measured(rows) == [slow_marks(row) for row in rows]


@QUICK
@given(st.lists(st.text("a.…é\n{#", max_size=300) | TEXTS, max_size=5))
def test_marks_are_what_python_counts(texts: list[str]) -> None:
    assert measured(texts) == [slow_marks(text) for text in texts]


def test_a_row_does_not_look_into_the_next() -> None:
    assert measured(["x..", ".", "..…", "\xa6"]) == [
        [3, 0, 0, 0, 0],
        [1, 0, 0, 0, 0],
        [3, 0, 0, 0, 1],
        [1, 0, 0, 0, 0],
    ]

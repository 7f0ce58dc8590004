"""Literals in a text column against `re`, which tries longer alternatives first when they are listed
first."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.arrow_buffers import QUICK, buffers
from tokmill.kernels.patterns import find_literals, literal_table

PIECE = st.text("ab<|é>", min_size=1, max_size=4)


def slow_find(texts: list[str], literals: list[str]) -> list[tuple[int, int, int, int]]:
    longest_first = sorted(literals, key=lambda literal: -len(literal.encode()))
    pattern = re.compile(b"|".join(re.escape(literal.encode()) for literal in longest_first))
    found, at = [], 0
    for row, text in enumerate(texts):
        for match in pattern.finditer(text.encode()):
            found.append((row, at + match.start(), at + match.end(), literals.index(match[0].decode())))
        at += len(text.encode())
    return found


@QUICK
@given(
    st.lists(st.text("ab<|é>x", max_size=30) | st.text("xxxxxxx<b", max_size=60), max_size=6),
    st.lists(PIECE, min_size=1, max_size=6, unique=True),
)
def test_occurrences_are_those_of_a_regular_expression(texts: list[str], literals: list[str]) -> None:
    data, offsets, _ = buffers(pa.array(texts, pa.large_string()))
    found = find_literals(data, offsets, literal_table(literals))
    assert list(zip(*(column.tolist() for column in found), strict=True)) == slow_find(texts, literals)


def test_more_occurrences_than_there_was_room_for_are_all_found() -> None:
    texts = ["<s>" * 5000, "", "x<s>"]
    data, offsets, _ = buffers(pa.array(texts, pa.large_string()))
    found = find_literals(data, offsets, literal_table(["<s>"]))
    assert found.rows.tolist() == [0] * 5000 + [2]
    assert found.begins[-1] == 15001


def test_a_literal_does_not_reach_into_the_next_row() -> None:
    data, offsets, _ = buffers(pa.array(["a<", "s>"], pa.large_string()))
    assert find_literals(data, offsets, literal_table(["<s>"])).rows.size == 0


def test_no_literals_are_found_nowhere() -> None:
    data = np.frombuffer(b"abc", np.uint8)
    assert find_literals(data, np.array([0, 3]), literal_table([])).rows.size == 0


def test_an_empty_literal_is_refused() -> None:
    with pytest.raises(AssertionError, match="an empty literal is everywhere"):
        literal_table(["a", ""])

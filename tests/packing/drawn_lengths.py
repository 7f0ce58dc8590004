"""Lengths of documents around the length of a row, which it takes to make the cases of packing meet."""

from __future__ import annotations

from hypothesis import strategies as st


@st.composite
def documents_and_row_length(draw: st.DrawFn) -> tuple[list[int], int]:
    seq_len = draw(st.integers(2, 12))
    interesting = [0, 1, seq_len - 1, seq_len, seq_len + 1, 2 * seq_len, 7 * seq_len + 3]
    lengths = draw(st.lists(st.sampled_from(interesting) | st.integers(0, 40), max_size=25))
    return lengths, seq_len


@st.composite
def grouped_documents(draw: st.DrawFn) -> tuple[list[int], int, list[int]]:
    lengths, seq_len = draw(documents_and_row_length())
    groups = draw(st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths)))
    return lengths, seq_len, groups

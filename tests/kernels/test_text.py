from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.arrow_buffers import QUICK, buffers, column, columns
from tokmill.kernels.characters import edit_text, measure_text


def slow_edit(text: str, *, strip_nul: bool, lf_newlines: bool) -> str:
    if strip_nul:
        text = text.replace("\0", "")
    if lf_newlines:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text


@QUICK
@given(columns())
def test_measures_are_what_python_counts(array: pa.LargeStringArray) -> None:
    texts = array.to_pylist()
    measures = measure_text(*buffers(array)[:2])
    assert measures.chars.tolist() == [len(text) for text in texts]
    assert measures.nuls.tolist() == [text.count("\0") for text in texts]
    assert measures.carriage_returns.tolist() == [text.count("\r") for text in texts]
    assert measures.is_ascii.tolist() == [text.isascii() for text in texts]


@pytest.mark.parametrize("text", ["\0" * 9000, "\r" * 9000, "é" * 9000, "\x01\0" * 5000, "\x0c\r\x0e" * 3000])
def test_counters_do_not_overflow_in_a_long_text(text: str) -> None:
    measures = measure_text(*buffers(column([text]))[:2])
    assert measures.chars[0] == len(text)
    assert measures.nuls[0] == text.count("\0")
    assert measures.carriage_returns[0] == text.count("\r")


@QUICK
@given(columns(), st.booleans(), st.booleans())
def test_edits_are_what_replace_does(array: pa.LargeStringArray, strip_nul: bool, lf_newlines: bool) -> None:
    data, offsets, _ = buffers(array)
    edited, edited_offsets = edit_text(data, offsets, strip_nul=strip_nul, lf_newlines=lf_newlines)
    assert edited_offsets[0] == 0
    assert edited_offsets[-1] == edited.size
    rows = [edited[a:b].tobytes().decode() for a, b in pairwise(edited_offsets)]
    assert rows == [slow_edit(t, strip_nul=strip_nul, lf_newlines=lf_newlines) for t in array.to_pylist()]


def test_a_return_at_the_end_of_a_row_does_not_swallow_a_newline_of_the_next() -> None:
    data, offsets, _ = buffers(column(["seven..\r", "\nnext row"]))
    edited, edited_offsets = edit_text(data, offsets, strip_nul=False, lf_newlines=True)
    assert edited.tobytes() == b"seven..\n\nnext row"
    assert edited_offsets.tolist() == [0, 8, 17]


def test_a_newline_right_after_a_word_that_ends_in_a_return_belongs_to_it() -> None:
    data, offsets, _ = buffers(column(["seven..\r\neight bytes and more"]))
    edited, _ = edit_text(data, offsets, strip_nul=False, lf_newlines=True)
    assert edited.tobytes() == b"seven..\neight bytes and more"


def test_a_column_without_rows_or_offsets_is_empty() -> None:
    nothing = np.empty(0, np.uint8)
    assert measure_text(nothing, np.empty(0, np.int64)).chars.size == 0
    assert edit_text(nothing, np.zeros(1, np.int64), strip_nul=True, lf_newlines=True)[1].tolist() == [0]


def test_offsets_outside_their_data_are_refused() -> None:
    with pytest.raises(ValueError, match=r"offsets 0\.\.9 lie outside the 8 bytes"):
        measure_text(np.zeros(8, np.uint8), np.array([0, 9]))


def test_offsets_of_the_short_string_type_are_refused() -> None:
    with pytest.raises(TypeError, match="a kernel wants int64, got int32"):
        measure_text(np.zeros(8, np.uint8), np.array([0, 8], np.int32))

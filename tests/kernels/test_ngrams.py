"""N-grams against the slow way, and where they stand."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.slow_ngrams import named_ngrams
from tokmill.kernels.ngrams import Shape, hash_ngrams, locate_ngrams
from tokmill.schema import string_column
from tokmill.scores.names import name_of

LETTERS = st.sampled_from("aB_9 .\n\t'É߀東京กаЖ️😀ªº×가")
TEXTS = st.lists(st.one_of(st.text(LETTERS, max_size=40), st.text(max_size=20)), max_size=5)
SHAPES = st.one_of(
    st.builds(Shape, st.integers(1, 3), st.just(0), st.just(0), st.integers(4, 24)),
    st.tuples(st.integers(0, 3), st.integers(1, 6), st.integers(0, 5)).map(
        lambda of: Shape(of[0], of[1], min(of[1] + of[2], 6), 20)
    ),
)


@settings(deadline=None, max_examples=300)
@given(TEXTS, SHAPES)
def test_buckets_and_names_are_those_of_the_slow_way(texts: list[str], shape: Shape) -> None:
    column = string_column(pa.array(texts, pa.large_string()))
    found = hash_ngrams(column.data, column.offsets, shape)
    for row, text in enumerate(texts):
        expected = named_ngrams(text, shape)
        assert found.buckets[found.ends[row] : found.ends[row + 1]].tolist() == [b for _, b in expected]
        located = locate_ngrams(text.encode(), shape)
        names = [name_of(text.encode(), located, place) for place in range(len(located.buckets))]
        assert list(zip(names, located.buckets.tolist(), strict=True)) == expected


def test_a_column_that_is_a_slice_of_another_has_its_own_rows() -> None:
    every = pa.array(["one two", "three", "four five six"], pa.large_string())
    part = string_column(every[1:])
    found = hash_ngrams(part.data, part.offsets, Shape())
    assert np.diff(found.ends).tolist() == [1, 5]
    assert found.buckets[0] == named_ngrams("three", Shape())[0][1]


def test_a_word_of_more_than_64_bytes_has_no_ngrams_of_characters() -> None:
    for size, count in ((64, 66 - 3), (65, 0)):
        assert len(locate_ngrams(b"x" * size, Shape(0, 4, 4)).buckets) == count


@pytest.mark.parametrize(
    "shape",
    [Shape(0), Shape(4), Shape(2, 3, 0), Shape(2, 4, 3), Shape(1, 1, 7), Shape(bits=3), Shape(bits=25)],
)
def test_a_shape_that_cannot_be_is_refused(shape: Shape) -> None:
    with pytest.raises(ValueError):
        hash_ngrams(np.zeros(1, np.uint8), np.zeros(1, np.int64), shape)

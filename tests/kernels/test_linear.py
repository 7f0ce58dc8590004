"""Learning and adding up, against Python's own numbers."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.slow_ngrams import named_ngrams
from tokmill.kernels import linear
from tokmill.kernels.linear import ONE, UNIT, count_buckets, inverse_roots, margins, probabilities, train
from tokmill.kernels.ngrams import Shape
from tokmill.schema import string_column


def slow_root(n: int) -> int:
    halvings = 0
    while n >= 4096:
        n, halvings = n // 4, halvings + 1
    return math.isqrt((1 << 40) // max(n, 1)) >> halvings


def slow_sigmoid(z: int) -> int:
    """From the table of the kernel, which a test of its own holds to the real one."""
    table = linear.sigmoid_table().tolist()
    z = (min(max(z, -16 * UNIT), 16 * UNIT) + 16 * UNIT) * 64
    low, high = table[z // UNIT], table[z // UNIT + 1]
    return int(low + (high - low) * (z % UNIT) // UNIT)


def test_the_sigmoid_is_the_real_one_to_a_unit_and_a_half() -> None:
    z = np.linspace(-18, 18, 20_001)
    found = probabilities((z * UNIT).astype(np.int64)) * ONE
    assert np.abs(found - ONE / (1 + np.exp(-z))).max() < 1.5
    assert (np.diff(found) >= 0).all()
    assert [slow_sigmoid(int(one)) for one in (z[::100] * UNIT).astype(np.int64)] == found[::100].tolist()


def test_inverse_roots_are_close_and_those_of_the_slow_way() -> None:
    numbers = [*range(5000), *(7**k for k in range(5, 16))]
    found = inverse_roots(np.array(numbers), UNIT).tolist()
    assert found == [slow_root(number) for number in numbers]
    for number, root in zip(numbers[1:], found[1:], strict=True):
        assert root / UNIT == pytest.approx(number**-0.5, rel=2e-3, abs=2 / UNIT)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.lists(st.integers(0, 40), max_size=60), max_size=6))
def test_every_bucket_of_a_row_is_counted_once(rows: list[list[int]]) -> None:
    ends = np.cumsum([0, *map(len, rows)])
    found = count_buckets(np.array([one for row in rows for one in row], np.uint32), ends)
    for number, row in enumerate(rows):
        part = slice(found.ends[number], found.ends[number + 1])
        assert list(zip(found.buckets[part].tolist(), found.counts[part].tolist(), strict=True)) == list(
            Counter(row).items()
        )
    assert found.totals.tolist() == list(map(len, rows))
    again = count_buckets(np.array([one for row in rows for one in row[::-1]], np.uint32), ends)
    assert again.digests.tolist() == found.digests.tolist()  # the order of a row does not count


def test_a_count_stays_at_the_largest_there_is() -> None:
    found = count_buckets(np.full(70_000, 3, np.uint32), np.array([0, 70_000]))
    assert (found.counts.tolist(), found.totals.tolist()) == ([65_535], [70_000])


def slow_train(
    rows: list[dict[int, int]],
    totals: list[int],
    labels: list[int],
    order: list[int],
    rates: list[int],
    columns: int,
    rate: int,
) -> tuple[list[list[int]], list[int]]:
    weights, bias = [[0] * columns for _ in rates], [0] * columns
    for step, row in enumerate(order):
        root = slow_root(totals[row])
        sums = [sum(weights[one][c] * count for one, count in rows[row].items()) for c in range(columns)]
        now = rate * (len(order) - step) // len(order)
        for column in range(columns):
            is_one = labels[row] == (column if columns > 1 else 1)
            wrong = (ONE if is_one else 0) - slow_sigmoid(bias[column] + (sums[column] * root >> 20))
            if abs(wrong) < 64:
                continue
            bias[column] += wrong * now >> 12
            push = wrong * now * root >> 20
            for one, count in rows[row].items():
                new = weights[one][column] + (push * count * rates[one] + (1 << 27) >> 28)
                weights[one][column] = min(max(new, -(1 << 27)), 1 << 27)
    return weights, bias


@settings(deadline=None, max_examples=100)
@given(st.data(), st.integers(1, 4), st.integers(1, 16 * ONE))
def test_training_is_that_of_the_slow_way(data: st.DataObject, columns: int, rate: int) -> None:
    features, number = 6, data.draw(st.integers(1, 8))
    counts = st.dictionaries(st.integers(0, features - 1), st.integers(1, 65_535), max_size=5)
    rows = data.draw(st.lists(counts, min_size=number, max_size=number))
    totals = [sum(row.values()) + data.draw(st.integers(0, 9)) for row in rows]
    labels = data.draw(st.lists(st.integers(0, max(columns - 1, 1)), min_size=number, max_size=number))
    order = data.draw(st.lists(st.integers(0, number - 1), min_size=1, max_size=30))
    rates = data.draw(st.lists(st.integers(1, ONE), min_size=features, max_size=features))
    weights, bias = np.zeros((features, columns), np.int32), np.zeros(columns, np.int64)
    train(
        np.array([one for row in rows for one in row], np.int32),
        np.array([count for row in rows for count in row.values()], np.uint16),
        np.cumsum([0, *map(len, rows)]),
        np.array(totals),
        np.array(labels, np.int32),
        np.array(order),
        np.array(rates, np.int32),
        weights,
        bias,
        rate=rate,
    )
    assert (weights.tolist(), bias.tolist()) == slow_train(rows, totals, labels, order, rates, columns, rate)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.text("ab C.東", max_size=30), max_size=5),
    st.integers(1, 3),
    st.integers(0, 12),
    st.sampled_from([Shape(bits=6), Shape(3, 2, 3, 6)]),
)
def test_margins_are_those_of_the_slow_way(texts: list[str], columns: int, scale: int, shape: Shape) -> None:
    random = np.random.default_rng(scale)
    weights = random.integers(-32_768, 32_768, (64, columns)).astype(np.int16)
    bias = random.integers(-UNIT, UNIT, columns)
    column = string_column(pa.array(texts, pa.large_string()))
    found = margins(column.data, column.offsets, shape, weights, scale, bias)
    for row, text in enumerate(texts):
        buckets = [bucket for _, bucket in named_ngrams(text, shape)]
        root = slow_root(len(buckets))
        for place in range(columns):
            total = sum(int(weights[bucket, place]) for bucket in buckets)
            assert found[row, place] == int(bias[place]) + ((total * root << scale) >> 20)


def test_a_row_longer_than_the_list_of_a_kernel_is_added_up_whole() -> None:
    texts = ["one two three " * 5000, "four"]
    column = string_column(pa.array(texts, pa.large_string()))
    shape, ones = Shape(2, 3, 4, 8), np.ones((256, 1), np.int16)
    found = margins(column.data, column.offsets, shape, ones, 0, np.zeros(1, np.int64))
    for row, text in enumerate(texts):
        count = len(named_ngrams(text, shape))
        assert found[row, 0] == count * slow_root(count) >> 20

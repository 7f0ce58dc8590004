"""What was handed out, against an order that is walked sample by sample."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.loader.history import count_times, find_samples
from tokmill.loader.order import Bucketing, Order, Permutation


def lengths(source: int, rows: np.ndarray) -> np.ndarray:
    return (rows * 7919 + source * 31) % 97


orders = st.builds(
    lambda sizes, seed, shuffle, bucketing: Order(
        [size for size, _ in sizes], [weight for _, weight in sizes], seed, shuffle, bucketing, lengths
    ),
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 4)), min_size=1, max_size=3),
    st.integers(0, 3),
    st.sampled_from(["epoch", "none"]),
    st.sampled_from([None, Bucketing(8, 3), Bucketing(5, 5)]),
)


def walked(order: Order, epochs: int) -> list[tuple[int, int, int, int]]:
    """(epoch, position, dataset, row), one sample after the other."""
    found = []
    for epoch in range(epochs):
        for position in range(order.epoch_samples):
            placed = order.between(epoch, position, position + 1)
            found.append((epoch, position, int(placed.source[0]), int(placed.row[0])))
    return found


@given(orders, st.integers(0, 3), st.floats(0, 1))
@settings(deadline=None)
def test_times_of_rows_are_those_of_a_walk(order: Order, epoch: int, share: float) -> None:
    position = int(share * order.epoch_samples)
    expected = Counter(
        (source, row)
        for at, number, source, row in walked(order, epoch + 1)
        if (at, number) < (epoch, position)
    )
    times = count_times(order, epoch, position)
    found = {
        (source, row): int(count)
        for source, rows in enumerate(times)
        for row, count in enumerate(rows)
        if count
    }
    assert found == expected


@given(orders, st.integers(1, 3))
@settings(deadline=None)
def test_every_sample_of_a_row_is_found(order: Order, epochs: int) -> None:
    samples: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for epoch, position, source, row in walked(order, epochs):
        samples.setdefault((source, row), []).append((epoch, position))
    for source, size in enumerate(order.sizes):
        for row in range(size):
            assert [tuple(one) for one in find_samples(order, source, row, epochs)] == samples.get(
                (source, row), []
            )


@pytest.mark.parametrize("size", [1, 2, 4096, 4097, 10_007, 65_536, 1_000_003])
def test_positions_are_the_other_way_of_a_permutation(size: int) -> None:
    permutation = Permutation(size, "seed 5")
    places = np.unique(np.linspace(0, size - 1, 5000).astype(np.int64))
    assert (permutation.positions_of(permutation.at(places)) == places).all()
    assert (permutation.at(permutation.positions_of(places)) == places).all()

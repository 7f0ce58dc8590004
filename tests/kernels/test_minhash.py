"""One-permutation MinHash against the definition in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plain import near as slow
from tokmill.kernels.minhash import EMPTY, band_keys, probe_tables, sketch

QUICK = settings(deadline=None, max_examples=100)
ROWS = st.lists(st.lists(st.integers(0, 6) | st.integers(0, 2**32 - 1), max_size=30), max_size=5)


def sketched(rows: list[list[int]], n: int, positions: int) -> tuple[list[list[int]], list[int]]:
    offsets = np.cumsum([0, *map(len, rows)])
    units = np.array([unit for row in rows for unit in row], np.uint32)
    found = sketch(units, offsets, n, positions)
    assert found.values.shape == (len(rows), positions)
    assert found.values.dtype == np.uint32
    return found.values.tolist(), found.shingles.tolist()


@QUICK
@given(ROWS, st.integers(1, 7), st.sampled_from([1, 2, 7, 16, 112]))
def test_values_are_the_least_hash_of_each_bin_and_empty_bins_borrow(
    rows: list[list[int]], n: int, positions: int
) -> None:
    values, shingles = sketched(rows, n, positions)
    assert values == [slow.sketch(row, n, positions) for row in rows]
    assert shingles == [max(len(row) - n + 1, 1) if row else 0 for row in rows]


@QUICK
@given(st.lists(st.integers(0, 2**32 - 1), min_size=200, max_size=400), st.integers(1, 6))
def test_a_long_row_is_sketched_like_its_twin(row: list[int], n: int) -> None:
    assert sketched([row], n, 112)[0] == [slow.sketch(row, n, 112)]


@QUICK
@given(ROWS, st.integers(0, 5))
def test_a_row_does_not_depend_on_the_rows_beside_it(rows: list[list[int]], cut: int) -> None:
    whole, _ = sketched(rows, 3, 16)
    assert whole == sketched(rows[:cut], 3, 16)[0] + sketched(rows[cut:], 3, 16)[0]


@QUICK
@given(ROWS, st.sampled_from([(1, 16), (2, 8), (14, 1), (3, 5)]))
def test_band_keys_are_hashes_of_the_rows_of_each_band(rows: list[list[int]], shape: tuple[int, int]) -> None:
    bands, band_rows = shape
    values = np.array([slow.sketch(row, 3, 16) for row in rows], np.uint32).reshape(-1, 16)
    keys = band_keys(values, bands, band_rows).tolist()
    assert keys == [
        [slow.band_key(band, row[band * band_rows : (band + 1) * band_rows]) for band in range(bands)]
        if row[0] != EMPTY
        else [0] * bands
        for row in values.tolist()
    ]


@pytest.mark.parametrize("positions", [1, 2, 7, 112, 300])
def test_every_bin_asks_all_others_in_an_order_of_its_own(positions: int) -> None:
    probes = probe_tables(positions)
    everyone = list(range(positions))
    assert all(sorted(row) == everyone for row in probes.order.tolist())
    assert all(
        [order[rank] for rank in ranks] == everyone
        for order, ranks in zip(probes.order.tolist(), probes.rank.tolist(), strict=True)
    )
    if positions > 100:
        assert len({tuple(row[:3]) for row in probes.order.tolist()}) == positions


@pytest.mark.parametrize("size", [10, 40, 150, 1000])
def test_the_share_of_equal_positions_estimates_jaccard_without_bias_at_any_size(size: int) -> None:
    """Sets of even numbers with four fifths in common;
    the mean over 400 pairs is within 4 standard errors."""
    draw = np.random.default_rng(size)
    estimates = []
    for _ in range(400):
        numbers = draw.choice(2**31, size, replace=False).astype(np.uint32) * np.uint32(2)
        ends = size // 10
        rows = np.concatenate([numbers[ends:], numbers[: size - ends]])
        values = sketch(rows, np.array([0, size - ends, 2 * (size - ends)]), 1, 112).values
        estimates.append(np.mean(values[0] == values[1]))
    # 112 independent permutations have an error of 0.038; ten shingles in 112 bins cost a fifth more.
    assert abs(np.mean(estimates) - 0.8) < 4 * 0.045 / 20
    assert np.std(estimates) < 0.05


def test_a_sketch_is_the_same_on_every_machine() -> None:
    units = (np.arange(40, dtype=np.uint32) * np.uint32(2654435761)) & np.uint32(0xFFFFFFFE)
    values = sketch(units, np.array([0, 40]), 5, 8).values
    assert values.tolist() == [GOLDEN]
    assert band_keys(values, 2, 4).tolist() == [GOLDEN_KEYS]


GOLDEN = [162117186, 734033220, 1280243962, 1652519378, 2183271702, 2728524408, 3360786000, 3792123742]
GOLDEN_KEYS = [9687867716273356422, 11396623068231653006]


@pytest.mark.parametrize(("n", "positions"), [(0, 8), (5, 0), (5, 4097)])
def test_impossible_shapes_are_refused(n: int, positions: int) -> None:
    with pytest.raises(ValueError, match=r"n-gram|positions"):
        sketch(np.zeros(0, np.uint32), np.zeros(1, np.int64), n, positions)


def test_more_bands_than_positions_are_refused() -> None:
    with pytest.raises(ValueError, match="3 bands of 3 rows do not fit"):
        band_keys(np.zeros((1, 8), np.uint32), 3, 3)

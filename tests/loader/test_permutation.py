"""The keyed permutation: a bijection of any size, as random as a stored shuffle, and without memory."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.slow_permutation import judge, sigmas
from tokmill.loader.order import MAX_SIZE, Permutation

NEAR_POWERS = [4095, 4096, 4097, 8191, 8192, 8193, 65535, 65536, 65537, (1 << 18) - 1, 1 << 18, (1 << 18) + 1]


@given(size=st.integers(0, 30_000), key=st.text(max_size=8))
@settings(deadline=None, max_examples=150)
def test_every_number_comes_exactly_once(size, key):
    assert np.array_equal(np.sort(Permutation(size, key).at(np.arange(size))), np.arange(size))


@given(size=st.integers(1, MAX_SIZE), key=st.text(max_size=8), places=st.sets(st.floats(0, 1), min_size=2))
@settings(deadline=None, max_examples=150)
def test_of_any_size_numbers_are_within_and_differ(size, key, places):
    positions = np.array(sorted({min(int(place * size), size - 1) for place in places}))
    numbers = Permutation(size, key).at(positions)
    assert ((numbers >= 0) & (numbers < size)).all()
    assert len(set(numbers.tolist())) == len(positions)


@given(size=st.integers(1, 20_000), key=st.text(max_size=4), data=st.data())
@settings(deadline=None, max_examples=60)
def test_how_positions_are_asked_for_does_not_matter(size, key, data):
    whole = Permutation(size, key).at(np.arange(size))
    some = data.draw(st.lists(st.integers(0, size - 1), max_size=20))
    assert Permutation(size, key).at(np.array(some, np.int64)).tolist() == whole[some].tolist()


@pytest.mark.parametrize("size", NEAR_POWERS)
def test_it_looks_random_also_near_powers_of_two(size):
    found = judge(lambda key: Permutation(size, f"7 {key}").at(np.arange(size)), size, keys=6)
    assert max(found.values()) < 5, found


def test_the_tests_of_randomness_find_what_is_not_random():
    size = 65536
    shifted = judge(lambda key: (np.arange(size) * 48271 + key) % size, size, keys=2)
    assert max(shifted.values()) > 50
    good = judge(lambda key: np.random.default_rng(key).permutation(size), size, keys=6)
    assert max(good.values()) < 5


def test_of_few_elements_every_order_comes_equally_often():
    counts = Counter(tuple(Permutation(4, f"{key}").at(np.arange(4)).tolist()) for key in range(12_000))
    assert set(counts) == set(permutations(range(4)))
    assert abs(sigmas(np.array(list(counts.values())), 500)) < 5


@pytest.mark.parametrize(("size", "bins"), [(5, 5), (64, 16), (5000, 20)])
def test_every_element_is_equally_often_in_every_place(size, bins):
    keys = 4000 if size < 5000 else 400
    places = np.arange(size) if size < 100 else np.arange(0, size, 100)
    found = np.stack([Permutation(size, f"{key}").at(places) for key in range(keys)])
    for column in found.T:
        counts = np.bincount(column * bins // size, minlength=bins)
        assert abs(sigmas(counts, keys / bins)) < 7


def test_epochs_and_seeds_have_nothing_in_common():
    size = 100_000
    one, two = (Permutation(size, f"1 {epoch}").at(np.arange(size)) for epoch in (0, 1))
    assert (one == two).sum() < 10
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.02


def test_a_billion_elements_take_no_memory():
    permutation = Permutation(1_000_000_007, "1 0")
    tracemalloc.start()
    try:
        seen = np.concatenate(
            [permutation.at(np.arange(start, start + 4096)) for start in range(0, 1_000_000_000, 7_000_000)]
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(np.unique(seen)) == len(seen)
    assert peak < 20 << 20
    parts = np.bincount(seen * 50 // 1_000_000_007, minlength=50)
    assert abs(sigmas(parts, len(seen) / 50)) < 5


def test_the_order_is_pinned():
    """Another order would be another training run: raise the version in the key when it must change."""
    assert Permutation(10, "1 0").at(np.arange(10)).tolist() == PINNED_SMALL
    assert Permutation(10_000, "1 0").at(np.arange(6)).tolist() == PINNED_LARGE


PINNED_SMALL = [0, 7, 9, 2, 1, 6, 8, 3, 5, 4]
PINNED_LARGE = [9482, 4899, 5667, 4331, 3949, 6719]

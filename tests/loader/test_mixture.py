"""Turns: the largest deficit first, exact, and found from the number alone."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.errors import InputError
from tokmill.loader.order import MAX_PERIOD, Turns

weights = st.lists(st.integers(1, 12), min_size=1, max_size=6)


def slow_turns(shares: list[int], count: int) -> list[tuple[int, int]]:
    """Turn by turn, in fractions: (dataset, what it gave before)."""
    total, given, found = sum(shares), [0] * len(shares), []
    for number in range(count):
        deficits = [
            Fraction(share, total) * (number + 1) - gave for share, gave in zip(shares, given, strict=True)
        ]
        turn = max(range(len(shares)), key=lambda n: (deficits[n], -n))
        found.append((turn, given[turn]))
        given[turn] += 1
    return found


@given(shares=weights, count=st.integers(0, 200))
@settings(deadline=None, max_examples=150)
def test_turns_go_to_the_largest_deficit(shares, count):
    turn, before = Turns(shares).at(np.arange(count))
    assert list(zip(turn.tolist(), before.tolist(), strict=True)) == slow_turns(shares, count)


@given(shares=weights, numbers=st.lists(st.integers(0, 10**15), max_size=20))
@settings(deadline=None, max_examples=100)
def test_any_turn_is_found_from_its_number(shares, numbers):
    turns = Turns(shares)
    turn, before = turns.at(np.array(numbers, np.int64))
    for number, which, count in zip(numbers, turn.tolist(), before.tolist(), strict=True):
        assert turns.weights[which] * (number // turns.period) <= count
        assert abs(Fraction(turns.weights[which] * number, turns.period) - count) < len(shares)


@given(shares=weights, periods=st.integers(1, 3))
@settings(deadline=None, max_examples=60)
def test_after_every_period_shares_are_exact(shares, periods):
    turns = Turns(shares)
    turn, _ = turns.at(np.arange(periods * turns.period))
    assert np.bincount(turn, minlength=len(shares)).tolist() == [periods * w for w in turns.weights]


@given(shares=weights, sizes=st.data())
@settings(deadline=None, max_examples=100)
def test_an_epoch_ends_before_a_dataset_repeats(shares, sizes):
    counts = sizes.draw(st.lists(st.integers(1, 60), min_size=len(shares), max_size=len(shares)))
    turns = Turns(shares)
    end = turns.samples_until_dry(counts)
    turn, _ = turns.at(np.arange(end + 1))
    given_before = np.bincount(turn[:-1], minlength=len(shares))
    assert all(given_before <= counts)
    assert given_before[turn[-1]] == counts[turn[-1]], "the next turn is of one that has no more"


def test_weights_are_what_they_are_written_as():
    assert Turns([0.1, 0.2, 0.7]).weights == [1, 2, 7]
    assert Turns(["1/3", "2/3"]).weights == [1, 2]
    assert Turns(list(np.array([0.1, 0.2, 0.7]))).weights == [1, 2, 7]
    assert Turns([*np.array([300]), 1e-17]).weights == Turns([300, 1e-17]).weights
    assert Turns(list(np.array([0.1, 0.2, 0.7], np.float32))).weights == [1, 2, 7]
    assert Turns([5]).weights == [1]
    assert Turns([1e-9, 1.0]).weights == [1, MAX_PERIOD - 1]
    odd = Turns([0.123456789, 0.876543211])
    assert odd.period <= MAX_PERIOD
    assert abs(odd.weights[0] / odd.period - 0.123456789) < 1 / MAX_PERIOD


@pytest.mark.parametrize("weights", [[0.5, 0], [-1, 1], [float("nan")], [float("inf")], ["a"], []])
def test_weights_that_are_no_shares_are_refused(weights):
    with pytest.raises(InputError, match="are not numbers above 0"):
        Turns(weights)

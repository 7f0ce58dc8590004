"""Weights as people write them, amounts, and parts of a budget."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokmill.errors import InputError, RecipeError
from tokmill.packing.mixture import (
    Holding,
    Mixture,
    Target,
    check_weights,
    fill_evenly,
    imbalance_warning,
    largest_budget,
    natural_mixture,
    shares_of,
    source_quotas,
    split_budget,
)
from tokmill.recipe.section import parse_amount


def checked(weights: dict[str, object], *known: str, normalize: bool = False) -> dict[str, Fraction]:
    return check_weights(weights, known, where="mixture.weights", normalize=normalize)


def test_weights_are_exact_and_in_the_order_of_the_domains():
    assert checked({"math": 0.3, "web": 0.7}, "web", "math") == {
        "web": Fraction(7, 10),
        "math": Fraction(3, 10),
    }
    assert list(checked({"math": 0.3, "web": 0.7}, "web", "math")) == ["web", "math"]


def test_what_is_off_by_rounding_is_brought_to_one_without_a_word(caplog):
    thirds = checked({"a": 0.333333, "b": 0.333333, "c": 0.333333}, "a", "b", "c")
    assert sum(thirds.values()) == 1
    assert caplog.messages == []


def test_what_is_further_off_is_brought_to_one_and_said(caplog):
    off = checked({"a": "0.333333", "b": "0.333333", "c": "0.333332"}, "a", "b", "c")
    assert sum(off.values()) == 1
    assert off["a"] == Fraction(333333, 999998)
    (said,) = caplog.messages
    assert said == (
        "mixture.weights: weights add up to 0.999998, not to 1; taken as shares of it: "
        "a 0.3333337, b 0.3333337, c 0.3333327"
    )


def test_normalizing_takes_any_positive_numbers():
    assert checked({"a": 3, "b": 1}, "a", "b", normalize=True) == {"a": Fraction(3, 4), "b": Fraction(1, 4)}


def test_a_weight_of_zero_needs_no_such_domain():
    assert checked({"a": 1, "gone": 0}, "a") == {"a": Fraction(1)}
    assert checked({"a": 1, "b": 0.0}, "a", "b") == {"a": Fraction(1), "b": Fraction(0)}


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"web": 0.5, "maths": 0.5}, r"no domain is called maths\n  next: did you mean math\?"),
        ({"web": 1}, r"no weight for the domain math\n  next: give every domain a weight; 0 leaves it out"),
        ({"web": 0, "math": 0}, r"all weights are 0"),
        ({"web": 1.5, "math": -0.5}, r"the weight of math is -0.5\n  next: a weight is a number from 0 up"),
        ({"web": float("nan"), "math": 1}, r"the weight of web is nan"),
        ({"web": float("inf"), "math": 1}, r"the weight of web is inf"),
        ({"web": "much", "math": 1}, r"the weight of web is much"),
    ],
)
def test_weights_that_cannot_be_used_are_recipe_errors(weights, message):
    with pytest.raises(RecipeError, match=message):
        checked(weights, "web", "math")


def test_sources_have_weights_within_their_domain_or_go_by_what_they_have():
    mixture = Mixture(
        checked({"web": 0.7, "math": 0.3}, "web", "math"),
        {"web": checked({"mdn": 0.2, "wiki": 0.8}, "mdn", "wiki")},
    )
    holdings = [
        Holding("mdn", "web", 5),
        Holding("wiki", "web", 5),
        Holding("gsm8k", "math", 10),
        Holding("proofs", "math", 20),
    ]
    shares = shares_of(holdings, mixture)
    assert shares == [Fraction(14, 100), Fraction(56, 100), Fraction(1, 10), Fraction(2, 10)]


def test_without_weights_domains_go_by_their_tokens():
    assert natural_mixture({"a": 3, "b": 1}).domains == {"a": Fraction(3, 4), "b": Fraction(1, 4)}


def test_domains_of_very_different_size_are_worth_a_word():
    assert imbalance_warning({"web": 151, "math": 100}) == (
        "domain web has 1.5 times the tokens of math (151 and 100)"
    )
    assert imbalance_warning({"web": 150, "math": 100, "none": 0}) is None
    assert imbalance_warning({"web": 5}) is None


@pytest.mark.parametrize(
    ("written", "amount"),
    [
        ("200M", 200_000_000),
        ("1.5B", 1_500_000_000),
        (7, 7),
        ("50k", 50_000),
        ("2_000", 2000),
        ("0.1T", 10**11),
    ],
)
def test_amounts_are_whole_numbers(written, amount):
    assert parse_amount(written) == amount


@pytest.mark.parametrize("written", ["", "M", "0", "-5", "1.5", "1e6", "10 apples", "1.0001k", True])
def test_what_is_not_an_amount_says_how_to_write_one(written):
    with pytest.raises(ValueError, match="should be an amount: a whole number, or 50k"):
        parse_amount(written)


def test_a_target_of_nothing_is_a_recipe_error():
    with pytest.raises(RecipeError, match="a target of 0 tokens"):
        Target("tokens", 0)
    assert Target("blocks", 3).in_tokens(2048) == 6144
    assert Target("documents", 3).in_tokens(None) is None


def test_both_sides_of_a_split_share_one_budget():
    assert split_budget(200, ["train", "valid"], {"valid": Fraction(1, 10)}) == {"train": 180, "valid": 20}
    assert split_budget(7, ["train", "valid", "test"], {"valid": Fraction(3, 10)}) == {
        "train": 5,
        "valid": 2,
        "test": 0,
    }


def halves(first: int, second: int, third: int = 0) -> list[Holding]:
    return [Holding("a", "A", first), Holding("b", "B", second), Holding("c", "B", third)]


EVEN = Mixture({"A": Fraction(1, 2), "B": Fraction(1, 2)})


def test_a_source_that_has_too_little_stops_and_says_how_far_it_goes():
    assert source_quotas(halves(50, 50), EVEN, 100, "stop", 4) == [50, 50, 0]
    assert largest_budget(halves(60, 20), EVEN) == 40
    with pytest.raises(
        InputError,
        match=r"mixture: b is exhausted: it has 20 tokens, and its weight asks for 50; the mixture reaches 40 of "
        r"100 tokens \(40.0 %\)\n  next: set `exhausted: renormalize` or `exhausted: repeat`, or lower the budget to 40 tokens",
    ):
        source_quotas(halves(60, 20), EVEN, 100, "stop", 4)


def test_a_domain_with_a_weight_and_no_tokens_is_exhausted_from_the_start():
    with pytest.raises(InputError, match="domain B is exhausted: it has 0 tokens"):
        source_quotas(halves(60, 0), EVEN, 100, "stop", 4)


def test_what_a_source_lacks_comes_from_its_domain_and_then_from_the_others():
    within = Mixture(EVEN.domains, {"B": {"b": Fraction(9, 10), "c": Fraction(1, 10)}})
    assert source_quotas(halves(90, 20, 40), within, 100, "renormalize", 4) == [50, 20, 30]
    assert source_quotas(halves(90, 20, 5), within, 100, "renormalize", 4) == [75, 20, 5]
    assert source_quotas(halves(30, 20, 5), within, 100, "renormalize", 4) == [30, 20, 5]


def test_a_source_repeats_up_to_its_epochs():
    assert source_quotas(halves(60, 20), EVEN, 100, "repeat", 3) == [50, 50, 0]
    with pytest.raises(
        InputError,
        match=r"b is exhausted: it has 40 tokens in 2 epochs.*reaches 80 of 100(.|\n)*next: raise `max_epochs`",
    ):
        source_quotas(halves(60, 20), EVEN, 100, "repeat", 2)


@given(
    amount=st.integers(0, 1000),
    parts=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 300)), min_size=1, max_size=6),
)
def test_filling_evenly_uses_all_there_is_and_is_fair_among_those_with_room(amount, parts):
    weights, capacities = [Fraction(w) for w, _ in parts], [c for _, c in parts]
    filled = fill_evenly(amount, weights, capacities)
    usable = sum(c for w, c in parts if w)
    assert all(0 <= f <= c for f, c in zip(filled, capacities, strict=True))
    assert min(amount, usable) - len(parts) < sum(filled) <= min(amount, usable)
    open_ones = [f / w for f, w, c in zip(filled, weights, capacities, strict=True) if w and f < c]
    if open_ones:
        assert max(open_ones) - min(open_ones) <= 1
        assert all(f / w <= max(open_ones) + 1 for f, w in zip(filled, weights, strict=True) if w)

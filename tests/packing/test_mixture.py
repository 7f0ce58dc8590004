"""Weights as people write them, amounts, and parts of a budget."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokmill
from packing.mixed import mix
from tokmill.errors import InputError, RecipeError
from tokmill.packing.limits import imbalance_warning
from tokmill.packing.mixture import Mixture, check_weights
from tokmill.packing.quotas import Holding, Target, fill_evenly, source_quotas, split_budget


def checked(weights: dict[str, object], *known: str, normalize: bool = False) -> dict[str, Fraction]:
    return check_weights(weights, known, where="mixture.weights", normalize=normalize)


def test_weights_are_exact_and_in_the_order_of_the_domains():
    assert checked({"math": 0.3, "web": 0.7}, "web", "math") == {
        "web": Fraction(7, 10),
        "math": Fraction(3, 10),
    }
    assert list(checked({"math": 0.3, "web": 0.7}, "web", "math")) == ["web", "math"]


def built(weights: dict[str, object], *known: str, **asked: Any) -> dict[str, Fraction]:
    """The weights that the manifest of a mixture of these domains has."""
    return mix([[5] * 20 for _ in known], weights, domains=known, **asked).weights


def test_what_is_off_by_rounding_is_brought_to_one_without_a_word(caplog):
    thirds = built({"a": "0.333333", "b": "0.333333", "c": "0.333333"}, "a", "b", "c")
    assert sum(thirds.values()) == 1
    assert not [line for line in caplog.messages if "weights" in line]


def test_what_is_further_off_is_brought_to_one_and_said(caplog):
    off = built({"a": "0.333333", "b": "0.333333", "c": "0.333332"}, "a", "b", "c")
    assert sum(off.values()) == 1
    assert off["a"] == Fraction(333333, 999998)
    assert checked({"a": "0.333333", "b": "0.333333", "c": "0.333332"}, "a", "b", "c") == off
    (said,) = caplog.messages
    assert said == (
        "mixture.weights: weights add up to 0.999998, not to 1; taken as shares of it: "
        "a 0.3333337, b 0.3333337, c 0.3333327"
    )


def test_normalizing_takes_any_positive_numbers(caplog):
    found = built({"a": 3, "b": 1}, "a", "b", normalize=True)
    assert found == {"a": Fraction(3, 4), "b": Fraction(1, 4)}
    assert not [line for line in caplog.messages if "weights" in line]


def test_a_weight_of_zero_needs_no_such_domain():
    assert built({"a": 1, "gone": 0}, "a") == {"a": Fraction(1)}
    found = mix([[5] * 20, [5] * 20], {"a": 1, "b": "0.0"}, domains="ab")
    assert found.documents == [20, 0]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"web": "0.5", "maths": "0.5"}, r"no domain is called maths\n  next: did you mean math\?"),
        ({"web": 1}, r"no weight for the domain math\n  next: give every domain a weight; 0 leaves it out"),
        ({"web": 0, "math": 0}, r"all weights are 0"),
    ],
)
def test_weights_that_cannot_be_used_are_recipe_errors(weights, message):
    with pytest.raises(RecipeError, match=message):
        built(weights, "web", "math")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"web": 1.5, "math": -0.5}, r"the weight of math is -0.5\n  next: a weight is a number from 0 up"),
        ({"web": float("nan"), "math": 1}, r"the weight of web is nan"),
        ({"web": float("inf"), "math": 1}, r"the weight of web is inf"),
        ({"web": "much", "math": 1}, r"the weight of web is much"),
    ],
)
def test_weights_that_are_no_numbers_from_0_up_are_errors(weights, message):
    """Of a list of datasets; a recipe has refused them before."""
    with pytest.raises(RecipeError, match=message):
        checked(weights, "web", "math")
    with pytest.raises(RecipeError, match=r"mixture\.weights\."):
        built(weights, "web", "math")


def test_sources_have_weights_within_their_domain_or_go_by_what_they_have():
    found = mix(
        [[5] * 30, [5] * 120, [5] * 30, [5] * 60],
        ["0.7", "0.3"],
        domains=["web", "web", "math", "math"],
        sources={"web": {"s0": "0.2", "s1": "0.8"}},
        tokens=500,
    )
    assert [source["wanted"] for source in found.facts["sources"].values()] == [0.14, 0.56, 0.1, 0.2]
    assert found.tokens == [70, 280, 50, 100]


def test_without_weights_domains_go_by_their_tokens():
    found = mix([[5] * 30, [5] * 10], domains="ab", tokens=100)
    assert [source["wanted"] for source in found.facts["sources"].values()] == [0.75, 0.25]
    assert found.tokens == [75, 25]


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
    assert tokmill.Mixture(tokens=written).tokens == amount


@pytest.mark.parametrize("written", ["", "M", "0", "-5", "1.5", "1e6", "10 apples", "1.0001k", True])
def test_what_is_not_an_amount_says_how_to_write_one(written):
    with pytest.raises(ValueError, match="should be an amount: a whole number, or 50k"):
        tokmill.Mixture(tokens=written)


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


def halves(first: int, second: int, third: int = 0, **asked: Any) -> list[int]:
    """The tokens that each of three sources gives: half of domain A, which is a, and half of B,
    which is b and c."""
    lengths = [[5] * (tokens // 5) for tokens in (first, second, third)]
    return mix(lengths, ["0.5", "0.5"], domains="ABB", **asked).tokens


def test_a_source_that_has_too_little_stops_and_says_how_far_it_goes():
    assert halves(50, 50, tokens=100) == [50, 50, 0]
    assert halves(60, 20) == [20, 20, 0]
    with pytest.raises(
        InputError,
        match=r"mixture: s1 is exhausted: it has 20 tokens, and its weight asks for 50; the mixture reaches "
        r"40 of 100 tokens \(40.0 %\)\n  next: set `exhausted: renormalize` or `exhausted: repeat`, or lower "
        r"the budget to 40 tokens",
    ):
        halves(60, 20, tokens=100)


def test_a_domain_with_a_weight_and_no_tokens_is_exhausted_from_the_start():
    with pytest.raises(InputError, match="domain B is exhausted: it has 0 tokens"):
        halves(60, 0, tokens=100)


def test_what_a_source_lacks_comes_from_its_domain_and_then_from_the_others():
    asked = {"tokens": 100, "exhausted": "renormalize", "sources": {"B": {"s1": "0.9", "s2": "0.1"}}}
    assert halves(90, 20, 40, **asked) == [50, 20, 30]
    assert halves(90, 20, 5, **asked) == [75, 20, 5]
    assert halves(30, 20, 5, **asked) == [30, 20, 5]


def levelled(amount: Fraction, parts: list[tuple[Fraction, Fraction]]) -> list[Fraction]:
    """Water in vessels of these widths and sizes: one level for all that are not full, the highest that the
    amount reaches."""

    def at(level: Fraction) -> list[Fraction]:
        return [min(width * level, size) for width, size in parts]

    full = sorted({size / width for width, size in parts if width})
    below = max((level for level in full if sum(at(level)) <= amount), default=Fraction(0))
    rising = sum(width for width, size in parts if width * below < size)
    return at(below + (amount - sum(at(below))) / rising) if rising else at(below)


def levelled_twice(
    amount: int, domains: dict[str, Fraction], tokens: dict[str, dict[str, int]], within: dict[str, Any]
) -> list[Fraction]:
    """Domains first, each with what its sources of a weight have; then the sources of each."""
    own = {
        name: [(Fraction(within.get(name, has)[source]), Fraction(has[source])) for source in has]
        for name, has in tokens.items()
    }
    sizes = {name: Fraction(sum(size for weight, size in parts if weight)) for name, parts in own.items()}
    filled = levelled(Fraction(amount), [(domains[name], sizes[name]) for name in tokens])
    return [
        part for amount, parts in zip(filled, own.values(), strict=True) for part in levelled(amount, parts)
    ]


@pytest.mark.parametrize(("first", "budget"), [(100, 1000), (5, 300), (600, 500), (100, 2000)])
def test_a_source_without_weight_holds_nothing_of_its_domain(first, budget):
    """It is read because others are compared with it. What its domain lacks goes to the other domain."""
    found = mix(
        [[5] * (first // 5), [5] * 300, [5] * 200],
        ["0.7", "0.3"],
        domains=["web", "web", "math"],
        sources={"web": {"s0": 1, "s1": 0}},
        reference=["s1"],
        tokens=budget,
        exhausted="renormalize",
    )
    shares = {"web": Fraction(7, 10), "math": Fraction(3, 10)}
    has = {"web": {"s0": first, "s1": 1500}, "math": {"s2": 1000}}
    expected = levelled_twice(budget, shares, has, {"web": {"s0": 1, "s1": 0}})
    assert all(0 <= part - tokens < 5 for part, tokens in zip(expected, found.tokens, strict=True))


def test_natural_shares_of_domains_are_without_the_sources_that_have_no_weight():
    found = mix(
        [[5] * 30, [5] * 300, [5] * 10],
        domains=["web", "web", "math"],
        sources={"web": {"s0": 1, "s1": 0}},
        reference=["s1"],
        tokens=100,
    )
    assert [source["wanted"] for source in found.facts["sources"].values()] == [0.75, 0, 0.25]
    assert found.tokens == [75, 0, 25]


@given(
    budget=st.integers(0, 2000),
    listed=st.lists(
        st.tuples(
            st.integers(1, 9),
            st.booleans(),
            st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300)), min_size=1, max_size=3),
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_what_domains_and_sources_lack_rises_in_the_others(budget, listed):
    parts = dict(zip("abc", listed, strict=False))
    total = sum(weight for weight, _, _ in listed)
    domains = {name: Fraction(weight, total) for name, (weight, _, _) in parts.items()}
    tokens = {
        name: {f"{name}{n}": has for n, (_, has) in enumerate(own)} for name, (_, _, own) in parts.items()
    }
    within = {
        name: {f"{name}{n}": Fraction(w, sum(w for w, _ in own)) for n, (w, _) in enumerate(own)}
        for name, (_, is_weighted, own) in parts.items()
        if is_weighted and any(w for w, _ in own)
    }
    holdings = [Holding(source, name, has) for name, own in tokens.items() for source, has in own.items()]
    quotas = source_quotas(holdings, Mixture(domains, within), budget, "renormalize", 1)
    expected = levelled_twice(budget, domains, tokens, within)
    assert all(abs(part - quota) < 2 for part, quota in zip(expected, quotas, strict=True))


def test_a_domain_whose_weighted_sources_are_not_there_is_exhausted():
    holdings = [Holding("wiki", "web", 500), Holding("gsm", "math", 500)]
    mixture = Mixture(
        {"web": Fraction(1, 2), "math": Fraction(1, 2)},
        {"web": {"mdn": Fraction(1), "wiki": Fraction(0)}},
    )
    with pytest.raises(InputError, match="domain web is exhausted: it has 0 tokens"):
        source_quotas(holdings, mixture, 100, "stop", 1)


def test_a_source_repeats_up_to_its_epochs():
    asked = {"tokens": 100, "exhausted": "repeat"}
    assert halves(60, 20, **asked, max_epochs=3) == [50, 50, 0]
    with pytest.raises(
        InputError,
        match=(
            r"s1 is exhausted: it has 40 tokens in 2 epochs.*reaches 80 of 100(.|\n)*next: raise `max_epochs`"
        ),
    ):
        halves(60, 20, **asked, max_epochs=2)


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

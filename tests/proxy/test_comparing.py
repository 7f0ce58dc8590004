"""Student, Holm and the verdicts, against another implementation and by hand."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.proxy.comparing import compare, holm, t_interval, t_quantile, t_tails


@settings(deadline=None)
@given(st.floats(0, 60), st.integers(1, 200))
def test_tails_are_those_of_scipy(t: float, freedom: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert t_tails(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-7, abs=1e-14)


@settings(deadline=None)
@given(st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999]), st.integers(1, 200))
def test_quantiles_are_those_of_scipy(confidence: float, freedom: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert t_quantile(confidence, freedom) == pytest.approx(
        stats.t.ppf(0.5 + confidence / 2, freedom), rel=1e-8
    )


def test_an_interval_is_that_of_the_textbook() -> None:
    """Five differences, by hand: mean -0.01, deviation 0.001581, 2.776 for 95 %."""
    mean, half, p = t_interval([-0.011, -0.009, -0.012, -0.008, -0.010], 0.95)
    assert mean == pytest.approx(-0.01)
    assert half == pytest.approx(2.776445 * 0.00158114 / math.sqrt(5), rel=1e-5)
    assert p == pytest.approx(0.000145, rel=0.02)
    assert t_interval([0.5], 0.95) == (0.5, None, None)
    assert t_interval([0.0, 0.0], 0.95) == (0.0, 0.0, 1.0)


def test_holm_is_the_example_of_its_paper_and_never_orders_ps_anew() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def scores(**targets: list[float]) -> dict[tuple[str, str], dict[str, list[float]]]:
    return {("web", "bits_per_byte"): targets}


def test_verdicts_say_better_worse_noise_and_that_one_seed_says_nothing() -> None:
    base = [1.0, 1.1, 1.2, 1.05, 1.15]
    found = compare(
        scores(
            a=base,
            better=[one - 0.05 + 0.001 * at for at, one in enumerate(base)],
            worse=[one + 0.05 + 0.001 * at for at, one in enumerate(base)],
            noise=[one + (-1) ** at * 0.05 for at, one in enumerate(base)],
            same=base,
        ),
        confidence=0.99,
    )
    assert {one.target: one.verdict for one in found} == {
        "better": "better",
        "worse": "worse",
        "noise": "noise",
        "same": "noise",
    }
    (alone,) = compare(scores(a=[1.0], b=[0.5]), confidence=0.99)
    assert (alone.verdict, alone.low, alone.p) == ("one seed", None, None)
    (right,) = compare(
        {("items", "accuracy"): {"a": [0.1, 0.2, 0.1], "b": [0.9, 1.0, 0.901]}},
        confidence=0.95,
        higher_is_better=frozenset({"accuracy"}),
    )
    assert right.verdict == "better"


def test_many_comparisons_of_noise_give_few_false_alarms() -> None:
    """Ten domains at a time, a thousand times: an alarm in about 1 % of ablations at 0.99, not in 10 %."""
    draw = random.Random(7)
    alarms = 0
    for _ in range(1000):
        tables = {
            (f"domain {number}", "bits_per_byte"): {
                name: [draw.gauss(1, 0.1) for _ in range(5)] for name in ("a", "b")
            }
            for number in range(10)
        }
        alarms += any(one.verdict != "noise" for one in compare(tables, confidence=0.99))
    assert alarms <= 25

"""Is a difference between builds more than the luck of a seed?

    seed      1       2       3       4       5
    A       1.412   1.420   1.409   1.415   1.418        bits per byte on one domain
    B       1.401   1.411   1.397   1.407   1.408
    B - A  -0.011  -0.009  -0.012  -0.008  -0.010        paired: one beginning and one order for both

    mean of the differences, its interval by Student's t with n - 1 degrees of freedom, and p;
    all comparisons of an ablation together by Holm (1979): adjusted p < 1 - confidence, or it is noise

An interval covers what comes from seeds: first weights and order of data. That the held-out documents are
some of many, and the builds too, is not in it. The distribution is computed here, by the continued fraction
of the incomplete beta function (Numerical Recipes, 6.4): a package for one function would be a large one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

Verdict = Literal["better", "worse", "noise", "one seed"]


class Difference(NamedTuple):
    """Of a build from the first one, on one domain; negative bits are better."""

    target: str
    domain: str
    metric: str
    base: float  # means over seeds
    value: float
    difference: float
    low: float | None  # None: one seed has no interval
    high: float | None
    p: float | None
    adjusted_p: float | None
    verdict: Verdict


def compare(
    scores: Mapping[tuple[str, str], Mapping[str, Sequence[float]]],
    *,
    confidence: float,
    higher_is_better: frozenset[str] = frozenset(),
) -> list[Difference]:
    """`scores` by (domain, metric), by target, by seed: every target against the first one."""
    raw = []
    for (domain, metric), by_target in scores.items():
        (_, base), *others = by_target.items()
        for name, values in others:
            differences = [value - own for value, own in zip(values, base, strict=True)]
            mean, half, p = t_interval(differences, confidence)
            raw.append((name, domain, metric, _mean(base), _mean(values), mean, half, p))
    adjusted = holm([p for *_, p in raw if p is not None])
    found, at = [], 0
    for name, domain, metric, own, value, mean, half, p in raw:
        corrected = None
        if p is not None:
            corrected, at = adjusted[at], at + 1
        sign = -1 if metric in higher_is_better else 1
        found.append(
            Difference(
                *(name, domain, metric, own, value, mean),
                None if half is None else mean - half,
                None if half is None else mean + half,
                p,
                corrected,
                _verdict(mean * sign, corrected, confidence),
            )
        )
    return found


def _verdict(worse_by: float, p: float | None, confidence: float) -> Verdict:
    if p is None:
        return "one seed"
    if p >= 1 - confidence or worse_by == 0:
        return "noise"
    return "worse" if worse_by > 0 else "better"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def t_interval(values: Sequence[float], confidence: float) -> tuple[float, float | None, float | None]:
    """Mean, half of its interval, and p of the mean being 0. One value has neither."""
    count, mean = len(values), _mean(values)
    if count < 2:
        return mean, None, None
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    error = deviation / math.sqrt(count)
    if error == 0:
        return mean, 0.0, 1.0 if mean == 0 else 0.0
    return mean, t_quantile(confidence, count - 1) * error, t_tails(mean / error, count - 1)


def holm(ps: Sequence[float]) -> list[float]:
    """Adjusted: the smallest times all of them, the next times all but one, …, and never below one before."""
    order = sorted(range(len(ps)), key=lambda at: ps[at])
    adjusted, highest = [0.0] * len(ps), 0.0
    for rank, at in enumerate(order):
        highest = max(highest, min(1.0, ps[at] * (len(ps) - rank)))
        adjusted[at] = highest
    return adjusted


def t_tails(t: float, freedom: float) -> float:
    """Chance of a |t| at least as large."""
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def t_quantile(confidence: float, freedom: float) -> float:
    """Where that chance is 1 - confidence: halved until nothing changes."""
    low, high = 0.0, 1.0
    while t_tails(high, freedom) > 1 - confidence:
        high *= 2
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if t_tails(middle, freedom) > 1 - confidence else (low, middle)
    return middle


def _incomplete_beta(a: float, b: float, x: float) -> float:
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, 1 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    """By Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1 / max(abs(1 - (a + b) * x / (a + 1)), tiny)
    value = d
    for m in range(1, 1000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + term * d
            d = 1 / (d if abs(d) > tiny else tiny)
            c = 1 + term / c
            c = c if abs(c) > tiny else tiny
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value

"""From some mixtures and their losses to weights that would be better, and how sure that is.

    weights of domains (N, K), bits per byte (N)
        ─ three regressions: of weights, of their logarithms, of weights and their products; each with ridges
        ─ the one that foretells a mixture best that it has not seen (leave one out)
        ─ 10,000 mixtures of the same region: the mean of the 100 that it finds best
        ─ the same 200 times with mixtures drawn again (bootstrap) ─> intervals, and how often it is a gain
        ─ the first two steps 99 times with losses in any other order ─> how often chance does as well

As RegMix (Liu et al. 2024, arXiv:2407.01492) and Olmix (Chen et al. 2026, arXiv:2602.12237) do: small
proxies, a regression, and a search in what it foretells. Nothing outside of the region that was tried is
proposed. Where chance does as well in more than 5 % of cases, or where the interval of the gain reaches
nothing, the answer is that it is noise.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import InputError

Array = NDArray[np.float64]

_RIDGES = tuple(10.0**power for power in range(-6, 3))
_SEARCHED, _AVERAGED, _DRAWN_AGAIN, _SHUFFLED = 10_000, 100, 200, 99
_MOST_BY_CHANCE = 0.05
LEAST_MIXTURES = 6  # with that of the recipe
_INTERVAL = (5, 95)
_SMALLEST = 1e-3  # of a weight whose logarithm is taken


@dataclasses.dataclass(frozen=True)
class Proposal:
    present: dict[str, float]
    weights: dict[str, tuple[float, float, float]]  # proposed, and its interval
    gain: tuple[float, float, float]  # bits per byte less than with the present weights, and its interval
    sureness: float  # share of bootstraps in which it is a gain
    foretold: float  # 1: every mixture left out is foretold exactly; 0: no better than by their mean
    by_chance: float  # how often losses in any other order are foretold as well
    regression: str
    mixtures: int

    @property
    def is_noise(self) -> bool:
        return self.by_chance > _MOST_BY_CHANCE or self.gain[1] <= 0

    @property
    def told(self) -> str:
        found = (
            f"{self.regression.capitalize()} of {self.mixtures} mixtures foretells one that it has not seen "
            f"with R² = {self.foretold:.2f}; chance does as well in {self.by_chance:.0%} of cases. "
        )
        gain, low, high = self.gain
        expected = f"{gain:.4f} bits per byte ({low:.4f} to {high:.4f})"
        if self.is_noise:
            return (
                found
                + f"That is noise: the gain of the weights below, {expected}, cannot be relied on. Try more "
                "mixtures, more tokens, or larger models."
            )
        return (
            found
            + f"The weights below should gain {expected}, in {100 * self.sureness:.4g}% of bootstraps a gain."
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "verdict": "noise" if self.is_noise else "better",
            "told": self.told,
            "present": self.present,
            "weights": {
                name: {"weight": one[0], "low": one[1], "high": one[2]} for name, one in self.weights.items()
            },
            "gain": dict(zip(("bits_per_byte", "low", "high"), self.gain, strict=True)),
            "sureness": self.sureness,
            "foretold_r2": self.foretold,
            "by_chance": self.by_chance,
            "regression": self.regression,
            "mixtures": self.mixtures,
        }


def propose(
    weights: Mapping[str, Mapping[str, float]],
    losses: Mapping[str, Sequence[float]],
    present: Mapping[str, float],
) -> Proposal:
    """`weights` and `losses` by mixture; a loss for every seed."""
    domains = list(present)
    x = np.array([[weights[name][domain] for domain in domains] for name in weights])
    y = np.array([math.fsum(losses[name]) / len(losses[name]) for name in weights])
    if len(y) < LEAST_MIXTURES:
        raise InputError(
            f"{len(y)} mixtures are too few for a regression",
            where="grid",
            next=f"set `--grid` to {LEAST_MIXTURES - 1} or more; 8 for every domain is a good number",
        )
    draw = np.random.Generator(np.random.PCG64(0))
    region = _region(x, draw)
    here = np.array([[present[domain] for domain in domains]])
    fit = best_fit(x, y)
    shuffled = [best_fit(x, draw.permutation(y)).foretold for _ in range(_SHUFFLED)]
    proposed = _best_of(fit, region)
    gains, places = [], []
    for _ in range(_DRAWN_AGAIN):
        chosen = draw.integers(0, len(y), len(y))
        again = refit(fit, x[chosen], y[chosen])
        places.append(_best_of(again, region))
        gains.append(float((again.predict(here) - again.predict(proposed[None]))[0]))
    low, high = np.percentile(places, _INTERVAL, axis=0)
    gain_low, gain_high = np.percentile(gains, _INTERVAL)
    gain = float((fit.predict(here) - fit.predict(proposed[None]))[0])
    return Proposal(
        present=dict(present),
        weights={
            domain: (float(proposed[at]), float(low[at]), float(high[at]))
            for at, domain in enumerate(domains)
        },
        gain=(gain, float(gain_low), float(gain_high)),
        sureness=float(np.mean(np.array(gains) > 0)),
        foretold=fit.foretold,
        by_chance=(1 + sum(one >= fit.foretold for one in shuffled)) / (1 + _SHUFFLED),
        regression=fit.name,
        mixtures=len(y),
    )


class Fit(NamedTuple):
    name: str
    features: Callable[[Array], Array]
    ridge: float
    means: Array
    scales: Array
    slopes: Array
    offset: float
    foretold: float

    def predict(self, x: Array) -> Array:
        predicted: Array = (self.features(x) - self.means) / self.scales @ self.slopes + self.offset
        return predicted


def _linear(x: Array) -> Array:
    return x


def _logarithms(x: Array) -> Array:
    taken: Array = np.log(np.maximum(x, _SMALLEST))
    return taken


def _products(x: Array) -> Array:
    rows, columns = np.triu_indices(x.shape[1])
    return np.hstack([x, x[:, rows] * x[:, columns]])


KINDS: dict[str, Callable[[Array], Array]] = {
    "a linear regression": _linear,
    "a regression of logarithms": _logarithms,
    "a quadratic regression": _products,
}


def best_fit(x: Array, y: Array) -> Fit:
    """Of all kinds and ridges, that with the smallest error where each mixture is left out in turn."""
    fits = [fit for name, kind in KINDS.items() for fit in fit_ridges(name, kind, _RIDGES, x, y)]
    return max(fits, key=lambda fit: fit.foretold)


def refit(fit: Fit, x: Array, y: Array) -> Fit:
    (again,) = fit_ridges(fit.name, fit.features, (fit.ridge,), x, y)
    return again


def fit_ridges(
    name: str, kind: Callable[[Array], Array], ridges: Sequence[float], x: Array, y: Array
) -> Iterator[Fit]:
    """Columns of deviation 1, an offset without a ridge; one decomposition for all ridges. What leaving one
    out gives is known without doing it: residual / (1 - leverage)."""
    columns = kind(x)
    means, scales = columns.mean(0), columns.std(0)
    scales = np.where(scales > 0, scales, 1.0)
    left, values, right = np.linalg.svd((columns - means) / scales, full_matrices=False)
    values = np.where(values > 1e-9 * values.max(initial=0.0), values, 0.0)
    offset = float(y.mean())
    by_mean = (y - offset) / (1 - 1 / len(y))
    for ridge in ridges:
        kept = values**2 + ridge * len(y)
        shrunk = np.divide(values, kept, out=np.zeros_like(values), where=kept > 0)
        slopes = right.T @ (shrunk * (left.T @ (y - offset)))
        leverage = left**2 @ (shrunk * values) + 1 / len(y)
        foreseen = left @ (values * shrunk * (left.T @ (y - offset)))
        left_out = (y - offset - foreseen) / np.maximum(1 - leverage, 1e-9)
        foretold = 1 - float((left_out**2).sum() / max((by_mean**2).sum(), 1e-300))
        yield Fit(name, kind, ridge, means, scales, slopes, offset, foretold)


def _region(x: Array, draw: np.random.Generator) -> Array:
    """Mixtures of the mixtures that were tried, three at a time: nothing beyond them."""
    chosen = draw.integers(0, len(x), (_SEARCHED, 3))
    shares = draw.dirichlet(np.ones(3), _SEARCHED)
    mixed: Array = np.einsum("ns,nsk->nk", shares, x[chosen])
    return mixed


def _best_of(fit: Fit, region: Array) -> Array:
    best: Array = region[np.argsort(fit.predict(region), kind="stable")[:_AVERAGED]].mean(0)
    return best

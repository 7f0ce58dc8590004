"""A regression finds the weights that were planted, and says noise where there is nothing to find."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tokmill.errors import InputError
from tokmill.proxy.mixtures import Proposal, best_fit, fit_ridges, propose
from tokmill.proxy.variants import draw_weights

PRESENT = {"code": 0.2, "math": 0.3, "web": 0.5}


def mixtures(count: int) -> dict[str, dict[str, float]]:
    drawn = {f"m{at}": one for at, one in enumerate(draw_weights(PRESENT, count, 2.0))}
    return {"whole": PRESENT, **drawn}


def test_weights_are_drawn_around_the_present_ones_and_are_the_same_twice() -> None:
    drawn = list(draw_weights(PRESENT, 2000, 8.0))
    assert drawn == list(draw_weights(PRESENT, 2000, 8.0))
    assert all(sum(one.values()) == pytest.approx(1, abs=1e-9) for one in drawn)
    assert all(min(one.values()) >= 0 for one in drawn)
    for name, weight in PRESENT.items():
        assert np.mean([one[name] for one in drawn]) == pytest.approx(weight, abs=0.01)
    closer = list(draw_weights(PRESENT, 2000, 80.0))
    assert np.std([one["web"] for one in closer]) < np.std([one["web"] for one in drawn]) / 2


def test_a_planted_optimum_is_found_with_an_interval_around_it() -> None:
    best = {"code": 0.35, "math": 0.25, "web": 0.4}
    noise = np.random.default_rng(3)
    weights = mixtures(40)
    losses = {
        name: [1 + sum((one[d] - best[d]) ** 2 for d in best) + noise.normal(0, 0.002) for _ in range(2)]
        for name, one in weights.items()
    }
    found = propose(weights, losses, PRESENT)
    assert not found.is_noise
    assert found.foretold > 0.9
    assert found.by_chance == 0.01
    expected = sum((PRESENT[d] - best[d]) ** 2 for d in best)
    assert found.gain[1] <= expected * 1.3
    assert found.gain[2] >= expected * 0.7
    for name, weight in best.items():
        proposed, low, high = found.weights[name]
        assert proposed == pytest.approx(weight, abs=0.06)
        assert low - 0.05 <= weight <= high + 0.05
    assert found.as_json()["verdict"] == "better"
    assert "should gain" in found.told


def test_noise_is_called_noise() -> None:
    weights = mixtures(24)
    called = 0
    for seed in range(12):
        draw = np.random.default_rng(seed)
        losses = {name: [float(draw.normal(1, 0.01))] for name in weights}
        found = propose(weights, losses, PRESENT)
        called += found.is_noise
        assert ("That is noise" in found.told) == found.is_noise
    assert called >= 11


def test_what_leaving_one_out_gives_is_what_leaving_one_out_gives() -> None:
    """By its short formula, and by fitting as often as there are mixtures."""
    draw = np.random.default_rng(5)
    x = draw.dirichlet(np.ones(3), 15)
    y = x @ np.array([1.0, 2.0, 0.5]) + draw.normal(0, 0.05, 15)
    fit = best_fit(x, y)
    z = (fit.features(x) - fit.means) / fit.scales
    errors, by_mean = [], []
    for at in range(15):
        others = np.arange(15) != at
        # columns as they are of all, an offset of its own, and the same ridge
        design = np.hstack([z[others], np.ones((14, 1))])
        penalty = np.diag([fit.ridge * 15] * z.shape[1] + [0.0])
        slopes = np.linalg.solve(design.T @ design + penalty, design.T @ y[others])
        errors.append(y[at] - np.append(z[at], 1) @ slopes)
        by_mean.append(y[at] - y[others].mean())
    assert fit.foretold == pytest.approx(1 - np.square(errors).sum() / np.square(by_mean).sum(), rel=1e-6)
    (plain,) = fit_ridges("", lambda x: x[:, :2], (0.0,), x, y)
    slopes, *_ = np.linalg.lstsq(np.hstack([x[:, :2], np.ones((15, 1))]), y, rcond=None)
    np.testing.assert_allclose(plain.predict(x), np.hstack([x[:, :2], np.ones((15, 1))]) @ slopes)


def test_too_few_mixtures_are_told() -> None:
    weights = mixtures(4)
    with pytest.raises(InputError, match="5 mixtures are too few") as error:
        propose(weights, {name: [1.0] for name in weights}, PRESENT)
    assert "`--grid` to 5 or more" in error.value.next
    enough = mixtures(5)
    assert propose(enough, {name: [1.0] for name in enough}, PRESENT).mixtures == 6


def test_a_share_of_bootstraps_is_not_rounded_up_to_all() -> None:
    found = Proposal(PRESENT, {}, (0.02, 0.01, 0.03), 0.995, 0.9, 0.01, "a linear regression", 9)
    assert "in 99.5% of bootstraps a gain" in found.told
    assert "in 100% of bootstraps a gain" in dataclasses.replace(found, sureness=1.0).told

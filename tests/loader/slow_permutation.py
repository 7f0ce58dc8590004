"""How random a permutation looks, by tests that know nothing of how it was made.
Each gives a distance in sigmas."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray


def sigmas(counts: NDArray[np.integer], expected: float, given: int = 1) -> float:
    """Of the chi-square of these counts, which should all be `expected`;
    `given` of them follow from the others."""
    freedom = counts.size - given
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    return (chi_square - freedom) / np.sqrt(2 * freedom)


def table(row: NDArray[np.integer], column: NDArray[np.integer], size: int, bins: int) -> NDArray[np.int64]:
    """How often a value of part r meets one of part c."""
    return np.bincount((row * bins // size) * bins + column * bins // size, minlength=bins * bins)


def judge(permuted: Callable[[int], NDArray[np.int64]], size: int, keys: int) -> dict[str, float]:
    """The worst over `keys` permutations of `size` elements."""
    bins = min(64, int(np.sqrt(size / 8)))
    places, worst = np.arange(size), {}
    before = permuted(keys)
    fixed = 0
    for key in range(keys):
        now = permuted(key)
        steps = np.diff(now) % size
        found = {
            "position and value": sigmas(table(places, now, size, bins), size / bins**2, 2 * bins - 1),
            "value and next value": sigmas(
                table(now[:-1], now[1:], size, bins), (size - 1) / bins**2, 2 * bins - 1
            ),
            "value and the one after": sigmas(
                table(now[:-2], now[2:], size, bins), (size - 2) / bins**2, 2 * bins - 1
            ),
            "step": sigmas(np.bincount(steps * 63 // size, minlength=63), (size - 1) / 63),
            "lowest digits": sigmas(
                np.bincount((places % 64) * 64 + now % 64, minlength=64 * 64), size / 64**2, 127
            ),
            "two keys": sigmas(table(before, now, size, bins), size / bins**2, 2 * bins - 1),
        }
        worst = {name: max(abs(value), worst.get(name, 0.0)) for name, value in found.items()}
        fixed += int((now == places).sum())
        before = now
    worst["fixed points"] = abs(fixed - keys) / np.sqrt(keys)  # of a random permutation one, give or take one
    return worst

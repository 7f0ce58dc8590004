"""Several datasets in fixed proportions: which one gives the n-th sample, and which of its samples that is.

    weights 3 : 1 : 1      turns   a b a c a | a b a c a | …      a period of 5, over and over
                           before  0 0 1 0 2 | 3 1 4 1 5 |        samples its dataset gave before

The turn goes to the dataset with the largest deficit, weight * (n + 1) - total * given, to the first of equals. Deficits
are whole numbers; after one period each is zero again (a dataset that is ahead of its share has no deficit, so it cannot
have had a turn too many). So the schedule is exact, and one period of it is all that must be kept: any turn is found
from n alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import InputError

# Weights whose smallest whole numbers add up to more are rounded to parts of this many: 0.006 % of the whole, 30 ms.
MAX_PERIOD = 1 << 14


class Turns:
    """The schedule of these weights."""

    def __init__(self, weights: Sequence[float | Fraction | str]) -> None:
        self.weights = _whole_weights(weights)
        self.period = sum(self.weights)
        self._turn = np.zeros(self.period, np.int64)
        self._before = np.zeros(self.period, np.int64)
        if len(self.weights) == 1:
            return
        deficits, given = [0] * len(self.weights), [0] * len(self.weights)
        turns, before = [], []
        for _ in range(self.period):
            deficits = [deficit + weight for deficit, weight in zip(deficits, self.weights, strict=True)]
            turn = deficits.index(max(deficits))
            deficits[turn] -= self.period
            turns.append(turn)
            before.append(given[turn])
            given[turn] += 1
        self._turn[:], self._before[:] = turns, before

    def at(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of each sample: its dataset, and how many samples that gave before."""
        periods, within = np.divmod(numbers, self.period)
        turn = self._turn[within]
        return turn, self._before[within] + periods * np.array(self.weights)[turn]

    def samples_until_dry(self, sizes: Sequence[int]) -> int:
        """How many turns there are before a dataset would have to give a sample for the second time."""
        shortest = min(size // weight for size, weight in zip(sizes, self.weights, strict=True))
        given = [shortest * weight for weight in self.weights]
        for count, turn in enumerate(self._turn.tolist()):
            if given[turn] == sizes[turn]:
                return shortest * self.period + count
            given[turn] += 1
        raise AssertionError("a dataset lasts longer than it has samples")


def _whole_weights(weights: Sequence[float | Fraction | str]) -> list[int]:
    """The smallest whole numbers in these proportions. A float is what it is written as: 0.1 is a tenth."""
    try:
        exact = [Fraction(repr(weight) if isinstance(weight, float) else weight) for weight in weights]
    except (ValueError, ZeroDivisionError, OverflowError, TypeError) as error:
        raise _refused(weights) from error
    if not exact or min(exact) <= 0:
        raise _refused(weights)
    scale = math.lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * scale) for weight in exact]
    divisor = math.gcd(*whole)
    whole = [weight // divisor for weight in whole]
    return whole if sum(whole) <= MAX_PERIOD else _rounded(whole)


def _rounded(weights: list[int]) -> list[int]:
    """MAX_PERIOD in all: whole parts first, what is left to the largest remainders; each has 1 at least."""
    total = sum(weights)
    parts = [max(weight * MAX_PERIOD // total, 1) for weight in weights]
    remainders = [weight * MAX_PERIOD - part * total for weight, part in zip(weights, parts, strict=True)]
    by_remainder = sorted(range(len(weights)), key=lambda number: (-remainders[number], number))
    left = MAX_PERIOD - sum(parts)
    for number in by_remainder[: max(left, 0)]:
        parts[number] += 1
    parts[parts.index(max(parts))] += min(left, 0)
    divisor = math.gcd(*parts)
    return [part // divisor for part in parts]


def _refused(weights: object) -> InputError:
    return InputError(
        f"weights {weights} are not numbers above 0",
        where="weights",
        next="give one for each dataset, in any proportion: [0.7, 0.3]; leave out what has no share",
    )

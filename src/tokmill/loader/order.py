"""The global order: which sample of which dataset is the n-th of all, for ever.

    n ─ turns ─> dataset, k ─ permutation(seed, dataset, k // size) ─> row          an epoch is a stretch of n
                                                     └ in windows: sorted by length, in runs, runs shuffled

It is a function of (seed, n) and of what the datasets are. Ranks, workers and batches only cut it, so they
may change in the middle. With several datasets an epoch ends before the first of them would repeat a sample;
the others go on in the next epoch where they were.

Bucketing reorders within windows of an epoch. A window is sorted by length and cut in runs; the runs come in
a keyed order, the last one, which may be shorter, last. A batch that lies in a run needs next to no padding:

window   5 9 2 7 3 8 4 6       runs of 2   |2 3| |4 5| |6 7| |8 9|       shuffled   |6 7| |2 3| |8 9| |4 5|

Turns: several datasets in fixed proportions.

    weights 3 : 1 : 1      turns   a b a c a | a b a c a | …      a period of 5, over and over
                           before  0 0 1 0 2 | 3 1 4 1 5 |        samples its dataset gave before

The turn goes to the dataset with the largest deficit, weight * (n + 1) - total * given, to the first of
equals. Deficits are whole numbers; after one period each is zero again (a dataset that is ahead of its share
has no deficit, so it cannot have had a turn too many). So the schedule is exact, and one period of it is all
that must be kept: any turn is found from n alone.

Permutation: a shuffle that is computed, not stored, the n-th element of a keyed permutation of 0 … size - 1.

    position ─ (left, right) ─ 6 rounds ─ left, right ─ number ─┬─ < size: done
                                ▲                               │
                                └───────────── again ───────────┘   for one number in sqrt(size), or fewer

    left, right = divmod(position, columns)              rows * columns >= size, both next to sqrt(size)
    a round     left  = (left  + hash(right, key)) mod rows          and, every other round,
                right = (right + hash(left,  key)) mod columns

- A Feistel network on bits permutes a power of two, so just above one, half of all numbers have to walk
  again. With two digits in a mixed base the domain is larger than `size` by less than a row: near powers of
  two nothing is special, and a walk is rare (1 in 30,000 at a billion).
- Swap-or-not needs no walk at all and has the better proof, but some 6 log2(size) rounds: 180 at a billion,
  against 6.
- Two short digits reach few of the permutations of few elements. Up to 4,096 elements are sorted by their
  keyed hash instead, which reaches them all: a table of 32 KB at most.

Every step is a NumPy operation on whole arrays of 64-bit integers:
0.07 µs for each element in blocks of 8,192.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import InputError

Shuffle = Literal["epoch", "none"]

# Placed at a time: 0.9 ms for a block, of which a batch of eight then takes what it needs in 2 µs.
_BLOCK_SAMPLES = 8192

# Weights whose smallest whole numbers add up to more are rounded to parts of this many:
# 0.006 % of the whole, 30 ms.
MAX_PERIOD = 1 << 14

# Four pass every test of ours, two fail them all by tens of sigmas; two are spare.
_ROUNDS = 6

_TABLE_SIZE = 4096

# Tried for the one with the fewest numbers to walk from: every walk is all rounds once more, for a few.
_BASES = 32

# Left and right stay below 2^31, so a digit times 32 bits of hash fits 64.
MAX_SIZE = 1 << 62


class Bucketing(NamedTuple):
    """Sort by length within `window` samples; keep `run` neighbours together.
    A multiple of the global batch is best."""

    window: int = 4096
    run: int = 64


class Placed(NamedTuple):
    """Samples in order: row `row[k]` of dataset `source[k]`."""

    source: NDArray[np.int64]
    row: NDArray[np.int64]


class _Block(NamedTuple):
    """Samples start … stop - 1 of an epoch, placed."""

    epoch: int
    start: int
    stop: int
    source: NDArray[np.int64]
    row: NDArray[np.int64]


Lengths = Callable[[int, NDArray[np.int64]], NDArray[np.int64]]


class Order:
    """Of datasets of these sizes; `lengths(source, rows)` is asked for when there is bucketing."""

    def __init__(
        self,
        sizes: Sequence[int],
        weights: Sequence[float | str],
        seed: int,
        shuffle: Shuffle,
        bucketing: Bucketing | None,
        lengths: Lengths,
    ) -> None:
        if len(weights) != len(sizes):
            raise InputError(
                f"{len(weights)} weights for {len(sizes)} datasets",
                where="weights",
                next="give one for each dataset",
            )
        if bucketing is not None and not 1 <= bucketing.run <= bucketing.window:
            raise InputError(
                f"runs of {bucketing.run} in windows of {bucketing.window}",
                where="bucketing",
                next="set `window` to some thousands, `run` to a multiple of the batch",
            )
        self.sizes, self.seed, self.shuffle, self.bucketing = list(sizes), seed, shuffle, bucketing
        self.turns = Turns(weights)
        self.epoch_samples = sizes[0] if len(sizes) == 1 else self.turns.samples_until_dry(sizes)
        self._lengths = lengths
        self._samples = _BLOCK_SAMPLES if bucketing is None else bucketing.window
        self._kept = _Block(-1, 0, 0, np.empty(0, np.int64), np.empty(0, np.int64))
        self._permutations: dict[int, tuple[int, Permutation]] = {}  # of each dataset the last one used

    def between(self, epoch: int, start: int, stop: int) -> Placed:
        """Samples start … stop - 1 of an epoch."""
        kept = self._kept
        if not (epoch == kept.epoch and kept.start <= start and stop <= kept.stop):
            assert 0 <= start <= stop <= self.epoch_samples, f"{start} to {stop} of {self.epoch_samples}"
            first, last = start // self._samples, max(stop - 1, start) // self._samples
            if first != last:
                bounds = [start, *(n * self._samples for n in range(first + 1, last + 1)), stop]
                pieces = [self.between(epoch, *pair) for pair in itertools.pairwise(bounds)]
                return Placed(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))
            kept = self._kept = self._block(epoch, first)
        begin, end = start - kept.start, stop - kept.start
        return Placed(kept.source[begin:end], kept.row[begin:end])

    def _block(self, epoch: int, number: int) -> _Block:
        start = number * self._samples
        stop = min(start + self._samples, self.epoch_samples)
        placed = self._place(epoch, start, stop)
        if self.bucketing is not None:
            placed = self._bucketed(placed, self.bucketing.run, f"{epoch} {number}")
        return _Block(epoch, start, stop, *placed)

    def _place(self, epoch: int, start: int, stop: int) -> Placed:
        if len(self.sizes) == 1:  # its epochs are those of the order
            return Placed(np.zeros(stop - start, np.int64), self._rows(0, epoch, np.arange(start, stop)))
        source, count = self.turns.at(epoch * self.epoch_samples + np.arange(start, stop))
        row = np.empty(stop - start, np.int64)
        for which, size in enumerate(self.sizes):
            mine = np.flatnonzero(source == which)
            rounds, within = np.divmod(count[mine], size)
            for again in np.unique(rounds).tolist():
                now = rounds == again
                row[mine[now]] = self._rows(which, again, within[now])
        return Placed(source, row)

    def _rows(self, source: int, again: int, within: NDArray[np.int64]) -> NDArray[np.int64]:
        return within if self.shuffle == "none" else self.permutation(source, again).at(within)

    def permutation(self, source: int, again: int) -> Permutation:
        """Of the rows of a dataset, when it gives them for the `again`-th time, from 0."""
        known, permutation = self._permutations.get(source, (-1, None))
        if known != again or permutation is None:
            permutation = Permutation(self.sizes[source], f"{self.seed} rows {source} {again}")
            self._permutations[source] = (again, permutation)
        return permutation

    def _bucketed(self, placed: Placed, run: int, name: str) -> Placed:
        lengths = np.empty(len(placed.row), np.int64)
        for which in range(len(self.sizes)):
            mine = placed.source == which
            lengths[mine] = self._lengths(which, placed.row[mine])
        by_length = np.argsort(lengths, kind="stable")
        runs = len(by_length) // run
        turns = Permutation(runs, f"{self.seed} runs {name}").at(np.arange(runs))
        whole = by_length[: runs * run].reshape(runs, run)[turns].reshape(-1)
        chosen = np.concatenate((whole, by_length[runs * run :]))
        return Placed(placed.source[chosen], placed.row[chosen])


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

    def given(self, number: int) -> list[int]:
        """How many samples each dataset gave before this one."""
        periods, within = divmod(number, self.period)
        begun = np.bincount(self._turn[:within], minlength=len(self.weights))
        return [periods * weight + int(more) for weight, more in zip(self.weights, begun, strict=True)]

    def number_of(self, source: int, count: NDArray[np.int64]) -> NDArray[np.int64]:
        """The samples that are its `count`-th ones, from 0: what `at` tells, the other way."""
        periods, within = np.divmod(count, self.weights[source])
        found: NDArray[np.int64] = periods * self.period + np.flatnonzero(self._turn == source)[within]
        return found

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
        exact = [
            Fraction(str(weight) if isinstance(weight, float | np.number) else weight) for weight in weights
        ]
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


class Permutation:
    """Of `size` elements, chosen by `key` (anything that spells: "seed epoch")."""

    def __init__(self, size: int, key: str) -> None:
        assert 0 <= size <= MAX_SIZE, f"{size} elements"
        self.size = size
        self._keys = _round_keys(key)
        self._table: NDArray[np.int64] | None = None
        if size <= _TABLE_SIZE:
            marks = _mixed(np.arange(size, dtype=np.uint64), self._keys[0], self._keys[1])
            self._table = np.argsort(marks, kind="stable")
            return
        root = math.isqrt(size - 1) + 1
        columns = min(range(root, root + _BASES), key=lambda columns: -size % columns)
        self._rows, self._columns = np.uint64(-(-size // columns)), np.uint64(columns)

    def at(self, positions: NDArray[np.integer]) -> NDArray[np.int64]:
        """The elements at these positions."""
        if self._table is not None:
            placed: NDArray[np.int64] = self._table[positions]
            return placed
        numbers = self._turned(np.asarray(positions).astype(np.uint64))
        beyond = np.flatnonzero(numbers >= np.uint64(self.size))
        while beyond.size:
            numbers[beyond] = self._turned(numbers[beyond])
            beyond = beyond[numbers[beyond] >= np.uint64(self.size)]
        return numbers.view(np.int64)

    def positions_of(self, elements: NDArray[np.integer]) -> NDArray[np.int64]:
        """Where these elements are: what `at` tells, the other way."""
        if self._table is not None:
            places = np.empty(self.size, np.int64)
            places[self._table] = np.arange(self.size)
            found: NDArray[np.int64] = places[elements]
            return found
        numbers = self._turned_back(np.asarray(elements).astype(np.uint64))
        beyond = np.flatnonzero(numbers >= np.uint64(self.size))
        while beyond.size:
            numbers[beyond] = self._turned_back(numbers[beyond])
            beyond = beyond[numbers[beyond] >= np.uint64(self.size)]
        return numbers.view(np.int64)

    def _turned_back(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left = numbers // self._columns
        right = numbers - left * self._columns
        for start in reversed(range(0, 2 * _ROUNDS, 4)):
            right = _taken(right, left, self._columns, self._keys[start + 2], self._keys[start + 3])
            left = _taken(left, right, self._rows, self._keys[start], self._keys[start + 1])
        return left * self._columns + right

    def _turned(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left = numbers // self._columns
        right = numbers - left * self._columns
        for start in range(0, 2 * _ROUNDS, 4):
            left = _added(left, right, self._rows, self._keys[start], self._keys[start + 1])
            right = _added(right, left, self._columns, self._keys[start + 2], self._keys[start + 3])
        left *= self._columns
        left += right
        return left


def _round_keys(key: str) -> NDArray[np.uint64]:
    """Two for each round, odd where they multiply."""
    stream = hashlib.shake_256(f"tokmill.loader.permutation.1 {key}".encode()).digest(16 * _ROUNDS)
    keys = np.frombuffer(stream, "<u8").astype(np.uint64)
    keys[1::2] |= np.uint64(1)
    return keys


def _mixed(numbers: NDArray[np.uint64], add: np.uint64, multiply: np.uint64) -> NDArray[np.uint64]:
    """A keyed bijection of 64 bits whose upper half depends on all of them."""
    mixed = numbers + add
    mixed *= multiply
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)  # of splitmix64
    return mixed


def _added(
    digit: NDArray[np.uint64], other: NDArray[np.uint64], base: np.uint64, add: np.uint64, multiply: np.uint64
) -> NDArray[np.uint64]:
    """digit + hash(other), modulo base."""
    shift = _shift(other, base, add, multiply)
    shift += digit
    np.minimum(shift, shift - base, out=shift)  # below zero it wraps to more than any digit
    return shift


def _taken(
    digit: NDArray[np.uint64], other: NDArray[np.uint64], base: np.uint64, add: np.uint64, multiply: np.uint64
) -> NDArray[np.uint64]:
    """digit - hash(other), modulo base."""
    less = digit - _shift(other, base, add, multiply)
    np.minimum(less, less + base, out=less)  # below zero it wrapped
    return less


def _shift(
    other: NDArray[np.uint64], base: np.uint64, add: np.uint64, multiply: np.uint64
) -> NDArray[np.uint64]:
    """Of the hash 32 bits are scaled, because `%` is slower than all the rest."""
    shift = _mixed(other, add, multiply)
    shift >>= np.uint64(32)
    shift *= base
    shift >>= np.uint64(32)
    return shift

"""What was handed out by a state, and when a row is: the order of the loader, read backwards.

    state (epoch, position) ─ samples that each dataset gave ─ whole rounds · a part of one ─> times per row
    row ─ its place in each round's permutation ─ its turn among the datasets ─> samples (epoch, position)

Nothing is replayed: rounds that are over count for all rows alike, and of the round under way the rows that
came are those of the first positions of its permutation. With bucketing only the window under way is looked
at row by row: before and after it, windows are as they would be without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import InputError
from tokmill.loader.order import Order

_AT_ONCE = 1 << 13  # 0.07 µs for each; of a million at once twice that

Times = NDArray[np.uint16]


class Sample(NamedTuple):
    """One of the order: its number in an epoch."""

    epoch: int
    position: int


def count_times(
    order: Order, epoch: int, position: int, left_out: Mapping[int, int] | None = None
) -> list[Times]:
    """Of each dataset: how many times each row was handed out before this sample. `left_out`: of epochs that
    ended before their last sample, how many were."""
    window = order.bucketing.window if order.bucketing is not None else 1
    begun = position // window * window
    given = _given(order, epoch, begun)
    counts = []
    for source, (size, handed) in enumerate(zip(order.sizes, given, strict=True)):
        rounds, within = divmod(handed, size)
        if rounds >= np.iinfo(np.uint16).max - 1:
            raise InputError(f"{rounds:,} epochs are more than are counted", where="epoch")
        # the rows that came, or those that did not: whichever are fewer
        is_late = 2 * within > size
        times = np.full(size, rounds + is_late, np.uint16)
        first, last = (within, size) if is_late else (0, within)
        for start in range(first, last, _AT_ONCE):
            rows = _rows(order, source, rounds, np.arange(start, min(start + _AT_ONCE, last)))
            times[rows] = rounds if is_late else rounds + 1
        counts.append(times)
    rest = order.between(epoch, begun, position)
    for source, times in enumerate(counts):
        np.add.at(times, rest.row[rest.source == source], 1)
    for before, taken in (left_out or {}).items():
        if before < epoch:
            never = order.between(before, taken, order.epoch_samples)
            for source, times in enumerate(counts):
                np.subtract.at(times, never.row[never.source == source], 1)
    return counts


def find_samples(order: Order, source: int, row: int, epochs: int) -> list[Sample]:
    """All samples that are this row of this dataset, in the first `epochs` epochs of the order."""
    size, last = order.sizes[source], epochs * order.epoch_samples
    found: set[Sample] = set()
    again = 0
    while _number(order, source, again * size) < last:
        place = int(_places(order, source, again, np.array([row], np.int64))[0])
        number = _number(order, source, again * size + place)
        if number < last:
            found.update(_in_window(order, Sample(*divmod(number, order.epoch_samples)), source, row))
        again += 1
    return sorted(found)


def _number(order: Order, source: int, count: int) -> int:
    """Of all samples, the one that is its dataset's `count`-th, from 0."""
    if len(order.sizes) == 1:
        return count
    return int(order.turns.number_of(source, np.array([count], np.int64))[0])


def _in_window(order: Order, sample: Sample, source: int, row: int) -> list[Sample]:
    """Where bucketing puts it; twice, where the dataset begins anew in this window."""
    if order.bucketing is None:
        return [sample]
    first = sample.position // order.bucketing.window * order.bucketing.window
    stop = min(first + order.bucketing.window, order.epoch_samples)
    placed = order.between(sample.epoch, first, stop)
    places = np.flatnonzero((placed.source == source) & (placed.row == row))
    return [Sample(sample.epoch, first + at) for at in places.tolist()]


def _given(order: Order, epoch: int, position: int) -> list[int]:
    if len(order.sizes) == 1:
        return [epoch * order.sizes[0] + position]
    return order.turns.given(epoch * order.epoch_samples + position)


def _rows(order: Order, source: int, again: int, within: NDArray[np.int64]) -> NDArray[np.int64]:
    return within if order.shuffle == "none" else order.permutation(source, again).at(within)


def _places(order: Order, source: int, again: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return rows if order.shuffle == "none" else order.permutation(source, again).positions_of(rows)

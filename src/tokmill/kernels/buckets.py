"""Rows with equal keys: which rows have company, and whom each is compared with.

repeated       keys in any order    -> rows whose key is not theirs alone       most have none and are done
count_links    keys sorted          -> whom each place is compared with         linear in the size of a bucket
list_links     … of some places     -> (earlier, later) places                  as many at a time as there is room for
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import HASHES, ROWS, Int, frozen, raw_kernel
from tokmill.kernels.steps import SPREAD

Keys = NDArray[np.uint64]
Places = NDArray[np.int64]

U64 = np.uint64
# The golden ratio in 64 bits: keys of one partition share their top bits, this spreads the others.


def repeated(keys: Keys) -> NDArray[np.bool_]:
    """Where a key other than 0 occurs more than once. Three 64-bit words of memory per key at most."""
    slots = 16
    while slots < keys.size + keys.size // 2:
        slots *= 2
    found = np.zeros(keys.size, np.bool_)
    _repeated(frozen(keys, np.uint64), np.zeros(slots, np.uint64), np.zeros(slots, np.uint8), found)
    return found


class Links(NamedTuple):
    """Of places in buckets of equal keys that lie together, in order of precedence.

    The first of all that are equal in every respect stands for them; d0 d1 d2 … are the bucket's different ones.
    Place i, whose first is d_k, is linked with

        d0 … d_(leaders - 1)      d_(k - neighbours) … d_(k - 1)      d_k, unless that is i itself
    """

    firsts: Places  # the first place that is equal to this one (itself, mostly)
    starts: Places  # where the bucket begins
    numbers: Places  # k, of a place that is d_k
    different: Places  # different[start + k] is d_k
    ends: Places  # links of all places up to this one
    leaders: int
    neighbours: int


def count_links(keys: Keys, firsts: Places, leaders: int, neighbours: int) -> Links:
    keys, firsts = frozen(keys, np.uint64), frozen(firsts, np.int64)
    starts, numbers, different, ends = (np.empty(keys.size, np.int64) for _ in range(4))
    links = Links(firsts, starts, numbers, different, ends, leaders, neighbours)
    _count_links(keys, firsts, leaders, neighbours, links.starts, links.numbers, links.different, links.ends)
    return links


def list_links(links: Links, start: int, stop: int) -> tuple[Places, Places]:
    """Of the places from `start` to `stop`: whom each is linked with, the earlier one first."""
    before = int(links.ends[start - 1]) if start else 0
    count = (int(links.ends[stop - 1]) if stop else 0) - before
    earlier, later = np.empty(count, np.int64), np.empty(count, np.int64)
    _list_links(
        frozen(links.firsts, np.int64),
        frozen(links.starts, np.int64),
        frozen(links.numbers, np.int64),
        frozen(links.different, np.int64),
        links.leaders,
        links.neighbours,
        start,
        stop,
        earlier,
        later,
    )
    return earlier, later


@raw_kernel(lambda: repeated(np.ones(2, U64)))
def _repeated(keys: Keys, table: Keys, marks: NDArray[np.uint8], found: NDArray[np.bool_]) -> None:
    slots = table.size
    for look in range(2):
        for row in range(keys.size):
            key = keys[row]
            if key == 0:
                continue
            slot = np.int64(((key * SPREAD) >> U64(32)) & U64(slots - 1))
            while table[slot] != 0 and table[slot] != key:
                slot = (slot + 1) & (slots - 1)
            if look == 1:
                found[row] = marks[slot] != 0
            elif table[slot] == key:
                marks[slot] = np.uint8(1)
            else:
                table[slot] = key


@raw_kernel(lambda: count_links(HASHES, ROWS, 8, 8))
def _count_links(
    keys: Keys,
    firsts: Places,
    leaders: int,
    neighbours: int,
    starts: Places,
    numbers: Places,
    different: Places,
    ends: Places,
) -> None:
    used: Int = 0
    start: Int = 0
    count: Int = 0
    for place in range(keys.size):
        if place == 0 or keys[place] != keys[place - 1]:
            start, count = place, 0
        starts[place] = start
        first = firsts[place]
        if first == place:
            different[start + count] = place
            numbers[place] = count
            count += 1
        number = numbers[first]
        near = max(leaders, number - neighbours)
        used += min(leaders, number) + max(number - near, 0) + (first != place)
        ends[place] = used


@raw_kernel(lambda: list_links(count_links(HASHES, ROWS, 8, 8), 0, 1))
def _list_links(
    firsts: Places,
    starts: Places,
    numbers: Places,
    different: Places,
    leaders: int,
    neighbours: int,
    begin: int,
    end: int,
    earlier: Places,
    later: Places,
) -> None:
    used: Int = 0
    for place in range(begin, end):
        first, start = firsts[place], starts[place]
        number = numbers[first]
        led = min(leaders, number)
        near = max(leaders, number - neighbours)
        for link in range(led):
            earlier[used + link] = different[start + link]
        used += led
        for other in range(near, number):
            earlier[used] = different[start + other]
            used += 1
        if first != place:
            earlier[used] = first
            used += 1
        links = led + max(number - near, 0) + (first != place)
        for link in range(used - links, used):
            later[link] = place

"""Rows with equal keys: which rows have company, and whom each is compared with.

repeated       keys in any order    -> rows whose key is not theirs alone       most have none and are done
bucket_pairs   keys sorted          -> (earlier, later) places                  linear in the size of a bucket
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.columns import Int, frozen
from tokmill.kernels.raw import raw_kernel

Keys = NDArray[np.uint64]
Places = NDArray[np.int64]

U64 = np.uint64
# The golden ratio in 64 bits: keys of one partition share their top bits, this spreads the others.
_SPREAD = U64(0x9E3779B97F4A7C15)


def repeated(keys: Keys) -> NDArray[np.bool_]:
    """Where a key other than 0 occurs more than once. Three 64-bit words of memory per key at most."""
    slots = 16
    while slots < keys.size + keys.size // 2:
        slots *= 2
    found = np.zeros(keys.size, np.bool_)
    _repeated(frozen(keys, np.uint64), np.zeros(slots, np.uint64), np.zeros(slots, np.uint8), found)
    return found


def bucket_pairs(keys: Keys, firsts: Places, leaders: int, neighbours: int) -> tuple[Places, Places]:
    """Pairs of places, the earlier first, in buckets of equal keys that lie together in order of precedence.

    firsts[i] is the first place in i's bucket that is equal to i in every respect (i itself, mostly). Places that are
    their own first are the bucket's different ones, d0 d1 d2 …; place i, whose first is d_k, is paired with

        d0 … d_(leaders - 1)      d_(k - neighbours) … d_(k - 1)      d_k, unless that is i itself
    """
    keys, firsts = frozen(keys, np.uint64), frozen(firsts, np.int64)
    different, numbers = np.empty(keys.size, np.int64), np.empty(keys.size, np.int64)
    nowhere = np.empty(0, np.int64)
    count = _bucket_pairs(keys, firsts, leaders, neighbours, different, numbers, nowhere, nowhere)
    earlier, later = np.empty(count, np.int64), np.empty(count, np.int64)
    _bucket_pairs(keys, firsts, leaders, neighbours, different, numbers, earlier, later)
    return earlier, later


@raw_kernel
def _repeated(keys: Keys, table: Keys, marks: NDArray[np.uint8], found: NDArray[np.bool_]) -> None:
    slots = table.size
    for look in range(2):
        for row in range(keys.size):
            key = keys[row]
            if key == 0:
                continue
            slot = np.int64(((key * _SPREAD) >> U64(32)) & U64(slots - 1))
            while table[slot] != 0 and table[slot] != key:
                slot = (slot + 1) & (slots - 1)
            if look == 1:
                found[row] = marks[slot] != 0
            elif table[slot] == key:
                marks[slot] = np.uint8(1)
            else:
                table[slot] = key


@raw_kernel
def _bucket_pairs(
    keys: Keys,
    firsts: Places,
    leaders: int,
    neighbours: int,
    different: Places,
    numbers: Places,
    earlier: Places,
    later: Places,
) -> Int:
    """How many pairs there are; they are written if there is room. different[start + k] is d_k, numbers[d_k] is k."""
    is_written = earlier.size != 0
    used: Int = 0
    start: Int = 0
    count: Int = 0
    for place in range(keys.size):
        if place == 0 or keys[place] != keys[place - 1]:
            start, count = place, 0
        first = firsts[place]
        if first == place:
            different[start + count] = place
            numbers[place] = count
            count += 1
        number = numbers[first]
        led = min(leaders, number)
        near = max(leaders, number - neighbours)
        links = led + max(number - near, 0)
        if is_written:
            for link in range(links):
                earlier[used + link] = different[start + (link if link < led else near + link - led)]
                later[used + link] = place
            if first != place:
                earlier[used + links] = first
                later[used + links] = place
        used += links + (first != place)
    return used

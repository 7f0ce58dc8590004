"""MinHash by one permutation: a fingerprint of the set of n-grams of a row of units, in 32-bit arithmetic.

    units      w0 w1 w2 w3 w4 w5 …                                  kernels.shingles makes them
    shingles   s0 = w0…w4, s1 = w1…w5, …                            a rolling polynomial mod 2^32,
                                                                    then a mix of its bits
    bins       the hash space cut into `positions` equal ranges     the smallest hash that falls into each
    empty bin  takes the value of another one                       the first occupied bin in an order
                                                                    of its own

Two rows agree at a position with the probability of their Jaccard similarity. A shingle costs one hash and
one minimum instead of one per position. Every empty bin looks through the others in a fixed pseudo-random
order of its own ("optimal densification", Shrivastava 2017): positions stay independent where a short row
leaves most bins empty.

The lowest bit of a value is not of the hash: it is 1 where the shingle holds a unit whose lowest bit is 1,
a digit written as 0. So two fingerprints tell how much of their agreement holds whatever the digits are.

A row with fewer units than n has one shingle, all of it. A row without units has no fingerprint:
EMPTY everywhere, and the band keys are 0.

`overlap` counts exactly what the fingerprints estimate, for pairs of rows: both become sets of 64-bit hashes
of the same n-grams. The left row's go into a table of twice their number, then the right row's ask for their
place in it.

Rows with equal keys: which rows have company, and whom each is compared with.

repeated       keys in any order    -> rows whose key is not theirs alone       most have none and are done
count_links    keys sorted          -> whom each place is compared with         linear in the size of a bucket
list_links     … of some places     -> (earlier, later) places                  as many at a time
                                                                                as there is room for
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import (
    HASHES,
    ROWS,
    SPREAD,
    Int,
    Offsets,
    frozen,
    mix64,
    raw_kernel,
    raw_step,
    slots_for,
)

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

    The first of all that are equal in every respect stands for them;
    d0 d1 d2 … are the bucket's different ones. Place i, whose first is d_k, is linked with

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


Values = NDArray[np.uint32]

EMPTY = 0xFFFFFFFF

# Nothing up the sleeve: sha256(b"tokmill shingle base") and (b"tokmill band key"), made odd.
SHINGLE_BASE = 0xD2A29E8D
_KEY_FACTOR = 0x0DA58C72D6C4EE71

U32 = np.uint32


class Sketches(NamedTuple):
    values: Values  # rows x positions
    shingles: NDArray[np.int64]  # how many n-grams went in, repeated ones counted again; 0: no fingerprint


class Probes(NamedTuple):
    """Whom an empty bin asks: `order[i]` lists the bins by the hash of (i, bin);
    `rank[i, j]` is where j stands in it."""

    order: NDArray[np.uint16]
    rank: NDArray[np.uint16]


def sketch(units: NDArray[np.uint32], offsets: Offsets, n: int, positions: int) -> Sketches:
    if not 1 <= positions <= 1 << 12:
        raise ValueError(f"a fingerprint has 1 to 4096 positions, not {positions}")
    if n < 1:
        raise ValueError(f"an n-gram has at least one unit, not {n}")
    rows = offsets.size - 1
    sketches = Sketches(np.empty((rows, positions), np.uint32), np.empty(rows, np.int64))
    probes = probe_tables(positions)
    _sketch(
        frozen(units, np.uint32),
        frozen(offsets, np.int64),
        n,
        U32(SHINGLE_BASE),
        U32(pow(SHINGLE_BASE, n, 1 << 32)),
        probes.order,
        probes.rank,
        np.empty(positions, np.uint16),
        *sketches,
    )
    return sketches


def band_keys(values: Values, bands: int, rows: int) -> Keys:
    """One 64-bit hash per row and band; bands never share a key but by accident. 0:
    the row has no fingerprint."""
    if values.ndim != 2 or bands < 1 or rows < 1 or bands * rows > values.shape[1]:
        raise ValueError(f"{bands} bands of {rows} rows do not fit fingerprints of shape {values.shape}")
    keys = np.empty((len(values), bands), np.uint64)
    _band_keys(frozen(values, np.uint32), rows, U64(_KEY_FACTOR), keys)
    return keys


@functools.cache
def probe_tables(positions: int) -> Probes:
    place = np.arange(positions, dtype=np.uint32)
    # (i + 1) * positions + j is another number for every pair, and the mix is a bijection: no ties.
    hashes = _mixed_array((place[:, None] + U32(1)) * U32(positions) + place[None, :])
    order = np.argsort(hashes, axis=1, kind="stable").astype(np.uint16)
    rank = np.argsort(order, axis=1, kind="stable").astype(np.uint16)
    return Probes(frozen(order, np.uint16), frozen(rank, np.uint16))


def _mixed_array(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """`_mixed`, of an array."""
    words = (words ^ (words >> U32(16))) * U32(0x85EBCA6B)
    words = (words ^ (words >> U32(13))) * U32(0xC2B2AE35)
    return words ^ (words >> U32(16))


@raw_kernel(lambda: sketch(np.ones(1, U32), np.arange(2), 5, 4))
def _sketch(
    units: NDArray[np.uint32],
    offsets: Offsets,
    n: int,
    base: np.uint32,
    base_to_n: np.uint32,
    order: NDArray[np.uint16],
    rank: NDArray[np.uint16],
    own: NDArray[np.uint16],
    values: Values,
    shingles: NDArray[np.int64],
) -> None:
    positions = U64(values.shape[1])
    for row in range(offsets.size - 1):
        at, end = offsets[row], offsets[row + 1]
        for position in range(values.shape[1]):
            values[row, position] = U32(EMPTY)
        shingle = U32(0)
        marked = U32(0)  # how many units of the shingle have their lowest bit set
        head = min(at + n, end)
        for index in range(at, head):
            shingle = U32(shingle * base + units[index])
            marked += units[index] & U32(1)
        if at == end:
            shingles[row] = 0
            continue
        shingles[row] = max(end - at - n + 1, 1)
        if end - at < n:
            shingle = U32(shingle + U32(end - at) * base_to_n)  # as if its length came first: it is no n-gram
        _keep_least(values, row, positions, shingle, marked != 0)
        for index in range(head, end):
            shingle = U32(shingle * base + units[index] - units[index - n] * base_to_n)
            marked += (units[index] & U32(1)) - (units[index - n] & U32(1))
            _keep_least(values, row, positions, shingle, marked != 0)
        _fill_empty(values, row, order, rank, own)


@raw_step
def _keep_least(values: Values, row: Int, positions: np.uint64, shingle: np.uint32, is_marked: bool) -> None:
    value = min(U32((_mixed(shingle) & U32(EMPTY - 1)) | U32(is_marked)), U32(EMPTY - 2))
    position = (U64(value) * positions) >> U64(32)
    values[row, position] = min(values[row, position], value)


@raw_step
def _fill_empty(
    values: Values, row: Int, order: NDArray[np.uint16], rank: NDArray[np.uint16], own: NDArray[np.uint16]
) -> None:
    """Both ways find the occupied bin of least rank:
    few occupied ones are compared, many soon met on the way."""
    positions = values.shape[1]
    occupied = 0
    for position in range(positions):
        own[occupied] = position
        occupied += values[row, position] != U32(EMPTY)
    if occupied == positions:
        return
    for position in range(positions):
        if values[row, position] != U32(EMPTY):
            continue
        if occupied * occupied <= positions:
            lender = own[0]
            for index in range(1, occupied):
                if rank[position, own[index]] < rank[position, lender]:
                    lender = own[index]
        else:
            step = 0
            while not _is_own(values, row, order[position, step]):
                step += 1
            lender = order[position, step]
        values[row, position] = values[row, lender]


@raw_step
def _is_own(values: Values, row: Int, position: np.uint16) -> bool:
    """The value there fell into this bin, and was not lent to it."""
    value = values[row, position]
    return bool(value != U32(EMPTY) and (U64(value) * U64(values.shape[1])) >> U64(32) == U64(position))


@raw_kernel(lambda: band_keys(np.ones((1, 4), U32), 2, 2))
def _band_keys(values: Values, rows: int, factor: np.uint64, keys: Keys) -> None:
    for row in range(values.shape[0]):
        for band in range(keys.shape[1]):
            if values[row, 0] == U32(EMPTY):
                keys[row, band] = U64(0)
                continue
            key = U64(band + 1) * factor
            for step in range(rows):
                key = (key ^ U64(values[row, band * rows + step])) * factor
                key ^= key >> U64(32)
            keys[row, band] = max(mix64(key), U64(1))


@raw_step
def _mixed(word: np.uint32) -> np.uint32:
    """MurmurHash3's last step for 32 bits (public domain, Austin Appleby)."""
    word = U32((word ^ (word >> U32(16))) * U32(0x85EBCA6B))
    word = U32((word ^ (word >> U32(13))) * U32(0xC2B2AE35))
    return U32(word ^ (word >> U32(16)))


# --- exact Jaccard similarity ---

# Nothing up the sleeve: sha256(b"tokmill wide shingle base"), made odd.
_WIDE_BASE = 0xD8F20AA5E0DC853B

_LEFT, _BOTH, _RIGHT = np.uint8(1), np.uint8(2), np.uint8(3)


class Overlap(NamedTuple):
    shared: NDArray[np.int64]
    either: NDArray[np.int64]


def overlap(
    units: NDArray[np.uint32],
    offsets: Offsets,
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    n: int,
) -> Overlap:
    """`left` and `right` are row numbers, a pair each."""
    rows = offsets.size - 1
    if left.shape != right.shape or n < 1:
        raise ValueError(f"{left.size} and {right.size} rows, n = {n}")
    if left.size and not (min(left.min(), right.min()) >= 0 and max(left.max(), right.max()) < rows):
        raise ValueError(f"a pair has a row beyond the {rows} there are")
    found = Overlap(np.zeros(left.size, np.int64), np.zeros(left.size, np.int64))
    lengths = np.diff(offsets)
    slots = slots_for(int((lengths[left] + lengths[right]).max(initial=0)))
    _overlap(
        frozen(units, np.uint32),
        frozen(offsets, np.int64),
        frozen(left, np.int64),
        frozen(right, np.int64),
        n,
        U64(_WIDE_BASE),
        U64(pow(_WIDE_BASE, n, 1 << 64)),
        np.empty(slots, np.uint64),
        np.empty(slots, np.uint8),
        *found,
    )
    return found


@raw_kernel(lambda: overlap(np.ones(1, U32), np.arange(2), ROWS, ROWS, 5))
def _overlap(
    units: NDArray[np.uint32],
    offsets: Offsets,
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    n: int,
    base: np.uint64,
    base_to_n: np.uint64,
    hashes: NDArray[np.uint64],
    marks: NDArray[np.uint8],
    shared: NDArray[np.int64],
    either: NDArray[np.int64],
) -> None:
    for pair in range(left.size):
        total = (
            offsets[left[pair] + 1] - offsets[left[pair]] + offsets[right[pair] + 1] - offsets[right[pair]]
        )
        slots = slots_for(total)
        marks[:slots] = 0
        for side in range(2):
            row = left[pair] if side == 0 else right[pair]
            at, end = offsets[row], offsets[row + 1]
            shingle = U64(0)
            for index in range(at, end):
                shingle = shingle * base + U64(units[index])
                if index - at >= n:
                    shingle -= U64(units[index - n]) * base_to_n
                elif index + 1 == end and index + 1 - at < n:
                    shingle += U64(end - at) * base_to_n  # as if its length came first: it is no n-gram
                elif index + 1 - at < n:
                    continue
                hashed = mix64(shingle)
                slot: Int = np.int64(hashed & U64(slots - 1))
                while marks[slot] != 0 and hashes[slot] != hashed:
                    slot = (slot + 1) & (slots - 1)
                if marks[slot] == 0:
                    hashes[slot] = hashed
                    marks[slot] = _LEFT if side == 0 else _RIGHT
                    either[pair] += 1
                elif side == 1 and marks[slot] == _LEFT:
                    marks[slot] = _BOTH
                    shared[pair] += 1

"""How much of a document its own repeated phrases make up, from the hashes of its words.

    words      the cat sat on the cat sat        every n-gram gets a number: equal grams, equal number
    number 1    0   1   2  3   0   1   2
    number 2     5   6   7   8   5   6           2-gram i = (number of word i, number of word i + 1)
    number 3       9   .   .   .   9             3-gram i = (number of 2-gram i, number of 2-gram i + 1)

A gram can only repeat where both shorter grams it is made of repeat, so each round looks only at what the round
before found twice: of some 200 words that English text has per kilobyte, 14 are left for the 5-grams. The numbers
are exact; only words are known by their 64-bit hash.

    top n      characters of the most frequent n-gram, with a space between words, times its count; the earliest
               of equally frequent ones; n = 2, 3, 4
    dup n      from left to right, an n-gram that an earlier one equals counts all its characters, without spaces,
               and the search goes on after it; n = 5 … 10
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.columns import Int, Offsets, frozen
from tokmill.kernels.raw import raw_kernel, raw_step

U64 = np.uint64

TOP_SIZES = (2, 3, 4)
DUP_SIZES = (5, 6, 7, 8, 9, 10)
_FIRST_DUP, _LAST = 5, 10
EMPTY = np.uint32(0xFFFFFFFF)


class Repetition(NamedTuple):
    """Characters, per row and gram size."""

    top: NDArray[np.int64]  # [rows, 3]
    dup: NDArray[np.int64]  # [rows, 6]


def measure_repetition(offsets: Offsets, hashes: NDArray[np.uint64], chars: NDArray[np.int32]) -> Repetition:
    """`offsets` cut the words of all rows into rows."""
    rows = offsets.size - 1
    longest = int(np.diff(offsets).max(initial=0))
    found = Repetition(np.zeros((rows, len(TOP_SIZES)), np.int64), np.zeros((rows, len(DUP_SIZES)), np.int64))
    _measure_repetition(
        frozen(offsets, np.int64),
        frozen(hashes, np.uint64),
        frozen(chars, np.int32),
        np.empty(1 << max(4, (2 * longest).bit_length()), np.uint32),
        np.empty(longest + 1, np.uint64),
        np.empty(longest + 1, np.uint32),
        np.empty(longest + 1, np.int32),
        np.empty(longest + 1, np.uint32),
        np.empty(longest + 1, np.int64),
        found.top,
        found.dup,
    )
    return found


@raw_kernel
def _measure_repetition(
    offsets: Offsets,
    hashes: NDArray[np.uint64],
    lengths: NDArray[np.int32],
    table: NDArray[np.uint32],
    keys: NDArray[np.uint64],
    numbers: NDArray[np.uint32],
    counts: NDArray[np.int32],
    places: NDArray[np.uint32],
    chars_before: NDArray[np.int64],
    top: NDArray[np.int64],
    dup: NDArray[np.int64],
) -> None:
    # The table has numbers, and `keys` what they stand for: 4 bytes a slot keep it in the first-level cache. What
    # is as likely as not is written without a branch; an index without a sign needs no test for being negative.
    for row in range(offsets.size - 1):
        first = offsets[row]
        words = offsets[row + 1] - first
        if words < 2:
            continue
        mask = _cleared(table, words)
        distinct = U64(0)
        chars_before[0] = 0
        for place in range(words):
            chars_before[place + 1] = chars_before[place] + lengths[first + place]
            distinct = _number(
                hashes[first + place], U64(place), mask, distinct, table, keys, numbers, counts
            )
        live: Int = 0
        for place in range(words - 1):
            places[live] = place
            live += (counts[numbers[place]] > 1) & (counts[numbers[place + 1]] > 1)

        for size in range(2, min(words, _LAST) + 1):
            mask = _cleared(table, live)
            distinct = U64(0)
            # From the left, and a gram reads only itself and its right neighbour: numbering in place is safe.
            for k in range(live):
                left = U64(places[k])
                key = (U64(numbers[left]) << U64(32)) | U64(numbers[left + U64(1)])
                distinct = _number(key, left, mask, distinct, table, keys, numbers, counts)

            next_live: Int = 0
            best: Int = 0  # the earliest gram stands for all that occur once
            best_count: Int = 1
            met_chars: Int = 0
            after: Int = 0
            before: Int = -2  # the place before this one, if its gram repeats
            for k in range(live):
                i = np.int64(places[k])
                count = counts[numbers[i]]  # below 0: it was met before
                is_repeated = count != 1
                if size < _FIRST_DUP:
                    if count > best_count:
                        best, best_count = i, count
                elif is_repeated and i >= after:
                    if count < 0:
                        met_chars += chars_before[i + size] - chars_before[i]
                        after = i + size
                    else:
                        counts[numbers[i]] = -count
                places[next_live] = U64(before)
                next_live += is_repeated & (before == i - 1)
                before = i if is_repeated else -2
            live = next_live
            if size < _FIRST_DUP:
                gram_chars = chars_before[best + size] - chars_before[best] + size - 1
                top[row, size - 2] = gram_chars * best_count
            else:
                dup[row, size - _FIRST_DUP] = met_chars
                if live == 0:
                    break


@raw_step
def _number(
    key: np.uint64,
    place: np.uint64,
    mask: np.uint64,
    distinct: np.uint64,
    table: NDArray[np.uint32],
    keys: NDArray[np.uint64],
    numbers: NDArray[np.uint32],
    counts: NDArray[np.int32],
) -> np.uint64:
    """Gives the gram at `place` its number and counts it; how many distinct ones there are then."""
    slot = ((key * U64(0x9E3779B97F4A7C15)) >> U64(32)) & mask
    while table[slot] != EMPTY and keys[table[slot]] != key:
        slot = (slot + U64(1)) & mask
    is_new = table[slot] == EMPTY
    number = distinct if is_new else U64(table[slot])
    table[slot] = number
    keys[number] = key
    counts[distinct] = 0
    counts[number] += 1
    numbers[place] = number
    return distinct + U64(is_new)


@raw_step
def _cleared(table: NDArray[np.uint32], entries: Int) -> np.uint64:
    """Empties as much of the table as so many entries fill by half; its mask."""
    slots: Int = 16
    while slots < 2 * entries:
        slots *= 2
    for slot in range(slots):
        table[slot] = EMPTY
    return U64(slots - 1)

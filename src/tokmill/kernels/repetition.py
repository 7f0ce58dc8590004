"""How much of a document its own repeated phrases make up, from the hashes of its words.

    words      the cat sat on the cat sat        the number of an n-gram is the place where it stands first
    number 1    0   1   2  3   0   1   2
    number 2     0   1   .   .   0   1           2-gram i = (number of word i, number of word i + 1)
    number 3       0   .   .   .   0             3-gram i = (number of 2-gram i, number of 2-gram i + 1)

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
_NOWHERE = U64(0xFFFFFFF0)  # no place, nor the one before a place


class Repetition(NamedTuple):
    """Characters, per row and gram size."""

    top: NDArray[np.int64]  # [rows, 3]
    dup: NDArray[np.int64]  # [rows, 6]


def measure_repetition(offsets: Offsets, hashes: NDArray[np.uint64], chars: NDArray[np.int32]) -> Repetition:
    """`offsets` cut the words of all rows into rows."""
    rows = offsets.size - 1
    longest = int(np.diff(offsets).max(initial=0))
    found = Repetition(np.zeros((rows, len(TOP_SIZES)), np.int64), np.zeros((rows, len(DUP_SIZES)), np.int64))
    table = np.empty(1 << max(4, (2 * longest).bit_length()), np.uint32)
    numbers, longer, places = (np.empty(longest + 1, np.uint32) for _ in range(3))
    _measure_repetition(
        frozen(offsets, np.int64),
        frozen(hashes, np.uint64),
        frozen(chars, np.int32),
        table,
        numbers,
        longer,
        np.empty(longest + 1, np.int32),
        places,
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
    numbers: NDArray[np.uint32],
    longer: NDArray[np.uint32],
    counts: NDArray[np.int32],
    places: NDArray[np.uint32],
    chars_before: NDArray[np.int64],
    top: NDArray[np.int64],
    dup: NDArray[np.int64],
) -> None:
    # The table has numbers, and what they stand for is read where it stands first: 4 bytes a slot keep it in the
    # first-level cache. A free slot has the number of the first gram of all, which so is found without being put in.
    # Whether a gram is new is as likely as not: nothing branches on it but the walk to the next slot, and what is
    # not new is stored again (35 to 24 ns a word). An index without a sign needs no test for being negative.
    for row in range(offsets.size - 1):
        first = U64(offsets[row])
        words = offsets[row + 1] - offsets[row]
        if words < 2:
            continue
        mask = _cleared(table, words, U64(0))
        total: Int = 0
        chars_before[0] = 0
        for index in range(words):
            place = U64(index)
            total += lengths[first + place]
            chars_before[place + U64(1)] = total
            key = hashes[first + place]
            slot = key & mask
            number = U64(table[slot])
            known = hashes[first + number]
            while (known != key) & (number != U64(0)):
                slot = (slot + U64(1)) & mask
                number = U64(table[slot])
                known = hashes[first + number]
            number = number if known == key else place
            table[slot] = number
            numbers[place] = number
            counts[number] = number != place  # only whether it comes again
        live: Int = 0
        for index in range(words - 1):
            place = U64(index)
            places[U64(live)] = place
            live += counts[U64(numbers[place])] & counts[U64(numbers[place + U64(1)])]

        for size in range(2, min(words, _LAST) + 1):
            origin = U64(places[0]) if live else U64(0)
            mask = _cleared(table, live, origin)
            counts[origin] = 0
            for index in range(live):
                place = U64(places[U64(index)])
                key = _pair(numbers, place)
                slot = ((key * U64(0x9E3779B97F4A7C15)) >> U64(32)) & mask
                number = U64(table[slot])
                known = _pair(numbers, number)
                while (known != key) & (number != origin):
                    slot = (slot + U64(1)) & mask
                    number = U64(table[slot])
                    known = _pair(numbers, number)
                is_known = known == key
                # Loaded in any case, or LLVM makes a branch of it. A dup asks only whether a gram comes again.
                count = counts[number] if size < _FIRST_DUP else np.int32(number != place)
                number = number if is_known else place
                table[slot] = number
                longer[place] = number
                counts[number] = count * np.int32(is_known) + np.int32(1)
            numbers, longer = longer, numbers

            next_live: Int = 0
            before = _NOWHERE  # the place before this one, if its gram repeats
            reach = U64(size)
            if size < _FIRST_DUP:
                best = U64(0)  # the earliest gram stands for all that occur once
                best_count = np.int32(1)
                for index in range(live):
                    place = U64(places[U64(index)])
                    count = counts[U64(numbers[place])]
                    if count > best_count:
                        best, best_count = place, count
                    is_repeated = count != 1
                    places[U64(next_live)] = before
                    next_live += is_repeated & (before + U64(1) == place)
                    before = place if is_repeated else _NOWHERE
                gram_chars = chars_before[best + reach] - chars_before[best] + size - 1
                top[row, size - 2] = gram_chars * best_count
            else:
                met_chars: Int = 0
                after = U64(0)
                for index in range(live):
                    place = U64(places[U64(index)])
                    number = U64(numbers[place])
                    count = counts[number]  # below 0: it was met before
                    is_repeated = count != 1
                    is_open = place >= after
                    is_met = is_open & (count < 0)
                    if is_open:
                        counts[number] = -abs(count) if is_repeated else count
                    met_chars += (chars_before[place + reach] - chars_before[place]) if is_met else 0
                    after = place + reach if is_met else after
                    places[U64(next_live)] = before
                    next_live += is_repeated & (before + U64(1) == place)
                    before = place if is_repeated else _NOWHERE
                dup[row, size - _FIRST_DUP] = met_chars
                if next_live == 0:
                    break
            live = next_live


@raw_step
def _pair(numbers: NDArray[np.uint32], place: np.uint64) -> np.uint64:
    """The numbers of a gram and of the next one: together, those of the longer gram. One load."""
    return U64(numbers[place]) | (U64(numbers[place + U64(1)]) << U64(32))


@raw_step
def _cleared(table: NDArray[np.uint32], entries: Int, free: np.uint64) -> np.uint64:
    """Frees as much of the table as so many entries fill by half; its mask. Filled by all it took 8 % longer."""
    slots: Int = 16
    while slots < 2 * entries:
        slots *= 2
    for slot in range(slots):
        table[U64(slot)] = free
    return U64(slots - 1)

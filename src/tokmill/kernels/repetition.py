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
        np.zeros((1 << max(4, (2 * longest).bit_length()), 2), np.uint64),
        np.empty(longest + 1, np.int32),
        np.empty(longest + 1, np.int32),
        np.empty(longest + 1, np.int32),
        np.empty(longest + 1, np.uint8),
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
    table: NDArray[np.uint64],
    numbers: NDArray[np.int32],
    counts: NDArray[np.int32],
    places: NDArray[np.int32],
    repeated: NDArray[np.uint8],
    chars_before: NDArray[np.int64],
    top: NDArray[np.int64],
    dup: NDArray[np.int64],
) -> None:
    # A slot of the table is a key and (round << 32 | number); one from an earlier round is empty. So nothing is
    # ever cleared. What a round decides is as likely as not, so it is written without branches: 11.1 to 6.9 ns/B.
    tick = U64(0)
    for row in range(offsets.size - 1):
        first = offsets[row]
        words = offsets[row + 1] - first
        if words < 2:
            continue
        chars_before[0] = 0
        for i in range(words):
            chars_before[i + 1] = chars_before[i] + lengths[first + i]
            places[i] = i
        repeated[words] = 0
        live: Int = words
        for size in range(1, min(words, _LAST) + 1):
            tick += U64(1)
            mask = _mask_for(live)
            distinct: Int = 0
            # From the left, and a gram reads only itself and its right neighbour: numbering in place is safe.
            for k in range(live):
                i = places[k]
                if size == 1:
                    key = hashes[first + i]
                else:
                    key = (U64(numbers[i]) << U64(32)) | U64(numbers[i + 1])
                slot = np.int64((key * U64(0x9E3779B97F4A7C15)) >> U64(32)) & mask
                while (table[slot, 1] >> U64(32)) == tick and table[slot, 0] != key:
                    slot = (slot + 1) & mask
                is_new = (table[slot, 1] >> U64(32)) != tick
                number = distinct if is_new else np.int64(table[slot, 1] & U64(0xFFFFFFFF))
                table[slot, 0] = key
                table[slot, 1] = (tick << U64(32)) | U64(number)
                counts[distinct] = 0 if is_new else counts[distinct]
                distinct += is_new
                counts[number] += 1
                numbers[i] = number

            kept: Int = 0
            best: Int = 0  # the earliest gram stands for all that occur once
            best_count: Int = 1
            for k in range(live):
                i = places[k]
                count = counts[numbers[i]]
                repeated[i] = size if count > 1 else 0
                places[kept] = i
                kept += count > 1
                if count > best_count:
                    best, best_count = i, count
            if 1 < size < _FIRST_DUP:
                gram_chars = chars_before[best + size] - chars_before[best] + size - 1
                top[row, size - 2] = gram_chars * best_count
            elif size >= _FIRST_DUP:
                dup[row, size - _FIRST_DUP] = _chars_met_before(
                    size, kept, places, numbers, counts, chars_before
                )

            live = 0
            for k in range(kept):
                i = places[k]
                places[live] = i
                live += (repeated[i + 1] == size) & (i + size < words)
            if live == 0 and size >= _FIRST_DUP:
                break


@raw_step
def _chars_met_before(
    size: Int,
    length: Int,
    places: NDArray[np.int32],
    numbers: NDArray[np.int32],
    counts: NDArray[np.int32],
    chars_before: NDArray[np.int64],
) -> Int:
    chars: Int = 0
    after: Int = 0
    for k in range(length):
        i = places[k]
        if i < after:
            continue
        if counts[numbers[i]] < 0:
            chars += chars_before[i + size] - chars_before[i]
            after = i + size
        else:
            counts[numbers[i]] = -counts[numbers[i]]  # met
    return chars


@raw_step
def _mask_for(entries: Int) -> Int:
    """Of a table of at least twice as many slots."""
    slots: Int = 16
    while slots < 2 * entries:
        slots *= 2
    return slots - 1

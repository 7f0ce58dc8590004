"""Words counted by kind, their lengths, and the sentences that they make.

word       Stop  !  "  he  said  .  │  Then        facts of each, from words.py
sentence   1────────── 2───────────── 3────        a terminal word ends one, with the punctuation after it;
                                                   so does the end of a line

So neither a word nor a sentence knows of another line, and a text that lost some of its lines has the words
and the sentences of those that stayed: they are counted without splitting it again.

How much of a document its own repeated phrases make up:

    words      the cat sat on the cat sat        the number of an n-gram is the place where it stands first
    number 1    0   1   2  3   0   1   2
    number 2     0   1   .   .   0   1           2-gram i = (number of word i, number of word i + 1)
    number 3       0   .   .   .   0             3-gram i = (number of 2-gram i, number of 2-gram i + 1)

A gram can only repeat where both shorter grams it is made of repeat, so each round looks only at what the
round before found twice: of some 200 words that English text has per kilobyte, 14 are left for the 5-grams.
The numbers are exact; only words are known by their 64-bit hash.

top n      characters of the most frequent n-gram, with a space between words, times its count; the earliest
           of equally frequent ones; n = 2, 3, 4
dup n      from left to right, an n-gram that an earlier one equals counts all its characters, without spaces,
           and the search goes on after it; n = 5 … 10
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import HASHES, Int, Offsets, frozen, raw_kernel, raw_step, slots_for
from tokmill.kernels.words import ENDS_SENTENCE, HAS_LETTER, IS_PUNCTUATION, NOT_SYMBOLS, STARTS_LINE

U64 = np.uint64
_BINS = 256


class WordMeasures(NamedTuple):
    words: NDArray[np.int64]
    non_symbol_words: NDArray[np.int64]
    non_symbol_chars: NDArray[np.int64]
    double_median: NDArray[np.int64]  # twice the median length of non-symbol words, so that it is whole
    longest: NDArray[np.int64]
    alpha_words: NDArray[np.int64]
    stop_words: NDArray[np.int64]  # how many of the list occur
    sentences: NDArray[np.int64]


class WholeWords(NamedTuple):
    words: NDArray[np.int64]
    sentences: NDArray[np.int64]


def measure_words(
    offsets: Offsets,
    hashes: NDArray[np.uint64],
    chars: NDArray[np.int32],
    facts: NDArray[np.uint8],
    stop_hashes: NDArray[np.uint64],
) -> WordMeasures:
    """`offsets` cut the words of all rows into rows; a stop list has at most 64 words."""
    found = np.zeros((len(WordMeasures._fields), offsets.size - 1), np.int64)
    _measure_words(
        frozen(offsets, np.int64),
        frozen(hashes, np.uint64),
        frozen(chars, np.int32),
        frozen(facts, np.uint8),
        frozen(stop_hashes, np.uint64),
        np.empty(_BINS, np.int64),
        found,
    )
    return WordMeasures(*found)


@raw_kernel(
    lambda: measure_words(np.zeros(2, np.int64), HASHES, np.ones(1, np.int32), np.zeros(1, np.uint8), HASHES)
)
def _measure_words(
    offsets: Offsets,
    hashes: NDArray[np.uint64],
    chars: NDArray[np.int32],
    facts: NDArray[np.uint8],
    stop_hashes: NDArray[np.uint64],
    bins: NDArray[np.int64],
    found: NDArray[np.int64],
) -> None:
    sieve = U64(0)  # by the low bits of their hashes: seven words of eight are no stop words at one look
    for stop in range(stop_hashes.size):
        sieve |= U64(1) << (stop_hashes[stop] & U64(63))
    for row in range(offsets.size - 1):
        first, last = offsets[row], offsets[row + 1]
        bins[:] = 0
        plain = plain_chars = longest = alpha = sentences = 0
        stops = U64(0)
        is_over = False
        for place in range(first, last):
            word = U64(place)  # an index without a sign needs no test for being negative
            fact, length = facts[word], chars[word]
            if fact & NOT_SYMBOLS:
                plain += 1
                plain_chars += length
                bins[U64(min(length, _BINS - 1))] += 1
                if (sieve >> (hashes[word] & U64(63))) & U64(1):
                    for stop in range(stop_hashes.size):
                        if hashes[word] == stop_hashes[stop]:
                            stops |= U64(1) << U64(stop)
            longest = max(longest, length)
            alpha += fact & HAS_LETTER
            is_terminal = (fact & ENDS_SENTENCE) != 0
            if fact & STARTS_LINE or (is_over and not is_terminal and not fact & IS_PUNCTUATION):
                sentences += 1
                is_over = False
            is_over |= is_terminal
        stop_count: Int = 0
        while stops:
            stop_count += np.int64(stops & U64(1))
            stops >>= U64(1)

        median: Int = 0
        for rank in ((plain - 1) // 2, plain // 2):  # equal if their number is odd
            if plain == 0:
                break
            length = 0
            below: Int = 0
            while length < _BINS - 1 and below + bins[length] <= rank:
                below += bins[length]
                length += 1
            if length == _BINS - 1:
                # So long that they share a bin: halve the range of lengths until one is left.
                low: Int = _BINS - 1
                high: Int = longest
                while low < high:
                    middle = (low + high) // 2
                    at_most: Int = 0
                    for place in range(first, last):
                        word = U64(place)
                        at_most += (facts[word] & NOT_SYMBOLS) != 0 and chars[word] <= middle
                    if at_most > rank:
                        high = middle
                    else:
                        low = middle + 1
                length = low
            median += length
        found[0, row], found[1, row], found[2, row], found[3, row] = last - first, plain, plain_chars, median
        found[4, row], found[5, row], found[6, row], found[7, row] = longest, alpha, stop_count, sentences


def count_whole(
    offsets: Offsets, facts: NDArray[np.uint8], line_offsets: Offsets, is_whole: NDArray[np.uint8]
) -> WholeWords:
    """Of the lines marked in `is_whole`; the filled lines of row i are line_offsets[i]:line_offsets[i +
    1]."""
    found = np.zeros((len(WholeWords._fields), offsets.size - 1), np.int64)
    _count_whole(
        frozen(offsets, np.int64),
        frozen(facts, np.uint8),
        frozen(line_offsets, np.int64),
        frozen(is_whole, np.uint8),
        found,
    )
    return WholeWords(*found)


@raw_kernel(
    lambda: count_whole(
        np.zeros(2, np.int64), np.zeros(1, np.uint8), np.zeros(2, np.int64), np.zeros(1, np.uint8)
    )
)
def _count_whole(
    offsets: Offsets,
    facts: NDArray[np.uint8],
    line_offsets: Offsets,
    is_whole: NDArray[np.uint8],
    found: NDArray[np.int64],
) -> None:
    for row in range(offsets.size - 1):
        line: Int = line_offsets[row]
        words: Int = 0
        sentences: Int = 0
        whole: Int = 0
        is_over = False
        for place in range(offsets[row], offsets[row + 1]):
            fact = facts[U64(place)]
            is_terminal = (fact & ENDS_SENTENCE) != 0
            if fact & STARTS_LINE:  # the first word of every row does
                whole = np.int64(is_whole[U64(line)])
                line += 1
                sentences += whole
                is_over = False
            elif is_over and not is_terminal and not fact & IS_PUNCTUATION:
                sentences += whole
                is_over = False
            is_over |= is_terminal
            words += whole
        found[0, row], found[1, row] = words, sentences


# --- repetition ---

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


@raw_kernel(lambda: measure_repetition(np.zeros(2, np.int64), HASHES, np.ones(1, np.int32)))
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
    # The table has numbers, and what they stand for is read where it stands first: 4 bytes a slot keep it in
    # the first-level cache. A free slot has the number of the first gram of all, which so is found without
    # being put in. Whether a gram is new is as likely as not: nothing branches on it but the walk to the next
    # slot, and what is not new is stored again (35 to 24 ns a word). An index without a sign needs no test
    # for being negative.
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
                # Loaded in any case, or LLVM makes a branch of it.
                # A dup asks only whether a gram comes again.
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
    """Frees as much of the table as so many entries fill by half; its mask.
    Filled by all it took 8 % longer."""
    slots = slots_for(entries)
    for slot in range(slots):
        table[U64(slot)] = free
    return U64(slots - 1)

"""Words counted by kind, their lengths, and the sentences that they make.

word       Stop  !  "  he  said  .  │  Then        facts of each, from kernels.words
sentence   1────────── 2───────────── 3────        a terminal word ends one, with the punctuation after it;
                                                   so does the end of a line

So neither a word nor a sentence knows of another line, and a text that lost some of its lines has the words and the
sentences of those that stayed: they are counted without splitting it again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.columns import Int, Offsets, frozen
from tokmill.kernels.raw import raw_kernel

# As in kernels.words, whose facts these are.
HAS_LETTER, NOT_SYMBOLS, ENDS_SENTENCE, IS_PUNCTUATION, STARTS_LINE = 1, 2, 4, 8, 16

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


@raw_kernel
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
    """Of the lines marked in `is_whole`; the filled lines of row i are line_offsets[i]:line_offsets[i + 1]."""
    found = np.zeros((len(WholeWords._fields), offsets.size - 1), np.int64)
    _count_whole(
        frozen(offsets, np.int64),
        frozen(facts, np.uint8),
        frozen(line_offsets, np.int64),
        frozen(is_whole, np.uint8),
        found,
    )
    return WholeWords(*found)


@raw_kernel
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

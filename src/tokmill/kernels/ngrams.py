"""N-grams of words and of characters as numbers of buckets, straight from the bytes of a text.

    text       I don't know, 東京!
    tokens     i · don · ' · t · know · , · 東 · 京 · !
    words      i · i don · don · don ' · …               1 to `words` tokens that follow each other
    chars      <kno know now> …                          min_chars to max_chars characters of <word>
    bucket     the upper `bits` bits of a hash of 64

A token is a run of letters and digits, A to Z as a to z, or any other visible character by itself; so is a
character of a script without spaces. Which one it is, the first byte says:

    00-20 7F              between tokens
    0-9 A-Z a-z _         in a word
    C3-DF E1 EA-EE        in a word (letters of two and three bytes), and E0 but for Thai and Lao
    all others            alone: punctuation, C2 and E2 symbols, E3-E9 kana and han, EF full width, F0- emoji

A letter beyond ASCII keeps its case: to fold it, a text needs another copy. Of a word of more than 64 bytes
there are no n-grams of characters: it is no word.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import (
    TEXT,
    Bytes,
    Int,
    Offsets,
    frozen,
    frozen_text,
    mix64,
    raw_kernel,
    raw_step,
)

U64 = np.uint64
Buckets = NDArray[np.uint32]

MAX_WORDS, MAX_CHARS, MAX_BITS = 3, 6, 24
_WORD_BYTES = 64  # of a word that has n-grams of characters
# What one token may add to a list: its n-grams of words, and of the characters of < and > around it.
MOST_OF_A_TOKEN = MAX_WORDS + (_WORD_BYTES + 2) * MAX_CHARS

_BETWEEN, _INSIDE, _ALONE, _THAI = 0, 1, 2, 3  # classes of a byte, in the upper half of a word of its table
_START = U64(0xCBF29CE484222325)  # FNV-1a in 64 bits, stirred when the token ends
_FACTOR = U64(0x100000001B3)
_JOINED = (U64(0), U64(0), U64(0x9E3779B97F4A7C15), U64(0xC2B2AE3D27D4EB4F))  # by the number of tokens
_CHARS = U64(0x165667B19E3779F9)
_LESS, _MORE = U64(0x3C), U64(0x3E)

# What an n-gram is, for those who show it: so many words; or characters, from the first or to the last.
CHARS, FROM_FIRST, TO_LAST = 8, 1, 2


class Shape(NamedTuple):
    """Which n-grams there are."""

    words: int = 2
    min_chars: int = 0  # 0: none
    max_chars: int = 0
    bits: int = 20

    def checked(self) -> Shape:
        chars = 1 <= self.min_chars <= self.max_chars <= MAX_CHARS or self.min_chars == self.max_chars == 0
        if not (chars and 0 <= self.words <= MAX_WORDS and 4 <= self.bits <= MAX_BITS):
            raise ValueError(f"no n-grams are like this: {self}")
        if not self.words and not self.max_chars:
            raise ValueError("n-grams of neither words nor characters")
        return self


class Ngrams(NamedTuple):
    """Row i has buckets[ends[i]:ends[i + 1]], in the order of the text."""

    buckets: Buckets
    ends: Offsets


class Located(NamedTuple):
    """The n-grams of one text, and where each of them stands."""

    buckets: Buckets
    kinds: NDArray[np.int8]  # tokens of an n-gram of words; or CHARS, with FROM_FIRST and TO_LAST
    starts: NDArray[np.int64]  # bytes of the text
    stops: NDArray[np.int64]


def hash_ngrams(data: Bytes, offsets: Offsets, shape: Shape) -> Ngrams:
    data, offsets, rows = frozen_text(data, offsets)
    shape.checked()
    ends = np.zeros(rows + 1, np.int64)
    _list_ngrams(data, offsets, byte_table(), *shape, np.empty(0, np.uint32), *_NOWHERE, ends)
    buckets = np.empty(int(ends[-1]), np.uint32)
    if buckets.size:
        _list_ngrams(data, offsets, byte_table(), *shape, buckets, *_NOWHERE, ends)
    return Ngrams(buckets, ends)


def locate_ngrams(text: bytes, shape: Shape) -> Located:
    data, offsets, _ = frozen_text(np.frombuffer(text or b"\0", np.uint8), np.array([0, len(text)]))
    buckets = hash_ngrams(data, offsets, shape).buckets
    kinds = np.zeros(buckets.size, np.int8)
    starts, stops = np.zeros((2, buckets.size), np.int64)
    ends = np.zeros(2, np.int64)
    if buckets.size:
        _list_ngrams(data, offsets, byte_table(), *shape, buckets, kinds, starts, stops, ends)
    return Located(buckets, kinds, starts, stops)


_NOWHERE = (np.empty(0, np.int8), np.empty(0, np.int64), np.empty(0, np.int64))


@functools.cache
def byte_table() -> NDArray[np.uint16]:
    """By byte: in the upper half its class, in the lower what is hashed for it."""
    kinds = np.full(256, _ALONE, np.uint16)
    kinds[[*range(0x21), 0x7F]] = _BETWEEN
    inside = [*b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_"]
    kinds[[*inside, *range(0x80, 0xC0), *range(0xC3, 0xE0), 0xE1, *range(0xEA, 0xEF)]] = _INSIDE
    kinds[0xE0] = _THAI
    folded = np.arange(256, dtype=np.uint16)
    folded[ord("A") : ord("Z") + 1] += 32
    return frozen(kinds << 8 | folded, np.uint16)


@raw_kernel(lambda: hash_ngrams(*TEXT, Shape()))
def _list_ngrams(
    data: Bytes,
    offsets: Offsets,
    table: NDArray[np.uint16],
    words: Int,
    min_chars: Int,
    max_chars: Int,
    bits: Int,
    buckets: Buckets,
    kinds: NDArray[np.int8],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    ends: Offsets,
) -> None:
    """Counted where `buckets` has no room, and listed where it has."""
    shift = U64(64 - bits)
    has_room = buckets.size > 0
    is_located = kinds.size > 0
    used: Int = 0
    for row in range(offsets.size - 1):
        at, end = offsets[row], offsets[row + 1]
        tokens: Int = 0
        first_start = second_start = third_start = at
        second = third = U64(0)
        while True:
            start, at, first, is_word = next_token(data, at, end, table)
            if start == at:
                break
            third_start, second_start, first_start = second_start, first_start, start
            tokens += 1
            joined = first
            for count in range(1, min(words, tokens) + 1):
                if count == 2:
                    joined = join_tokens(second, first)
                elif count == 3:
                    joined = join_three(third, second, first)
                if has_room:
                    buckets[used] = np.uint32(joined >> shift)
                    if is_located:
                        kinds[used] = count
                        starts[used] = (
                            first_start if count == 1 else second_start if count == 2 else third_start
                        )
                        stops[used] = at
                used += 1
            third, second = second, first
            if is_word and max_chars > 0 and at - start <= _WORD_BYTES:
                # From each place of <word>, which is start - 1 to at, one character after the other.
                place = start - 1
                while place <= at:
                    found = _CHARS
                    stop = place
                    for length in range(1, max_chars + 1):
                        if stop > at:
                            break
                        stop, found = _next_char(data, stop, start, at, table, found)
                        if length >= min_chars:
                            if has_room:
                                buckets[used] = np.uint32(mix64(found) >> shift)
                                if is_located:
                                    kinds[used] = (
                                        CHARS
                                        + (FROM_FIRST if place < start else 0)
                                        + (TO_LAST if stop > at else 0)
                                    )
                                    starts[used] = max(place, start)
                                    stops[used] = min(stop, at)
                            used += 1
                    place = _after_char(data, place, start, at)
        ends[row + 1] = used


# --- steps, also of the kernels that add up what n-grams weigh ---


@raw_step
def next_token(data: Bytes, at: Int, end: Int, table: NDArray[np.uint16]) -> tuple[Int, Int, np.uint64, bool]:
    """Where the next token starts and stops, its hash, and whether it is a word; nowhere: start is stop."""
    kind = np.uint16(0)
    while at < end:
        kind = table[U64(data[U64(at)])]
        if kind >= np.uint16(256):
            break
        at += 1
    start = at
    found = _START
    if at >= end:
        return start, start, found, False
    while at < end:
        kind = table[U64(data[U64(at)])]
        what = kind >> np.uint16(8)
        if what != _INSIDE and not (what == _THAI and not _is_alone(data, at, end)):
            break
        found = (found ^ U64(kind & np.uint16(0xFF))) * _FACTOR
        at += 1
    if at > start:
        return start, at, mix64(found), True
    lead = data[U64(at)]
    stop = min(at + (1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4), end)
    while at < stop:
        found = (found ^ U64(data[U64(at)])) * _FACTOR
        at += 1
    return start, at, mix64(found), False


@raw_step
def _is_alone(data: Bytes, at: Int, end: Int) -> bool:
    """Of a first byte E0: Thai and Lao."""
    return bool(at + 1 < end and data[U64(at + 1)] >= 0xB8 and data[U64(at + 1)] <= 0xBB)


@raw_step
def join_tokens(first: np.uint64, second: np.uint64) -> np.uint64:
    return mix64(first * _JOINED[2] + second)


@raw_step
def join_three(first: np.uint64, second: np.uint64, third: np.uint64) -> np.uint64:
    return mix64((first * _JOINED[2] + second) * _JOINED[3] + third)


@raw_step
def _after_char(data: Bytes, place: Int, start: Int, stop: Int) -> Int:
    """Past a character of <word>, of which `start` to `stop` is the word."""
    place += 1
    if place > start:
        while place < stop and data[U64(place)] & 0xC0 == 0x80:
            place += 1
    return place


@raw_step
def _next_char(
    data: Bytes, place: Int, start: Int, stop: Int, table: NDArray[np.uint16], found: np.uint64
) -> tuple[Int, np.uint64]:
    if place < start:
        return place + 1, (found ^ _LESS) * _FACTOR
    if place >= stop:
        return place + 1, (found ^ _MORE) * _FACTOR
    after = _after_char(data, place, start, stop)
    for at in range(place, after):
        found = (found ^ U64(table[U64(data[U64(at)])] & np.uint16(0xFF))) * _FACTOR
    return after, found


@raw_step
def chars_of_token(
    data: Bytes,
    start: Int,
    stop: Int,
    table: NDArray[np.uint16],
    min_chars: Int,
    max_chars: Int,
    shift: np.uint64,
    buckets: Buckets,
    used: Int,
) -> Int:
    """Its n-grams of characters, written after the `used` ones; how many there are then."""
    if stop - start > _WORD_BYTES:
        return used
    place = start - 1
    while place <= stop:
        found = _CHARS
        after = place
        for length in range(1, max_chars + 1):
            if after > stop:
                break
            after, found = _next_char(data, after, start, stop, table, found)
            if length >= min_chars:
                buckets[U64(used)] = np.uint32(mix64(found) >> shift)
                used += 1
        place = _after_char(data, place, start, stop)
    return used

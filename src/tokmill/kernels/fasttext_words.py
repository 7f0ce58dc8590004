"""Words as fastText cuts and hashes them: steps of every kernel that reads its models, and their word lists.

word_key    the bytes of a short word, as four whole numbers: what a memory of words compares
word_end    where any other word ends
hash_word   FNV-1a of signed bytes
word_row    its row, by open addressing in `word_slots`
spell       <word>, for its n-grams of characters
read_entries, hash_words, word_slots    the word list of a model file
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import (
    HIGH_BITS,
    LOW_SEVEN,
    TEXT,
    Bytes,
    Instruction,
    Int,
    Offsets,
    frozen,
    frozen_text,
    load_word,
    raw_kernel,
    raw_step,
    store_word,
)

U64 = np.uint64
ABOVE_BLANK = U64(0x5F5F5F5F5F5F5F5F)  # added to 33 or more, the high bit of its byte

LESS, MORE = 0x3C, 0x3E  # < and > stand around a word
SPELLED_MORE = 16  # bytes of what it is spelled into: the two, and a vector that is read at its end
HASH_START, HASH_FACTOR = np.uint32(2166136261), np.uint32(16777619)  # FNV-1a

KEY_BYTES = 32
_KEY_FACTORS = (
    U64(0x9E3779B97F4A7C15),
    U64(0xC2B2AE3D27D4EB4F),
    U64(0x165667B19E3779F9),
    U64(0x27D4EB2F165667C5),
)

Key = tuple[np.uint64, np.uint64, np.uint64, np.uint64]  # a word's bytes, zeros after it


@raw_step
def is_blank(byte: np.uint8) -> bool:
    return bool(byte == 32 or 9 <= byte <= 13 or byte == 0)


@raw_step
def is_inside(byte: np.uint8) -> bool:
    """Whether it continues a character."""
    return bool((byte & 0xC0) == 0x80)


@raw_step
def mix(state: np.uint32, byte: np.uint8) -> np.uint32:
    return np.uint32((state ^ np.uint32(np.int32(np.int8(byte)))) * HASH_FACTOR)


_word_ahead = Instruction("word_ahead")


@raw_step
def word_key(data: Bytes, at: Int, end: Int) -> tuple[Int, Key, np.uint64]:
    """Where the word ends, its bytes, and a mix of them whose high bits are its slot in a memory; `at` if it
    is long, near the end of the column or has a control inside."""
    if at + KEY_BYTES > data.size:
        nothing = U64(0)
        return at, (nothing, nothing, nothing, nothing), nothing
    length, a, b, c, d = _word_ahead(data, U64(at))
    size: Int = np.int64(length)
    if at + size < end:
        if not is_blank(data[U64(at + size)]):
            return at, (a, b, c, d), U64(0)
    elif at + size > end:  # what was read is of the next row
        size = end - at
        a, b, c, d = head_of(a, size), head_of(b, size - 8), head_of(c, size - 16), head_of(d, size - 24)
    return at + size, (a, b, c, d), mix_key(a, b, c, d)


@raw_step
def head_of(word: np.uint64, size: Int) -> np.uint64:
    """Its first bytes, and zeros after them."""
    if size >= 8:
        return word
    return word & ((U64(1) << U64(8 * max(size, 0))) - U64(1))


@raw_step
def mix_key(a: np.uint64, b: np.uint64, c: np.uint64, d: np.uint64) -> np.uint64:
    return U64((a * _KEY_FACTORS[0]) ^ (b * _KEY_FACTORS[1]) ^ (c * _KEY_FACTORS[2]) ^ (d * _KEY_FACTORS[3]))


@raw_step
def word_end(data: Bytes, at: Int, end: Int) -> Int:
    """Where the word that begins at `at` ends."""
    while at + 8 <= end:
        word = load_word(data, at)
        controls = ~(((word & LOW_SEVEN) + ABOVE_BLANK) | word) & HIGH_BITS
        if controls != U64(0):
            break
        at += 8
    while at < end and not is_blank(data[U64(at)]):
        at += 1
    return at


@raw_step
def hash_word(data: Bytes, at: Int, stop: Int) -> np.uint32:
    """FNV-1a of signed bytes."""
    state = HASH_START
    for place in range(at, stop):
        state = mix(state, data[U64(place)])
    return state


@raw_step
def spell(data: Bytes, at: Int, stop: Int, spelled: Bytes) -> None:
    """Copies the word into < and >, and a zero after them; there is room for SPELLED_MORE bytes more."""
    size: Int = stop - at
    spelled[0] = LESS
    if stop + 8 <= data.size:
        for k in range(0, size, 8):
            store_word(spelled, k + 1, load_word(data, at + k))
    else:
        for k in range(size):
            spelled[U64(k + 1)] = data[U64(at + k)]
    spelled[U64(size + 1)], spelled[U64(size + 2)] = MORE, 0


@raw_step
def word_row(
    state: np.uint32,
    data: Bytes,
    at: Int,
    stop: Int,
    words: Bytes,
    word_ends: Offsets,
    word_slots: NDArray[np.int32],
) -> Int:
    """The row of a whole word, -1 if the model has only its n-grams."""
    slots = U64(word_slots.size - 1)
    slot = U64(state) & slots
    while word_slots[slot] >= 0:
        row = U64(word_slots[slot])
        first = word_ends[row]
        if word_ends[row + U64(1)] - first == stop - at and _is_same(words, first, data, at, stop - at):
            return np.int64(row)
        slot = (slot + U64(1)) & slots
    return np.int64(-1)


@raw_step
def _is_same(words: Bytes, first: Int, data: Bytes, at: Int, size: Int) -> bool:
    same: Int = 0
    if first + size + 8 <= words.size and at + size + 8 <= data.size:
        while same < size:
            apart = load_word(words, first + same) ^ load_word(data, at + same)
            if head_of(apart, size - same) != U64(0):
                return False
            same += 8
        return True
    while same < size and words[U64(first + same)] == data[U64(at + same)]:
        same += 1
    return bool(same == size)


def hash_words(words: Bytes, ends: Offsets) -> NDArray[np.uint32]:
    """As fastText hashes them: FNV-1a of signed bytes."""
    words, ends, rows = frozen_text(words, ends)
    hashes = np.zeros(rows, np.uint32)
    _hash_words(words, ends, hashes)
    return hashes


def word_slots(hashes: NDArray[np.uint32]) -> NDArray[np.int32]:
    """A table of the rows, a quarter full at most."""
    slots = np.full(1 << (4 * len(hashes)).bit_length(), -1, np.int32)
    _fill_slots(frozen(hashes, np.uint32), slots)
    return slots


@raw_kernel(lambda: hash_words(*TEXT))
def _hash_words(words: Bytes, ends: Offsets, hashes: NDArray[np.uint32]) -> None:
    for row in range(ends.size - 1):
        state = HASH_START
        for at in range(ends[row], ends[row + 1]):
            state = mix(state, words[U64(at)])
        hashes[row] = state


@raw_kernel(lambda: word_slots(np.zeros(1, np.uint32)))
def _fill_slots(hashes: NDArray[np.uint32], slots: NDArray[np.int32]) -> None:
    mask = U64(slots.size - 1)
    for row in range(hashes.size):
        slot = U64(hashes[row]) & mask
        while slots[slot] >= 0:
            slot = (slot + U64(1)) & mask
        slots[slot] = row


def read_entries(data: Bytes, at: int, count: int) -> tuple[Offsets, int]:
    """Where the names of `count` entries (name\\0, int64, int8) end, and the byte after the last of them;
    -1 where the data end before."""
    ends = np.zeros(count, np.int64)
    return ends, int(_read_entries(frozen(data, np.uint8), at, ends))


@raw_kernel(lambda: read_entries(np.zeros(10, np.uint8), 0, 1))
def _read_entries(data: Bytes, at: Int, ends: Offsets) -> Int:
    for entry in range(ends.size):
        while at < data.size and data[U64(at)] != 0:
            at += 1
        if at + 10 > data.size:
            return np.int64(-1)
        ends[entry] = at
        at += 10
    return np.int64(at)

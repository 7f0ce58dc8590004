"""Steps that kernels of several files share: words of eight bytes and marks in them, UTF-8, hashes, classes of characters.

In a word, byte k of the text is bits 8k to 8k + 7. A mark is 0x80 in each byte that has some property.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import Bytes, Int, raw_step

U64 = np.uint64
LOW_BITS = U64(0x0101010101010101)
LOW_SEVEN = U64(0x7F7F7F7F7F7F7F7F)
HIGH_BITS = U64(0x8080808080808080)
CASE_BITS = U64(0x2020202020202020)
FROM_A = U64(0x1F1F1F1F1F1F1F1F)  # added to a or more, the high bit of its byte
AFTER_Z = U64(0x0505050505050505)
# The golden ratio in 64 bits: the high bits of key * SPREAD are a place in a table whatever bits of keys are alike.
SPREAD = U64(0x9E3779B97F4A7C15)


@raw_step
def load_word(data: Bytes, at: Int) -> np.uint64:
    """Eight bytes. LLVM makes one load of it, because an unsigned index cannot be negative and so needs no wrap-around."""
    i = U64(at)
    return (
        U64(data[i])
        | U64(data[i + U64(1)]) << U64(8)
        | U64(data[i + U64(2)]) << U64(16)
        | U64(data[i + U64(3)]) << U64(24)
        | U64(data[i + U64(4)]) << U64(32)
        | U64(data[i + U64(5)]) << U64(40)
        | U64(data[i + U64(6)]) << U64(48)
        | U64(data[i + U64(7)]) << U64(56)
    )


@raw_step
def load_rest(data: Bytes, at: Int) -> np.uint64:
    """The fewer than eight bytes up to the end of the buffer."""
    word = U64(0)
    for k in range(data.size - at):
        word |= U64(data[at + k]) << U64(8 * k)
    return word


@raw_step
def store_word(data: Bytes, at: Int, word: np.uint64) -> None:
    """LLVM makes one store of it; a copy byte by byte it must not join: 1.2 ns per byte of ASCII, not 0.2."""
    i = U64(at)
    data[i] = np.uint8(word)
    data[i + U64(1)] = np.uint8(word >> U64(8))
    data[i + U64(2)] = np.uint8(word >> U64(16))
    data[i + U64(3)] = np.uint8(word >> U64(24))
    data[i + U64(4)] = np.uint8(word >> U64(32))
    data[i + U64(5)] = np.uint8(word >> U64(40))
    data[i + U64(6)] = np.uint8(word >> U64(48))
    data[i + U64(7)] = np.uint8(word >> U64(56))


@raw_step
def zero_marks(word: np.uint64) -> np.uint64:
    """A mark in each byte that is zero, exactly (the shorter trick also marks a 1 above a 0)."""
    return ~(((word & LOW_SEVEN) + LOW_SEVEN) | word | LOW_SEVEN)


@raw_step
def first_zero(word: np.uint64) -> np.uint64:
    """A mark in the first byte that is zero, and in none before it; what it says of later ones may be wrong."""
    return (word - LOW_BITS) & ~word & HIGH_BITS


@raw_step
def letter_marks(word: np.uint64) -> np.uint64:
    """A mark in each byte that is a letter of ASCII."""
    low = (word | CASE_BITS) & LOW_SEVEN
    return (low + FROM_A) & ~(low + AFTER_Z) & ~word & HIGH_BITS


@raw_step
def bytes_before(marks: np.uint64) -> Int:
    """How many bytes stand before the first mark; 8 where there is none."""
    before = ((marks & (~marks + U64(1))) >> U64(7)) - U64(1)
    return np.int64(((before & LOW_BITS) * LOW_BITS) >> U64(56))


# --- UTF-8, which is valid ---


@raw_step
def code_at(data: Bytes, at: Int) -> tuple[Int, Int]:
    """The code point at `at`, and its bytes."""
    lead = np.int64(data[U64(at)])
    if lead < 0x80:
        return lead, np.int64(1)
    return decode(data, at)


@raw_step
def decode(data: Bytes, at: Int) -> tuple[Int, Int]:
    """The code point of two to four bytes, and how many they are."""
    i = U64(at)
    lead = np.int64(data[i])
    second = np.int64(data[i + U64(1)]) & 0x3F
    if lead < 0xE0:
        return ((lead & 0x1F) << 6) | second, np.int64(2)
    third = np.int64(data[i + U64(2)]) & 0x3F
    if lead < 0xF0:
        return ((lead & 0x0F) << 12) | (second << 6) | third, np.int64(3)
    fourth = np.int64(data[i + U64(3)]) & 0x3F
    return ((lead & 0x07) << 18) | (second << 12) | (third << 6) | fourth, np.int64(4)


@raw_step
def start_before(data: Bytes, at: Int) -> Int:
    """Where the character begins that ends at `at`."""
    at -= 1
    while data[U64(at)] & 0xC0 == 0x80:
        at -= 1
    return at


@raw_step
def put_code(data: Bytes, at: Int, code: Int) -> Int:
    """A code point written; where its bytes end."""
    i = U64(at)
    if code < 0x80:
        data[i] = code
        return at + 1
    if code < 0x800:
        data[i] = 0xC0 | code >> 6
        data[i + U64(1)] = 0x80 | code & 0x3F
        return at + 2
    if code < 0x10000:
        data[i] = 0xE0 | code >> 12
        data[i + U64(1)] = 0x80 | code >> 6 & 0x3F
        data[i + U64(2)] = 0x80 | code & 0x3F
        return at + 3
    data[i] = 0xF0 | code >> 18
    data[i + U64(1)] = 0x80 | code >> 12 & 0x3F
    data[i + U64(2)] = 0x80 | code >> 6 & 0x3F
    data[i + U64(3)] = 0x80 | code & 0x3F
    return at + 4


# --- hashes and tables ---


@raw_step
def mix64(word: np.uint64) -> np.uint64:
    """MurmurHash3's last step for 64 bits (public domain, Austin Appleby)."""
    word = (word ^ (word >> U64(33))) * U64(0xFF51AFD7ED558CCD)
    word = (word ^ (word >> U64(33))) * U64(0xC4CEB9FE1A85EC53)
    return word ^ (word >> U64(33))


@raw_step
def slots_for(entries: Int) -> Int:
    """Of a hash table that is half empty: a power of two."""
    slots: Int = 16
    while slots < 2 * entries:
        slots *= 2
    return slots


@raw_step
def holds(values: NDArray[np.uint64], value: np.uint64) -> bool:
    """Whether `value` is among sorted values."""
    low, high = 0, values.size
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return bool(low < values.size and values[low] == value)


# --- classes of code points (tokmill.kernels.wordclasses fills the table) ---

LETTER = np.uint16(1 << 0)
UPPER = np.uint16(1 << 1)
DIGIT = np.uint16(1 << 2)  # decimal, of any script
SPACE = np.uint16(1 << 3)
CONTROL = np.uint16(1 << 4)  # and not a space
SYMBOL = np.uint16(1 << 5)  # punctuation or symbol
MARK = np.uint16(1 << 6)  # combines with the character before it
PUNCTUATION = np.uint16(1 << 7)
TERMINAL = np.uint16(1 << 8)  # ends a sentence
EDGE = np.uint16(1 << 9)  # at either end of a word it is a word of its own
OPENER = np.uint16(1 << 10)  # at the front only
MONEY = np.uint16(1 << 11)  # at the end too, after a digit
ICON = np.uint16(1 << 12)  # a word of its own wherever it stands
QUOTE = np.uint16(1 << 13)
SPACELESS = np.uint16(1 << 14)  # a letter of a script without spaces: a word, with its marks
CUTTER = np.uint16(1 << 15)  # may end a word and begin another in the middle of what stands between spaces

"""Hashed n-grams as DSIR counts them (Xie et al. 2023): words and pairs of words.

    text     Don't stop -- it's "fun"!
    tokens   don · ' · t · stop · -- · it · ' · s · " · fun · "!       runs of letters, runs of other marks
    grams    don · don ' · ' · ' t · t · t stop · …
    bucket   of 10,000, by a hash of 64 bits; or sha256(gram) mod 10,000, as in the package `data-selection`

    memory   | bytes 0-7 | 8-15 | 16-23 | 24-31 | length << 32 | bucket + 1 |     a slot for a gram met before

SHA-256 takes 0.6 us. Most grams were met a moment ago: their bytes are in the memory, which changes the cost
and never a bucket. So tables of that package can be used, at a tenth of the speed.

Its tokens are those of the pattern \\w+|[^\\w\\s]+ in lower case. Here A to Z alone become small, and a list
of ranges says what is a letter beyond ASCII: not the Unicode tables of the running Python, which differ.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import (
    SPREAD,
    TEXT,
    Bytes,
    Int,
    Offsets,
    code_at,
    frozen,
    frozen_text,
    load_word,
    mix64,
    raw_kernel,
    raw_step,
)

U64 = np.uint64
MAX_BUCKETS = 1 << 24

_SPACE, _WORD, _MARK, _WIDE = 0, 1, 2, 3  # _WIDE: more than one byte, so its code point says
# Beyond ASCII, not letters: first and last code points. All others are, marks that combine among them.
_SPACES = ((0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
           (0x205F, 0x205F), (0x3000, 0x3000))  # fmt: skip
_MARKS = ((0x80, 0xA9), (0xAB, 0xB1), (0xB4, 0xB4), (0xB6, 0xB8), (0xBB, 0xBB), (0xBF, 0xBF), (0xD7, 0xD7),
          (0xF7, 0xF7), (0x60C, 0x60D), (0x61B, 0x61F), (0x66A, 0x66D), (0x6D4, 0x6D4), (0x964, 0x965),
          (0x200B, 0x206F), (0x207A, 0x207E), (0x208A, 0x208E), (0x20A0, 0x20C0), (0x2190, 0x245F),
          (0x2500, 0x2775), (0x2794, 0x2BFF), (0x2E00, 0x2E7F), (0x3001, 0x3004), (0x3008, 0x3020),
          (0x3030, 0x3030), (0x303D, 0x303F), (0x309B, 0x309C), (0x30A0, 0x30A0), (0x30FB, 0x30FB),
          (0xE000, 0xF8FF), (0xFE10, 0xFE19), (0xFE30, 0xFE6F), (0xFF01, 0xFF0F), (0xFF1A, 0xFF20),
          (0xFF3B, 0xFF40), (0xFF5B, 0xFF65), (0xFFE0, 0xFFFD), (0x1F000, 0x1FAFF))  # fmt: skip

_START, _FACTOR = U64(0xCBF29CE484222325), U64(0x100000001B3)  # FNV-1a in 64 bits
_PAIR = U64(0x9E3779B97F4A7C15)

_KEY_BYTES, _SLOT_WORDS = 32, 5
# 5 MB. With a quarter of it a tenth more time, with four times as much none is saved.
_SLOT_BITS = 17
_KEY_FACTORS = (
    U64(0x9E3779B97F4A7C15),
    U64(0xC2B2AE3D27D4EB4F),
    U64(0x165667B19E3779F9),
    U64(0x27D4EB2F165667C5),
)


class Sums(NamedTuple):
    sums: NDArray[np.int64]  # of each row, what its grams add
    grams: NDArray[np.int64]  # of each row


def count_grams(data: Bytes, offsets: Offsets, buckets: int, *, sha256: bool = False) -> NDArray[np.int64]:
    """How often each bucket is met in all rows together. Counts of parts add up."""
    counts = np.zeros(buckets, np.int64)
    _walk(data, offsets, np.zeros(buckets, np.int32), counts, sha256)
    return counts


def sum_grams(data: Bytes, offsets: Offsets, table: NDArray[np.int32], *, sha256: bool = False) -> Sums:
    """Of each row the sum of what the table says for its grams."""
    return _walk(data, offsets, table, np.zeros(len(table), np.int64), sha256)


def token_spans(text: bytes) -> list[tuple[int, int]]:
    """Where the tokens of one text start and stop."""
    data, *_ = frozen_text(np.frombuffer(text or b"\0", np.uint8), np.array([0, len(text)]))
    starts, stops = np.empty((2, len(text) + 1), np.int64)
    count = _spans(data, len(text), ascii_kinds(), ranges(), starts, stops)
    return list(zip(starts[:count].tolist(), stops[:count].tolist(), strict=True))


def _walk(
    data: Bytes, offsets: Offsets, table: NDArray[np.int32], counts: NDArray[np.int64], sha256: bool
) -> Sums:
    data, offsets, rows = frozen_text(data, offsets)
    if not 0 < len(table) <= MAX_BUCKETS:
        raise ValueError(f"{len(table)} buckets")
    longest = int(np.diff(offsets).max(initial=0)) if sha256 else 0
    found = Sums(np.zeros(rows, np.int64), np.zeros(rows, np.int64))
    _sum_grams(
        data,
        offsets,
        ascii_kinds(),
        ranges(),
        frozen(table, np.int32),
        sha256_constants(len(table)),
        np.zeros(64, np.uint64),
        np.zeros(8, np.uint64),
        np.zeros((1 << _SLOT_BITS) * _SLOT_WORDS if sha256 else 0, np.uint64),
        np.zeros(2 * longest + 2 * _KEY_BYTES, np.uint8),
        counts,
        *found,
    )
    return found


@functools.cache
def ascii_kinds() -> NDArray[np.uint8]:
    kinds = np.full(256, _MARK, np.uint8)
    kinds[[*range(9, 14), *range(28, 33)]] = _SPACE
    kinds[[*b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_"]] = _WORD
    kinds[128:] = _WIDE
    return frozen(kinds, np.uint8)


@functools.cache
def ranges() -> NDArray[np.int64]:
    """[range, 3]: first and last code point, and what they are; ascending."""
    listed = [(*pair, kind) for kind, pairs in ((_SPACE, _SPACES), (_MARK, _MARKS)) for pair in pairs]
    # A space within a range of marks comes first, so that it is found before.
    return frozen(np.array(sorted(listed, key=lambda one: (one[2], one[0])), np.int64), np.int64)


@functools.cache
def sha256_constants(modulus: int) -> NDArray[np.uint64]:
    """64 of the rounds, and the eight that it starts with: cube and square roots of primes. Then what powers
    of 2^32 leave, divided by the modulus, the highest first."""
    primes = [n for n in range(2, 312) if all(n % k for k in range(2, math.isqrt(n) + 1))]
    rounds = [_cube_root(prime << 96) & 0xFFFFFFFF for prime in primes]
    start = [math.isqrt(prime << 64) & 0xFFFFFFFF for prime in primes[:8]]
    powers = [pow(2, 32 * (7 - k), modulus) for k in range(8)]
    return frozen(np.array([*rounds, *start, *powers], np.uint64), np.uint64)


def _cube_root(number: int) -> int:
    low, high = 0, 1 << (number.bit_length() // 3 + 1)
    while low < high:
        middle = (low + high + 1) // 2
        if middle**3 <= number:
            low = middle
        else:
            high = middle - 1
    return low


@raw_kernel(lambda: count_grams(*TEXT, 16))
def _sum_grams(
    data: Bytes,
    offsets: Offsets,
    kinds: NDArray[np.uint8],
    ranges: NDArray[np.int64],
    table: NDArray[np.int32],
    constants: NDArray[np.uint64],
    schedule: NDArray[np.uint64],
    state: NDArray[np.uint64],
    memory: NDArray[np.uint64],
    line: Bytes,
    counts: NDArray[np.int64],
    sums: NDArray[np.int64],
    grams: NDArray[np.int64],
) -> None:
    """`line` has the tokens of a row with one space between: a gram of two stands there in one piece.
    Without a memory, grams are hashed as they come."""
    is_sha256 = memory.size > 0
    for row in range(offsets.size - 1):
        at, end = offsets[row], offsets[row + 1]
        used: Int = 0
        before: Int = -1  # where the token before this one starts
        total: Int = 0
        number: Int = 0
        last = U64(0)
        while True:
            start, at = _next_run(data, at, end, kinds, ranges)
            if start == at:
                break
            if not is_sha256:
                token = _START
                for place in range(start, at):
                    byte = data[U64(place)]
                    token = (token ^ U64(byte + 32 if 65 <= byte <= 90 else byte)) * _FACTOR
                token = mix64(token)
                bucket = _place_of(token, table.size)
                counts[U64(bucket)] += 1
                total += table[U64(bucket)]
                number += 1
                if number > 1:
                    bucket = _place_of(mix64(last * _PAIR + token), table.size)
                    counts[U64(bucket)] += 1
                    total += table[U64(bucket)]
                    number += 1
                last = token
                continue
            if before >= 0:
                line[U64(used)] = 0x20
                used += 1
            first = used
            for place in range(start, at):
                byte = data[U64(place)]
                line[U64(used)] = byte + 32 if 65 <= byte <= 90 else byte
                used += 1
            for begin in (first, before):
                if begin >= 0:
                    bucket = _bucket_of(line, begin, used, table.size, constants, schedule, state, memory)
                    counts[U64(bucket)] += 1
                    total += table[U64(bucket)]
                    number += 1
            before = first
        sums[row] = total
        grams[row] = number


@raw_kernel(lambda: token_spans(b"a"))
def _spans(
    data: Bytes,
    end: Int,
    kinds: NDArray[np.uint8],
    ranges: NDArray[np.int64],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
) -> Int:
    at: Int = 0
    count: Int = 0
    while True:
        start, at = _next_run(data, at, end, kinds, ranges)
        if start == at:
            return count
        starts[count] = start
        stops[count] = at
        count += 1


@raw_step
def _next_run(
    data: Bytes, at: Int, end: Int, kinds: NDArray[np.uint8], ranges: NDArray[np.int64]
) -> tuple[Int, Int]:
    """Of characters of one kind, spaces before it passed over; nowhere: it stops where it starts."""
    kind: Int = _SPACE
    width: Int = 0
    while at < end:
        kind, width = _kind_at(data, at, end, kinds, ranges)
        if kind != _SPACE:
            break
        at += width
    start = at
    this = kind
    while at < end and this == kind and kind != _SPACE:
        at += width
        if at < end:
            this, width = _kind_at(data, at, end, kinds, ranges)
    return start, at


@raw_step
def _kind_at(
    data: Bytes, at: Int, end: Int, kinds: NDArray[np.uint8], ranges: NDArray[np.int64]
) -> tuple[Int, Int]:
    kind: Int = np.int64(kinds[U64(data[U64(at)])])
    if kind != _WIDE:
        return kind, np.int64(1)
    code, width = code_at(data, at)
    kind = _WORD
    if 0xF8 <= code < 0x60C or 0x3100 <= code < 0xE000:  # no range is there
        return kind, min(width, end - at)
    for one in range(ranges.shape[0]):
        if ranges[one, 0] <= code <= ranges[one, 1]:
            kind = ranges[one, 2]
            break
    return kind, min(width, end - at)


@raw_step
def _place_of(mixed: np.uint64, buckets: Int) -> Int:
    return np.int64(((mixed >> U64(32)) * U64(buckets)) >> U64(32))


@raw_step
def _bucket_of(
    line: Bytes,
    begin: Int,
    end: Int,
    buckets: Int,
    constants: NDArray[np.uint64],
    schedule: NDArray[np.uint64],
    state: NDArray[np.uint64],
    memory: NDArray[np.uint64],
) -> Int:
    size = end - begin
    if size > _KEY_BYTES:
        return _sha256_modulo(line, begin, size, buckets, constants, schedule, state)
    a = _key_word(line, begin, size)
    b = _key_word(line, begin + 8, size - 8)
    c = _key_word(line, begin + 16, size - 16)
    d = _key_word(line, begin + 24, size - 24)
    mixed = a * _KEY_FACTORS[0] + b * _KEY_FACTORS[1] + c * _KEY_FACTORS[2] + d * _KEY_FACTORS[3] + U64(size)
    mixed = (mixed ^ (mixed >> U64(32))) * SPREAD
    slot = (mixed >> U64(64 - _SLOT_BITS)) * U64(_SLOT_WORDS)
    last = memory[slot + U64(4)]
    if (
        last >> U64(32) == U64(size)
        and memory[slot] == a
        and memory[slot + U64(1)] == b
        and memory[slot + U64(2)] == c
        and memory[slot + U64(3)] == d
    ):
        return np.int64(last & U64(0xFFFFFFFF)) - 1
    bucket = _sha256_modulo(line, begin, size, buckets, constants, schedule, state)
    memory[slot] = a
    memory[slot + U64(1)] = b
    memory[slot + U64(2)] = c
    memory[slot + U64(3)] = d
    memory[slot + U64(4)] = U64(size) << U64(32) | U64(bucket + 1)
    return bucket


@raw_step
def _key_word(line: Bytes, at: Int, size: Int) -> np.uint64:
    """The first `size` bytes, zeros after them."""
    if size <= 0:
        return U64(0)
    word = load_word(line, at)
    return word if size >= 8 else word & ((U64(1) << U64(8 * size)) - U64(1))


@raw_step
def _twice(word: np.uint64) -> np.uint64:
    """A word of 32 bits twice: a shift of the 64 is a rotation in the lower half. numba has no sums of 32."""
    return word | (word << U64(32))


@raw_step
def _sha256_modulo(
    line: Bytes,
    begin: Int,
    size: Int,
    modulus: Int,
    constants: NDArray[np.uint64],
    schedule: NDArray[np.uint64],
    state: NDArray[np.uint64],
) -> Int:
    """The digest as one number, and what is left of it."""
    low = U64(0xFFFFFFFF)
    for k in range(8):
        state[U64(k)] = constants[U64(64 + k)]
    blocks = (size + 9 + 63) // 64
    for block in range(blocks):
        for k in range(16):
            schedule[U64(k)] = U64(0)
        first = 64 * block
        for place in range(first, min(first + 64, size)):
            schedule[U64((place - first) >> 2)] |= U64(line[U64(begin + place)]) << U64(8 * (~place & 3))
        if first <= size < first + 64:
            schedule[U64((size - first) >> 2)] |= U64(0x80) << U64(24 - 8 * (size & 3))
        if block == blocks - 1:
            schedule[U64(14)] = U64(size) >> U64(29)
            schedule[U64(15)] = (U64(size) << U64(3)) & low
        for k in range(16, 64):
            x, y = schedule[U64(k - 15)], schedule[U64(k - 2)]
            x2, y2 = _twice(x), _twice(y)
            small = (x2 >> U64(7)) ^ (x2 >> U64(18)) ^ (x >> U64(3))
            large = (y2 >> U64(17)) ^ (y2 >> U64(19)) ^ (y >> U64(10))
            schedule[U64(k)] = (schedule[U64(k - 16)] + small + schedule[U64(k - 7)] + large) & low
        a, b, c, d = state[0], state[1], state[2], state[3]
        e, f, g, h = state[4], state[5], state[6], state[7]
        for k in range(64):
            e2, a2 = _twice(e), _twice(a)
            one = (e2 >> U64(6)) ^ (e2 >> U64(11)) ^ (e2 >> U64(25))
            two = (a2 >> U64(2)) ^ (a2 >> U64(13)) ^ (a2 >> U64(22))
            third = h + one + (g ^ (e & (f ^ g))) + constants[U64(k)] + schedule[U64(k)]
            most = (a & b) | (c & (a | b))
            h, g, f, e = g, f, e, (d + third) & low
            d, c, b, a = c, b, a, (third + two + most) & low
        state[0] = (state[0] + a) & low
        state[1] = (state[1] + b) & low
        state[2] = (state[2] + c) & low
        state[3] = (state[3] + d) & low
        state[4] = (state[4] + e) & low
        state[5] = (state[5] + f) & low
        state[6] = (state[6] + g) & low
        state[7] = (state[7] + h) & low
    # One division, not eight: what 2^32, 2^64, … leave is known, below 2^24, so that their sum has room.
    total = U64(0)
    for k in range(8):
        total += state[U64(k)] * constants[U64(72 + k)]
    return np.int64(total % U64(modulus))

"""Hashes of documents and of rows, and one digest of all rows.

    fold_hashes      text -> "the same but for case and spacing" -> 128 bits     exact deduplication
    blank_rows       text -> has it a visible character?                         the hash of one without is 0
    mix_column       row state, one column -> row state                          column by column
    fold_sequence    row states in order -> two residues mod 2^61 - 1            a digest of a run of rows
    join_sequences   digests of two runs -> digest of one after the other        shards, files, the corpus

All byte hashing is MurmurHash3_x64_128 with seed 0 (public domain, Austin Appleby).

A corpus has one digest whatever its format or shard layout:

    rows      r0 r1 r2 | r3 | r4 r5          any cut
    digest    D = sum of (r_i + 1) * B^(n-1-i)  mod p,   so   D(left + right) = D(left) * B^|right| + D(right)

Two lanes, each a polynomial over a prime field: two corpora that differ by accident agree in both with
probability about 2^-122. It finds damage and drift; it does not stand against an adversary (the files'
SHA-256 do).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import (
    HIGH_BITS,
    LOW_BITS,
    LOW_SEVEN,
    TEXT,
    Bytes,
    Int,
    Offsets,
    bytes_before,
    frozen,
    frozen_text,
    inlined,
    kernel,
    load_rest,
    load_word,
    mix64,
    store_word,
)

Hashes = NDArray[np.uint64]

# numba makes a float of uint64 + int, so every operand of word arithmetic is a uint64 with a name or a cast.
U64 = np.uint64
ALL_BITS = U64(0xFFFFFFFFFFFFFFFF)

# The kernels get these as arguments: LLVM turns "x * constant, rotated" into two multiplications, and then
# Murmur reads 2.1 GB/s instead of 3.1.
_MURMUR_FACTORS = (U64(0x87C37B91114253D5), U64(0x4CF5AD432745937F))

# Folded text is hashed from here while it is still in the first-level cache (2 KiB is 3 % of it).
_FOLD_BYTES = 2048
_FOLD_SLACK = 32


def fold_hashes(data: Bytes, offsets: Offsets, is_wanted: NDArray[np.bool_] | None = None) -> Hashes:
    """Per row, the hash of the text in ASCII lower case with its whitespace folded, as two uint64.

        "\\u3000Hello,\\t\\n WORLD É \\n"  ->  "hello, world É"  ->  murmur3

    Whitespace is what `str.split()` splits on. Letters beyond ASCII stay as they are: text whose case matters
    there arrives casefolded. A row that is not wanted gets 0, as a blank one does.
    """
    data, offsets, rows = frozen_text(data, offsets)
    wanted = frozen(np.ones(rows, np.bool_) if is_wanted is None else is_wanted, np.bool_)
    hashes = np.zeros((rows, 2), np.uint64)
    scratch = np.empty(_FOLD_BYTES + _FOLD_SLACK, np.uint8)
    _fold_hashes(data, offsets, wanted, *_MURMUR_FACTORS, scratch, hashes)
    return hashes


def blank_rows(data: Bytes, offsets: Offsets) -> NDArray[np.bool_]:
    """Rows in which `str.split()` finds nothing. Read up to the first visible character, and no further."""
    data, offsets, rows = frozen_text(data, offsets)
    is_blank = np.empty(rows, np.bool_)
    _blank_rows(data, offsets, is_blank)
    return is_blank


def mix_column(data: Bytes, offsets: Offsets, is_valid: NDArray[np.bool_], state: Hashes) -> None:
    """Stir one column into the rows' running hashes, in place. Start from zeros; the order of columns counts.

    A row gives (is it null, its length, its bytes), so a null is not an empty string, and "ab", "c" is not
    "a", "bc". What Arrow left in the buffer under a null does not count.
    """
    data, offsets, rows = frozen_text(data, offsets)
    if is_valid.shape != (rows,) or state.shape != (rows, 2):
        raise ValueError(f"{rows} rows, but is_valid {is_valid.shape} and state {state.shape}")
    if state.dtype != np.uint64 or not state.flags.carray:
        raise TypeError("state is changed in place: it has to be a writeable, contiguous uint64 array")
    _mix_column(data, offsets, frozen(is_valid, np.bool_), *_MURMUR_FACTORS, state)


@kernel(lambda: blank_rows(*TEXT))
def _blank_rows(data: Bytes, offsets: Offsets, is_blank: NDArray[np.bool_]) -> None:
    for row in range(offsets.size - 1):
        at, end = offsets[row], offsets[row + 1]
        width: Int = 1
        while at < end and width != 0:
            byte = data[at]
            if byte < 0x80:
                width = 1 if byte == 0x20 or 0x09 <= byte <= 0x0D or 0x1C <= byte <= 0x1F else 0
            else:
                next_byte = data[at + 1] if end - at > 1 else np.uint8(0)
                last_byte = data[at + 2] if end - at > 2 else np.uint8(0)
                width = _wide_space_width(byte, next_byte, last_byte)
            at += width
        is_blank[row] = width != 0


@kernel(lambda: fold_hashes(*TEXT))
def _fold_hashes(
    data: Bytes,
    offsets: Offsets,
    is_wanted: NDArray[np.bool_],
    c1: np.uint64,
    c2: np.uint64,
    folded: Bytes,
    hashes: Hashes,
) -> None:
    for row in range(offsets.size - 1):
        if not is_wanted[row]:
            continue
        at, end = offsets[row], offsets[row + 1]
        first = second = U64(0)
        hashed: Int = 0
        used: Int = 0
        # 0x80 after whitespace. True at the start too, which is how leading whitespace folds to nothing.
        after_space = U64(0x80)
        while at < end:
            if used >= _FOLD_BYTES:
                # The last byte stays: it may be the trailing space, which is dropped only when the text ends.
                blocks = (used - 1) >> 4
                first, second = _murmur_blocks(folded, 0, blocks, first, second, c1, c2)
                hashed += 16 * blocks
                for rest in range(16 * blocks, used):
                    folded[rest - 16 * blocks] = folded[rest]
                used -= 16 * blocks
            # `count` bytes of this word are folded at once:
            # those of this row, up to a whitespace beyond ASCII.
            count = min(end - at, 8)
            word = load_word(data, at) if data.size - at >= 8 else load_rest(data, at)
            if (word & HIGH_BITS) != U64(0):
                width = 0
                marks = _wide_space_marks(word)
                while marks != U64(0):
                    lead = at + bytes_before(marks)
                    next_byte = data[lead + 1] if end - lead > 1 else np.uint8(0)
                    last_byte = data[lead + 2] if end - lead > 2 else np.uint8(0)
                    width = _wide_space_width(data[lead], next_byte, last_byte)
                    if width != 0:
                        count = min(count, lead - at)
                        break
                    marks &= marks - U64(1)
                if count == 0:
                    folded[used] = np.uint8(0x20)
                    used += 1 - np.int64(after_space >> U64(7))
                    at += width
                    after_space = U64(0x80)
                    continue
            spaces = _ascii_space_marks(word)
            word = _with_spaces(_lowered(word), spaces)
            # Of a run of whitespace all but the first is dropped.
            dropped = spaces & ((spaces << U64(8)) | after_space)
            at += count
            if dropped == U64(0) and count == 8:
                store_word(folded, used, word)
                used += 8
                after_space = spaces >> U64(56)
                continue
            after_space = (spaces >> U64(8 * count - 8)) & U64(0x80)
            dropped |= ~(ALL_BITS >> U64(64 - 8 * count))
            for _ in range(8):
                folded[U64(used)] = np.uint8(word)
                used += 1 - np.int64((dropped >> U64(7)) & U64(1))
                word >>= U64(8)
                dropped >>= U64(8)
        if after_space != U64(0) and used > 0:
            used -= 1
        blocks = used >> 4
        first, second = _murmur_blocks(folded, 0, blocks, first, second, c1, c2)
        first, second = _murmur_end(folded, 16 * blocks, hashed + used, first, second, c1, c2)
        hashes[row, 0] = first
        hashes[row, 1] = second


@kernel(lambda: mix_column(*TEXT, np.ones(1, np.bool_), np.zeros((1, 2), U64)))
def _mix_column(
    data: Bytes, offsets: Offsets, is_valid: NDArray[np.bool_], c1: np.uint64, c2: np.uint64, state: Hashes
) -> None:
    for row in range(offsets.size - 1):
        first, second = state[row, 0], state[row, 1]
        if is_valid[row]:
            at = offsets[row]
            length = offsets[row + 1] - at
            h1, h2 = _murmur_blocks(data, at, length >> 4, U64(0), U64(0), c1, c2)
            h1, h2 = _murmur_end(data, at + (length & ~15), length, h1, h2, c1, c2)
            first, second = _murmur_mix(first, second, U64(1), U64(length), c1, c2)
            first, second = _murmur_mix(first, second, h1, h2, c1, c2)
        else:
            first, second = _murmur_mix(first, second, U64(2), U64(0), c1, c2)
        state[row, 0], state[row, 1] = _murmur_avalanche(first, second)


# --- words of text: byte k is bits 8k..8k+7; a mark is 0x80 in each byte that has some property ---


@inlined
def _range_marks(sevens: np.uint64, low: np.uint64, past: np.uint64) -> np.uint64:
    """Marks (and noise in the other bits) where low <= the low seven bits of the byte < past."""
    return (sevens + (U64(0x80) - low) * LOW_BITS) & ~(sevens + (U64(0x80) - past) * LOW_BITS)


@inlined
def _ascii_space_marks(word: np.uint64) -> np.uint64:
    sevens = word & LOW_SEVEN
    marks = _range_marks(sevens, U64(0x09), U64(0x0E)) | _range_marks(sevens, U64(0x1C), U64(0x21))
    return marks & ~word & HIGH_BITS


@inlined
def _wide_space_marks(word: np.uint64) -> np.uint64:
    """Marks on bytes that can start a whitespace character beyond ASCII: C2, E1, E2, E3."""
    sevens = word & LOW_SEVEN
    marks = _range_marks(sevens, U64(0x42), U64(0x43)) | _range_marks(sevens, U64(0x61), U64(0x64))
    return marks & word & HIGH_BITS


@inlined
def _lowered(word: np.uint64) -> np.uint64:
    uppers = _range_marks(word & LOW_SEVEN, U64(0x41), U64(0x5B)) & ~word & HIGH_BITS
    return word | (uppers >> U64(2))


@inlined
def _with_spaces(word: np.uint64, spaces: np.uint64) -> np.uint64:
    whole_bytes = (spaces << U64(1)) - (spaces >> U64(7))
    return (word & ~whole_bytes) | (spaces >> U64(2))


@inlined
def _wide_space_width(byte: np.uint8, second: np.uint8, third: np.uint8) -> int:
    """The bytes of the whitespace character beyond ASCII that these three start with; 0 if they do not."""
    if byte == 0xC2:
        return 2 if second == 0x85 or second == 0xA0 else 0
    if byte == 0xE1:
        return 3 if second == 0x9A and third == 0x80 else 0
    if byte == 0xE3:
        return 3 if second == 0x80 and third == 0x80 else 0
    if byte == 0xE2 and second == 0x80:
        return 3 if 0x80 <= third <= 0x8A or third == 0xA8 or third == 0xA9 or third == 0xAF else 0
    return 3 if byte == 0xE2 and second == 0x81 and third == 0x9F else 0


# --- MurmurHash3_x64_128 ---


@inlined
def _rotated(word: np.uint64, bits: np.uint64) -> np.uint64:
    return (word << bits) | (word >> (U64(64) - bits))


@inlined
def _murmur_mix(
    first: np.uint64, second: np.uint64, word: np.uint64, next_word: np.uint64, c1: np.uint64, c2: np.uint64
) -> tuple[np.uint64, np.uint64]:
    """One 16-byte block."""
    first ^= _rotated(word * c1, U64(31)) * c2
    first = (_rotated(first, U64(27)) + second) * U64(5) + U64(0x52DCE729)
    second ^= _rotated(next_word * c2, U64(33)) * c1
    second = (_rotated(second, U64(31)) + first) * U64(5) + U64(0x38495AB5)
    return first, second


@inlined
def _murmur_blocks(
    data: Bytes, at: Int, blocks: Int, first: np.uint64, second: np.uint64, c1: np.uint64, c2: np.uint64
) -> tuple[np.uint64, np.uint64]:
    for block in range(blocks):
        word, next_word = load_word(data, at + 16 * block), load_word(data, at + 16 * block + 8)
        first, second = _murmur_mix(first, second, word, next_word, c1, c2)
    return first, second


@inlined
def _murmur_end(
    data: Bytes, at: Int, length: Int, first: np.uint64, second: np.uint64, c1: np.uint64, c2: np.uint64
) -> tuple[np.uint64, np.uint64]:
    """The last `length % 16` bytes, the length, and the avalanche."""
    word = next_word = U64(0)
    for k in range(length & 15):
        if k < 8:
            word |= U64(data[at + k]) << U64(8 * k)
        else:
            next_word |= U64(data[at + k]) << U64(8 * (k - 8))
    first ^= (_rotated(word * c1, U64(31)) * c2) ^ U64(length)
    second ^= (_rotated(next_word * c2, U64(33)) * c1) ^ U64(length)
    return _murmur_avalanche(first, second)


@inlined
def _murmur_avalanche(first: np.uint64, second: np.uint64) -> tuple[np.uint64, np.uint64]:
    first += second
    second += first
    first, second = mix64(first), mix64(second)
    first += second
    second += first
    return first, second


# --- one digest of all rows ---

Digest = tuple[int, int]

MERSENNE_61 = (1 << 61) - 1

# Nothing up the sleeve: first 16 hex digits of sha256(b"tokmill sequence base 0"), and of base 1, mod p.
SEQUENCE_BASES: Digest = (0x1245A028B94A1A67, 0x054C63ED6BEAB3F7)


def fold_sequence(row_hashes: Hashes) -> Digest:
    """The digest of these rows in this order; of no rows, (0, 0)."""
    first, second = _fold_sequence(
        frozen(row_hashes, np.uint64), U64(SEQUENCE_BASES[0]), U64(SEQUENCE_BASES[1])
    )
    return int(first), int(second)


def join_sequences(left: Digest, right: Digest, right_rows: int) -> Digest:
    """The digest of the rows of `left` followed by the `right_rows` rows of `right`."""
    first, second = (
        (before * pow(base, right_rows, MERSENNE_61) + after) % MERSENNE_61
        for before, after, base in zip(left, right, SEQUENCE_BASES, strict=True)
    )
    return first, second


@kernel(lambda: fold_sequence(np.zeros((1, 2), U64)))
def _fold_sequence(
    row_hashes: Hashes, first_base: np.uint64, second_base: np.uint64
) -> tuple[np.uint64, np.uint64]:
    first = second = U64(0)
    for row in range(row_hashes.shape[0]):
        first = _reduced(_times(first, first_base) + _reduced(row_hashes[row, 0]) + U64(1))
        second = _reduced(_times(second, second_base) + _reduced(row_hashes[row, 1]) + U64(1))
    return first, second


# --- arithmetic mod 2^61 - 1 ---


@inlined
def _reduced(value: np.uint64) -> np.uint64:
    prime = U64(0x1FFFFFFFFFFFFFFF)
    value = (value & prime) + (value >> U64(61))
    return value - prime if value >= prime else value


@inlined
def _times(left: np.uint64, right: np.uint64) -> np.uint64:
    """The product of two residues. With l = l1 * 2^31 + l0 and r alike, and 2^61 = 1:

    l * r  =  2 * l1 * r1  +  2^31 * (l1 * r0 + l0 * r1)  +  l0 * r0      every part below 2^62
    """
    low_31, low_30 = U64(0x7FFFFFFF), U64(0x3FFFFFFF)
    left_high, left_low = left >> U64(31), left & low_31
    right_high, right_low = right >> U64(31), right & low_31
    cross = left_high * right_low + left_low * right_high
    return _reduced(
        U64(2) * left_high * right_high
        + (cross >> U64(30))
        + ((cross & low_30) << U64(31))
        + left_low * right_low
    )

"""Hashes of documents and of rows.

    fold_hashes      text -> "the same but for case and spacing" -> 128 bits     exact deduplication
    blank_rows       text -> has it a visible character?                         the hash of one without is 0
    mix_column       row state, one column -> row state                          column by column

The states of all rows become one digest in digests.py. All byte hashing is MurmurHash3_x64_128 with seed 0 (public
domain, Austin Appleby).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.columns import Bytes, Int, Offsets, frozen, frozen_text
from tokmill.kernels.jit import inlined, kernel

Hashes = NDArray[np.uint64]

# numba makes a float of uint64 + int, so every operand of word arithmetic is a uint64 with a name or a cast.
U64 = np.uint64
ALL_BITS = U64(0xFFFFFFFFFFFFFFFF)
LOW_BITS = U64(0x0101010101010101)
LOW_SEVEN = U64(0x7F7F7F7F7F7F7F7F)
HIGH_BITS = U64(0x8080808080808080)

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


@kernel
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


@kernel
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
            # `count` bytes of this word are folded at once: those of this row, up to a whitespace beyond ASCII.
            count = min(end - at, 8)
            word = _load_word(data, at) if data.size - at >= 8 else _load_rest(data, at)
            if (word & HIGH_BITS) != U64(0):
                width = 0
                marks = _wide_space_marks(word)
                while marks != U64(0):
                    lead = at + _first_mark(marks)
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
                _store_word(folded, used, word)
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


@kernel
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
def _load_word(data: Bytes, at: Int) -> np.uint64:
    """Eight bytes as one little-endian word. LLVM makes one load of it, because the unsigned index cannot
    be negative and so needs no wrap-around."""
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


@inlined
def _load_rest(data: Bytes, at: Int) -> np.uint64:
    """The fewer than eight bytes up to the end of the buffer."""
    word = U64(0)
    for k in range(data.size - at):
        word |= U64(data[at + k]) << U64(8 * k)
    return word


@inlined
def _store_word(data: Bytes, at: Int, word: np.uint64) -> None:
    i = U64(at)
    data[i] = np.uint8(word)
    data[i + U64(1)] = np.uint8(word >> U64(8))
    data[i + U64(2)] = np.uint8(word >> U64(16))
    data[i + U64(3)] = np.uint8(word >> U64(24))
    data[i + U64(4)] = np.uint8(word >> U64(32))
    data[i + U64(5)] = np.uint8(word >> U64(40))
    data[i + U64(6)] = np.uint8(word >> U64(48))
    data[i + U64(7)] = np.uint8(word >> U64(56))


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
def _first_mark(marks: np.uint64) -> Int:
    """The number of bytes below the lowest mark; 8 if there is none."""
    lows = marks >> U64(7)
    below = (lows - U64(1)) & ~lows & LOW_BITS
    return np.int64((below * LOW_BITS) >> U64(56))


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
        word, next_word = _load_word(data, at + 16 * block), _load_word(data, at + 16 * block + 8)
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
    first, second = _fmix(first), _fmix(second)
    first += second
    second += first
    return first, second


@inlined
def _fmix(word: np.uint64) -> np.uint64:
    word = (word ^ (word >> U64(33))) * U64(0xFF51AFD7ED558CCD)
    word = (word ^ (word >> U64(33))) * U64(0xC4CEB9FE1A85EC53)
    return word ^ (word >> U64(33))

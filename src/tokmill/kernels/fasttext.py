"""Features of a line as fastText has them, and sums of what is known of each: the words of any model.

    row        the cat sat                        words between white space; the end of the line is one more
    words      row of the word, if it is known
    n-grams    <t <th <the th the the> he he> e>  of <the>: min_chars to max_chars characters, a bucket each
    word
    n-grams    the·cat cat·sat sat·</s>           hashes of 2 to word_ngrams words, a bucket each
    sums       table[row of each feature], added up as whole numbers, and how many features there were

    memory     | bytes 0-31 of the word | features, hash | sums |      one slot for a word met before

fastText adds vectors of floats and multiplies the mean with its outputs. Both are linear, so what a feature
adds to an output is known before any text: one whole number for each output that is asked for, in place of a
vector. Whole numbers add up to the same in any order and on any machine, and a word's n-grams to one sum that
is remembered: the bytes of the word are compared, so the memory changes the cost and never a sum.

A word that begins with __label__ is no word to fastText, and </s> standing alone ends the line.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import (
    HIGH_BITS,
    LOW_BITS,
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
)

U64 = np.uint64
ABOVE_BLANK = U64(0x5F5F5F5F5F5F5F5F)  # added to 33 or more, the high bit of its byte

LESS, MORE = 0x3C, 0x3E  # < and > stand around a word
HASH_START, HASH_FACTOR = np.uint32(2166136261), np.uint32(16777619)  # FNV-1a
_NGRAM_FACTOR = U64(116049371)
_EOS_HASH = np.uint32(3617362777)  # of </s>
_LABEL = np.frombuffer(b"__label__", np.uint8)
_EOS = np.frombuffer(b"</s>", np.uint8)

KEY_BYTES = 32
_KEY_FACTORS = (
    U64(0x9E3779B97F4A7C15),
    U64(0xC2B2AE3D27D4EB4F),
    U64(0x165667B19E3779F9),
    U64(0x27D4EB2F165667C5),
)
_HEAD_WORDS = 5  # of a slot, before its sums: the key, and features with the hash
_MAX_MEMORY_WORDS = (
    1 << 20
)  # 8 MB: with 2 MB five labels and subwords were scored at nine tenths of the speed
_NO_WORD = -1  # features of a label
# Rows are gathered and added up in a loop of their own, so that their loads do not wait for each other: 88 to
# 107 MB/s with word bigrams.
_WAITING_ROWS = 256

Key = tuple[np.uint64, np.uint64, np.uint64, np.uint64]  # a word's bytes, zeros after it


class Vocabulary(NamedTuple):
    """How words and buckets become rows of a table."""

    words: Bytes  # all words, one after the other
    word_ends: Offsets  # [words + 1]
    word_slots: NDArray[np.int32]  # hash & (slots - 1), then the next: row of the word, -1 none
    buckets: int  # of hashes of n-grams; 0: there are none
    is_pruned: bool  # only some buckets have a row
    gram_bits: NDArray[np.uint64]  # one bit for each bucket: 250 kB, where a row for each is 8 MB
    gram_ranks: NDArray[np.int32]  # bits set before each 64
    gram_rows: NDArray[np.int32]  # of the bits that are set
    min_chars: int
    max_chars: int  # 0: no n-grams of characters
    word_ngrams: int
    eos_row: int  # of the end of a line, -1 none

    @property
    def rows(self) -> int:
        """That a table needs."""
        own = self.word_ends.size - 1
        last = int(self.gram_rows.max(initial=-1)) + 1 if self.is_pruned else own + self.buckets
        return max(own, last)


class Sums(NamedTuple):
    sums: NDArray[np.int64]  # [row, width]
    features: NDArray[np.int64]  # [row]


def sum_features(
    data: Bytes,
    offsets: Offsets,
    vocabulary: Vocabulary,
    table: NDArray[np.int32],
    memory: NDArray[np.uint64] | None = None,
) -> Sums:
    """Of each row of text, which is one line whatever white space it has. `table` is [row, width].

    `memory` may be kept from call to call, for one table and one thread.
    """
    data, offsets, rows = frozen_text(data, offsets)
    width = table.shape[1]
    if table.shape[0] < vocabulary.rows:
        raise ValueError(f"a table of {table.shape[0]} rows for {vocabulary.rows} features")
    sums, features = np.zeros((rows, width), np.int64), np.zeros(rows, np.int64)
    memory = word_sums(width) if memory is None else memory
    stride = _stride(width)
    _sum_features(
        data,
        offsets,
        frozen(vocabulary.words, np.uint8),
        frozen(vocabulary.word_ends, np.int64),
        frozen(vocabulary.word_slots, np.int32),
        U64(vocabulary.buckets),
        U64(min((1 << 64) // max(vocabulary.buckets, 1), (1 << 64) - 1)),
        vocabulary.is_pruned,
        frozen(vocabulary.gram_bits, np.uint64),
        frozen(vocabulary.gram_ranks, np.int32),
        frozen(vocabulary.gram_rows, np.int32),
        vocabulary.min_chars,
        vocabulary.max_chars,
        vocabulary.word_ngrams,
        vocabulary.eos_row,
        frozen(table, np.int32).reshape(-1),
        width,
        memory,
        stride,
        (memory.size // stride).bit_length() - 1,
        np.empty(int(np.diff(offsets).max(initial=0)) + 3, np.uint8),
        np.zeros(max(vocabulary.word_ngrams - 1, 1), np.uint64),
        np.zeros(_WAITING_ROWS + max(vocabulary.word_ngrams, vocabulary.max_chars + 1), np.int64),
        np.zeros(_WAITING_ROWS + max(vocabulary.word_ngrams, vocabulary.max_chars + 1), np.int64),
        np.zeros(width, np.int64),
        sums.reshape(-1),
        features,
    )
    return Sums(sums, features)


def word_sums(width: int) -> NDArray[np.uint64]:
    """The memory of a table of this width: of no word yet."""
    stride = _stride(width)
    slots = 1 << max((_MAX_MEMORY_WORDS // stride).bit_length() - 1, 4)
    return np.zeros(slots * stride, np.uint64)


def _stride(width: int) -> int:
    return -(-(_HEAD_WORDS + width) // 8) * 8


def no_vocabulary() -> Vocabulary:
    """Of no word: for the first call."""
    none = np.full(1, -1, np.int32)
    return Vocabulary(
        words=np.zeros(0, np.uint8),
        word_ends=np.zeros(2, np.int64),
        word_slots=none,
        buckets=0,
        is_pruned=False,
        gram_bits=np.zeros(1, np.uint64),
        gram_ranks=none,
        gram_rows=none,
        min_chars=0,
        max_chars=0,
        word_ngrams=1,
        eos_row=-1,
    )


ones = Instruction("ones")


_high = Instruction("high_half")


@raw_step
def _modulo(value: np.uint64, divisor: np.uint64, inverse: np.uint64) -> np.uint64:
    """By two multiplications: `inverse` is 2^64 / divisor, so the quotient is at most 2 too small. There is
    one for each n-gram, and a division is slow."""
    rest = value - _high(value, inverse) * divisor
    if rest >= divisor:
        rest -= divisor
    if rest >= divisor:
        rest -= divisor
    return U64(rest)


@raw_kernel(lambda: sum_features(*TEXT, no_vocabulary(), np.zeros((1, 1), np.int32)))
def _sum_features(
    data: Bytes,
    offsets: Offsets,
    words: Bytes,
    word_ends: Offsets,
    word_slots: NDArray[np.int32],
    buckets: np.uint64,
    inverse: np.uint64,
    is_pruned: bool,
    gram_bits: NDArray[np.uint64],
    gram_ranks: NDArray[np.int32],
    gram_rows: NDArray[np.int32],
    min_chars: Int,
    max_chars: Int,
    word_ngrams: Int,
    eos_row: Int,
    table: NDArray[np.int32],
    width: Int,
    memory: NDArray[np.uint64],
    stride: Int,
    slot_bits: Int,
    spelled: Bytes,  # <word> and a zero
    starts: NDArray[np.uint64],  # hashes of the last words, each with all that came after it
    pending: NDArray[np.int64],  # rows of n-grams of words that are to be added
    grams: NDArray[np.int64],  # of n-grams of characters
    word: NDArray[np.int64],  # sums of one
    sums: NDArray[np.int64],
    features: NDArray[np.int64],
) -> None:
    word_rows = word_ends.size - 1
    for row in range(offsets.size - 1):
        into = U64(row * width)
        count: Int = 0
        waiting: Int = 0
        held: Int = 0
        at, end = offsets[row], offsets[row + 1]
        while at < end:
            if is_blank(data[U64(at)]):
                at += 1
                continue
            stop, key = word_key(data, at, end)
            is_short = stop > at
            slot = (mixed_key(key) >> U64(64 - slot_bits)) * U64(stride)
            if (
                is_short
                and memory[slot] == key[0]
                and memory[slot + U64(1)] == key[1]
                and memory[slot + U64(2)] == key[2]
                and memory[slot + U64(3)] == key[3]
            ):
                head = memory[slot + U64(4)]
                known = np.int64(np.int32(np.uint32(head >> U64(32))))
                state = np.uint32(head)
                at = stop
                if known == _NO_WORD:
                    continue
                for w in range(width):
                    sums[into + U64(w)] += np.int64(memory[slot + U64(_HEAD_WORDS + w)])
                count += known
            else:
                stop, state = spell(data, at, end, spelled)
                if _is_equal(data, at, stop, _EOS):
                    break
                for w in range(width):
                    word[U64(w)] = 0
                own: Int = 0
                found = word_row(state, data, at, stop, words, word_ends, word_slots)
                if found < 0 and _begins(data, at, stop, _LABEL):
                    own = _NO_WORD
                else:
                    if found >= 0:
                        grams[0] = found
                        _add_rows(word, U64(0), table, grams, 1, width)
                        own += 1
                    if max_chars > 0 and buckets > 0:
                        own += _add_grams(
                            spelled,
                            stop - at + 2,
                            min_chars,
                            max_chars,
                            buckets,
                            inverse,
                            is_pruned,
                            gram_bits,
                            gram_ranks,
                            gram_rows,
                            word_rows,
                            grams,
                            word,
                            table,
                            width,
                        )
                if is_short:
                    memory[slot], memory[slot + U64(1)] = key[0], key[1]
                    memory[slot + U64(2)], memory[slot + U64(3)] = key[2], key[3]
                    memory[slot + U64(4)] = U64(np.uint32(np.int32(own))) << U64(32) | U64(state)
                    for w in range(width):
                        memory[slot + U64(_HEAD_WORDS + w)] = U64(word[U64(w)])
                at = stop
                if own == _NO_WORD:
                    continue
                for w in range(width):
                    sums[into + U64(w)] += word[U64(w)]
                count += own
            if word_ngrams > 1 and buckets > 0:
                hashed = U64(np.int64(np.int32(state)))
                for k in range(waiting):
                    starts[U64(k)] = starts[U64(k)] * _NGRAM_FACTOR + hashed
                    gram = bucket_row(
                        _modulo(starts[U64(k)], buckets, inverse),
                        is_pruned,
                        gram_bits,
                        gram_ranks,
                        gram_rows,
                        word_rows,
                    )
                    pending[U64(held)] = gram
                    held += gram >= 0
                if held >= _WAITING_ROWS:
                    _add_rows(sums, into, table, pending, held, width)
                    count, held = count + held, 0
                waiting = _wait(starts, waiting, word_ngrams - 1, hashed)
        if word_ngrams > 1 and buckets > 0:
            hashed = U64(np.int64(np.int32(_EOS_HASH)))
            for k in range(waiting):
                gram = bucket_row(
                    _modulo(starts[U64(k)] * _NGRAM_FACTOR + hashed, buckets, inverse),
                    is_pruned,
                    gram_bits,
                    gram_ranks,
                    gram_rows,
                    word_rows,
                )
                pending[U64(held)] = gram
                held += gram >= 0
        if eos_row >= 0:
            pending[U64(held)] = eos_row
            held += 1
        _add_rows(sums, into, table, pending, held, width)
        count += held
        features[row] = count


@raw_step
def _wait(starts: NDArray[np.uint64], waiting: Int, most: Int, hashed: np.uint64) -> Int:
    """One more word that n-grams begin with; the first one goes where there are `most`."""
    if waiting == most:
        for k in range(1, waiting):
            starts[U64(k - 1)] = starts[U64(k)]
        waiting -= 1
    starts[U64(waiting)] = hashed
    return waiting + 1


@raw_step
def _add_rows(
    sums: NDArray[np.int64],
    into: np.uint64,
    table: NDArray[np.int32],
    rows: NDArray[np.int64],
    count: Int,
    width: Int,
) -> None:
    if width == 1:
        total: Int = 0
        for k in range(count):
            total += np.int64(table[U64(rows[U64(k)])])
        sums[into] += total
        return
    for k in range(count):
        first = U64(rows[U64(k)] * width)
        for w in range(width):
            sums[into + U64(w)] += np.int64(table[first + U64(w)])


@raw_step
def _add_grams(
    spelled: Bytes,
    size: Int,
    min_chars: Int,
    max_chars: Int,
    buckets: np.uint64,
    inverse: np.uint64,
    is_pruned: bool,
    gram_bits: NDArray[np.uint64],
    gram_ranks: NDArray[np.int32],
    gram_rows: NDArray[np.int32],
    word_rows: Int,
    grams: NDArray[np.int64],
    word: NDArray[np.int64],
    table: NDArray[np.int32],
    width: Int,
) -> Int:
    """N-grams of characters of <word>; how many have a row."""
    count: Int = 0
    held: Int = 0
    for start in range(size):
        if is_inside(spelled[U64(start)]):
            continue
        if held >= _WAITING_ROWS:
            _add_rows(word, U64(0), table, grams, held, width)
            count, held = count + held, 0
        state = HASH_START
        place, chars = start, 0
        while place < size and chars < max_chars:
            state = mix(state, spelled[U64(place)])
            place += 1
            while is_inside(spelled[U64(place)]):
                state = mix(state, spelled[U64(place)])
                place += 1
            chars += 1
            if chars >= min_chars and not (chars == 1 and (start == 0 or place == size)):
                gram = bucket_row(
                    _modulo(U64(state), buckets, inverse),
                    is_pruned,
                    gram_bits,
                    gram_ranks,
                    gram_rows,
                    word_rows,
                )
                grams[U64(held)] = gram
                held += gram >= 0
    _add_rows(word, U64(0), table, grams, held, width)
    return count + held


@raw_step
def bucket_row(
    bucket: np.uint64,
    is_pruned: bool,
    gram_bits: NDArray[np.uint64],
    gram_ranks: NDArray[np.int32],
    gram_rows: NDArray[np.int32],
    word_rows: Int,
) -> Int:
    """-1: nothing is known of what falls into it."""
    if not is_pruned:
        return word_rows + np.int64(bucket)
    bits = gram_bits[bucket >> U64(6)]
    if not (bits >> (bucket & U64(63))) & U64(1):
        return np.int64(-1)
    before = bits & ((U64(1) << (bucket & U64(63))) - U64(1))
    return np.int64(gram_rows[U64(gram_ranks[bucket >> U64(6)]) + ones(before)])


@raw_step
def _is_equal(data: Bytes, at: Int, stop: Int, other: Bytes) -> bool:
    return bool(stop - at == other.size and _begins(data, at, stop, other))


@raw_step
def _begins(data: Bytes, at: Int, stop: Int, other: Bytes) -> bool:
    same: Int = 0
    while same < min(stop - at, other.size) and data[U64(at + same)] == other[same]:
        same += 1
    return bool(same == other.size)


# --- steps that the kernel for languages has too ---


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


@raw_step
def word_key(data: Bytes, at: Int, end: Int) -> tuple[Int, Key]:
    """Where the word ends, and its bytes; `at` if it is long,
    near the end of the column or has a control inside."""
    a = b = c = d = U64(0)
    if at + KEY_BYTES > data.size:
        return at, (a, b, c, d)
    a, size = _until_blank(data, at)
    if size == 8:
        b, more = _until_blank(data, at + 8)
        size += more
        if size == 16:
            c, more = _until_blank(data, at + 16)
            size += more
            if size == 24:
                d, more = _until_blank(data, at + 24)
                size += more
    if at + size > end:  # what was read is of the next row
        size = end - at
        a, b, c, d = _head(a, size), _head(b, size - 8), _head(c, size - 16), _head(d, size - 24)
    if at + size < end and not is_blank(data[U64(at + size)]):
        return at, (a, b, c, d)
    return at + size, (a, b, c, d)


@raw_step
def _until_blank(data: Bytes, at: Int) -> tuple[np.uint64, Int]:
    """Of eight bytes those before the first blank or control, and how many."""
    word = load_word(data, at)
    blanks = ~(((word & LOW_SEVEN) + ABOVE_BLANK) | word) & HIGH_BITS
    before = ((blanks & (~blanks + U64(1))) >> U64(7)) - U64(1)
    return word & before, np.int64(((before & LOW_BITS) * LOW_BITS) >> U64(56))


@raw_step
def _head(word: np.uint64, size: Int) -> np.uint64:
    if size >= 8:
        return word
    return word & ((U64(1) << U64(8 * max(size, 0))) - U64(1))


@raw_step
def mixed_key(key: Key) -> np.uint64:
    """Its high bits are the slot of the word in a memory."""
    a, b, c, d = _KEY_FACTORS
    return U64((key[0] * a) ^ (key[1] * b) ^ (key[2] * c) ^ (key[3] * d))


@raw_step
def spell(data: Bytes, at: Int, end: Int, spelled: Bytes) -> tuple[Int, np.uint32]:
    """Copies the word into < and >; its end and its hash."""
    state, size = HASH_START, 1
    spelled[0] = LESS
    while at < end and not is_blank(data[U64(at)]):
        state = mix(state, data[U64(at)])
        spelled[U64(size)] = data[U64(at)]
        at += 1
        size += 1
    spelled[U64(size)], spelled[U64(size + 1)] = MORE, 0
    return at, state


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
        if word_ends[row + U64(1)] - first == stop - at:
            same: Int = 0
            while same < stop - at and words[U64(first + same)] == data[U64(at + same)]:
                same += 1
            if same == stop - at:
                return np.int64(row)
        slot = (slot + U64(1)) & slots
    return np.int64(-1)


# --- the words of a file ---


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

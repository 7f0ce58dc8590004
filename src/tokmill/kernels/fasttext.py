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

from tokmill.kernels.fasttext_words import (
    HASH_START,
    SPELLED_MORE,
    hash_word,
    head_of,
    is_blank,
    is_inside,
    mix,
    spell,
    word_end,
    word_key,
    word_row,
)
from tokmill.kernels.jit import (
    HIGH_BITS,
    TEXT,
    Bytes,
    Instruction,
    Int,
    Offsets,
    called_step,
    frozen,
    frozen_text,
    load_word,
    raw_kernel,
    raw_step,
)

U64 = np.uint64
NGRAM_FACTOR = U64(116049371)
EOS_HASH = np.uint32(3617362777)  # of </s>
LABEL = np.frombuffer(b"__label__", np.uint8)
EOS = np.frombuffer(b"</s>", np.uint8)

_HEAD_WORDS = 5  # of a slot, before its sums: the key, and features with the hash
# 8 MB where a word has n-grams of characters, 2 MB where it has none and costs little when it is met anew.
# With a quarter of either a tenth less text was scored in the same time.
_MEMORY_WORDS, _SMALL_MEMORY_WORDS = 1 << 20, 1 << 18
_LANES = 8  # of vectors: n-grams that are hashed, and columns that are added, at a time
_NO_WORD = -1  # features of a label
_TAKEN = 32  # words that are cut off before they are looked up
_NO_SLOT = U64(0xFFFFFFFFFFFFFFFF)  # of a long word
# N-grams are made of many words at a time, and their rows are added up in a loop of their own, so that loads
# do not wait for each other: 88 to 107 MB/s with word bigrams. So are words looked up, from slots that were
# asked for when the words were cut off: 177 to 190.
_WAITING = 256
_MANY_BUCKETS = U64(1 << 31)  # fastText has no more; vectors divide by what has 32 bits


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


def lanes_of(width: int) -> int:
    """Columns that a table of so many outputs has: one, or whole vectors of them, the last ones 0."""
    return 1 if width <= 1 else -(-width // _LANES) * _LANES


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
    """Of each row of text, which is one line whatever white space it has. `table` is
    [row, lanes_of(outputs)].

    `memory` may be kept from call to call, for one table and one thread.
    """
    data, offsets, rows = frozen_text(data, offsets)
    width = table.shape[1]
    if table.shape[0] < vocabulary.rows:
        raise ValueError(f"a table of {table.shape[0]} rows for {vocabulary.rows} features")
    if width != lanes_of(width):
        raise ValueError(f"a table of {width} columns, which are {lanes_of(width)}")
    sums, features = np.zeros((rows, width), np.int64), np.zeros(rows, np.int64)
    memory = word_sums(width, vocabulary.max_chars) if memory is None else memory
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
        np.empty(int(np.diff(offsets).max(initial=0)) + SPELLED_MORE, np.uint8),
        np.zeros(4 * _TAKEN, np.uint64),
        np.zeros(_TAKEN, np.uint64),
        np.zeros(2 * _TAKEN, np.int64),
        np.zeros(_WAITING + vocabulary.word_ngrams, np.uint64),
        np.zeros(_WAITING + vocabulary.word_ngrams, np.uint64),
        np.zeros((_WAITING + vocabulary.word_ngrams) * max(vocabulary.word_ngrams - 1, 1) + 1, np.int64),
        np.zeros(_WAITING + _LANES * (vocabulary.max_chars + 1), np.int64),
        np.zeros(width, np.int64),
        sums.reshape(-1),
        features,
    )
    return Sums(sums, features)


def word_sums(width: int, max_chars: int) -> NDArray[np.uint64]:
    """The memory of a table of this width: of no word yet."""
    stride = _stride(width)
    words = _MEMORY_WORDS if max_chars else _SMALL_MEMORY_WORDS
    slots = 1 << max((words // stride).bit_length() - 1, 4)
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


add_eight = Instruction("add_eight")
bucket_grams = Instruction("bucket_grams")
ones = Instruction("ones")
_high = Instruction("high_half")
_prefetch = Instruction("prefetch")


@raw_step
def _modulo(value: np.uint64, divisor: np.uint64, inverse: np.uint64) -> np.uint64:
    """By two multiplications: `inverse` is 2^64 / divisor, so the quotient is at most 2 too small. There is
    one for each n-gram, and a division is slow."""
    rest = value - _high(value, inverse) * divisor
    rest = min(rest, rest - divisor)
    return U64(min(rest, rest - divisor))


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
    keys: NDArray[np.uint64],  # of the words that were taken, four of each
    slots: NDArray[np.uint64],  # theirs in the memory
    places: NDArray[np.int64],  # where each begins and ends
    hashes: NDArray[np.uint64],  # of the last words: n-grams of words are made of many at a time
    states: NDArray[np.uint64],  # of the n-grams that begin with them
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
        held: Int = 0
        total: Int = 0  # of one output: in a register
        at, end = offsets[row], offsets[row + 1]
        while at < end:
            at, taken = _take_words(data, at, end, slot_bits, stride, memory, keys, slots, places)
            for one in range(taken):
                start, stop = places[U64(2 * one)], places[U64(2 * one + 1)]
                slot, key = slots[U64(one)], U64(4 * one)
                is_short = slot != _NO_SLOT
                apart = U64(1)
                if is_short:
                    apart = memory[slot] ^ keys[key]
                    for k in range(1, 4):
                        apart |= memory[slot + U64(k)] ^ keys[key + U64(k)]
                if apart == U64(0):
                    head = memory[slot + U64(4)]
                    known = np.int64(np.int32(np.uint32(head >> U64(32))))
                    state = np.uint32(head)
                    if known == _NO_WORD:
                        continue
                    if width == 1:
                        total += np.int64(memory[slot + U64(_HEAD_WORDS)])
                    else:
                        for w in range(width):
                            sums[into + U64(w)] += np.int64(memory[slot + U64(_HEAD_WORDS + w)])
                    count += known
                else:
                    state = hash_word(data, start, stop)
                    if _is_equal(data, start, stop, EOS):
                        at = end
                        break
                    for w in range(width):
                        word[U64(w)] = 0
                    own: Int = 0
                    found = word_row(state, data, start, stop, words, word_ends, word_slots)
                    if found < 0 and begins(data, start, stop, LABEL):
                        own = _NO_WORD
                    else:
                        if found >= 0:
                            grams[0] = found
                            _add_rows(word, U64(0), table, grams, 1, width)
                            own += 1
                        if max_chars > 0 and buckets > 0:
                            spell(data, start, stop, spelled)
                            own += _add_grams(
                                spelled,
                                stop - start + 2,
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
                        for k in range(4):
                            memory[slot + U64(k)] = keys[key + U64(k)]
                        memory[slot + U64(4)] = U64(np.uint32(np.int32(own))) << U64(32) | U64(state)
                        for w in range(width):
                            memory[slot + U64(_HEAD_WORDS + w)] = U64(word[U64(w)])
                    if own == _NO_WORD:
                        continue
                    for w in range(width):
                        sums[into + U64(w)] += word[U64(w)]
                    count += own
                if word_ngrams > 1 and buckets > 0:
                    hashes[U64(held)] = U64(np.int64(np.int32(state)))
                    held += 1
                    if held == hashes.size - 1:
                        whole = held - word_ngrams + 1
                        rows = _word_grams(
                            hashes,
                            held,
                            whole,
                            word_ngrams,
                            buckets,
                            inverse,
                            is_pruned,
                            gram_bits,
                            gram_ranks,
                            gram_rows,
                            word_rows,
                            states,
                            pending,
                        )
                        _add_rows(sums, into, table, pending, rows, width)
                        count += rows
                        for k in range(word_ngrams - 1):
                            hashes[U64(k)] = hashes[U64(whole + k)]
                        held = word_ngrams - 1
        if width == 1:
            sums[into] += total
        rows = 0
        if word_ngrams > 1 and buckets > 0:
            hashes[U64(held)] = U64(np.int64(np.int32(EOS_HASH)))
            held += 1
            rows = _word_grams(
                hashes,
                held,
                held,
                word_ngrams,
                buckets,
                inverse,
                is_pruned,
                gram_bits,
                gram_ranks,
                gram_rows,
                word_rows,
                states,
                pending,
            )
        if eos_row >= 0:
            pending[U64(rows)] = eos_row
            rows += 1
        _add_rows(sums, into, table, pending, rows, width)
        count += rows
        features[row] = count


@raw_step
def _take_words(
    data: Bytes,
    at: Int,
    end: Int,
    slot_bits: Int,
    stride: Int,
    memory: NDArray[np.uint64],
    keys: NDArray[np.uint64],
    slots: NDArray[np.uint64],
    places: NDArray[np.int64],
) -> tuple[Int, Int]:
    """The next words, whose slots are on their way into the cache: where they end, and how many."""
    taken: Int = 0
    while at < end and taken < slots.size:
        if data[U64(at)] <= 32 and is_blank(data[U64(at)]):
            at += 1
            continue
        stop, key, mixed = word_key(data, at, end)
        slot = _NO_SLOT
        if stop == at:
            stop = word_end(data, at, end)
        else:
            slot = (mixed >> U64(64 - slot_bits)) * U64(stride)
            _prefetch(memory, slot)
            first = U64(4 * taken)
            keys[first], keys[first + U64(1)] = key[0], key[1]
            keys[first + U64(2)], keys[first + U64(3)] = key[2], key[3]
        slots[U64(taken)] = slot
        places[U64(2 * taken)], places[U64(2 * taken + 1)] = at, stop
        taken += 1
        at = stop + 1  # there is a blank
    return at, taken


@raw_step
def _word_grams(
    hashes: NDArray[np.uint64],
    held: Int,
    whole: Int,
    word_ngrams: Int,
    buckets: np.uint64,
    inverse: np.uint64,
    is_pruned: bool,
    gram_bits: NDArray[np.uint64],
    gram_ranks: NDArray[np.int32],
    gram_rows: NDArray[np.int32],
    word_rows: Int,
    states: NDArray[np.uint64],
    pending: NDArray[np.int64],
) -> Int:
    """Rows of the n-grams that begin with one of the first `whole` words: how many."""
    rows: Int = 0
    if word_ngrams == 2 and not is_pruned:
        rows = min(whole, held - 1)
        for first in range(rows):
            state = hashes[U64(first)] * NGRAM_FACTOR + hashes[U64(first + 1)]
            pending[U64(first)] = word_rows + np.int64(_modulo(state, buckets, inverse))
        return rows
    for size in range(1, word_ngrams):
        for first in range(min(whole, held - size)):
            before = hashes[U64(first)] if size == 1 else states[U64(first)]
            state = before * NGRAM_FACTOR + hashes[U64(first + size)]
            if word_ngrams > 2:
                states[U64(first)] = state
            gram = bucket_row(
                _modulo(state, buckets, inverse), is_pruned, gram_bits, gram_ranks, gram_rows, word_rows
            )
            pending[U64(rows)] = gram
            rows += gram >= 0
    return rows


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
    _add_vectors(sums, into, table, rows, count, width)


@called_step
def _add_vectors(
    sums: NDArray[np.int64],
    into: np.uint64,
    table: NDArray[np.int32],
    rows: NDArray[np.int64],
    count: Int,
    width: Int,
) -> None:
    for lane in range(0, width, _LANES):
        add_eight(sums, np.int64(into) + lane, table, rows, count, width, lane)


@called_step
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
    """N-grams of characters of <word>; how many have a row. Of ASCII, eight are hashed at a time: 37 to
    64 MB/s where every seventh word is new. Vectors in the loop over words slow it down: they are called."""
    count: Int = 0
    held: Int = 0
    if min_chars > 1 and buckets < _MANY_BUCKETS and _is_ascii(spelled, size):
        first = 0 if is_pruned else word_rows
        for start in range(0, size, _LANES):
            if held >= _WAITING:
                _add_rows(word, U64(0), table, grams, held, width)
                count, held = count + held, 0
            before, held = (
                held,
                bucket_grams(
                    spelled,
                    start,
                    size,
                    min_chars,
                    max_chars,
                    buckets,
                    inverse >> U64(32),
                    first,
                    grams,
                    held,
                ),
            )
            if is_pruned:
                after, held = held, before
                for k in range(before, after):
                    gram = bucket_row(
                        U64(grams[U64(k)]), is_pruned, gram_bits, gram_ranks, gram_rows, word_rows
                    )
                    grams[U64(held)] = gram
                    held += gram >= 0
        _add_rows(word, U64(0), table, grams, held, width)
        return count + held
    for start in range(size):
        if is_inside(spelled[U64(start)]):
            continue
        if held >= _WAITING:
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
def _is_ascii(spelled: Bytes, size: Int) -> bool:
    bits = U64(0)
    for at in range(0, size, 8):
        bits |= head_of(load_word(spelled, at), size - at)
    return bool(bits & HIGH_BITS == U64(0))


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
    return bool(stop - at == other.size and begins(data, at, stop, other))


@raw_step
def begins(data: Bytes, at: Int, stop: Int, other: Bytes) -> bool:
    same: Int = 0
    while same < min(stop - at, other.size) and data[U64(at + same)] == other[same]:
        same += 1
    return bool(same == other.size)

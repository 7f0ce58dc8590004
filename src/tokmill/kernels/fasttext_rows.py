"""The features of one line in the order in which fastText adds them, and its sums of floats in that order.

    words and their n-grams of characters, as they stand · the end of the line · n-grams of words
    hidden = (row + row + ...) x (1 / features) · logit = hidden[0] x output[0] + hidden[1] x output[1] + ...

Each step rounds to float32, as fastText's does. Sums of whole numbers (fasttext.py) are quicker and closer to
the truth; these are for where fastText's last bits decide: at the seams of the table that it looks sigmoids
up in.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.fasttext import (
    EOS,
    EOS_HASH,
    LABEL,
    NGRAM_FACTOR,
    Vocabulary,
    begins,
    bucket_row,
    no_vocabulary,
)
from tokmill.kernels.fasttext_words import (
    HASH_START,
    SPELLED_MORE,
    hash_word,
    is_blank,
    is_inside,
    mix,
    spell,
    word_end,
    word_row,
)
from tokmill.kernels.jit import Bytes, Int, Offsets, frozen, raw_kernel

U64 = np.uint64
Floats = NDArray[np.float32]


def feature_rows(line: Bytes, vocabulary: Vocabulary) -> NDArray[np.int64]:
    """Of one line of text, in order."""
    words = len(line) // 2 + 1
    grams = max(vocabulary.max_chars - max(vocabulary.min_chars, 1) + 1, 0) if vocabulary.max_chars else 0
    rows = np.empty(words * (1 + vocabulary.word_ngrams) + (len(line) + 2 * words) * grams + 1, np.int64)
    count = _feature_rows(
        frozen(line, np.uint8),
        frozen(vocabulary.words, np.uint8),
        frozen(vocabulary.word_ends, np.int64),
        frozen(vocabulary.word_slots, np.int32),
        U64(vocabulary.buckets),
        vocabulary.is_pruned,
        frozen(vocabulary.gram_bits, np.uint64),
        frozen(vocabulary.gram_ranks, np.int32),
        frozen(vocabulary.gram_rows, np.int32),
        vocabulary.min_chars,
        vocabulary.max_chars,
        vocabulary.word_ngrams,
        vocabulary.eos_row,
        np.empty(len(line) + SPELLED_MORE, np.uint8),
        np.empty(words + 1, np.uint64),
        rows,
    )
    return rows[:count]


def add_in_order(hidden: Floats, rows: Floats) -> None:
    """`hidden` and each of the rows, one after the other."""
    _add_in_order(hidden, frozen(rows, np.float32))


def dot_in_order(hidden: Floats, output: Floats) -> np.float32:
    return np.float32(_dot_in_order(frozen(hidden, np.float32), frozen(output, np.float32)))


@raw_kernel(lambda: feature_rows(np.zeros(0, np.uint8), no_vocabulary()))
def _feature_rows(
    line: Bytes,
    words: Bytes,
    word_ends: Offsets,
    word_slots: NDArray[np.int32],
    buckets: np.uint64,
    is_pruned: bool,
    gram_bits: NDArray[np.uint64],
    gram_ranks: NDArray[np.int32],
    gram_rows: NDArray[np.int32],
    min_chars: Int,
    max_chars: Int,
    word_ngrams: Int,
    eos_row: Int,
    spelled: Bytes,
    hashes: NDArray[np.uint64],
    rows: NDArray[np.int64],
) -> Int:
    word_rows = word_ends.size - 1
    count: Int = 0
    held: Int = 0
    at: Int = 0
    while at < line.size:
        if is_blank(line[U64(at)]):
            at += 1
            continue
        stop = word_end(line, at, line.size)
        if stop - at == EOS.size and begins(line, at, stop, EOS):
            break
        state = hash_word(line, at, stop)
        found = word_row(state, line, at, stop, words, word_ends, word_slots)
        if found < 0 and begins(line, at, stop, LABEL):
            at = stop
            continue
        hashes[U64(held)] = U64(np.int64(np.int32(state)))
        held += 1
        rows[U64(count)] = found
        count += found >= 0
        if max_chars > 0 and buckets > 0:
            spell(line, at, stop, spelled)
            size = stop - at + 2
            for start in range(size):
                if is_inside(spelled[U64(start)]):
                    continue
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
                        bucket = U64(state) % buckets
                        gram = bucket_row(bucket, is_pruned, gram_bits, gram_ranks, gram_rows, word_rows)
                        rows[U64(count)] = gram
                        count += gram >= 0
        at = stop
    rows[U64(count)] = eos_row
    count += eos_row >= 0
    hashes[U64(held)] = U64(np.int64(np.int32(EOS_HASH)))
    held += 1
    if word_ngrams > 1 and buckets > 0:
        for first in range(held):
            gram_state = hashes[U64(first)]
            for last in range(first + 1, min(first + word_ngrams, held)):
                gram_state = gram_state * NGRAM_FACTOR + hashes[U64(last)]
                gram = bucket_row(
                    gram_state % buckets, is_pruned, gram_bits, gram_ranks, gram_rows, word_rows
                )
                rows[U64(count)] = gram
                count += gram >= 0
    return count


@raw_kernel(lambda: add_in_order(np.zeros(1, np.float32), np.zeros((1, 1), np.float32)))
def _add_in_order(hidden: Floats, rows: Floats) -> None:
    for row in range(rows.shape[0]):
        for d in range(hidden.size):
            hidden[d] = np.float32(hidden[d] + rows[row, d])


@raw_kernel(lambda: dot_in_order(np.zeros(1, np.float32), np.zeros(1, np.float32)))
def _dot_in_order(hidden: Floats, output: Floats) -> np.float32:
    total = np.float32(0)
    for d in range(hidden.size):
        total = np.float32(total + np.float32(hidden[d] * output[d]))
    return total

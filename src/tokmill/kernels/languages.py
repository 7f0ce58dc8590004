"""The language of each row by a fastText model:
a sum of vectors of its words and n-grams, and a walk down a tree.

    row        the cat sat                              words between white space;
                                                        the end of the line is one more
    n-grams    <t <th <the th the the> he he> e> <c …   of <the>, <cat>, …: min_chars to max_chars characters
    hidden     mean of the vectors of all words and n-grams that the model knows
    tree       from the root: sigmoid(node . hidden) is the share of the right child; the likeliest leaf is
               the label

    memory     | bytes 0-15 | count | 23 rows of vectors | bytes 16-31 |   one slot, 128 bytes,
                                                                           for a word met before

Sums are float32 in the order of the text. A vector is norm x unit, and fastText's compiled code multiplies
and adds in one rounding there, and in two roundings at the nodes; so does this, and the scores of 42,136
documents are the same to the last bit, at 19 times the speed: fastText makes a string and looks into a hash
map for each n-gram, 3 for a byte. Nine words of ten are in the memory: what they add is known, and no n-gram
is hashed. It holds bytes, not hashes of words, so it changes the cost and never a score: 20 MB of excerpts
take 0.28 s with it and 0.60 without.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.fasttext import ones
from tokmill.kernels.fasttext_words import (
    HASH_START,
    KEY_BYTES,
    SPELLED_MORE,
    Key,
    hash_word,
    is_blank,
    is_inside,
    mix,
    spell,
    word_end,
    word_key,
    word_row,
)
from tokmill.kernels.jit import (
    LANES,
    TEXT,
    Bytes,
    Instruction,
    Int,
    Offsets,
    frozen,
    frozen_text,
    raw_kernel,
    raw_step,
)

U64 = np.uint64
_NO_LABEL = np.float32(-np.inf)
_MIN_LOG_SCORE = np.float32(math.log(1e-5))  # fastText follows no branch below the threshold 0 plus 1e-5

# 2 MB for 16,384 words. Half of the slots cost 5 % more time, twice as many save none.
_SLOT_BITS, _SLOT_WORDS, _SLOT_ROWS = 14, 16, 23
_FULL_ROWS = 1024  # so many rows are summed at once; one more word still fits


class Classifier(NamedTuple):
    """Row 0 of `words` and of the vectors is the end of the line."""

    units: NDArray[np.float32]  # [row, dimension, up to LANES]
    norms: NDArray[np.float32]  # [row]
    words: Bytes  # all words, one after the other
    word_ends: Offsets  # [rows of words + 1]
    word_slots: NDArray[np.int32]  # hash & (slots - 1), then the next: row of the word, -1 none
    buckets: int  # of hashes of n-grams
    gram_bits: NDArray[np.uint64]  # one bit for each bucket: 250 kB, where a row for each is 8 MB
    gram_ranks: NDArray[np.int32]  # bits set before each 64
    gram_rows: NDArray[np.int32]  # of the bits that are set
    outputs: NDArray[np.float32]  # [inner node, dimension]
    left: NDArray[np.int32]  # of every node of the tree, leaves first; -1 at a leaf
    right: NDArray[np.int32]
    min_chars: int
    max_chars: int


def likeliest_labels(
    data: Bytes, offsets: Offsets, model: Classifier, memory: NDArray[np.uint64] | None = None
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Label and score of each row: one line of UTF-8 without line ends.
    A label is its place in the model's list.

    `memory` may be kept from call to call, for one model and one thread.
    """
    data, offsets, rows = frozen_text(data, offsets)
    labels, scores = np.zeros(rows, np.int32), np.zeros(rows, np.float64)
    memory = word_memory() if memory is None else memory
    _likeliest_labels(
        data,
        offsets,
        frozen(model.units, np.float32).reshape(-1),
        frozen(model.norms, np.float32),
        frozen(model.words, np.uint8),
        frozen(model.word_ends, np.int64),
        frozen(model.word_slots, np.int32),
        model.buckets,
        frozen(model.gram_bits, np.uint64),
        frozen(model.gram_ranks, np.int32),
        frozen(model.gram_rows, np.int32),
        frozen(model.outputs, np.float32),
        frozen(model.left, np.int32),
        frozen(model.right, np.int32),
        model.min_chars,
        model.max_chars,
        memory,
        memory.view(np.int32),
        np.empty(_FULL_ROWS + (KEY_BYTES + 4) * (model.max_chars + 1), np.int32),
        np.empty(int(np.diff(offsets).max(initial=0)) + SPELLED_MORE, np.uint8),
        np.zeros(model.units.shape[1], np.float32),
        np.zeros(len(model.left), np.int32),
        np.zeros(len(model.left), np.float32),
        labels,
        scores,
    )
    return labels, scores


def word_memory() -> NDArray[np.uint64]:
    """Of no word yet."""
    return np.zeros(_SLOT_WORDS << _SLOT_BITS, np.uint64)


def no_languages() -> Classifier:
    """Knows no word and one label: for the first call."""
    none = np.full(1, -1, np.int32)
    return Classifier(
        units=np.zeros((1, LANES), np.float32),
        norms=np.zeros(1, np.float32),
        words=np.zeros(0, np.uint8),
        word_ends=np.zeros(2, np.int64),
        word_slots=none,
        buckets=1,
        gram_bits=np.zeros(1, np.uint64),
        gram_ranks=none,
        gram_rows=none,
        outputs=np.zeros((1, 1), np.float32),
        left=none,
        right=none,
        min_chars=1,
        max_chars=1,
    )


_add = Instruction("add_rows")  # hidden += norm x unit of each of the rows


@raw_kernel(lambda: likeliest_labels(*TEXT, no_languages()))
def _likeliest_labels(
    data: Bytes,
    offsets: Offsets,
    units: NDArray[np.float32],
    norms: NDArray[np.float32],
    words: Bytes,
    word_ends: Offsets,
    word_slots: NDArray[np.int32],
    buckets: Int,
    gram_bits: NDArray[np.uint64],
    gram_ranks: NDArray[np.int32],
    gram_rows: NDArray[np.int32],
    outputs: NDArray[np.float32],
    left: NDArray[np.int32],
    right: NDArray[np.int32],
    min_chars: Int,
    max_chars: Int,
    memory: NDArray[np.uint64],
    memory_rows: NDArray[np.int32],  # the same bytes
    rows: NDArray[np.int32],  # of the vectors still to be added
    spelled: Bytes,  # <word> and a zero
    hidden: NDArray[np.float32],
    nodes: NDArray[np.int32],  # still to visit
    node_scores: NDArray[np.float32],
    labels: NDArray[np.int32],
    scores: NDArray[np.float64],
) -> None:
    for row in range(offsets.size - 1):
        for d in range(hidden.size):
            hidden[U64(d)] = np.float32(0)
        count: Int = 0
        used: Int = 0
        at, end = offsets[row], offsets[row + 1]
        while at < end:
            if is_blank(data[U64(at)]):
                at += 1
                continue
            if used > _FULL_ROWS:
                _add_rows(hidden, units, norms, rows, used)
                count, used = count + used, 0
            stop, key, mixed = word_key(data, at, end)
            is_short = stop > at
            slot = (mixed >> U64(64 - _SLOT_BITS)) * U64(_SLOT_WORDS)  # in words of eight bytes
            if is_short and _holds(memory, slot, key, stop - at):
                # Four rows without a question, more are rare: a loop to `known` alone is 11 % slower.
                first_row = slot * U64(2) + U64(5)
                known = memory_rows[first_row - U64(1)]
                for k in range(4):
                    rows[U64(used + k)] = memory_rows[first_row + U64(k)]
                for k in range(4, known):
                    rows[U64(used + k)] = memory_rows[first_row + U64(k)]
                used += known
                at = stop
                continue

            first = used
            if not is_short:
                stop = word_end(data, at, end)
            state = hash_word(data, at, stop)
            spell(data, at, stop, spelled)
            size = stop - at + 2
            word = word_row(state, data, at, stop, words, word_ends, word_slots)
            if word >= 0:
                rows[U64(used)] = word
                used += 1
            grams = used
            for start in range(size):
                if is_inside(spelled[U64(start)]):
                    continue
                if used + max_chars >= rows.size:  # a very long word
                    _name_rows(rows, grams, used, gram_bits, gram_ranks, gram_rows)
                    _add_rows(hidden, units, norms, rows, used)
                    count, used, grams = count + used, 0, 0
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
                        # Written always, kept if known: one in seven is,
                        # and a branch that guesses is 5 % slower.
                        bucket = state % np.uint32(buckets)
                        rows[U64(used)] = bucket
                        used += np.int64(gram_bits[U64(bucket) >> U64(6)] >> (U64(bucket) & U64(63)) & U64(1))
            _name_rows(rows, grams, used, gram_bits, gram_ranks, gram_rows)
            if is_short and used - first <= _SLOT_ROWS:
                _keep(memory, memory_rows, slot, key, rows, first, used)
            at = stop
        rows[U64(used)] = 0  # the end of the line
        used += 1
        _add_rows(hidden, units, norms, rows, used)
        share = np.float32(1.0 / (count + used))
        for d in range(hidden.size):
            hidden[U64(d)] = np.float32(hidden[U64(d)] * share)
        labels[row], scores[row] = _walk(hidden, outputs, left, right, nodes, node_scores)


@raw_step
def _holds(memory: NDArray[np.uint64], slot: np.uint64, key: Key, size: Int) -> bool:
    """A zero in the first 16 bytes ends the word, so a short one need not be compared further."""
    if memory[slot] != key[0] or memory[slot + U64(1)] != key[1]:
        return False
    return bool(size < 16 or (memory[slot + U64(14)] == key[2] and memory[slot + U64(15)] == key[3]))


@raw_step
def _keep(
    memory: NDArray[np.uint64],
    memory_rows: NDArray[np.int32],
    slot: np.uint64,
    key: Key,
    rows: NDArray[np.int32],
    first: Int,
    last: Int,
) -> None:
    memory[slot], memory[slot + U64(1)] = key[0], key[1]
    memory[slot + U64(14)], memory[slot + U64(15)] = key[2], key[3]
    first_row = slot * U64(2) + U64(5)
    memory_rows[first_row - U64(1)] = last - first
    for k in range(last - first):
        memory_rows[first_row + U64(k)] = rows[U64(first + k)]


@raw_step
def _name_rows(
    rows: NDArray[np.int32],
    first: Int,
    last: Int,
    gram_bits: NDArray[np.uint64],
    gram_ranks: NDArray[np.int32],
    gram_rows: NDArray[np.int32],
) -> None:
    """Buckets become rows: by the number of bits before theirs."""
    for k in range(first, last):
        bucket = U64(rows[U64(k)])
        before = gram_bits[bucket >> U64(6)] & ((U64(1) << (bucket & U64(63))) - U64(1))
        rows[U64(k)] = gram_rows[U64(gram_ranks[bucket >> U64(6)]) + ones(before)]


@raw_step
def _add_rows(
    hidden: NDArray[np.float32],
    units: NDArray[np.float32],
    norms: NDArray[np.float32],
    rows: NDArray[np.int32],
    count: Int,
) -> None:
    for lane in range(0, hidden.size, LANES):
        _add(hidden, units, norms, rows, count, lane)


@raw_step
def _walk(
    hidden: NDArray[np.float32],
    outputs: NDArray[np.float32],
    left: NDArray[np.int32],
    right: NDArray[np.int32],
    nodes: NDArray[np.int32],
    node_scores: NDArray[np.float32],
) -> tuple[Int, np.float64]:
    """The likeliest leaf; of two equal ones the later, as fastText's heap of one has it.
    Two to seven nodes a row."""
    leaves = (left.size + 1) // 2
    best = _NO_LABEL
    label: Int = 0
    nodes[0], node_scores[0] = left.size - 1, np.float32(0)
    waiting = 1
    while waiting:
        waiting -= 1
        node, score = nodes[waiting], node_scores[waiting]
        if score < best or score < _MIN_LOG_SCORE:
            continue
        if left[node] < 0:
            best, label = score, node
            continue
        dot = np.float32(0)
        for d in range(outputs.shape[1]):
            dot = np.float32(dot + np.float32(outputs[node - leaves, d] * hidden[d]))
        chance = np.float32(1.0 / np.float64(np.float32(1) + np.float32(math.exp(-dot))))
        rest = np.float32(1.0 - np.float64(chance))
        nodes[waiting] = right[node]
        node_scores[waiting] = score + np.float32(math.log(np.float64(chance) + 1e-5))
        nodes[waiting + 1] = left[node]
        node_scores[waiting + 1] = score + np.float32(math.log(np.float64(rest) + 1e-5))
        waiting += 2
    return label, np.float64(np.float32(math.exp(best)))

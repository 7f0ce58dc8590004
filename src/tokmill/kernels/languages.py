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

from tokmill.kernels.jit import (
    HIGH_BITS,
    LANES,
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
_HASH_START, _HASH_FACTOR = np.uint32(2166136261), np.uint32(16777619)  # FNV-1a
_NO_LABEL = np.float32(-np.inf)
_MIN_LOG_SCORE = np.float32(math.log(1e-5))  # fastText follows no branch below the threshold 0 plus 1e-5

# 2 MB for 16,384 words. Half of the slots cost 5 % more time, twice as many save none.
_SLOT_BITS, _SLOT_WORDS, _SLOT_ROWS, _KEY_BYTES = 14, 16, 23, 32
_KEY_FACTORS = (
    U64(0x9E3779B97F4A7C15),
    U64(0xC2B2AE3D27D4EB4F),
    U64(0x165667B19E3779F9),
    U64(0x27D4EB2F165667C5),
)
_FULL_ROWS = 1024  # so many rows are summed at once; one more word still fits

Key = tuple[np.uint64, np.uint64, np.uint64, np.uint64]  # a word's bytes, zeros after it


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
        np.empty(_FULL_ROWS + (_KEY_BYTES + 4) * (model.max_chars + 1), np.int32),
        np.empty(int(np.diff(offsets).max(initial=0)) + 3, np.uint8),
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
_ones = Instruction("ones")


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
            if _is_blank(data[U64(at)]):
                at += 1
                continue
            if used > _FULL_ROWS:
                _add_rows(hidden, units, norms, rows, used)
                count, used = count + used, 0
            stop, key = _key(data, at, end)
            is_short = stop > at
            slot = _slot(key)
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
            stop, state = _spell(data, at, end, spelled)
            size = stop - at + 2
            word = _word_row(state, data, at, stop, words, word_ends, word_slots)
            if word >= 0:
                rows[U64(used)] = word
                used += 1
            grams = used
            for start in range(size):
                if _is_inside(spelled[U64(start)]):
                    continue
                if used + max_chars >= rows.size:  # a very long word
                    _name_rows(rows, grams, used, gram_bits, gram_ranks, gram_rows)
                    _add_rows(hidden, units, norms, rows, used)
                    count, used, grams = count + used, 0, 0
                state = _HASH_START
                place, chars = start, 0
                while place < size and chars < max_chars:
                    state = _mix(state, spelled[U64(place)])
                    place += 1
                    while _is_inside(spelled[U64(place)]):
                        state = _mix(state, spelled[U64(place)])
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
def _is_blank(byte: np.uint8) -> bool:
    return bool(byte == 32 or 9 <= byte <= 13 or byte == 0)


@raw_step
def _is_inside(byte: np.uint8) -> bool:
    """Whether it continues a character."""
    return bool((byte & 0xC0) == 0x80)


@raw_step
def _mix(state: np.uint32, byte: np.uint8) -> np.uint32:
    return np.uint32((state ^ np.uint32(np.int32(np.int8(byte)))) * _HASH_FACTOR)


@raw_step
def _key(data: Bytes, at: Int, end: Int) -> tuple[Int, Key]:
    """Where the word ends, and its bytes; `at` if it is long,
    near the end of the column or has a control inside."""
    a = b = c = d = U64(0)
    if at + _KEY_BYTES > data.size:
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
    if at + size < end and not _is_blank(data[U64(at + size)]):
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
def _slot(key: Key) -> np.uint64:
    """Where its slot begins in the memory, in words of eight bytes."""
    a, b, c, d = _KEY_FACTORS
    mixed = (key[0] * a) ^ (key[1] * b) ^ (key[2] * c) ^ (key[3] * d)
    return U64((mixed >> U64(64 - _SLOT_BITS)) * U64(_SLOT_WORDS))


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
def _spell(data: Bytes, at: Int, end: Int, spelled: Bytes) -> tuple[Int, np.uint32]:
    """Copies the word into < and >; its end and its hash."""
    state, size = _HASH_START, 1
    spelled[0] = LESS
    while at < end and not _is_blank(data[U64(at)]):
        state = _mix(state, data[U64(at)])
        spelled[U64(size)] = data[U64(at)]
        at += 1
        size += 1
    spelled[U64(size)], spelled[U64(size + 1)] = MORE, 0
    return at, state


@raw_step
def _word_row(
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
    return -1


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
        rows[U64(k)] = gram_rows[U64(gram_ranks[bucket >> U64(6)]) + _ones(before)]


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

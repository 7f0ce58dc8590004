"""Words as numbers, and how likely an n-gram model finds them.

    text       the cat sat\\n\\nthe end                      a line is a sentence; a blank one is none
    ids        the cat sat </s> the end </s>               white space is that of ASCII

    node       an n-gram, found from its last word to its first: sat <- cat sat <- the cat sat
    record     node it extends | its first word | log p | backoff      16 bytes of each node, met together
    table      hash of (node, word before it) -> node                  one for all orders

    log p(sat | the cat) = log p of the longest n-gram that is there, plus the backoff of each longer context

Nodes of the words before are kept from word to word: they are the contexts, so a word costs one look in the
table for each order. Logarithms are whole numbers, and so are sums of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import SPREAD, TEXT, Bytes, Int, Offsets, frozen, frozen_text, raw_kernel, raw_step

U64 = np.uint64
UNKNOWN, BEGIN, END = 0, 1, 2  # ids of <unk>, <s> and </s>
MAX_ORDER = 8

_START, _FACTOR = U64(0xCBF29CE484222325), U64(0x100000001B3)  # FNV-1a in 64 bits

Ids = NDArray[np.int32]
Slots = NDArray[np.int32]


def word_slots(words: Bytes, ends: Offsets) -> Slots:
    """A table of words, by their bytes: -1, or the number of the word. Of equal words, the first."""
    slots = np.full(_size(len(ends) - 1), -1, np.int32)
    _fill_words(frozen(words, np.uint8), frozen(ends, np.int64), slots)
    return slots


def node_slots(parents: NDArray[np.int32], words: Ids, first: int) -> Slots:
    """A table of nodes from `first` on, by the node that they extend and their first word."""
    slots = np.full(_size(len(parents) - first), -1, np.int32)
    _fill_nodes(frozen(parents, np.int32), frozen(words, np.int32), first, slots)
    return slots


def map_words(
    data: Bytes, offsets: Offsets, words: Bytes, word_ends: Offsets, slots: Slots
) -> tuple[Ids, Offsets]:
    """Ids of all rows, and where each row ends. Every sentence ends with END, and every row has one."""
    data, offsets, rows = frozen_text(data, offsets)
    ends = np.zeros(rows + 1, np.int64)
    model = (frozen(words, np.uint8), frozen(word_ends, np.int64), frozen(slots, np.int32))
    _map_words(data, offsets, *model, np.empty(0, np.int32), ends)
    ids = np.empty(int(ends[-1]), np.int32)
    if ids.size:
        _map_words(data, offsets, *model, ids, ends)
    return ids, ends


def score_ids(
    ids: Ids,
    ends: Offsets,
    order: int,
    records: NDArray[np.int32],
    slots: Slots,
    each: NDArray[np.int32] | None = None,
) -> NDArray[np.int64]:
    """Of each row the sum of the logarithms of its ids; those of every id go to `each`.
    Records are [node, 4], those of single words first."""
    if not 1 <= order <= MAX_ORDER:
        raise ValueError(f"an order of {order}")
    sums = np.zeros(len(ends) - 1, np.int64)
    _score_ids(
        frozen(ids, np.int32),
        frozen(ends, np.int64),
        order,
        frozen(records, np.int32).reshape(-1),
        frozen(slots, np.int32),
        np.zeros((2, MAX_ORDER), np.int64),
        np.zeros(MAX_ORDER, np.int32),
        np.empty(0, np.int32) if each is None else each,
        sums,
    )
    return sums


def _size(entries: int) -> int:
    """Of a table that is half empty: a power of two."""
    return 1 << max(2 * entries, 2).bit_length()


def _first_map() -> object:
    words, ends = np.frombuffer(b"a", np.uint8), np.array([0, 1])
    return map_words(*TEXT, words, ends, word_slots(words, ends))


def _first_score() -> object:
    none = np.zeros(3, np.int32)
    slots = node_slots(none, none, 3)
    return score_ids(np.array([2], np.int32), np.array([0, 1]), 1, np.zeros((3, 4), np.int32), slots)


@raw_kernel(_first_map)
def _fill_words(words: Bytes, ends: Offsets, slots: Slots) -> None:
    mask = U64(slots.size - 1)
    for word in range(ends.size - 1):
        slot = _word_hash(words, ends[word], ends[word + 1]) & mask
        is_new = True
        while slots[slot] >= 0 and is_new:
            other = slots[slot]
            is_new = not _is_same(words, ends[word], ends[word + 1], words, ends[other], ends[other + 1])
            slot = (slot + U64(1)) & mask
        if is_new:
            while slots[slot] >= 0:
                slot = (slot + U64(1)) & mask
            slots[slot] = word


@raw_kernel(_first_score)
def _fill_nodes(parents: NDArray[np.int32], words: Ids, first: Int, slots: Slots) -> None:
    mask = U64(slots.size - 1)
    for node in range(first, parents.size):
        slot = _node_hash(parents[node], words[node]) & mask
        while slots[slot] >= 0:
            slot = (slot + U64(1)) & mask
        slots[slot] = node


@raw_kernel(_first_map)
def _map_words(
    data: Bytes, offsets: Offsets, words: Bytes, word_ends: Offsets, slots: Slots, ids: Ids, ends: Offsets
) -> None:
    """Counted where `ids` has no room, and listed where it has."""
    mask = U64(slots.size - 1)
    has_room = ids.size > 0
    used: Int = 0
    for row in range(offsets.size - 1):
        at, end = offsets[row], offsets[row + 1]
        begin = used
        in_sentence: Int = 0
        while at < end:
            byte = data[U64(at)]
            if byte == 32 or 9 <= byte <= 13:
                at += 1
                if byte == 10 and in_sentence > 0:
                    if has_room:
                        ids[used] = END
                    used += 1
                    in_sentence = 0
                continue
            start = at
            while at < end and not (data[U64(at)] == 32 or 9 <= data[U64(at)] <= 13):
                at += 1
            if has_room:
                slot = _word_hash(data, start, at) & mask
                word: Int = UNKNOWN
                while slots[slot] >= 0:
                    other = slots[slot]
                    if _is_same(data, start, at, words, word_ends[other], word_ends[other + 1]):
                        word = np.int64(other)
                        break
                    slot = (slot + U64(1)) & mask
                # what stands for the edges of a sentence is not a word of a text
                ids[used] = UNKNOWN if word <= END else word
            used += 1
            in_sentence += 1
        if in_sentence > 0 or used == begin:
            if has_room:
                ids[used] = END
            used += 1
        ends[row + 1] = used


@raw_kernel(_first_score)
def _score_ids(
    ids: Ids,
    ends: Offsets,
    order: Int,
    records: NDArray[np.int32],
    slots: Slots,
    contexts: NDArray[np.int64],
    history: Ids,
    each: NDArray[np.int32],
    sums: NDArray[np.int64],
) -> None:
    """`contexts` has the nodes of the words before: of the last one, of the last two, …; both take turns
    in its two rows. `history` has those words, the last one first."""
    mask = U64(slots.size - 1)
    for row in range(ends.size - 1):
        total: Int = 0
        length: Int = 0  # of the longest context; 0 before a sentence
        now: Int = 0
        is_first = True
        for place in range(ends[row], ends[row + 1]):
            if is_first:
                length = min(1, order - 1)
                contexts[now, 0] = BEGIN
                history[0] = BEGIN
            word = ids[place]
            node: Int = np.int64(word)
            new = 1 - now
            contexts[new, 0] = node
            matched: Int = 1
            while matched <= length:
                child = _find(records, slots, mask, node, history[matched - 1])
                if child < 0:
                    break
                node = child
                contexts[new, matched] = node
                matched += 1
            log = np.int64(records[U64(4 * node + 2)])
            for longer in range(matched - 1, length):
                log += np.int64(records[U64(4 * contexts[now, longer] + 3)])
            if each.size > 0:
                each[place] = log
            total += log
            is_first = word == END
            length = min(matched, order - 1)
            for back in range(length - 1, 0, -1):
                history[back] = history[back - 1]
            history[0] = word
            now = new
        sums[row] = total


@raw_step
def _find(records: NDArray[np.int32], slots: Slots, mask: np.uint64, parent: Int, word: Int) -> Int:
    slot = _node_hash(parent, word) & mask
    while slots[slot] >= 0:
        node = slots[slot]
        if records[U64(4 * node)] == parent and records[U64(4 * node + 1)] == word:
            return np.int64(node)
        slot = (slot + U64(1)) & mask
    return np.int64(-1)


@raw_step
def _node_hash(parent: Int, word: Int) -> np.uint64:
    mixed = (U64(parent) << U64(32) | U64(word)) * SPREAD
    return (mixed ^ (mixed >> U64(29))) * U64(0xBF58476D1CE4E5B9) >> U64(20)


@raw_step
def _word_hash(data: Bytes, start: Int, stop: Int) -> np.uint64:
    found = _START
    for at in range(start, stop):
        found = (found ^ U64(data[U64(at)])) * _FACTOR
    return (found ^ (found >> U64(32))) * SPREAD >> U64(20)


@raw_step
def _is_same(data: Bytes, start: Int, stop: Int, other: Bytes, first: Int, last: Int) -> bool:
    is_same = stop - start == last - first
    place: Int = 0
    while is_same and place < stop - start:
        is_same = data[U64(start + place)] == other[U64(first + place)]
        place += 1
    return bool(is_same)

"""Which copies are kept, over a graph of verified edges: union-find and one greedy walk, in integers.

There may be too many documents for an array of them: documents with an edge are members, and known by a bit
each; a member's place is the number of bits before its own.
  set_bits, count_before, places_of      document -> member            numbers_at: member -> document
  join_members, list_roots               member -> the first member of its component, in 4 bytes
  walk_edges                             edges in order of precedence -> dropped documents and their survivors

Documents with one URL or one text are a group. A group of a million would have 5 * 10^11 edges, so each of
its documents has one edge to the group instead, and the group remembers which of them is kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import ROWS, Int, frozen, raw_kernel, raw_step

Nodes = NDArray[np.int64]
Bits = NDArray[np.uint64]
Members = NDArray[np.uint32]

KEPT = -1

# Kind of an edge, and what a document is dropped as: similar to another one, of the same URL, of the same
# text, or of the same text as one that was dropped as similar.
NEAR, URL, EXACT, LIKE = 0, 1, 2, 3

U64 = np.uint64
# Words of 64 bits that one count stands before: 8 bytes for every 512 documents.
_WORDS = 8


def no_bits(count: int) -> Bits:
    """One for each of so many documents, in whole blocks."""
    return np.zeros(-(-count // (64 * _WORDS)) * _WORDS, np.uint64)


def set_bits(bits: Bits, numbers: Nodes) -> None:
    _set_bits(bits, frozen(numbers, np.int64))


def get_bits(bits: Bits, numbers: Nodes) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (bits[numbers >> 6] >> (numbers & 63).astype(np.uint64)) & U64(1) != 0
    return found


def count_before(bits: Bits) -> Nodes:
    """Bits that are set before each block, and after the last."""
    before = np.zeros(bits.size // _WORDS + 1, np.int64)
    _count_before(frozen(bits, np.uint64), before)
    return before


def places_of(bits: Bits, before: Nodes, numbers: Nodes) -> Nodes:
    """Of documents whose bits are set: how many are set before."""
    places = np.empty(numbers.size, np.int64)
    _places_of(frozen(bits, np.uint64), frozen(before, np.int64), frozen(numbers, np.int64), places)
    return places


def numbers_at(bits: Bits, before: Nodes, places: Nodes) -> Nodes:
    """The documents that have these places."""
    numbers = np.empty(places.size, np.int64)
    _numbers_at(frozen(bits, np.uint64), frozen(before, np.int64), frozen(places, np.int64), numbers)
    return numbers


def join_members(roots: Members, ranks: Nodes, one: Nodes, other: Nodes) -> None:
    """Members are connected; of two roots the one of lesser rank stays, then the lesser number. No ranks:
    all equal."""
    _join_members(roots, frozen(ranks, np.int64), frozen(one, np.int64), frozen(other, np.int64))


def list_roots(roots: Members) -> None:
    """Every member points to its root itself."""
    _list_roots(roots)


class Groups(NamedTuple):
    """Per group: the document that its others are dropped for (KEPT: none yet), how similar, and as what."""

    survivors: Nodes
    similarity: NDArray[np.float64]
    kinds: NDArray[np.uint8]


def no_groups(count: int) -> Groups:
    return Groups(np.full(count, KEPT, np.int64), np.zeros(count, np.float64), np.zeros(count, np.uint8))


class Dropped(NamedTuple):
    """One row per dropped document, in keep order."""

    documents: Nodes
    survivors: Nodes
    similarity: NDArray[np.float64]
    kinds: NDArray[np.uint8]


def walk_edges(
    earlier: Nodes,
    earlier_ranks: Nodes,
    later: Nodes,
    similarity: NDArray[np.float64],
    is_safe: NDArray[np.bool_],
    dropped: Bits,
    kinds: NDArray[np.uint8] | None = None,
    groups: Groups | None = None,
    *,
    inherits: bool = True,
) -> Dropped:
    """Decide documents one after the other. `later` comes in order of precedence, and all edges of a document
    together; an edge of kind URL or EXACT has the place of a group as `earlier`.

    A document is dropped for the kept one of its URL, else for the one that its text is dropped for, else for
    the kept one among its earlier neighbours that it is most similar to, the first of several. Without any,
    or where it is safe, it is kept itself. `inherits`: if a document is dropped as similar, so are those of
    its text, for the same one. Edges may come in pieces: `dropped` says what became of the documents of
    earlier ones, and is added to, like `groups`. Documents that are in `dropped` already are left out.
    """
    rows = later.size
    docs, survivors = np.empty(rows, np.int64), np.empty(rows, np.int64)
    best, reasons = np.empty(rows, np.float64), np.empty(rows, np.uint8)
    count = _walk_edges(
        frozen(earlier, np.int64),
        frozen(earlier_ranks, np.int64),
        frozen(later, np.int64),
        frozen(similarity, np.float64),
        frozen(np.zeros(rows, np.uint8) if kinds is None else kinds, np.uint8),
        frozen(is_safe, np.bool_),
        inherits,
        dropped,
        *(no_groups(0) if groups is None else groups),
        docs,
        survivors,
        best,
        reasons,
    )
    return Dropped(docs[:count], survivors[:count], best[:count], reasons[:count])


@raw_kernel(lambda: set_bits(no_bits(1), ROWS))
def _set_bits(bits: Bits, numbers: Nodes) -> None:
    for row in range(numbers.size):
        bits[numbers[row] >> 6] |= U64(1) << U64(numbers[row] & 63)


@raw_step
def _count_bits(word: np.uint64) -> Int:
    word = word - ((word >> U64(1)) & U64(0x5555555555555555))
    word = (word & U64(0x3333333333333333)) + ((word >> U64(2)) & U64(0x3333333333333333))
    word = (word + (word >> U64(4))) & U64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * U64(0x0101010101010101)) >> U64(56))


@raw_kernel(lambda: count_before(no_bits(1)))
def _count_before(bits: Bits, before: Nodes) -> None:
    total: Int = 0
    for word in range(bits.size):
        if word % _WORDS == 0:
            before[word // _WORDS] = total
        total += _count_bits(bits[word])
    before[before.size - 1] = total


@raw_kernel(lambda: places_of(no_bits(1), np.zeros(2, np.int64), ROWS))
def _places_of(bits: Bits, before: Nodes, numbers: Nodes, places: Nodes) -> None:
    for row in range(numbers.size):
        number = numbers[row]
        word = number >> 6
        place = before[word // _WORDS]
        for earlier in range(word // _WORDS * _WORDS, word):
            place += _count_bits(bits[earlier])
        below = (U64(1) << U64(number & 63)) - U64(1)
        places[row] = place + _count_bits(bits[word] & below)


@raw_kernel(lambda: numbers_at(np.full(8, 1, np.uint64), np.zeros(2, np.int64), ROWS))
def _numbers_at(bits: Bits, before: Nodes, places: Nodes, numbers: Nodes) -> None:
    for row in range(places.size):
        low: Int = 0
        high: Int = before.size - 1
        while high - low > 1:  # the last block with no more bits before it than this place has
            middle = (low + high) // 2
            if before[middle] <= places[row]:
                low = middle
            else:
                high = middle
        left = places[row] - before[low]
        word = low * _WORDS
        while left >= _count_bits(bits[word]):
            left -= _count_bits(bits[word])
            word += 1
        bit: Int = 0
        while left > 0 or (bits[word] >> U64(bit)) & U64(1) == U64(0):
            left -= np.int64((bits[word] >> U64(bit)) & U64(1))
            bit += 1
        numbers[row] = 64 * word + bit


@raw_step
def _member_root(roots: Members, member: Int) -> Int:
    while np.int64(roots[member]) != member:
        roots[member] = roots[np.int64(roots[member])]
        member = np.int64(roots[member])
    return member


@raw_kernel(lambda: join_members(np.zeros(1, np.uint32), ROWS, ROWS, ROWS))
def _join_members(roots: Members, ranks: Nodes, one: Nodes, other: Nodes) -> None:
    for edge in range(one.size):
        a, b = _member_root(roots, one[edge]), _member_root(roots, other[edge])
        if a == b:
            continue
        is_before = a < b
        if ranks.size != 0 and ranks[a] != ranks[b]:
            is_before = ranks[a] < ranks[b]
        if is_before:
            roots[b] = np.uint32(a)
        else:
            roots[a] = np.uint32(b)


@raw_kernel(lambda: list_roots(np.zeros(1, np.uint32)))
def _list_roots(roots: Members) -> None:
    for member in range(roots.size):
        roots[member] = np.uint32(_member_root(roots, np.int64(member)))


@raw_kernel(lambda: walk_edges(ROWS, ROWS, ROWS, np.ones(1), np.zeros(1, np.bool_), no_bits(1)))
def _walk_edges(
    earlier: Nodes,
    earlier_ranks: Nodes,
    later: Nodes,
    similarity: NDArray[np.float64],
    kinds: NDArray[np.uint8],
    is_safe: NDArray[np.bool_],
    inherits: bool,
    dropped: Bits,
    group_survivors: Nodes,
    group_similarity: NDArray[np.float64],
    group_kinds: NDArray[np.uint8],
    docs: Nodes,
    survivors: Nodes,
    best: NDArray[np.float64],
    reasons: NDArray[np.uint8],
) -> Int:
    edge: Int = 0
    count: Int = 0
    while edge < later.size:
        begin = edge
        node, safe = later[edge], is_safe[edge]
        survivor: Int = KEPT
        rank: Int = 0
        most = 0.0
        reason = np.uint8(NEAR)
        of_url: Int = KEPT
        of_text: Int = -1
        while edge < later.size and later[edge] == node:
            other = earlier[edge]
            if kinds[edge] == URL:
                of_url = group_survivors[other]
            elif kinds[edge] == EXACT:
                of_text = other
            else:
                is_kept = (dropped[other >> 6] >> U64(other & 63)) & U64(1) == U64(0)
                is_first = earlier_ranks[edge] < rank or (earlier_ranks[edge] == rank and other < survivor)
                if is_kept and (
                    survivor == KEPT or similarity[edge] > most or (similarity[edge] == most and is_first)
                ):
                    survivor, rank, most = other, earlier_ranks[edge], similarity[edge]
            edge += 1
        if (dropped[node >> 6] >> U64(node & 63)) & U64(1) != U64(0):
            continue
        if of_url != KEPT:
            survivor, most, reason = of_url, 0.0, np.uint8(URL)
        elif of_text >= 0 and group_survivors[of_text] != KEPT:
            survivor, most = group_survivors[of_text], group_similarity[of_text]
            reason = group_kinds[of_text]
        if survivor != KEPT and not safe:
            dropped[node >> 6] |= U64(1) << U64(node & 63)
            docs[count], survivors[count], best[count], reasons[count] = node, survivor, most, reason
            count += 1
            if inherits and of_text >= 0 and reason == NEAR:
                group_survivors[of_text], group_similarity[of_text] = survivor, most
                group_kinds[of_text] = LIKE
        else:
            for own in range(begin, edge):
                if kinds[own] != NEAR and group_survivors[earlier[own]] == KEPT:
                    group_survivors[earlier[own]], group_similarity[earlier[own]] = node, 1.0
                    group_kinds[earlier[own]] = kinds[own]
    return count

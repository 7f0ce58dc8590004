"""Words of a text as they are compared, and hashes that roll over them.

    text      He said: "Don't  PAY №5"          any UTF-8; byte places are those of the text as it is
    words     he│said│don│t│pay│no5              letters, marks and digits, each code point folded on its own
    hashes    one of 64 bits per word            its folded bytes, eight at a time
    windows   w0…w49, w1…w50, w2…w51, …          a polynomial mod 2^64 of the hashes, then a mix of its bits

    window_marks   some windows of each row, the same ones wherever the same words stand      winnowing
    find_grams     windows whose hash is in an index                                          a bitmap,
                                                                                              then a table
    fold_words     the words themselves, to compare what the hashes promise

Winnowing (Schleimer, Wilkerson, Aiken 2003): of every `winnow` windows in a row the least hash is marked; of
equal ones the one that is marked already, else the rightmost. Two rows that share `words + winnow - 1` words
share a mark. A row with fewer windows than `winnow` has one mark, its least.

A word is read eight bytes at a time while it is ASCII; 100 bytes of prose cost some 17 words and 1 mark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import (
    AFTER_Z,
    CASE_BITS,
    FROM_A,
    HASHES,
    HIGH_BITS,
    LOW_SEVEN,
    ROWS,
    TEXT,
    Bytes,
    Int,
    Offsets,
    bytes_before,
    decode,
    frozen,
    frozen_text,
    load_word,
    mix64,
    raw_kernel,
    raw_step,
)

Hashes = NDArray[np.uint64]

# What a code point does, in `kinds`. FOLDS: it becomes what lies at its place in the pool.
SEPARATOR, PART, WHOLE, MARK, IGNORED, FOLDS = 0, 1, 2, 3, 4, 5

U64 = np.uint64
I64 = np.int64
# Added to 0 or more, to : or more, the high bit of the byte.
FROM_0, AFTER_9 = U64(0x5050505050505050), U64(0x4646464646464646)

# Nothing up the sleeve: sha256 of b"tokmill word seed", b"tokmill word factor", b"tokmill word length" and
# b"tokmill window base", the last three made odd.
_SEED = U64(0x297938D91E1D6CAF)
_FACTOR = U64(0x59F9E7D5943C9B9F)
_LENGTH = U64(0x21014FA0D786C587)
BASE = 0xD0444BD3B1D35DB1

# Windows that wait to be looked up together. The bitmap of a million grams is not in the cache, and loads
# that need not wait for each other read web pages at 133 MB/s; one at a time 59, 16 together 120, 1024
# together 132.
_WAITING = 256
# Text looked at in one call. There is room for a mark per 64 bytes, twice what prose has;
# where that is not enough the call is made again, with as much as it asked for.
_BATCH_BYTES = 1 << 20


class WordTable(NamedTuple):
    """Per code point its kind and, if it FOLDS, where in `pool`: items, then (kind, bytes, UTF-8) of each."""

    kinds: NDArray[np.uint8]
    starts: NDArray[np.int32]
    pool: Bytes


def no_words() -> WordTable:
    """For first calls."""
    return WordTable(np.zeros(128, np.uint8), np.zeros(128, np.int32), np.zeros(1, np.uint8))


class WindowMarks(NamedTuple):
    """`first_words` counts from the start of the row; bytes are [starts, ends) of the row's text."""

    rows: NDArray[np.int64]
    hashes: Hashes
    first_words: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


class FoldedWords(NamedTuple):
    """Words of all rows: row i has offsets[i]:offsets[i + 1]; word k is folded[folds[k]:folds[k + 1]]."""

    offsets: Offsets
    hashes: Hashes
    starts: NDArray[np.int64]  # bytes of the row's text
    ends: NDArray[np.int64]
    folds: Offsets
    folded: Bytes


class GramIndex(NamedTuple):
    """Hashes of grams of one or two lengths; of each length sorted, those of the first length first.

    bit h >> bit_shift of its bitmap is set        a strange window passes it once in 32 times
    bucket h >> bucket_shift: its first place      about one hash in each
    """

    lengths: NDArray[np.int64]
    hashes: Hashes
    bitmaps: Hashes  # of all lengths, one after the other
    buckets: NDArray[np.int64]
    bounds: NDArray[
        np.int64
    ]  # per length: its first word of `bitmaps`, its first bucket, bit_shift, bucket_shift


class GramHits(NamedTuple):
    """Windows whose hash is in the index."""

    rows: NDArray[np.int64]
    places: NDArray[np.int64]  # the first place in `hashes` that holds it
    first_words: NDArray[np.int64]
    kinds: NDArray[np.int64]  # of which length: its place in `lengths`


def window_marks(data: Bytes, offsets: Offsets, table: WordTable, words: int, winnow: int) -> WindowMarks:
    if words < 1 or winnow < 1:
        raise ValueError(f"windows of {words} words, winnowed by {winnow}: both are at least 1")
    data, offsets, _ = frozen_text(data, offsets)
    ring = 1 << (words + winnow - 1).bit_length()
    hash_rings = np.empty(ring, np.uint64), np.empty(ring, np.uint64)
    place_rings = np.empty(ring, np.int64), np.empty(ring, np.int64)

    def find(
        some: Offsets, rows: NDArray[np.int64], hashes: NDArray[np.int64], *places: NDArray[np.int64]
    ) -> Int:
        return _window_marks(
            data,
            some,
            *_frozen_table(table),
            np.empty(0, np.uint8),
            words,
            winnow,
            U64(BASE),
            U64(pow(BASE, words, 1 << 64)),
            *hash_rings,
            *place_rings,
            rows,
            hashes.view(np.uint64),
            *places,
        )

    rows, hashes, *places = _found(find, offsets, 5, _BATCH_BYTES // 64)
    return WindowMarks(rows, hashes.view(np.uint64), *places)


def one_word() -> FoldedWords:
    """For first calls."""
    return fold_words(TEXT[0], TEXT[1][:-1], TEXT[1][1:], no_words())


def fold_words(
    data: Bytes, starts: NDArray[np.int64], ends: NDArray[np.int64], table: WordTable
) -> FoldedWords:
    """The words of data[starts[i]:ends[i]], row by row. Rows may overlap."""
    data, starts, ends = frozen(data, np.uint8), frozen(starts, np.int64), frozen(ends, np.int64)
    if starts.size != ends.size or (starts.size and not 0 <= starts.min() <= ends.max() <= data.size):
        raise ValueError(f"{starts.size} starts and {ends.size} ends in {data.size} bytes")
    counts = _count(data, starts, ends, table)
    offsets = np.cumsum(counts[:, 0])
    words, size = int(offsets[-1]), int(counts[:, 1].sum())
    found = FoldedWords(
        offsets,
        np.empty(words, np.uint64),
        np.empty(words, np.int64),
        np.empty(words, np.int64),
        np.zeros(words + 1, np.int64),
        np.empty(size + 8, np.uint8),
    )
    _fold_words(
        data,
        starts,
        ends,
        *_frozen_table(table),
        counts,
        found.hashes,
        found.starts,
        found.ends,
        found.folds,
        found.folded,
    )
    return found


def count_words(data: Bytes, offsets: Offsets, table: WordTable) -> NDArray[np.int64]:
    data, offsets, _ = frozen_text(data, offsets)
    starts, ends = frozen(offsets[:-1], np.int64), frozen(offsets[1:], np.int64)
    return _count(data, starts, ends, table)[1:, 0].copy()


def _count(data: Bytes, starts: Offsets, ends: Offsets, table: WordTable) -> NDArray[np.int64]:
    """Words and folded bytes of each row, from place 1 on."""
    counts = np.zeros((starts.size + 1, 2), np.int64)
    nothing, nowhere = np.empty(0, np.uint64), np.empty(0, np.int64)
    table_parts, no_bytes = _frozen_table(table), np.empty(0, np.uint8)
    _fold_words(data, starts, ends, *table_parts, counts, nothing, nowhere, nowhere, nowhere, no_bytes)
    return counts


def gram_hashes(words: FoldedWords, first_words: NDArray[np.int64], n: int) -> Hashes:
    """The hash of the n words from each place in `words` on:
    what `window_marks` and `find_grams` see there."""
    found = np.empty(first_words.size, np.uint64)
    _gram_hashes(frozen(words.hashes, np.uint64), frozen(first_words, np.int64), n, U64(BASE), found)
    return found


def gram_index(lengths: list[int], hashes: list[Hashes]) -> GramIndex:
    """Of each length its hashes, sorted."""
    bitmaps: list[Hashes] = []
    buckets: list[NDArray[np.int64]] = []
    bounds: list[tuple[int, int, int, int]] = []
    for of_length, before in zip(hashes, np.cumsum([0, *map(len, hashes)]), strict=False):
        bits = max(10, (32 * of_length.size - 1).bit_length())
        places = of_length >> U64(64 - bits)
        bitmap = np.zeros(1 << (bits - 6), np.uint64)
        np.bitwise_or.at(bitmap, (places >> U64(6)).astype(np.int64), U64(1) << (places & U64(63)))
        firsts = np.arange(1 << (bits - 5), dtype=np.uint64) << U64(64 - bits + 5)
        bounds.append((sum(map(len, bitmaps)), sum(map(len, buckets)), 64 - bits, 64 - bits + 5))
        bitmaps.append(bitmap)
        buckets.append(np.append(np.searchsorted(of_length, firsts), of_length.size) + before)
    return GramIndex(
        np.array(lengths, np.int64),
        np.concatenate(hashes),
        np.concatenate(bitmaps),
        np.concatenate(buckets),
        np.array(bounds, np.int64),
    )


def find_grams(data: Bytes, offsets: Offsets, table: WordTable, index: GramIndex) -> GramHits:
    data, offsets, _ = frozen_text(data, offsets)
    lengths = frozen(index.lengths, np.int64)
    powers = np.array([pow(BASE, int(length), 1 << 64) for length in lengths], np.uint64)
    word_ring = np.empty(1 << int(lengths.max()).bit_length(), np.uint64)
    waiting = np.empty((len(lengths), _WAITING), np.uint64)

    def find(some: Offsets, *columns: NDArray[np.int64]) -> Int:
        return _find_grams(
            data,
            some,
            *_frozen_table(table),
            np.empty(0, np.uint8),
            lengths,
            frozen(powers, np.uint64),
            U64(BASE),
            np.zeros(len(lengths), np.uint64),
            frozen(index.hashes, np.uint64),
            frozen(index.bitmaps, np.uint64),
            frozen(index.buckets, np.int64),
            frozen(index.bounds, np.int64),
            word_ring,
            waiting,
            *columns,
        )

    return GramHits(*_found(find, offsets, 4, 1024))


def _found(find: Callable[..., Int], offsets: Offsets, columns: int, size: int) -> list[NDArray[np.int64]]:
    """What `find` writes into so many columns, the first of which are rows,
    and of which it tells how many it has."""
    room = [np.empty(size, np.int64) for _ in range(columns)]
    parts = [[column[:0] for column in room]]
    for first, last in row_batches(offsets, _BATCH_BYTES):
        while (used := int(find(offsets[first : last + 1], *room))) > room[0].size:
            room = [np.empty(used, np.int64) for _ in room]
        parts.append([column[:used].copy() for column in room])
        parts[-1][0] += first
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def row_batches(offsets: Offsets, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Rows [first, last) of about so many bytes together."""
    first, rows = 0, offsets.size - 1
    while first < rows:
        reach = offsets[first] + most_bytes
        last = max(int(np.searchsorted(offsets, reach, side="right")) - 1, first + 1)
        yield first, last
        first = last


def _frozen_table(table: WordTable) -> tuple[NDArray[np.uint8], NDArray[np.int32], Bytes]:
    return frozen(table.kinds, np.uint8), frozen(table.starts, np.int32), frozen(table.pool, np.uint8)


@raw_kernel(lambda: window_marks(*TEXT, no_words(), 1, 1))
def _window_marks(
    data: Bytes,
    offsets: Offsets,
    kinds: NDArray[np.uint8],
    pool_starts: NDArray[np.int32],
    pool: Bytes,
    unwritten: Bytes,
    words: int,
    winnow: int,
    base: np.uint64,
    base_to_words: np.uint64,
    word_ring: Hashes,
    window_ring: Hashes,
    start_ring: NDArray[np.int64],
    end_ring: NDArray[np.int64],
    rows: NDArray[np.int64],
    hashes: Hashes,
    first_words: NDArray[np.int64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> Int:
    """How many marks there are; those that there is room for are written."""
    mask = I64(word_ring.size - 1)
    used: Int = 0
    for row in range(offsets.size - 1):
        begin, end = offsets[row], offsets[row + 1]
        at: Int = begin
        item: Int = 0
        count: Int = 0
        rolling = U64(0)
        least = U64(0)
        least_at: Int = 0
        marked: Int = -1
        while True:
            length, word, start, stop, at, item = _next_word(
                data, at, item, end, kinds, pool_starts, pool, False, unwritten, 0
            )
            if length == 0:
                break
            slot = count & mask
            rolling = rolling * base + word
            if count >= words:
                rolling -= word_ring[(count - words) & mask] * base_to_words
            word_ring[slot], start_ring[slot], end_ring[slot] = word, start, stop
            count += 1
            if count < words:
                continue
            window = count - words
            hashed = mix64(rolling)
            window_ring[window & mask] = hashed
            if window - least_at >= winnow:
                least, least_at = hashed, window
                for back in range(window - 1, window - winnow, -1):
                    if window_ring[back & mask] < least:
                        least, least_at = window_ring[back & mask], back
            elif window == 0 or hashed < least or (hashed == least and window < winnow):
                least, least_at = hashed, window
            if window >= winnow - 1 and least_at != marked:
                marked = least_at
                if used < rows.size:
                    rows[used], hashes[used], first_words[used] = row, least, least_at
                    starts[used] = start_ring[least_at & mask] - begin
                    ends[used] = end_ring[(least_at + words - 1) & mask] - begin
                used += 1
        if words <= count < words + winnow - 1:
            if used < rows.size:
                rows[used], hashes[used], first_words[used] = row, least, least_at
                starts[used] = start_ring[least_at & mask] - begin
                ends[used] = end_ring[(least_at + words - 1) & mask] - begin
            used += 1
    return used


@raw_kernel(lambda: count_words(*TEXT, no_words()))
def _fold_words(
    data: Bytes,
    row_starts: NDArray[np.int64],
    row_ends: NDArray[np.int64],
    kinds: NDArray[np.uint8],
    pool_starts: NDArray[np.int32],
    pool: Bytes,
    counts: NDArray[np.int64],
    hashes: Hashes,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    folds: Offsets,
    folded: Bytes,
) -> None:
    """Without room: how many words and folded bytes each row has. With it: the words."""
    is_written = folded.size != 0
    used: Int = 0
    size: Int = 0
    for row in range(row_starts.size):
        begin, end = row_starts[row], row_ends[row]
        at: Int = begin
        item: Int = 0
        first, first_size = used, size
        while True:
            length, word, start, stop, at, item = _next_word(
                data, at, item, end, kinds, pool_starts, pool, is_written, folded, size
            )
            if length == 0:
                break
            size += length
            if is_written:
                hashes[used], starts[used], ends[used] = word, start - begin, stop - begin
                folds[used + 1] = size
            used += 1
        counts[row + 1, 0], counts[row + 1, 1] = used - first, size - first_size


@raw_kernel(lambda: gram_hashes(one_word(), ROWS, 1))
def _gram_hashes(
    words: Hashes, first_words: NDArray[np.int64], n: int, base: np.uint64, found: Hashes
) -> None:
    for gram in range(first_words.size):
        rolling = U64(0)
        for step in range(n):
            rolling = rolling * base + words[first_words[gram] + step]
        found[gram] = mix64(rolling)


@raw_kernel(lambda: find_grams(*TEXT, no_words(), gram_index([1], [HASHES])))
def _find_grams(
    data: Bytes,
    offsets: Offsets,
    kinds: NDArray[np.uint8],
    pool_starts: NDArray[np.int32],
    pool: Bytes,
    unwritten: Bytes,
    lengths: NDArray[np.int64],
    powers: Hashes,
    base: np.uint64,
    rollings: Hashes,
    hashes: Hashes,
    bitmaps: Hashes,
    buckets: NDArray[np.int64],
    bounds: NDArray[np.int64],
    word_ring: Hashes,
    waiting: Hashes,
    rows: NDArray[np.int64],
    places: NDArray[np.int64],
    first_words: NDArray[np.int64],
    gram_kinds: NDArray[np.int64],
) -> Int:
    """How many hits there are; those that there is room for are written."""
    mask = I64(word_ring.size - 1)
    used: Int = 0
    for row in range(offsets.size - 1):
        at, end = offsets[row], offsets[row + 1]
        item: Int = 0
        count: Int = 0
        asked: Int = 0  # words whose windows have been looked up
        for kind in range(lengths.size):
            rollings[kind] = U64(0)
        is_over = False
        while not is_over:
            length, word, _, _, at, item = _next_word(
                data, at, item, end, kinds, pool_starts, pool, False, unwritten, 0
            )
            is_over = length == 0
            if not is_over:
                word_ring[count & mask] = word
                count += 1
                for kind in range(lengths.size):
                    rolling = rollings[kind] * base + word
                    if count > lengths[kind]:
                        rolling -= word_ring[(count - 1 - lengths[kind]) & mask] * powers[kind]
                    rollings[kind] = rolling
                    waiting[kind, count - 1 - asked] = mix64(rolling)
            if count - asked < waiting.shape[1] and not is_over:
                continue
            for kind in range(lengths.size):
                bitmap, bucket = bounds[kind, 0], bounds[kind, 1]
                bit_shift, bucket_shift = U64(bounds[kind, 2]), U64(bounds[kind, 3])
                for step in range(max(lengths[kind] - 1 - asked, 0), count - asked):
                    hashed = waiting[kind, step]
                    bit = hashed >> bit_shift
                    if (bitmaps[bitmap + I64(bit >> U64(6))] >> (bit & U64(63))) & U64(1) == U64(0):
                        continue
                    slot = bucket + I64(hashed >> bucket_shift)
                    for place in range(buckets[slot], buckets[slot + 1]):
                        if hashes[place] == hashed:
                            if used < rows.size:
                                rows[used], places[used], gram_kinds[used] = row, place, kind
                                first_words[used] = asked + step + 1 - lengths[kind]
                            used += 1
                            break
            asked = count
    return used


# --- one word ---


@raw_step
def _next_word(
    data: Bytes,
    at: Int,
    item: Int,
    end: Int,
    kinds: NDArray[np.uint8],
    pool_starts: NDArray[np.int32],
    pool: Bytes,
    is_written: bool,
    folded: Bytes,
    size: Int,
) -> tuple[Int, np.uint64, Int, Int, Int, Int]:
    """(folded bytes, hash, start, end) of the first word from `at` on, and where to go on; no bytes: no word.

    `item` counts what has been used of the folding of the code point at `at`:
    one of them may hold several words.
    """
    hashed, chunk = _SEED, U64(0)
    filled: Int = 0  # bytes in the chunk
    length: Int = 0
    start: Int = at
    stop: Int = at
    is_whole = False
    while at < end:
        if filled == 0 and item == 0 and not is_whole and at + 8 <= data.size:
            word = load_word(data, at)
            low = (word | CASE_BITS) & LOW_SEVEN
            letters = (low + FROM_A) & ~(low + AFTER_Z)
            sevens = word & LOW_SEVEN
            digits = (sevens + FROM_0) & ~(sevens + AFTER_9)
            marks = (letters | digits) & ~word & HIGH_BITS
            others = marks ^ HIGH_BITS
            if length == 0:
                found = marks | (word & HIGH_BITS)
                if found == U64(0):
                    at += 8
                    continue
                skipped = bytes_before(found)
                if skipped != 0:
                    at += skipped
                    continue
                start = at
            # A letter or digit ahead, or the middle of a word; or what is beyond ASCII: none ahead.
            ahead: Int = 8
            if others != U64(0):
                ahead = bytes_before(others)
            ahead = min(ahead, end - at)
            if ahead != 0:
                if is_written:
                    for step in range(ahead):
                        folded[size + length + step] = data[at + step] | np.uint8(32)
                at += ahead
                length += ahead
                stop = at
                if ahead == 8:
                    hashed = _stirred(hashed, word | CASE_BITS)
                    continue
                chunk = (word | CASE_BITS) & ((U64(1) << U64(8 * ahead)) - U64(1))
                filled = ahead
            if at == end:
                break
            if data[at] < 128:
                # it separates: the next word is not looked for here again
                # (counting words of prose: 208 to 281 MB/s)
                at += 1
                break
        code: Int = I64(
            data[U64(at)]
        )  # the load that decode makes: with a signed index there are two, and 8 % more time
        width: Int = 1
        if code < 128:
            kind = I64(SEPARATOR)
            if 48 <= code <= 57 or 97 <= (code | 32) <= 122:
                kind = I64(PART)
        else:
            code, width = decode(data, at)
            kind = I64(kinds[code])
        items: Int = 1
        place: Int = at
        taken: Int = width
        if kind == FOLDS:
            place = I64(pool_starts[code])
            items = I64(pool[place])
            place += 1
            for _ in range(item):
                place += 2 + I64(pool[place + 1])
        is_over = False
        is_folding = kind == FOLDS
        while item < items:
            if is_folding:
                kind, taken = I64(pool[place]), I64(pool[place + 1])
                place += 2
            if kind == SEPARATOR:
                if length != 0:
                    is_over = True
                    break
            elif kind != IGNORED:
                if length != 0 and (kind == WHOLE or (kind == PART and is_whole)):
                    is_over = True
                    break
                is_whole |= kind == WHOLE
                if length == 0:
                    start = at
                for step in range(taken):
                    byte = pool[place + step] if is_folding else data[place + step]
                    if 65 <= byte <= 90:  # only in text: the pool is folded
                        byte |= np.uint8(32)
                    if is_written:
                        folded[size + length + step] = byte
                    chunk |= U64(byte) << U64(8 * filled)
                    filled += 1
                    if filled == 8:
                        hashed, chunk, filled = _stirred(hashed, chunk), U64(0), 0
                length += taken
                stop = at + width
            place += taken
            item += 1
        if is_over:
            break
        at += width
        item = 0
    return length, _stirred(hashed ^ (U64(length) * _LENGTH), chunk), start, stop, min(at, end), item


@raw_step
def _stirred(hashed: np.uint64, chunk: np.uint64) -> np.uint64:
    """A bijection of the chunk: words of up to eight bytes have a hash of their own among those of their
    length."""
    hashed = (hashed ^ chunk) * _FACTOR
    return hashed ^ (hashed >> U64(32))

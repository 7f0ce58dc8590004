"""What a document's lines and paragraphs are like, and which of them it says twice.

    text        - milk \\n \\n eggs… \\n eggs… \\n
    lines       - milk │  │ eggs… │ eggs…            cut at \\n; a last \\n does not begin another
    filled      - milk      eggs…   eggs…            with a character that is not a space
                  bullet    ellipsis  ellipsis, duplicate
    paragraphs  - milk      eggs…\\neggs…             cut at two or more \\n,
                                                     spaces at the ends of the text left out

A line is equal to another if its bytes are; it is known by a 64-bit hash.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import (
    LOW_BITS,
    SPACE,
    TERMINAL,
    TEXT,
    Bytes,
    Int,
    Offsets,
    code_at,
    first_zero,
    frozen,
    frozen_text,
    load_word,
    mix64,
    raw_kernel,
    raw_step,
    slots_for,
)

U8, U64 = np.uint8, np.uint64
NEWLINES = U64(0x0A0A0A0A0A0A0A0A)
GOLDEN = U64(0x9E3779B97F4A7C15)
COUNTS = U64(0xFFFFFFFF)
NEWLINE, HYPHEN, DOT = 10, 45, 46
BULLET, ELLIPSIS = 0x2022, 0x2026
_BLOCK = 96


class LineMeasures(NamedTuple):
    """One number per row each; `chars` are code points."""

    lines: NDArray[np.int64]
    filled: NDArray[np.int64]
    bullets: NDArray[np.int64]
    ellipses: NDArray[np.int64]
    terminals: NDArray[np.int64]
    short: NDArray[np.int64]
    dup_lines: NDArray[np.int64]  # filled, and equal to an earlier one
    dup_line_chars: NDArray[np.int64]
    repeated_lines: NDArray[np.int64]  # filled, and equal to any other
    paragraphs: NDArray[np.int64]
    dup_paragraphs: NDArray[np.int64]
    dup_paragraph_chars: NDArray[np.int64]


def measure_lines(
    data: Bytes, offsets: Offsets, classes: NDArray[np.uint16], *, short_chars: int
) -> LineMeasures:
    """A line of at most `short_chars` characters, spaces at its end left out, is short."""
    data, offsets, rows = frozen_text(data, offsets)
    found = np.zeros((len(LineMeasures._fields), rows), np.int64)
    at_most = np.empty(rows, np.int64)
    most = int(_bound_lines(data, offsets, at_most))
    _measure_lines(
        data,
        offsets,
        frozen(classes, np.uint16),
        short_chars,
        frozen(at_most, np.int64),
        np.zeros((1 << max(4, (2 * most).bit_length()), 2), np.uint64),
        np.empty(most, np.uint64),
        np.empty(most + 1, np.int64),
        found,
    )
    return LineMeasures(*found)


@raw_kernel(lambda: measure_lines(*TEXT, np.zeros(256, np.uint16), short_chars=30))
def _bound_lines(data: Bytes, offsets: Offsets, at_most: NDArray[np.int64]) -> Int:
    """How many lines each row has at most, into `at_most`, and the largest of these."""
    most: Int = 0
    for row in range(offsets.size - 1):
        at_most[row] = _count_newlines(data, offsets[row], offsets[row + 1]) + 1
        most = max(most, at_most[row])
    return most


@raw_kernel(lambda: measure_lines(*TEXT, np.zeros(256, np.uint16), short_chars=30))
def _measure_lines(
    data: Bytes,
    offsets: Offsets,
    classes: NDArray[np.uint16],
    short_chars: Int,
    at_most: NDArray[np.int64],
    table: NDArray[np.uint64],
    keys: NDArray[np.uint64],
    starts: NDArray[np.int64],
    found: NDArray[np.int64],
) -> None:
    tick = U64(0)
    for row in range(offsets.size - 1):
        begin, end = offsets[row], offsets[row + 1]
        mask = slots_for(at_most[row]) - 1
        tick += U64(1)
        lines: Int = 0
        filled: Int = 0
        bullets: Int = 0
        ellipses: Int = 0
        terminals: Int = 0
        short: Int = 0
        dup_lines: Int = 0
        dup_chars: Int = 0
        repeated: Int = 0
        text_begin: Int = end  # without the spaces at the ends of the text
        text_end: Int = end
        first_filled: Int = 0
        last_filled: Int = -1
        at = begin
        while at < end:
            stop, key = _line_end(data, at, end)
            keys[lines], starts[lines] = key, at
            first = _after_spaces(data, at, stop, classes)
            if first < stop:
                last = _before_spaces(data, first, stop, classes)  # where the last visible character begins
                code, width = code_at(data, last)
                if filled == 0:
                    text_begin, first_filled = first, lines
                text_end, last_filled = last + width, lines
                filled += 1
                opening = code_at(data, first)[0]
                bullets += opening == HYPHEN or opening == BULLET
                ellipses += code == ELLIPSIS or (
                    code == DOT and last >= first + 2 and data[last - 1] == DOT and data[last - 2] == DOT
                )
                terminals += (classes[code] & TERMINAL) != 0
                short += _is_short(data, at, last + width, short_chars)
                slot = _slot(table, mask, tick, key)
                count = table[slot, 1] & COUNTS if (table[slot, 1] >> U64(32)) == tick else U64(0)
                table[slot, 0] = key
                table[slot, 1] = (tick << U64(32)) | (count + U64(1))
                if count:
                    repeated += 2 if count == U64(1) else 1
                    dup_lines += 1
                    dup_chars += _chars(data, at, stop)
            lines += 1
            at = stop + 1
        starts[lines] = at
        found[0, row], found[1, row], found[2, row], found[3, row] = lines, filled, bullets, ellipses
        found[4, row], found[5, row], found[6, row], found[7, row] = terminals, short, dup_lines, dup_chars
        found[8, row] = repeated

        tick += U64(1)
        paragraphs: Int = 0
        dup_paragraphs: Int = 0
        dup_paragraph_chars: Int = 0
        if filled:
            # the lines that the text begins and ends in are hashed again,
            # without the spaces that are no part of it
            keys[last_filled] = _line_end(data, max(starts[last_filled], text_begin), text_end)[1]
            if first_filled < last_filled:
                keys[first_filled] = _line_end(data, text_begin, starts[first_filled + 1] - 1)[1]
        line: Int = first_filled
        while line <= last_filled:
            # line by line up to one that is empty; the key of a paragraph is made of those of its lines
            start = max(starts[line], text_begin)
            key = U64(0)
            while line <= last_filled and starts[line + 1] - starts[line] > 1:
                key = mix64(key ^ keys[line])
                line += 1
            paragraphs += 1
            slot = _slot(table, mask, tick, key)
            if (table[slot, 1] >> U64(32)) == tick:
                dup_paragraphs += 1
                dup_paragraph_chars += _chars(data, start, min(starts[line] - 1, text_end))
            table[slot, 0] = key
            table[slot, 1] = tick << U64(32)
            while line <= last_filled and starts[line + 1] - starts[line] == 1:
                line += 1
        found[9, row], found[10, row], found[11, row] = paragraphs, dup_paragraphs, dup_paragraph_chars


@raw_step
def _line_end(data: Bytes, start: Int, end: Int) -> tuple[Int, np.uint64]:
    """Where the line at `start` ends, and the hash of its bytes: 64 bits, eight bytes at a time, each through
    a full avalanche, the last ones with the length. Two words are mixed side by side while there are two."""
    at: Int = start
    mixed, beside = U64(0), GOLDEN
    while end - at >= 16:
        word, next_word = load_word(data, at), load_word(data, at + 8)
        marks, next_marks = first_zero(word ^ NEWLINES), first_zero(next_word ^ NEWLINES)
        after = mix64(mixed ^ word)
        if marks | next_marks:
            # no branch on which of the two it is: that could not be foreseen
            is_later = marks == U64(0)
            marks = next_marks if is_later else marks
            word = next_word if is_later else word
            mixed = after if is_later else mixed
            before = ((marks & (~marks + U64(1))) >> U64(7)) - U64(1)  # the bytes before the first newline
            at += np.int64(((before & LOW_BITS) * LOW_BITS) >> U64(56)) + 8 * is_later
            return at, _finish(mixed, beside, word & before, at - start)
        mixed = after
        beside = mix64(beside ^ next_word)
        at += 16
    while end - at >= 8:
        word = load_word(data, at)
        marks = first_zero(word ^ NEWLINES)
        if marks:
            before = ((marks & (~marks + U64(1))) >> U64(7)) - U64(1)  # the bytes before the first newline
            at += np.int64(((before & LOW_BITS) * LOW_BITS) >> U64(56))
            return at, _finish(mixed, beside, word & before, at - start)
        mixed = mix64(mixed ^ word)
        at += 8
    word = U64(0)
    shift = U64(0)
    while at < end and data[at] != NEWLINE:
        word |= U64(data[at]) << shift
        shift += U64(8)
        at += 1
    return at, _finish(mixed, beside, word, at - start)


@raw_step
def _finish(mixed: np.uint64, beside: np.uint64, word: np.uint64, size: Int) -> np.uint64:
    return mix64(mixed ^ (beside << U64(32) | beside >> U64(32)) ^ word ^ U64(size) * GOLDEN)


@raw_step
def _count_newlines(data: Bytes, start: Int, end: Int) -> Int:
    """Block by block, in sums of eight bits, so that LLVM compares and adds 16 bytes at once."""
    count: Int = 0
    at: Int = start
    while end - at >= _BLOCK:
        twice = U8(0)  # see kernels.characters: of a sum of ones LLVM makes something slower
        for k in range(U64(_BLOCK)):
            twice = U8(twice + 2 * (data[U64(at) + k] == U8(NEWLINE)))
        count += np.int64(twice >> 1)
        at += _BLOCK
    while at < end:
        count += data[at] == NEWLINE
        at += 1
    return count


@raw_step
def _is_short(data: Bytes, start: Int, end: Int, short_chars: Int) -> bool:
    """A character is one to four bytes, so that most lines need not be counted, or not to their end."""
    if end - start <= short_chars:
        return True
    if end - start > 4 * short_chars:
        return False
    chars: Int = 0
    at: Int = start
    while end - at >= 8 and chars <= short_chars:
        word = load_word(data, at)
        followers = (word >> U64(7)) & ~(word >> U64(6)) & LOW_BITS
        chars += 8 - np.int64((followers * LOW_BITS) >> U64(56))
        at += 8
    while at < end and chars <= short_chars:
        chars += (data[at] & 0xC0) != 0x80
        at += 1
    return bool(chars <= short_chars)


@raw_step
def _after_spaces(data: Bytes, at: Int, end: Int, classes: NDArray[np.uint16]) -> Int:
    while at < end:
        code, width = code_at(data, at)
        if classes[code] & SPACE == 0:
            break
        at += width
    return at


@raw_step
def _before_spaces(data: Bytes, first: Int, end: Int, classes: NDArray[np.uint16]) -> Int:
    """Where the last character before `end` begins that is not a space; `first` is one."""
    at: Int = end
    while at > first:
        at -= 1
        while data[at] & 0xC0 == 0x80:
            at -= 1
        if classes[code_at(data, at)[0]] & SPACE == 0:
            break
    return at


@raw_step
def _chars(data: Bytes, start: Int, end: Int) -> Int:
    count: Int = 0
    for at in range(start, end):
        count += (data[at] & 0xC0) != 0x80
    return count


@raw_step
def _slot(table: NDArray[np.uint64], mask: Int, tick: np.uint64, key: np.uint64) -> Int:
    """Where `key` is, or belongs. A slot is a key and (tick << 32 | count); that of another tick is empty."""
    slot = np.int64(key >> U64(32)) & mask
    while (table[slot, 1] >> U64(32)) == tick and table[slot, 0] != key:
        slot = (slot + 1) & mask
    return slot

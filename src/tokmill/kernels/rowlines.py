"""Lines of the index of rows, spelled from columns: which documents stand in which row.

    {"row":7,"docs":[{"doc_id":"a","source":"web","start":0,"end":512,"offset":0},{…}]}\\n

    row r holds spans begins[r] to begins[r + 1];  span -> document -> its name, and the number of its source

Byte for byte what msgspec writes of the same objects: `"` and `\\` and control characters are escaped, all
else stays UTF-8. Without an object for each document and each row: 190,000 meetings took 0.75 CPU seconds
with them, and 0.03 without.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import (
    LOW_BITS,
    ROWS,
    TEXT,
    U64,
    Bytes,
    Int,
    Offsets,
    bytes_before,
    frozen,
    frozen_text,
    load_word,
    raw_kernel,
    raw_step,
    store_word,
    zero_marks,
)

_WORD = 8
_SPELLED = (
    '{"row":',
    ',"docs":[',
    '{"doc_id":"',
    '","source":"',
    '","start":',
    ',"end":',
    ',"offset":',
    "]}\n",
)
_ROW, _DOCS, _NAME, _SOURCE, _START, _END, _OFFSET, _CLOSE = range(len(_SPELLED))
_PARTS = frozen(np.frombuffer("".join(_SPELLED).encode(), np.uint8), np.uint8)
_PART_ENDS = frozen(np.cumsum([0, *map(len, _SPELLED)], dtype=np.int64), np.int64)
# What the text around a span and its numbers take at most, and what a row takes.
_MAX_SPAN, _MAX_ROW = 128, 64
_MAX_ESCAPED = 6  # \u001f

_QUOTES, _BACKSLASHES = U64(ord('"')) * LOW_BITS, U64(ord("\\")) * LOW_BITS
_FROM_SPACE = U64(0xE0) * LOW_BITS  # a byte below 0x20 has none of these bits
_QUOTE, _BACKSLASH, _COMMA, _CLOSE_BRACE = (np.uint8(ord(char)) for char in '"\\,}')
_ZERO, _LETTER_U, _BEFORE_A = np.uint8(ord("0")), np.uint8(ord("u")), np.uint8(ord("a") - 10)


def _escapes() -> NDArray[np.uint8]:
    """The letter that stands for a control character after a backslash; 0 where it takes four digits."""
    table = np.zeros(32, np.uint8)
    for byte, letter in zip(b"\b\f\n\r\t", b"bfnrt", strict=True):
        table[byte] = letter
    return table


_ESCAPES = frozen(_escapes(), np.uint8)


def spell_rows(
    first_row: int,
    begins: Offsets,
    spans: tuple[Offsets, Offsets, Offsets, Offsets],
    names: tuple[Bytes, Offsets],
    sources: tuple[Bytes, Offsets],
    source_of: NDArray[np.int32],
) -> Bytes:
    """The lines of rows first_row, first_row + 1, …; `spans` are document, start, end and offset."""
    documents, starts, ends, firsts = (frozen(column, np.int64) for column in spans)
    begins = frozen(begins, np.int64)
    text, offsets, count = frozen_text(*names)
    origins, origin_ends, _ = frozen_text(*sources)
    if begins[0] != 0 or (np.diff(begins) < 0).any() or begins[-1] != documents.size:
        raise ValueError(f"rows do not hold the {documents.size} spans one after the other")
    if documents.size and not 0 <= documents.min() <= documents.max() < min(count, source_of.size):
        raise ValueError(f"documents {documents.min()}..{documents.max()} of {count}")
    if documents.size and not 0 <= source_of.min() <= source_of.max() < origin_ends.size - 1:
        raise ValueError(f"sources {source_of.min()}..{source_of.max()} of {origin_ends.size - 1}")
    named = offsets[documents + 1] - offsets[documents]
    longest = int(np.diff(origin_ends).max(initial=0))
    size = _MAX_ESCAPED * (int(named.sum()) + longest * documents.size)
    size += _MAX_SPAN * documents.size + _MAX_ROW * (begins.size - 1) + 2 * _WORD
    lines = np.empty(size, np.uint8)  # pages that are never written are never given
    used = _spell_rows(
        first_row,
        begins,
        documents,
        starts,
        ends,
        firsts,
        text,
        offsets,
        origins,
        origin_ends,
        frozen(source_of, np.int32),
        _PARTS,
        _PART_ENDS,
        _ESCAPES,
        lines,
    )
    return lines[:used]


def _first_call() -> Bytes:
    return spell_rows(0, np.arange(2), (ROWS, ROWS, ROWS, ROWS), TEXT, TEXT, np.zeros(1, np.int32))


@raw_kernel(_first_call)
def _spell_rows(
    first_row: int,
    begins: Offsets,
    documents: Offsets,
    starts: Offsets,
    ends: Offsets,
    firsts: Offsets,
    text: Bytes,
    offsets: Offsets,
    origins: Bytes,
    origin_ends: Offsets,
    source_of: NDArray[np.int32],
    parts: Bytes,
    part_ends: Offsets,
    escapes: Bytes,
    lines: Bytes,
) -> Int:
    at: Int = 0
    for row in range(begins.size - 1):
        at = _put_part(lines, at, parts, part_ends, _ROW)
        at = _put_number(lines, at, first_row + row)
        at = _put_part(lines, at, parts, part_ends, _DOCS)
        for span in range(begins[row], begins[row + 1]):
            if span > begins[row]:
                lines[U64(at)] = _COMMA
                at += 1
            document = documents[span]
            source = source_of[document]
            at = _put_part(lines, at, parts, part_ends, _NAME)
            at = _put_escaped(lines, at, text, offsets[document], offsets[document + 1], escapes)
            at = _put_part(lines, at, parts, part_ends, _SOURCE)
            at = _put_escaped(lines, at, origins, origin_ends[source], origin_ends[source + 1], escapes)
            at = _put_part(lines, at, parts, part_ends, _START)
            at = _put_number(lines, at, starts[span])
            at = _put_part(lines, at, parts, part_ends, _END)
            at = _put_number(lines, at, ends[span])
            at = _put_part(lines, at, parts, part_ends, _OFFSET)
            at = _put_number(lines, at, firsts[span])
            lines[U64(at)] = _CLOSE_BRACE
            at += 1
        at = _put_part(lines, at, parts, part_ends, _CLOSE)
    return at


@raw_step
def _put_part(lines: Bytes, at: Int, parts: Bytes, part_ends: Offsets, number: Int) -> Int:
    for place in range(part_ends[number], part_ends[number + 1]):
        lines[U64(at)] = parts[U64(place)]
        at += 1
    return at


@raw_step
def _put_number(lines: Bytes, at: Int, value: Int) -> Int:
    digits: Int = 1
    rest = value // 10
    while rest > 0:
        rest //= 10
        digits += 1
    rest = value
    for back in range(digits):
        lines[U64(at + digits - 1 - back)] = _ZERO + np.uint8(rest % 10)
        rest //= 10
    return at + digits


@raw_step
def _put_escaped(lines: Bytes, at: Int, text: Bytes, begin: Int, end: Int, escapes: Bytes) -> Int:
    """Eight bytes at a time, as long as none of them needs an escape."""
    place = begin
    while place < end:
        if end - place >= _WORD:
            word = load_word(text, place)
            marks = (
                zero_marks(word ^ _QUOTES) | zero_marks(word ^ _BACKSLASHES) | zero_marks(word & _FROM_SPACE)
            )
            store_word(lines, at, word)
            plain = bytes_before(marks)
            place += plain
            at += plain
            if plain == _WORD:
                continue
        byte = text[U64(place)]
        place += 1
        if byte == _QUOTE or byte == _BACKSLASH:
            lines[U64(at)] = _BACKSLASH
            lines[U64(at + 1)] = byte
            at += 2
        elif byte >= np.uint8(0x20):
            lines[U64(at)] = byte
            at += 1
        else:
            letter = escapes[U64(byte)]
            lines[U64(at)] = _BACKSLASH
            if letter != 0:
                lines[U64(at + 1)] = letter
                at += 2
            else:
                low = byte & np.uint8(0x0F)
                lines[U64(at + 1)] = _LETTER_U
                lines[U64(at + 2)] = _ZERO
                lines[U64(at + 3)] = _ZERO
                lines[U64(at + 4)] = _ZERO + (byte >> np.uint8(4))
                lines[U64(at + 5)] = low + (_ZERO if low < np.uint8(10) else _BEFORE_A)
                at += 6
    return at

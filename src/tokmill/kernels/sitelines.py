"""Lines as the pages of a site share them, and texts without some of their lines.

    hash_lines    text -> blocks: where each line is, and 64 bits of what it says
    cut_lines     text, lines that go -> the text without them, and the spans that went

What a line says is its characters with white space folded and every run of digits as one:

    "  12 comments,\\t posted 2024-05-01 \\r"   ->   "0 comments, posted 0-0-0"

No block, and so never cut:

    a line without a letter           } --- 12 |---|       shared by all pages of code and of tables
    more than `max_chars` characters                       prose
    a heading or a quote of Markdown  ## Examples, > …     what stands beside it needs it
    a line of indented code           four spaces, a tab   but for an item of a list: - * + 1.
    fenced code, with its fences      ``` … ``` ~~~ … ~~~  to the end of the text where nothing closes it
    a mark of a conversation          U+FDD0 to U+FDEF     (tokmill.tokenizers.regions)

    text    a \\n \\n MENU \\n \\n b \\n \\n FOOT    where blank lines would meet at a cut, the later ones go;
    left    a \\n \\n b                          and so do those at a new end
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import (
    DIGIT,
    HASHES,
    LETTER,
    ROWS,
    SPACE,
    TEXT,
    Bytes,
    Int,
    Offsets,
    bytes_before,
    code_at,
    first_zero,
    frozen,
    frozen_text,
    load_word,
    mix64,
    raw_kernel,
    raw_step,
)

U64 = np.uint64
TAB, NEWLINE, RETURN, BLANK, HASH, QUOTED, BACKTICK, TILDE = 9, 10, 13, 32, 35, 62, 96, 126
NEWLINES = U64(0x0A0A0A0A0A0A0A0A)
_ZERO, _BLANK = U64(48), U64(32)
_MIN_FENCE, _MAX_HEADING, _MIN_INDENT = 3, 6, 4
_FIRST_MARK, _LAST_MARK = 0xFDD0, 0xFDEF


class Lines(NamedTuple):
    """Of each block: its row, where it begins in the row, and what it says with the row's seed."""

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    keys: NDArray[np.uint64]


class CutTexts(NamedTuple):
    """The rows that lost lines, what is left of them; then the spans that went, by row and start."""

    rows: NDArray[np.int64]
    data: Bytes
    offsets: Offsets
    chars: NDArray[np.int64]  # code points that went, of each row
    is_filled: NDArray[np.bool_]  # whether a visible character is left, of each row
    span_rows: NDArray[np.int64]
    span_starts: NDArray[np.int64]
    span_ends: NDArray[np.int64]


def hash_lines(
    data: Bytes,
    offsets: Offsets,
    classes: NDArray[np.uint16],
    seeds: NDArray[np.uint64],
    is_wanted: NDArray[np.bool_],
    max_chars: int,
) -> Lines:
    """One seed per row: equal lines of rows with other seeds are not the same."""
    data, offsets, rows = frozen_text(data, offsets)
    if not seeds.size == is_wanted.size == rows:
        raise ValueError(f"{rows} rows, {seeds.size} seeds, {is_wanted.size} wishes")
    is_wanted = frozen(is_wanted, np.bool_)
    most = _count_lines(data, offsets, is_wanted)
    lines = Lines(np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.uint64))
    classes = frozen(classes, np.uint16)
    count = _hash_lines(data, offsets, classes, frozen(seeds, np.uint64), is_wanted, max_chars, *lines)
    return Lines(lines.rows[:count], lines.starts[:count], lines.keys[:count])


def cut_lines(
    data: Bytes,
    offsets: Offsets,
    classes: NDArray[np.uint16],
    rows: NDArray[np.int64],
    starts: NDArray[np.int64],
) -> CutTexts:
    """`rows` and `starts` are those of lines, in their order."""
    data, offsets, _ = frozen_text(data, offsets)
    changed = np.unique(rows)
    room = int((offsets[changed + 1] - offsets[changed]).sum())
    cut = CutTexts(
        changed,
        np.empty(room, np.uint8),
        np.zeros(len(changed) + 1, np.int64),
        np.zeros(len(changed), np.int64),
        np.zeros(len(changed), np.bool_),
        *(np.empty(len(rows) + len(changed), np.int64) for _ in range(3)),
    )
    count = _cut_lines(
        data,
        offsets,
        frozen(classes, np.uint16),
        frozen(rows, np.int64),
        frozen(starts, np.int64),
        frozen(changed, np.int64),
        *cut[1:],
    )
    spans = (column[:count] for column in cut[-3:])
    return CutTexts(changed, cut.data[: cut.offsets[-1]], *cut[2:5], *spans)


def _first_hash() -> object:
    return hash_lines(*TEXT, np.zeros(256, np.uint16), HASHES, np.ones(1, np.bool_), 9)


@raw_kernel(_first_hash)
def _count_lines(data: Bytes, offsets: Offsets, is_wanted: NDArray[np.bool_]) -> Int:
    count: Int = 0
    for row in range(offsets.size - 1):
        if is_wanted[row]:
            count += 1
            for at in range(U64(offsets[row]), U64(offsets[row + 1])):
                count += data[at] == NEWLINE
    return count


@raw_kernel(_first_hash)
def _hash_lines(
    data: Bytes,
    offsets: Offsets,
    classes: NDArray[np.uint16],
    seeds: NDArray[np.uint64],
    is_wanted: NDArray[np.bool_],
    max_chars: Int,
    rows: NDArray[np.int64],
    starts: NDArray[np.int64],
    keys: NDArray[np.uint64],
) -> Int:
    count: Int = 0
    for row in range(offsets.size - 1):
        if not is_wanted[row]:
            continue
        begin, end = offsets[row], offsets[row + 1]
        fence: Int = 0  # the byte that fences are made of, in fenced code
        ticks: Int = 0
        at: Int = begin
        while at < end:
            first = _after_blanks(data, at, end)
            byte, width = _fence_at(data, first, end)
            if width:
                is_bare, has_tick = _after_fence(data, first + width, end)
                if fence == 0 and not (byte == BACKTICK and has_tick):
                    fence, ticks = byte, width
                    at = _next_line(data, first, end)
                    continue
                if fence == byte and width >= ticks and is_bare:
                    fence = 0
                    at = _next_line(data, first, end)
                    continue
            if fence or _is_structure(data, at, first, end):
                at = _next_line(data, first, end)
                continue
            stop, key, is_block = _hash_line(data, first, end, classes, seeds[row], max_chars)
            if is_block:
                rows[count], starts[count], keys[count] = row, at - begin, key
                count += 1
            at = stop + 1
    return count


@raw_step
def _hash_line(
    data: Bytes, at: Int, end: Int, classes: NDArray[np.uint16], seed: np.uint64, max_chars: Int
) -> tuple[Int, np.uint64, bool]:
    """Where the line ends, what it says, and whether it is a block."""
    state, word = seed, U64(0)
    size: Int = 0  # bytes that were folded
    chars: Int = 0
    has_letter, has_mark, is_number, has_gap = False, False, False, False
    while at < end and data[U64(at)] != NEWLINE and chars <= max_chars:
        code, width = code_at(data, at)
        kind = classes[code]
        if kind & SPACE:
            has_gap, is_number = bool(chars > 0), False
            at += width
            continue
        is_digit = bool(kind & DIGIT)
        if is_digit and is_number and not has_gap:
            at += width
            continue
        if has_gap:
            word |= _BLANK << U64(8 * (size & 7))
            size += 1
            chars += 1
            if size & 7 == 0:
                state, word = mix64(state ^ word), U64(0)
            has_gap = False
        is_number = is_digit
        has_letter |= bool(kind & LETTER)
        has_mark |= bool(_FIRST_MARK <= code <= _LAST_MARK)
        for k in range(1 if is_digit else width):
            byte = _ZERO if is_digit else U64(data[U64(at + k)])
            word |= byte << U64(8 * (size & 7))
            size += 1
            if size & 7 == 0:
                state, word = mix64(state ^ word), U64(0)
        chars += 1
        at += width
    key = mix64(mix64(state ^ word) ^ U64(size))
    at = _next_line(data, at, end) - 1  # of a line that is too long, the rest is not looked at
    return at, key, bool(has_letter and not has_mark and chars <= max_chars)


@raw_step
def _after_blanks(data: Bytes, at: Int, end: Int) -> Int:
    while _is_gap(data, at, end):
        at += 1
    return at


@raw_step
def _next_line(data: Bytes, at: Int, end: Int) -> Int:
    while end - at >= 8:
        marks = first_zero(load_word(data, at) ^ NEWLINES)
        if marks:
            return at + bytes_before(marks) + 1
        at += 8
    while at < end and data[U64(at)] != NEWLINE:
        at += 1
    return at + 1


@raw_step
def _fence_at(data: Bytes, at: Int, end: Int) -> tuple[Int, Int]:
    """The byte that a fence is made of and how often it stands there; 0 where there is none."""
    if at >= end or (data[U64(at)] != BACKTICK and data[U64(at)] != TILDE):
        return np.int64(0), np.int64(0)
    byte = np.int64(data[U64(at)])
    stop = at
    while stop < end and data[U64(stop)] == byte:
        stop += 1
    return (byte, np.int64(stop - at)) if stop - at >= _MIN_FENCE else (np.int64(0), np.int64(0))


@raw_step
def _after_fence(data: Bytes, at: Int, end: Int) -> tuple[bool, bool]:
    """Whether nothing but white space follows on the line, and whether a backtick does."""
    is_bare, has_tick = True, False
    while at < end and data[U64(at)] != NEWLINE:
        byte = data[U64(at)]
        is_bare &= byte == BLANK or byte == TAB or byte == RETURN
        has_tick |= byte == BACKTICK
        at += 1
    return is_bare, has_tick


@raw_step
def _is_structure(data: Bytes, line: Int, at: Int, end: Int) -> bool:
    """A heading, a quote or indented code: what begins at `at`, on a line that begins at `line`."""
    if at < end and data[U64(at)] == QUOTED:
        return True
    stop = at
    while stop < end and data[U64(stop)] == HASH:
        stop += 1
    if 0 < stop - at <= _MAX_HEADING and _is_gap(data, stop, end):
        return True
    columns: Int = 0
    for k in range(line, at):
        columns += _MIN_INDENT if data[U64(k)] == TAB else 1
    return bool(columns >= _MIN_INDENT and not _is_item(data, at, end))


@raw_step
def _is_item(data: Bytes, at: Int, end: Int) -> bool:
    """Of a list: a bullet, or a number with a dot or a bracket, and a space."""
    stop = at
    while stop < end and 48 <= data[U64(stop)] <= 57:
        stop += 1
    if stop >= end:
        return False
    mark = data[U64(stop)]
    is_mark = mark == 42 or mark == 43 or mark == 45 if stop == at else mark == 46 or mark == 41
    return bool(is_mark and _is_gap(data, stop + 1, end))


@raw_step
def _is_gap(data: Bytes, at: Int, end: Int) -> bool:
    return bool(at < end and (data[U64(at)] == BLANK or data[U64(at)] == TAB))


@raw_kernel(lambda: cut_lines(*TEXT, np.zeros(256, np.uint16), ROWS, ROWS))
def _cut_lines(
    data: Bytes,
    offsets: Offsets,
    classes: NDArray[np.uint16],
    rows: NDArray[np.int64],
    starts: NDArray[np.int64],
    changed: NDArray[np.int64],
    left: Bytes,
    left_offsets: Offsets,
    chars: NDArray[np.int64],
    is_filled: NDArray[np.bool_],
    span_rows: NDArray[np.int64],
    span_starts: NDArray[np.int64],
    span_ends: NDArray[np.int64],
) -> Int:
    spans: Int = 0
    line: Int = 0  # the next one that goes
    used: Int = 0
    for number in range(changed.size):
        row = changed[number]
        begin, end = offsets[row], offsets[row + 1]
        first_span = spans
        open_at: Int = -1  # where the span begins that is not over yet
        tail: Int = begin  # where the last line ends that stays and is not blank
        is_after_blank = True  # what stays so far ends in a blank line, or is nothing
        is_after_cut = False
        was_after_blank = False  # at that cut
        at: Int = begin
        while at < end:
            stop = min(_next_line(data, at, end), end)
            is_gone = line < rows.size and rows[line] == row and starts[line] == at - begin
            if is_gone:
                line += 1
                is_after_cut, was_after_blank = True, is_after_blank
            elif _is_blank(data, at, stop, classes):
                is_gone = is_after_cut and was_after_blank
                is_after_blank = True
            else:
                is_after_cut, is_after_blank, tail = False, False, stop
            if is_gone and open_at < 0:
                open_at = at
            if not is_gone and open_at >= 0:
                span_rows[spans], span_starts[spans], span_ends[spans] = row, open_at - begin, at - begin
                spans += 1
                open_at = -1
            at = stop
        if is_after_cut:  # nothing is said after the last cut: the text ends with what is said before it
            while spans > first_span and span_starts[spans - 1] >= tail - begin:
                spans -= 1
            if tail > begin and data[end - 1] != NEWLINE:
                tail -= 1
                if tail > begin and data[tail - 1] == RETURN:
                    tail -= 1
            span_rows[spans], span_starts[spans], span_ends[spans] = row, tail - begin, end - begin
            spans += 1
        at = begin
        for span in range(first_span, spans + 1):
            stop = end if span == spans else begin + span_starts[span]
            while at < stop:
                left[used] = data[U64(at)]
                used += 1
                at += 1
            if span < spans:
                while at < begin + span_ends[span]:
                    chars[number] += (data[U64(at)] & 0xC0) != 0x80
                    at += 1
        is_filled[number] = not _is_blank(left, left_offsets[number], used, classes)
        left_offsets[number + 1] = used
    return spans


@raw_step
def _is_blank(data: Bytes, at: Int, end: Int, classes: NDArray[np.uint16]) -> bool:
    while at < end:
        code, width = code_at(data, at)
        if classes[code] & SPACE == 0:
            return False
        at += width
    return True

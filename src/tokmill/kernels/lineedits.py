"""Lines that are not prose taken out of a document, and marks of an encyclopedia taken out of lines.

line ─ strip ─ longest chunk ─ citations out ─ strip ─ last character ─ chunks ─ phrases ─> kept, or a reason
                    │                                        │             │         │
               long word                        no terminal punctuation  too few  javascript, policy

Lines are cut at \\n; what is kept is joined with \\n again. An edit only ever takes bytes away, so a row has
changed if it is shorter. Of every row it is told which of its filled lines stayed whole, and the lines that
lost a citation stand apart once more: what was counted per line before the edits need be counted again in
these only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import (
    HIGH_BITS,
    LOW_BITS,
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
    raw_kernel,
    raw_step,
    store_word,
)
from tokmill.kernels.patterns import PhraseTable, is_phrase, phrase_table

U64 = np.uint64
BITS_6 = U64(0x4040404040404040)
# Added to a byte of ASCII: its high bit then tells that it is above the space.
ABOVE_SPACE = U64(0x5F5F5F5F5F5F5F5F)
NEWLINES = U64(0x0A0A0A0A0A0A0A0A)
BRACKETS = U64(0x5B5B5B5B5B5B5B5B)
NEWLINE, BRACKET, END_BRACKET = 10, 91, 93
QUOTE, APOSTROPHE, DOT, QUESTION, EXCLAMATION = 34, 39, 46, 63, 33
_NO_GROUP = 1 << 30

# What was taken out, and the row of `removed` that counts it.
# Phrase group g is counted in row FIRST_PHRASE + g.
BLANK, OUTER_SPACE, LONG_WORD, CITATION, NOT_TERMINAL, FEW_WORDS, FIRST_PHRASE = range(7)


class EditedLines(NamedTuple):
    data: Bytes  # of all rows
    offsets: Offsets
    rows: NDArray[np.int64]  # that changed
    removed: NDArray[np.int64]  # [what, changed row]
    line_offsets: Offsets  # the filled lines of row i are line_offsets[i]:line_offsets[i + 1]
    is_whole: NDArray[np.uint8]  # per filled line: all but the spaces at its ends is still there
    cut_data: Bytes  # of each row the lines that stayed without their citations, joined with \n
    cut_offsets: Offsets


def edit_lines(
    data: Bytes,
    offsets: Offsets,
    classes: NDArray[np.uint16],
    phrases: PhraseTable,
    *,
    min_words: int,
    max_word_chars: int,
    terminal_only: bool,
    strip_citations: bool,
) -> EditedLines:
    data, offsets, rows = frozen_text(data, offsets)
    edited = EditedLines(
        np.empty(offsets[-1] - offsets[0], np.uint8),
        np.zeros(rows + 1, np.int64),
        np.empty(rows, np.int64),
        np.zeros((FIRST_PHRASE + phrases.group_count, rows), np.int64),
        np.zeros(rows + 1, np.int64),
        np.empty(offsets[-1] - offsets[0], np.uint8),  # a filled line has a byte at least
        np.empty(offsets[-1] - offsets[0], np.uint8),
        np.zeros(rows + 1, np.int64),
    )
    count = _edit_lines(
        data,
        offsets,
        frozen(classes, np.uint16),
        phrases.window,
        frozen(phrases.steps, np.uint8),
        frozen(phrases.first, np.int64),
        frozen(phrases.groups, np.int64),
        frozen(phrases.offsets, np.int64),
        frozen(phrases.data, np.uint8),
        min_words,
        max_word_chars,
        bool(terminal_only),
        bool(strip_citations),
        *edited,
    )
    return EditedLines(
        edited.data[: edited.offsets[-1]],
        edited.offsets,
        edited.rows[:count],
        edited.removed[:, :count],
        edited.line_offsets,
        edited.is_whole[: edited.line_offsets[-1]],
        edited.cut_data[: edited.cut_offsets[-1]],
        edited.cut_offsets,
    )


@raw_kernel(
    lambda: edit_lines(
        *TEXT,
        np.zeros(256, np.uint16),
        phrase_table((("a",),)),
        min_words=3,
        max_word_chars=9,
        terminal_only=True,
        strip_citations=True,
    )
)
def _edit_lines(
    data: Bytes,
    offsets: Offsets,
    classes: NDArray[np.uint16],
    window: Int,
    steps: NDArray[np.uint8],
    first_entry: NDArray[np.int64],
    groups: NDArray[np.int64],
    phrase_offsets: Offsets,
    phrases: Bytes,
    min_words: Int,
    max_word_chars: Int,
    terminal_only: bool,
    strip_citations: bool,
    edited: Bytes,
    edited_offsets: Offsets,
    rows: NDArray[np.int64],
    removed: NDArray[np.int64],
    line_offsets: Offsets,
    is_whole: NDArray[np.uint8],
    cut_data: Bytes,
    cut_offsets: Offsets,
) -> Int:
    count: Int = 0
    filled: Int = 0
    cut: Int = 0
    for row in range(offsets.size - 1):
        begin, end = offsets[row], offsets[row + 1]
        used = edited_offsets[row]
        removed[:, count] = 0
        at = begin
        while at < end:
            line, first = at, _after_spaces(data, at, end, classes)
            if first == end or data[first] == NEWLINE:
                removed[BLANK, count] += 1
                at = first + 1
                continue
            is_whole[filled] = 0
            filled += 1
            joint = 1 if used > edited_offsets[row] else 0  # the newline between it and the line before
            start = used + joint
            stop, has_bracket = _copy_line(data, first, end, edited, start)
            at = stop + 1
            last = _before_spaces(data, first, stop, classes)
            if first > line or last < stop:
                removed[OUTER_SPACE, count] += 1
            if last - first > max_word_chars and _longest_chunk(data, first, last, classes) > max_word_chars:
                removed[LONG_WORD, count] += 1
                continue
            into = start + last - first
            citations: Int = 0
            if has_bracket and strip_citations:
                into, citations = _copy_uncited(data, first, last, edited, start)
                if citations:
                    start = _after_spaces(edited, start, into, classes)
                    into = _before_spaces(edited, start, into, classes)
            if terminal_only and not _is_terminal(edited, start, into):
                removed[NOT_TERMINAL, count] += 1
                continue
            if not _has_chunks(data, first, last, min_words, classes):
                removed[FEW_WORDS, count] += 1
                continue
            group = _phrase_in(
                edited, start, into, window, steps, first_entry, groups, phrase_offsets, phrases
            )
            if group >= 0:
                removed[FIRST_PHRASE + group, count] += 1
                continue
            removed[CITATION, count] += citations
            if start == into:
                removed[BLANK, count] += 1
                continue
            if joint:
                edited[used] = NEWLINE
            used += joint
            if start > used:  # a citation left a space at the front
                for source in range(start, into):
                    edited[used + source - start] = edited[source]
            used += into - start
            is_whole[filled - 1] = citations == 0
            if citations:
                if cut > cut_offsets[row]:
                    cut_data[cut] = NEWLINE
                    cut += 1
                for source in range(used - (into - start), used):
                    cut_data[cut] = edited[source]
                    cut += 1
        edited_offsets[row + 1], line_offsets[row + 1], cut_offsets[row + 1] = used, filled, cut
        if used - edited_offsets[row] < end - begin:
            if data[end - 1] == NEWLINE:
                removed[OUTER_SPACE, count] += 1
            rows[count] = row
            count += 1
    return count


@raw_step
def _copy_line(data: Bytes, at: Int, end: Int, edited: Bytes, into: Int) -> tuple[Int, bool]:
    """What is before the next newline, to `into`; where that newline is, and whether a [ may be in the line.

    Up to seven bytes more are written: there is room, because what is kept never overtakes what was read.
    """
    brackets = U64(0)
    while end - at >= 8:
        word = load_word(data, at)
        store_word(edited, into, word)
        brackets |= first_zero(word ^ BRACKETS)
        marks = first_zero(word ^ NEWLINES)
        if marks:
            return at + bytes_before(marks), bool(brackets)
        at += 8
        into += 8
    while at < end and data[at] != NEWLINE:
        brackets |= U64(data[at] == BRACKET)
        edited[into] = data[at]
        at += 1
        into += 1
    return at, bool(brackets)


@raw_step
def _has_chunks(data: Bytes, at: Int, end: Int, wanted: Int, classes: NDArray[np.uint16]) -> bool:
    """Whether so many runs of what is not a space are in a line; the first few words tell."""
    chunks: Int = 0
    visible = U64(0)  # of eight bytes, 1 in each that is not a space
    while end - at >= 8 and chunks < wanted:
        word = load_word(data, at)
        if word & HIGH_BITS or (word | word << U64(1)) & BITS_6 != BITS_6:
            break  # a byte of these is no ASCII, or a control character
        before = visible >> U64(56)
        visible = ((word + ABOVE_SPACE) & HIGH_BITS) >> U64(7)
        chunks += np.int64(((visible & ~(visible << U64(8) | before)) * LOW_BITS) >> U64(56))
        at += 8
    is_inside = visible >> U64(56) != U64(0)
    while at < end and chunks < wanted:
        code, width = code_at(data, at)
        is_space = (classes[code] & SPACE) != 0
        chunks += not is_space and not is_inside
        is_inside = not is_space
        at += width
    return bool(chunks >= wanted)


@raw_step
def _longest_chunk(data: Bytes, at: Int, end: Int, classes: NDArray[np.uint16]) -> Int:
    chars: Int = 0
    longest: Int = 0
    while at < end:
        code, width = code_at(data, at)
        chars = 0 if classes[code] & SPACE else chars + 1
        longest = max(longest, chars)
        at += width
    return longest


@raw_step
def _copy_uncited(data: Bytes, at: Int, end: Int, edited: Bytes, into: Int) -> tuple[Int, Int]:
    """The line without its citations, from `into` on; where it ends then, and how many they were."""
    citations: Int = 0
    while at < end:
        if end - at >= 8:
            word = load_word(data, at)
            if first_zero(word ^ BRACKETS) == U64(0):
                store_word(edited, into, word)
                into += 8
                at += 8
                continue
        size = _citation_bytes(data, at, end) if data[at] == BRACKET else 0
        if size:
            citations += 1
            at += size
        else:
            edited[into] = data[at]
            into += 1
            at += 1
    return into, citations


@raw_step
def _citation_bytes(data: Bytes, at: Int, end: Int) -> Int:
    """Length of [12], [], [edit] or [citation needed] at `at`, or 0."""
    stop: Int = at + 1
    while stop < end and 48 <= data[stop] <= 57:
        stop += 1
    if stop < end and data[stop] == END_BRACKET:
        return stop + 1 - at
    if stop > at + 1:
        return 0
    for text in (b"[edit]", b"[citation needed]"):
        if at + len(text) <= end:
            k: Int = 0
            while k < len(text) and data[at + k] == text[k]:
                k += 1
            if k == len(text):
                return k
    return 0


@raw_step
def _is_terminal(data: Bytes, start: Int, end: Int) -> bool:
    """Ends in . ? ! or a straight quote, and not in three dots."""
    if end == start:
        return False
    last = data[end - 1]
    if last == DOT:
        return not (end - start >= 3 and data[end - 2] == DOT and data[end - 3] == DOT)
    return bool(last in (QUESTION, EXCLAMATION, QUOTE, APOSTROPHE))


@raw_step
def _after_spaces(data: Bytes, at: Int, end: Int, classes: NDArray[np.uint16]) -> Int:
    """A newline is not passed."""
    while at < end and data[at] != NEWLINE:
        code, width = code_at(data, at)
        if classes[code] & SPACE == 0:
            break
        at += width
    return at


@raw_step
def _before_spaces(data: Bytes, start: Int, end: Int, classes: NDArray[np.uint16]) -> Int:
    while start < end:
        at = end - 1
        while data[at] & 0xC0 == 0x80:
            at -= 1
        if classes[code_at(data, at)[0]] & SPACE == 0:
            break
        end = at
    return end


@raw_step
def _phrase_in(
    data: Bytes,
    begin: Int,
    end: Int,
    window: Int,
    steps: NDArray[np.uint8],
    first_entry: NDArray[np.int64],
    groups: NDArray[np.int64],
    phrase_offsets: Offsets,
    phrases: Bytes,
) -> Int:
    """The lowest group with a phrase in the line, or -1. See kernels.patterns for how it is looked for."""
    found: Int = _NO_GROUP
    gap = U64(min(1, window - 1))
    at: Int = begin + window - 1
    while at < end:
        i = U64(at)
        pair = U64(data[i - gap] & 31) << U64(5) | U64(data[i] & 31)
        at += np.int64(steps[pair])
        if steps[pair]:
            continue
        start = at - (window - 1)
        at += 1
        for entry in range(first_entry[pair], first_entry[pair + U64(1)]):
            if is_phrase(data, start, end, phrases, phrase_offsets[entry], phrase_offsets[entry + 1]):
                found = min(found, groups[entry])
    return found if found < _NO_GROUP else -1

"""Lines that are not prose taken out of a document, and marks of an encyclopedia taken out of lines.

    line ─ strip ─ longest chunk ─ citations out ─ strip ─ last character ─ chunks ─ phrases ─> kept, or a reason
                        │                                        │             │         │
                   long word                        no terminal punctuation  too few  javascript, policy

Lines are cut at \\n; what is kept is joined with \\n again. An edit only ever takes bytes away, so a row has
changed if it is shorter. Of every row it is told which of its filled lines stayed whole, and the lines that lost a
citation stand apart once more: what was counted per line before the edits need be counted again in these only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.classes import SPACE
from tokmill.kernels.columns import Bytes, Int, Offsets, frozen, frozen_text
from tokmill.kernels.phrases import PhraseTable
from tokmill.kernels.raw import raw_kernel, raw_step

U64 = np.uint64
LOW_BITS = U64(0x0101010101010101)
LOW_SEVEN = U64(0x7F7F7F7F7F7F7F7F)
NEWLINES = U64(0x0A0A0A0A0A0A0A0A)
BRACKETS = U64(0x5B5B5B5B5B5B5B5B)
NEWLINE, BRACKET, END_BRACKET = 10, 91, 93
QUOTE, APOSTROPHE, DOT, QUESTION, EXCLAMATION = 34, 39, 46, 63, 33
_NO_GROUP = 1 << 30

# What was taken out, and the row of `removed` that counts it. Phrase group g is counted in row FIRST_PHRASE + g.
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
        frozen(phrases.is_looked_at, np.uint8),
        frozen(phrases.first, np.int64),
        frozen(phrases.anchors, np.int64),
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


@raw_kernel
def _edit_lines(
    data: Bytes,
    offsets: Offsets,
    classes: NDArray[np.uint16],
    is_looked_at: NDArray[np.uint8],
    first_entry: NDArray[np.int64],
    anchors: NDArray[np.int64],
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
            line, stop = at, _line_end(data, at, end)
            at = stop + 1
            first, last = _stripped(data, line, stop, classes)
            if first == last:
                removed[BLANK, count] += 1
                continue
            is_whole[filled] = 0
            filled += 1
            if first > line or last < stop:
                removed[OUTER_SPACE, count] += 1
            if last - first > max_word_chars and _longest_chunk(data, first, last, classes) > max_word_chars:
                removed[LONG_WORD, count] += 1
                continue
            joint = 1 if used > edited_offsets[row] else 0  # the newline between it and the line before
            start = used + joint
            into, citations = _copy(data, first, last, edited, start, strip_citations)
            if citations:
                start, into = _stripped(edited, start, into, classes)
            if terminal_only and not _is_terminal(edited, start, into):
                removed[NOT_TERMINAL, count] += 1
                continue
            if not _has_chunks(data, first, last, min_words, classes):
                removed[FEW_WORDS, count] += 1
                continue
            group = _phrase_in(
                edited, start, into, is_looked_at, first_entry, anchors, groups, phrase_offsets, phrases
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
def _line_end(data: Bytes, at: Int, end: Int) -> Int:
    while end - at >= 8:
        marks = _zero_marks(_load_word(data, at) ^ NEWLINES)
        if marks:
            before = ((marks & (~marks + U64(1))) >> U64(7)) - U64(1)
            return at + np.int64(((before & LOW_BITS) * LOW_BITS) >> U64(56))
        at += 8
    while at < end and data[at] != NEWLINE:
        at += 1
    return at


@raw_step
def _has_chunks(data: Bytes, at: Int, end: Int, wanted: Int, classes: NDArray[np.uint16]) -> bool:
    """Whether so many runs of what is not a space are in a line; the first few words tell."""
    chunks: Int = 0
    is_inside = False
    while at < end and chunks < wanted:
        code, width = _code_at(data, at)
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
        code, width = _code_at(data, at)
        chars = 0 if classes[code] & SPACE else chars + 1
        longest = max(longest, chars)
        at += width
    return longest


@raw_step
def _copy(data: Bytes, at: Int, end: Int, edited: Bytes, into: Int, strip_citations: bool) -> tuple[Int, Int]:
    """The line without its citations, from `into` on; where it ends then, and how many they were."""
    citations: Int = 0
    while at < end:
        if end - at >= 8:
            word = _load_word(data, at)
            if not strip_citations or _zero_marks(word ^ BRACKETS) == U64(0):
                _store_word(edited, into, word)
                into += 8
                at += 8
                continue
        size = _citation_bytes(data, at, end) if strip_citations and data[at] == BRACKET else 0
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
def _stripped(data: Bytes, start: Int, end: Int, classes: NDArray[np.uint16]) -> tuple[Int, Int]:
    while start < end:
        code, width = _code_at(data, start)
        if classes[code] & SPACE == 0:
            break
        start += width
    while start < end:
        at = end - 1
        while data[at] & 0xC0 == 0x80:
            at -= 1
        if classes[_code_at(data, at)[0]] & SPACE == 0:
            break
        end = at
    return start, end


@raw_step
def _phrase_in(
    data: Bytes,
    begin: Int,
    end: Int,
    is_looked_at: NDArray[np.uint8],
    first_entry: NDArray[np.int64],
    anchors: NDArray[np.int64],
    groups: NDArray[np.int64],
    phrase_offsets: Offsets,
    phrases: Bytes,
) -> Int:
    """The lowest group with a phrase in the line, or -1."""
    found: Int = _NO_GROUP
    for at in range(begin, end):
        if is_looked_at[data[at]] == 0:
            continue
        byte = _lower(data[at])
        for entry in range(first_entry[byte], first_entry[byte + 1]):
            start = at - anchors[entry]
            size = phrase_offsets[entry + 1] - phrase_offsets[entry]
            if start < begin or start + size > end:
                continue
            k: Int = 0
            while k < size and _lower(data[start + k]) == phrases[phrase_offsets[entry] + k]:
                k += 1
            if k == size:
                found = min(found, groups[entry])
    return found if found < _NO_GROUP else -1


@raw_step
def _lower(byte: np.uint8) -> np.uint8:
    return byte | np.uint8(32) if 65 <= byte <= 90 else byte


@raw_step
def _code_at(data: Bytes, at: Int) -> tuple[Int, Int]:
    """The code point at `at`, and its bytes."""
    i = U64(at)
    lead = np.int64(data[i])
    if lead < 0x80:
        return lead, 1
    second = np.int64(data[i + U64(1)]) & 0x3F
    if lead < 0xE0:
        return ((lead & 0x1F) << 6) | second, 2
    third = np.int64(data[i + U64(2)]) & 0x3F
    if lead < 0xF0:
        return ((lead & 0x0F) << 12) | (second << 6) | third, 3
    fourth = np.int64(data[i + U64(3)]) & 0x3F
    return ((lead & 0x07) << 18) | (second << 12) | (third << 6) | fourth, 4


@raw_step
def _load_word(data: Bytes, at: Int) -> np.uint64:
    """Eight bytes. LLVM makes one load of it, because the unsigned index cannot be negative."""
    i = U64(at)
    return (
        U64(data[i])
        | U64(data[i + U64(1)]) << U64(8)
        | U64(data[i + U64(2)]) << U64(16)
        | U64(data[i + U64(3)]) << U64(24)
        | U64(data[i + U64(4)]) << U64(32)
        | U64(data[i + U64(5)]) << U64(40)
        | U64(data[i + U64(6)]) << U64(48)
        | U64(data[i + U64(7)]) << U64(56)
    )


@raw_step
def _store_word(data: Bytes, at: Int, word: np.uint64) -> None:
    i = U64(at)
    data[i] = np.uint8(word)
    data[i + U64(1)] = np.uint8(word >> U64(8))
    data[i + U64(2)] = np.uint8(word >> U64(16))
    data[i + U64(3)] = np.uint8(word >> U64(24))
    data[i + U64(4)] = np.uint8(word >> U64(32))
    data[i + U64(5)] = np.uint8(word >> U64(40))
    data[i + U64(6)] = np.uint8(word >> U64(48))
    data[i + U64(7)] = np.uint8(word >> U64(56))


@raw_step
def _zero_marks(word: np.uint64) -> np.uint64:
    """0x80 in each byte that is zero."""
    return ~(((word & LOW_SEVEN) + LOW_SEVEN) | word | LOW_SEVEN)

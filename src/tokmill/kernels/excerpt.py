"""An excerpt of a text's letters, gathered from several places: what a language detector wants to see.

text      | segment 0          | segment 1          | …  places segments of equal bytes
          ^ from its start     ^ from its first whole token; read until the quota is met or it ends
token     up to a separator: "(The  {{domxref("Node")}}  l'été,  https://a.b/c  使用map()方法。
words       The                         l'été                   使用map   方法
excerpt   "The l'été 使用map 方法"   one line; a text of at most places x bytes_per_place gives all its words

A token is prose if it is letters, with at most punctuation around it and apostrophes and hyphens inside; it
gives one word. Any other token (markup, code, numbers, addresses) gives only its runs of letters that are not
all ASCII: scripts without spaces put words and code into one token. A text whose prose is less than
`min_bytes` is all markup or code; then every run of letters counts.

What a segment does not fill the next may: its quota is bytes_per_place x (segments so far).
Words that touch in the text touch in the excerpt, so it is never longer than the text.

Two tokens of three are ASCII letters and at most one closing mark; they are found and copied eight bytes at a
time. So is the end of a token of markup or code, of which nothing is wanted. Byte by byte it took twice the
time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import (
    HIGH_BITS,
    LOW_BITS,
    LOW_SEVEN,
    TEXT,
    Bytes,
    Int,
    Offsets,
    bytes_before,
    decode,
    frozen,
    frozen_text,
    letter_marks,
    load_word,
    raw_kernel,
    raw_step,
    store_word,
)

# Classes of code points. The order matters: what continues a word is LETTER or MARK.
SEPARATOR, LETTER, MARK, JOINER, OPENER, CLOSER, QUOTE, CODE = (np.uint8(n) for n in range(8))

SPACE = np.uint8(32)

U64 = np.uint64
ABOVE_BLANK = U64(0x5F5F5F5F5F5F5F5F)  # added to 33 or more

# A token is cut after this many code points, so that no step of the walk is longer than its quota. German
# compounds and clauses of Thai or Chinese are shorter; what is cut goes on as the next token, and touches it.
MAX_TOKEN_CHARS = 100
# So many bytes of letters are copied eight by eight, up to seven more; a longer token goes the slow way.
_QUICK_BYTES = 64


def excerpt_letters(
    data: Bytes,
    offsets: Offsets,
    classes: NDArray[np.uint8],
    *,
    places: int,
    bytes_per_place: int,
    min_bytes: int,
) -> tuple[Bytes, Offsets]:
    """The excerpt of each row of a valid UTF-8 column, as new buffers.

    `classes` has one per code point: LETTER for ASCII letters, SEPARATOR up to the blank, none from ! to ~.
    """
    data, offsets, rows = frozen_text(data, offsets)
    # The last token may pass the quota; it has four bytes per code point at most.
    room = places * bytes_per_place + 4 * MAX_TOKEN_CHARS
    excerpts = np.empty(np.minimum(np.diff(offsets), room).sum() + 2 * _QUICK_BYTES, np.uint8)
    excerpt_offsets = np.zeros(rows + 1, np.int64)
    used = _excerpt_letters(
        data,
        offsets,
        frozen(classes, np.uint8),
        places,
        bytes_per_place,
        min_bytes,
        excerpts,
        excerpt_offsets,
    )
    return excerpts[:used], excerpt_offsets


@raw_kernel(lambda: excerpt_letters(*TEXT, np.zeros(128, np.uint8), places=1, bytes_per_place=1, min_bytes=0))
def _excerpt_letters(
    data: Bytes,
    offsets: Offsets,
    classes: NDArray[np.uint8],
    places: int,
    bytes_per_place: int,
    min_bytes: int,
    excerpts: Bytes,
    excerpt_offsets: Offsets,
) -> Int:
    first: Int = 0  # of this row's excerpt
    for row in range(offsets.size - 1):
        start, end = offsets[row], offsets[row + 1]
        used = first
        for every_run in (False, True):
            used = first
            at = start
            word_end: Int = -1  # in the text, of the word written last
            for place in range(places):
                begin = start + (end - start) * place // places
                stop = start + (end - start) * (place + 1) // places
                quota = first + bytes_per_place * (place + 1)
                if at < begin:
                    at = _next_token(data, begin, end, classes)
                while at < stop and used < quota:
                    if data[U64(at)] <= SPACE:
                        at += 1
                        continue
                    token = at
                    into = used + 1 if used > first and at != word_end else used  # after a space
                    at = _copy_letters(data, at, end, excerpts, into)
                    if token < at and at + 1 < end:
                        byte, after = data[U64(at)], data[U64(at + 1)]
                        is_closed = after <= SPACE and byte < 128 and classes[U64(byte)] == CLOSER
                        if byte <= SPACE or is_closed:
                            if into > used:
                                excerpts[U64(used)] = SPACE
                            used = into + at - token
                            word_end = at
                            if byte > SPACE:
                                at += 1
                            continue
                    # Another token, from where its ASCII letters end:
                    # where its letters begin and end, and whether it is prose.
                    chars = at - token
                    word = letters_end = token - 1  # no letter yet
                    if chars > 0:
                        word, letters_end = token, at
                    is_prose, is_closed, is_ascii = True, False, True
                    width: Int = 1
                    while at < end and chars < MAX_TOKEN_CHARS:
                        code: Int = np.int64(data[U64(at)])
                        width = 1
                        if code >= 128:
                            code, width = decode(data, at)
                            is_ascii = False
                        kind = classes[U64(code)]
                        if kind == LETTER or (kind == MARK and word >= token):
                            is_prose &= not is_closed
                            if word < token:
                                word = at
                            letters_end = at + width
                        elif kind == SEPARATOR:
                            break
                        elif kind == CODE:
                            is_prose = False
                        elif kind == OPENER:
                            is_prose &= word < token
                        elif kind == CLOSER:
                            is_prose &= word >= token
                            is_closed = True
                        elif kind == QUOTE:
                            is_closed = word >= token
                        at += width
                        chars += 1
                        if not is_prose and not every_run:  # to its end, or to a letter that is not ASCII
                            skipped = _skip_ascii(data, at, end, MAX_TOKEN_CHARS - chars)
                            chars += skipped - at
                            at = skipped
                            word, letters_end = token, at
                    if at == token:
                        at += width  # nothing but a separator
                    if is_ascii and not is_prose and not every_run:
                        continue
                    # A prose token is one word; another is tried run by run.
                    while word < letters_end:
                        run_end, counts = letters_end, True
                        if not is_prose:
                            word, run_end, counts = _run(data, word, letters_end, classes)
                        if (counts or every_run) and word < run_end:
                            if used > first and word != word_end:
                                excerpts[U64(used)] = SPACE
                                used += 1
                            for k in range(word, run_end):
                                excerpts[U64(used)] = data[U64(k)]
                                used += 1
                            word_end = run_end
                        word = run_end
            if used - first >= min_bytes:
                break
        excerpt_offsets[row + 1] = used
        first = used
    return first


@raw_step
def _copy_letters(data: Bytes, at: Int, end: Int, excerpts: Bytes, into: Int) -> Int:
    """Where the ASCII letters from `at` on end; they are copied, and a few bytes more."""
    last = min(end, at + _QUICK_BYTES)
    while at < last and at + 8 <= data.size:
        word = load_word(data, at)
        store_word(excerpts, into, word)
        size = bytes_before(letter_marks(word) ^ HIGH_BITS)
        at += size
        into += size
        if size < 8:
            break
    return min(at, end)


@raw_step
def _skip_ascii(data: Bytes, at: Int, end: Int, most: Int) -> Int:
    """After bytes from ! to ~, at most so many."""
    last = min(end, at + most)
    while at < last and at + 8 <= data.size:
        word = load_word(data, at)
        low = word & LOW_SEVEN
        size = bytes_before(~((low + ABOVE_BLANK) & ~(low + LOW_BITS) & ~word) & HIGH_BITS)
        at += size
        if size < 8:
            break
    return min(at, last)


@raw_step
def _run(data: Bytes, at: Int, end: Int, classes: NDArray[np.uint8]) -> tuple[Int, Int, bool]:
    """(start, end) of the first run of letters in a token that is not prose, and whether one is not ASCII."""
    begin, is_foreign = at, False
    while at < end:
        code: Int = np.int64(data[U64(at)])
        width: Int = 1
        if code >= 128:
            code, width = decode(data, at)
        kind = classes[U64(code)]
        if kind == LETTER or (kind == MARK and at > begin):
            is_foreign |= bool(width > 1)
        elif at > begin:
            break
        else:
            begin = at + width
        at += width
    return begin, at, is_foreign


@raw_step
def _next_token(data: Bytes, at: Int, end: Int, classes: NDArray[np.uint8]) -> Int:
    """The first byte after the next separator; without one near,
    the code point that is MAX_TOKEN_CHARS on."""
    while at < end and (data[U64(at)] & 0xC0) == 0x80:
        at += 1
    for _ in range(MAX_TOKEN_CHARS):
        if at >= end:
            break
        code: Int = np.int64(data[U64(at)])
        width: Int = 1
        if code >= 128:
            code, width = decode(data, at)
        at += width
        if classes[U64(code)] == SEPARATOR:
            break
    return at

"""An excerpt of a text's letters, gathered from several places: what a language detector wants to see.

    text      | segment 0          | segment 1          | …  places segments of equal bytes
              ^ from its start     ^ from its first whole token; read until the quota is met or it ends
    token     up to a separator: "(The  {{domxref("Node")}}  l'été,  https://a.b/c  使用map()方法。
    words       The                         l'été                   使用map   方法
    excerpt   "The l'été 使用map 方法"     one line; a text of at most places x bytes_per_place gives all its words

A token is prose if it is letters, with at most punctuation around it and apostrophes and hyphens inside; it
gives one word. Any other token (markup, code, numbers, addresses) gives only its runs of letters that are not
all ASCII: scripts without spaces put words and code into one token. A text whose prose is less than `min_bytes`
is all markup or code; then every run of letters counts.

What a segment does not fill the next may: its quota is bytes_per_place x (segments so far). Words that touch in
the text touch in the excerpt, so it is never longer than the text.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.columns import Bytes, Int, Offsets, frozen, frozen_text
from tokmill.kernels.jit import inlined, kernel

# Classes of code points. The order matters: what continues a word is LETTER or MARK.
SEPARATOR, LETTER, MARK, JOINER, OPENER, CLOSER, QUOTE, CODE = (np.uint8(n) for n in range(8))

SPACE = np.uint8(32)

# A token is cut after this many code points, so that no step of the walk is longer than its quota. German
# compounds and clauses of Thai or Chinese are shorter; what is cut goes on as the next token, and touches it.
MAX_TOKEN_CHARS = 100


def excerpt_letters(
    data: Bytes,
    offsets: Offsets,
    classes: NDArray[np.uint8],
    *,
    places: int,
    bytes_per_place: int,
    min_bytes: int,
) -> tuple[Bytes, Offsets]:
    """The excerpt of each row of a valid UTF-8 column, as new buffers; `classes` has one per code point."""
    data, offsets, rows = frozen_text(data, offsets)
    # The last token may pass the quota; it has four bytes per code point at most.
    room = places * bytes_per_place + 4 * MAX_TOKEN_CHARS
    excerpts = np.empty(np.minimum(np.diff(offsets), room).sum(), np.uint8)
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


@kernel
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
                    # One token: where its letters begin and end, and whether it is prose. As a step of its own
                    # this walk was called, not inlined, and the excerpt ran at 190 MB/s instead of 380.
                    token, chars = at, 0
                    word = letters_end = token - 1  # no letter yet
                    is_prose, is_closed = True, False
                    while at < end and chars < MAX_TOKEN_CHARS:
                        code: Int = np.int64(data[at])
                        width: Int = 1
                        if code >= 128:
                            code, width = _decode(data, at)
                        kind = classes[code]
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
                    if at == token:
                        at += width  # nothing but a separator
                    # A prose token is one word; another is tried run by run.
                    while word < letters_end:
                        run_end, counts = letters_end, True
                        if not is_prose:
                            word, run_end, counts = _run(data, word, letters_end, classes)
                        if (counts or every_run) and word < run_end:
                            if used > first and word != word_end:
                                excerpts[used] = SPACE
                                used += 1
                            for byte in range(word, run_end):
                                excerpts[used] = data[byte]
                                used += 1
                            word_end = run_end
                        word = run_end
            if used - first >= min_bytes:
                break
        excerpt_offsets[row + 1] = used
        first = used
    return first


@inlined
def _run(data: Bytes, at: Int, end: Int, classes: NDArray[np.uint8]) -> tuple[Int, Int, bool]:
    """(start, end) of the first run of letters in a token that is not prose, and whether one is not ASCII."""
    begin, is_foreign = at, False
    while at < end:
        code: Int = np.int64(data[at])
        width: Int = 1
        if code >= 128:
            code, width = _decode(data, at)
        kind = classes[code]
        if kind == LETTER or (kind == MARK and at > begin):
            is_foreign |= bool(width > 1)
        elif at > begin:
            break
        else:
            begin = at + width
        at += width
    return begin, at, is_foreign


@inlined
def _next_token(data: Bytes, at: Int, end: Int, classes: NDArray[np.uint8]) -> Int:
    """The first byte after the next separator; without one near, the code point that is MAX_TOKEN_CHARS on."""
    while at < end and (data[at] & 0xC0) == 0x80:
        at += 1
    for _ in range(MAX_TOKEN_CHARS):
        if at >= end:
            break
        code: Int = np.int64(data[at])
        width: Int = 1
        if code >= 128:
            code, width = _decode(data, at)
        at += width
        if classes[code] == SEPARATOR:
            break
    return at


@inlined
def _decode(data: Bytes, at: Int) -> tuple[Int, Int]:
    """The code point of two to four bytes of valid UTF-8, and how many they are."""
    lead = np.int64(data[at])
    second = np.int64(data[at + 1]) & 0x3F
    if lead < 0xE0:
        return ((lead & 0x1F) << 6) | second, 2
    third = np.int64(data[at + 2]) & 0x3F
    if lead < 0xF0:
        return ((lead & 0x0F) << 12) | (second << 6) | third, 3
    fourth = np.int64(data[at + 3]) & 0x3F
    return ((lead & 0x07) << 18) | (second << 12) | (third << 6) | fourth, 4

"""Text into words, the way a tokenizer of prose does, on UTF-8 bytes.

    he said: "don't e.g. pay $5-7/kg..."          chunks are runs of what is not a space
    he│said│:│"│do│n't│e.g.│pay│$│5│-│7│/│kg│...│"

    front   edges ( " # … and openers $ % = + are words of their own, a run of dots is one
    back    edges likewise; 's; a full stop that is not part of an abbreviation; a unit or a currency after a
            digit
    core    what is left, cut at - – — ~ : < > = / between letters, at , between letters, at + - * ^ between
            digits, at . between aa and A, at icons and runs of dots; n't 'll 're 've 'm 'd go off the end.
            A core that looks like a web address or a host name is not cut.
    letters of scripts without spaces are each a word, with the marks that follow

This is close to what spaCy does with English, the segmentation that the field's thresholds were tuned on
(docs/measures.md has the figures). A word leaves its hash, its length and five facts; the text is not needed
after.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import (
    CONTROL,
    CUTTER,
    DIGIT,
    EDGE,
    HASHES,
    HIGH_BITS,
    ICON,
    LETTER,
    MARK,
    MONEY,
    OPENER,
    PUNCTUATION,
    QUOTE,
    SPACE,
    SPACELESS,
    SYMBOL,
    TERMINAL,
    TEXT,
    UPPER,
    Bytes,
    Instruction,
    Int,
    Offsets,
    decode,
    frozen,
    frozen_text,
    holds,
    letter_marks,
    load_word,
    mix64,
    raw_kernel,
    raw_step,
    start_before,
)

U64 = np.uint64
SEED = U64(0)

# Facts about a word.
HAS_LETTER = np.uint8(1)
NOT_SYMBOLS = np.uint8(2)  # some character is neither punctuation, symbol nor control
ENDS_SENTENCE = np.uint8(4)  # one character, and it is terminal
IS_PUNCTUATION = np.uint8(8)
STARTS_LINE = np.uint8(16)

_PLAIN_WORD = np.uint8(HAS_LETTER | NOT_SYMBOLS)
_SIMPLE = np.uint16(LETTER | UPPER | DIGIT | MARK)
_MIXED = np.uint16(LETTER | DIGIT)  # it may end in a unit
_COUNTED_AS_SYMBOL = np.uint16(SYMBOL | CONTROL)
_FRONT = np.uint16(EDGE | OPENER)
_MAY_CUT = np.uint16(LETTER | CUTTER | QUOTE | DIGIT)  # with LETTER alone of these it is one word

DOT, COMMA, HYPHEN, TILDE, PLUS, STAR, CARET = 46, 44, 45, 126, 43, 42, 94
COLON, LESS, MORE, EQUALS, SLASH, PERCENT, APOSTROPHE = 58, 60, 62, 61, 47, 37, 39
AT, QUESTION, HASH, UNDERSCORE, NEWLINE, BLANK = 64, 63, 35, 95, 10, 32
EN_DASH, EM_DASH, ELLIPSIS, CURLY_APOSTROPHE, SQUARED = 0x2013, 0x2014, 0x2026, 0x2019, 0xB2


class Lexicon(NamedTuple):
    """Short strings by their bytes, packed little-endian into one word each, sorted."""

    units: NDArray[np.uint64]  # up to 4 bytes
    abbreviations: NDArray[np.uint64]  # up to 8, with their full stop


class Words(NamedTuple):
    """Words of all rows, one after the other: row i has offsets[i]:offsets[i + 1]."""

    offsets: Offsets
    hashes: NDArray[np.uint64]
    chars: NDArray[np.int32]
    facts: NDArray[np.uint8]


def pack(words: tuple[str, ...]) -> NDArray[np.uint64]:
    return np.array(sorted(int.from_bytes(word.encode(), "little") for word in words), np.uint64)


def empty_words(most: int, rows: int) -> Words:
    """Room for `most` words. Pages that are never written cost nothing."""
    return Words(
        np.zeros(rows + 1, np.int64),
        np.empty(most, np.uint64),
        np.empty(most, np.int32),
        np.empty(most, np.uint8),
    )


def split_words(
    data: Bytes, offsets: Offsets, classes: NDArray[np.uint16], lexicon: Lexicon, into: Words | None = None
) -> Words:
    """Views of `into`, which has room for as many words as the rows have bytes: there can be no more."""
    data, offsets, rows = frozen_text(data, offsets)
    into = into or empty_words(int(offsets[-1] - offsets[0]), rows)
    longest = int(np.diff(offsets).max(initial=0))
    count = _split_words(
        data,
        offsets,
        frozen(classes, np.uint16),
        frozen(lexicon.units, np.uint64),
        frozen(lexicon.abbreviations, np.uint64),
        *into,
        np.empty(longest, np.int64),
    )
    return Words(into.offsets[: rows + 1], into.hashes[:count], into.chars[:count], into.facts[:count])


@raw_kernel(
    lambda: split_words(
        *TEXT, np.zeros(256, np.uint16), Lexicon(HASHES, HASHES), empty_words(TEXT[0].size, 1)
    )
)
def _split_words(
    data: Bytes,
    offsets: Offsets,
    classes: NDArray[np.uint16],
    units: NDArray[np.uint64],
    abbreviations: NDArray[np.uint64],
    word_offsets: Offsets,
    hashes: NDArray[np.uint64],
    lengths: NDArray[np.int32],
    facts: NDArray[np.uint8],
    ends: Offsets,
) -> Int:
    count: Int = 0
    word_offsets[0] = 0
    for row in range(offsets.size - 1):
        at, end = offsets[row], offsets[row + 1]
        line = STARTS_LINE  # for the next word, if it is the first of its line
        while at < end:
            byte = data[U64(at)]
            if byte == BLANK or byte == NEWLINE:  # a tuple is slower
                if byte == NEWLINE:
                    line = STARTS_LINE
                at += 1
                continue
            stop, mixed = _letters(data, at, end)
            if stop > at:
                # Most chunks: letters, perhaps a full stop, perhaps edges, which are the next words.
                is_dot, is_word = False, True
                byte = data[U64(stop)] if stop < end else np.uint8(BLANK)
                if byte != BLANK and byte != NEWLINE:
                    is_dot = byte == DOT
                    tail = stop + is_dot
                    kind = SPACE
                    while tail < end:
                        kind = _ascii_class(data[U64(tail)], classes)
                        if kind & EDGE == 0:
                            break
                        tail += 1
                    is_word = tail == end or (kind & SPACE) != 0
                    if is_dot and is_word:
                        is_word = _is_plain_stop(data, at, stop, abbreviations)
                if is_word:
                    word = U64(count)
                    hashes[word], lengths[word], facts[word] = mixed, stop - at, _PLAIN_WORD | line
                    count += 1
                    line = np.uint8(0)
                    at = stop
                    if is_dot:
                        word = U64(count)
                        hashes[word], lengths[word], facts[word] = (
                            _finished(U64(DOT), 1),
                            1,
                            _symbol_facts(classes[DOT]),
                        )
                        count += 1
                        at += 1
                    continue
            elif _ascii_class(byte, classes) & (_FRONT | SPACE):
                if classes[byte] & _FRONT:  # what stands before a chunk says nothing about the rest of it
                    word = U64(count)
                    hashes[word], lengths[word] = _finished(SEED ^ U64(byte), 1), 1
                    facts[word] = _symbol_facts(classes[byte]) | line
                    count += 1
                    line = np.uint8(0)
                at += 1
                continue

            start, chars, seen = at, stop - at, LETTER if stop > at else np.uint16(0)
            at = stop
            first_cutter: Int = end
            core_chars, core_seen = chars, seen
            width: Int = 1
            while at < end:
                kind, width = _class_at(data, at, classes)
                if kind & SPACE:
                    break
                if kind & CUTTER and not seen & CUTTER:
                    first_cutter = at
                seen |= kind
                chars += 1
                at += width
                if not kind & EDGE:
                    stop, core_chars, core_seen = at, chars, seen
            if chars == 0:  # a space that is no blank
                at += width
                continue
            if stop > start:  # the edges at the end are left for the next round
                at, chars, seen = stop, core_chars, core_seen
            # One character, letters alone, digits alone, or nothing that any rule could cut.
            if (
                chars == 1
                or ((seen & ~_SIMPLE) == 0 and (seen & _MIXED) != _MIXED)
                or ((seen & _MAY_CUT) == LETTER and data[U64(start)] < 128)
            ):
                fact = _symbol_facts(seen) if chars == 1 else np.uint8(0)
                if seen & LETTER or not seen & _COUNTED_AS_SYMBOL:
                    fact |= NOT_SYMBOLS
                fact |= np.uint8(seen & LETTER) | line
                word = U64(count)
                hashes[word], lengths[word], facts[word] = _hash(data, start, at), chars, fact
                count += 1
            else:
                first, is_ascii = count, chars == at - start
                cuts = _cut_chunk(data, start, at, seen, first_cutter, classes, units, abbreviations, ends)
                for cut in range(cuts):
                    stop = ends[U64(cut)]
                    kind = _ascii_class(data[U64(start)], classes)
                    word = U64(count)
                    chars, fact = stop - start, _PLAIN_WORD
                    if stop - start == 1 and kind & SYMBOL:
                        fact = _symbol_facts(kind)
                    elif not is_ascii or not kind & LETTER:
                        chars, fact = _describe(data, start, stop, classes)
                    hashes[word], lengths[word], facts[word] = _hash(data, start, stop), chars, fact
                    start = stop
                    count += 1
                facts[U64(first)] |= line
            line = np.uint8(0)
        word_offsets[row + 1] = count
    return count


@raw_step
def _ascii_class(byte: np.uint8, classes: NDArray[np.uint16]) -> np.uint16:
    return classes[byte] if byte < 128 else np.uint16(0)


@raw_step
def _symbol_facts(kind: np.uint16) -> np.uint8:
    """Of a word of one character: PUNCTUATION and TERMINAL in the places of their facts, without a branch."""
    return np.uint8((kind >> np.uint16(4)) & IS_PUNCTUATION | (kind >> np.uint16(6)) & ENDS_SENTENCE)


# Of a word that has a bit. On the way from word to word: counted by a product it took 5 % longer.
_trailing_zeros = Instruction("trailing_zeros")


@raw_step
def _letters(data: Bytes, start: Int, end: Int) -> tuple[Int, np.uint64]:
    """Where the ASCII letters from `start` on end, eight bytes at a time, and the hash of them."""
    at: Int = start
    mixed = SEED
    while at + 8 <= data.size and at < end:
        word = load_word(data, at)
        others = letter_marks(word) ^ HIGH_BITS
        if others == U64(0):
            mixed = mix64(mixed ^ word)
            at += 8
            continue
        before = ((others & (~others + U64(1))) >> U64(7)) - U64(1)  # the bytes before the first that is none
        at += np.int64(_trailing_zeros(others) >> U64(3))
        if at > end:
            break
        return at, _finished(mixed ^ (word & before), at - start)
    return start, mixed  # at the end of the column or of the row: the slow way


@raw_step
def _is_plain_stop(data: Bytes, start: Int, stop: Int, abbreviations: NDArray[np.uint64]) -> bool:
    """Whether the full stop after these letters is a word: "done." and "USA.", not "J." or "Mr."."""
    if stop - start < 2 or (not data[U64(stop - 1)] & 32 and data[U64(stop - 2)] & 32):
        return False
    return bool(stop - start >= 8 or not holds(abbreviations, _packed(data, start, stop + 1)))


@raw_step
def _cut_chunk(
    data: Bytes,
    start: Int,
    end: Int,
    seen: np.uint16,
    first_cutter: Int,
    classes: NDArray[np.uint16],
    units: NDArray[np.uint64],
    abbreviations: NDArray[np.uint64],
    ends: Offsets,
) -> Int:
    """Where the words of a chunk end, into `ends`; how many they are."""
    count: Int = 0
    a: Int = start
    while a < end:
        kind, width = _class_at(data, a, classes)
        byte = data[U64(a)]
        if byte == DOT:
            width = _dots(data, a, end)
            if width == 1:
                break
        elif byte == PLUS:
            if a + 1 < end and _class_at(data, a + 1, classes)[0] & DIGIT:
                break
        elif kind & _FRONT == 0:
            break
        ends[U64(count)] = a + width
        count += 1
        a += width
    b = _core_end(data, a, end, seen, classes, units, abbreviations)
    if a < b:
        start = a
        if first_cutter < b:
            start, count = _cut_core(data, a, b, max(a, first_cutter), seen, classes, ends, count)
        if start < b:
            if seen & QUOTE:
                tail = _contraction_start(data, start, b, classes)
                if tail > start:
                    ends[U64(count)] = tail
                    count += 1
            ends[U64(count)] = b
            count += 1
    at = b
    while at < end:
        byte = data[U64(at)]
        kind, width = _class_at(data, at, classes)
        if byte == DOT:
            width = _dots(data, at, end)
        elif kind & LETTER:  # a unit
            while at + width < end and _is_unit_byte(data[U64(at + width)], classes):
                width += 1
        elif kind & QUOTE and at + width < end and _is_s(data[U64(at + width)]):
            width += 1
        ends[U64(count)] = at + width
        count += 1
        at += width
    return count


@raw_step
def _core_end(
    data: Bytes,
    a: Int,
    end: Int,
    seen: np.uint16,
    classes: NDArray[np.uint16],
    units: NDArray[np.uint64],
    abbreviations: NDArray[np.uint64],
) -> Int:
    b: Int = end
    while b > a:
        start = start_before(data, b)
        kind = _class_at(data, start, classes)[0]
        last = data[U64(start)]
        before = np.uint16(0)
        if start > a:
            before = _class_at(data, start_before(data, start), classes)[0]
        if last == DOT:
            run: Int = 1
            while b - run > a and data[U64(b - run - 1)] == DOT:
                run += 1
            if run > 1:
                b -= run
                continue
            if start == a or not _is_full_stop(data, a, start, before, classes):
                break
            if b - a <= 8 and holds(abbreviations, _packed(data, a, b)):
                break
            b = start
        elif kind & EDGE:
            b = start
        elif _is_s(last) and before & QUOTE and _is_apostrophe(data, start):
            b = start_before(data, start)
        elif (kind & MONEY or last == PLUS) and before & DIGIT:
            b = start
        else:
            unit = _unit_bytes(data, a, b, classes, units) if seen & DIGIT else 0
            if unit == 0:
                break
            b -= unit
    return b


@raw_step
def _cut_core(
    data: Bytes,
    a: Int,
    b: Int,
    at: Int,
    seen: np.uint16,
    classes: NDArray[np.uint16],
    ends: Offsets,
    count: Int,
) -> tuple[Int, Int]:
    """Cuts in the middle, from `at` on: where the last word begins, and how many words have ended by then."""
    start: Int = a
    before = np.uint16(0)
    if at > a:
        before = _class_at(data, start_before(data, at), classes)[0]
    is_checked = (seen & SPACELESS) != 0  # no address
    while at < b:
        kind, width = _class_at(data, at, classes)
        if kind & SPACELESS:
            if start < at:
                ends[U64(count)] = at
                count += 1
            at += width
            before = kind
            while at < b:
                kind, width = _class_at(data, at, classes)
                if kind & MARK == 0:
                    break
                before = kind
                at += width
            ends[U64(count)] = at
            count += 1
            start = at
            continue
        if kind & CUTTER and at > a:
            cut = _cut_bytes(data, at, b, kind, width, before, classes)
            if cut and not is_checked:
                is_checked = True
                if _is_address(data, a, b, classes):
                    ends[U64(count)] = b
                    return b, count + 1
            if cut:
                if start < at:
                    ends[U64(count)] = at
                    count += 1
                ends[U64(count)] = at + cut
                count += 1
                at += cut
                start, before = at, kind
                continue
        before = kind
        at += width
    return start, count


@raw_step
def _cut_bytes(
    data: Bytes, at: Int, b: Int, kind: np.uint16, width: Int, before: np.uint16, classes: NDArray[np.uint16]
) -> Int:
    """How many bytes from `at` on stand between two words; 0 where the word goes on."""
    if kind & ICON:
        return width
    byte = data[U64(at)]
    run: Int = width
    if byte == DOT:
        run = _dots(data, at, b)
        if run > 1:
            return run
    elif byte == HYPHEN:
        while run < 3 and at + run < b and data[U64(at + run)] == HYPHEN:
            run += 1
    after = np.uint16(0)
    if at + run < b:
        after = _class_at(data, at + run, classes)[0]
    if byte == DOT:
        is_lower = (before & (LETTER | UPPER)) == LETTER or before & QUOTE
        return 1 if is_lower and after & (UPPER | QUOTE) else 0
    if byte == COMMA:
        return 1 if before & LETTER and after & LETTER else 0
    is_joint = byte in (HYPHEN, TILDE, COLON, LESS, MORE, EQUALS, SLASH)
    if byte >= 128:
        code = decode(data, at)[0]
        if code == ELLIPSIS:
            return width
        is_joint = code in (EN_DASH, EM_DASH)
    if is_joint and before & (LETTER | DIGIT) and after & LETTER:
        return run
    if byte in (PLUS, HYPHEN, STAR, CARET) and before & DIGIT and at + 1 < b:
        return 1 if after & DIGIT or data[U64(at + 1)] == HYPHEN else 0
    return 0


@raw_step
def _is_full_stop(data: Bytes, a: Int, stop: Int, before: np.uint16, classes: NDArray[np.uint16]) -> bool:
    """After "e" in "done.", "7" or ")" yes; after one capital ("U.S.") or a lone letter ("b.") no;
    after two, yes."""
    if stop - a == 1 and before & LETTER:
        return False
    if before & UPPER:
        start = start_before(data, stop)
        return bool(start > a and _class_at(data, start_before(data, start), classes)[0] & UPPER)
    if before & (LETTER | DIGIT | EDGE):
        return True
    byte = data[U64(stop - 1)]
    return byte in (PERCENT, HYPHEN, PLUS) or (byte == SQUARED and data[U64(stop - 2)] == 0xC2)


@raw_step
def _unit_bytes(data: Bytes, a: Int, b: Int, classes: NDArray[np.uint16], units: NDArray[np.uint64]) -> Int:
    """Length of the unit that ends at `b` right after a digit ("km" in 10km), or 0."""
    for length in range(1, 5):
        if (
            b - length <= a or data[U64(b - length)] >= 128 or data[U64(b - length)] == 0
        ):  # NUL would pack like nothing
            return 0
        if data[U64(b - length - 1)] < 128 and classes[data[U64(b - length - 1)]] & DIGIT:
            return length if holds(units, _packed(data, b - length, b)) else 0
    return 0


@raw_step
def _is_unit_byte(byte: np.uint8, classes: NDArray[np.uint16]) -> bool:
    return bool(byte < 128 and (byte == SLASH or classes[byte] & LETTER))


@raw_step
def _contraction_start(data: Bytes, start: Int, b: Int, classes: NDArray[np.uint16]) -> Int:
    """Where n't, 'll, 're, 've, 'm or 'd begins at the end of a word; `start` where there is none."""
    for letters in range(1, 3):
        after = b - letters
        if after <= start or not _is_apostrophe(data, after):
            continue
        apostrophe = start_before(data, after)
        if apostrophe <= start:
            return start
        first, last = data[U64(after)] | 32, data[U64(b - 1)] | 32
        before = start_before(data, apostrophe)
        if letters == 2:
            is_one = (first == 108 and last == 108) or (first in (114, 118) and last == 101)  # ll re ve
        elif first == 116:  # n't
            if data[U64(before)] | 32 == 110 and before > start:
                return before
            return start
        else:
            is_one = first in (109, 100)  # m d
        return apostrophe if is_one and _class_at(data, before, classes)[0] & LETTER else start
    return start


@raw_step
def _is_address(data: Bytes, a: Int, b: Int, classes: NDArray[np.uint16]) -> bool:
    """[scheme://][user@]label.label.tld[:port][/path]:
    a top-level domain is two lower-case letters or more."""
    host: Int = a
    at: Int = a
    while at < b and (_is_host_byte(data[U64(at)], classes) or data[U64(at)] == PLUS):
        at += 1
    if (
        at - a >= 2
        and at + 2 < b
        and data[U64(at)] == COLON
        and data[U64(at + 1)] == SLASH
        and data[U64(at + 2)] == SLASH
    ):
        host = at + 3
    for at in range(host, b):
        if data[U64(at)] == AT:
            host = at + 1
    stop: Int = host
    dot: Int = -1
    while stop < b and _is_host_byte(data[U64(stop)], classes):
        if data[U64(stop)] == DOT:
            if stop == host or data[U64(stop - 1)] in (DOT, HYPHEN, UNDERSCORE):
                return False
            dot = stop
        elif data[U64(stop)] in (HYPHEN, UNDERSCORE) and (stop == host or data[U64(stop - 1)] == DOT):
            return False
        stop += 1
    if dot < 0 or stop - dot < 3:
        return False
    at = dot + 1
    while at < stop:
        kind, width = _class_at(data, at, classes)
        if kind & LETTER == 0 or kind & UPPER:
            return False
        at += width
    if stop < b and data[U64(stop)] == COLON:
        port = stop + 1
        stop += 1
        while stop < b and data[U64(stop)] < 128 and classes[data[U64(stop)]] & DIGIT:
            stop += 1
        if not 2 <= stop - port <= 5:
            return False
    return bool(stop == b or data[U64(stop)] in (SLASH, QUESTION, HASH))


@raw_step
def _is_host_byte(byte: np.uint8, classes: NDArray[np.uint16]) -> bool:
    return bool(byte >= 128 or classes[byte] & (LETTER | DIGIT) or byte in (DOT, HYPHEN, UNDERSCORE))


@raw_step
def _describe(data: Bytes, start: Int, end: Int, classes: NDArray[np.uint16]) -> tuple[Int, np.uint8]:
    """Characters and facts of a word."""
    at: Int = start
    chars: Int = 0
    some, every, is_symbols = np.uint16(0), PUNCTUATION, True
    while at < end:
        kind, width = _class_at(data, at, classes)
        some |= kind
        every &= kind
        is_symbols &= (kind & _COUNTED_AS_SYMBOL) != 0
        chars += 1
        at += width
    fact = np.uint8(some & LETTER)  # the same bit as HAS_LETTER
    if every & PUNCTUATION:
        fact |= IS_PUNCTUATION
    if chars == 1 and some & TERMINAL:
        fact |= ENDS_SENTENCE
    return chars, fact if is_symbols else fact | NOT_SYMBOLS


@raw_step
def _hash(data: Bytes, start: Int, end: Int) -> np.uint64:
    """64 bits: each eight bytes through a full avalanche, the last ones with the length."""
    mixed = SEED
    at: Int = start
    while end - at >= 8:
        mixed = mix64(mixed ^ load_word(data, at))
        at += 8
    return _finished(mixed ^ _packed(data, at, end), end - start)


@raw_step
def _finished(mixed: np.uint64, length: Int) -> np.uint64:
    return mix64(mixed ^ (U64(length) * U64(0x9E3779B97F4A7C15)))


@raw_step
def _packed(data: Bytes, start: Int, end: Int) -> np.uint64:
    """Up to eight bytes, the first one lowest."""
    if start + 8 <= data.size:
        word = load_word(data, start)
        return word if end - start == 8 else word & ((U64(1) << U64(8 * (end - start))) - U64(1))
    word = U64(0)
    for k in range(end - start):
        word |= U64(data[U64(start + k)]) << U64(8 * k)
    return word


@raw_step
def _dots(data: Bytes, at: Int, end: Int) -> Int:
    run: Int = 1
    while at + run < end and data[U64(at + run)] == DOT:
        run += 1
    return run


@raw_step
def _is_s(byte: np.uint8) -> bool:
    return bool(byte | 32 == 115)


@raw_step
def _is_apostrophe(data: Bytes, after: Int) -> bool:
    """Whether ' or ’ ends at `after`."""
    if data[U64(after - 1)] == APOSTROPHE:
        return True
    return bool(
        data[U64(after - 1)] == 0x99
        and after >= 3
        and data[U64(after - 2)] == 0x80
        and data[U64(after - 3)] == 0xE2
    )


@raw_step
def _class_at(data: Bytes, at: Int, classes: NDArray[np.uint16]) -> tuple[np.uint16, Int]:
    byte = data[U64(at)]
    if byte < 128:
        return classes[byte], 1
    code, width = decode(data, at)
    return classes[code], width

"""What every code point means to the measures, in one table made from `unicodedata` of the running Python.

class_table()   uint16 per code point, one bit per question     é -> LETTER      $ -> SYMBOL | OPENER | MONEY

Python's strings answer alike: LETTER is `str.isalpha`, SPACE is `str.isspace`. The table goes with the
Unicode version of the Python that made it, and so the version is written beside whatever was decided by it.

What the mill knows of every code point, in tables made from `unicodedata` of the running Python.

    form_classes("NFC")   uint8 per code point: combining class, or UNSAFE where text may have to change
    fold_table()          NFKC, case folding, NFKC again: what each code point becomes
    by_category(f)        f of the general category of each: Lu, Nd, Cn

They are built once per process, in 0.1 s together:
256 code points are transformed in one call, and no Python runs per code point where nothing changes.

Unicode forms over UTF-8 bytes, with tables of what each code point does (tokmill.kernels.wordclasses makes
them).

    suspects     which rows may not be in a normal form      most text needs one look and no more
    fold_rows    rows with every code point replaced by its own folding, for rows where that is exact

Normalizing a string is replacing its code points one by one, as long as none of the results composes with its
neighbour or has to change places with it. `classes` says so per code point: UNSAFE, or the canonical
combining class that must not decrease within a run of marks. A row that breaks the rule is named; the caller
takes the slow way with it.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import (
    CONTROL,
    CUTTER,
    DIGIT,
    EDGE,
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
    Int,
    Offsets,
    bytes_before,
    decode,
    frozen,
    frozen_text,
    inlined,
    kernel,
    load_word,
    store_word,
)
from tokmill.kernels.table_cache import cached_table

UNSAFE = np.uint8(255)
ITSELF = np.int32(-1)

U64 = np.uint64


class FoldTable(NamedTuple):
    """Per code point: its class, and where in `pool` its folding lies (a length byte, then UTF-8),
    or ITSELF."""

    classes: NDArray[np.uint8]
    starts: NDArray[np.int32]
    pool: NDArray[np.uint8]
    max_growth: int  # bytes out per byte in, at most


class Folded(NamedTuple):
    data: Bytes
    offsets: Offsets
    is_exact: NDArray[
        np.bool_
    ]  # where false, the row holds what came before the code point that broke the rule


def suspects(data: Bytes, offsets: Offsets, classes: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Rows that hold an UNSAFE code point or marks out of order."""
    data, offsets, rows = frozen_text(data, offsets)
    found = np.zeros(rows, np.bool_)
    _suspects(data, offsets, frozen(classes, np.uint8), found)
    return found


def fold_rows(data: Bytes, offsets: Offsets, table: FoldTable) -> Folded:
    data, offsets, rows = frozen_text(data, offsets)
    # Pages that are never written cost nothing; growth is 1.0 on almost any text.
    folded = np.empty((offsets[-1] - offsets[0]) * table.max_growth + 8, np.uint8)
    folded_offsets = np.zeros(rows + 1, np.int64)
    is_exact = np.ones(rows, np.bool_)
    used = _fold_rows(
        data,
        offsets,
        frozen(table.classes, np.uint8),
        frozen(table.starts, np.int32),
        frozen(table.pool, np.uint8),
        folded,
        folded_offsets,
        is_exact,
    )
    return Folded(folded[:used], folded_offsets, is_exact)


@kernel(lambda: suspects(*TEXT, np.zeros(1, np.uint8)))
def _suspects(data: Bytes, offsets: Offsets, classes: NDArray[np.uint8], found: NDArray[np.bool_]) -> None:
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        before = np.uint8(0)
        while at < end:
            if data[at] < 128:
                before = np.uint8(0)
                at += 1
                while at + 8 <= end and _is_ascii_word(data, at):
                    at += 8
                continue
            code, width = decode(data, at)
            kind = classes[U64(code)]
            if kind == UNSAFE or (kind != 0 and kind < before):
                found[row] = True
                break
            before = kind
            at += width


@kernel(
    lambda: fold_rows(
        *TEXT, FoldTable(np.zeros(1, np.uint8), np.zeros(1, np.int32), np.zeros(1, np.uint8), 1)
    )
)
def _fold_rows(
    data: Bytes,
    offsets: Offsets,
    classes: NDArray[np.uint8],
    starts: NDArray[np.int32],
    pool: NDArray[np.uint8],
    folded: Bytes,
    folded_offsets: Offsets,
    is_exact: NDArray[np.bool_],
) -> Int:
    used: Int = 0
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        before = np.uint8(0)
        while at < end:
            byte = data[U64(at)]
            if byte < 128:
                before = np.uint8(0)
                while at + 8 <= end:
                    word = load_word(data, at)
                    store_word(folded, used, word)  # what is beyond ASCII is written over
                    others = word & HIGH_BITS
                    if others != U64(0):
                        ascii_bytes = bytes_before(others)
                        used += ascii_bytes
                        at += ascii_bytes
                        break
                    used += 8
                    at += 8
                else:
                    while at < end and data[at] < 128:
                        folded[used] = data[at]
                        used += 1
                        at += 1
                continue
            code, width = decode(data, at)
            kind = classes[U64(code)]
            if kind == UNSAFE or (kind != 0 and kind < before):
                is_exact[row] = False
                break
            before = kind
            start = starts[U64(code)]
            if start < 0:
                for step in range(width):
                    folded[U64(used + step)] = data[U64(at + step)]
                used += width
            else:
                length = np.int64(pool[start])
                for step in range(length):
                    folded[used + step] = pool[start + 1 + step]
                used += length
            at += width
        folded_offsets[row + 1] = used
    return used


@inlined
def _is_ascii_word(data: Bytes, at: Int) -> bool:
    return bool((load_word(data, at) & HIGH_BITS) == U64(0))


COUNT = 0x110000
_BLOCK = 256
_MINORS = {"L": "ultmo", "M": "nce", "N": "dlo", "P": "cdseifo", "S": "mcko", "Z": "slp", "C": "cfson"}
_CATEGORIES = [major + minor for major, minors in _MINORS.items() for minor in minors]
# Hangul vowels and trailing consonants compose by arithmetic, not by a listed decomposition.
_HANGUL_SECONDS = (range(0x1161, 0x1176), range(0x11A8, 0x11C3))


@functools.cache
def form_classes(form: Literal["NFC", "NFKC"]) -> NDArray[np.uint8]:
    """A text whose code points are all safe, with marks in order, is in `form` already."""
    classes = _combining_classes().copy()
    changed = [code for code, _ in changes(lambda text: unicodedata.normalize(form, text))]
    classes[changed] = UNSAFE
    classes[_composing()] = UNSAFE
    return classes


def fold(text: str) -> str:
    """The folding that exact duplicates are compared by, before whitespace is collapsed."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


@cached_table
def fold_table() -> FoldTable:
    classes = _combining_classes().copy()
    # what moves or melts next to others, and so must not come out of a folding, nor out of its first half
    lively = {chr(code) for code in [*np.flatnonzero(classes).tolist(), *_composing()]}
    starts = np.full(COUNT, ITSELF, np.int32)
    pool = bytearray()
    max_growth = 1
    for code, result in changes(fold):
        character = chr(code)
        between = unicodedata.normalize("NFKC", character)
        encoded = result.encode()
        if not lively.isdisjoint(between + result) or len(encoded) > 255:
            classes[code] = UNSAFE
            continue
        starts[code] = len(pool)
        pool.append(len(encoded))
        pool += encoded
        max_growth = max(max_growth, -(-len(encoded) // len(character.encode())))
    classes[_composing()] = UNSAFE
    return FoldTable(classes, starts, np.frombuffer(bytes(pool), np.uint8), max_growth)


def by_category(value: Callable[[str], int]) -> NDArray[np.uint16]:
    """For every code point the value of its general category: of Lu, Nd, Cn."""
    values = np.zeros(1 << 16, np.uint16)
    for name in _CATEGORIES:
        values[int.from_bytes(name.encode(), "little")] = value(name)
    table: NDArray[np.uint16] = values[_categories()]
    return table


@cached_table
def _categories() -> NDArray[np.uint16]:
    """The two letters of each as a number. Beyond planes 0 to 3 and the tags all is taken for unassigned."""
    found = np.full(COUNT, int.from_bytes(b"Cn", "little"), np.uint16)
    for codes in (range(0x40000), range(0xE0000, 0xE1000)):
        named = "".join(map(unicodedata.category, map(chr, codes)))
        found[codes.start : codes.stop] = np.frombuffer(named.encode(), "<u2")
    return found


@functools.cache
def _combining_classes() -> NDArray[np.uint8]:
    """Canonical combining class. Only marks have one."""
    classes = np.zeros(COUNT, np.uint8)
    marks = np.flatnonzero(by_category(lambda category: category[0] == "M"))
    classes[marks] = [unicodedata.combining(chr(code)) for code in marks.tolist()]
    return classes


@functools.cache
def _composing() -> list[int]:
    """Code points that may melt into the one before them."""
    seconds = {code for codes in _HANGUL_SECONDS for code in codes}
    for code, _ in changes(lambda text: unicodedata.normalize("NFD", text)):
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            seconds.add(int(parts[1], 16))
    return sorted(seconds)


def changes(transform: Callable[[str], str]) -> Iterator[tuple[int, str]]:
    """Every non-ASCII code point that `transform` does not leave alone, and what it becomes."""
    for first, block in _blocks():
        changed = transform(block)
        if changed != block:
            for code, result in enumerate(changed.split("\n"), first):
                if result != chr(code):
                    yield code, result


@functools.cache
def _blocks() -> list[tuple[int, str]]:
    """First code point and all characters of each block, with newlines to keep neighbours apart.

    Left out are surrogates, which are no characters, and what is unassigned or private.
    """
    blocks = []
    for start, stop in ((0x80, 0x100), (0x100, 0xD800), (0xE000, 0x40000), (0xE0000, 0xE1000)):
        codes = np.full((stop - start, 2), ord("\n"), "<u4")
        codes[:, 0] = np.arange(start, stop)
        text = codes.tobytes().decode("utf-32-le")[:-1]
        places = range(start, stop, _BLOCK)
        blocks += [(first, text[2 * (first - start) : 2 * (first - start + _BLOCK) - 1]) for first in places]
    return blocks


# Grows when the meaning of a bit changes; the Unicode version grows by itself.
VERSION = f"1-unicode-{unicodedata.unidata_version}"

# By the general categories that begin so.
_CATEGORY_BITS = (
    ("L", LETTER),
    (("Lu", "Lt"), UPPER),
    ("Nd", DIGIT),
    ("Cc", CONTROL),
    ("M", MARK),
    (("P", "S"), SYMBOL),
    ("P", PUNCTUATION),
    ("Sc", OPENER | MONEY),
    ("So", ICON),
    (("Pi", "Pf"), QUOTE),
)

# What a word of prose can wear at its ends. Not here: .
# (ends sentences and abbreviations), / \ @ ^ | ~ - (names, paths and flags begin with them).
_ASCII_EDGES = "!\"#&'()*,:;<>?[]_`{}"
_ASCII_OPENERS = "$%="
_OTHER_OPENERS = "§"
_QUOTES = "'\"`´"
_CUTTERS = ".,-~–—:<>=/+*^…"

# Scripts written without spaces between words: the letters of these blocks, each a word with the marks on it.
_SPACELESS_BLOCKS = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x0F00, 0x0FFF),  # Tibetan
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x19DF),  # Tai Le, New Tai Lue
    (0x1A20, 0x1AAF),  # Tai Tham
    (0x2E80, 0x312F),  # radicals, kana, Bopomofo
    (0x31A0, 0x31BF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),  # ideographs
    (0xA9E0, 0xA9FF),
    (0xAA60, 0xAA7F),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),  # kana of half width
    (0x1B000, 0x1B16F),
    (0x20000, 0x3FFFF),
)

# The property Sentence_Terminal of Unicode 14, which `unicodedata` does not have.
_TERMINALS = (
    (0x21, 0x21), (0x2E, 0x2E), (0x3F, 0x3F), (0x589, 0x589), (0x61D, 0x61F), (0x6D4, 0x6D4), (0x700, 0x702),
    (0x7F9, 0x7F9), (0x837, 0x837), (0x839, 0x839), (0x83D, 0x83E), (0x964, 0x965), (0x104A, 0x104B),
    (0x1362, 0x1362), (0x1367, 0x1368), (0x166E, 0x166E), (0x1735, 0x1736), (0x1803, 0x1803),
    (0x1809, 0x1809), (0x1944, 0x1945), (0x1AA8, 0x1AAB), (0x1B5A, 0x1B5B), (0x1B5E, 0x1B5F),
    (0x1B7D, 0x1B7E), (0x1C3B, 0x1C3C), (0x1C7E, 0x1C7F), (0x203C, 0x203D), (0x2047, 0x2049),
    (0x2E2E, 0x2E2E), (0x2E3C, 0x2E3C), (0x2E53, 0x2E54), (0x3002, 0x3002), (0xA4FF, 0xA4FF),
    (0xA60E, 0xA60F), (0xA6F3, 0xA6F3), (0xA6F7, 0xA6F7), (0xA876, 0xA877), (0xA8CE, 0xA8CF),
    (0xA92F, 0xA92F), (0xA9C8, 0xA9C9), (0xAA5D, 0xAA5F), (0xAAF0, 0xAAF1), (0xABEB, 0xABEB),
    (0xFE52, 0xFE52), (0xFE56, 0xFE57), (0xFF01, 0xFF01), (0xFF0E, 0xFF0E), (0xFF1F, 0xFF1F),
    (0xFF61, 0xFF61), (0x10A56, 0x10A57), (0x10F55, 0x10F59), (0x10F86, 0x10F89), (0x11047, 0x11048),
    (0x110BE, 0x110C1), (0x11141, 0x11143), (0x111C5, 0x111C6), (0x111CD, 0x111CD), (0x111DE, 0x111DF),
    (0x11238, 0x11239), (0x1123B, 0x1123C), (0x112A9, 0x112A9), (0x1144B, 0x1144C), (0x115C2, 0x115C3),
    (0x115C9, 0x115D7), (0x11641, 0x11642), (0x1173C, 0x1173E), (0x11944, 0x11944), (0x11946, 0x11946),
    (0x11A42, 0x11A43), (0x11A9B, 0x11A9C), (0x11C41, 0x11C42), (0x11EF7, 0x11EF8), (0x16A6E, 0x16A6F),
    (0x16AF5, 0x16AF5), (0x16B37, 0x16B38), (0x16B44, 0x16B44), (0x16E98, 0x16E98), (0x1BC9F, 0x1BC9F),
    (0x1DA88, 0x1DA88),
)  # fmt: skip


@functools.cache
def class_table() -> NDArray[np.uint16]:
    """Read-only, built once per process."""
    table = by_category(_category_bits)
    table[[code for code in range(0x3001) if chr(code).isspace()]] |= SPACE
    table[table & SPACE != 0] &= ~CONTROL
    for first, last in _TERMINALS:
        table[first : last + 1] |= TERMINAL
    for first, last in _SPACELESS_BLOCKS:
        block = table[first : last + 1]
        block[block & LETTER != 0] |= SPACELESS
    _mark_edges(table)
    table.flags.writeable = False
    return table


def _category_bits(category: str) -> int:
    return sum(int(bits) for of, bits in _CATEGORY_BITS if category.startswith(of))


def _mark_edges(table: NDArray[np.uint16]) -> None:
    """Beyond ASCII all punctuation and every icon is an edge; within, it is a matter of custom."""
    beyond = table[128:]
    beyond[beyond & (PUNCTUATION | ICON | QUOTE) != 0] |= EDGE
    table[table & (ICON | SPACELESS) != 0] |= CUTTER
    for characters, bits in (
        (_ASCII_EDGES + "´", EDGE),
        (_ASCII_OPENERS + _OTHER_OPENERS, OPENER),
        (_QUOTES, QUOTE),
        (_CUTTERS, CUTTER),
    ):
        table[[ord(c) for c in characters]] |= bits

"""What every code point means to the measures, in one table made from `unicodedata` of the running Python.

    class_table()   uint16 per code point, one bit per question     é -> LETTER      $ -> SYMBOL | OPENER | MONEY

Python's strings answer alike: LETTER is `str.isalpha`, SPACE is `str.isspace`. The table goes with the Unicode
version of the Python that made it, and so the version is written beside whatever was decided by it.
"""

from __future__ import annotations

import functools
import unicodedata

import numpy as np
from numpy.typing import NDArray

from tokmill.codepoints import by_category
from tokmill.kernels.classes import (
    CONTROL,
    CUTTER,
    DIGIT,
    EDGE,
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
    UPPER,
)

# Grows when the meaning of a bit changes; the Unicode version grows by itself.
VERSION = f"1-unicode-{unicodedata.unidata_version}"

# What a word of prose can wear at its ends. Not here: . (ends sentences and abbreviations), / \ @ ^ | ~ - (names,
# paths and flags begin with them).
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
    (0x1362, 0x1362), (0x1367, 0x1368), (0x166E, 0x166E), (0x1735, 0x1736), (0x1803, 0x1803), (0x1809, 0x1809),
    (0x1944, 0x1945), (0x1AA8, 0x1AAB), (0x1B5A, 0x1B5B), (0x1B5E, 0x1B5F), (0x1B7D, 0x1B7E), (0x1C3B, 0x1C3C),
    (0x1C7E, 0x1C7F), (0x203C, 0x203D), (0x2047, 0x2049), (0x2E2E, 0x2E2E), (0x2E3C, 0x2E3C), (0x2E53, 0x2E54),
    (0x3002, 0x3002), (0xA4FF, 0xA4FF), (0xA60E, 0xA60F), (0xA6F3, 0xA6F3), (0xA6F7, 0xA6F7), (0xA876, 0xA877),
    (0xA8CE, 0xA8CF), (0xA92F, 0xA92F), (0xA9C8, 0xA9C9), (0xAA5D, 0xAA5F), (0xAAF0, 0xAAF1), (0xABEB, 0xABEB),
    (0xFE52, 0xFE52), (0xFE56, 0xFE57), (0xFF01, 0xFF01), (0xFF0E, 0xFF0E), (0xFF1F, 0xFF1F), (0xFF61, 0xFF61),
    (0x10A56, 0x10A57), (0x10F55, 0x10F59), (0x10F86, 0x10F89), (0x11047, 0x11048), (0x110BE, 0x110C1),
    (0x11141, 0x11143), (0x111C5, 0x111C6), (0x111CD, 0x111CD), (0x111DE, 0x111DF), (0x11238, 0x11239),
    (0x1123B, 0x1123C), (0x112A9, 0x112A9), (0x1144B, 0x1144C), (0x115C2, 0x115C3), (0x115C9, 0x115D7),
    (0x11641, 0x11642), (0x1173C, 0x1173E), (0x11944, 0x11944), (0x11946, 0x11946), (0x11A42, 0x11A43),
    (0x11A9B, 0x11A9C), (0x11C41, 0x11C42), (0x11EF7, 0x11EF8), (0x16A6E, 0x16A6F), (0x16AF5, 0x16AF5),
    (0x16B37, 0x16B38), (0x16B44, 0x16B44), (0x16E98, 0x16E98), (0x1BC9F, 0x1BC9F), (0x1DA88, 0x1DA88),
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
    bits = np.uint16(0)
    if category[0] == "L":
        bits |= LETTER
    if category in ("Lu", "Lt"):
        bits |= UPPER
    if category == "Nd":
        bits |= DIGIT
    if category == "Cc":
        bits |= CONTROL
    if category[0] == "M":
        bits |= MARK
    if category[0] in "PS":
        bits |= SYMBOL
    if category[0] == "P":
        bits |= PUNCTUATION
    if category == "Sc":
        bits |= OPENER | MONEY
    if category == "So":
        bits |= ICON
    if category in ("Pi", "Pf"):
        bits |= QUOTE
    return int(bits)


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

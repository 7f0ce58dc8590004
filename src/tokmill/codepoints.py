"""What the mill knows of every code point, in tables made from `unicodedata` of the running Python.

    form_classes("NFC")   uint8 per code point: combining class, or UNSAFE where text may have to change
    fold_table()          NFKC, case folding, NFKC again: what each code point becomes
    by_category(f)        f of the general category of each: Lu, Nd, Cn

They are built once per process, in 0.1 s together: 256 code points are transformed in one call, and no Python runs per
code point where nothing changes.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.folding import ITSELF, UNSAFE, FoldTable

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
    changed = [code for code, _ in _changes(lambda text: unicodedata.normalize(form, text))]
    classes[changed] = UNSAFE
    classes[_composing()] = UNSAFE
    return classes


def fold(text: str) -> str:
    """The folding that exact duplicates are compared by, before whitespace is collapsed."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


@functools.cache
def fold_table() -> FoldTable:
    classes = _combining_classes().copy()
    # what moves or melts next to others, and so must not come out of a folding, nor out of its first half
    lively = {chr(code) for code in [*np.flatnonzero(classes).tolist(), *_composing()]}
    starts = np.full(COUNT, ITSELF, np.int32)
    pool = bytearray()
    max_growth = 1
    for code, result in _changes(fold):
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


@functools.cache
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
    for code, _ in _changes(lambda text: unicodedata.normalize("NFD", text)):
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            seconds.add(int(parts[1], 16))
    return sorted(seconds)


def _changes(transform: Callable[[str], str]) -> Iterator[tuple[int, str]]:
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

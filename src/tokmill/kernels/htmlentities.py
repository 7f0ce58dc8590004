"""Names in HTML looked up as words of eight bytes, character references ("entities") decoded, white space.

    &amp; &eacute &#233; &#xE9;     any "&" ─ entity_at ─> its UTF-8, and where the text goes on

Names and numbers mean what the HTML standard and Python's html.unescape say, with and without semicolon.
"""

from __future__ import annotations

import functools
from html import unescape
from html.entities import html5
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import SPREAD, Bytes, Int, frozen, raw_step

U64 = np.uint64
# A word holds eight letters or digits of six bits, and which eight came before them.
CHUNK = 8
# The longest entity that needs no semicolon, like &yacute
_MAX_BARE = 6
_IS_BARE = 0x80
# A number of more digits than this is no character, whatever its value
_MAX_DIGITS = 15


class Names(NamedTuple):
    """A hash table of names: `values` of `keys`, 0 where there is none.

    A key is the codes of up to seven characters, and above them the value of the eight before,
    where there are any.
    """

    keys: NDArray[np.uint64]
    values: NDArray[np.uint64]


class Entities(NamedTuple):
    """`names`: texts as `packed_text` gives them. `controls`:
    which code points the first 160 numbers mean, or -1."""

    names: Names
    controls: NDArray[np.int32]


def name_table(names: dict[str, int]) -> Names:
    """Of names of letters and digits of ASCII; values are not 0."""
    entries: dict[int, int] = {}
    for name, value in names.items():
        before = letters = 0
        for length, character in enumerate(name.encode(), 1):
            letters = letters << 6 | int(NAME_CODES[character])
            if length % CHUNK == 0:
                before, letters = entries.setdefault(before | letters, len(entries) + 1) << 6 * CHUNK, 0
        entries[before | letters] = value
    size = 256
    while size < 4 * len(entries):
        size *= 2
    keys, values = np.zeros(size, np.uint64), np.zeros(size, np.uint64)
    for key, value in entries.items():
        slot = (key * int(SPREAD) & 0xFFFFFFFFFFFFFFFF) >> 32 & (size - 1)
        while values[slot]:
            slot = (slot + 1) & (size - 1)
        keys[slot], values[slot] = key, value
    return Names(frozen(keys, np.uint64), frozen(values, np.uint64))


def packed_text(text: str, *, is_bare: bool) -> int:
    """The value of an entity: at most seven bytes of UTF-8;
    in the lowest byte their number, and may its ";" be missing."""
    data = text.encode()
    return int.from_bytes(data, "little") << 8 | len(data) | (_IS_BARE if is_bare else 0)


def _codes() -> NDArray[np.uint8]:
    """1 to 62 for what can stand in a name."""
    codes = np.zeros(256, np.uint8)
    for code, character in enumerate(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", 1):
        codes[character] = code
    return codes


NAME_CODES = frozen(_codes(), np.uint8)


@functools.cache
def html_entities() -> Entities:
    """All of the standard's."""
    names = {
        name[:-1]: packed_text(text, is_bare=name[:-1] in html5)
        for name, text in html5.items()
        if name.endswith(";")
    }
    # Numbers of control characters: some mean a character of Windows-1252, some nothing.
    texts = [unescape(f"&#{code};") for code in range(0xA0)]
    controls = np.array([ord(text) if text else -1 for text in texts], np.int32)
    return Entities(name_table(names), frozen(controls, np.int32))


@raw_step
def find_name(keys: NDArray[np.uint64], values: NDArray[np.uint64], key: np.uint64) -> np.uint64:
    last = U64(keys.size - 1)
    slot: np.uint64 = ((key * SPREAD) >> U64(32)) & last
    while values[slot] != U64(0) and keys[slot] != key:
        slot = (slot + U64(1)) & last
    found: np.uint64 = values[slot]
    return found


@raw_step
def entity_at(
    data: Bytes,
    at: Int,
    end: Int,
    keys: NDArray[np.uint64],
    values: NDArray[np.uint64],
    controls: NDArray[np.int32],
    codes: Bytes,
) -> tuple[np.uint64, Int, Int]:
    """What the "&" at `at` begins: its bytes in a word, their number (0:
    no character), and where the text goes on."""
    at += 1
    if at < end and data[at] == 0x23:
        return _number(data, at, end, controls)
    first = at
    before = letters = bare = U64(0)  # bare: as many letters as a name without its semicolon can have
    while at < end and codes[data[at]] != 0:
        letters = letters << U64(6) | U64(codes[data[at]])
        at += 1
        if at - first <= _MAX_BARE:
            bare = letters
        elif (at - first) % CHUNK == 0:
            value = find_name(keys, values, before | letters)
            if value == U64(0):
                break
            before, letters = value << U64(6 * CHUNK), U64(0)
    if at > first and at < end and data[at] == 0x3B:
        value = find_name(keys, values, before | letters)
        if value != U64(0):
            return value >> U64(8), np.int64(value & U64(_IS_BARE - 1)), at + 1
    at = min(at, first + _MAX_BARE)
    while at > first:
        value = find_name(keys, values, bare)
        if value & U64(_IS_BARE):
            return value >> U64(8), np.int64(value & U64(_IS_BARE - 1)), at
        bare >>= U64(6)
        at -= 1
    return U64(0x26), 1, at


@raw_step
def _number(data: Bytes, at: Int, end: Int, controls: NDArray[np.int32]) -> tuple[np.uint64, Int, Int]:
    """`entity_at` of the "#" at `at`."""
    is_hex = at + 1 < end and (data[at + 1] | 0x20) == 0x78
    first = i = at + 1 + is_hex
    code: Int = 0
    while i < end:
        byte = np.int64(data[i])
        if 0x30 <= byte <= 0x39:
            digit = byte - 0x30
        elif is_hex and 0x61 <= (byte | 0x20) <= 0x66:
            digit = (byte | 0x20) - 0x57
        else:
            break
        if code <= 0x10FFFF:  # a larger one stays too large
            code = code * (16 if is_hex else 10) + digit
        i += 1
    if i == first:
        return U64(0x26), 1, at
    if i - first > _MAX_DIGITS or code > 0x10FFFF or 0xD800 <= code < 0xE000:
        code = 0xFFFD
    elif code < controls.size:
        code = np.int64(controls[code])
    elif 0xFDD0 <= code < 0xFDF0 or (code & 0xFFFE) == 0xFFFE:
        code = -1
    i += i < end and data[i] == 0x3B
    if code < 0:
        return U64(0), 0, i
    if code < 0x80:
        return U64(code), 1, i
    if code < 0x800:
        return U64(0xC0 | code >> 6 | (0x80 | code & 0x3F) << 8), 2, i
    tail = (0x80 | code >> 6 & 0x3F) << 8 | (0x80 | code & 0x3F) << 16
    if code < 0x10000:
        return U64(0xE0 | code >> 12 | tail), 3, i
    return U64(0xF0 | code >> 18 | (0x80 | code >> 12 & 0x3F) << 8 | tail << 8), 4, i


@raw_step
def space_width(data: Bytes, at: Int, end: Int) -> Int:
    """How many bytes the white space at `at` has, as Unicode knows it; 0 for anything else."""
    byte = data[at]
    if byte < 0x80:
        return 1 if byte == 0x20 or 0x09 <= byte <= 0x0D or 0x1C <= byte <= 0x1F else 0
    if byte == 0xC2:
        return 2 if at + 1 < end and (data[at + 1] == 0x85 or data[at + 1] == 0xA0) else 0
    if byte < 0xE1 or byte > 0xE3 or at + 2 >= end:
        return 0
    code = (byte & 0xF) << 12 | (data[at + 1] & 0x3F) << 6 | data[at + 2] & 0x3F
    if 0x2000 <= code <= 0x200A or code == 0x2028 or code == 0x2029 or code == 0x202F:
        return 3
    return 3 if code == 0x1680 or code == 0x205F or code == 0x3000 else 0

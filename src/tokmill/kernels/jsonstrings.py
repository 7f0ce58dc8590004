r"""The strings of JSON lines as a column of text, without a Python string in between.

    block    {"text": "a \"b\"\u00e9"}          strings lie between first and end, as kernels/jsonlines.py found them
    column   a "b"é                              UTF-8

Eight bytes are copied at a time up to the next backslash. A control character, an escape that JSON does not have or half
of a surrogate pair ends the work: what to say of such a line is the parser's business. UTF-8 is not looked at.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.columns import Bytes, Int, Offsets, frozen
from tokmill.kernels.raw import raw_kernel, raw_step

U64 = np.uint64
LOW_BITS = U64(0x0101010101010101)
LOW_SEVEN = U64(0x7F7F7F7F7F7F7F7F)
BACKSLASHES = U64(0x5C5C5C5C5C5C5C5C)
FROM_SPACE = U64(0xE0E0E0E0E0E0E0E0)
BACKSLASH, SPACE, LETTER_U = 0x5C, 0x20, 0x75
_WORD = 8


def _escapes() -> NDArray[np.uint8]:
    """What stands for each byte after a backslash; 0 where JSON has no such escape."""
    table = np.zeros(256, np.uint8)
    for byte, meaning in zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True):
        table[byte] = meaning
    return table


_ESCAPES = frozen(_escapes(), np.uint8)


def unescape(block: Bytes, firsts: Offsets, ends: Offsets) -> tuple[Bytes, Offsets] | None:
    """The column of the strings that lie there, one after the other; None if one of them is no JSON."""
    size = int((ends - firsts).sum())
    text, offsets = np.empty(size + _WORD, np.uint8), np.zeros(len(firsts) + 1, np.int64)
    done = _unescape(
        frozen(block, np.uint8), frozen(firsts, np.int64), frozen(ends, np.int64), _ESCAPES, text, offsets
    )
    return (text[: offsets[-1]], offsets) if done else None


@raw_kernel
def _unescape(
    data: Bytes, firsts: Offsets, ends: Offsets, escapes: Bytes, text: Bytes, offsets: Offsets
) -> bool:
    used: Int = 0
    for row in range(firsts.size):
        at, end = firsts[row], ends[row]
        while at < end:
            if end - at >= _WORD:
                word = _load_word(data, at)
                marks = _zero_marks(word ^ BACKSLASHES) | _zero_marks(word & FROM_SPACE)
                _store_word(text, used, word)
                if marks == U64(0):
                    at += _WORD
                    used += _WORD
                    continue
                before = ((marks & (~marks + U64(1))) >> U64(7)) - U64(1)
                plain = np.int64(((before & LOW_BITS) * LOW_BITS) >> U64(56))
                at += plain
                used += plain
            byte = data[U64(at)]
            at += 1
            if byte < SPACE:
                return False
            if byte == BACKSLASH:
                if at == end:
                    return False
                byte = data[U64(at)]
                at += 1
                if byte == LETTER_U:
                    code = _code_unit(data, at, end)
                    at += 4
                    if 0xD800 <= code < 0xDC00 and at + 6 <= end and data[U64(at)] == BACKSLASH:
                        low = _code_unit(data, at + 2, end) if data[U64(at + 1)] == LETTER_U else -1
                        if not 0xDC00 <= low < 0xE000:
                            return False
                        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                        at += 6
                    if code < 0 or 0xD800 <= code < 0xE000:
                        return False
                    used = _put(text, used, code)
                    continue
                byte = escapes[byte]
                if byte == 0:
                    return False
            text[U64(used)] = byte
            used += 1
        offsets[row + 1] = used
    return True


@raw_step
def _code_unit(data: Bytes, at: Int, end: Int) -> Int:
    """Of four hexadecimal digits; -1 if they are none."""
    code: Int = 0
    if at + 4 > end:
        return -1
    for place in range(at, at + 4):
        byte = np.int64(data[U64(place)])
        letter = byte | 32
        if 48 <= byte <= 57:
            code = code * 16 + byte - 48
        elif 97 <= letter <= 102:
            code = code * 16 + letter - 87
        else:
            return -1
    return code


@raw_step
def _put(text: Bytes, used: Int, code: Int) -> Int:
    """`code` as UTF-8: never longer than its escape."""
    if code < 0x80:
        text[U64(used)] = code
        return used + 1
    if code < 0x800:
        text[U64(used)] = 0xC0 | code >> 6
        text[U64(used + 1)] = 0x80 | code & 0x3F
        return used + 2
    if code < 0x10000:
        text[U64(used)] = 0xE0 | code >> 12
        text[U64(used + 1)] = 0x80 | code >> 6 & 0x3F
        text[U64(used + 2)] = 0x80 | code & 0x3F
        return used + 3
    text[U64(used)] = 0xF0 | code >> 18
    text[U64(used + 1)] = 0x80 | code >> 12 & 0x3F
    text[U64(used + 2)] = 0x80 | code >> 6 & 0x3F
    text[U64(used + 3)] = 0x80 | code & 0x3F
    return used + 4


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

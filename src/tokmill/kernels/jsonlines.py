r"""What a JSON parser will not tell about a line:
bad UTF-8, equal keys in one object, absurd nesting, where a value is.

    block    {"a": 1}\n  \n{"b": {"c": 2, "c": 3}}\n         whole lines; the last may lack its \n
    starts   0            12
    ends     8            35                                 blank lines have no row
    flags    0            DUPLICATE_KEY
    strings  where the values of the keys that are asked for lie, if they are strings

Each line is walked while it is in the first-level cache: to its newline, eight bytes at a time, noting
whether it is ASCII; then for UTF-8, if it is not; then for its keys, skipping through strings eight bytes at
a time.

A line need not be JSON. Whatever it holds, the walk stays inside it and ends; the flags of a line that no
parser accepts mean little.

`unescape` makes a column of text of those strings, without a Python string in between:

    block    {"text": "a \"b\"\u00e9"}
    column   a "b"é                              UTF-8

Eight bytes are copied at a time up to the next backslash. A control character, an escape that JSON does not
have or half of a surrogate pair ends the work: what to say of such a line is the parser's business. UTF-8 is
not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import (
    HIGH_BITS,
    LOW_BITS,
    TEXT,
    Bytes,
    Int,
    Offsets,
    bytes_before,
    first_zero,
    frozen,
    inlined,
    kernel,
    load_rest,
    load_word,
    put_code,
    raw_kernel,
    raw_step,
    store_word,
    zero_marks,
)

INVALID_UTF8 = 1
DUPLICATE_KEY = 2
TOO_DEEP = 4
ESCAPED_KEY = 8  # the keys were not compared: one has a backslash, or there are more than MAX_LIVE_KEYS

# One bit of a word says for each level whether it is an object.
MAX_DEPTH = 64
# Keys of all the objects open at one point of a line. A document has about ten. Each new key is compared with
# every key of its object, and an object with this many is read at 31 MB/s: that is where comparing should
# stop.
MAX_LIVE_KEYS = 4096

# numba makes a float of uint64 + int, so every operand of word arithmetic is a uint64 with a name or a cast.
U64 = np.uint64
ALL_BITS = U64(0xFFFFFFFFFFFFFFFF)
NEWLINES = U64(0x0A0A0A0A0A0A0A0A)
QUOTES = U64(0x2222222222222222)
BACKSLASHES = U64(0x5C5C5C5C5C5C5C5C)

QUOTE, BACKSLASH, COMMA = 0x22, 0x5C, 0x2C
OPEN_OBJECT, CLOSE_OBJECT, OPEN_ARRAY, CLOSE_ARRAY = 0x7B, 0x7D, 0x5B, 0x5D


class LineAudit(NamedTuple):
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    flags: NDArray[np.uint8]
    strings: NDArray[np.int64]  # [line, key, first byte and end], between the quotes; -1: not a string


def audit_lines(block: bytes | bytearray | memoryview | Bytes, keys: Sequence[str] = ()) -> LineAudit:
    """`keys` are looked for in the object that a line is, not in what it holds."""
    data = frozen(np.frombuffer(block, np.uint8), np.uint8)
    names = [key.encode() for key in keys]
    asked = frozen(np.frombuffer(b"".join(names) or b"\0", np.uint8), np.uint8)
    asked_ends = frozen(np.cumsum([0, *map(len, names)]), np.int64)
    key_hashes, key_bases = np.empty(MAX_LIVE_KEYS, np.uint64), np.empty(MAX_DEPTH, np.int64)
    room = data.size // 512 + 16
    starts, ends, flags = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.uint8)
    strings = np.empty((room, len(names), 2), np.int64)
    rows: Int = 0
    at: Int = 0
    while True:
        rows, at = _audit_lines(
            data,
            at,
            _UTF8_STEPS,
            asked,
            asked_ends,
            key_hashes,
            key_bases,
            rows,
            starts,
            ends,
            flags,
            strings,
        )
        if at >= data.size:
            return LineAudit(starts[:rows], ends[:rows], flags[:rows], strings[:rows])
        starts, ends, flags, strings = _doubled(starts), _doubled(ends), _doubled(flags), _doubled(strings)


def _doubled(column: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate((column, np.empty_like(column)))


def _utf8_steps() -> NDArray[np.uint64]:
    """The automaton of well-formed UTF-8 (Unicode 15, table 3-7), one word for each byte.

        next state = word[byte] >> state & 63

    A state is a multiple of 6, and the six bits of the word at that place are the next state. So a step is a
    load that waits for nothing and one shift, with no branch to mispredict: 1.9 GB/s on Japanese, where a
    branch for each kind of character gives 0.6 (the trick is Per Vognsen's).
    """
    accept, reject, need_1, need_2, need_3, after_e0, after_ed, after_f0, after_f4 = range(0, 54, 6)
    leads = (
        (accept, 0x00, 0x7F, accept),
        (accept, 0xC2, 0xDF, need_1),
        (accept, 0xE0, 0xE0, after_e0),
        (accept, 0xE1, 0xEC, need_2),
        (accept, 0xED, 0xED, after_ed),
        (accept, 0xEE, 0xEF, need_2),
        (accept, 0xF0, 0xF0, after_f0),
        (accept, 0xF1, 0xF3, need_3),
        (accept, 0xF4, 0xF4, after_f4),
    )
    follows = (
        (need_1, 0x80, 0xBF, accept),
        (need_2, 0x80, 0xBF, need_1),
        (need_3, 0x80, 0xBF, need_2),
        (after_e0, 0xA0, 0xBF, need_1),
        (after_ed, 0x80, 0x9F, need_1),
        (after_f0, 0x90, 0xBF, need_2),
        (after_f4, 0x80, 0x8F, need_2),
    )
    steps = [sum(reject << state for state in range(0, 54, 6))] * 256
    for state, first, last, following in leads + follows:
        for byte in range(first, last + 1):
            steps[byte] += (following - reject) << state
    return np.array(steps, np.uint64)


_UTF8_STEPS = frozen(_utf8_steps(), np.uint64)


@kernel(lambda: audit_lines(b"{}\n"))
def _audit_lines(
    data: Bytes,
    at: Int,
    utf8_steps: NDArray[np.uint64],
    asked: Bytes,
    asked_ends: NDArray[np.int64],
    key_hashes: NDArray[np.uint64],
    key_bases: NDArray[np.int64],
    rows: Int,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    flags: NDArray[np.uint8],
    strings: NDArray[np.int64],
) -> tuple[Int, Int]:
    """Audit lines from byte `at` on, until the block ends or the room for rows: (rows, next line's start)."""
    while at < data.size and rows < starts.size:
        # To the newline; `seen` is every byte of the line, or'ed.
        start = at
        seen = U64(0)
        end: Int = data.size
        while at < data.size:
            if data.size - at >= 8:
                word = load_word(data, at)
                marks = first_zero(word ^ NEWLINES)
                if marks == U64(0):
                    seen |= word
                    at += 8
                    continue
                seen |= word & (marks ^ (marks - U64(1)))
                end = at + bytes_before(marks)
                break
            if data[at] == 0x0A:
                end = at
                break
            seen |= U64(data[at])
            at += 1
        at = end + 1

        first = start
        while first < end and (data[first] == 0x20 or data[first] == 0x09 or data[first] == 0x0D):
            first += 1
        if first == end:
            continue
        found = 0

        if (seen & HIGH_BITS) != U64(0):
            # State 0 is between two characters: the only one in which ASCII may be skipped or the line may
            # end.
            state = U64(0)
            i = start
            while i < end:
                if end - i >= 8:
                    word = load_word(data, i)
                    if (word & HIGH_BITS) != U64(0) or (state & U64(63)) != U64(0):
                        for _ in range(8):
                            state = utf8_steps[word & U64(0xFF)] >> (state & U64(63))
                            word >>= U64(8)
                    i += 8
                else:
                    state = utf8_steps[data[i]] >> (state & U64(63))
                    i += 1
            if (state & U64(63)) != U64(0):
                found |= INVALID_UTF8

        # The keys of each open object lie on one stack; key_bases[level] is where those of that level begin.
        i = first
        depth = keys = 0
        objects = U64(0)
        wants_key = False
        strings[rows] = -1
        awaited: Int = -1  # the asked key whose value comes next
        while i < end:
            byte = data[i]
            i += 1
            if byte == QUOTE:
                key_start = i
                has_escape = False
                while i < end:
                    if end - i >= 8:
                        word = load_word(data, i)
                        marks = first_zero(word ^ QUOTES) | first_zero(word ^ BACKSLASHES)
                        if marks == U64(0):
                            i += 8
                            continue
                        i += bytes_before(marks)
                    if data[i] == QUOTE:
                        break
                    if data[i] == BACKSLASH:
                        has_escape = True
                        i += 1
                    i += 1
                if wants_key:
                    wants_key = False
                    if has_escape or keys == MAX_LIVE_KEYS:
                        found |= ESCAPED_KEY
                    else:
                        key_end = min(i, end)
                        key = U64(key_end - key_start)
                        for k in range(key_start, key_end, 8):
                            word = load_word(data, k) if data.size - k >= 8 else load_rest(data, k)
                            key = _stirred(key, word & (ALL_BITS >> U64(64 - 8 * min(key_end - k, 8))))
                        is_twin = False
                        for other in range(U64(key_bases[depth - 1]), U64(keys)):
                            is_twin |= key_hashes[other] == key
                        if is_twin:
                            found |= DUPLICATE_KEY
                        key_hashes[keys] = key
                        keys += 1
                        if depth == 1:
                            awaited = _place_of(data, key_start, key_end, asked, asked_ends)
                elif awaited >= 0:
                    strings[rows, awaited, 0], strings[rows, awaited, 1] = key_start, i
                    awaited = -1
                i += 1
            elif byte == COMMA:
                awaited = -1
                wants_key = depth > 0 and ((objects >> U64(depth - 1)) & U64(1)) != U64(0)
            elif byte in (OPEN_OBJECT, OPEN_ARRAY):
                if depth == MAX_DEPTH:
                    found |= TOO_DEEP
                    break
                wants_key = byte == OPEN_OBJECT
                awaited = -1
                objects &= ~(U64(1) << U64(depth))
                objects |= U64(wants_key) << U64(depth)
                key_bases[depth] = keys
                depth += 1
            elif byte in (CLOSE_OBJECT, CLOSE_ARRAY):
                if depth == 0:
                    break
                depth -= 1
                keys = key_bases[depth]
                wants_key = False

        starts[rows] = start
        ends[rows] = end
        flags[rows] = found
        rows += 1
    return rows, at


@inlined
def _place_of(data: Bytes, start: Int, end: Int, asked: Bytes, asked_ends: NDArray[np.int64]) -> Int:
    for place in range(asked_ends.size - 1):
        first = asked_ends[place]
        if asked_ends[place + 1] - first == end - start:
            same: Int = 0
            while same < end - start and asked[first + same] == data[start + same]:
                same += 1
            if same == end - start:
                return place
    return -1


@inlined
def _stirred(key: np.uint64, word: np.uint64) -> np.uint64:
    """One more word of a key in its hash. A bijection: different keys of up to eight bytes never collide."""
    key = (key ^ word) * U64(0xFF51AFD7ED558CCD)
    return key ^ (key >> U64(32))


# --- strings ---

FROM_SPACE = U64(0xE0E0E0E0E0E0E0E0)
SPACE, LETTER_U = 0x20, 0x75
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


@raw_kernel(lambda: unescape(TEXT[0], TEXT[1][:-1], TEXT[1][1:]))
def _unescape(
    data: Bytes, firsts: Offsets, ends: Offsets, escapes: Bytes, text: Bytes, offsets: Offsets
) -> bool:
    used: Int = 0
    for row in range(firsts.size):
        at, end = firsts[row], ends[row]
        while at < end:
            if end - at >= _WORD:
                word = load_word(data, at)
                marks = zero_marks(word ^ BACKSLASHES) | zero_marks(word & FROM_SPACE)
                store_word(text, used, word)
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
                    used = put_code(text, used, code)
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

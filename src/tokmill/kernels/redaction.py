"""Where in a text column something may lie that has to be redacted:
windows for a regular expression to look at.

bytes ─ an anchor between the right neighbours? ─ a longer look around it ─> window ─ overlapping ones joined
        b@e   3.4   0:d   +4   5-1                 four groups of digits

Each pattern of tokmill.clean.redaction has an anchor: a byte, with what must stand around it, that is in
every match. A window holds every match around its anchor and all that the pattern looks at beside it. So the
pattern finds in the windows what it would find in the whole text, and most text has no window.

The first question is asked of every byte at once for all anchors: one bit per anchor, one table of 256 words.

    word of a byte     bits 0-15: may stand before it | 16-31: may be it | 32-47: may stand after it
    anchors at a byte  = before[data[i-1]]  &  here[data[i]]  &  after[data[i+1]]

A branch per candidate byte (5 % of code) ran at 216 MB per CPU second on five kinds of text,
this table at 598.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import TEXT, Bytes, Int, Offsets, frozen, frozen_text, inlined, kernel

# The order in which kinds claim what two of them match.
KINDS = ("secret", "email", "ip", "phone")
SECRET, EMAIL, IP, PHONE = range(4)

# Beside a match, patterns look at most this far back or on (the longest look-behind has 9 bytes).
CONTEXT = 16
# In bytes, each a little more than the longest match of its pattern on that side of the anchor.
_LOCAL_PART, _DOMAIN = 130, 2300
_TOKEN = 8100  # one of the three parts of a JWT
_PRIVATE_KEY = 66_200
_LONG_TOKEN = 300

_DIGITS = b"0123456789"
_ALNUM = _DIGITS + bytes(range(65, 91)) + bytes(range(97, 123))
_BEYOND = bytes(range(128, 256))  # every byte of a character beyond ASCII counts as a letter of an address
_ANY = bytes(range(256))

# What runs are made of, one bit per class.
_DIGIT, _HEX, _LOCAL, _HOST, _B64URL, _B64, _FILLER, _NUMBER = (1 << bit for bit in range(8))
_CLASSES = (
    (_DIGIT, _DIGITS),
    (_HEX, _DIGITS + b"abcdefABCDEF"),
    (_LOCAL, _ALNUM + b"._%+-" + _BEYOND),
    (_HOST, _ALNUM + b".-" + _BEYOND),
    (_B64URL, _ALNUM + b"_-"),
    (_B64, _ALNUM + b"/+"),
    (_FILLER, b"=:> \t\"'"),
    (_NUMBER, _DIGITS + b" -./()"),
)
# kind, the byte before, the anchor, the byte after
_ANCHORS = (
    (EMAIL, _ALNUM + b"._%+-" + _BEYOND, b"@", _ALNUM + _BEYOND),
    (IP, _DIGITS, b".", _DIGITS),
    (IP, _DIGITS + b"abcdefABCDEF", b":", _DIGITS + b"abcdefABCDEF:"),
    (PHONE, _ANY, b"+", b"123456789"),
    (PHONE, _DIGITS, b")", _DIGITS + b" -"),
    (PHONE, _DIGITS, b"-.", _DIGITS),
    (SECRET, _ALNUM + b"_-", b".", b"e"),
    (SECRET, b"-", b"-", b"B"),
    (SECRET, b"abeoprs", b"-", _DIGITS),
    (SECRET, b"pousrft", b"_", _ALNUM),
    (SECRET, b"I", b"z", b"a"),
    (SECRET, b"KSB", b"I", b"A"),
    (SECRET, b"yY \t\"'", b"=:", _ALNUM + b"/+=> \t\"'"),
)
(_AT, _DOT, _COLON, _PLUS, _AREA, _LAST_FOUR, _JWT, _PEM, _SLACK, _PREFIX, _GOOGLE, _AWS_ID, _AWS_KEY) = (
    1 << bit for bit in range(len(_ANCHORS))
)
_EMAIL_ANCHORS, _IP_ANCHORS, _PHONE_ANCHORS = _AT, _DOT | _COLON, _PLUS | _AREA | _LAST_FOUR
_SECRET_ANCHORS = _JWT | _PEM | _SLACK | _PREFIX | _GOOGLE | _AWS_ID | _AWS_KEY

U64 = np.uint64
_HERE, _AFTER, _BITS = U64(16), U64(32), U64(0xFFFF)


class Windows(NamedTuple):
    """In order of kind and start. `starts` and `ends` are positions in the column's data."""

    kinds: NDArray[np.int64]
    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


def find_windows(data: Bytes, offsets: Offsets, kinds: tuple[int, ...]) -> Windows:
    data, offsets, _ = frozen_text(data, offsets)
    classes, anchors = _tables(kinds)
    capacity = 1024 + (int(offsets[-1]) - int(offsets[0])) // 512
    while True:
        found = np.empty((capacity, 4), np.int64)
        count = _find_windows(data, offsets, frozen(classes, np.uint8), frozen(anchors, np.uint64), found)
        if count >= 0:
            return _joined(found[:count])
        capacity *= 8  # text made of anchors: look again with more room


def _tables(kinds: tuple[int, ...]) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    classes, anchors = np.zeros(256, np.uint8), np.zeros(256, np.uint64)
    for bit, members in _CLASSES:
        classes[list(members)] |= np.uint8(bit)
    for number, (kind, before, here, after) in enumerate(_ANCHORS):
        if kind in kinds:
            anchors[list(before)] |= U64(1 << number)
            anchors[list(here)] |= U64(1 << number) << _HERE
            anchors[list(after)] |= U64(1 << number) << _AFTER
    return classes, anchors


def _joined(found: NDArray[np.int64]) -> Windows:
    """Windows of one kind that overlap become one. Rows never do: a window ends where its row ends."""
    kinds, rows, starts, ends = found[np.lexsort((found[:, 2], found[:, 0]))].T
    if not len(kinds):
        return Windows(kinds, rows, starts, ends)
    first = np.flatnonzero(np.diff(kinds, prepend=-1))
    reached = np.concatenate([np.maximum.accumulate(part) for part in np.split(ends, first[1:])])
    is_new = np.ones(len(kinds), np.bool_)
    is_new[1:] = (starts[1:] >= reached[:-1]) | (kinds[1:] != kinds[:-1])
    at = np.flatnonzero(is_new)
    return Windows(kinds[at], rows[at], starts[at], np.maximum.reduceat(ends, at))


@kernel(lambda: find_windows(*TEXT, (0, 1, 2, 3)))
def _find_windows(
    data: Bytes,
    offsets: Offsets,
    classes: NDArray[np.uint8],
    anchors: NDArray[np.uint64],
    found: NDArray[np.int64],
) -> Int:
    """Fills `found` with kind, row, start, end; -1 when it is too small."""
    count: Int = 0
    room = found.shape[0] - 4
    for row in range(offsets.size - 1):
        begin, end = offsets[row], offsets[row + 1]
        at, mark = _next_anchor(data, begin, begin, end, anchors)
        while mark:
            if count > room:
                return -1
            if mark & _SECRET_ANCHORS:
                start, stop = _secret(data, at, begin, end, classes, mark)
                count = _add(found, count, SECRET, row, start, stop, begin, end)
            if mark & _EMAIL_ANCHORS:
                start, stop = _email(data, at, begin, end, classes)
                count = _add(found, count, EMAIL, row, start, stop, begin, end)
            if mark & _IP_ANCHORS:
                start, stop = _ip(data, at, begin, end, classes)
                count = _add(found, count, IP, row, start, stop, begin, end)
            if mark & _PHONE_ANCHORS:
                start, stop = _phone(data, at, begin, end, classes, mark)
                count = _add(found, count, PHONE, row, start, stop, begin, end)
            at, mark = _next_anchor(data, at + 1, begin, end, anchors)
    return count


@inlined
def _next_anchor(data: Bytes, at: Int, begin: Int, end: Int, anchors: NDArray[np.uint64]) -> tuple[Int, Int]:
    """The first anchor from `at` on and its bits; 0 when there is none.
    At the edge of a row stands a line end.

    On its own, because a loop that also stores runs at half the speed: 800 MB/s instead of 1,470.
    """
    if end - at < 2:
        return end, 0
    before = anchors[data[at - 1]] if at > begin else anchors[0x0A]
    here = anchors[data[at]]
    for place in range(at, end - 1):  # no anchor is the last byte
        after = anchors[data[U64(place) + U64(1)]]
        bits = before & (here >> _HERE) & (after >> _AFTER) & _BITS
        if bits != U64(0):
            return place, np.int64(bits)
        before, here = here, after
    return end, 0


@inlined
def _add(
    found: NDArray[np.int64], count: Int, kind: Int, row: Int, start: Int, stop: Int, begin: Int, end: Int
) -> Int:
    """One more window, with context; or the last one grown, when it overlaps and is of this kind."""
    if stop <= start:
        return count
    start, stop = max(begin, start - CONTEXT), min(end, stop + CONTEXT)
    last = count - 1
    if last >= 0 and found[last, 0] == kind and found[last, 1] == row and start < found[last, 3]:
        found[last, 2] = min(start, found[last, 2])
        found[last, 3] = max(stop, found[last, 3])
        return count
    found[count, 0] = kind
    found[count, 1] = row
    found[count, 2] = start
    found[count, 3] = stop
    return count + 1


@inlined
def _run_left(data: Bytes, at: Int, begin: Int, classes: NDArray[np.uint8], bit: Int) -> Int:
    """The start of the run of a class that ends before `at`, no further back than `begin`."""
    while at > begin and classes[data[at - 1]] & bit:
        at -= 1
    return at


@inlined
def _run_right(data: Bytes, at: Int, end: Int, classes: NDArray[np.uint8], bit: Int) -> Int:
    while at < end and classes[data[at]] & bit:
        at += 1
    return at


@inlined
def _email(data: Bytes, at: Int, begin: Int, end: Int, classes: NDArray[np.uint8]) -> tuple[Int, Int]:
    stop = _run_right(data, at + 1, min(end, at + _DOMAIN), classes, _HOST)
    for dot in range(at + 2, stop):
        if data[dot] == 0x2E:
            return _run_left(data, at, max(begin, at - _LOCAL_PART), classes, _LOCAL), stop
    return at, at


@inlined
def _ip(data: Bytes, at: Int, begin: Int, end: Int, classes: NDArray[np.uint8]) -> tuple[Int, Int]:
    if data[at] == 0x3A:  # after 2xxx or 3xxx
        start = _run_left(data, at, max(begin, at - 5), classes, _HEX)
        if at - start == 4 and (data[start] == 0x32 or data[start] == 0x33):
            return start, at + 40
        return at, at
    start = _run_left(data, at, max(begin, at - 4), classes, _DIGIT)
    dot = at
    for _ in range(3):  # d.d.d.d, this being the first dot
        if dot >= end or data[dot] != 0x2E:
            return at, at
        stop = _run_right(data, dot + 1, min(end, dot + 5), classes, _DIGIT)
        if not 1 <= stop - dot - 1 <= 3:
            return at, at
        dot = stop
    return (start, dot) if at - start <= 3 else (at, at)


@inlined
def _phone(
    data: Bytes, at: Int, begin: Int, end: Int, classes: NDArray[np.uint8], mark: Int
) -> tuple[Int, Int]:
    if mark & _PLUS:  # nine digits at least
        stop = _run_right(data, at + 1, min(end, at + 90), classes, _NUMBER)
        digits = 0
        for place in range(at + 1, stop):
            digits += data[place] >= 0x30
        return (at, stop) if digits >= 9 else (at, at)
    if mark & _AREA:  # (ddd)
        start = _run_left(data, at, max(begin, at - 3), classes, _DIGIT)
        if at - start == 3 and start > begin and data[start - 1] == 0x28:
            return at - 8, at + 16
        return at, at
    left = _run_left(data, at, max(begin, at - 3), classes, _DIGIT)  # ddd-dddd
    if at - left == 3 and _run_right(data, at + 1, min(end, at + 5), classes, _DIGIT) == at + 5:
        return at - 16, at + 5
    return at, at


@inlined
def _secret(
    data: Bytes, at: Int, begin: Int, end: Int, classes: NDArray[np.uint8], mark: Int
) -> tuple[Int, Int]:
    if mark & _AWS_KEY:  # key = "40 characters"
        word = _run_left(data, at, max(begin, at - 8), classes, _FILLER)
        value = _run_right(data, at, min(end, at + 16), classes, _FILLER)
        is_key = word - begin >= 9 and data[word - 1] | 0x20 == 0x79 and data[word - 2] | 0x20 == 0x65
        if is_key and _run_right(data, value, min(end, value + 40), classes, _B64) == value + 40:
            return at - 50, at + 70
        return at, at
    if mark & _JWT:  # eyJ….eyJ….…, this being the first dot
        start = _run_left(data, at, max(begin, at - _TOKEN), classes, _B64URL)
        stop = _run_right(data, at + 1, min(end, at + _TOKEN), classes, _B64URL)
        if at - start >= 13 and stop - at >= 13 and stop < end and data[stop] == 0x2E:
            return start, _run_right(data, stop + 1, min(end, stop + _TOKEN), classes, _B64URL)
        return at, at
    if mark & _PEM:  # -----BEGIN … PRIVATE KEY
        for word in range(at + 6, min(end, at + 40) - 3):
            if data[word] == 0x50 and data[word + 1] == 0x52 and data[word + 2] == 0x49:
                return at - 5, at + _PRIVATE_KEY
        return at, at
    # What is left is a prefix and a run of 16 characters at least: gh?_ hf_ pat_ xox?- AIza A?IA.
    stop = _run_right(data, at + 1, min(end, at + _LONG_TOKEN), classes, _B64URL)
    if stop - at <= 16 or at - begin < 2:
        return at, at
    two = data[at - 2]
    three = data[at - 3] if at - begin >= 3 else np.uint8(0)
    if mark & _PREFIX and not (
        (two == 0x68 and (three == 0x67 or data[at - 1] == 0x66)) or (two == 0x61 and three == 0x70)
    ):
        return at, at
    if mark & _SLACK and not (two == 0x78 and three == 0x6F):
        return at, at
    return at - 10, stop

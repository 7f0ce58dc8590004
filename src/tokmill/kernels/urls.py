"""URLs of a column brought into one form, and looked up in a list of domains and URLs.

    HTTP://user@WWW.Example.com:80/a/./b/../%7ec/?utm_source=x&q=1#top
    └ https ┘   └ example.com ┘    └ /a/~c ┘      └ ?q=1 ┘

One pass over the bytes, in the order of RFC 3986 (section 6.2.2). A host with a byte beyond ASCII, or with a
percent sign, is left to the caller: it needs tables of Unicode, and few have one.

    entries     "example.com", "blog.org/spam"     bytes, one after the other
    slots       hash of an entry -> its number + 1; 0: free. What lies there is compared byte by byte
    a domain    is looked up by every end of the host:       com, example.com, www.example.com
    a URL       by every beginning of it at a / ? or &:      blog.org/spam, blog.org/spam/page
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import (
    TEXT,
    U64,
    Bytes,
    Int,
    Offsets,
    frozen,
    frozen_text,
    mix64,
    raw_kernel,
    raw_step,
    slots_for,
)

# What became of a row.
NO_URL, NORMAL, OTHER_HOST = np.uint8(0), np.uint8(1), np.uint8(2)

_LETTERS = bytes(range(65, 91)) + bytes(range(97, 123))
_DIGITS = b"0123456789"
_HEX = _DIGITS + b"abcdefABCDEF"
_UNRESERVED = _LETTERS + _DIGITS + b"-._~"
_IN_PATH = _UNRESERVED + b"!$&'()*+,;=:@"
# What a byte may be, one bit each.
_PLAIN, _PATH, _QUERY, _HOST, _SCHEME, _ADDRESS = (np.uint8(1 << bit) for bit in range(6))
_CLASSES = (
    (_PLAIN, _UNRESERVED),
    (_PATH, _IN_PATH),
    (_QUERY, _IN_PATH + b"/?"),
    (_HOST, _LETTERS + _DIGITS + b"-_."),
    (_SCHEME, _LETTERS + _DIGITS + b"+-."),
    (_ADDRESS, _HEX + b":."),
)

_HASH, _PERCENT, _AND, _DOT, _SLASH, _COLON = 0x23, 0x25, 0x26, 0x2E, 0x2F, 0x3A
_EQUALS, _QUESTION, _AT, _OPEN, _CLOSE, _STAR = 0x3D, 0x3F, 0x40, 0x5B, 0x5D, 0x2A
_HTTPS = np.frombuffer(b"https", np.uint8)
_NOT_HEX = np.uint8(255)
# Written at most: three bytes for one, and https:// with a slash for a host alone.
_EXPANSION, _ROOM = 3, 16
_FACTOR = U64(0x9E3779B97F4A7C15)


class Normal(NamedTuple):
    data: Bytes
    offsets: Offsets
    kinds: NDArray[np.uint8]  # NO_URL and OTHER_HOST have no bytes


class Entries(NamedTuple):
    """What may be looked up; `slots` of domains and of URLs."""

    data: Bytes
    offsets: Offsets
    domains: NDArray[np.int32]
    urls: NDArray[np.int32]


def normalize(data: Bytes, offsets: Offsets, parameters: tuple[Bytes, Offsets]) -> Normal:
    """`parameters`: names of those that are left out of queries, in lower case; `utm_*` are all that begin
    so."""
    data, offsets, rows = frozen_text(data, offsets)
    names, name_offsets, _ = frozen_text(*parameters)
    classes, nibbles = _tables()
    out = np.empty(_EXPANSION * int(offsets[-1] - offsets[0]) + _ROOM * rows, np.uint8)
    ends, kinds = np.zeros(rows + 1, np.int64), np.empty(rows, np.uint8)
    _normalize(
        data,
        offsets,
        frozen(classes, np.uint8),
        frozen(nibbles, np.uint8),
        names,
        name_offsets,
        out,
        ends,
        kinds,
    )
    return Normal(out[: ends[-1]].copy(), ends, kinds)


def make_entries(data: Bytes, offsets: Offsets) -> Entries:
    """Of entries without a scheme, in one form: one with a slash is a URL, others are domains.
    Of equal ones the first is found."""
    data, offsets, rows = frozen_text(data, offsets)
    with_slash = np.searchsorted(offsets, np.flatnonzero(data[: offsets[-1]] == _SLASH), side="right")
    counted = len(np.unique(with_slash))
    domains, urls = (np.zeros(slots_for(count), np.int32) for count in (rows - counted, counted))
    _insert(data, offsets, domains, urls)
    return Entries(data, offsets, domains, urls)


def find_entries(data: Bytes, offsets: Offsets, entries: Entries) -> tuple[Offsets, Offsets]:
    """Of each URL in its one form (or none: an empty row) the shortest domain, and the shortest URL,
    that covers it; -1: none does."""
    data, offsets, rows = frozen_text(data, offsets)
    domains, urls = np.full(rows, -1, np.int64), np.full(rows, -1, np.int64)
    held, held_offsets, _ = frozen_text(entries.data, entries.offsets)
    slots = (frozen(entries.domains, np.int32), frozen(entries.urls, np.int32))
    _find(data, offsets, held, held_offsets, *slots, domains, urls)
    return domains, urls


def _tables() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    classes, nibbles = np.zeros(256, np.uint8), np.full(256, _NOT_HEX, np.uint8)
    for bit, members in _CLASSES:
        classes[list(members)] |= bit
    for digit in _HEX:
        nibbles[digit] = int(chr(digit), 16)
    return classes, nibbles


@raw_step
def _lowered(byte: Int) -> Int:
    return byte + 32 if 0x41 <= byte <= 0x5A else byte


@raw_step
def _put_escaped(out: Bytes, used: Int, byte: Int) -> Int:
    high, low = byte >> 4, byte & 15
    out[used] = _PERCENT
    out[used + 1] = high + (0x30 if high < 10 else 0x37)
    out[used + 2] = low + (0x30 if low < 10 else 0x37)
    return used + 3


@raw_step
def _put(
    data: Bytes,
    at: Int,
    end: Int,
    allowed: np.uint8,
    classes: NDArray[np.uint8],
    nibbles: NDArray[np.uint8],
    out: Bytes,
    used: Int,
) -> tuple[Int, Int]:
    """One character: escaped if it has to be, and only then. Where the next one is read, and written."""
    byte = np.int64(data[U64(at)])
    if classes[byte] & allowed:
        out[used] = byte
        return at + 1, used + 1
    if byte == _PERCENT and end - at > 2:
        high, low = nibbles[data[at + 1]], nibbles[data[at + 2]]
        if high != _NOT_HEX and low != _NOT_HEX:
            value = np.int64(high) * 16 + np.int64(low)
            if classes[value] & _PLAIN:
                out[used] = value
                return at + 3, used + 1
            return at + 3, _put_escaped(out, used, value)
    return at + 1, _put_escaped(out, used, byte)


@raw_step
def _is_left_out(out: Bytes, begin: Int, end: Int, names: Bytes, offsets: Offsets) -> bool:
    """Whether the name of a parameter is one of `names`."""
    for number in range(offsets.size - 1):
        at, stop = offsets[number], offsets[number + 1]
        is_family = names[stop - 1] == _STAR
        size = stop - at - (1 if is_family else 0)
        if end - begin == size or (is_family and end - begin > size):
            same = True
            for k in range(size):
                if _lowered(np.int64(out[begin + k])) != names[at + k]:
                    same = False
                    break
            if same:
                return True
    return False


@raw_kernel(lambda: normalize(*TEXT, TEXT))
def _normalize(
    data: Bytes,
    offsets: Offsets,
    classes: NDArray[np.uint8],
    nibbles: NDArray[np.uint8],
    names: Bytes,
    name_offsets: Offsets,
    out: Bytes,
    ends: Offsets,
    kinds: NDArray[np.uint8],
) -> None:
    used: Int = 0
    for row in range(offsets.size - 1):
        begin, end = offsets[row], offsets[row + 1]
        start = used
        while begin < end and data[begin] <= 0x20:
            begin += 1
        while begin < end and data[end - 1] <= 0x20:
            end -= 1
        kind = NO_URL

        # scheme: what is before ://, none for // or for a host alone
        at = begin
        while at < end and classes[data[at]] & _SCHEME:
            at += 1
        has_scheme = (
            begin < at
            and at + 2 < end
            and data[at] == _COLON
            and data[at + 1] == _SLASH
            and data[at + 2] == _SLASH
            and 0x61 <= _lowered(np.int64(data[begin])) <= 0x7A
        )
        scheme_end = at if has_scheme else begin
        is_web = not has_scheme
        if has_scheme and 4 <= at - begin <= 5:
            is_web = True
            for k in range(at - begin):
                is_web = is_web and _lowered(np.int64(data[begin + k])) == _HTTPS[k]
        is_relative = (
            not has_scheme and end - begin > 2 and data[begin] == _SLASH and data[begin + 1] == _SLASH
        )
        host = at + 3 if has_scheme else begin + 2 if is_relative else begin

        # authority: the last @ ends who asks, a colon after the host begins the port
        stop = host
        colon: Int = -1
        closed: Int = -1
        named: Int = host
        while stop < end:
            byte = data[stop]
            if byte == _SLASH or byte == _QUESTION or byte == _HASH:
                break
            if byte == _AT:
                named = stop + 1
                colon = closed = -1
            elif byte == _COLON:
                colon = stop
            elif byte == _CLOSE:
                closed = stop
            stop += 1
        is_good = named == host or has_scheme or is_relative
        host = named
        host_end = colon if colon > closed and colon >= host else stop
        port: Int = 0
        for k in range(host_end + 1, stop):
            if not 0x30 <= data[k] <= 0x39 or port > 65535:
                is_good = False
                break
            port = port * 10 + np.int64(data[k]) - 0x30
        is_good = is_good and port <= 65535

        # host
        is_address = host < host_end and data[host] == _OPEN
        is_other = False
        if is_address:
            is_good = is_good and closed == host_end - 1 and closed > host + 1 and (has_scheme or is_relative)
            for k in range(host + 1, host_end - 1):
                is_good = is_good and (classes[data[k]] & _ADDRESS) != 0
        else:
            if host_end - host > 1 and data[host_end - 1] == _DOT:
                host_end -= 1
            dots = 0
            before: Int = _DOT
            for k in range(host, host_end):
                byte = data[k]
                if byte >= 0x80 or byte == _PERCENT:
                    is_other = True
                elif classes[byte] & _HOST == 0 or (byte == _DOT and before == _DOT):
                    is_good = False
                dots += 1 if byte == _DOT else 0
                before = np.int64(byte)
            is_good = is_good and before != _DOT and (has_scheme or is_relative or dots > 0 or is_other)
            while (
                is_good
                and dots > 1
                and data[host + 3] == _DOT
                and data[host] | 0x20 == 0x77
                and data[host + 1] | 0x20 == 0x77
                and data[host + 2] | 0x20 == 0x77
            ):
                host += 4
                dots -= 1
        if is_good:
            kind = OTHER_HOST if is_other else NORMAL
        if kind == NORMAL:
            if is_web:
                for k in range(5):
                    out[used] = _HTTPS[k]
                    used += 1
            else:
                for k in range(begin, scheme_end):
                    out[used] = _lowered(np.int64(data[k]))
                    used += 1
            out[used] = _COLON
            out[used + 1] = out[used + 2] = _SLASH
            used += 3
            for k in range(host, host_end):
                out[used] = _lowered(np.int64(data[k]))
                used += 1
            if port != 0 and not (is_web and (port == 80 or port == 443)):
                out[used] = _COLON
                used += 1
                scale: Int = 10000
                while scale > port:
                    scale //= 10
                while scale > 0:
                    out[used] = 0x30 + port // scale % 10
                    used += 1
                    scale //= 10

            # path: segment by segment, . and .. taken out
            root = used
            at = stop
            while at < end and data[at] == _SLASH:
                segment = used
                out[used] = _SLASH
                used += 1
                at += 1
                while at < end and data[at] != _SLASH and data[at] != _QUESTION and data[at] != _HASH:
                    at, used = _put(data, at, end, _PATH, classes, nibbles, out, used)
                size = used - segment - 1
                if size == 1 and out[segment + 1] == _DOT:
                    used = segment
                elif size == 2 and out[segment + 1] == _DOT and out[segment + 2] == _DOT:
                    used = segment
                    while used > root:
                        used -= 1
                        if out[used] == _SLASH:
                            break
            while used > root and out[used - 1] == _SLASH:
                used -= 1
            if used == root:
                out[used] = _SLASH
                used += 1

            # query: parameter by parameter, those that only say how somebody came here left out
            if at < end and data[at] == _QUESTION:
                mark = used
                at += 1
                while at < end and data[at] != _HASH:
                    first = used
                    out[used] = _QUESTION if used == mark else _AND
                    used += 1
                    name_end: Int = -1
                    while at < end and data[at] != _AND and data[at] != _HASH:
                        if name_end < 0 and data[at] == _EQUALS:
                            name_end = used
                        # & is a separator here, and escaped where it is not
                        at, used = _put(data, at, end, _QUERY, classes, nibbles, out, used)
                    if name_end < 0:
                        name_end = used
                    if used == first + 1 or _is_left_out(out, first + 1, name_end, names, name_offsets):
                        used = first
                    if at < end and data[at] == _AND:
                        at += 1
        if kind != NORMAL:
            used = start
        kinds[row] = kind
        ends[row + 1] = used


# --- lists ---


@raw_step
def _stirred(state: np.uint64, byte: Int) -> np.uint64:
    return (state ^ U64(byte)) * _FACTOR


@raw_step
def _is_entry(data: Bytes, begin: Int, end: Int, entries: Bytes, offsets: Offsets, number: Int) -> bool:
    at = offsets[number]
    if offsets[number + 1] - at != end - begin:
        return False
    same = True
    for k in range(end - begin):
        same = same and data[begin + k] == entries[at + k]
    return same


@raw_step
def _look_up(
    data: Bytes,
    begin: Int,
    end: Int,
    state: np.uint64,
    entries: Bytes,
    offsets: Offsets,
    slots: NDArray[np.int32],
) -> tuple[Int, Int]:
    """The number of the entry with these bytes, or -1; and the slot where it is, or would be."""
    mask = U64(slots.size - 1)
    place = mix64(state) & mask
    while slots[place] != 0:
        number = np.int64(slots[place]) - 1
        if _is_entry(data, begin, end, entries, offsets, number):
            return number, np.int64(place)
        place = (place + U64(1)) & mask
    return np.int64(-1), np.int64(place)


@raw_kernel(lambda: make_entries(*TEXT))
def _insert(data: Bytes, offsets: Offsets, domains: NDArray[np.int32], urls: NDArray[np.int32]) -> None:
    for row in range(offsets.size - 1):
        begin, end = offsets[row], offsets[row + 1]
        if begin == end:
            continue
        forwards = backwards = U64(0)
        is_url = False
        for at in range(begin, end):
            is_url = is_url or data[at] == _SLASH
            forwards = _stirred(forwards, np.int64(data[at]))
        for k in range(end - begin):
            backwards = _stirred(backwards, np.int64(data[end - 1 - k]))
        slots = urls if is_url else domains
        state = forwards if is_url else backwards
        number, place = _look_up(data, begin, end, state, data, offsets, slots)
        if number < 0:
            slots[place] = row + 1


@raw_kernel(lambda: find_entries(*TEXT, make_entries(*TEXT)))
def _find(
    data: Bytes,
    offsets: Offsets,
    entries: Bytes,
    entry_offsets: Offsets,
    domain_slots: NDArray[np.int32],
    url_slots: NDArray[np.int32],
    domains: Offsets,
    urls: Offsets,
) -> None:
    for row in range(offsets.size - 1):
        begin, end = offsets[row], offsets[row + 1]
        host = begin
        while host < end and data[host] != _COLON:
            host += 1
        host += 3
        if host >= end:
            continue
        stop = host
        closed = data[host] != _OPEN
        while stop < end and data[stop] != _SLASH and not (closed and data[stop] == _COLON):
            closed = closed or data[stop] == _CLOSE
            stop += 1
        state = U64(0)
        at = stop
        while at > host:
            at -= 1
            state = _stirred(state, np.int64(data[at]))
            if at == host or data[at - 1] == _DOT:
                found, _ = _look_up(data, at, stop, state, entries, entry_offsets, domain_slots)
                if found >= 0:
                    domains[row] = found
                    break
        state = U64(0)
        is_in_path = False
        for at in range(host, end):
            byte = data[at]
            # a path of its own, and not the slash that every URL has
            if is_in_path and (byte == _SLASH or byte == _QUESTION or byte == _AND):
                found, _ = _look_up(data, host, at, state, entries, entry_offsets, url_slots)
                if found >= 0:
                    urls[row] = found
                    break
            is_in_path = is_in_path or byte == _SLASH
            state = _stirred(state, np.int64(byte))
        if urls[row] < 0:
            urls[row], _ = _look_up(data, host, end, state, entries, entry_offsets, url_slots)

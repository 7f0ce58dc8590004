"""Set strings looked for in a text column: phrases in any case, literals byte for byte.

`count_phrases` counts how often a document uses set phrases, in capitals or not (of ASCII):

    text   … must enable JavaScript to …
             └────────┘                       a window as long as the shortest phrase; its end, "bl", is in
                                              none: 9 on
                      └────────┘              "cr" is 3 before the end of "javascript": 3 on
                         └────────┘           "pt" ends it. Is all of it here? Then 1 on

So most bytes are never looked at (Wu and Manber 1994): lorem ipsum in 110 MB takes 0.05 s of CPU time, and
took 0.17 when each was. Two bytes are told apart by the low five bits of each, in which capitals are small
letters: what is taken for "pt" may be something else, never the other way round.

Phrases come in groups, and what is counted is per group: places where one begins, and lines that have one.

`find_literals` says where set strings stand:

    literals   <|end|>  <|endoftext|>  [INST]          a trie, over the few bytes that any of them has
    text       a <|endoftext|> b                       leftmost, then longest: (row, 2, 15, 1)

One look per byte: is it the first of some literal? Only there is the trie walked. Occurrences do not overlap.
Where literals begin with two bytes at most, as control tokens do, eight bytes are looked at at once.

The words and phrases that the measures look for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import (
    LOW_BITS,
    TEXT,
    Bytes,
    Int,
    Offsets,
    frozen,
    frozen_text,
    load_word,
    raw_kernel,
    raw_step,
    zero_marks,
)

# Gopher's eight: a text in English that has fewer than two of them is no prose.
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")

# A word of its own after a digit: 10km is 10 and km.
UNITS = (
    "km", "m", "dm", "cm", "mm", "ha", "nm", "yd", "in", "ft", "kg", "g", "mg", "t", "lb", "oz", "m/s",
    "km/h", "kmh", "mph", "hPa", "Pa", "mbar", "mb", "MB", "kb", "KB", "gb", "GB", "tb", "TB", "T", "G", "M",
    "K", "%",
)  # fmt: skip

# The full stop belongs to them and ends no sentence. A capital or a lone letter before it
# ("U.S.", "b.") needs no list.
ABBREVIATIONS = (
    "Adm.", "Ala.", "Apr.", "Ariz.", "Ark.", "Aug.", "Bros.", "Calif.", "Co.", "Colo.", "Conn.", "Corp.",
    "Dec.", "Del.", "Dr.", "E.g.", "Feb.", "Fla.", "Ga.", "Gen.", "Gov.", "I.e.", "Ill.", "Inc.", "Ind.",
    "Jan.", "Jr.", "Jul.", "Jun.", "Kan.", "Kans.", "Ky.", "La.", "Ltd.", "Mar.", "Mass.", "Md.", "Messrs.",
    "Mich.", "Minn.", "Miss.", "Mo.", "Mont.", "Mr.", "Mrs.", "Ms.", "Mt.", "Neb.", "Nebr.", "Nev.", "Nov.",
    "Oct.", "Okla.", "Ore.", "Pa.", "Ph.D.", "Prof.", "Rep.", "Rev.", "Sen.", "Sep.", "Sept.", "St.", "Tenn.",
    "Va.", "Wash.", "Wis.", "a.m.", "ak.", "co.", "e.g.", "i.e.", "p.m.", "v.s.", "vs.",
)  # fmt: skip

LOREM_IPSUM = ("lorem ipsum",)
JAVASCRIPT = ("javascript",)
POLICY_PHRASES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)
URL_STARTS = ("http://", "https://")

# Lines around a text rather than of it. Only their share of all lines says something: see docs/measures.md.
BOILERPLATE = (
    "accept cookies",
    "all rights reserved",
    "back to top",
    "click here",
    "cookie policy",
    "cookie settings",
    "follow us on",
    "leave a comment",
    "log in",
    "navigation",
    "powered by",
    "privacy policy",
    "read more",
    "related articles",
    "related posts",
    "share this",
    "sign in",
    "sign up",
    "skip to content",
    "skip to main content",
    "subscribe to",
    "terms and conditions",
    "terms of service",
    "terms of use",
    "use cookies",
    "uses cookies",
)


U64 = np.uint64
NEWLINE = 10
_PAIRS = 1 << 10
_MAX_WINDOW = 256  # a step fits eight bits


class PhraseTable(NamedTuple):
    """Phrases sorted by the pair of bytes that ends their first `window`:
    those of pair p are first[p]:first[p + 1]."""

    window: int
    steps: NDArray[np.uint8]  # by pair, how far the window can go on; 0: a phrase may begin where it does
    first: NDArray[np.int64]  # by pair, and one more
    groups: NDArray[np.int64]
    offsets: Offsets
    data: Bytes
    group_count: int


class PhraseMeasures(NamedTuple):
    """Per row and group."""

    hits: NDArray[np.int64]
    lines: NDArray[np.int64]


def phrase_table(groups: tuple[tuple[str, ...], ...]) -> PhraseTable:
    """Phrases are in lower case and without a newline; one of a group is no part of another of it."""
    encoded = [(phrase.encode(), group) for group, phrases in enumerate(groups) for phrase in phrases]
    window = min([len(phrase) for phrase, _ in encoded] + [_MAX_WINDOW])
    entries = sorted((_pair(phrase, window - 1), phrase, group) for phrase, group in encoded)
    # with a pair at its end that no phrase has, the window can go on until it has only the second byte of the
    # pair
    steps = np.full(_PAIRS, max(window - 1, 1), np.uint8)
    for _, phrase, _ in entries:
        for place in range(min(1, window - 1), window):
            pair = _pair(phrase, place)
            steps[pair] = min(steps[pair], window - 1 - place)
    return PhraseTable(
        window,
        steps,
        np.searchsorted([pair for pair, _, _ in entries], np.arange(_PAIRS + 1)).astype(np.int64),
        np.array([group for _, _, group in entries], np.int64),
        np.cumsum([0, *(len(phrase) for _, phrase, _ in entries)], dtype=np.int64),
        np.frombuffer(b"".join(phrase for _, phrase, _ in entries) or b"\0", np.uint8),
        len(groups),
    )


def _pair(phrase: bytes, place: int) -> int:
    """Of the byte there and the one before; a first byte, where a phrase has no other, stands for both."""
    return (phrase[max(place - 1, 0)] & 31) << 5 | phrase[place] & 31


def count_phrases(data: Bytes, offsets: Offsets, table: PhraseTable) -> PhraseMeasures:
    data, offsets, rows = frozen_text(data, offsets)
    found = PhraseMeasures(
        np.zeros((table.group_count, rows), np.int64), np.zeros((table.group_count, rows), np.int64)
    )
    _count_phrases(
        data,
        offsets,
        table.window,
        frozen(table.steps, np.uint8),
        frozen(table.first, np.int64),
        frozen(table.groups, np.int64),
        frozen(table.offsets, np.int64),
        frozen(table.data, np.uint8),
        np.full(table.group_count, -1, np.int64),
        *found,
    )
    return found


@raw_kernel(lambda: count_phrases(*TEXT, phrase_table((("a",),))))
def _count_phrases(
    data: Bytes,
    offsets: Offsets,
    window: Int,
    steps: NDArray[np.uint8],
    first: NDArray[np.int64],
    groups: NDArray[np.int64],
    phrase_offsets: Offsets,
    phrases: Bytes,
    last_hits: NDArray[np.int64],
    hits: NDArray[np.int64],
    lines: NDArray[np.int64],
) -> None:
    gap = U64(min(1, window - 1))
    for row in range(offsets.size - 1):
        begin, end = offsets[row], offsets[row + 1]
        for group in range(last_hits.size):
            last_hits[group] = -1
        at: Int = begin + window - 1  # the last byte of the window
        while at < end:
            i = U64(at)
            pair = U64(data[i - gap] & 31) << U64(5) | U64(data[i] & 31)
            at += np.int64(steps[pair])
            if steps[pair]:
                continue
            start = at - (window - 1)
            at += 1
            for entry in range(first[pair], first[pair + U64(1)]):
                if not is_phrase(data, start, end, phrases, phrase_offsets[entry], phrase_offsets[entry + 1]):
                    continue
                group = groups[entry]
                hits[group, row] += 1
                if last_hits[group] < 0 or _has_newline(data, last_hits[group], start):
                    lines[group, row] += 1
                last_hits[group] = start


@raw_step
def is_phrase(data: Bytes, start: Int, end: Int, phrases: Bytes, first: Int, last: Int) -> bool:
    if start + last - first > end:
        return False
    k: Int = 0
    while k < last - first and _lower(data[start + k]) == phrases[first + k]:
        k += 1
    return bool(k == last - first)


@raw_step
def _has_newline(data: Bytes, start: Int, end: Int) -> bool:
    while start < end and data[start] != NEWLINE:
        start += 1
    return bool(start < end)


@raw_step
def _lower(byte: np.uint8) -> np.uint8:
    return byte | np.uint8(32) if 65 <= byte <= 90 else byte


# --- literals ---

_FIRST_ROOM = 1024


class LiteralTable(NamedTuple):
    """classes: 0 for a byte that no literal has. steps[state * width + class]: the next state, 0 for none."""

    classes: NDArray[np.uint8]  # 256
    steps: NDArray[np.int32]
    ends: NDArray[np.int32]  # per state: the literal that ends there, or -1
    width: int
    firsts: NDArray[
        np.uint64
    ]  # the two bytes that literals begin with, eight times each; none if they are more


class Occurrences(NamedTuple):
    """In order of their places; begins and ends are places in the column's bytes."""

    rows: NDArray[np.int64]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    literals: NDArray[np.int64]


def literal_table(literals: Sequence[str]) -> LiteralTable:
    assert all(literals), "an empty literal is everywhere"
    spelled = [literal.encode() for literal in literals]
    used = sorted({byte for text in spelled for byte in text})
    classes = np.zeros(256, np.uint8)
    classes[used] = np.arange(1, len(used) + 1)  # UTF-8 has no use for 13 of the bytes: this fits
    steps: list[dict[int, int]] = [{}]
    ends = [-1]
    for number, text in enumerate(spelled):
        state = 0
        for byte in text:
            if byte not in steps[state]:
                steps[state][byte] = len(steps)
                steps.append({})
                ends.append(-1)
            state = steps[state][byte]
        ends[state] = number
    width = len(used) + 1
    flat = np.zeros(len(steps) * width, np.int32)
    for state, after in enumerate(steps):
        for byte, following in after.items():
            flat[state * width + int(classes[byte])] = following
    firsts = sorted(steps[0])
    pair = [] if len(firsts) > 2 else [firsts[0], firsts[-1]] if firsts else [0xFF, 0xFF]  # UTF-8 has no 0xFF
    words = np.array(pair, np.uint64) * LOW_BITS
    return LiteralTable(classes, flat, np.array(ends, np.int32), width, words)


def find_literals(data: Bytes, offsets: Offsets, table: LiteralTable) -> Occurrences:
    data, offsets, _ = frozen_text(data, offsets)
    room = _FIRST_ROOM
    while True:
        found = Occurrences(*(np.empty(room, np.int64) for _ in range(4)))
        count = int(
            _find_literals(
                data,
                offsets,
                frozen(table.classes, np.uint8),
                frozen(table.steps, np.int32),
                frozen(table.ends, np.int32),
                table.width,
                frozen(table.firsts, np.uint64),
                *found,
            )
        )
        if count <= room:
            return Occurrences(*(column[:count] for column in found))
        room = count  # the second walk finds as many as the first


@raw_kernel(lambda: find_literals(*TEXT, literal_table(["a"])))
def _find_literals(
    data: Bytes,
    offsets: Offsets,
    classes: NDArray[np.uint8],
    steps: NDArray[np.int32],
    ends: NDArray[np.int32],
    width: Int,
    firsts: NDArray[np.uint64],
    rows: NDArray[np.int64],
    found_begins: NDArray[np.int64],
    found_ends: NDArray[np.int64],
    literals: NDArray[np.int64],
) -> Int:
    """How many there are; those for which there is room are written."""
    count: Int = 0
    for row in range(offsets.size - 1):
        at, end = offsets[row], offsets[row + 1]
        while at < end:
            while firsts.size == 2 and at + 8 <= end:
                word = load_word(data, at)
                if zero_marks(word ^ firsts[0]) | zero_marks(word ^ firsts[1]) != U64(0):
                    break
                at += 8
            if at == end:
                break
            state: Int = steps[classes[data[np.uint64(at)]]]
            if state == 0:
                at += 1
                continue
            literal: Int = -1
            stop: Int = at + 1
            walked: Int = at + 1
            while True:
                if ends[state] >= 0:
                    literal, stop = ends[state], walked
                if walked == end:
                    break
                kind = classes[data[np.uint64(walked)]]
                if kind == 0:
                    break
                state = steps[state * width + kind]
                if state == 0:
                    break
                walked += 1
            if literal >= 0:
                if count < rows.size:
                    rows[count], found_begins[count] = row, at
                    found_ends[count], literals[count] = stop, literal
                count += 1
            at = stop
    return count

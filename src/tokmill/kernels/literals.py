"""Where set strings stand in a text column, byte for byte.

    literals   <|end|>  <|endoftext|>  [INST]          a trie, over the few bytes that any of them has
    text       a <|endoftext|> b                       leftmost, then longest: (row, 2, 15, 1)

One look per byte: is it the first of some literal? Only there is the trie walked. Occurrences do not overlap.
Where literals begin with two bytes at most, as control tokens do, eight bytes are looked at at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.columns import Bytes, Int, Offsets, frozen, frozen_text
from tokmill.kernels.raw import raw_kernel, raw_step

_FIRST_ROOM = 1024

U64 = np.uint64
LOW_BITS = U64(0x0101010101010101)
LOW_SEVEN = U64(0x7F7F7F7F7F7F7F7F)


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


@raw_kernel
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
                word = _load_word(data, at)
                if _zero_marks(word ^ firsts[0]) | _zero_marks(word ^ firsts[1]) != U64(0):
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


@raw_step
def _load_word(data: Bytes, at: Int) -> np.uint64:
    """Eight bytes as one little-endian word: one load, because the unsigned index cannot be negative."""
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
def _zero_marks(word: np.uint64) -> np.uint64:
    """0x80 in each byte that is zero."""
    return ~(((word & LOW_SEVEN) + LOW_SEVEN) | word | LOW_SEVEN)

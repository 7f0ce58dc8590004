"""Where set strings stand in a text column, byte for byte.

    literals   <|end|>  <|endoftext|>  [INST]          a trie, over the few bytes that any of them has
    text       a <|endoftext|> b                       leftmost, then longest: (row, 2, 15, 1)

One look per byte: is it the first of some literal? Only there is the trie walked. Occurrences do not overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.columns import Bytes, Int, Offsets, frozen, frozen_text
from tokmill.kernels.raw import raw_kernel

_FIRST_ROOM = 1024


class LiteralTable(NamedTuple):
    """classes: 0 for a byte that no literal has. steps[state * width + class]: the next state, 0 for none."""

    classes: NDArray[np.uint8]  # 256
    steps: NDArray[np.int32]
    ends: NDArray[np.int32]  # per state: the literal that ends there, or -1
    width: int


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
    return LiteralTable(classes, flat, np.array(ends, np.int32), width)


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

"""How often a document uses set phrases, in capitals or not (of ASCII).

    text     … you must enable JavaScript to …          every byte: is it the rare letter of some phrase?
    anchor                       v                      "javascript" is looked for where a v is, 1 byte in 100

Phrases come in groups, and what is counted is per group: places where one begins, and lines that have one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.columns import Bytes, Int, Offsets, frozen, frozen_text
from tokmill.kernels.raw import raw_kernel

NEWLINE = 10
# Letters of English text from the most frequent on; what is not here is rarer than any of them.
_FREQUENT = " etaoinsrhldcumfpgwybvkxjqz"


class PhraseTable(NamedTuple):
    """Phrases sorted by their anchor byte: those with anchor b are first[b]:first[b + 1]."""

    is_looked_at: NDArray[np.uint8]  # 256: the anchors in both cases, and the newline
    first: NDArray[np.int64]  # 257
    anchors: NDArray[np.int64]  # where in its phrase the anchor is
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
    entries = []
    for group, phrases in enumerate(groups):
        for phrase in phrases:
            rarest = max(range(len(phrase)), key=lambda k: (_rarity(phrase[k]), -k))
            entries.append((ord(phrase[rarest]), phrase.encode(), rarest, group))
    entries.sort()
    first = np.searchsorted([entry[0] for entry in entries], np.arange(257))
    sizes = [len(entry[1]) for entry in entries]
    is_looked_at = np.zeros(256, np.uint8)
    for anchor in {NEWLINE, *(entry[0] for entry in entries)}:
        is_looked_at[[anchor, ord(chr(anchor).upper())]] = 1
    return PhraseTable(
        is_looked_at,
        first.astype(np.int64),
        np.array([entry[2] for entry in entries], np.int64),
        np.array([entry[3] for entry in entries], np.int64),
        np.cumsum([0, *sizes], dtype=np.int64),
        np.frombuffer(b"".join(entry[1] for entry in entries) or b"\0", np.uint8),
        len(groups),
    )


def _rarity(letter: str) -> int:
    return _FREQUENT.find(letter) % (len(_FREQUENT) + 1)


def count_phrases(data: Bytes, offsets: Offsets, table: PhraseTable) -> PhraseMeasures:
    data, offsets, rows = frozen_text(data, offsets)
    found = PhraseMeasures(
        np.zeros((table.group_count, rows), np.int64), np.zeros((table.group_count, rows), np.int64)
    )
    _count_phrases(
        data,
        offsets,
        frozen(table.is_looked_at, np.uint8),
        frozen(table.first, np.int64),
        frozen(table.anchors, np.int64),
        frozen(table.groups, np.int64),
        frozen(table.offsets, np.int64),
        frozen(table.data, np.uint8),
        np.full(table.group_count, -1, np.int64),
        *found,
    )
    return found


@raw_kernel
def _count_phrases(
    data: Bytes,
    offsets: Offsets,
    is_looked_at: NDArray[np.uint8],
    first: NDArray[np.int64],
    anchors: NDArray[np.int64],
    groups: NDArray[np.int64],
    phrase_offsets: Offsets,
    phrases: Bytes,
    hit_lines: NDArray[np.int64],
    hits: NDArray[np.int64],
    lines: NDArray[np.int64],
) -> None:
    for row in range(offsets.size - 1):
        begin, end = offsets[row], offsets[row + 1]
        line: Int = begin  # where the line at hand begins: its name
        for at in range(begin, end):
            byte = data[at]
            if is_looked_at[byte] == 0:
                continue
            if byte == NEWLINE:
                line = at + 1
                continue
            if 65 <= byte <= 90:
                byte |= 32
            for entry in range(first[byte], first[byte + 1]):
                start = at - anchors[entry]
                size = phrase_offsets[entry + 1] - phrase_offsets[entry]
                if start < begin or start + size > end:
                    continue
                k: Int = 0
                while k < size:
                    other = data[start + k]
                    if 65 <= other <= 90:
                        other |= 32
                    if other != phrases[phrase_offsets[entry] + k]:
                        break
                    k += 1
                if k == size:
                    group = groups[entry]
                    hits[group, row] += 1
                    if hit_lines[group] != line:
                        hit_lines[group] = line
                        lines[group, row] += 1
        for group in range(hit_lines.size):
            hit_lines[group] = -1

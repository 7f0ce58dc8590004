"""Unicode forms over UTF-8 bytes, with tables of what each code point does (tokmill.codepoints makes them).

    suspects     which rows may not be in a normal form      most text needs one look and no more
    fold_rows    rows with every code point replaced by its own folding, for rows where that is exact

Normalizing a string is replacing its code points one by one, as long as none of the results composes with its
neighbour or has to change places with it. `classes` says so per code point: UNSAFE, or the canonical combining
class that must not decrease within a run of marks. A row that breaks the rule is named; the caller takes the
slow way with it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.columns import Bytes, Int, Offsets, frozen, frozen_text
from tokmill.kernels.jit import inlined, kernel

UNSAFE = np.uint8(255)
ITSELF = np.int32(-1)

U64 = np.uint64
HIGH_BITS = U64(0x8080808080808080)


class FoldTable(NamedTuple):
    """Per code point: its class, and where in `pool` its folding lies (a length byte, then UTF-8), or ITSELF."""

    classes: NDArray[np.uint8]
    starts: NDArray[np.int32]
    pool: NDArray[np.uint8]
    max_growth: int  # bytes out per byte in, at most


class Folded(NamedTuple):
    data: Bytes
    offsets: Offsets
    is_exact: NDArray[
        np.bool_
    ]  # where false, the row holds what came before the code point that broke the rule


def suspects(data: Bytes, offsets: Offsets, classes: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Rows that hold an UNSAFE code point or marks out of order."""
    data, offsets, rows = frozen_text(data, offsets)
    found = np.zeros(rows, np.bool_)
    _suspects(data, offsets, frozen(classes, np.uint8), found)
    return found


def fold_rows(data: Bytes, offsets: Offsets, table: FoldTable) -> Folded:
    data, offsets, rows = frozen_text(data, offsets)
    # Pages that are never written cost nothing; growth is 1.0 on almost any text.
    folded = np.empty((offsets[-1] - offsets[0]) * table.max_growth + 8, np.uint8)
    folded_offsets = np.zeros(rows + 1, np.int64)
    is_exact = np.ones(rows, np.bool_)
    used = _fold_rows(
        data,
        offsets,
        frozen(table.classes, np.uint8),
        frozen(table.starts, np.int32),
        frozen(table.pool, np.uint8),
        folded,
        folded_offsets,
        is_exact,
    )
    return Folded(folded[:used], folded_offsets, is_exact)


@kernel
def _suspects(data: Bytes, offsets: Offsets, classes: NDArray[np.uint8], found: NDArray[np.bool_]) -> None:
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        before = np.uint8(0)
        while at < end:
            if data[at] < 128:
                before = np.uint8(0)
                at += 1
                while at + 8 <= end and _is_ascii_word(data, at):
                    at += 8
                continue
            code, width = _decode(data, at)
            kind = classes[code]
            if kind == UNSAFE or (kind != 0 and kind < before):
                found[row] = True
                break
            before = kind
            at += width


@kernel
def _fold_rows(
    data: Bytes,
    offsets: Offsets,
    classes: NDArray[np.uint8],
    starts: NDArray[np.int32],
    pool: NDArray[np.uint8],
    folded: Bytes,
    folded_offsets: Offsets,
    is_exact: NDArray[np.bool_],
) -> Int:
    used: Int = 0
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        before = np.uint8(0)
        while at < end:
            byte = data[at]
            if byte < 128:
                folded[used] = byte
                used += 1
                at += 1
                before = np.uint8(0)
                while at + 8 <= end and _is_ascii_word(data, at):
                    for step in range(8):
                        folded[used + step] = data[at + step]
                    used += 8
                    at += 8
                continue
            code, width = _decode(data, at)
            kind = classes[code]
            if kind == UNSAFE or (kind != 0 and kind < before):
                is_exact[row] = False
                break
            before = kind
            start = starts[code]
            if start < 0:
                for step in range(width):
                    folded[used + step] = data[at + step]
                used += width
            else:
                length = np.int64(pool[start])
                for step in range(length):
                    folded[used + step] = pool[start + 1 + step]
                used += length
            at += width
        folded_offsets[row + 1] = used
    return used


@inlined
def _is_ascii_word(data: Bytes, at: Int) -> bool:
    i = U64(at)
    word = (
        U64(data[i])
        | U64(data[i + U64(1)]) << U64(8)
        | U64(data[i + U64(2)]) << U64(16)
        | U64(data[i + U64(3)]) << U64(24)
        | U64(data[i + U64(4)]) << U64(32)
        | U64(data[i + U64(5)]) << U64(40)
        | U64(data[i + U64(6)]) << U64(48)
        | U64(data[i + U64(7)]) << U64(56)
    )
    return bool((word & HIGH_BITS) == U64(0))


@inlined
def _decode(data: Bytes, at: Int) -> tuple[Int, Int]:
    """The code point of two to four bytes of valid UTF-8, and how many they are."""
    lead = np.int64(data[at])
    second = np.int64(data[at + 1]) & 0x3F
    if lead < 0xE0:
        return ((lead & 0x1F) << 6) | second, 2
    third = np.int64(data[at + 2]) & 0x3F
    if lead < 0xF0:
        return ((lead & 0x0F) << 12) | (second << 6) | third, 3
    fourth = np.int64(data[at + 3]) & 0x3F
    return ((lead & 0x07) << 18) | (second << 12) | (third << 6) | fourth, 4

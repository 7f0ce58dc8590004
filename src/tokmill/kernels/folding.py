"""Unicode forms over UTF-8 bytes, with tables of what each code point does (tokmill.kernels.wordclasses makes them).

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

from tokmill.kernels.jit import TEXT, Bytes, Int, Offsets, frozen, frozen_text, inlined, kernel
from tokmill.kernels.steps import HIGH_BITS, bytes_before, decode, load_word, store_word

UNSAFE = np.uint8(255)
ITSELF = np.int32(-1)

U64 = np.uint64


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


@kernel(lambda: suspects(*TEXT, np.zeros(1, np.uint8)))
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
            code, width = decode(data, at)
            kind = classes[U64(code)]
            if kind == UNSAFE or (kind != 0 and kind < before):
                found[row] = True
                break
            before = kind
            at += width


@kernel(
    lambda: fold_rows(
        *TEXT, FoldTable(np.zeros(1, np.uint8), np.zeros(1, np.int32), np.zeros(1, np.uint8), 1)
    )
)
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
            byte = data[U64(at)]
            if byte < 128:
                before = np.uint8(0)
                while at + 8 <= end:
                    word = load_word(data, at)
                    store_word(folded, used, word)  # what is beyond ASCII is written over
                    others = word & HIGH_BITS
                    if others != U64(0):
                        ascii_bytes = bytes_before(others)
                        used += ascii_bytes
                        at += ascii_bytes
                        break
                    used += 8
                    at += 8
                else:
                    while at < end and data[at] < 128:
                        folded[used] = data[at]
                        used += 1
                        at += 1
                continue
            code, width = decode(data, at)
            kind = classes[U64(code)]
            if kind == UNSAFE or (kind != 0 and kind < before):
                is_exact[row] = False
                break
            before = kind
            start = starts[U64(code)]
            if start < 0:
                for step in range(width):
                    folded[U64(used + step)] = data[U64(at + step)]
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
    return bool((load_word(data, at) & HIGH_BITS) == U64(0))

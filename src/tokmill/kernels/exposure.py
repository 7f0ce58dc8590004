"""How much of each document was seen, added up over its meetings with rows, in order of turns.

    table        turn row start end offset      of each meeting, as places.npy has them
    documents    group 16 bits │ whole passes 14 bits │ a token was seen │ the build has it

One number for a document, so that a turn, which may be any document's, costs one access to memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import Instruction, Int, frozen, raw_kernel

U32, U64 = np.uint32, np.uint64
prefetch = Instruction("prefetch")

MOST_PASSES = (1 << 14) - 1
_AHEAD = 24  # turns
BUILT, MET, PASSES_AT, GROUP_AT = 1, 2, 2, 16


def add_meetings(
    table: NDArray[np.uint32],
    first_turn: int,
    positions: NDArray[np.int64],
    times: NDArray[np.uint16],
    documents: NDArray[np.uint32],
    totals: NDArray[np.int64],
) -> None:
    """`positions` are of the documents of turns from `first_turn` on. `totals` of each group, [groups, 3]:
    tokens in rows, seen, seen once at least."""
    _add_meetings(
        frozen(table, np.uint32),
        first_turn,
        frozen(positions, np.int64),
        frozen(times, np.uint16),
        documents,
        totals.reshape(-1),
    )


def _nothing() -> None:
    one = np.zeros(1, np.int64)
    add_meetings(
        np.zeros((0, 5), np.uint32),
        0,
        one,
        np.zeros(1, np.uint16),
        np.zeros(1, np.uint32),
        np.zeros((1, 3), np.int64),
    )


@raw_kernel(_nothing)
def _add_meetings(
    table: NDArray[np.uint32],
    first_turn: int,
    positions: NDArray[np.int64],
    times: NDArray[np.uint16],
    documents: NDArray[np.uint32],
    totals: NDArray[np.int64],
) -> None:
    meetings, last = table.size // 5, positions.size - 1
    flat = table.reshape(-1)
    at = U64(0)
    stop = U64(5 * meetings)
    while at < stop:
        turn = flat[at]
        number = np.int64(turn) - first_turn
        position = U64(positions[U64(number)])
        # a document to come is on its way when its turn is there
        prefetch(documents, U64(positions[U64(number + _AHEAD if number + _AHEAD < last else last)]))
        tokens: Int = 0
        seen: Int = 0
        new: Int = 0
        least: Int = MOST_PASSES
        most: Int = 0
        while at < stop and flat[at] == turn:
            width = np.int64(flat[at + U64(3)]) - np.int64(flat[at + U64(2)])
            often = np.int64(times[U64(flat[at + U64(1)])])
            tokens += width
            seen += width * often
            new += width * (often > 0)
            least = min(least, often)
            most = max(most, often)
            at += U64(5)
        state = np.int64(documents[position])
        group = U64(3 * (state >> GROUP_AT))
        passes: Int = ((state >> PASSES_AT) & MOST_PASSES) + least
        if passes > MOST_PASSES:
            passes = MOST_PASSES
        met = MET if most > 0 else 0
        kept = state & ~np.int64(MOST_PASSES << PASSES_AT)
        documents[position] = U32(kept | passes << PASSES_AT | BUILT | met)
        totals[group] += tokens
        totals[group + U64(1)] += seen
        totals[group + U64(2)] += new


def count_documents(
    documents: NDArray[np.uint32], groups: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[groups, 3]: seen whole, partly, not; and how many were seen whole so many times."""
    counts, passes = np.zeros((groups, 3), np.int64), np.zeros(MOST_PASSES + 1, np.int64)
    _count_documents(frozen(documents, np.uint32), counts.reshape(-1), passes)
    return counts, passes


@raw_kernel(lambda: count_documents(np.zeros(1, np.uint32), 1))
def _count_documents(
    documents: NDArray[np.uint32], counts: NDArray[np.int64], passes: NDArray[np.int64]
) -> None:
    for document in documents:
        state = np.int64(document)
        if not state & BUILT:
            continue
        often = (state >> PASSES_AT) & MOST_PASSES
        which = 0 if often > 0 else 1 if state & MET else 2
        counts[U64(3 * (state >> GROUP_AT) + which)] += 1
        passes[U64(often)] += 1

"""Sequences of ids out of one flat array into another, each with one more id after it.

ids      int32   |a a a|b|c c|          rows 0 and 2, eos
into     uint16  |a a a eos|c c eos|    narrowed on the way: one copy, whatever the dtype
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.columns import frozen
from tokmill.kernels.raw import raw_kernel

Ids = NDArray[np.int32]
Places = NDArray[np.int64]


def end_sequences(ids: Ids, offsets: Places, rows: Places, eos_id: int, dtype: str) -> NDArray[np.integer]:
    """Sequence i of `rows` is ids[offsets[i]:offsets[i + 1]]; every id must fit the dtype."""
    ids, offsets, rows = frozen(ids, np.int32), frozen(offsets, np.int64), frozen(rows, np.int64)
    if not 0 <= offsets[0] <= offsets[-1] <= ids.size:
        raise ValueError(f"offsets {offsets[0]}..{offsets[-1]} lie outside the {ids.size} ids")
    if rows.size and not 0 <= rows.min() <= rows.max() < offsets.size - 1:
        raise ValueError(f"rows {rows.min()}..{rows.max()} of {offsets.size - 1}")
    tokens = int((offsets[rows + 1] - offsets[rows]).sum()) + rows.size
    into = np.empty(tokens, dtype)
    _end_sequences(ids, offsets, rows, into.dtype.type(eos_id), into)
    return into


@raw_kernel
def _end_sequences(
    ids: Ids, offsets: Places, rows: Places, eos_id: np.integer, into: NDArray[np.integer]
) -> None:
    place = np.uint64(
        0
    )  # unsigned: a signed index may count from the end, and that test costs the vector loop
    for number in range(rows.size):
        begin = np.uint64(offsets[rows[number]])
        count = np.uint64(offsets[rows[number] + 1]) - begin
        for at in range(count):
            into[place + at] = ids[begin + at]
        into[place + count] = eos_id
        place += count + np.uint64(1)

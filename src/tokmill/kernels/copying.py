"""Many pieces of one array to many places of another, in one call: what rows of tokens are gathered with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.columns import Bytes, frozen
from tokmill.kernels.raw import raw_kernel

Places = NDArray[np.int64]


def copy_pieces(data: Bytes, begins: Places, places: Places, counts: Places, into: Bytes) -> None:
    """into[place : place + count] = data[begin : begin + count] for every piece, all in bytes."""
    begins, places, counts = (frozen(column, np.int64) for column in (begins, places, counts))
    if begins.size:
        ends, stops = begins + counts, places + counts
        if begins.min() < 0 or ends.max() > data.size or places.min() < 0 or stops.max() > into.size:
            raise ValueError(
                f"pieces lie outside the {data.size} bytes they come from, or the {into.size} they go to"
            )
    _copy_pieces(frozen(data, np.uint8), begins, places, counts, into)


@raw_kernel
def _copy_pieces(data: Bytes, begins: Places, places: Places, counts: Places, into: Bytes) -> None:
    # unsigned: a signed index may be negative and count from the end, and the test for that keeps LLVM from
    # vectorizing the copy (0.7 GB/s instead of 6.0)
    for piece in range(begins.size):
        begin, place = np.uint64(begins[piece]), np.uint64(places[piece])
        for at in range(np.uint64(counts[piece])):
            into[place + at] = data[begin + at]

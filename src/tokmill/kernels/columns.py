"""One flavour of array for every kernel, so that each is compiled once.

    Arrow large_string        data     uint8[bytes]    h e l l o w o r l d
                              offsets  int64[n + 1]    0 5 5 10            row i = data[offsets[i]:offsets[i+1]]

numba compiles a new specialization (about a second) for each new combination of type, layout and
writability of the arguments. Arrow's buffers are read-only and contiguous, so read-only and contiguous is
what every kernel gets, whatever its caller had.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int64]
# What a kernel counts with: one type to numba, two to the type checker.
Int = int | np.int64


def frozen(values: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    """A read-only, contiguous, aligned view of `values`; a copy only where it was not contiguous."""
    if values.dtype != dtype:
        raise TypeError(f"a kernel wants {np.dtype(dtype)}, got {values.dtype}")
    view = np.require(values, requirements=("C", "A")).view()
    view.flags.writeable = False
    return view


def frozen_text(data: Bytes, offsets: Offsets) -> tuple[Bytes, Offsets, int]:
    """The two buffers of a text column, checked against each other, and its number of rows.

    Arrow lets an empty column have no offsets at all; it then gets the one offset it should have had.
    """
    if offsets.size == 0:
        offsets = np.zeros(1, np.int64)
    data, offsets = frozen(data, np.uint8), frozen(offsets, np.int64)
    if not 0 <= offsets[0] <= offsets[-1] <= data.size:
        raise ValueError(
            f"offsets {offsets[0]}..{offsets[-1]} lie outside the {data.size} bytes of their column"
        )
    return data, offsets, offsets.size - 1

"""Token ids as they are stored: little-endian, in the dtype asked for, and never wrapped."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import VocabTooLarge


def smallest_dtype(vocab_size: int) -> str:
    return "uint16" if vocab_size <= 1 << 16 else "int32"


def cast_ids(ids: NDArray[np.integer], dtype: str, *, where: str) -> NDArray[np.integer]:
    """`ids`, contiguous and as `dtype`; an id that does not fit is an error."""
    assert np.issubdtype(ids.dtype, np.integer), f"{where}: ids are integers, not {ids.dtype}"
    if ids.size and not np.can_cast(ids.dtype, dtype):
        limits = np.iinfo(dtype)
        for id in (int(ids.min()), int(ids.max())):
            if not limits.min <= id <= limits.max:
                raise VocabTooLarge(
                    f"id {id:,} does not fit {dtype}",
                    where=where,
                    next="set `dtype: int32`"
                    if id > 0
                    else "make the tokens again: no tokenizer gives such an id",
                )
    return np.ascontiguousarray(ids, dtype=np.dtype(dtype).newbyteorder("<"))

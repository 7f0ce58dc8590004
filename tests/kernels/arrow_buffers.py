"""Text columns as the kernels get them: the buffers of an Arrow array, sliced out of a larger one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray

QUICK = settings(deadline=None, max_examples=150)

# Every character str.split() splits on, neighbours that share its lead bytes, case, line ends, and the rest.
WHITESPACE = [chr(c) for c in range(0x110000) if chr(c).isspace()]
NEAR_WHITESPACE = list(
    "\u0084\u0086\u009f\u00a1\u1681\u180e\u200b\u2027\u202a\u2030\u205e\u2060\u3001\u0380\uff20"
)
CHARACTERS = st.one_of(
    st.sampled_from(list("abcAZ@[`{ \t\n\r\0")),
    st.sampled_from(WHITESPACE),
    st.sampled_from(NEAR_WHITESPACE),
    st.characters(exclude_categories=["Cs"]),
)
# Long enough for several 8-byte words; words, runs of spaces and long stretches without either.
TEXTS = st.one_of(
    st.text(CHARACTERS, max_size=40),
    st.lists(
        st.one_of(
            st.text("abcXYZ", max_size=12),
            st.sampled_from(WHITESPACE).map(lambda c: c * 7),
            st.sampled_from(["\r\n", "\r\0\n", "É", "日本語", "😀", "\u3000", " "]),
        ),
        max_size=30,
    ).map("".join),
)


def buffers(array: pa.LargeStringArray) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.bool_]]:
    """(data, offsets, is_valid) of this slice, without a copy of the text."""
    _, offsets, data = array.buffers()
    return (
        np.frombuffer(data if data is not None else b"", np.uint8),
        np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1],
        np.asarray(array.is_valid()),
    )


def column(texts: list[str | None], margin: int = 0) -> pa.LargeStringArray:
    """`texts` as a slice with `margin` other rows before and after."""
    around = ["Outside 外 \r"] * margin
    return pa.array([*around, *texts, *around], pa.large_string()).slice(margin, len(texts))


@st.composite
def columns(draw: st.DrawFn, texts: st.SearchStrategy[str | None] = TEXTS) -> pa.LargeStringArray:
    return column(draw(st.lists(texts, max_size=6)), draw(st.integers(0, 2)))

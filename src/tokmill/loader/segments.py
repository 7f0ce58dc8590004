"""Documents in padded rows: masks, positions and bounds for attention, all from where segments begin.

    tokens        a b . | c . | = =        . ends a document, = is padding
    begins        1 0 0   1 0   1 0        (B, T) bool: the padding of a row is a segment of its own
    number        0 0 0   1 1   2 2        of the segment, through the whole batch
    position_ids  0 1 2   0 1   0 1
    cu_seqlens    0       3     5     7    of the flat batch

    a mask says with True what may be attended to:
    "tokens"      (B, T)        what is not padding
    "keys"        (B, 1, T)     the same, to be broadcast over queries
    "causal"      (B, T, T)     query i, key j: j <= i, and no padding
    "documents"   (B, T, T)     … and both in one document

A query that is padding sees itself alone, so that a softmax over its row is a number; nobody sees it.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Mask = Literal["tokens", "keys", "causal", "documents", "none"]
MASKS: tuple[Mask, ...] = ("tokens", "keys", "causal", "documents", "none")


def real_columns(lengths: NDArray[np.int64], width: int) -> NDArray[np.bool_]:
    """(B, T): what is not padding."""
    return np.arange(width) < lengths[:, None]


def begins_after_eos(
    tokens: NDArray[np.integer], lengths: NDArray[np.int64], eos_id: int
) -> NDArray[np.bool_]:
    """A segment begins with the row, after every EOS, and with the padding."""
    begins = np.zeros(tokens.shape, np.bool_)
    begins[:, 1:] = tokens[:, :-1] == eos_id
    return _with_padding(begins, lengths)


def begins_at(starts: list[NDArray[np.integer]], lengths: NDArray[np.int64], width: int) -> NDArray[np.bool_]:
    """A segment begins in the columns that are given row by row, and with the padding."""
    begins = np.zeros((len(lengths), width), np.bool_)
    rows = np.repeat(np.arange(len(starts)), [len(columns) for columns in starts])
    columns = np.concatenate([np.empty(0, np.int64), *starts]).astype(np.int64)
    within = columns < lengths[rows]
    begins[rows[within], columns[within]] = True
    return _with_padding(begins, lengths)


def _with_padding(begins: NDArray[np.bool_], lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
    width = begins.shape[1]
    if width:
        begins[np.arange(width) > lengths[:, None]] = False
        short = np.flatnonzero(lengths < width)
        begins[short, lengths[short]] = True
        begins[:, 0] = True
    return begins


def position_ids(begins: NDArray[np.bool_]) -> NDArray[np.int32]:
    """(B, T): columns since the segment began."""
    columns = np.arange(begins.shape[1], dtype=np.int32)
    first = np.maximum.accumulate(np.where(begins, columns, 0), axis=1)
    return columns - first


def cu_seqlens(begins: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Bounds of all segments of the batch laid end to end, from 0 to B * T."""
    assert begins.size < 1 << 31, f"{begins.size} columns in one batch do not fit int32"
    return np.append(np.flatnonzero(begins.reshape(-1)), begins.size).astype(np.int32)


def attention_mask(
    kind: Mask, lengths: NDArray[np.int64], width: int, begins: NDArray[np.bool_] | None, is_full: bool
) -> NDArray[np.bool_]:
    real = np.ones((len(lengths), width), np.bool_) if is_full else real_columns(lengths, width)
    if kind == "tokens":
        return real
    if kind == "keys":
        return real[:, None, :]
    columns = np.arange(width)
    allowed = (columns <= columns[:, None]) & real[:, None, :]
    if kind == "documents":
        assert begins is not None, "no segments"
        number = np.cumsum(begins, axis=1, dtype=np.int32)
        allowed &= number[:, :, None] == number[:, None, :]
    if not is_full:
        allowed &= real[:, :, None]
        rows, places = np.nonzero(~real)
        allowed[rows, places, places] = True
    return allowed


def shifted(
    tokens: NDArray[np.integer],
    lengths: NDArray[np.int64],
    begins: NDArray[np.bool_] | None,
    ignore_index: int,
    is_full: bool,
) -> NDArray[np.integer]:
    """The next token of each column; ignored where there is none, and with `begins` where it is another document's."""
    targets = np.empty(tokens.shape, tokens.dtype)
    width = tokens.shape[1]
    if not width:
        return targets
    targets[:, :-1] = tokens[:, 1:]
    targets[:, -1] = ignore_index
    if not is_full:
        targets[np.arange(width) >= lengths[:, None] - 1] = ignore_index
    if begins is not None:
        targets[:, :-1][begins[:, 1:]] = ignore_index
    return targets

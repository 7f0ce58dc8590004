"""One document per row.

documents   |--0--|---------------1---------------|-2-|
pad         |--0--|=====|   |----1----|!|   |-2-|=======|       fixed length; 1 is truncated, once: ! is its last token
indexed     |--0--|   |---------------1---------------|   |-2-|      no packing: sequences as they are
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import InputError
from tokmill.kernels.packing import Pieces
from tokmill.pack.plan import PieceList, Plan, check_row_length, checked_lengths

_MAX_SEQUENCE = (1 << 31) - 1


def plan_pad(lengths: NDArray[np.integer], seq_len: int) -> Plan:
    """Every example has a row, but for one without any token: a row of padding alone teaches nothing."""
    check_row_length(seq_len)
    lengths = checked_lengths(lengths)
    examples = np.flatnonzero(lengths)
    whole = lengths[examples]
    kept, tokens_in = int(np.minimum(whole, seq_len).sum()), int(whole.sum())
    # what is truncated keeps its last token, which ends it: two pieces
    is_cut = whole > seq_len
    counts = is_cut.astype(np.int8) + np.int8(1)
    begins = np.zeros(len(examples) + 1, np.int64)
    np.cumsum(counts, out=begins[1:])
    ends = begins[1:][is_cut] - 1
    width = np.repeat(np.minimum(whole, seq_len).astype(np.int32), counts)
    width[ends - 1], width[ends] = seq_len - 1, 1
    offset = np.zeros(len(width), np.int64)
    offset[ends] = whole[is_cut] - 1
    pieces = Pieces(begins, np.repeat(examples.astype(np.int32), counts), offset, width)
    return Plan(
        "pad",
        seq_len,
        len(examples),
        len(lengths),
        tokens_in,
        kept,
        PieceList(pieces),
        padding=len(examples) * seq_len - kept,
        truncated=tokens_in - kept,
    )


def plan_indexed(lengths: NDArray[np.integer]) -> Plan:
    """Every document is a row of its own length, the empty ones too: row and document have one number."""
    lengths = checked_lengths(lengths)
    if lengths.size and int(lengths.max()) > _MAX_SEQUENCE:
        raise InputError(
            f"document {int(lengths.argmax())} has {int(lengths.max()):,} tokens, and a sequence ends at {_MAX_SEQUENCE:,}",
            where="pack",
            next="split the document, or set a maximum document size in filters",
        )
    tokens = int(lengths.sum())
    rows = _one_each(np.arange(len(lengths)), lengths)
    return Plan("indexed", 0, len(lengths), len(lengths), tokens, tokens, rows)


def _one_each(documents: NDArray[np.int64], width: NDArray[np.int64]) -> PieceList:
    """Where there is nothing, there is no piece."""
    is_piece = width > 0
    begins = np.concatenate((np.zeros(1, np.int64), np.cumsum(is_piece, dtype=np.int64)))
    documents, width = documents[is_piece], width[is_piece]
    pieces = Pieces(
        begins, documents.astype(np.int32), np.zeros(len(documents), np.int64), width.astype(np.int32)
    )
    return PieceList(pieces)

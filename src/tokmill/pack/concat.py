"""Concatenate and cut: documents one after another, cut into rows of equal length.

documents   |----0----|--1--|-------------2-------------|-3-|
rows        |=====0=====|=====1=====|=====2=====|=====3=====|
                                                        ^^^^ tail: dropped, or padded to a full row

No padding but in the last row, and a document is cut wherever a row ends. Spans are found when they are asked for,
so such a plan takes 8 bytes per document.

With `groups` (domains, say) each group is a stream of its own, with a tail of its own; rows come in the order of their
first token, so the streams are interleaved as their documents were.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import RecipeError
from tokmill.formats.row_index import RowSpans
from tokmill.kernels.packing import Pieces
from tokmill.pack.plan import PieceList, Plan, check_row_length, checked_groups

Tail = Literal["drop", "pad"]


def plan_concat(
    lengths: NDArray[np.integer], seq_len: int, tail: Tail, groups: NDArray[np.integer] | None = None
) -> Plan:
    """Rows of `seq_len` tokens from documents of these `lengths` (each with its end-of-document token)."""
    if groups is not None:
        return _apart(lengths, seq_len, tail, checked_groups(groups, len(lengths)))
    check_row_length(seq_len)
    if tail not in ("drop", "pad"):
        raise RecipeError(f"unknown tail {tail!r}", where="pack.tail", next="set `tail: drop` or `tail: pad`")
    ends = np.cumsum(lengths, dtype=np.int64)
    assert ends.size == 0 or int(np.min(lengths)) >= 0, "a document has a negative length"
    tokens_in = int(ends[-1]) if ends.size else 0
    n_rows = tokens_in // seq_len if tail == "drop" else -(-tokens_in // seq_len)
    tokens_kept = min(n_rows * seq_len, tokens_in)
    return Plan(
        "concat",
        seq_len,
        n_rows,
        len(lengths),
        tokens_in,
        tokens_kept,
        Stream(ends, seq_len, tokens_kept),
        padding=n_rows * seq_len - tokens_kept,
        tail_dropped=tokens_in - tokens_kept,
    )


def _apart(lengths: NDArray[np.integer], seq_len: int, tail: Tail, groups: NDArray[np.int32]) -> Plan:
    """The rows of every group's own plan, merged."""
    found = []
    for group in np.unique(groups).tolist():
        members = np.flatnonzero(groups == group)
        plan = plan_concat(lengths[members], seq_len, tail)
        spans = plan.spans()
        found.append((plan, spans._replace(document=members[spans.document])))
    first_rows = np.cumsum([0, *(plan.n_rows for plan, _ in found)])
    columns = [
        np.concatenate([spans[at] for _, spans in found] or [np.empty(0, np.int64)]) for at in range(5)
    ]
    whole = RowSpans(*columns)
    row = np.concatenate(
        [spans.row + base for (_, spans), base in zip(found, first_rows, strict=False)] or [columns[0]]
    )
    begins = np.flatnonzero(np.diff(row, prepend=-1))
    counts = np.diff(begins, append=len(row))
    turn = np.lexsort((whole.offset[begins], whole.document[begins]))
    row_begins = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts[turn])))
    chosen = np.arange(len(row)) - np.repeat(row_begins[:-1] - begins[turn], counts[turn])
    pieces = Pieces(
        row_begins,
        whole.document[chosen].astype(np.int32),
        whole.offset[chosen],
        (whole.end - whole.start)[chosen].astype(np.int32),
    )
    return Plan(
        "concat",
        seq_len,
        int(first_rows[-1]),
        len(lengths),
        sum(plan.tokens_in for plan, _ in found),
        sum(plan.tokens_kept for plan, _ in found),
        PieceList(pieces),
        padding=sum(plan.padding for plan, _ in found),
        tail_dropped=sum(plan.tail_dropped for plan, _ in found),
    )


class Stream:
    """Rows as cuts of one stream of `total` tokens, in which documents end at `ends`."""

    def __init__(self, ends: NDArray[np.int64], seq_len: int, total: int) -> None:
        self._ends, self._seq_len, self._total = ends, seq_len, total

    def spans(self, first_row: int, stop_row: int) -> RowSpans:
        begin = first_row * self._seq_len
        stop = min(stop_row * self._seq_len, self._total)
        if begin >= stop:
            return RowSpans(*(np.empty(0, dtype=np.int64) for _ in range(5)))
        # a span begins where a row begins and where a document ends; both lists are sorted already
        inside = self._ends[
            np.searchsorted(self._ends, begin, "right") : np.searchsorted(self._ends, stop, "left")
        ]
        row_begins = np.arange(begin, stop, self._seq_len, dtype=np.int64)
        # not np.unique: it hashes (NumPy 2.4), 1.3 s for 1.5 million cuts; merging two sorted runs takes 0.01 s
        cuts = np.sort(np.concatenate((row_begins, inside)), kind="stable")
        begins = cuts[np.diff(cuts, prepend=-1) > 0]
        widths = np.diff(begins, append=stop)
        # "right" skips documents of length zero: they end where their successor begins
        document = np.searchsorted(self._ends, begins, "right").astype(np.int64)
        document_begins = np.where(document > 0, self._ends[np.maximum(document, 1) - 1], 0)
        row = begins // self._seq_len
        start = begins - row * self._seq_len
        return RowSpans(row, document, start, start + widths, begins - document_begins)

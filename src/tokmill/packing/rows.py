"""From a plan to rows: ids, where documents begin in a row, and what each layout costs before one is chosen.

    plan.spans(first, stop)   row  document  start:end  offset
    Store                          document -> (array, begin)
    gather_rows               ids of rows first to stop, padding where no document is: one compiled copy per batch of
                              rows and file, straight out of the maps

    padding           columns that hold nothing            share of all columns
    truncated         tokens that no row holds             share of the tokens
    tail_dropped      likewise, after the last whole row
    fragmented        documents on more than one row       share of the documents; of those, how many would fit one
    cross_document    tokens that stand in their row after another document: under plain causal attention they see it
                                                           share of the tokens in rows

Batches do not know of each other: they can be made in any order, by threads (the copy is free of the GIL) or by
processes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.formats.ids import cast_ids
from tokmill.formats.index import RowSpans
from tokmill.kernels.packing import copy_pieces
from tokmill.packing.plan import (
    LAYOUTS,
    Layout,
    Plan,
    Tail,
    plan_best_fit,
    plan_concat,
    plan_document,
    plan_indexed,
    plan_pad,
)

# --- ids of rows ---

# Tokens of a batch: 16 MB of int32, of which the second-level cache sees little and the disk enough.
BATCH_TOKENS = 4 << 20


class Store(NamedTuple):
    """Where the ids of the planned documents lie: in `arrays[array[d]]`, from `begin[d]` on. One dtype for all."""

    arrays: Sequence[NDArray[np.integer]]
    begin: NDArray[np.int64]
    array: NDArray[np.integer] | None = None  # None: all in the first

    @property
    def dtype(self) -> np.dtype[np.integer]:
        return self.arrays[0].dtype


def gather_rows(
    plan: Plan,
    store: Store,
    first_row: int,
    stop_row: int,
    *,
    pad_id: int,
    into: NDArray[np.integer] | None = None,
) -> NDArray[np.integer]:
    """Rows first_row to stop_row as (rows, seq_len), in the dtype of the store.

    A loop that is done with a batch when it asks for the next lends its array as `into`: the pages of a fresh one
    cost more than the copy (1 GB/s instead of 6).
    """
    assert plan.seq_len, f"{plan.layout}: rows have no common length; use gather_sequences"
    assert 0 <= first_row <= stop_row <= plan.n_rows, f"rows {first_row} to {stop_row} of {plan.n_rows}"
    count = stop_row - first_row
    rows = np.empty((count, plan.seq_len), store.dtype) if into is None else into[:count]
    assert rows.shape == (count, plan.seq_len), f"`into` is {rows.shape}, not {count} rows of {plan.seq_len}"
    if plan.padding:
        rows[...] = cast_ids(np.array([pad_id]), store.dtype.name, where="pad id")
    spans = plan.spans(first_row, stop_row)
    _copy(spans, (spans.row - first_row) * plan.seq_len + spans.start, store, rows)
    return rows


def gather_sequences(plan: Plan, store: Store, first_row: int, stop_row: int) -> NDArray[np.integer]:
    """What rows first_row to stop_row hold, one after the other, without padding."""
    spans = plan.spans(first_row, stop_row)
    widths = spans.end - spans.start
    ends = np.cumsum(widths)
    ids = np.empty(int(ends[-1]) if ends.size else 0, store.dtype)
    _copy(spans, ends - widths, store, ids)
    return ids


def row_batches(plan: Plan, batch_tokens: int = BATCH_TOKENS) -> Iterator[tuple[int, int]]:
    """(first_row, stop_row) of batches of about so many tokens, in order."""
    average = plan.seq_len or max(plan.tokens_kept // max(plan.n_rows, 1), 1)
    step = max(batch_tokens // average, 1)
    for first in range(0, plan.n_rows, step):
        yield first, min(first + step, plan.n_rows)


def _copy(spans: RowSpans, places: NDArray[np.int64], store: Store, into: NDArray[np.integer]) -> None:
    begins = store.begin[spans.document] + spans.offset
    widths = spans.end - spans.start
    if store.array is None:
        _copy_from(store.arrays[0], begins, places, widths, into)
        return
    array = store.array[spans.document].astype(np.int64)
    by_array = np.argsort(array, kind="stable")
    bounds = np.flatnonzero(np.diff(array[by_array], prepend=-1, append=-1))
    for first, stop in itertools.pairwise(bounds.tolist()):
        mine = by_array[first:stop]
        _copy_from(store.arrays[int(array[mine[0]])], begins[mine], places[mine], widths[mine], into)


def _copy_from(
    ids: NDArray[np.integer],
    begins: NDArray[np.int64],
    places: NDArray[np.int64],
    widths: NDArray[np.int64],
    into: NDArray[np.integer],
) -> None:
    assert ids.dtype == into.dtype, f"ids of {ids.dtype} among ids of {into.dtype}"
    size = into.dtype.itemsize
    # as bytes, so that one compiled kernel serves every dtype
    data, out = np.asarray(ids).view(np.uint8), into.reshape(-1).view(np.uint8)
    copy_pieces(data, begins * size, places * size, widths * size, out)


# Spans are looked at in batches of this many tokens: some 100 MB for documents of 30 tokens.
_BATCH_TOKENS = 64 << 20


@dataclass(frozen=True)
class Cost:
    layout: Layout
    rows: int
    documents: int
    tokens_in: int
    tokens_kept: int
    padding: int
    truncated: int
    tail_dropped: int
    truncated_documents: int
    fragmented: int
    fragmented_short: int  # of at most seq_len tokens: cut without need
    cross_document: int

    @property
    def padding_share(self) -> float:
        return _share(self.padding, self.tokens_kept + self.padding)

    @property
    def truncated_share(self) -> float:
        return _share(self.truncated + self.tail_dropped, self.tokens_in)

    @property
    def fragmented_share(self) -> float:
        return _share(self.fragmented, self.documents)

    @property
    def cross_document_share(self) -> float:
        return _share(self.cross_document, self.tokens_kept)


def compare_strategies(
    lengths: NDArray[np.integer],
    seq_len: int,
    groups: NDArray[np.integer] | None = None,
    tail: Tail = "drop",
) -> list[Cost]:
    """In the order of LAYOUTS. One plan at a time is in memory. `concat` is one stream, whatever the groups."""
    return [
        cost_of(plan_layout(layout, lengths, seq_len, None if layout == "concat" else groups, tail), lengths)
        for layout in LAYOUTS
    ]


def plan_layout(
    layout: Layout,
    lengths: NDArray[np.integer],
    seq_len: int,
    groups: NDArray[np.integer] | None = None,
    tail: Tail = "drop",
) -> Plan:
    """The plan of a layout by its name. No row holds documents of two `groups`; `tail` is of concat."""
    match layout:
        case "concat":
            return plan_concat(lengths, seq_len, tail, groups)
        case "document":
            return plan_document(lengths, seq_len, groups)
        case "best_fit":
            return plan_best_fit(lengths, seq_len, groups)
        case "pad":
            return plan_pad(lengths, seq_len)
        case "indexed":
            return plan_indexed(lengths)


def cost_of(plan: Plan, lengths: NDArray[np.integer]) -> Cost:
    is_cut = np.zeros(plan.documents, np.bool_)
    crossing = 0
    for first, stop in row_batches(plan, _BATCH_TOKENS):
        spans = plan.spans(first, stop)
        widths = spans.end - spans.start
        if plan.layout != "pad":  # there, a second piece is the end of a truncated document
            crossing += int(widths[spans.start > 0].sum())
            is_cut[spans.document[spans.offset > 0]] = True
    lengths = np.asarray(lengths)
    return Cost(
        plan.layout,
        plan.n_rows,
        plan.documents,
        plan.tokens_in,
        plan.tokens_kept,
        plan.padding,
        plan.truncated,
        plan.tail_dropped,
        int((lengths > plan.seq_len).sum()) if plan.truncated else 0,
        int(is_cut.sum()),
        int((is_cut & (lengths <= plan.seq_len)).sum()),
        crossing,
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0

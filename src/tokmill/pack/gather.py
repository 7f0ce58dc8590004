"""Rows of ids from a plan: one compiled copy per batch of rows and file, straight out of the maps.

    plan.spans(first, stop)   row  document  start:end  offset
    Store                          document -> (array, begin)
    gather_rows               ids of rows first to stop, padding where no document is

Batches do not know of each other: they can be made in any order, by threads (the copy is free of the GIL) or
by processes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.formats.ids import cast_ids
from tokmill.formats.row_index import RowSpans
from tokmill.kernels.copying import copy_pieces
from tokmill.pack.plan import Plan

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


def flat_store(ids: NDArray[np.integer], lengths: NDArray[np.integer]) -> Store:
    """Documents of these `lengths`, one after the other in one array."""
    ends = np.cumsum(lengths, dtype=np.int64)
    assert len(ids) == (int(ends[-1]) if ends.size else 0), "lengths do not add up to the ids"
    return Store([ids], ends - lengths)


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

"""Where documents begin in rows: what attention within documents, and positions that start again, are made from.

    row               |--0--|-2-|==|        documents 0 and 2, padding
    document_starts   0     6                columns
    cu_seqlens        0     6   10  13       of the flat batch: bounds of its segments, padding is one
    positions         012345 0123 012        columns since the segment began

A row that goes on with a document begins a segment: what stands in the row before it cannot be attended to.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.formats.row_index import RowSpans
from tokmill.pack.plan import Plan


class RowStarts(NamedTuple):
    """Row r of the range has columns[row_begins[r] : row_begins[r + 1]]; offsets are 0 where a document begins."""

    row_begins: NDArray[np.int64]
    columns: NDArray[np.int64]
    offsets: NDArray[np.int64]


def document_starts(plan: Plan, first_row: int = 0, stop_row: int | None = None) -> RowStarts:
    """The columns in which a document begins, or goes on from an earlier row."""
    stop_row = plan.n_rows if stop_row is None else stop_row
    spans = _joined(plan.spans(first_row, stop_row))
    row_begins = np.searchsorted(spans.row, np.arange(first_row, stop_row + 1))
    return RowStarts(row_begins.astype(np.int64), spans.start, spans.offset)


def cu_seqlens(plan: Plan, first_row: int, stop_row: int) -> NDArray[np.int32]:
    """Bounds of all segments of a batch of rows laid end to end, from 0 to its number of columns."""
    bounds = _segment_begins(plan, first_row, stop_row)
    total = (stop_row - first_row) * plan.seq_len
    assert total < 1 << 31, f"{total} columns in one batch do not fit int32"
    return np.append(bounds, total).astype(np.int32)


def positions(plan: Plan, first_row: int, stop_row: int) -> NDArray[np.int32]:
    """(rows, seq_len): columns since the document, or the padding, began in this row."""
    bounds = _segment_begins(plan, first_row, stop_row)
    shape = (stop_row - first_row, plan.seq_len)
    total = shape[0] * shape[1]
    since = np.arange(total) - np.repeat(bounds, np.diff(bounds, append=total))
    return since.astype(np.int32).reshape(shape)


def _segment_begins(plan: Plan, first_row: int, stop_row: int) -> NDArray[np.int64]:
    assert plan.seq_len, f"{plan.layout}: rows have no common length"
    assert 0 <= first_row <= stop_row <= plan.n_rows, f"rows {first_row} to {stop_row} of {plan.n_rows}"
    spans = _joined(plan.spans(first_row, stop_row))
    place = (spans.row - first_row) * plan.seq_len
    is_last = np.diff(spans.row, append=-1) != 0
    padding = (place + spans.end)[is_last & (spans.end < plan.seq_len)]
    return np.sort(np.concatenate((place + spans.start, padding)), kind="stable")


def _joined(spans: RowSpans) -> RowSpans:
    """Pieces of one document that follow each other in a row (a truncated one and its end) are one segment."""
    is_first = (np.diff(spans.row, prepend=-1) != 0) | (np.diff(spans.document, prepend=-1) != 0)
    if is_first.all():
        return spans
    is_last = np.append(is_first[1:], True)
    firsts = RowSpans(*(column[is_first] for column in spans))
    return firsts._replace(end=spans.end[is_last])

"""A plan: which tokens of which document go into which columns of which row. No token is touched.

    span   row  document  start:end (columns of the row)  offset (first token, within the document)

    tokens_in = tokens_kept + tail_dropped + truncated + left_out
    n_rows * seq_len = tokens_kept + padding

Rows can be gathered in any order and in parallel, and every token of every row has an origin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import InputError, RecipeError
from tokmill.formats.row_index import RowSpans
from tokmill.kernels.packing import Pieces

Layout = Literal["concat", "document", "best_fit", "pad", "indexed"]
LAYOUTS: tuple[Layout, ...] = ("concat", "document", "best_fit", "pad", "indexed")

# Pieces number their documents in 32 bits: half the memory of a plan of 20 million.
_MAX_DOCUMENTS = (1 << 31) - 1


class RowList(Protocol):
    def spans(self, first_row: int, stop_row: int) -> RowSpans: ...


@dataclass(frozen=True, eq=False)
class Plan:
    """Where each document's tokens go, in `n_rows` rows of `seq_len` columns."""

    layout: Layout
    seq_len: int  # 0: each row is as long as its document
    n_rows: int
    documents: int
    tokens_in: int
    tokens_kept: int
    rows: RowList
    padding: int = 0  # columns that no document covers
    tail_dropped: int = 0  # tokens after the last whole row
    truncated: int = 0  # tokens of documents beyond the end of their row
    left_out: int = 0  # tokens of rows that were planned and not taken

    def __post_init__(self) -> None:
        lost = self.tail_dropped + self.truncated + self.left_out
        assert self.tokens_in == self.tokens_kept + lost, f"{self.layout}: tokens do not add up"
        columns = self.n_rows * self.seq_len if self.seq_len else self.tokens_kept
        assert columns == self.tokens_kept + self.padding, f"{self.layout}: columns do not add up"

    @property
    def tokens_dropped(self) -> int:
        return self.tail_dropped + self.truncated + self.left_out

    def spans(self, first_row: int = 0, stop_row: int | None = None) -> RowSpans:
        """Every meeting of a row and a document, in order; of rows first_row to stop_row only, if given."""
        return self.rows.spans(first_row, self.n_rows if stop_row is None else stop_row)


class PieceList:
    """Rows as lists of pieces: 16 bytes per piece and 8 per row."""

    def __init__(self, pieces: Pieces) -> None:
        self.pieces = pieces

    def spans(self, first_row: int, stop_row: int) -> RowSpans:
        begins = self.pieces.row_begins[first_row : max(stop_row, first_row) + 1]
        of_rows = slice(int(begins[0]), int(begins[-1]))
        counts = np.diff(begins)
        row = np.repeat(np.arange(first_row, first_row + counts.size, dtype=np.int64), counts)
        width = self.pieces.width[of_rows].astype(np.int64)
        ends = np.cumsum(width)
        # each row counts its columns from its own first piece
        before = np.repeat((ends - width)[begins[:-1][counts > 0] - begins[0]], counts[counts > 0])
        return RowSpans(
            row,
            self.pieces.document[of_rows].astype(np.int64),
            ends - width - before,
            ends - before,
            self.pieces.offset[of_rows],
        )


def take_rows(plan: Plan, rows: NDArray[np.int64]) -> Plan:
    """Only these rows, in this order. What the others hold is `left_out`, and so is all of a document that they had
    truncated: no row has any of it."""
    listed = pieces_of(plan)
    first = listed.row_begins[rows]
    counts = listed.row_begins[rows + 1] - first
    begins = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    chosen = np.arange(begins[-1]) - np.repeat(begins[:-1] - first, counts)
    width = listed.width[chosen]
    pieces = Pieces(begins, listed.document[chosen], listed.offset[chosen], width)
    kept = int(width.sum(dtype=np.int64))
    truncated = _gaps(pieces) if plan.truncated else 0
    return Plan(
        plan.layout,
        plan.seq_len,
        len(rows),
        plan.documents,
        plan.tokens_in,
        kept,
        PieceList(pieces),
        padding=len(rows) * plan.seq_len - kept if plan.seq_len else 0,
        tail_dropped=plan.tail_dropped,
        truncated=truncated,
        left_out=plan.left_out + plan.tokens_kept + plan.truncated - kept - truncated,
    )


def _gaps(pieces: Pieces) -> int:
    """Tokens between two pieces of one document in one row."""
    begins = pieces.row_begins[(pieces.row_begins > 0) & (pieces.row_begins < len(pieces.document))]
    is_gap = pieces.document[1:] == pieces.document[:-1]
    is_gap[begins - 1] = False  # another row begins there
    between = pieces.offset[1:] - pieces.offset[:-1] - pieces.width[:-1]
    return int(between[is_gap].sum())


def pieces_of(plan: Plan) -> Pieces:
    """The whole plan, listed."""
    if isinstance(plan.rows, PieceList):
        return plan.rows.pieces
    spans = plan.spans()
    begins = np.searchsorted(spans.row, np.arange(plan.n_rows + 1)).astype(np.int64)
    width = (spans.end - spans.start).astype(np.int32)
    return Pieces(begins, spans.document.astype(np.int32), spans.offset, width)


def checked_lengths(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    wide = np.ascontiguousarray(lengths, dtype=np.int64)
    assert wide.size == 0 or int(wide.min()) >= 0, "a document has a negative length"
    if wide.size > _MAX_DOCUMENTS:
        raise InputError(
            f"{wide.size:,} documents in one plan, and {_MAX_DOCUMENTS:,} is the end",
            where="pack",
            next="set a token budget, or use the layout `concat`, which has no such end",
        )
    return wide


def checked_groups(groups: NDArray[np.integer] | None, documents: int) -> NDArray[np.int32]:
    """One number per document, or nothing at all: rows hold documents of one group."""
    if groups is None:
        return np.empty(0, np.int32)
    assert groups.shape == (documents,), f"{documents} documents, but groups {groups.shape}"
    assert documents == 0 or int(groups.min()) >= 0, "a group has a negative number"
    return np.ascontiguousarray(groups, dtype=np.int32)


def check_row_length(seq_len: int) -> None:
    if seq_len < 2:
        raise RecipeError(
            f"rows of {seq_len} tokens cannot be trained on: the last token of a row has nothing to predict",
            where="pack.length",
            next="set length to 2 or more (2048 is common)",
        )
    if seq_len >= 1 << 31:
        raise RecipeError(
            f"rows of {seq_len:,} tokens are too long: a row ends at 2,147,483,647",
            where="pack.length",
            next="set a smaller length, or the layout `indexed`",
        )

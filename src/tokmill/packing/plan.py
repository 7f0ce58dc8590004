"""A plan: which tokens of which document go into which columns of which row; and the rows, gathered by it.

    span   row  document  start:end (columns of the row)  offset (first token, within the document)

    tokens_in = tokens_kept + tail_dropped + truncated + left_out
    n_rows * seq_len = tokens_kept + padding

    documents   |----0----|--1--|-------------2-------------|-3-|
    concat      |=====0=====|=====1=====|=====2=====|=====3=====|       one stream, cut into rows
                                                            ^^^^ tail: dropped, or padded to a full row

    documents   |--0---|----------1------------|-2-|---3---|-4--|
    best_fit    |--0---|-4--|   |----1-----|   |----1-----|   |-1-|---3---|   |-2-|=======|
    document    |--0---|-2-|=|   |----1-----|   |----1-----|   |-1-|---3---|   |-4--|======|
                            ^ padding                           ^ the rest of a long document is an item too

    documents   |--0--|---------------1---------------|-2-|
    pad         |--0--|=====|   |----1----|!|   |-2-|=======|       fixed length; 1 is truncated:
                                                                    ! is its last token
    indexed     |--0--|   |---------------1---------------|   |-2-|      no packing: sequences as they are

    concat      no padding but in the last row, and a document is cut wherever a row ends; spans are found
                when they are asked for, so such a plan takes 8 bytes per document
    best_fit    items from the largest to the smallest, each into the row with the least room that is enough:
                hardly any padding; documents that share a row come from anywhere in the corpus
    document    items in order, each into one of a few rows that are open: some padding; what stands together
                in the corpus stays together, and all rows of a long document follow each other

Rows can be gathered in any order and in parallel, and every token of every row has an origin. With `groups`
(domains, say) no row holds documents of two: each group of concat is a stream with a tail of its own. Rows
are in the order of their first document or token, documents in a row in theirs: both follow the order that a
mixture gave them.

No token is touched until rows are gathered.

    plan.spans(first, stop)   row  document  start:end  offset
    Store                          document -> (array, begin)
    gather_rows               ids of rows first to stop, padding where no document is: one compiled copy per
                              batch of rows and file, straight out of the maps

Batches do not know of each other: they can be made in any order, by threads (the copy is free of the GIL)
or by processes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.cells import short_repr
from tokmill.errors import InputError, RecipeError
from tokmill.formats.ids import cast_ids
from tokmill.formats.index import RowSpans
from tokmill.kernels.packing import Pieces, best_fit_bins, copy_pieces, list_pieces, window_bins

Layout = Literal["concat", "document", "best_fit", "pad", "indexed"]
LAYOUTS: tuple[Layout, ...] = ("concat", "document", "best_fit", "pad", "indexed")

# Pieces number their documents in 32 bits: half the memory of a plan of 20 million.
_MAX_DOCUMENTS = (1 << 31) - 1


@short_repr
@dataclass(frozen=True, eq=False)
class Plan:
    """Where each document's tokens go, in `n_rows` rows of `seq_len` columns."""

    layout: Layout
    seq_len: int  # 0: each row is as long as its document
    n_rows: int
    documents: int
    tokens_in: int
    tokens_kept: int
    rows: PieceList | Stream
    padding: int = 0  # columns that no document covers
    tail_dropped: int = 0  # tokens after the last whole row
    truncated: int = 0  # tokens of documents beyond the end of their row
    left_out: int = 0  # tokens of rows that were planned and not taken

    def __post_init__(self) -> None:
        lost = self.tail_dropped + self.truncated + self.left_out
        assert self.tokens_in == self.tokens_kept + lost, f"{self.layout}: tokens do not add up"
        columns = self.n_rows * self.seq_len if self.seq_len else self.tokens_kept
        assert columns == self.tokens_kept + self.padding, f"{self.layout}: columns do not add up"

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
    """Only these rows, in this order. What the others hold is `left_out`,
    and so is all of a document that they had truncated: no row has any of it."""
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


# --- concat ---

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
    if not len(lengths):
        return plan_concat(lengths, seq_len, tail)
    plans, listed = [], []
    for group in np.unique(groups).tolist():
        members = np.flatnonzero(groups == group)
        plans.append(plan_concat(lengths[members], seq_len, tail))
        pieces = pieces_of(plans[-1])
        listed.append(pieces._replace(document=members[pieces.document].astype(np.int32)))
    counts = np.concatenate([np.diff(pieces.row_begins) for pieces in listed])
    columns = (np.concatenate(column) for column in list(zip(*listed, strict=True))[1:])
    whole = Pieces(np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))), *columns)
    plan = Plan(
        "concat",
        seq_len,
        len(counts),
        len(lengths),
        sum(plan.tokens_in for plan in plans),
        sum(plan.tokens_kept for plan in plans),
        PieceList(whole),
        padding=sum(plan.padding for plan in plans),
        tail_dropped=sum(plan.tail_dropped for plan in plans),
    )
    firsts = whole.row_begins[:-1]
    return take_rows(plan, np.lexsort((whole.offset[firsts], whole.document[firsts])))


class Stream:
    """Rows as cuts of one stream of `total` tokens, in which documents end at `ends`."""

    def __init__(self, ends: NDArray[np.int64], seq_len: int, total: int) -> None:
        self.ends, self._seq_len, self._total = ends, seq_len, total

    def spans(self, first_row: int, stop_row: int) -> RowSpans:
        begin = first_row * self._seq_len
        stop = min(stop_row * self._seq_len, self._total)
        if begin >= stop:
            return RowSpans(*(np.empty(0, dtype=np.int64) for _ in range(5)))
        # a span begins where a row begins and where a document ends; both lists are sorted already
        inside = self.ends[
            np.searchsorted(self.ends, begin, "right") : np.searchsorted(self.ends, stop, "left")
        ]
        row_begins = np.arange(begin, stop, self._seq_len, dtype=np.int64)
        # not np.unique: it hashes (NumPy 2.4), 1.3 s for 1.5 million cuts;
        # merging two sorted runs takes 0.01 s
        cuts = np.sort(np.concatenate((row_begins, inside)), kind="stable")
        begins = cuts[np.diff(cuts, prepend=-1) > 0]
        widths = np.diff(begins, append=stop)
        # "right" skips documents of length zero: they end where their successor begins
        document = np.searchsorted(self.ends, begins, "right").astype(np.int64)
        document_begins = np.where(document > 0, self.ends[np.maximum(document, 1) - 1], 0)
        row = begins // self._seq_len
        start = begins - row * self._seq_len
        return RowSpans(row, document, start, start + widths, begins - document_begins)


# --- best_fit and document ---

# Padding at 2,048 on the bench texts, and CPU seconds for 20 million documents: 1 row (next fit) 15.4 % and
# 1.1 s, 8 rows 5.1 % and 2.1 s, 32 rows 3.2 % and 2.9 s, 128 rows 1.9 % and 5.4 s, which is what best fit
# takes.
_OPEN_ROWS = 128


def plan_bins(
    layout: Literal["best_fit", "document"],
    lengths: NDArray[np.integer],
    seq_len: int,
    groups: NDArray[np.integer] | None = None,
) -> Plan:
    check_row_length(seq_len)
    lengths = checked_lengths(lengths)
    sizes, of_groups = (lengths % seq_len).astype(np.int32), checked_groups(groups, len(lengths))
    if layout == "best_fit":
        bins = best_fit_bins(sizes, of_groups, seq_len)
    else:
        bins = window_bins(sizes, lengths > seq_len, of_groups, seq_len, _OPEN_ROWS)
    pieces = list_pieces(lengths, bins, seq_len)
    n_rows, tokens = len(pieces.row_begins) - 1, int(lengths.sum())
    return Plan(
        layout,
        seq_len,
        n_rows,
        len(lengths),
        tokens,
        tokens,
        PieceList(pieces),
        padding=n_rows * seq_len - tokens,
    )


# --- pad and indexed ---

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
            f"document {int(lengths.argmax())} has {int(lengths.max()):,} tokens, and a sequence ends at "
            f"{_MAX_SEQUENCE:,}",
            where="pack",
            next="split the document, or set a maximum document size in filters",
        )
    tokens, filled = int(lengths.sum()), np.flatnonzero(lengths)  # where there is nothing, there is no piece
    pieces = Pieces(
        np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths > 0, dtype=np.int64))),
        filled.astype(np.int32),
        np.zeros(len(filled), np.int64),
        lengths[filled].astype(np.int32),
    )
    return Plan("indexed", 0, len(lengths), len(lengths), tokens, tokens, PieceList(pieces))


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
        case "document" | "best_fit":
            return plan_bins(layout, lengths, seq_len, groups)
        case "pad":
            return plan_pad(lengths, seq_len)
        case "indexed":
            return plan_indexed(lengths)


# --- ids of rows ---

# Tokens of a batch: 16 MB of int32, of which the second-level cache sees little and the disk enough.
BATCH_TOKENS = 4 << 20


class Store(NamedTuple):
    """Where the ids of the planned documents lie: in `arrays[array[d]]`, from `begin[d]` on.
    One dtype for all."""

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

    A loop that is done with a batch when it asks for the next lends its array as `into`:
    the pages of a fresh one cost more than the copy (1 GB/s instead of 6).
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


def gather_positions(plan: Plan, first_row: int, stop_row: int) -> NDArray[np.int32]:
    """Of every column of these rows, one row after the other: how far it is into what its row has of its
    document; of padding ~0, ~1, …, as `formats.ids.Sequences` wants it."""
    assert plan.seq_len, f"{plan.layout}: rows have no common length"
    columns = (stop_row - first_row) * plan.seq_len
    spans = plan.spans(first_row, stop_row)
    begin, width = (spans.row - first_row) * plan.seq_len + spans.start, spans.end - spans.start
    # what `pad` keeps of a document's end stands right behind its beginning, and goes on counting
    is_new = np.ones(len(begin), np.bool_)
    is_new[1:] = (np.diff(spans.row) != 0) | (np.diff(spans.document) != 0)
    steps = np.zeros(columns + 1, np.int32)
    np.add.at(steps, begin, 1)
    np.add.at(steps, begin + width, -1)
    is_id = np.cumsum(steps[:-1]) > 0
    begins = np.zeros(columns, np.bool_)
    begins[:: plan.seq_len] = True
    begins[begin[is_new & (width > 0)]] = True
    begins[1:] |= is_id[:-1] & ~is_id[1:]  # padding
    places = np.arange(columns)
    positions = places - np.maximum.accumulate(np.where(begins, places, 0))
    return np.where(is_id, positions, ~positions).astype(np.int32)


def gather_sequences(
    plan: Plan, store: Store, first_row: int, stop_row: int, into: NDArray[np.integer] | None = None
) -> NDArray[np.integer]:
    """What rows first_row to stop_row hold, one after the other, without padding.
    `into` is lent as to `gather_rows`, and used where it has room."""
    spans = plan.spans(first_row, stop_row)
    widths = spans.end - spans.start
    ends = np.cumsum(widths)
    size = int(ends[-1]) if ends.size else 0
    ids = np.empty(size, store.dtype) if into is None or into.size < size else into[:size]
    assert ids.dtype == store.dtype, f"`into` is of {ids.dtype}, not {store.dtype}"
    _copy(spans, ends - widths, store, ids)
    return ids


def row_batches(
    plan: Plan, batch_tokens: int = BATCH_TOKENS, *, first_row: int = 0, stop_row: int | None = None
) -> Iterator[tuple[int, int]]:
    """(first_row, stop_row) of batches of about so many tokens, in order; of all rows, or of some."""
    average = plan.seq_len or max(plan.tokens_kept // max(plan.n_rows, 1), 1)
    step = max(batch_tokens // average, 1)
    stop = plan.n_rows if stop_row is None else stop_row
    for first in range(first_row, stop, step):
        yield first, min(first + step, stop)


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

"""Documents into rows of equal length, in integers; and their tokens into those rows.

    lengths ─ divide by T ─┬─ whole rows: a document longer than a row fills them alone
                           └─ rest, 1 … T - 1 tokens: an item, which is never cut
    best_fit_bins    items, largest first    -> bin of each item     into the row with the least room
                                                                     that is enough
    window_bins      items, document order   -> bin of each item     likewise, of a few open rows
    list_pieces      whole rows and bins     -> rows in the order of their first document,
                                                pieces in document order
    copy_pieces      pieces of one array     -> places in another    what rows of tokens are gathered with
    end_sequences    sequences of ids        -> the same, each with an id at its end, or at both

All are linear in documents, but for the search for room: a binary tree over the T possible rooms.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import ROWS, TEXT, Bytes, Int, Offsets, frozen, raw_kernel, raw_step

Numbers = NDArray[np.int32]
Places = NDArray[np.int64]

NO_BIN = -1
_ONES = np.ones(2, np.int32)


class Pieces(NamedTuple):
    """Row r holds pieces row_begins[r] to row_begins[r + 1]:
    `width` tokens of `document` from `offset` on."""

    row_begins: Places
    document: Numbers
    offset: Places
    width: Numbers


def best_fit_bins(sizes: Numbers, groups: Numbers, seq_len: int) -> Numbers:
    """The bin of each item: best fit decreasing, equal sizes in document order, groups apart.

    Of bins with equal room, the one that came to that room last. An item of size 0 gets NO_BIN.
    """
    sizes, groups = frozen(sizes, np.int32), frozen(groups, np.int32)
    order = np.empty(sizes.size, np.int32)
    items = _order_by(sizes, np.zeros(seq_len + 1, np.int64), np.empty(0, np.int32), sizes.size, order)
    if groups.size:
        by_size, order = order, np.empty(items, np.int32)
        counts = np.zeros(int(groups.max(initial=0)) + 1, np.int64)
        _order_by(groups, counts, by_size, items, order)
    leaves = 1 << int(seq_len).bit_length()
    bins = np.full(sizes.size, NO_BIN, np.int32)
    _best_fit(
        sizes,
        groups,
        seq_len,
        frozen(order, np.int32),
        items,
        np.empty(2 * leaves, np.uint8),
        np.empty(seq_len + 1, np.int32),
        np.empty(items, np.int32),  # untouched memory is never given: bins are far fewer than items
        bins,
    )
    return bins


def window_bins(
    sizes: Numbers, is_long: NDArray[np.bool_], groups: Numbers, seq_len: int, open_rows: int
) -> Numbers:
    """The bin of each item, in document order; each group has `open_rows` rows that still take something.

    The rest of a long document opens a row. So does an item that fits nowhere;
    the fullest open row is closed for it.
    """
    sizes, groups = frozen(sizes, np.int32), frozen(groups, np.int32)
    count = int(groups.max(initial=0)) + 1
    bins = np.full(sizes.size, NO_BIN, np.int32)
    _fill_window(
        sizes,
        frozen(is_long, np.bool_),
        groups,
        seq_len,
        np.zeros((count, open_rows), np.int32),
        np.zeros((count, open_rows), np.int32),
        bins,
    )
    return bins


def list_pieces(lengths: Offsets, bins: Numbers, seq_len: int) -> Pieces:
    """Rows numbered by the first document in them; a document's whole rows follow each other."""
    lengths, bins = frozen(lengths, np.int64), frozen(bins, np.int32)
    row_of_bin = np.full(int(bins.max(initial=NO_BIN)) + 1, -1, np.int64)
    rows, pieces = _number_rows(lengths, bins, seq_len, row_of_bin)
    listed = Pieces(
        np.zeros(rows + 1, np.int64),
        np.empty(pieces, np.int32),
        np.empty(pieces, np.int64),
        np.empty(pieces, np.int32),
    )
    _list_pieces(lengths, bins, seq_len, frozen(row_of_bin, np.int64), *listed)
    return listed


@raw_kernel(lambda: best_fit_bins(_ONES, _ONES, 3))
def _order_by(keys: Numbers, counts: Places, within: Numbers, items: Int, order: Numbers) -> Int:
    """A stable counting sort. Without `within`: of all rows with a key, the largest first;
    else of those, ascending."""
    is_first = within.size == 0
    for at in range(items):
        row = at if is_first else within[at]
        counts[keys[row]] += 1
    begin: Int = 0
    for step in range(counts.size):
        key = counts.size - 1 - step if is_first else step
        if is_first and key == 0:
            break  # nothing to place
        count = counts[key]
        counts[key] = begin
        begin += count
    for at in range(items):
        row = at if is_first else within[at]
        key = keys[row]
        if is_first and key == 0:
            continue
        order[counts[key]] = row
        counts[key] += 1
    return begin


@raw_kernel(lambda: best_fit_bins(_ONES, _ONES, 3))
def _best_fit(
    sizes: Numbers,
    groups: Numbers,
    seq_len: Int,
    order: Numbers,
    items: Int,
    has_room: NDArray[np.uint8],
    heads: Numbers,
    follows: Numbers,
    bins: Numbers,
) -> None:
    """heads[room] and follows[bin] are stacks of the bins with that room; has_room is a tree, leaf = room."""
    used: Int = 0
    group: Int = -1
    for at in range(items):
        document = order[at]
        size = sizes[document]
        if at == 0 or (groups.size != 0 and groups[document] != group):
            group = groups[document] if groups.size != 0 else 0
            for node in range(has_room.size):
                has_room[node] = 0
            for head in range(heads.size):
                heads[head] = -1
        room = _least_room(has_room, size)
        if room < 0:
            bin = np.int32(used)
            used += 1
            room = seq_len
        else:
            bin = heads[room]
            heads[room] = follows[bin]
            if heads[room] < 0:
                _forget_room(has_room, room)
        bins[document] = bin
        room -= size
        if room > 0:
            follows[bin] = heads[room]
            if heads[room] < 0:
                _note_room(has_room, room)
            heads[room] = bin


@raw_step
def _least_room(has_room: NDArray[np.uint8], size: Int) -> Int:
    leaves = has_room.size >> 1
    node = leaves + size
    if has_room[node] == 0:
        # up until there is something to the right of where we came from …
        while node > 1 and ((node & 1) == 1 or has_room[node + 1] == 0):
            node >>= 1
        if node <= 1:
            return -1
        node += 1
        # … and down to its leftmost leaf
        while node < leaves:
            node = 2 * node if has_room[2 * node] != 0 else 2 * node + 1
    return node - leaves


@raw_step
def _note_room(has_room: NDArray[np.uint8], room: Int) -> None:
    node = (has_room.size >> 1) + room
    while node >= 1 and has_room[node] == 0:
        has_room[node] = 1
        node >>= 1


@raw_step
def _forget_room(has_room: NDArray[np.uint8], room: Int) -> None:
    node = (has_room.size >> 1) + room
    has_room[node] = 0
    node >>= 1
    while node >= 1 and has_room[2 * node] == 0 and has_room[2 * node + 1] == 0:
        has_room[node] = 0
        node >>= 1


@raw_kernel(lambda: window_bins(_ONES, np.zeros(2, np.bool_), _ONES, 3, open_rows=1))
def _fill_window(
    sizes: Numbers,
    is_long: NDArray[np.bool_],
    groups: Numbers,
    seq_len: int,
    rooms: NDArray[np.int32],
    open_bins: NDArray[np.int32],
    bins: Numbers,
) -> None:
    used: Int = 0
    for document in range(sizes.size):
        size = sizes[document]
        if size == 0:
            continue
        group = groups[document] if groups.size != 0 else 0
        best: Int = -1
        fullest: Int = 0
        for slot in range(rooms.shape[1]):
            room = rooms[group, slot]
            if room >= size and (best < 0 or room < rooms[group, best]):
                best = slot
            if room < rooms[group, fullest]:
                fullest = slot
        if best < 0 or is_long[document]:
            best = fullest
            rooms[group, best] = seq_len
            open_bins[group, best] = used
            used += 1
        rooms[group, best] -= size
        bins[document] = open_bins[group, best]


@raw_kernel(lambda: list_pieces(np.full(2, 4), _ONES, 3))
def _number_rows(lengths: Offsets, bins: Numbers, seq_len: int, row_of_bin: Places) -> tuple[Int, Int]:
    row: Int = 0
    pieces: Int = 0
    for document in range(lengths.size):
        whole = lengths[document] // seq_len
        row += whole
        pieces += whole
        bin = bins[document]
        if bin >= 0:
            pieces += 1
            if row_of_bin[bin] < 0:
                row_of_bin[bin] = row
                row += 1
    return row, pieces


@raw_kernel(lambda: list_pieces(np.full(2, 4), _ONES, 3))
def _list_pieces(
    lengths: Offsets,
    bins: Numbers,
    seq_len: int,
    row_of_bin: Places,
    row_begins: Places,
    documents: Numbers,
    offsets: Places,
    widths: Numbers,
) -> None:
    """Numbered as _number_rows did: a bin is met for the first time where its row is the next one."""
    for look in range(2):
        row: Int = 0
        for document in range(lengths.size):
            whole = lengths[document] // seq_len
            for part in range(whole):
                if look == 0:
                    row_begins[row + part] += 1
                else:
                    place = row_begins[row + part]
                    row_begins[row + part] += 1
                    documents[place] = document
                    offsets[place] = part * seq_len
                    widths[place] = seq_len
            row += whole
            bin = bins[document]
            if bin >= 0:
                mine = row_of_bin[bin]
                if mine == row:
                    row += 1
                if look == 0:
                    row_begins[mine] += 1
                else:
                    place = row_begins[mine]
                    row_begins[mine] += 1
                    documents[place] = document
                    offsets[place] = whole * seq_len
                    widths[place] = lengths[document] - whole * seq_len
        before: Int = 0
        if look == 0:  # counts become begins
            for number in range(row_begins.size):
                count = row_begins[number]
                row_begins[number] = before
                before += count
        else:  # every begin has moved to its end, which is the begin of the next
            for number in range(row_begins.size):
                end = row_begins[number]
                row_begins[number] = before
                before = end


def copy_pieces(data: Bytes, begins: Places, places: Places, counts: Places, into: Bytes) -> None:
    """into[place : place + count] = data[begin : begin + count] for every piece, all in bytes."""
    begins, places, counts = (frozen(column, np.int64) for column in (begins, places, counts))
    if begins.size:
        ends, stops = begins + counts, places + counts
        if begins.min() < 0 or ends.max() > data.size or places.min() < 0 or stops.max() > into.size:
            raise ValueError(
                f"pieces lie outside the {data.size} bytes they come from, or the {into.size} they go to"
            )
    _copy_pieces(frozen(data, np.uint8), begins, places, counts, into)


@raw_kernel(lambda: copy_pieces(TEXT[0], ROWS, ROWS, ROWS, np.empty(1, np.uint8)))
def _copy_pieces(data: Bytes, begins: Places, places: Places, counts: Places, into: Bytes) -> None:
    # unsigned: a signed index may be negative and count from the end, and the test for that keeps LLVM from
    # vectorizing the copy (0.7 GB/s instead of 6.0)
    for piece in range(begins.size):
        begin, place = np.uint64(begins[piece]), np.uint64(places[piece])
        for at in range(np.uint64(counts[piece])):
            into[place + at] = data[begin + at]


# --- copies ---


def end_sequences(
    ids: Numbers, offsets: Places, rows: Places, eos_id: int, dtype: str, bos_id: int | None = None
) -> NDArray[np.integer]:
    """Sequence i of `rows` is ids[offsets[i]:offsets[i + 1]]; every id must fit the dtype.

    ids      int32   |a a a|b|c c|          rows 0 and 2, eos
    into     uint16  |a a a eos|c c eos|    narrowed on the way: one copy, whatever the dtype
                     |bos a a a eos|bos c c eos|    with a `bos_id`
    """
    ids, offsets, rows = frozen(ids, np.int32), frozen(offsets, np.int64), frozen(rows, np.int64)
    if not 0 <= offsets[0] <= offsets[-1] <= ids.size:
        raise ValueError(f"offsets {offsets[0]}..{offsets[-1]} lie outside the {ids.size} ids")
    if rows.size and not 0 <= rows.min() <= rows.max() < offsets.size - 1:
        raise ValueError(f"rows {rows.min()}..{rows.max()} of {offsets.size - 1}")
    before = np.full(0 if bos_id is None else 1, bos_id or 0, dtype)
    tokens = int((offsets[rows + 1] - offsets[rows]).sum()) + rows.size * (1 + before.size)
    into = np.empty(tokens, dtype)
    _end_sequences(ids, offsets, rows, before, into.dtype.type(eos_id), into)
    return into


@raw_kernel(
    lambda: [
        end_sequences(np.zeros(1, np.int32), np.arange(2), ROWS, 0, dtype) for dtype in ("uint16", "int32")
    ]
)
def _end_sequences(
    ids: Numbers,
    offsets: Places,
    rows: Places,
    before: NDArray[np.integer],
    eos_id: np.integer,
    into: NDArray[np.integer],
) -> None:
    place = np.uint64(0)  # unsigned, as in _copy_pieces
    for number in range(rows.size):
        begin = np.uint64(offsets[rows[number]])
        count = np.uint64(offsets[rows[number] + 1]) - begin
        for at in range(before.size):
            into[place] = before[at]
            place += np.uint64(1)
        for at in range(count):
            into[place + at] = ids[begin + at]
        into[place + count] = eos_id
        place += count + np.uint64(1)

"""The rows of a split in batches: their ids end to end, and the pieces of documents that they hold, as columns.

    row 7    │ piece of a │ piece of b        │ padding │        index.jsonl.zst: [start, end) and offset of each piece
    ids      … 17 4 9 eos   8 8 21 6 2 9 3 1                   padding is in no piece

Of more than `max_tokens` some rows are taken, by a hash of their numbers: the same ones on every machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.audit.review.finding import NotMeasured
from tokmill.audit.review.rows import INDEX
from tokmill.audit.review.subject import Build
from tokmill.formats.row_index import FRAME_ROWS, IndexRow, read_row_index
from tokmill.loader.dataset import open_dataset
from tokmill.loader.stores import RowStore, Store

Ints = NDArray[np.int64]


class Pieces(NamedTuple):
    """Of some rows; `start` and `end` are places in `ids`, `row` is the place of a row among these rows."""

    rows: int
    ids: NDArray[np.integer]
    row: Ints
    start: Ints
    end: Ints
    offset: Ints
    sources: list[str]
    doc_ids: list[str]

    @property
    def lengths(self) -> Ints:
        return self.end - self.start


class Taken(NamedTuple):
    """How many rows of how many were looked at."""

    rows: int
    of_rows: int


class SplitPieces:
    """Iterated once; `taken` is known then."""

    def __init__(self, build: Build, split: str, max_tokens: int) -> None:
        if not (build.artifact.directory / split / INDEX).is_file():
            raise NotMeasured(
                f"build {build.name} has no {INDEX}, so whose the tokens of a row are is not known"
            )
        self._directory = build.artifact.directory / split
        self._store: Store = open_dataset(self._directory).store
        self._share = _share(build, split, max_tokens)
        self.taken = Taken(0, 0)

    def __iter__(self) -> Iterator[Pieces]:
        rows, of_rows = 0, 0
        lines = read_row_index(self._directory / INDEX)
        while batch := list(itertools.islice(lines, FRAME_ROWS)):
            of_rows += len(batch)
            chosen = is_chosen(np.array([line.row for line in batch], np.uint64), self._share)
            mine = [line for line, is_mine in zip(batch, chosen.tolist(), strict=True) if is_mine]
            rows += len(mine)
            if mine and int(mine[-1].row) >= self._store.size:
                raise NotMeasured(f"{self._directory.name} has {self._store.size:,} rows, its index more")
            if mine:
                yield _pieces(mine, self._store)
        self.taken = Taken(rows, of_rows)


def is_chosen(rows: NDArray[np.uint64], share: Fraction) -> NDArray[np.bool_]:
    """By the number of the row alone (the mixing of splitmix64)."""
    if share >= 1:
        return np.ones(len(rows), np.bool_)
    mixed = (rows + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    bound = np.uint64(share.numerator * (1 << 64) // share.denominator)
    chosen: NDArray[np.bool_] = (mixed ^ (mixed >> np.uint64(31))) < bound
    return chosen


def tokens_of(pieces: Pieces, chosen: Any, lengths: Ints) -> tuple[Ints, Ints]:
    """Places in `ids` of the first so many tokens of each chosen piece, and the number of each one's piece."""
    piece = np.repeat(np.arange(len(pieces.start))[chosen], lengths)
    first = np.repeat(pieces.start[chosen] - (np.cumsum(lengths) - lengths), lengths)
    first += np.arange(len(piece))
    return first, piece


def _pieces(lines: list[IndexRow], store: Store) -> Pieces:
    if isinstance(store, RowStore):
        block = store.block(np.array([line.row for line in lines], np.int64))
        begins = np.arange(len(lines)) * block.shape[1]
        ids = block.reshape(-1)
    else:
        parts = [np.asarray(store.view(line.row)) for line in lines]
        begins = np.cumsum([0, *map(len, parts)])[:-1]
        ids = np.concatenate(parts)
    spans = [span for line in lines for span in line.docs]
    row = np.repeat(np.arange(len(lines)), [len(line.docs) for line in lines])
    begin = begins[row]
    return Pieces(
        len(lines),
        ids,
        row,
        begin + np.array([span.start for span in spans], np.int64),
        begin + np.array([span.end for span in spans], np.int64),
        np.array([span.offset for span in spans], np.int64),
        [span.source for span in spans],
        [span.doc_id for span in spans],
    )


def _share(build: Build, split: str, max_tokens: int) -> Fraction:
    """Of the rows, so that about `max_tokens` are read."""
    manifest = build.artifact.manifest
    counts = next((one.counts for one in manifest.receipts() if one.key == split), manifest.counts)
    return Fraction(max_tokens, max(int(counts.get("tokens", {}).get("written", 0)), 1))

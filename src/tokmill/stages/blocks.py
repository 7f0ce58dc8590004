"""The documents of a split in blocks, each with a plan of its own: memory is bounded by a block, not by the corpus.

    chunks 0 1 2 │ 3 4 │ 5 6 …        whole chunks (shards, or turns of a mixture), up to a million documents
    plan   rows … │ rows … │          numbered on; the last rows of a stream (`concat`) are filled from the blocks after

Blocks are made anew each time they are asked for: plans cost little beside the copying. Where domains are balanced, all
plans are made once before, for the number of rows that each domain has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.formats.row_index import RowSpans
from tokmill.manifest import Json
from tokmill.pack.balance import Balance, row_groups
from tokmill.pack.compare import plan_layout
from tokmill.pack.gather import row_batches
from tokmill.pack.plan import Plan, take_rows
from tokmill.stages.documents import Chunks, Documents, join_documents
from tokmill.stages.streams import ChunkReader, Cut, Streams

# Two blocks of so many are alive at once and take 300 MB: 32 bytes of a plan, 30 of names, and what is made on the way.
# A build of a mixture peaks at 798 MB for 4 million documents and at 823 for 16 million.
_BLOCK_DOCUMENTS = 1 << 20


class Block(NamedTuple):
    """`documents` and where they go. The first `own` are the block's own, numbered from `first_document` on; those after
    them are of blocks to come, and fill its last rows."""

    documents: Documents
    plan: Plan
    first_row: int
    first_document: int
    own: int
    skipped: NDArray[np.int64] | None = None  # tokens of each document that stand in rows of blocks before
    tail: int | None = (
        None  # of its own documents, those that no row was planned for; None: all that have none
    )

    def spans(self, first_row: int, stop_row: int) -> RowSpans:
        """Of rows of the block, as the whole numbers them; documents as the block does."""
        spans = self.plan.spans(first_row, stop_row)
        offset = spans.offset if self.skipped is None else spans.offset + self.skipped[spans.document]
        return spans._replace(row=spans.row + self.first_row, offset=offset)

    def batches(self) -> Iterator[tuple[int, int]]:
        return row_batches(self.plan)


def read_meetings(blocks: Iterable[Block]) -> Iterator[RowSpans]:
    """All meetings of rows and documents, in pieces of ascending documents, as the whole numbers them.

    What a block met of documents ahead waits for theirs: a row of tokens for each stream at most.
    """
    waiting: list[RowSpans] = []
    for block in blocks:
        spans = block.spans(0, block.plan.n_rows)
        numbered = spans._replace(document=block.documents.number[spans.document])
        met = RowSpans(*(np.concatenate(columns) for columns in zip(*waiting, numbered, strict=True)))
        is_due = met.document < block.first_document + block.own
        yield RowSpans(*(column[is_due] for column in met))
        waiting = [RowSpans(*(column[~is_due] for column in met))]
    assert all(not len(spans.row) for spans in waiting), "documents that no block has"


def _count_unplanned(cut: Cut) -> int:
    """Documents that would be in no row even if all of them were taken."""
    is_planned = np.zeros(len(cut.documents), np.bool_) if cut.skipped is None else cut.skipped > 0
    for first, stop in row_batches(cut.plan):
        is_planned[cut.plan.spans(first, stop).document] = True
    return int(cut.own - np.count_nonzero(is_planned[: cut.own]))


class Blocks:
    def __init__(self, config: Json, chunks: Chunks) -> None:
        self._config, self._chunks = config, chunks
        self.domain_names = chunks.domain_names
        self._balance: Balance | None = None
        if self._config["balance"] == "smallest":
            rows = np.zeros(len(self.domain_names), np.int64)
            for cut in self._cuts():
                groups = row_groups(cut.plan, cut.documents.domain)
                rows += np.bincount(groups, minlength=len(rows))
            self._balance = Balance(rows.tolist(), self._config["seed"])

    def __iter__(self) -> Iterator[Block]:
        limit = self._config["rows"]
        first_row = first_document = 0
        rows_before = np.zeros(len(self.domain_names), np.int64)
        for cut in self._cuts():
            plan = cut.plan
            if self._balance is not None:
                groups = row_groups(plan, cut.documents.domain)
                plan = take_rows(plan, self._balance.kept_rows(groups, rows_before))
                rows_before += np.bincount(groups, minlength=len(rows_before))
            if limit is not None and first_row + plan.n_rows > limit:
                plan = take_rows(plan, np.arange(limit - first_row))
            # also where this block loses no row: a document of it may have been in a row of the block before that is not taken
            is_chosen = self._balance is not None or limit is not None
            tail = _count_unplanned(cut) if is_chosen else None
            yield Block(cut.documents, plan, first_row, first_document, cut.own, cut.skipped, tail)
            first_row += plan.n_rows
            first_document += cut.own

    def _cuts(self) -> Iterator[Cut]:
        pack = self._config["pack"]
        reader = ChunkReader(self._chunks)
        is_apart = not pack.get("mix_domains", True)
        streams = None
        if pack["layout"] == "concat":
            domains = range(len(self.domain_names)) if is_apart else [None]
            streams = Streams(reader, domains, pack["length"], pack["tail"])
        for group in self._groups():
            documents = join_documents([reader.load(chunk) for chunk in group])
            if streams is not None:
                yield streams.cut(documents)
            else:
                groups = documents.domain if is_apart else None
                plan = plan_layout(pack["layout"], documents.lengths, pack.get("length", 0), groups)
                yield Cut(documents, plan, len(documents), None)

    def _groups(self) -> list[range]:
        """Chunks one after the other, as many as fill a block."""
        rows = self._chunks.rows
        groups, start, count = [], 0, 0
        for number in range(len(rows)):
            if number > start and count + rows[number] > _BLOCK_DOCUMENTS:
                groups.append(range(start, number))
                start, count = number, 0
            count += rows[number]
        return [*groups, range(start, len(rows))] if rows else []

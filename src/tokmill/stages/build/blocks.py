"""The documents of a split in blocks, each with a plan of its own:
memory is bounded by a block, not by the corpus.

    chunks 0 1 2 │ 3 4 │ 5 6 …        whole chunks (shards, or turns of a mixture), up to a million documents
    plan   rows … │ rows … │          numbered on; the last rows of a stream (`concat`) are filled from the
                                      blocks after

Where domains are balanced, all plans are made once before, for the number of rows that each domain has.

Streams of documents cut into rows, a block of documents at a time: one stream, or one for each domain.

    documents   │ a1 b1 a2 a3 b2 │ a4 b3 … │         blocks of a few chunks
    stream a    |--row--|--row--|--row--|            a row belongs to the block in which it begins, …
    stream b    |------row------|------row---        … and is filled with what follows in its stream,
                                                     however far ahead

Rows come in the order of their first token, for any cut into blocks. What a row needs from ahead is at most
its length in tokens, so a block holds that much more for each stream; the search for it goes through the
chunks once for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.formats.index import RowSpans
from tokmill.packing.balance import Balance, row_groups
from tokmill.packing.plan import Plan, Tail, plan_layout, row_batches, take_rows
from tokmill.stages.build.documents import Chunks, Documents, Names, join_documents
from tokmill.stages.build.options import SplitBuildOptions

# Of what was read ahead, for the streams that look ahead into the same chunk and the block that begins with
# it.
_CHUNKS_KEPT = 2


class Cut(NamedTuple):
    """Documents of a block, `own` of them its own and the others ahead, and the rows that begin in it.

    The plan and the store count the tokens of a document from the first that is not skipped.
    """

    documents: Documents
    plan: Plan
    own: int
    skipped: NDArray[np.int64] | None  # tokens of each document that stand in rows of blocks before


class ChunkReader:
    """Chunks by number; the last few that were read are kept."""

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        self._kept: dict[int, Documents] = {}
        self.starts = np.cumsum([0, *chunks.rows])

    def load(self, chunk: int) -> Documents:
        if chunk not in self._kept:
            self._kept[chunk] = self._chunks.load(chunk)
            while len(self._kept) > _CHUNKS_KEPT:
                del self._kept[next(iter(self._kept))]
        return self._kept[chunk]

    def read_domain(self, domain: int | None, first: int) -> Iterator[tuple[Documents, int]]:
        """Documents of the domain (None: of any) from that number on, by chunk;
        and the number after the chunk."""
        begin = int(np.searchsorted(self.starts, first, "right")) - 1
        for chunk in range(begin, len(self.starts) - 1):
            if domain is not None and not self._chunks.may_hold(chunk, domain):
                continue
            found = self.load(chunk)
            is_wanted = found.number >= first
            if domain is not None:
                is_wanted &= found.domain == domain
            yield found.take(np.flatnonzero(is_wanted)), int(self.starts[chunk + 1])


class _Stream:
    """Where the next row of a stream begins, and what was found ahead of the block."""

    def __init__(self, reader: ChunkReader, domain: int | None) -> None:
        self.next_document, self.next_offset = 0, 0
        self._reader, self._domain = reader, domain
        self._ahead: list[Documents] = []
        self._searched = 0

    def look_ahead(self, first: int, tokens: int) -> Documents | None:
        """Documents from that number on, until they hold so many tokens or there are no more."""
        self._searched = max(self._searched, first)
        ahead = [part.take(np.flatnonzero(part.number >= first)) for part in self._ahead]
        missing = tokens - sum(int(part.lengths.sum()) for part in ahead)
        if missing > 0:
            for part, end in self._reader.read_domain(self._domain, self._searched):
                ends = np.cumsum(part.lengths)
                count = int(np.searchsorted(ends, missing, "left")) + 1
                is_enough = count <= len(part)
                ahead.append(part.take(np.arange(min(count, len(part)))))
                self._searched = int(ahead[-1].number[-1]) + 1 if is_enough else end
                if is_enough:
                    break
                missing -= int(part.lengths.sum())
            else:
                self._searched = int(self._reader.starts[-1])
        self._ahead = [part for part in ahead if len(part)]
        return join_documents(self._ahead) if self._ahead else None


class Streams:
    """Blocks of documents, one after the other; streams go on from each to the next."""

    def __init__(self, reader: ChunkReader, domains: Sequence[int | None], seq_len: int, tail: Tail) -> None:
        self._streams = {domain: _Stream(reader, domain) for domain in domains}
        self._is_apart = None not in domains
        self._seq_len, self._tail = seq_len, tail

    def cut(self, own: Documents) -> Cut:
        parts, lengths = [own], [own.lengths.copy()]
        skipped = np.zeros(len(own), np.int64)
        for domain, stream in self._streams.items():
            mine = np.arange(len(own)) if domain is None else np.flatnonzero(own.domain == domain)
            if not len(mine):
                continue
            begun = np.searchsorted(own.number[mine], stream.next_document)
            lengths[0][mine[:begun]] = 0  # in rows of blocks before
            skipped[mine[:begun]] = own.lengths[mine[:begun]]
            if begun < len(mine) and int(own.number[mine[begun]]) == stream.next_document:
                skipped[mine[begun]] = stream.next_offset
                lengths[0][mine[begun]] -= stream.next_offset
            tokens = int(lengths[0][mine].sum())
            missing = -tokens % self._seq_len
            if not tokens:
                continue
            last, used = int(own.number[mine[-1]]), int(own.lengths[mine[-1]])
            ahead = stream.look_ahead(int(own.number[-1]) + 1, missing) if missing else None
            if ahead is not None:
                enough, held = _first_tokens(ahead, missing)
                missing -= int(held.sum())
                parts.append(enough)
                lengths.append(held)
                last, used = int(enough.number[-1]), int(held[-1])
            # where the row ended; a document that is used up is passed by its number
            stream.next_document, stream.next_offset = last, used
        documents = join_documents(parts)
        groups = documents.domain if self._is_apart else None
        plan = plan_layout("concat", np.concatenate(lengths), self._seq_len, groups, self._tail)
        skipped = np.concatenate((skipped, np.zeros(len(documents) - len(own), np.int64)))
        store = documents.store._replace(begin=documents.store.begin + skipped)
        return Cut(replace(documents, store=store), plan, len(own), skipped)


def _first_tokens(documents: Documents, tokens: int) -> tuple[Documents, NDArray[np.int64]]:
    """The first documents that hold so many tokens, and how many of each are meant."""
    ends = np.cumsum(documents.lengths)
    count = min(int(np.searchsorted(ends, tokens, "left")) + 1, len(documents))
    found = documents.take(np.arange(count))
    lengths = found.lengths.copy()
    lengths[-1] -= max(int(ends[count - 1]) - tokens, 0)
    return found, lengths


# Two blocks of so many are alive at once and take 300 MB: 32 bytes of a plan, 30 of names, and what is made
# on the way. A build of a mixture peaks at 798 MB for 4 million documents and at 823 for 16 million.
_BLOCK_DOCUMENTS = 1 << 20


class Block(NamedTuple):
    """`documents` and where they go. The first `own` are the block's own, numbered from `first_document` on;
    those after them are of blocks to come, and fill its last rows."""

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

    def batches(self, first_row: int = 0, stop_row: int | None = None) -> Iterator[tuple[int, int]]:
        """Of all its rows; or of those that the whole numbers so, as the block numbers them."""
        stop = self.plan.n_rows if stop_row is None else min(stop_row - self.first_row, self.plan.n_rows)
        return row_batches(self.plan, first_row=max(first_row - self.first_row, 0), stop_row=stop)


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
    """Made anew each time they are asked for; a split that is one block keeps it."""

    def __init__(self, options: SplitBuildOptions, chunks: Chunks) -> None:
        self._options, self._chunks = options, chunks
        self.domain_names = chunks.domain_names
        self.loss = chunks.loss
        self.names = Names(chunks)
        self._only: Block | None = None
        self._balance: Balance | None = None
        if self._options.balance == "smallest":
            rows = np.zeros(len(self.domain_names), np.int64)
            for cut in self._cuts():
                groups = row_groups(cut.plan, cut.documents.domain)
                rows += np.bincount(groups, minlength=len(rows))
            self._balance = Balance(rows.tolist(), self._options.seed)

    def __iter__(self) -> Iterator[Block]:
        if self._only is not None:
            return iter((self._only,))
        if len(self._groups()) == 1:
            (self._only,) = self._read()
            return iter((self._only,))
        return self._read()

    def _read(self) -> Iterator[Block]:
        limit = self._options.rows
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
            # also where this block loses no row: a document of it may have been in a row of the block before
            # that is not taken
            is_chosen = self._balance is not None or limit is not None
            tail = _count_unplanned(cut) if is_chosen else None
            yield Block(cut.documents, plan, first_row, first_document, cut.own, cut.skipped, tail)
            first_row += plan.n_rows
            first_document += cut.own

    def _cuts(self) -> Iterator[Cut]:
        pack = self._options.pack
        reader = ChunkReader(self._chunks)
        is_apart = pack.mix_domains is False
        streams = None
        if pack.layout == "concat":
            domains = range(len(self.domain_names)) if is_apart else [None]
            streams = Streams(reader, domains, pack.length, pack.tail or "drop")
        for group in self._groups():
            documents = join_documents([reader.load(chunk) for chunk in group])
            if streams is not None:
                yield streams.cut(documents)
            else:
                groups = documents.domain if is_apart else None
                plan = plan_layout(pack.layout, documents.lengths, pack.length, groups)
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

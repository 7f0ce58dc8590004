"""The documents of a split in blocks, each with a plan of its own:
memory is bounded by a block, not by the corpus.

    chunks 0 1 2 │ 3 4 │ 5 6 …        whole chunks (shards, or turns of a mixture), up to a million documents
    plan   rows … │ rows … │          numbered on; the last rows of a stream (`concat`) are filled from the
                                      blocks after

Blocks are made anew each time they are asked for: plans cost little beside the copying.
Where domains are balanced, all plans are made once before, for the number of rows that each domain has.

Streams of documents cut into rows, a block of documents at a time: one stream, or one for each domain.

    documents   │ a1 b1 a2 a3 b2 │ a4 b3 … │         blocks of a few chunks
    stream a    |--row--|--row--|--row--|            a row belongs to the block in which it begins, …
    stream b    |------row------|------row---        … and is filled with what follows in its stream,
                                                     however far ahead

Rows come in the order of their first token, for any cut into blocks. What a row needs from ahead is at most
its length in tokens, so a block holds that much more for each stream; the search for it goes through the
chunks once for each.

The documents of a build, a chunk at a time: a working shard in the order of the corpus,
or some turns of a mixture.

    lengths-00000 │ lengths-00001 │ …               in the order of the corpus
    turns-train-00000 │ turns-train-00001 │ …       as the mixture ordered them: they carry all that a build
                                                    asks for

Documents are numbered through all chunks: the number of a document is its turn in the build.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Json
from tokmill.artifacts.plugins import Plugin
from tokmill.artifacts.step import Task, TaskOptions
from tokmill.formats import Columns
from tokmill.formats.ids import smallest_dtype
from tokmill.formats.index import RowSpans
from tokmill.packing.mixture import Balance, row_groups
from tokmill.packing.plan import Layout, Plan, Store, Tail, plan_layout, row_batches, take_rows
from tokmill.schema import one_piece
from tokmill.storage.disk import map_array
from tokmill.storage.tables import load_table


class PackOptions(TaskOptions, frozen=True, kw_only=True):
    """How documents are laid into rows."""

    layout: Layout
    length: int = 0  # 0: no rows, documents as they are
    mix_domains: bool | None = None  # may a row hold two domains
    tail: Tail | None = None  # of concat
    counted: Literal["in rows"] | None = None


class BuildOptions(TaskOptions, frozen=True, kw_only=True):
    """One of `builds` of a recipe."""

    name: str
    format: str
    plugin: Plugin | None = None  # whose format it is, if it is none of ours
    dtype: Literal["int32", "uint16", "smallest"]
    sources: tuple[str, ...]  # none: all
    rows_per_shard: int = 0  # of formats in shards
    columns: Columns = "ids"
    pack: PackOptions
    balance: Literal["none", "smallest"]
    seed: int


class SplitBuildOptions(BuildOptions, frozen=True, kw_only=True):
    """The same for one split; `dtype` is that of the ids."""

    split: str
    tokenizer: Json  # as the tokens step tells it
    experiment_id: str
    shards: tuple[tuple[int, str, str], ...]  # number, source and domain
    rows: int | None  # no more than these


# What a build has to know of a document, in its turn: `begin` is its first token in the file of its shard.
TURNS = pa.schema(
    [
        pa.field("shard", pa.uint32(), nullable=False),
        pa.field("begin", pa.int64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("language", pa.string()),
        pa.field("license", pa.string()),
    ]
)


@dataclass(frozen=True)
class Documents:
    """In the order in which they are built; one that repeats is there again."""

    number: NDArray[np.int64]
    lengths: NDArray[np.int64]
    store: Store
    doc_ids: Any
    sources: Any
    languages: Any
    licenses: Any
    domain: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, rows: NDArray[np.int64]) -> Documents:
        at = pa.array(rows)
        return Documents(
            self.number[rows],
            self.lengths[rows],
            Store(self.store.arrays, self.store.begin[rows], _shards(self)[rows]),
            self.doc_ids.take(at),
            self.sources.take(at),
            self.languages.take(at),
            self.licenses.take(at),
            self.domain[rows],
        )


def join_documents(parts: Sequence[Documents]) -> Documents:
    """One after the other; at least one."""
    if len(parts) == 1:
        return parts[0]
    return Documents(
        np.concatenate([part.number for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        Store(
            parts[0].store.arrays,
            np.concatenate([part.store.begin for part in parts]),
            np.concatenate([_shards(part) for part in parts]),
        ),
        pa.concat_arrays([part.doc_ids for part in parts]),
        pa.concat_arrays([part.sources for part in parts]),
        pa.concat_arrays([part.languages for part in parts]),
        pa.concat_arrays([part.licenses for part in parts]),
        np.concatenate([part.domain for part in parts]),
    )


def _shards(documents: Documents) -> NDArray[np.integer]:
    assert documents.store.array is not None, "every document has its shard"
    return documents.store.array


class Chunks(Protocol):
    """Documents in pieces of bounded size; `rows` are those of each."""

    @property
    def rows(self) -> list[int]: ...
    @property
    def domain_names(self) -> list[str]: ...
    @property
    def loss(self) -> Sequence[NDArray[np.integer]] | None:
        """By shard, as the ids are; None: every token is learned."""

    def load(self, chunk: int) -> Documents: ...
    def may_hold(self, chunk: int, domain: int) -> bool: ...


def open_chunks(task: Task[SplitBuildOptions]) -> Chunks:
    """A mixture has an order for the split, or the split is as it is in the corpus."""
    return _TurnChunks(task) if task.paths("order") else _ShardChunks(task)


class _ShardChunks:
    """A working shard each. Of a split without a document there is one, and nothing in it."""

    def __init__(self, task: Task[SplitBuildOptions]) -> None:
        self._origins = _Origins(task)
        self._paths = task.paths("lengths")
        self.rows = [item.rows for item in task.inputs if item.role == "lengths"]
        self.domain_names, self.loss = self._origins.domain_names, self._origins.loss
        self._starts = np.cumsum([0, *self.rows])

    def load(self, chunk: int) -> Documents:
        table = load_table(self._paths[chunk], ["doc_id", "tokens", "language", "license"])
        lengths = np.asarray(table.column("tokens"))
        shard = np.full(len(lengths), chunk, np.int32)
        return self._origins.documents(
            int(self._starts[chunk]), lengths, np.cumsum(lengths) - lengths, shard, table
        )

    def may_hold(self, chunk: int, domain: int) -> bool:
        return bool(self._origins.domain_of[chunk] == domain)


class _TurnChunks:
    """Some turns of the mixture each; of a build of some sources, those that are theirs."""

    def __init__(self, task: Task[SplitBuildOptions]) -> None:
        self._origins = _Origins(task)
        self._paths = task.paths("turns")
        self.domain_names, self.loss = self._origins.domain_names, self._origins.loss
        numbers = [number for number, _, _ in task.options.shards]
        self._place = np.full(max(numbers, default=0) + 1, -1, np.int32)
        self._place[numbers] = np.arange(len(numbers))
        self.rows = [item.rows for item in task.inputs if item.role == "turns"]
        self._has_all = not task.options.sources
        if not self._has_all:
            self.rows = [int((self._places(load_table(path, ["shard"])) >= 0).sum()) for path in self._paths]
        self._starts = np.cumsum([0, *self.rows])

    def load(self, chunk: int) -> Documents:
        table = load_table(self._paths[chunk], TURNS.names)
        places = self._places(table)
        if not self._has_all:
            is_wanted = places >= 0
            table, places = table.filter(pa.array(is_wanted)), places[is_wanted]
        assert not len(places) or int(places.min()) >= 0, f"{self._paths[chunk]}: a turn of no shard"
        lengths, begin = (np.asarray(table.column(name)) for name in ("tokens", "begin"))
        return self._origins.documents(int(self._starts[chunk]), lengths, begin, places, table)

    def may_hold(self, chunk: int, domain: int) -> bool:
        """Every stretch of a mixture has a part of each."""
        return True

    def _places(self, table: Any) -> NDArray[np.int32]:
        """Where the shard of each turn stands among those of the build; -1: it is none of them."""
        shard = np.asarray(table.column("shard"))
        is_known = shard < len(self._place)
        return np.where(is_known, self._place[np.where(is_known, shard, 0)], np.int32(-1))


class _Origins:
    """Shards of the build by their place among its inputs: source, domain, ids."""

    def __init__(self, task: Task[SplitBuildOptions]) -> None:
        shards = task.options.shards
        self.domain_names = list(dict.fromkeys(domain for _, _, domain in shards))
        self.domain_of = np.array([self.domain_names.index(domain) for _, _, domain in shards], np.int32)
        self._sources = pa.array([source for _, source, _ in shards], pa.string())
        self._maps = _id_maps(task)
        self.loss = _loss_maps(task, self._maps)

    def documents(
        self,
        first: int,
        lengths: NDArray[np.int64],
        begin: NDArray[np.int64],
        shard: NDArray[np.int32],
        table: Any,
    ) -> Documents:
        return Documents(
            number=first + np.arange(len(lengths), dtype=np.int64),
            lengths=lengths,
            store=Store(self._maps, begin, shard),
            doc_ids=one_piece(table.column("doc_id")),
            sources=pa.DictionaryArray.from_arrays(shard, self._sources),
            languages=one_piece(table.column("language")),
            licenses=one_piece(table.column("license")),
            domain=self.domain_of[shard],
        )


class _Maps(Sequence[NDArray[np.integer]]):
    """An array of each shard, mapped anew each time: what a batch has read does not stay in memory."""

    def __init__(self, count: int, load: Callable[[int], NDArray[np.integer]]) -> None:
        self._count, self._load = count, load

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int) -> NDArray[np.integer]: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[NDArray[np.integer]]: ...
    def __getitem__(self, number: int | slice) -> NDArray[np.integer] | Sequence[NDArray[np.integer]]:
        assert isinstance(number, int), "one at a time"
        return self._load(number)


def _id_maps(task: Task[SplitBuildOptions]) -> _Maps:
    paths, dtype = task.paths("tokens"), np.dtype(smallest_dtype(task.options.tokenizer["vocab_size"]))
    return _Maps(len(paths), lambda number: map_array(paths[number], dtype))


def _loss_maps(task: Task[SplitBuildOptions], tokens: _Maps) -> _Maps | None:
    """What is learned of the tokens of each shard: as its file says, and all where it has none."""
    paths = {int(path.stem.removeprefix("loss-")): path for path in task.paths("loss")}
    by_place = [paths.get(number) for number, _, _ in task.options.shards]

    def load(number: int) -> NDArray[np.integer]:
        path = by_place[number]
        if path is None:
            return np.ones(len(tokens[number]), np.uint8)
        return map_array(path, np.dtype(np.uint8))

    return _Maps(len(by_place), load) if paths else None


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
    def __init__(self, options: SplitBuildOptions, chunks: Chunks) -> None:
        self._options, self._chunks = options, chunks
        self.domain_names = chunks.domain_names
        self.loss = chunks.loss
        self._balance: Balance | None = None
        if self._options.balance == "smallest":
            rows = np.zeros(len(self.domain_names), np.int64)
            for cut in self._cuts():
                groups = row_groups(cut.plan, cut.documents.domain)
                rows += np.bincount(groups, minlength=len(rows))
            self._balance = Balance(rows.tolist(), self._options.seed)

    def __iter__(self) -> Iterator[Block]:
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

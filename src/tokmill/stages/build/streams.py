"""A source as a mixture sees it: documents in the order of each epoch, and those that were taken, once more.

    lengths-<shard> … ─ mark by the keyed hash of the id ─ sort ─> lengths of an epoch, in batches  read_epoch
    sorted runs … ──────────────────────────────────────── merge ─┘ └─ kept until they are passed
                                                                       ─> taken: TURNS and their place

Two things are held: what the schedule has not passed yet, and what sorting holds.
Both are bounded by constants.

Documents may have levels: how often each was had before. The n-th pass of a source is of those that had it
not yet, in the order that this pass always has. So one that was had comes after all that were had less often,
and mixtures that follow each other go through a source as one would.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.packing.quotas import Holding, Unit
from tokmill.packing.schedule import Offered, refuse_long_documents
from tokmill.schema import ORDER, one_piece
from tokmill.stages.build.runs import MARK, Runs, Taken, is_place, joined, load_documents, mark_documents
from tokmill.stages.build.staged import NEVER
from tokmill.stages.external.sorting import sort_tables
from tokmill.storage.digests import id_hashes
from tokmill.storage.tables import load_table

# In memory of all sources together, while their runs are merged.
_MERGE_ROWS = 1 << 19


# How often each document of a shard is offered in an epoch, by the number of the shard; None: once.
Times = Callable[[int], NDArray[np.int64]]

# How often each document of a shard was had before, by the number of the shard; None: none was.
Levels = Callable[[int], NDArray[np.uint8]]

# Which documents of a shard come last in each pass, by the number of the shard; None: none does.
Last = Callable[[int], NDArray[np.bool_]]

_COPY = np.uint64(0x9E3779B97F4A7C15)


class StreamOptions(NamedTuple):
    """What the streams of a mixture have in common."""

    order: Literal["shuffle", "corpus"]
    seed: int
    unit: Unit
    directory: Path
    sources: int  # that share the memory


class SourceStream:
    """The documents of the shards of one source: their numbers, and where their lengths are."""

    def __init__(
        self,
        name: str,
        domain: str,
        shards: list[tuple[int, Path]],
        options: StreamOptions,
        runs: Runs | None = None,
        times: Times | None = None,
        levels: Levels | None = None,
        last: Last | None = None,
    ) -> None:
        """`runs`: the same documents, where they were sorted before. `levels`: two bytes a document; with
        them `last`, one more."""
        assert last is None or levels is not None, "in the passes of documents that have levels"
        assert times is None or levels is None, "which pass is that of a document that has several in one?"
        self._name, self._shards, self._options, self._runs = name, shards, options, runs
        self._times = times
        self._levels: dict[int, NDArray[np.uint8]] | None = None
        if levels is not None:
            self._levels = {number: np.asarray(levels(number), np.uint8) for number, _ in shards}
        self._last = {number: last(number) for number, _ in shards} if last is not None else None
        self._had = {number: had.copy() for number, had in (self._levels or {}).items()}  # by now
        self.documents = self.offered = self.left_out = tokens = longest = 0
        self.tokens_once = 0  # of documents that are offered at all
        self._is_taken: dict[int, NDArray[np.uint8]] = {}  # of each shard, a bit for each document
        passes = np.zeros(NEVER + 1, np.int64)  # tokens by level
        for number, lengths in zip(self._numbers(), self._lengths(), strict=True):
            refuse_long_documents(lengths, name)
            often = np.ones(len(lengths), np.int64) if times is None else times(number)
            if self._levels is not None:
                own = self._levels[number]
                assert len(own) == len(lengths), f"{name}: levels of {len(own)} of {len(lengths)} documents"
                often = (own != NEVER).astype(np.int64)
                np.add.at(passes, own, lengths)
            self.documents += len(lengths)
            self.offered += int(often.sum())
            self.left_out += int((often == 0).sum())
            self.tokens_once += int(lengths[often > 0].sum())
            tokens += int((lengths * often).sum())
            longest = max(longest, int(lengths[often > 0].max(initial=0)))
            if times is not None:
                self._is_taken[number] = np.zeros(-(-len(lengths) // 8), np.uint8)
        reached = np.flatnonzero(passes[:NEVER])
        left = np.cumsum(passes[: int(reached[-1]) + 1]).tolist() if len(reached) else ()
        self.holding = Holding(name, domain, tokens, longest, tuple(left))
        self._read = 0
        self._waiting: deque[tuple[int, Any]] = deque()  # position of the first row, rows

    def read_epoch(self, epoch: int) -> Iterator[Offered]:
        read = self._tables if self._options.order == "corpus" else self._shuffled
        for table in itertools.chain.from_iterable(read(epoch, is_last) for is_last in self._rounds()):
            self._waiting.append((self._read, table))
            self._read += table.num_rows
            lengths = np.asarray(table.column("tokens"))
            match self._options.unit:
                case "documents":
                    yield Offered(lengths, np.ones(len(lengths), np.int64))
                case "megabytes":
                    yield Offered(lengths, np.asarray(table.column("text_bytes")))
                case _:
                    yield Offered(lengths)

    def take(self, positions: NDArray[np.int64]) -> Taken:
        """The documents at these positions, ascending; nobody asks for one of them or before them again."""
        found = []
        while len(positions):
            assert self._waiting, f"{self._name}: {len(positions)} documents that were not read"
            first, table = self._waiting[0]
            stop = int(np.searchsorted(positions, first + table.num_rows))
            mine, positions = positions[:stop] - first, positions[stop:]
            if len(mine) and int(mine[-1]) - int(mine[0]) == len(mine) - 1:
                found.append(table.slice(int(mine[0]), len(mine)))
            else:
                found.append(table.take(pa.array(mine)))
            if len(positions) or int(mine[-1]) == table.num_rows - 1:
                self._waiting.popleft()
        for table in found if self._times is not None else ():
            self._note(table)
        taken = joined([self._documents(table) for table in found if table.num_rows])
        if self._levels is not None:
            self._note_levels(taken)
        return taken

    def distinct(self, turns: int) -> int:
        """How many different documents have had a turn, of so many turns.

        A source begins an epoch when all its documents have had their turn: none of them is passed over
        before the last epoch, where the room that is left may be too small. So there are as many different
        documents as turns, up to all; where some repeat within an epoch, or had turns before, they are
        counted one by one.
        """
        if self._levels is not None:
            return sum(int((self._had[number] != before).sum()) for number, before in self._levels.items())
        if self._times is None:
            return min(turns, self.documents)
        return sum(int(np.unpackbits(bits).sum()) for bits in self._is_taken.values())

    def used_up(self, passes: int) -> int:
        """Documents that had all of so many passes before."""
        if self._levels is None:
            return 0
        return sum(int(((had >= passes) & (had != NEVER)).sum()) for had in self._levels.values())

    def again(self) -> int:
        """Documents that have had a turn, and had one before."""
        if self._levels is None:
            return 0
        pairs = ((self._had[number], before) for number, before in self._levels.items())
        return sum(int(((before > 0) & (now != before)).sum()) for now, before in pairs)

    @property
    def has_levels(self) -> bool:
        return self._levels is not None

    def had_by_now(self, before: Mapping[int, NDArray[np.uint8]]) -> dict[int, NDArray[np.uint8]]:
        """Of its shards; of documents that had no turn here, as they were before."""
        assert self._levels is not None, "nobody counts it"
        return {
            number: np.where(self._levels[number] == NEVER, before[number], now)
            for number, now in self._had.items()
        }

    def tokens_of(self, had: Mapping[int, NDArray[np.uint8]]) -> tuple[int, int]:
        """Tokens that were had so often, each time counted, and those of all documents once."""
        pairs = [
            (had[number], np.asarray(load_table(path, ["tokens"]).column("tokens")))
            for number, path in self._shards
        ]
        return sum(int((own * tokens).sum()) for own, tokens in pairs), sum(int(t.sum()) for _, t in pairs)

    def _note_levels(self, taken: Taken) -> None:
        shards, rows = (np.asarray(one_piece(taken.table.column(name))) for name in ORDER.names)
        shards, rows = shards[taken.order], rows[taken.order].astype(np.int64)
        for number in np.unique(shards).tolist():
            np.add.at(self._had[number], rows[shards == number], np.uint8(1))

    def _note(self, table: Any) -> None:
        shards, rows = (np.asarray(one_piece(table.column(name))) for name in ("shard", "sequence"))
        for number in np.unique(shards).tolist():
            mine = rows[shards == number].astype(np.int64)
            np.bitwise_or.at(self._is_taken[number], mine >> 3, (1 << (mine & 7)).astype(np.uint8))

    def _numbers(self) -> Iterator[int]:
        if self._runs is not None and self._levels is None:
            yield from range(len(self._runs.lengths))  # of runs, which no document repeats in
        else:
            yield from (number for number, _ in self._shards)

    def _documents(self, table: Any) -> Taken:
        if self._runs is not None and is_place(table):
            return self._runs.take(table)
        return Taken(table, np.arange(table.num_rows))

    def _lengths(self) -> Iterator[NDArray[np.int64]]:
        if self._runs is not None and self._levels is None:
            yield from self._runs.lengths
        else:
            for _, path in self._shards:
                yield np.asarray(load_table(path, ["tokens"]).column("tokens"))

    def _rounds(self) -> tuple[bool | None, ...]:
        """A pass is read once; or twice, where some documents come last in it. None: all of them."""
        return (None,) if self._last is None else (False, True)

    def _shuffled(self, epoch: int, is_last: bool | None) -> Iterator[Any]:
        memory = _MERGE_ROWS // self._options.sources
        if self._runs is not None and not epoch:
            for places in self._runs.read(memory):
                if self._levels is not None:
                    yield self._of_pass(epoch, is_last, places, self._runs.names(places))
                else:
                    yield places
            return

        def marked() -> Iterator[Any]:
            first = 0
            for table, copies in self._copied():
                identities = id_hashes(table.column("doc_id"))
                if copies is not None:  # each copy has a place of its own
                    identities = identities ^ (copies.astype(np.uint64) * _COPY)
                whole = self.offered if self._levels is None else self.documents
                marked = mark_documents(
                    table, identities, self._name, self._options.seed, epoch, first, whole
                )
                first += table.num_rows
                yield self._of_pass(epoch, is_last, marked, marked)

        for table in sort_tables(marked(), MARK.name, self.offered, self._options.directory, memory):
            yield table.drop_columns([MARK.name])

    def _of_pass(self, epoch: int, is_last: bool | None, table: Any, names: Any) -> Any:
        """Those rows whose documents have this pass, and come last in it or do not; `names` has the shard and
        the number of each."""
        if self._levels is None:
            return table
        shards, rows = (np.asarray(one_piece(names.column(name))) for name in ORDER.names)
        is_left = np.zeros(len(shards), np.bool_)
        for number in np.unique(shards).tolist():
            mine = np.flatnonzero(shards == number)
            is_left[mine] = self._levels[number][rows[mine]] <= epoch
            if self._last is not None:
                is_left[mine] &= self._last[number][rows[mine]] == is_last
        return table.filter(pa.array(is_left)).combine_chunks()

    def _tables(self, epoch: int, is_last: bool | None) -> Iterator[Any]:
        """In the order of the corpus; a document that repeats stands there so often."""
        yield from (self._of_pass(epoch, is_last, table, table) for table, _ in self._copied())

    def _copied(self) -> Iterator[tuple[Any, NDArray[np.int64] | None]]:
        for number, path in self._shards:
            table = load_documents(number, path)
            if self._times is None:
                yield table, None
                continue
            often = self._times(number)
            rows = np.repeat(np.arange(table.num_rows), often)
            copies = np.arange(len(rows)) - np.repeat(np.cumsum(often) - often, often)
            yield table.take(pa.array(rows)).combine_chunks(), copies

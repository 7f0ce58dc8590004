"""The tokens of a split as a writer gets them (`formats.Tokens`): gathered by the plan, a batch at a time.

    plan + store ─ gather ─> rows, or documents ─ Format.write ─> the files of the format

A batch is gathered while the one before it is written: copying, hashing and writing are free of the GIL, and
so a file grows as fast as the slowest of them.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Json
from tokmill.formats import Columns
from tokmill.formats.ids import Sequences
from tokmill.packing.plan import Store, gather_positions, gather_rows, gather_sequences
from tokmill.stages.build.blocks import Block
from tokmill.stages.build.documents import Names
from tokmill.stages.build.options import SplitBuildOptions

T = TypeVar("T")


class PlannedSplit(Protocol):
    """Blocks in order, as often as they are asked for: planned here, or mapped."""

    @property
    def loss(self) -> Any: ...
    @property
    def names(self) -> Names: ...
    def __iter__(self) -> Iterator[Block]: ...


@dataclass(frozen=True)
class SplitTokens:
    """Of all rows of a split, or of some of them."""

    options: SplitBuildOptions
    blocks: PlannedSplit
    counts: Json
    first_row: int = 0
    stop_row: int | None = None

    @property
    def split(self) -> str:
        return self.options.split

    @property
    def rows(self) -> int:
        stop = self.split_rows if self.stop_row is None else self.stop_row
        return stop - self.first_row

    @property
    def split_rows(self) -> int:
        return int(self.counts["rows"])

    @property
    def seq_len(self) -> int:
        return self.options.pack.length

    @property
    def dtype(self) -> str:
        return self.options.dtype

    @property
    def rows_per_shard(self) -> int:
        return self.options.rows_per_shard

    @property
    def columns(self) -> Columns:
        return self.options.columns

    @property
    def tokenizer(self) -> Json:
        return self.options.tokenizer

    @property
    def experiment_id(self) -> str:
        return self.options.experiment_id

    def describe(self) -> Json:
        facts = self.tokenizer
        return {
            "layout": self.options.pack.layout,
            "tokenizer_path": f"../../../tokenizer/{facts['file']}",
            "tokenizer_sha256": facts["sha256"],
            "eos_id": facts["eos_id"],
            **({"bos_id": facts["bos_id"]} if "bos_id" in facts else {}),
            "pad_id": self._pad_id if self.counts["tokens"]["padding"] else None,
            "vocab_size": facts["vocab_size"],
            "padded_vocab_size": facts.get("padded_vocab_size") or facts["vocab_size"],
            "split": self.split,
            **({"is_in_order": True} if self.options.is_in_order else {}),
            "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "counts": {"documents": self.counts["kept"], **self.counts["tokens"]},
        }

    def batches(self) -> Iterator[tuple[Block, int, int]]:
        """Rows of a block, as it numbers them."""
        for block in self.blocks:
            for first, stop in block.batches(self.first_row, self.stop_row):
                yield block, first, stop

    def read_rows(self) -> Iterator[NDArray[np.integer]]:
        return (ids.reshape(-1, self.seq_len) for ids in self.read_ids())

    def read_ids(self) -> Iterator[NDArray[np.integer]]:
        lent: deque[_Lent] = deque()  # arrays that are done with

        def gather(block: Block, first: int, stop: int) -> tuple[NDArray[np.integer], _Lent]:
            return self._gather(block, first, stop, lent.popleft() if lent else _Lent())

        for ids, arrays in do_ahead(gather, self.batches()):
            yield ids
            lent.append(arrays)

    def _gather(self, block: Block, first: int, stop: int, lent: _Lent) -> tuple[NDArray[np.integer], _Lent]:
        """The ids of these rows, and the arrays that they lie in."""
        plan, store, dtype = block.plan, block.documents.store, np.dtype(self.dtype).newbyteorder("<")
        if self.seq_len:
            room = lent.as_stored.reshape(-1, self.seq_len) if len(lent.as_stored) else None
            into = room if room is not None and len(room) >= stop - first else None
            rows = gather_rows(plan, store, first, stop, pad_id=self._pad_id, into=into)
            as_stored = rows.reshape(-1)
        else:
            into = lent.as_stored if len(lent.as_stored) else None
            as_stored = gather_sequences(plan, store, first, stop, into)
        if as_stored.dtype == dtype or not np.can_cast(as_stored.dtype, dtype):
            return as_stored, _Lent(_whole(as_stored), lent.as_written)
        wide = lent.as_written if lent.as_written.size >= as_stored.size else np.empty(as_stored.size, dtype)
        np.copyto(wide[: as_stored.size], as_stored)
        return wide[: as_stored.size], _Lent(_whole(as_stored), wide)

    @property
    def has_loss(self) -> bool:
        return self.blocks.loss is not None

    def read_loss(self) -> Iterator[NDArray[np.integer]]:
        for block, first, stop in self.batches():
            yield gather_rows(block.plan, self._loss(block), first, stop, pad_id=0)

    def read_sequences(self) -> Iterator[Sequences]:
        return do_ahead(self._rows_of if self.seq_len else self._documents_of, self.batches())

    def _rows_of(self, block: Block, first: int, stop: int) -> Sequences:
        plan, loss = block.plan, None
        rows = gather_rows(plan, block.documents.store, first, stop, pad_id=self._pad_id)
        places = gather_positions(plan, first, stop) if self.columns != "ids" else None
        if self.has_loss:
            loss = gather_rows(plan, self._loss(block), first, stop, pad_id=0).reshape(-1)
        return Sequences(rows.reshape(-1), np.full(stop - first, self.seq_len), None, places, loss)

    def _documents_of(self, block: Block, first: int, stop: int) -> Sequences:
        plan, documents, loss = block.plan, block.documents, None
        ids = gather_sequences(plan, documents.store, first, stop)
        if self.has_loss:
            loss = gather_sequences(plan, self._loss(block), first, stop)
        lengths, numbers = documents.lengths[first:stop], documents.number[first:stop]
        places = _counted(lengths) if self.columns != "ids" else None
        return Sequences(ids, lengths, _LazyNames(self.blocks.names, numbers), places, loss)

    def _loss(self, block: Block) -> Store:
        """By the same plan as the ids."""
        assert self.blocks.loss is not None, "every token is learned"
        return block.documents.store._replace(arrays=self.blocks.loss)

    def lengths(self) -> Iterable[NDArray[np.int64]]:
        return _Lengths(self)

    @property
    def _pad_id(self) -> int:
        return int(self.tokenizer["eos_id"])


_NONE: NDArray[np.integer] = np.empty(0, np.int64)


class _Lent(NamedTuple):
    """Arrays that are used again: the pages of fresh ones cost more than what is copied into them."""

    as_stored: NDArray[np.integer] = _NONE
    as_written: NDArray[np.integer] = _NONE


def _whole(part: NDArray[np.integer]) -> NDArray[np.integer]:
    """The array that this is the beginning of, flat."""
    return (part if part.base is None else part.base).reshape(-1)


# Copies that are made while one is hashed and written. In the order of a mixture a copy takes 2.3 ns a token,
# most of it for the first touch of pages; SHA-256 of two bytes takes 1.9 at 1,050 MB/s.
_AHEAD = 2


def do_ahead(act: Callable[[Block, int, int], T], batches: Iterator[tuple[Block, int, int]]) -> Iterator[T]:
    """What `act` makes of each, in order; the next are made, by threads, while one is used."""
    with ThreadPoolExecutor(_AHEAD) as threads:
        coming = deque(threads.submit(act, *batch) for batch in itertools.islice(batches, _AHEAD))
        try:
            while coming:
                made = coming.popleft().result()
                coming.extend(threads.submit(act, *batch) for batch in itertools.islice(batches, 1))
                yield made
        finally:
            for future in coming:
                future.cancel()


class _LazyNames(Sequence[str]):
    """Read when a format asks for one: most do not."""

    def __init__(self, names: Names, numbers: NDArray[np.int64]) -> None:
        self._names, self._numbers = names, numbers

    @functools.cached_property
    def _loaded(self) -> list[str]:
        return cast("list[str]", self._names.take(self._numbers).to_pylist())

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        return self._loaded[at]


def _counted(lengths: NDArray[np.int64]) -> NDArray[np.int32]:
    """0, 1, … in each."""
    ends = np.cumsum(lengths)
    return (np.arange(int(lengths.sum())) - np.repeat(ends - lengths, lengths)).astype(np.int32)


class _Lengths:
    """Of documents, a batch at a time, as often as they are asked for."""

    def __init__(self, tokens: SplitTokens) -> None:
        self._tokens = tokens

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        for block, first, stop in self._tokens.batches():
            yield np.asarray(block.documents.lengths[first:stop])

"""The documents of a build, a chunk at a time: a working shard in the order of the corpus,
or some turns of a mixture.

    lengths-00000 │ lengths-00001 │ …               in the order of the corpus
    turns-train-00000 │ turns-train-00001 │ …       as the mixture ordered them: they carry all that a build
                                                    asks for

Documents are numbered through all chunks: the number of a document is its turn in the build. Their names are
read apart, by who writes them: rows are planned and gathered without.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifacts.step import Task
from tokmill.formats.ids import smallest_dtype
from tokmill.packing.plan import Store
from tokmill.schema import one_piece
from tokmill.stages.build.options import SplitBuildOptions
from tokmill.storage.disk import told_as_unreadable
from tokmill.storage.tables import load_table

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
    domain: NDArray[np.int32]
    languages: Any
    licenses: Any

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def shard(self) -> NDArray[np.integer]:
        """Of each, by its place among the inputs."""
        assert self.store.array is not None, "every document has its shard"
        return self.store.array

    def take(self, rows: NDArray[np.int64]) -> Documents:
        at = pa.array(rows)
        return Documents(
            self.number[rows],
            self.lengths[rows],
            Store(self.store.arrays, self.store.begin[rows], self.shard[rows]),
            self.domain[rows],
            self.languages.take(at),
            self.licenses.take(at),
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
            np.concatenate([part.shard for part in parts]),
        ),
        np.concatenate([part.domain for part in parts]),
        pa.concat_arrays([part.languages for part in parts]),
        pa.concat_arrays([part.licenses for part in parts]),
    )


class Chunks(Protocol):
    """Documents in pieces of bounded size; `rows` are those of each."""

    @property
    def rows(self) -> list[int]: ...
    @property
    def domain_names(self) -> list[str]: ...
    @property
    def loss(self) -> Sequence[NDArray[np.integer]] | None:
        """By shard, as the ids are; None: every token of the build is learned."""

    def load(self, chunk: int) -> Documents: ...
    def load_names(self, chunk: int) -> Any:
        """The ids of its documents, as an array of strings."""

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
        table = load_table(self._paths[chunk], ["tokens", "language", "license"])
        lengths = np.asarray(table.column("tokens"))
        shard = np.full(len(lengths), chunk, np.int32)
        return self._origins.documents(
            int(self._starts[chunk]), lengths, np.cumsum(lengths) - lengths, shard, table
        )

    def load_names(self, chunk: int) -> Any:
        return one_piece(load_table(self._paths[chunk], ["doc_id"]).column("doc_id"))

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
        table, places = self._turns(chunk, ["begin", "tokens", "language", "license"])
        assert not len(places) or int(places.min()) >= 0, f"{self._paths[chunk]}: a turn of no shard"
        lengths, begin = (np.asarray(table.column(name)) for name in ("tokens", "begin"))
        return self._origins.documents(int(self._starts[chunk]), lengths, begin, places, table)

    def load_names(self, chunk: int) -> Any:
        return one_piece(self._turns(chunk, ["doc_id"])[0].column("doc_id"))

    def _turns(self, chunk: int, columns: list[str]) -> tuple[Any, NDArray[np.int32]]:
        table = load_table(self._paths[chunk], ["shard", *columns])
        places = self._places(table)
        if self._has_all:
            return table, places
        is_wanted = places >= 0
        return table.filter(pa.array(is_wanted)), places[is_wanted]

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
        self.maps = id_maps(task)
        self.loss = loss_maps(task, self.maps)

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
            store=Store(self.maps, begin, shard),
            domain=self.domain_of[shard],
            languages=one_piece(table.column("language")),
            licenses=one_piece(table.column("license")),
        )


class Names:
    """The ids of documents by their numbers; the chunk that was read last is kept."""

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        self._starts = np.cumsum([0, *chunks.rows])
        self._kept: tuple[int, Any] | None = None

    def take(self, numbers: NDArray[np.int64]) -> Any:
        """Of those numbers, which ascend but for a few at the end."""
        order = np.argsort(numbers, kind="stable")
        numbers = numbers[order]
        chunk = np.searchsorted(self._starts, numbers, "right") - 1
        bounds = np.flatnonzero(np.diff(chunk, prepend=-1, append=-1))
        found = [pa.array([], pa.string())]
        for first, stop in itertools.pairwise(bounds.tolist()):
            rows = numbers[first:stop] - self._starts[chunk[first]]
            names = self._load(int(chunk[first]))
            if int(rows[-1]) - int(rows[0]) == len(rows) - 1:
                found.append(names.slice(int(rows[0]), len(rows)))
            else:
                found.append(names.take(pa.array(rows)))
        taken = pa.concat_arrays(found)
        if (np.diff(order) == 1).all():
            return taken
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        return taken.take(pa.array(place))

    def _load(self, chunk: int) -> Any:
        if self._kept is None or self._kept[0] != chunk:
            self._kept = chunk, self._chunks.load_names(chunk)
        return self._kept[1]


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


def id_maps(task: Task[SplitBuildOptions]) -> _Maps:
    paths, dtype = task.paths("tokens"), np.dtype(smallest_dtype(task.options.tokenizer["vocab_size"]))
    return _Maps(len(paths), lambda number: _map(paths[number], dtype))


def _map(path: Path, dtype: np.dtype[np.integer]) -> NDArray[np.integer]:
    """As `map_array` does it, in 15 µs instead of 88: a mixture maps every shard for every batch."""
    with told_as_unreadable(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if not os.fstat(descriptor).st_size:  # a map of nothing is refused
                return np.empty(0, dtype)
            return np.frombuffer(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ), dtype)
        finally:
            os.close(descriptor)


def loss_maps(task: Task[SplitBuildOptions], tokens: _Maps) -> _Maps | None:
    """What is learned of the tokens of each shard: as its file says, and all where it has none. None: the
    build has no such file for any split."""
    paths = {int(path.stem.removeprefix("loss-")): path for path in task.paths("loss")}
    by_place = [paths.get(number) for number, _, _ in task.options.shards]

    def load(number: int) -> NDArray[np.integer]:
        path = by_place[number]
        if path is None:
            return np.ones(len(tokens[number]), np.uint8)
        return _map(path, np.dtype(np.uint8))

    return _Maps(len(by_place), load) if paths or task.options.has_loss else None

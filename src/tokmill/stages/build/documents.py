"""The documents of a build, a chunk at a time: a working shard in the order of the corpus, or some turns of a mixture.

    lengths-00000 │ lengths-00001 │ …               in the order of the corpus
    turns-train-00000 │ turns-train-00001 │ …       as the mixture ordered them: they carry all that a build asks for

Documents are numbered through all chunks: the number of a document is its turn in the build.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Json
from tokmill.artifacts.step import Task
from tokmill.formats.ids import smallest_dtype
from tokmill.packing.rows import Store
from tokmill.schema import one_piece
from tokmill.storage.parquet import load_table
from tokmill.storage.reading import map_array

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
    def load(self, chunk: int) -> Documents: ...
    def may_hold(self, chunk: int, domain: int) -> bool: ...


def open_chunks(task: Task) -> Chunks:
    """A mixture has an order for the split, or the split is as it is in the corpus."""
    return _TurnChunks(task) if task.paths("order") else _ShardChunks(task)


class _ShardChunks:
    """A working shard each. Of a split without a document there is one, and nothing in it."""

    def __init__(self, task: Task) -> None:
        self._origins = _Origins(task)
        self._paths = task.paths("lengths")
        self.rows = [item.rows for item in task.inputs if item.role == "lengths"]
        self.domain_names = self._origins.domain_names
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

    def __init__(self, task: Task) -> None:
        self._origins = _Origins(task)
        self._paths = task.paths("turns")
        self.domain_names = self._origins.domain_names
        numbers = [number for number, _, _ in task.config["shards"]]
        self._place = np.full(max(numbers, default=0) + 1, -1, np.int32)
        self._place[numbers] = np.arange(len(numbers))
        self.rows = [item.rows for item in task.inputs if item.role == "turns"]
        self._has_all = not task.config["sources"]
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

    def __init__(self, task: Task) -> None:
        shards = task.config["shards"]
        self.domain_names = list(dict.fromkeys(domain for _, _, domain in shards))
        self.domain_of = np.array([self.domain_names.index(domain) for _, _, domain in shards], np.int32)
        self._sources = pa.array([source for _, source, _ in shards], pa.string())
        self._maps = _Maps(task.paths("tokens"), task.config["tokenizer"])

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
    """The ids of each shard, mapped anew each time: what a batch has read does not stay in memory."""

    def __init__(self, paths: list[Path], tokenizer: Json) -> None:
        self._paths = paths
        self._dtype = np.dtype(smallest_dtype(tokenizer["vocab_size"]))

    def __len__(self) -> int:
        return len(self._paths)

    @overload
    def __getitem__(self, number: int) -> NDArray[np.integer]: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[NDArray[np.integer]]: ...
    def __getitem__(self, number: int | slice) -> NDArray[np.integer] | Sequence[NDArray[np.integer]]:
        assert isinstance(number, int), "one at a time"
        return map_array(self._paths[number], self._dtype)

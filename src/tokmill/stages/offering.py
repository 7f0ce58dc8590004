"""A source as a mixture sees it: its documents in the order of each epoch, and those that were taken, once more.

    lengths-<shard> … ─ mark by the keyed hash of the id ─ sort ─> lengths of an epoch, in batches     read_epoch
                                                           └─ kept until they are passed ─> taken: TURNS and their place

Two things are held: what the schedule has not passed yet, and what sorting holds. Both are bounded by constants.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.kernels import sha256
from tokmill.kernels.mixing import mark_shuffle
from tokmill.pack.budget import Holding, Unit
from tokmill.pack.scheduling import refuse_long_documents, shuffle_key
from tokmill.pack.turning import Offered
from tokmill.schema import ORDER, string_column
from tokmill.stages.documents import TURNS
from tokmill.stages.sorting import sort_tables
from tokmill.stages.tokenized import TokenShard
from tokmill.storage.parquet import load_table

# A document on its way through the mixture: where it lies, and what a build will ask for.
_OFFERED = pa.schema(
    [
        ORDER.field("shard"),
        ORDER.field("sequence"),
        *(field for field in TURNS if field.name != "shard"),
        pa.field("text_bytes", pa.int64(), nullable=False),
    ]
)
_MARK = pa.field("mark", pa.uint64(), nullable=False)

# In memory of all sources together, while their runs are merged.
_MERGE_ROWS = 1 << 19


class Way(NamedTuple):
    """How documents are offered."""

    order: str  # shuffle | corpus
    seed: int
    unit: Unit
    directory: Path
    sources: int  # that share the memory


class Offering:
    """The documents of the shards of one source."""

    def __init__(self, name: str, domain: str, shards: list[TokenShard], way: Way) -> None:
        self._name, self._shards, self._way = name, shards, way
        self.documents = tokens = 0
        for shard in shards:
            lengths = np.asarray(load_table(shard.path, ["tokens"]).column("tokens"))
            refuse_long_documents(lengths, name)
            self.documents += len(lengths)
            tokens += int(lengths.sum())
        self.holding = Holding(name, domain, tokens)
        self._offered = 0
        self._waiting: deque[tuple[int, Any]] = deque()  # position of the first row, rows

    def read_epoch(self, epoch: int) -> Iterator[Offered]:
        for table in self._tables() if self._way.order == "corpus" else self._shuffled(epoch):
            self._waiting.append((self._offered, table))
            self._offered += table.num_rows
            lengths = np.asarray(table.column("tokens"))
            match self._way.unit:
                case "documents":
                    yield Offered(lengths, np.ones(len(lengths), np.int64))
                case "megabytes":
                    yield Offered(lengths, np.asarray(table.column("text_bytes")))
                case _:
                    yield Offered(lengths)

    def take(self, positions: NDArray[np.int64]) -> Any:
        """The documents at these positions, ascending; nobody asks for one of them or before them again."""
        found = []
        while len(positions):
            assert self._waiting, f"{self._name}: {len(positions)} documents that were not offered"
            first, table = self._waiting[0]
            stop = int(np.searchsorted(positions, first + table.num_rows))
            mine, positions = positions[:stop] - first, positions[stop:]
            if len(mine) and int(mine[-1]) - int(mine[0]) == len(mine) - 1:
                found.append(table.slice(int(mine[0]), len(mine)))
            else:
                found.append(table.take(pa.array(mine)))
            if len(positions) or int(mine[-1]) == table.num_rows - 1:
                self._waiting.popleft()
        return pa.concat_tables(found)

    def _shuffled(self, epoch: int) -> Iterator[Any]:
        key = shuffle_key(self._way.seed, epoch, self._name)

        def marked() -> Iterator[Any]:
            first = 0
            for table in self._tables():
                identities = sha256.sha256_prefixes(*string_column(table.column("doc_id"))[:2])
                marks = mark_shuffle(identities, key, first, self.documents)
                first += table.num_rows
                yield table.append_column(_MARK, pa.array(marks))

        memory = _MERGE_ROWS // self._way.sources
        for table in sort_tables(marked(), "mark", self.documents, self._way.directory, memory):
            yield table.drop_columns(["mark"])

    def _tables(self) -> Iterator[Any]:
        for shard in self._shards:
            table = load_table(shard.path, ["doc_id", "tokens", "text_bytes", "language", "license"])
            lengths = np.asarray(table.column("tokens"))
            columns = {
                "shard": np.full(len(lengths), shard.number, np.uint32),
                "sequence": np.arange(len(lengths), dtype=np.uint32),
                "begin": np.cumsum(lengths) - lengths,
                **{name: table.column(name) for name in table.column_names},
            }
            yield pa.table([columns[name] for name in _OFFERED.names], schema=_OFFERED)

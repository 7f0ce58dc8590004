"""The documents of a split in blocks, each with a plan of its own: memory is bounded by a block, not by the corpus.

    shards 0 1 2 │ 3 4 │ 5 6 …        whole shards, up to a million documents
    plan   rows … │ rows … │          numbered on; the tail of a stream (`concat`) is the beginning of the next block

Blocks are made anew each time they are asked for: plans cost little beside the copying. A mixture, which orders all
documents, and streams that keep domains apart are one block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.formats.ids import smallest_dtype
from tokmill.formats.row_index import RowSpans
from tokmill.manifest import Json
from tokmill.pack.balance import balance_smallest
from tokmill.pack.compare import plan_layout
from tokmill.pack.concat import Tail
from tokmill.pack.gather import Store, row_batches
from tokmill.pack.plan import Plan, take_rows
from tokmill.schema import one_piece
from tokmill.storage.parquet import load_table
from tokmill.task import Task

# Two blocks of so many are alive at once and take 300 MB: 32 bytes of a plan, 30 of names, and what is made on the way.
_BLOCK_DOCUMENTS = 1 << 20


@dataclass(frozen=True)
class Documents:
    """In the order in which they are built; one that repeats is there again."""

    lengths: NDArray[np.int64]
    store: Store
    doc_ids: Any
    sources: Any
    languages: Any
    licenses: Any
    domain: NDArray[np.int32]

    def tail(self, count: int, skipped: int) -> Documents:
        """The last `count`, of the first of which `skipped` tokens are left out."""
        first = len(self.lengths) - count
        lengths, begin = self.lengths[first:].copy(), self.store.begin[first:].copy()
        if count:
            lengths[0] -= skipped
            begin[0] += skipped
        array = None if self.store.array is None else self.store.array[first:]
        return Documents(
            lengths,
            Store(self.store.arrays, begin, array),
            self.doc_ids.slice(first),
            self.sources.slice(first),
            self.languages.slice(first),
            self.licenses.slice(first),
            self.domain[first:],
        )


class Block(NamedTuple):
    """`documents` and where they go. Rows and documents count from `first_row` and `first_document` in the whole."""

    documents: Documents
    plan: Plan
    first_row: int = 0
    first_document: int = 0
    skipped: int = 0  # tokens of its first document that stand in rows of the block before
    carried: int = 0  # tokens at its end that stand in rows of the block after

    def spans(self, first_row: int, stop_row: int) -> RowSpans:
        """Of rows of the block, as the whole numbers them; documents as the block does."""
        spans = self.plan.spans(first_row, stop_row)
        offset = spans.offset
        if self.skipped:
            offset = offset + np.where(spans.document == 0, self.skipped, 0)
        return spans._replace(row=spans.row + self.first_row, offset=offset)

    def batches(self) -> Iterator[tuple[int, int]]:
        return row_batches(self.plan)


class Blocks:
    def __init__(self, task: Task) -> None:
        self._config, self._shards = task.config, task.config["shards"]
        self._lengths, self._tokens = task.paths("lengths"), task.paths("tokens")
        self._order = task.paths("order")
        self._rows = [item.rows for item in task.inputs if item.role == "lengths"]
        self.domain_names = list(dict.fromkeys(domain for _, _, domain in self._shards))
        pack = self._config["pack"]
        is_apart = pack["layout"] == "concat" and not pack["mix_domains"]
        self._only: Block | None = None
        if self._order or is_apart:
            documents = self._load(range(len(self._shards)))
            self._only = Block(documents, self._plan(documents, is_last=True))

    def __iter__(self) -> Iterator[Block]:
        if self._only is not None:
            yield self._only
            return
        groups = self._groups()
        carry: Documents | None = None
        first_row = first_document = skipped = 0
        for number, group in enumerate(groups):
            documents = _joined(carry, self._load(group))
            block = Block(documents, *self._planned(documents, number == len(groups) - 1))
            yield block._replace(first_row=first_row, first_document=first_document, skipped=skipped)
            first_row += block.plan.n_rows
            carry, skipped = _carried(documents, block.carried, skipped)
            first_document += len(documents.lengths) - len(carry.lengths)

    def _planned(self, documents: Documents, is_last: bool) -> tuple[Plan, int, int, int, int]:
        plan = self._plan(documents, is_last)
        if is_last or plan.layout != "concat":
            return plan, 0, 0, 0, 0
        carried = plan.tail_dropped  # not lost: the next block begins with it
        kept = replace(plan, tokens_in=plan.tokens_in - carried, tail_dropped=0)
        return kept, 0, 0, 0, carried

    def _plan(self, documents: Documents, is_last: bool) -> Plan:
        pack = self._config["pack"]
        groups = None if pack.get("mix_domains", True) else documents.domain
        tail: Tail = pack.get("tail", "drop") if is_last else "drop"
        plan = plan_layout(pack["layout"], documents.lengths, pack.get("length", 0), groups, tail)
        if self._config["balance"] == "smallest":
            plan = balance_smallest(plan, documents.domain, self._config["seed"])
        if self._config["rows"] is not None and plan.n_rows > self._config["rows"]:
            plan = take_rows(plan, np.arange(self._config["rows"]))
        return plan

    def _groups(self) -> list[range]:
        """Shards one after the other, as many as fill a block."""
        groups, start, count = [], 0, 0
        for number, rows in enumerate(self._rows):
            if number > start and count + rows > _BLOCK_DOCUMENTS:
                groups.append(range(start, number))
                start, count = number, 0
            count += rows
        return [*groups, range(start, len(self._lengths))]

    def _load(self, group: range) -> Documents:
        columns = ["doc_id", "tokens", "language", "license"]
        tables = [load_table(self._lengths[number], columns) for number in group]
        counts = [table.num_rows for table in tables]
        lengths = [np.asarray(table.column("tokens")) for table in tables]
        begin = [np.cumsum(own) - own for own in lengths]
        of_shard = np.repeat(np.array(group, np.int32), counts)
        turn = self._turns(counts)
        names = pa.concat_tables(tables) if tables else None

        def strings(name: str) -> Any:
            column = one_piece(names.column(name)) if names is not None else pa.array([], pa.string())
            return column if turn is None else column.take(pa.array(turn))

        array = of_shard if turn is None else of_shard[turn]
        domains = np.array([self.domain_names.index(domain) for _, _, domain in self._shards], np.int32)
        sources = pa.array([source for _, source, _ in self._shards], pa.string())
        return Documents(
            lengths=_turned(lengths, turn),
            store=Store(_Maps(self._tokens, self._config["tokenizer"]), _turned(begin, turn), array),
            doc_ids=strings("doc_id"),
            sources=pa.DictionaryArray.from_arrays(array, sources),
            languages=strings("language"),
            licenses=strings("license"),
            domain=domains[array],
        )

    def _turns(self, counts: list[int]) -> NDArray[np.int64] | None:
        """The number in the corpus of each document that is built, as the mixture orders them."""
        if not self._order:
            return None
        order = load_table(self._order[0])
        shard, sequence = np.asarray(order.column("shard")), np.asarray(order.column("sequence"))
        bases = np.full(int(shard.max(initial=0)) + 1, -1, np.int64)
        for (number, _, _), base in zip(self._shards, np.cumsum([0, *counts]), strict=False):
            if number < len(bases):
                bases[number] = base
        is_wanted = bases[shard] >= 0  # a build of some sources has their turns only
        turns: NDArray[np.int64] = (bases[shard] + sequence)[is_wanted]
        return turns


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
        path = self._paths[number]
        if not path.stat().st_size:
            return np.empty(0, self._dtype)
        return np.memmap(path, self._dtype, "r")


def _joined(carry: Documents | None, documents: Documents) -> Documents:
    if carry is None or not len(carry.lengths):
        return documents
    assert carry.store.array is not None, "every document has its shard"
    assert documents.store.array is not None, "every document has its shard"
    return Documents(
        np.concatenate((carry.lengths, documents.lengths)),
        Store(
            documents.store.arrays,
            np.concatenate((carry.store.begin, documents.store.begin)),
            np.concatenate((carry.store.array, documents.store.array)),
        ),
        pa.concat_arrays([carry.doc_ids, documents.doc_ids]),
        pa.concat_arrays([carry.sources, documents.sources]),
        pa.concat_arrays([carry.languages, documents.languages]),
        pa.concat_arrays([carry.licenses, documents.licenses]),
        np.concatenate((carry.domain, documents.domain)),
    )


def _carried(documents: Documents, tokens: int, skipped: int) -> tuple[Documents, int]:
    """The documents that the last so many tokens belong to; and how many tokens of the first stay behind, in all."""
    if not tokens:
        return documents.tail(0, 0), 0
    after = np.cumsum(documents.lengths[::-1])
    count = int(np.searchsorted(after, tokens, "left")) + 1
    behind = int(after[count - 1]) - tokens
    # a document that fills many rows may begin blocks ago
    before = skipped if count == len(documents.lengths) else 0
    return documents.tail(count, behind), before + behind


def _turned(arrays: list[NDArray[np.int64]], turn: NDArray[np.int64] | None) -> NDArray[np.int64]:
    whole = np.concatenate([*arrays, np.empty(0, np.int64)])
    return whole if turn is None else whole[turn]

"""The plan of a split on the disk: made by one task, mapped by all that gather and write.

    plan-<split>-<block>.bin     begin 8 x d │ length 8 x d │ skipped 8 x d │ shard 4 x d        of documents
                                 │ number 8 x ahead                          of those of blocks to come
                                 │ ends 8 x d                                of a stream: where each ends
                                 or row begins 8 x (r + 1) │ offset 8 x p │ document 4 x p │ width 4 x p
                                                                             rows as lists of pieces

Columns are little-endian, and each begins at a multiple of 8 bytes; how many rows they have is in the facts
of the task that made them (`BlockFacts`), which the tasks after it are told. 36 bytes a document, where its
tokens have 1,400: nothing of it outlives the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import FileEntry, Json, file_entry
from tokmill.artifacts.step import Task
from tokmill.formats.description import FilePart
from tokmill.kernels.packing import Pieces
from tokmill.packing.plan import PieceList, Plan, Store, Stream
from tokmill.stages.build.blocks import Block
from tokmill.stages.build.documents import Documents, Names, id_maps, loss_maps, open_chunks
from tokmill.stages.build.options import SplitBuildOptions
from tokmill.storage.disk import map_array, open_commit

PLAN = "plan"
_ALIGNED = 8


class BlockFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one block: how long its columns are, and what its plan comes to."""

    documents: int
    own: int
    first_document: int
    first_row: int
    rows: int
    meetings: int  # of rows and documents
    pieces: int | None  # None: a stream
    tokens_in: int
    tokens_kept: int
    padding: int = 0
    tail_dropped: int = 0
    truncated: int = 0
    left_out: int = 0


class PlannedOptions(SplitBuildOptions, frozen=True, kw_only=True):
    """What a task knows that works by the plan: all of it, and the rows that are its own."""

    counts: Json
    blocks: tuple[BlockFacts, ...]
    is_in_parts: bool = False  # files of the format are written stretch by stretch
    first_row: int = 0
    stop_row: int = 0
    first_file: int = 0
    parts: tuple[FilePart, ...] = ()


def write_plan(task: Task[SplitBuildOptions], number: int, block: Block, meetings: int) -> FileEntry:
    documents, plan = block.documents, block.plan
    skipped = np.zeros(len(documents), np.int64) if block.skipped is None else block.skipped
    columns: list[NDArray[Any]] = [documents.store.begin, documents.lengths, skipped, documents.shard]
    columns.append(documents.number[block.own :])
    if isinstance(plan.rows, Stream):
        columns.append(plan.rows.ends)
    else:
        listed = plan.rows.pieces
        columns += [listed.row_begins, listed.offset, listed.document, listed.width]
    name = f"{PLAN}-{task.key.removesuffix('.plan')}-{number:05d}.bin"
    kinds = [kind for kind, _ in _layout(facts_of(block, meetings))]
    with open_commit(Path(task.directory) / name) as file:
        for column, kind in zip(columns, kinds, strict=True):
            file.write(np.ascontiguousarray(column, kind))
            file.write(bytes(-column.size * np.dtype(kind).itemsize % _ALIGNED))
    return file_entry(name, PLAN, file.written, rows=plan.n_rows)


def facts_of(block: Block, meetings: int) -> BlockFacts:
    plan = block.plan
    return BlockFacts(
        documents=len(block.documents),
        own=block.own,
        first_document=block.first_document,
        first_row=block.first_row,
        rows=plan.n_rows,
        meetings=meetings,
        pieces=None if isinstance(plan.rows, Stream) else len(plan.rows.pieces.document),
        tokens_in=plan.tokens_in,
        tokens_kept=plan.tokens_kept,
        padding=plan.padding,
        tail_dropped=plan.tail_dropped,
        truncated=plan.truncated,
        left_out=plan.left_out,
    )


class PlannedBlocks:
    """The blocks of a split as they were planned, mapped one after the other."""

    def __init__(self, task: Task[PlannedOptions]) -> None:
        self._task, self._options = task, task.options
        self._paths = task.paths(PLAN)
        self._ids = id_maps(task)
        self.loss = loss_maps(task, self._ids)
        self.names = Names(open_chunks(task))

    def __iter__(self) -> Iterator[Block]:
        for path, facts in zip(self._paths, self._options.blocks, strict=True):
            yield self._map(path, facts)

    def _map(self, path: Path, facts: BlockFacts) -> Block:
        columns, offset = [], 0
        for kind, count in _layout(facts):
            columns.append(np.asarray(map_array(path, kind, offset=offset, shape=(count,))))
            offset += -(-count * np.dtype(kind).itemsize // _ALIGNED) * _ALIGNED
        begin, lengths, skipped, shard, ahead, *rest = columns
        own = np.arange(facts.first_document, facts.first_document + facts.own)
        pack = self._options.pack
        rows = (
            Stream(rest[0], pack.length, facts.tokens_kept)
            if facts.pieces is None
            else PieceList(Pieces(rest[0], rest[2], rest[1], rest[3]))
        )
        plan = Plan(
            pack.layout,
            pack.length,
            facts.rows,
            facts.documents,
            facts.tokens_in,
            facts.tokens_kept,
            rows,
            padding=facts.padding,
            tail_dropped=facts.tail_dropped,
            truncated=facts.truncated,
            left_out=facts.left_out,
        )
        documents = Documents(
            number=np.concatenate((own, ahead)),
            lengths=lengths,
            store=Store(self._ids, begin, shard),
            domain=np.empty(0, np.int32),
            languages=None,
            licenses=None,
        )
        return Block(documents, plan, facts.first_row, facts.first_document, facts.own, skipped)


def _layout(facts: BlockFacts) -> list[tuple[str, int]]:
    """Kind and length of each column."""
    documents, pieces = facts.documents, facts.pieces
    columns = [*(("<i8", documents) for _ in range(3)), ("<i4", documents), ("<i8", documents - facts.own)]
    if pieces is None:
        return [*columns, ("<i8", documents)]
    return [*columns, ("<i8", facts.rows + 1), ("<i8", pieces), ("<i4", pieces), ("<i4", pieces)]

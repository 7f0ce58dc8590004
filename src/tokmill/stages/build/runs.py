"""Documents of a source in the order of their marks, sorted by several tasks and merged by one.

    shards of a source ─ task ─ ids hashed, marked, sorted ─> run      an Arrow file: the mark, and DOCUMENTS
    shards of a source ─ task ─────────────────────────────> run
                                                              └─ merged: marks and lengths alone ─> places
                                    documents that are taken ─ slices of the files <── run, row ────────┘

A run is mapped, not read. What is held are the places of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifacts.manifest import file_entry
from tokmill.artifacts.step import Made, Task, TaskOptions
from tokmill.kernels.mixing import mark_shuffle
from tokmill.packing.schedule import shuffle_key
from tokmill.schema import ORDER, one_piece
from tokmill.stages.build.documents import TURNS
from tokmill.storage.digests import id_hashes
from tokmill.storage.tables import load_table, open_arrow, write_arrow

# A document on its way through the mixture: where it lies, and what a build will ask for.
DOCUMENTS = pa.schema(
    [
        ORDER.field("shard"),
        ORDER.field("sequence"),
        *(field for field in TURNS if field.name != "shard"),
        pa.field("text_bytes", pa.int64(), nullable=False),
    ]
)
MARK = pa.field("mark", pa.uint64(), nullable=False)
RUNS = "runs"  # their role, and their table in a receipt

_PLACES = pa.schema(
    [("run", pa.int32()), ("row", pa.int32()), ("tokens", pa.int64()), ("text_bytes", pa.int64())]
)


def load_documents(number: int, lengths: Path) -> Any:
    """All of a shard."""
    table = load_table(lengths, ["doc_id", "tokens", "text_bytes", "language", "license"])
    tokens = np.asarray(table.column("tokens"))
    columns = {
        "shard": np.full(len(tokens), number, np.uint32),
        "sequence": np.arange(len(tokens), dtype=np.uint32),
        "begin": np.cumsum(tokens) - tokens,
        **{name: table.column(name) for name in table.column_names},
    }
    return pa.table([columns[name] for name in DOCUMENTS.names], schema=DOCUMENTS)


def mark_documents(
    table: Any, identities: NDArray[np.uint64], source: str, seed: int, epoch: int, first: int, documents: int
) -> Any:
    """Of a source that has so many `documents`; these begin with the `first`."""
    marks = mark_shuffle(identities, shuffle_key(seed, epoch, source), first, documents)
    return table.append_column(MARK, pa.array(marks))


class RunOptions(TaskOptions, frozen=True, kw_only=True):
    source: str
    seed: int
    shards: tuple[int, ...]  # numbers
    first: int  # documents of the source before these
    documents: int  # that it has


def perform_run(task: Task[RunOptions]) -> Made:
    options, first, tables = task.options, task.options.first, []
    for number, path in zip(options.shards, task.paths("lengths"), strict=True):
        table = load_documents(number, path)
        identities = id_hashes(table.column("doc_id"))
        tables.append(
            mark_documents(table, identities, options.source, options.seed, 0, first, options.documents)
        )
        first += table.num_rows
    whole = pa.concat_tables(tables).combine_chunks()
    order = np.argsort(np.asarray(one_piece(whole.column(MARK.name))))
    name = f"{task.key}.arrow"
    written = write_arrow(Path(task.directory) / name, whole.take(pa.array(order)).combine_chunks())
    return Made([file_entry(name, RUNS, written, rows=whole.num_rows)], {})


class Taken(NamedTuple):
    """Documents as they lie, and in which order they are taken."""

    table: Any
    order: NDArray[np.int64]


def joined(parts: Sequence[Taken]) -> Taken:
    """One after the other."""
    orders, before = [np.empty(0, np.int64)], 0
    for part in parts:
        orders.append(before + part.order)
        before += part.table.num_rows
    return Taken(pa.concat_tables([part.table for part in parts]), np.concatenate(orders))


class Runs:
    """The sorted documents of one source."""

    def __init__(self, tables: Sequence[Any]) -> None:
        self._tables = [table for table in tables if table.num_rows]
        self._marks, self.lengths, self._sizes = (
            [np.asarray(one_piece(table.column(name))) for table in self._tables]
            for name in (MARK.name, "tokens", "text_bytes")
        )

    def read(self, memory_rows: int) -> Iterator[Any]:
        """Places and lengths in order, in tables of some `memory_rows` at most."""
        at, ends = [0] * len(self._marks), [len(marks) for marks in self._marks]
        batch = max(memory_rows // max(len(at), 1), 1)
        while at != ends:
            reach = [min(begin + batch, end) for begin, end in zip(at, ends, strict=True)]
            # beyond the last that is in sight of a run there may be smaller ones than others show
            bounds = [
                self._marks[run][stop - 1] for run, stop in enumerate(reach) if at[run] < stop < ends[run]
            ]
            stops = reach
            if bounds:
                stops = [
                    begin + int(np.searchsorted(self._marks[run][begin:stop], min(bounds), "right"))
                    for run, (begin, stop) in enumerate(zip(at, reach, strict=True))
                ]
            parts = [(run, slice(*span)) for run, span in enumerate(zip(at, stops, strict=True))]
            order = np.argsort(np.concatenate([self._marks[run][part] for run, part in parts]))
            columns = (
                [np.full(part.stop - part.start, run, np.int32) for run, part in parts],
                [np.arange(part.start, part.stop, dtype=np.int32) for _, part in parts],
                [self.lengths[run][part] for run, part in parts],
                [self._sizes[run][part] for run, part in parts],
            )
            yield pa.table([np.concatenate(column)[order] for column in columns], schema=_PLACES)
            at = stops

    def names(self, places: Any) -> Any:
        """Shard and number of the documents at these places."""
        runs, rows = (np.asarray(one_piece(places.column(name))) for name in ("run", "row"))
        columns = [np.empty(len(rows), np.uint32) for _ in ORDER]
        for run in np.unique(runs).tolist():
            is_mine = runs == run
            for name, column in zip(ORDER.names, columns, strict=True):
                column[is_mine] = np.asarray(one_piece(self._tables[run].column(name)))[rows[is_mine]]
        return pa.table([pa.array(column) for column in columns], schema=ORDER)

    def take(self, places: Any) -> Taken:
        """The documents at these places, which `read` gave. Of a run they are neighbours, more or less."""
        runs, rows = (np.asarray(one_piece(places.column(name))) for name in ("run", "row"))
        order, found, before = np.empty(len(rows), np.int64), [DOCUMENTS.empty_table()], 0
        for run in np.unique(runs).tolist():
            is_mine = runs == run
            mine = rows[is_mine]
            first, stop = int(mine[0]), int(mine[-1]) + 1  # in the order of their marks they ascend
            order[is_mine] = before + mine - first
            found.append(self._tables[run].slice(first, stop - first).select(DOCUMENTS.names))
            before += stop - first
        return Taken(pa.concat_tables(found), order)


def is_place(table: Any) -> bool:
    return bool(table.schema.equals(_PLACES))


def open_runs(paths: Sequence[Path], source_of: dict[int, str]) -> dict[str, Runs]:
    """By source; `source_of` the number of a shard."""
    found: dict[str, list[Any]] = {}
    for table in map(open_arrow, paths):
        if table.num_rows:
            found.setdefault(source_of[table.column("shard")[0].as_py()], []).append(table)
    return {source: Runs(tables) for source, tables in found.items()}

"""What the builds of a run hold, counted from their files:
documents, each once, and tokens as often as they repeat.

    lengths-<shard>, or order-<split> and turns-<split>-*     documents of a split in their turns, with
                                                              language and licence
    places.npy                                                tokens of each turn in rows; without it
                                                              documents are whole
      ─ some turns at a time ─> Held                          one for each build, split, source, language and
                                                              licence

A byte for each document of a split says whether it has had a turn and stands in a row,
of this build or of any; nothing else grows with the corpus.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import FileEntry
from tokmill.artifacts.upstream import UNKNOWN, mixture_of
from tokmill.formats.index import map_places
from tokmill.schema import ORDER, one_piece
from tokmill.stages.external.appended import read_tables
from tokmill.stages.tokens.stage import SplitShard, shards_of_split
from tokmill.storage.tables import load_table

_HAD_A_TURN, _IN_ROWS, _IN_ANY = np.uint8(1), np.uint8(2), np.uint8(4)
_NAMES = ("source", "language", "license")
_AMOUNTS = ("docs", "new_docs", "tokens", "read", "given", "repeated")


class Held(NamedTuple):
    """`given` tokens are those of documents that have a turn, before rows are cut;
    `repeated` those of further turns. `read` are those of turns that stand in a row, whole documents, however
    much of them a row holds: what epochs are counted from."""

    build: str
    split: str
    domain: str
    source: str
    language: str
    license: str
    docs: int  # with a token in a row, each once
    new_docs: int  # of them in no build before this one
    tokens: int  # in rows
    read: int
    given: int
    repeated: int


# By the number of a shard: the lengths of each split, and which of those documents are in a row of any build.
_InRows = dict[int, list[tuple[Path, NDArray[np.bool_]]]]


class Contents(NamedTuple):
    held: list[Held]
    in_rows: _InRows

    def is_built(self, number: int, documents: int) -> NDArray[np.bool_]:
        """Of each of the documents of a shard: whether it is in a row of any build."""
        marks = np.zeros(documents, np.bool_)
        for lengths, in_rows in self.in_rows.get(number, []):
            marks[np.asarray(load_table(lengths, ["row"]).column("row"))[in_rows]] = True
        return marks

    def totals(self, *keys: str, **where: str) -> dict[Any, Held]:
        """Added up by the values of these keys; `where` says of which build or split."""
        found: dict[Any, Held] = {}
        for one in self.held:
            if all(getattr(one, key) == value for key, value in where.items()):
                named = [getattr(one, key) for key in keys]
                name = named[0] if len(keys) == 1 else tuple(named)
                before = found.get(name)
                found[name] = one if before is None else _added(before, one)
        return found


def _added(one: Held, two: Held) -> Held:
    return one._replace(**{name: getattr(one, name) + getattr(two, name) for name in _AMOUNTS})


def load_contents(artifacts: Mapping[str, Artifact]) -> Contents:
    """Of all builds; none where there is no build."""
    held: list[Held] = []
    marks: dict[str, _Marks] = {}
    for build in artifacts.values():
        if build.manifest.kind != "build":
            continue
        wanted = build.manifest.config["sources"]
        for receipt in build.manifest.receipts():
            split = receipt.key
            if split not in marks:
                marks[split] = _Marks(shards_of_split(artifacts, split))
            own = [shard for shard in marks[split].shards if not wanted or shard.source in wanted]
            places = next((entry for entry in receipt.files if entry.table == "places"), None)
            name = build.manifest.step.partition("/")[2]
            for table in _counted(marks[split], _read_turns(artifacts, build, split, own), build, places):
                held += [
                    Held(build=name, split=split, domain=marks[split].domains[row["source"]], **row)
                    for row in table.to_pylist()
                ]
    in_rows: _InRows = {}
    for mark in marks.values():
        for shard, is_in in mark.in_any():
            in_rows.setdefault(shard.number, []).append((Path(shard.lengths.path), is_in))
    found = Contents(held, in_rows)
    return found._replace(held=list(found.totals("build", "split", "domain", *_NAMES).values()))


class _Marks:
    """What has become of each document of a split so far."""

    def __init__(self, shards: list[SplitShard]) -> None:
        self.shards = shards
        self.domains = {shard.source: shard.domain for shard in shards}
        ends = np.cumsum([0, *(shard.lengths.rows for shard in shards)])
        self._flags = np.zeros(int(ends[-1]), np.uint8)
        self._bases = np.zeros(max((shard.number for shard in shards), default=0) + 1, np.int64)
        self._bases[[shard.number for shard in shards]] = ends[:-1]
        self._ends = ends

    def begin(self) -> None:
        """Of another build."""
        self._flags &= _IN_ANY

    def note(self, order: Any, is_noted: NDArray[np.bool_], flag: np.uint8) -> NDArray[np.bool_]:
        """Which of these turns are noted for the first time."""
        shard, sequence = (np.asarray(order.column(name)).astype(np.int64) for name in ORDER.names)
        position = self._bases[shard] + sequence
        is_first: NDArray[np.bool_] = is_noted & (self._flags[position] & flag == 0)
        noted = self._count(flag)
        self._flags[position[is_first]] |= flag
        if self._count(flag) - noted < np.count_nonzero(is_first):  # one has two of these turns
            turns = np.flatnonzero(is_first)
            _, first = np.unique(position[turns], return_index=True)
            is_first[:] = False
            is_first[turns[first]] = True
        return is_first

    def _count(self, flag: np.uint8) -> int:
        return int(np.count_nonzero(self._flags & flag))

    def in_any(self) -> Iterator[tuple[SplitShard, NDArray[np.bool_]]]:
        bounds = itertools.pairwise(self._ends.tolist())
        for shard, (first, stop) in zip(self.shards, bounds, strict=True):
            yield shard, self._flags[first:stop] & _IN_ANY > 0


def _counted(marks: _Marks, turns: Iterable[Any], build: Artifact, places: FileEntry | None) -> Iterator[Any]:
    """A table of amounts by name for each piece."""
    marks.begin()
    by_number = {shard.number: shard.source for shard in marks.shards}
    sources = pa.array(
        [by_number.get(number) for number in range(max(by_number, default=0) + 1)], pa.string()
    )
    met = map_places(build.path(places), places.rows) if places is not None else None
    first = seen = 0  # turn, and meeting with a row
    for piece in turns:
        tokens = np.asarray(piece.column("tokens"))
        written = tokens
        if met is not None:
            assert places is not None
            stop = bisect.bisect_left(
                range(places.rows), first + len(tokens), seen, key=lambda at: int(met.document[at])
            )
            widths = met.end[seen:stop].astype(np.int64) - met.start[seen:stop]
            written = np.zeros(len(tokens), np.int64)
            np.add.at(written, met.document[seen:stop].astype(np.int64) - first, widths)
            seen = stop
        first += len(tokens)
        is_first = marks.note(piece, np.ones(len(tokens), np.bool_), _HAD_A_TURN)
        is_built = marks.note(piece, written > 0, _IN_ROWS)
        is_new = marks.note(piece, written > 0, _IN_ANY)
        read = np.where(written > 0, tokens, 0)
        first_turns, further_turns = np.where(is_first, tokens, 0), np.where(is_first, 0, tokens)
        amounts = (is_built, is_new, written, read, first_turns, further_turns)
        said = (piece.column(name).fill_null(UNKNOWN) for name in _NAMES[1:])
        names = [sources.take(one_piece(piece.column("shard"))), *said]
        table = pa.table([*names, *(column.astype(np.int64) for column in amounts)], [*_NAMES, *_AMOUNTS])
        # by one thread, so that they come in the order in which they were met
        summed = table.group_by(list(_NAMES), use_threads=False).aggregate(
            [(name, "sum") for name in _AMOUNTS]
        )
        yield summed.rename_columns([name.removesuffix("_sum") for name in summed.column_names])


def _read_turns(
    artifacts: Mapping[str, Artifact], build: Artifact, split: str, shards: list[SplitShard]
) -> Iterator[Any]:
    """Shard, sequence, tokens, language and licence of the documents of these shards, in their turns."""
    mixture = mixture_of(artifacts, build)
    entries = (
        {entry.path: entry for entry in mixture.manifest.entries("order")} if mixture is not None else {}
    )
    order = entries.get(f"order-{split}.parquet")
    columns = ["tokens", "language", "license"]
    if mixture is None or order is None:
        for shard in shards:
            table = load_table(Path(shard.lengths.path), columns)
            numbers = [np.full(table.num_rows, shard.number), np.arange(table.num_rows)]
            yield pa.table(
                [*(pa.array(n, pa.uint32()) for n in numbers), *table.columns], ORDER.names + columns
            )
        return
    parts = [
        entry
        for receipt in mixture.manifest.receipts()
        if receipt.key == split
        for entry in receipt.files
        if entry.table == "turns"
    ]
    own = pa.array([shard.number for shard in shards], pa.uint32())
    ordered = read_tables(mixture.path(order), ORDER.names)
    waiting = ORDER.empty_table()
    for part in parts:
        while waiting.num_rows < part.rows:
            waiting = pa.concat_tables([waiting, next(ordered)])
        table = load_table(mixture.path(part), columns)
        turns = pa.table(
            [*waiting.slice(0, part.rows).columns, *table.columns], ORDER.names + columns
        ).combine_chunks()
        waiting = waiting.slice(part.rows)
        yield turns.filter(pc.is_in(turns.column("shard"), own))

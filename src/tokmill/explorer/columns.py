"""Columns with one value per document of a run, in the order of the corpus, each read when it is asked for.

    position = documents of all shards before + row

    one shard ─ `shard_columns` ─> values of its rows               `rows`
    all shards, side by side ─> one array of numbers                `whole`

A whole column is numbers: texts of few values are codes into a sorted dictionary, so that their order is that
of the texts. What was used longest ago is let go when all of them have more than CACHE_BYTES.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.artifacts.upstream import domain_of
from tokmill.audit.opened import ShardTables
from tokmill.audit.places import RunPlaces
from tokmill.errors import InputError
from tokmill.explorer.bulk import BulkReader, Unreadable
from tokmill.explorer.shard_columns import DROPPED, KEPT, Column, Load, ShardColumns
from tokmill.schema import NO_SPLIT, one_piece
from tokmill.storage.tables import load_table

CACHE_BYTES = 600 << 20
TEXT_BYTES = 400 << 20  # of a column of texts that all differ: more is not put in order
THREADS = 2  # shards are read side by side; more gain nothing where tables are in memory


_SURVIVORS = (
    "SELECT file_index, file_row_number AS row, survivor_shard, survivor_row "
    "FROM read_parquet(?, file_row_number = true) WHERE survivor_shard IS NOT NULL"
)


class Whole(NamedTuple):
    """A column of all documents."""

    values: Any  # an Arrow array of numbers, codes or texts, null where a document has none
    names: list[str] | None  # of a category, what its codes stand for, in order

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes)


class Columns:
    def __init__(self, run: RunPlaces) -> None:
        self._run, self._of = run, ShardColumns(run)
        self.shards, self.starts = self._of.shards, self._of.starts
        self._loaded: OrderedDict[str, Whole] = OrderedDict()
        self._lock = threading.Lock()
        self._loading: dict[str, threading.Lock] = {}
        self._bulk = BulkReader(run.directory)

    @property
    def documents(self) -> int:
        return int(self.starts[-1])

    @property
    def known(self) -> dict[str, Column]:
        return {name: column for name, (column, _) in self._of.known.items()}

    def column(self, name: str) -> Column:
        return self._known_column(name)[0]

    def shard_at(self, position: int) -> int:
        return int(np.searchsorted(self.starts, position, side="right")) - 1

    def place_of(self, position: int) -> tuple[ShardTables, int]:
        at = self.shard_at(position)
        return self.shards[at], position - int(self.starts[at])

    def position_of(self, shard: str, row: int) -> int:
        return int(self.starts[self._of.numbers[shard]]) + row

    def measured_name(self, measure: str) -> str:
        return self._of.measured_name(measure)

    def measured_of(self, source: str) -> list[str]:
        return self._of.measured_of(source)

    def prepare(self, names: Iterable[str]) -> None:
        """Columns that are wanted together, those of one table read together."""
        wanted = list(names)
        tables: dict[str, list[str]] = {}
        for name in self._missing(wanted):
            if self.column(name).kind == "number" and name in self._of.bulky:
                tables.setdefault(self._of.bulky[name][0], []).append(name)
        for table, own in tables.items():
            with self._loading_of(f"{table}.parquet"):  # who comes second finds what the first has read
                found = self._load_bulk(missing) if (missing := self._missing(own)) else {}
                with self._lock:
                    for name, whole in found.items():
                        self._loaded.setdefault(name, whole)
                    self._let_go()
        for name in self._missing(wanted):
            self.whole(name)

    def _missing(self, names: list[str]) -> list[str]:
        with self._lock:
            return [name for name in names if name not in self._loaded]

    def _loading_of(self, name: str) -> threading.Lock:
        with self._lock:
            return self._loading.setdefault(name, threading.Lock())

    def _load_bulk(self, names: list[str]) -> dict[str, Whole]:
        """Numbers of one kind of table; none where DuckDB cannot read it."""
        table = self._of.bulky[names[0]][0]
        raw = {name: self._of.bulky[name][1] for name in names}
        parts: dict[str, list[Any]] = {name: [] for name in names}
        try:
            for source, shards in itertools.groupby(self.shards, lambda shard: shard.source):
                own = list(shards)
                have = [name for name in names if self._is_in_table(table, raw[name], source)]
                rows = sum(shard.documents.rows for shard in own)
                paths = [self._of.path_of(table, shard) for shard in own]
                if have and None in paths:
                    return {}
                raws = [raw[name] for name in have]
                told = self._bulk.columns([p for p in paths if p], raws) if raws else None
                for name in names:
                    values = told.column(raw[name]) if told is not None and name in have else pa.nulls(rows)
                    assert len(values) == rows, "a row for each document"
                    parts[name].append(one_piece(_narrow(values)))
        except Unreadable:
            return {}
        return {name: _joined(own) for name, own in parts.items()}

    def loaded(self, name: str) -> Whole | None:
        """The whole column, if it is in memory."""
        with self._lock:
            return self._loaded.get(name)

    def table(self, name: str, shards: Sequence[ShardTables], columns: Sequence[str]) -> Any:
        """Marks or measures of some shards, one after the other."""
        paths = [path for shard in shards if (path := self._of.path_of(name, shard)) is not None]
        try:
            return self._bulk.columns(paths, columns)
        except Unreadable:
            return pa.concat_tables([load_table(path, list(columns)) for path in paths])

    def left_clean(self, shards: Sequence[ShardTables]) -> tuple[NDArray[np.int64], Any]:
        """Whom cleaning dropped of some shards, by the row in all of them, and why."""
        starts = np.cumsum([0, *(shard.documents.rows for shard in shards)])
        ledgers = [
            (path, int(start))
            for shard, start in zip(shards, starts, strict=False)
            if (path := self._of.file(f"clean/{shard.source}", f"ledger-{shard.key}.parquet")) is not None
        ]
        if not ledgers:
            return np.zeros(0, np.int64), pa.nulls(0, pa.string())
        try:
            left = self._bulk.ledgers([path for path, _ in ledgers])
        except Unreadable:
            tables = [load_table(path, ["row", "verdict", "reason"]) for path, _ in ledgers]
            out = [table.filter(pc.not_equal(table.column("verdict"), "edit")) for table in tables]
            rows = [
                np.asarray(one.column("row")).astype(np.int64) + start
                for one, (_, start) in zip(out, ledgers, strict=True)
            ]
            return np.concatenate(rows), pa.concat_tables(out).column("reason")
        firsts = np.array([start for _, start in ledgers], np.int64)
        reasons = pa.array(left.reasons, pa.string()).take(pa.array(left.reason))
        return firsts[left.file] + left.row, reasons

    def survivors(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions of those that documents were dropped for, and of these documents; who was dropped for one
        of an earlier corpus is left out."""
        paths = [path for shard in self.shards if (path := self._of.path_of("verdicts", shard)) is not None]
        try:
            parts = self._bulk.ask(_SURVIVORS, paths) if len(paths) == len(self.shards) else []
        except Unreadable:
            parts = []
        if not parts:
            whole = self.whole("survivor").values
            gone = np.flatnonzero(np.asarray(whole.is_valid()))
            return np.asarray(whole.take(pa.array(gone))), gone
        table = pa.concat_tables([table for _, table in parts])
        files = np.concatenate(
            [np.asarray(one.column("file_index")).astype(np.int64) + first for first, one in parts]
        )
        names = one_piece(table.column("survivor_shard").dictionary_encode().unify_dictionaries())
        numbers = [self._of.numbers.get(name, -1) for name in names.dictionary.to_pylist()]
        shard = np.array([*numbers, -1], np.int64)[np.asarray(names.indices)]
        row, own = (np.asarray(one_piece(table.column(name))) for name in ("survivor_row", "row"))
        is_here = shard >= 0
        of = self.starts[shard[is_here]] + row[is_here]
        return of, (self.starts[files] + own)[is_here]

    def _is_in_table(self, table: str, raw: str, source: str) -> bool:
        return table != "measures" or raw in self._of.measured_of(source)

    def whole(self, name: str) -> Whole:
        column, load = self._known_column(name)
        with self._lock:
            if name in self._loaded:
                self._loaded.move_to_end(name)
                return self._loaded[name]
            loading = self._loading.setdefault(name, threading.Lock())
        with loading:  # who asks for the same waits, and finds it
            with self._lock:
                if name in self._loaded:
                    return self._loaded[name]
            several = self._load_at_once(name) or {name: self._load(column, load)}
            found = several[name]
            with self._lock:
                self._loaded |= several
                self._loading.pop(name, None)
                self._let_go()
        return found

    def _let_go(self) -> None:
        while len(self._loaded) > 1 and sum(one.nbytes for one in self._loaded.values()) > CACHE_BYTES:
            self._loaded.popitem(last=False)

    def rows(self, name: str, positions: Iterable[int]) -> list[Any]:
        """Of a few documents: only their shards are read."""
        _, load = self._known_column(name)
        at = np.fromiter(positions, np.int64)
        with self._lock:
            loaded = self._loaded.get(name)
        if loaded is not None:
            values = loaded.values.take(pa.array(at)).to_pylist()
            names = loaded.names
            return values if names is None else [None if code is None else names[code] for code in values]
        numbers = np.searchsorted(self.starts, at, side="right") - 1
        if name in ("source", "domain"):
            return [self._of_shard(name, self.shards[number]) for number in numbers.tolist()]
        found: list[Any] = [None] * len(at)
        with self._of.reading_few():
            for number in np.unique(numbers).tolist():
                mine = np.flatnonzero(numbers == number)
                shard, rows = self.shards[number], at[mine] - self.starts[number]
                if name in ("step", "reason") and self._of.are_kept(shard, rows):
                    continue  # ledgers have nothing of them
                taken = one_piece(load(shard)).take(pa.array(rows)).to_pylist()
                for place, value in zip(mine.tolist(), taken, strict=True):
                    found[place] = value
        return found

    def _known_column(self, name: str) -> tuple[Column, Load]:
        found = self._of.known.get(name)
        if found is None:
            raise InputError(
                f"no column is called {name}", where=str(self._run.directory), next="see the list of columns"
            )
        return found

    def _load(self, column: Column, load: Load) -> Whole:
        if column.kind == "category" and column.name in ("source", "domain"):
            return self._of_sources(column.name)
        is_category = column.kind == "category"

        def one(shard: ShardTables) -> Any:
            values = one_piece(load(shard))
            if is_category:
                return values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
            return _narrow(values)

        with ThreadPoolExecutor(THREADS) as pool:
            parts = []
            size = 0
            for part in pool.map(one, self.shards):
                size += int(part.nbytes)
                if column.kind == "text" and size > TEXT_BYTES:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise InputError(
                        f"{column.name} has too many texts to be filtered or put in order",
                        where=str(self._run.directory),
                        next="filter by another column; a document is found by its id",
                    )
                parts.append(part)
        if is_category:
            return _coded(parts)
        return _joined(parts)

    def _load_at_once(self, name: str) -> dict[str, Whole]:
        """What can be read of all shards together; none where that is not so."""
        try:
            if name in self._of.bulky:
                return self._load_bulk([name])
            if name in ("step", "reason"):
                return self._load_fates()
            if name in ("verdict", "split") and "split" in self._run.artifacts:
                return self._load_labels()
            if name == "tokens":
                return {name: self._load_tokens()}
        except Unreadable:
            pass
        return {}

    def _load_labels(self) -> dict[str, Whole]:
        paths = [self._of.path_of("labels", shard) for shard in self.shards]
        if None in paths or not paths:
            return {}
        told = self._bulk.columns([path for path in paths if path], ["split"])
        labels = np.asarray(one_piece(told.column("split")))
        splits: list[str] = self._run.artifacts["split"].manifest.facts["splits"]
        names, is_out = sorted(splits), labels == NO_SPLIT
        codes = bytes(names.index(split) for split in splits).ljust(256, b"\0")  # of splits, by label
        verdicts = sorted([DROPPED, KEPT])
        assert verdicts.index(KEPT) == 1, "a truth is its code"
        return {
            "split": Whole(pa.array(_translated(labels, codes), mask=is_out), names),
            "verdict": Whole(pa.array((~is_out).view(np.int8)), verdicts),
        }

    def _load_fates(self) -> dict[str, Whole]:
        """Step and reason at once: both are in the ledgers. The first that names a document holds."""
        number = np.zeros(self.documents, np.int16)  # 0: it stayed
        fates: list[tuple[str, str]] = []
        steps = [
            *self._run.of_kind("clean"),
            *(s for s in ("scores", "dedup", "split") if s in self._run.artifacts),
        ]
        for step in steps:
            shards = [s for s in self.shards if not step.startswith("clean/") or step == f"clean/{s.source}"]
            files = [
                (self._of.file(step, f"ledger-{s.key if '/' in step else f'{s.number:05d}'}.parquet"), s)
                for s in shards
            ]
            there = [(path, shard) for path, shard in files if path is not None]
            if not there:
                continue
            left = self._bulk.ledgers([path for path, _ in there])
            starts = np.array([self.starts[self._of.numbers[shard.name]] for _, shard in there], np.int64)
            position = starts[left.file] + left.row
            is_first = number[position] == 0
            own = (left.reason + len(fates) + 1).astype(np.int16)
            number[position[is_first]] = own[is_first]
            fates += [(step.partition("/")[0], reason) for reason in left.reasons]
        found = {}
        stayed = number == 0
        gone = np.flatnonzero(~stayed)  # few
        for at, name in enumerate(("step", "reason")):
            names = sorted({fate[at] for fate in fates})
            codes = np.array([0, *(names.index(fate[at]) for fate in fates)], np.int16)
            own = np.zeros(self.documents, np.int16)
            own[gone] = codes[number[gone]]
            found[name] = Whole(pa.array(own, mask=stayed), names)
        return found

    def _load_tokens(self) -> Whole:
        counts = np.zeros(self.documents, np.int32)
        is_there = np.zeros(self.documents, np.bool_)
        listed = [
            (self._run.artifacts["tokens"].directory / path, int(self.starts[at]))
            for at, shard in enumerate(self.shards)
            for path in self._of.lengths.get(shard.number, ())
        ]
        if listed:
            files, rows, tokens = self._bulk.sparse([path for path, _ in listed], "tokens")
            position = np.array([start for _, start in listed], np.int64)[files] + rows
            counts[position], is_there[position] = tokens, True
        return Whole(pa.array(counts, mask=~is_there), None)

    def _of_shard(self, name: str, shard: ShardTables) -> str:
        return shard.source if name == "source" else domain_of(self._run.artifacts[f"ingest/{shard.source}"])

    def _of_sources(self, name: str) -> Whole:
        """The same for all documents of a shard: nothing is read."""
        values = [self._of_shard(name, shard) for shard in self.shards]
        names = sorted(set(values))
        codes = np.array([names.index(value) for value in values], np.int16)
        return Whole(pa.array(np.repeat(codes, np.diff(self.starts))), names)


def _translated(labels: NDArray[np.uint8], codes: bytes) -> NDArray[np.int8]:
    """`codes[labels]` makes an index of eight bytes of each."""
    return np.frombuffer(labels.tobytes().translate(codes), np.int8)


def _coded(parts: list[Any]) -> Whole:
    """Codes into one dictionary of all parts, in the order of its texts."""
    strings = [part.dictionary.cast(pa.string()).to_pylist() for part in parts]
    names = sorted({text for own in strings for text in own if text is not None})
    codes = {name: code for code, name in enumerate(names)}
    kind = pa.int16() if len(names) < 1 << 15 else pa.int32()
    coded = []
    for part, own in zip(parts, strings, strict=True):
        mapping = pa.array([None if text is None else codes[text] for text in own], kind)
        coded.append(mapping.take(part.indices) if len(own) else pa.nulls(len(part), kind))
    return Whole(pa.concat_arrays(coded) if coded else pa.nulls(0, kind), names)


def _narrow(values: Any) -> Any:
    """Whole numbers in four bytes, where they fit."""
    if not pa.types.is_integer(values.type) or len(values) == values.null_count:
        return values
    bounds = pc.min_max(values).as_py()
    return values.cast(pa.int32() if bounds["min"] >= -(2**31) and bounds["max"] < 2**31 else pa.int64())


def _joined(parts: list[Any]) -> Whole:
    kinds = {part.type for part in parts} or {pa.null()}
    widest = max(kinds, key=_width)
    if len(parts) == 1:
        return Whole(parts[0], None)
    return Whole(
        pa.concat_arrays([part.cast(widest) for part in parts]) if parts else pa.nulls(0, widest), None
    )


def _width(kind: Any) -> tuple[int, int]:
    """Of several kinds in one column the widest holds all."""
    if pa.types.is_null(kind):
        return 0, 0
    if pa.types.is_floating(kind):
        return 2, int(kind.bit_width)
    return (1, int(kind.bit_width)) if pa.types.is_primitive(kind) else (3, 0)

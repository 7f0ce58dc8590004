"""Columns of one shard: what there is to be known of its documents, and in which table of which step it lies.

    ingest       id, domain, date, licence as received        dedup     similarity, cluster, survivor
    clean        marks, measures, edits, ledger               split     labels
    scores       percentiles                                  tokens    lengths;  build: what was built

A column is a name and a function of a shard. What DuckDB reads of all shards at once is in `bulky` too.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Json
from tokmill.audit.opened import ShardTables
from tokmill.audit.places import RunPlaces
from tokmill.schema import DEDUP_EDITS, NO_SPLIT, one_piece
from tokmill.stages.build.contents import Contents, load_contents
from tokmill.storage.tables import load_schema, load_table

Kind = Literal["number", "text", "category", "bool"]
Load = Callable[[ShardTables], Any]

TABLES_BYTES = 48 << 20
# columns that a page asks for one after the other are read from a shard at once
_READ_TOGETHER = {
    "marks": ["language", "license", "chars", "bytes"],
    "verdicts": ["similarity", "cluster", "cluster_size", "survivor_shard", "survivor_row"],
    "ledger": ["row", "verdict", "reason"],
    "lengths": ["row", "tokens"],
}
_STEPS = {"verdicts": "dedup", "labels": "split", "percentiles": "scores"}
_MEASURED = "measured."
KEPT, DROPPED = "kept", "dropped"
_MARKS: tuple[tuple[str, str, Kind, str], ...] = (
    ("lang", "language", "category", "language"),
    ("license", "license", "category", "licence"),
    ("chars", "chars", "number", "characters"),
    ("bytes", "bytes", "number", "bytes"),
)
_VERDICTS: tuple[tuple[str, Kind, str], ...] = (
    ("similarity", "number", "similarity with the one it was dropped for"),
    ("cluster", "number", "cluster"),
    ("cluster_size", "number", "documents in its cluster"),
)


class Column(NamedTuple):
    name: str
    kind: Kind
    title: str
    step: str  # that wrote it

    def as_json(self) -> Json:
        return self._asdict()


class ShardColumns:
    def __init__(self, run: RunPlaces) -> None:
        self._run = run
        self.shards = run.shards
        self.starts = np.cumsum([0, *(shard.documents.rows for shard in self.shards)], dtype=np.int64)
        self.numbers = {shard.name: at for at, shard in enumerate(self.shards)}
        self.bulky: dict[str, tuple[str, str]] = {}  # by column: the table it is in, and its name there
        self._lock = threading.Lock()
        self._lock_of_contents = threading.Lock()
        self._local = threading.local()
        self._tables_bytes = 0
        self._tables: OrderedDict[Path, Any] = OrderedDict()  # of shards that pages were about
        self._paths: dict[str, set[str]] = {}

    @cached_property
    def known(self) -> dict[str, tuple[Column, Load]]:
        return {column.name: (column, load) for column, load in self._list()}

    def measured_name(self, measure: str) -> str:
        """What a column of the measures is called here: `chars` is also that of every document."""
        return f"{_MEASURED}{measure}" if f"{_MEASURED}{measure}" in self.known else measure

    def measured_of(self, source: str) -> list[str]:
        return self._measured.get(source, [])

    @contextlib.contextmanager
    def reading_few(self) -> Iterator[None]:
        """This thread reads for a page: tables are kept meanwhile, because columns share them."""
        self._local.few = True
        try:
            yield
        finally:
            self._local.few = False

    def are_kept(self, shard: ShardTables, rows: NDArray[np.int64]) -> bool:
        labels = self._table("split", f"labels-{shard.number:05d}.parquet", ["split"])
        return labels is not None and not (np.asarray(labels.column("split"))[rows] == NO_SPLIT).any()

    def path_of(self, table: str, shard: ShardTables) -> Path | None:
        """None: the step has no such file."""
        step = f"clean/{shard.source}" if table in ("marks", "measures") else _STEPS[table]
        name = shard.key if table in ("marks", "measures") else f"{shard.number:05d}"
        return self.file(step, f"{table}-{name}.parquet")

    def file(self, step: str, path: str) -> Path | None:
        artifact = self._run.artifacts.get(step)
        if artifact is None:
            return None
        if step not in self._paths:
            self._paths[step] = {entry.path for entry in artifact.manifest.files}
        return artifact.directory / path if path in self._paths[step] else None

    def _list(self) -> list[tuple[Column, Load]]:
        run = self._run.artifacts
        found: list[tuple[Column, Load]] = [
            (Column("doc_id", "text", "id", "ingest"), self._ingested("doc_id")),
            (Column("source", "category", "source", "ingest"), self._ingested("source")),
            (Column("domain", "category", "domain", "ingest"), self._ingested("domain")),
            (Column("verdict", "category", "verdict", "split"), self._verdicts),
            (Column("step", "category", "left at", "ledger"), self._fates("step")),
            (Column("reason", "category", "reason", "ledger"), self._fates("reason")),
            (Column("created_at", "text", "date", "ingest"), self._ingested("created_at")),
            (
                Column("license_tag", "category", "licence as received", "ingest"),
                self._ingested("license_tag"),
            ),
        ]
        if self._run.of_kind("clean"):
            for name, mark, kind, title in _MARKS:
                found.append((Column(name, kind, title, "clean"), self._marked(mark)))
            found.append((Column("edited", "bool", "text changed", "clean"), self._edited))
        if "dedup" in run:
            for name, kind, title in _VERDICTS:
                found.append((Column(name, kind, title, "dedup"), self._decided(name)))
            survivor = "position of the one it was dropped for"
            found.append((Column("survivor", "number", survivor, "dedup"), self._survivors))
        if "split" in run:
            found.append((Column("split", "category", "split", "split"), self._splits))
        if "tokens" in run:
            found.append((Column("tokens", "number", "tokens", "tokens"), self._tokens))
            if self._run.of_kind("build"):
                found.append((Column("built", "bool", "in a row of a build", "build"), self._built))
        taken = {column.name for column, _ in found}
        for measure in dict.fromkeys(name for names in self._measured.values() for name in names):
            name = f"{_MEASURED}{measure}" if measure in taken else measure
            found.append((Column(name, "number", measure, "clean"), self._measure(measure)))
        for percentile in self._percentiles():
            found.append((Column(percentile, "number", percentile, "scores"), self._ranked(percentile)))
        self.bulky = {name: ("marks", mark) for name, mark, kind, _ in _MARKS if kind == "number"}
        self.bulky |= {name: ("verdicts", name) for name, _, _ in _VERDICTS}
        self.bulky |= {name: ("percentiles", name) for name in self._percentiles()}
        for measure in dict.fromkeys(name for names in self._measured.values() for name in names):
            self.bulky[f"{_MEASURED}{measure}" if measure in taken else measure] = ("measures", measure)
        return found

    @cached_property
    def _measured(self) -> dict[str, list[str]]:
        """By source; they need not be measured alike."""
        found: dict[str, list[str]] = {}
        for step, cleaned in self._run.of_kind("clean").items():
            for entry in cleaned.manifest.entries("measures")[:1]:
                found[step.removeprefix("clean/")] = [
                    field.name
                    for field in load_schema(cleaned.path(entry))
                    if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
                ]
        return found

    def _percentiles(self) -> list[str]:
        scores = self._run.artifacts.get("scores")
        if scores is None:
            return []
        entries = scores.manifest.entries("percentiles")[:1]
        return [name for entry in entries for name in load_schema(scores.path(entry)).names]

    def _table(self, step: str, path: str, columns: list[str]) -> Any | None:
        """None where the step has no such file. `audit.opened.load_of` looks through all files of the step
        for each shard: 0.3 s for 1,700."""
        found = self.file(step, path)
        if found is None:
            return None
        if not getattr(self._local, "few", False):
            return load_table(found, columns)
        with self._lock:
            table = self._tables.get(found)
        if table is None or not set(columns) <= set(table.column_names):
            table = load_table(found, _READ_TOGETHER.get(Path(path).name.partition("-")[0], columns))
            with self._lock:
                before = self._tables.pop(found, None)
                self._tables[found] = table
                self._tables_bytes += table.nbytes - (before.nbytes if before is not None else 0)
                while len(self._tables) > 1 and self._tables_bytes > TABLES_BYTES:
                    self._tables_bytes -= self._tables.popitem(last=False)[1].nbytes
        return table

    def _ingested(self, name: str) -> Load:
        def load(shard: ShardTables) -> Any:
            ingest = self._run.artifacts[f"ingest/{shard.source}"]
            return load_table(ingest.path(shard.documents), [name]).column(name)

        return load

    def _marked(self, name: str) -> Load:
        return lambda shard: self._table_column(
            f"clean/{shard.source}", f"marks-{shard.key}.parquet", name, shard
        )

    def _measure(self, name: str) -> Load:
        def load(shard: ShardTables) -> Any:
            if name not in self.measured_of(shard.source):
                return pa.nulls(shard.documents.rows)
            return self._table_column(f"clean/{shard.source}", f"measures-{shard.key}.parquet", name, shard)

        return load

    def _decided(self, name: str) -> Load:
        return lambda shard: self._table_column("dedup", f"verdicts-{shard.number:05d}.parquet", name, shard)

    def _ranked(self, name: str) -> Load:
        return lambda shard: self._table_column(
            "scores", f"percentiles-{shard.number:05d}.parquet", name, shard
        )

    def _table_column(self, step: str, path: str, name: str, shard: ShardTables) -> Any:
        """Null where the step has no such table."""
        table = self._table(step, path, [name])
        return pa.nulls(shard.documents.rows) if table is None else table.column(name)

    def _verdicts(self, shard: ShardTables) -> Any:
        return _chosen(~self._is_kept(shard), [KEPT, DROPPED])

    def _is_kept(self, shard: ShardTables) -> NDArray[np.bool_]:
        """By the last step that there is: one small table."""
        labels = self._table("split", f"labels-{shard.number:05d}.parquet", ["split"])
        if labels is not None:
            found: NDArray[np.bool_] = np.asarray(labels.column("split")) != NO_SPLIT
            return found
        is_kept: NDArray[np.bool_] = self._fate_codes(shard)[0] == 0
        return is_kept

    def _splits(self, shard: ShardTables) -> Any:
        split = self._run.artifacts["split"]
        labels = self._table("split", f"labels-{shard.number:05d}.parquet", ["split"])
        if labels is None:
            return pa.nulls(shard.documents.rows, pa.string())
        numbers = np.asarray(labels.column("split"))
        return pa.DictionaryArray.from_arrays(
            pa.array(numbers.astype(np.int16), mask=numbers == NO_SPLIT),
            pa.array(split.manifest.facts["splits"], pa.string()),
        )

    def _fates(self, which: Literal["step", "reason"]) -> Load:
        def load(shard: ShardTables) -> Any:
            codes, fates = self._fate_codes(shard)
            numbers = pa.array(codes.astype(np.int32) - 1, mask=codes == 0)
            names = [fate[0 if which == "step" else 1] for fate in fates]
            return pa.DictionaryArray.from_arrays(numbers, pa.array(names, pa.string())).cast(pa.string())

        return load

    def _fate_codes(self, shard: ShardTables) -> tuple[NDArray[np.uint16], list[tuple[str, str]]]:
        """0: kept by every step; else the place, from 1, of the step and reason for which it left."""
        codes = np.zeros(shard.documents.rows, np.uint16)
        fates: list[tuple[str, str]] = []
        number = f"ledger-{shard.number:05d}.parquet"
        for step, path in (
            (f"clean/{shard.source}", f"ledger-{shard.key}.parquet"),
            *((name, number) for name in ("scores", "dedup", "split")),
        ):
            ledger = self._table(step, path, ["row", "verdict", "reason"])
            if ledger is None:
                continue
            ledger = ledger.filter(pc.not_equal(ledger.column("verdict"), "edit"))
            stage = step.partition("/")[0]
            reasons = one_piece(ledger.column("reason").dictionary_encode())
            rows = np.asarray(ledger.column("row"))
            own = np.asarray(reasons.indices).astype(np.uint16) + len(fates) + 1
            is_first = codes[rows] == 0
            codes[rows[is_first]] = own[is_first]
            fates += [(stage, reason) for reason in reasons.dictionary.to_pylist()]
        return codes, fates

    def _tokens(self, shard: ShardTables) -> Any:
        counts = np.zeros(shard.documents.rows, np.int64)
        is_there = np.zeros(shard.documents.rows, np.bool_)
        for path in self.lengths.get(shard.number, ()):
            table = self._table("tokens", path, ["row", "tokens"])
            assert table is not None, "it is in the manifest"
            rows = np.asarray(table.column("row"))
            counts[rows], is_there[rows] = np.asarray(table.column("tokens")), True
        return pa.array(counts, mask=~is_there)

    def _survivors(self, shard: ShardTables) -> Any:
        path = f"verdicts-{shard.number:05d}.parquet"
        table = self._table("dedup", path, ["survivor_shard", "survivor_row"])
        if table is None:
            return pa.nulls(shard.documents.rows, pa.int64())
        names = one_piece(table.column("survivor_shard")).dictionary_encode()
        # a survivor of an earlier corpus has no position here
        starts = [self._start_of(name) for name in names.dictionary.to_pylist()]
        first = (
            pa.array(starts, pa.int64()).take(names.indices) if starts else pa.nulls(len(names), pa.int64())
        )
        return pc.add(first, one_piece(table.column("survivor_row")).cast(pa.int64()))

    def _start_of(self, shard: str | None) -> int | None:
        at = self.numbers.get(shard) if shard is not None else None
        return None if at is None else int(self.starts[at])

    def _built(self, shard: ShardTables) -> Any:
        return pa.array(self._contents.is_built(shard.number, shard.documents.rows))

    @cached_property
    def _contents(self) -> Contents:
        with self._lock_of_contents:
            return load_contents(self._run.artifacts)

    @cached_property
    def lengths(self) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for entry in self._run.artifacts["tokens"].manifest.entries("lengths"):
            number = int(entry.path.rpartition("lengths-")[2].removesuffix(".parquet"))
            found.setdefault(number, []).append(entry.path)
        return found

    def _edited(self, shard: ShardTables) -> Any:
        is_edited = np.zeros(shard.documents.rows, np.bool_)
        tables = [(f"clean/{shard.source}", f"edits-{shard.key}.parquet")]
        tables += [("dedup", f"{name}-{shard.number:05d}.parquet") for name in DEDUP_EDITS]
        for step, path in tables:
            table = self._table(step, path, ["row"])
            if table is not None:
                is_edited[np.asarray(table.column("row"))] = True
        return pa.array(is_edited)


def _chosen(is_second: NDArray[np.bool_], names: list[str]) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(is_second.astype(np.int16)), pa.array(names))

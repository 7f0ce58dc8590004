"""Documents on their way into shards: what every way of ingesting shares.

tables ─ room (limit) ─ cut at shards.megabytes of text ─> documents-<key>-<part>.parquet ─ cleaned at once
                                                           ids-<key>-<part>.npy      to find one by its id
records that cannot be used, or are not wanted ──────────> ledger-<key>.parquet, ledger-ids-<key>.npy
                                                           more than LEDGER_ROWS: ledger-<key>-<part>.parquet

What was forgotten (tokmill.artifacts.tombstones) is left out after the cut: shards, samples and limits stay
what they were. A shard or ledger that it changes has its content in its name (`key_of_rest`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tokmill.artifacts.manifest import FileEntry, Json, Receipt, file_entry, write_receipt
from tokmill.artifacts.step import Task
from tokmill.artifacts.tombstones import REASON, ROLE, Forgotten, forgotten_ledger, sha256_of
from tokmill.artifacts.upstream import write_shard_table
from tokmill.clean.examine import CleanOptions
from tokmill.errors import InputError
from tokmill.formats.index import write_ids
from tokmill.kernels.characters import measure_text
from tokmill.schema import ledger_table, one_piece, string_column
from tokmill.sources.reading import Dropped
from tokmill.stages import clean
from tokmill.stages.ingest.options import ReadOptions, shown_name
from tokmill.storage.digests import id_hashes, join_sequences, row_sequence, table_sha256
from tokmill.storage.records import BadRecord
from tokmill.storage.tables import load_table

# Rows of one file of a ledger. A row takes some 150 bytes here, and took 500 as Python objects: 100 million
# lines of `{}`, which are 290 kB of gzip, took 50 GB.
LEDGER_ROWS = 1 << 18


def refused(path: str, record: BadRecord) -> InputError:
    return InputError(
        f"record at offset {record.offset:,}: {record.reason} ({record.detail})",
        where=path,
        next="repair the record, or set `on_bad_record: quarantine` for this source",
    )


def corpus_digest(receipts: Iterable[Receipt]) -> str:
    """Of all documents in order, however they are cut into shards."""
    documents = (entry for receipt in receipts for entry in receipt.files if entry.table == "documents")
    return join_sequences((entry.sequence or "", entry.rows) for entry in documents)


def write_documents(
    task: Task, tables: Iterable[Any], counts: Json, shard_bytes: int, source: str | None = None
) -> tuple[list[FileEntry], list[str]]:
    """Shards of `tables`, each cleaned while it is in memory; `counts` is added to.
    And ids that are forgotten.

    `source`: whose documents they are, where the documents may say another.
    """
    files: list[FileEntry] = []
    gone: list[str] = []
    for part, table in enumerate(cut_shards(tables, shard_bytes)):
        table, found = without_forgotten(task, table, counts, source)
        gone += found
        if not table.num_rows:
            continue
        key = f"{task.key}-{part:03d}"
        if found:
            key = key_of_rest(key, table)
        entry = write_documents_shard(task.directory, key, table, counts)
        files += [entry, write_ids_of(task.directory, key, table)]
        for follower in task.followers:
            _clean_now(task, follower, entry, table)
    return files, gone


def write_documents_shard(directory: str, key: str, table: Any, counts: Json) -> FileEntry:
    entry = write_shard_table(directory, f"documents-{key}.parquet", "documents", table)
    column = string_column(table.column("text"))
    counts["kept"] += table.num_rows
    counts["text_bytes"] += int(column.offsets[-1] - column.offsets[0])
    counts["text_chars"] += int(measure_text(column.data, column.offsets).chars.sum())
    for name in counts["absent"]:
        counts["absent"][name] += table.column(name).null_count
    return msgspec.structs.replace(entry, sequence=row_sequence(table))


def key_of_rest(key: str, table: Any) -> str:
    """Name the file of a table that lost rows to a takedown, or tells of them: 00003-000.5f2c61d09a4e.

    A new name, so that a kill at any moment leaves the old file whole; and one that the rows alone decide, so
    that one takedown, several, and reading the source again all give the same files."""
    return f"{key.partition('.')[0]}.{table_sha256(table)[:12]}"


def write_ids_of(directory: str, key: str, table: Any) -> FileEntry:
    """Which row has which id: 16 bytes per document."""
    path = f"ids-{key}.npy"
    written = write_ids(Path(directory) / path, id_hashes(table.column("doc_id")))
    return file_entry(path, "ids", written, rows=table.num_rows)


def without_forgotten(
    task: Task, table: Any, counts: Json, source: str | None = None
) -> tuple[Any, list[str]]:
    """`table` without what was taken down; those that went are counted as taken,
    so that a limit is where it was."""
    listed = _listed(task, source or table.column("source")[0].as_py())
    if listed is None:
        return table, []
    rows = listed.rows(one_piece(table.column("doc_id")))
    if not len(rows):
        return table, []
    chosen = table.take(pa.array(rows)).combine_chunks()
    _add_gone(counts, chosen)
    stays = np.ones(table.num_rows, np.bool_)
    stays[rows] = False
    return table.filter(pa.array(stays)).combine_chunks(), chosen.column("doc_id").to_pylist()


def _listed(task: Task, source: str) -> Forgotten | None:
    """What is to be left out of the source; None: nothing."""
    paths = task.paths(ROLE)
    return Forgotten.of_source(load_table(paths[0]), source) if paths else None


def shown_file(task: Task[ReadOptions]) -> str | None:
    """The file of a task as its receipt may name it."""
    reading, file = task.options.reading, task.options.file
    listed = _listed(task, reading.source)
    return (file if listed is None else shown_name(reading, file, listed)) or None


def _add_gone(counts: Json, chosen: Any) -> None:
    """What forgotten documents were, for limits."""
    column = string_column(chosen.column("text"))
    total = counts.setdefault("forgotten", {"docs": 0, "chars": 0, "bytes": 0})
    total["docs"] += chosen.num_rows
    total["chars"] += int(measure_text(column.data, column.offsets).chars.sum())
    total["bytes"] += int(column.offsets[-1] - column.offsets[0])


def no_counts() -> Json:
    return {
        "in": 0,
        "kept": 0,
        "dropped": {},
        "quarantined": {},
        "text_bytes": 0,
        "text_chars": 0,
        "absent": {"license_tag": 0, "created_at": 0},
    }


class Ledger:
    """Ledger of a task: one row per record that did not become a document, and per id that was forgotten.

    Rows are held as columns and written out by LEDGER_ROWS, so that a file of bad records alone takes no more
    memory than that. In each file quarantined records come first."""

    def __init__(self, task: Task, source: str, file: str) -> None:
        self._task, self._source, self._file = task, source, file
        self._quarantined: list[Any] = []
        self._left_out: list[Any] = []
        self._held = 0  # rows that are not written yet
        self._files: list[FileEntry] = []
        self._written = 0
        self.bad: Counter[str] = Counter()  # by reason, as `dropped`
        self.dropped: Counter[str] = Counter()
        self.examples: list[BadRecord] = []  # the first few

    def add(self, bad: list[BadRecord], dropped: list[Dropped]) -> None:
        self.bad.update(record.reason for record in bad)
        self.dropped.update(record.reason for record in dropped)
        self.examples += [
            record._replace(file=record.file or self._file) for record in bad[: 3 - len(self.examples)]
        ]
        if bad:
            self._quarantined.append(self._rows_of_bad(bad))
        if dropped:
            self._left_out.append(self._rows_of_dropped(dropped))
        self._held += len(bad) + len(dropped)
        while self._held >= LEDGER_ROWS:
            self._write(LEDGER_ROWS)

    def finish(self, counts: Json, gone: Sequence[str] = ()) -> list[FileEntry]:
        """All files of the ledger; `counts` is added to."""
        counts["quarantined"], counts["dropped"] = dict(self.bad), dict(self.dropped)
        if gone:
            counts["dropped"][REASON] = len(gone)
            self._left_out.append(forgotten_ledger(self._source, map(sha256_of, gone)))
            self._held += len(gone)
        if self._held:
            self._write(self._held, tells_forgotten=bool(gone))
        return self._files

    @property
    def records(self) -> int:
        """Number of records that were added."""
        return self.bad.total() + self.dropped.total()

    def _write(self, rows: int, *, tells_forgotten: bool = False) -> None:
        held = pa.concat_tables([*self._quarantined, *self._left_out])
        quarantined = sum(table.num_rows for table in self._quarantined)
        key = f"{self._task.key}-{self._written:03d}" if self._written else self._task.key
        ledger, listed = held.slice(0, rows), _listed(self._task, self._source)
        shown = ledger if listed is None else listed.hide_in(ledger)
        if tells_forgotten or shown is not ledger:
            key = key_of_rest(key, shown)
        self._files += write_ledger_table(self._task.directory, key, shown.combine_chunks())
        self._quarantined = [held.slice(rows, max(quarantined - rows, 0))]
        self._left_out = [held.slice(max(quarantined, rows))]
        self._held, self._written = self._held - rows, self._written + 1

    def _rows_of_bad(self, bad: list[BadRecord]) -> Any:
        columns = {
            "source": self._source,
            "stage": "ingest",
            "verdict": "quarantine",
            "file": [record.file or self._file for record in bad],
            "doc_id": [record.id or None for record in bad],
            "reason": [record.reason for record in bad],
            "offset": [record.offset for record in bad],
            "detail": [record.detail for record in bad],
        }
        return ledger_table(columns, len(bad))

    def _rows_of_dropped(self, dropped: list[Dropped]) -> Any:
        columns = {
            "source": self._source,
            "stage": "ingest",
            "verdict": "drop",
            "file": [record.file or self._file for record in dropped],
            "doc_id": [record.id or None for record in dropped],
            "reason": [record.reason for record in dropped],
            "value": [record.value for record in dropped],
            "threshold": [record.threshold for record in dropped],
            "offset": [record.offset for record in dropped],
        }
        return ledger_table(columns, len(dropped))


def write_ledger_table(directory: str, key: str, ledger: Any) -> list[FileEntry]:
    """The ledger, and where in it an id is."""
    files = [write_shard_table(directory, f"ledger-{key}.parquet", "ledger", ledger)]
    doc_ids = ledger.column("doc_id")
    rows = np.flatnonzero(doc_ids.is_valid())
    if len(rows):
        path = f"ledger-ids-{key}.npy"
        written = write_ids(Path(directory) / path, id_hashes(doc_ids)[rows], rows)
        files.append(file_entry(path, "ledger_ids", written, rows=len(rows)))
    return files


class Room:
    """What a limit leaves: documents, characters and bytes of text, each or none of them bounded."""

    def __init__(self, bounds: Mapping[str, int] | None) -> None:
        self._left = dict(bounds or {})
        self.is_bounded = bool(bounds)
        self.is_full = False

    @property
    def is_used_up(self) -> bool:
        """To the last document, character or byte: no document fits any more."""
        return 0 in self._left.values()

    def take(self, table: Any) -> Any:
        """The first rows that fit. A document that does not fit ends the source, whatever comes after it."""
        if not self._left:
            return table
        column = string_column(table.column("text"))
        sizes = {
            "docs": np.ones(table.num_rows, np.int64),
            "chars": measure_text(column.data, column.offsets).chars,
            "bytes": np.diff(column.offsets),
        }
        fitting = table.num_rows
        for name, left in self._left.items():
            fitting = min(fitting, int(np.searchsorted(np.cumsum(sizes[name]), left, side="right")))
        for name in self._left:
            self._left[name] -= int(sizes[name][:fitting].sum())
        self.is_full = fitting < table.num_rows or self.is_used_up
        return table.slice(0, fitting)


def cut_shards(tables: Iterable[Any], shard_bytes: int) -> Iterator[Any]:
    """Tables of at least `shard_bytes` of text, cut at the row that reaches it; the last may be smaller."""
    gathered: list[Any] = []
    size = 0
    for table in tables:
        while table.num_rows:
            offsets = string_column(table.column("text")).offsets
            room = offsets[0] + (shard_bytes - size)
            rows = int(np.searchsorted(offsets[1:], room)) + 1  # the row that reaches the limit is the last
            head, table = table.slice(0, rows), table.slice(rows)
            gathered.append(head)
            size += int(offsets[min(rows, len(offsets) - 1)] - offsets[0])
            if size >= shard_bytes:
                yield _join(gathered)
                gathered, size = [], 0
    if gathered:
        yield _join(gathered)


def _join(tables: list[Any]) -> Any:
    return pa.concat_tables(tables).combine_chunks()


def _clean_now(task: Task, cleaning: Task[CleanOptions], entry: FileEntry, table: Any) -> None:
    """The clean task of this shard, exactly as the clean step would make it, on the table in memory."""
    own = clean.shard_task(cleaning, Path(task.directory), entry)
    write_receipt(Path(own.directory), own.receipt(*clean.clean_table(own, table)))

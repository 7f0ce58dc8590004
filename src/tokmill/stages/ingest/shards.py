"""Documents on their way into shards: what every way of ingesting shares.

tables ─ room (limit) ─ cut at shards.megabytes of text ─> documents-<key>-<part>.parquet ─ cleaned at once
                                                           ids-<key>-<part>.npy      to find one by its id
records that cannot be used, or are not wanted ──────────> ledger-<key>.parquet, ledger-ids-<key>.npy

What was forgotten (tokmill.artifacts.tombstones) is left out after the cut:
shards, samples and limits stay what they were.

A sample of fixed size in one pass over the source, the same for any number of workers.

    chunk ─ the k smallest keys of its documents ─> candidates-<chunk>, keys-<chunk>
    keys of all chunks ─ the k smallest ─────────> selection      (chunk, row)
    candidates ─ selected rows ──────────────────> documents-<chunk>-<part>, cleaned at once

A shuffle buffer looks at the first k + buffer - 1 documents only, and draws by their numbers, not by keys.

A task holds at most k documents (those and the buffer) and one batch.
Candidates, keys and the selection are scaffolding: they are gone when the step is done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from tokmill.artifacts.manifest import (
    FileEntry,
    Json,
    Manifest,
    Receipt,
    file_entry,
    fingerprint_of,
    write_receipt,
)
from tokmill.artifacts.step import (
    Input,
    Made,
    Step,
    Task,
    TaskFunction,
    TaskOptions,
    hook_inputs,
    table_input,
    tables_of,
    write_shard_table,
    write_sorted_shard_table,
)
from tokmill.artifacts.tombstones import REASON, ROLE, Forgotten, forgotten_ledger
from tokmill.clean.examine import CleanOptions
from tokmill.errors import InputError
from tokmill.formats.index import write_ids
from tokmill.kernels.characters import measure_text
from tokmill.schema import DOCUMENTS, KEYS, SELECTION, ledger_table, one_piece, string_column
from tokmill.sources.readers import plugins_of
from tokmill.sources.reading import Dropped, Reading
from tokmill.stages import clean
from tokmill.stages.sampling import bottom_k, draws, shuffle_buffer, weighted_keys
from tokmill.storage.location import InputFile
from tokmill.storage.records import BadRecord, Span
from tokmill.storage.tables import id_hashes, join_sequences, load_range, load_table, row_sequence
from tokmill.storage.tree import Entry

if TYPE_CHECKING:
    from tokmill.recipe import Hub


class LimitOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`limit` of a source."""

    docs: int | None = None
    chars: int | None = None
    megabytes: int | None = None
    tokens: int | None = None


class SampleOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`sample` of a source."""

    method: Literal["reservoir", "weighted", "hash", "head", "shuffle_buffer"]
    seed: int
    k: int = 0
    buffer: int = 0
    fraction: Decimal | None = None
    weight: str = ""


class HubConfig(msgspec.Struct, frozen=True):
    """Which config of a dataset is read where none was asked for: that of the languages that are kept."""

    config: str | None
    languages: tuple[str, ...]


class HubOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    asked: Json  # `hub` of a source
    revision: str  # the commit that it was then
    chosen: HubConfig | None = None


class Part(msgspec.Struct, frozen=True):
    """Of an estimate: some documents of the source, drawn evenly; its limits are as much smaller."""

    share: Decimal  # of all documents of the source
    drawn: Decimal  # of those that are read
    seed: int


class IngestOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A source of a recipe: all that can change a byte of its documents."""

    reading: Reading
    hub: HubOptions | None
    where: dict[str, str]
    shard_bytes: int
    on_bad_record: Literal["quarantine", "fail"]
    limit: LimitOptions | None
    sample: SampleOptions | None
    forgotten: str | None = None  # digest of what was taken down
    part: Part | None = None  # None: all


@dataclass(frozen=True)
class IngestExtra:
    files: list[InputFile] | None  # None: of the hub, known from the manifest and not looked up again
    max_bad_fraction: Decimal
    hub: Hub | None = None  # with the config that is read
    forgotten: Path | None = None  # the list of what was taken down
    follower: Task[CleanOptions] | None = None  # cleaning in the same pass
    before: Manifest | None = None  # a takedown: the step as it was
    stride: int = 1  # of an estimate: one chunk in so many is read


IngestStep = Step[IngestOptions, IngestExtra]


class ReadOptions(TaskOptions, frozen=True):
    """What a chunk of a source, or a partition of threads, is read with."""

    reading: Reading
    shard_bytes: int
    on_bad_record: Literal["quarantine", "fail"]
    file: str
    sample: SampleOptions | None
    room: dict[str, int] | None  # what a limit leaves
    span: Span | None = None
    begins: int | None = None  # where its first record does, if a guess was wrong
    files: tuple[str, ...] | None = None  # threads: of the dump
    owners: tuple[int, ...] | None = None  # threads: per input the number of its file
    entries: tuple[Entry, ...] | None = None  # of a directory: the files of this part
    part: Part | None = None


def as_fact(span: Span | None) -> list[int | None] | None:
    """As it is in a receipt."""
    return list(span) if span is not None else None


def reading_task(
    step: IngestStep, number: int, inputs: list[Input], *, is_fused: bool = True, **own: Any
) -> Task[ReadOptions]:
    """Documents of a chunk of a source, or of a partition of threads; cleaned at once, if they can be."""
    follower, asked = step.extra.follower, step.options
    return Task(
        function="ingest",
        key=f"{number:05d}",
        options=ReadOptions(
            reading=asked.reading,
            shard_bytes=asked.shard_bytes,
            on_bad_record=asked.on_bad_record,
            sample=asked.sample if asked.sample and asked.sample.method == "hash" else None,
            room=None,
            part=asked.part,
            **own,
        ),
        inputs=[*inputs, *forgotten_inputs(step), *hook_inputs(plugins_of(asked.reading))],
        directory=str(step.directory),
        followers=[follower] if is_fused and follower is not None else [],
    )


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


def forgotten_inputs(step: IngestStep) -> list[Input]:
    """What a task that writes documents has to read."""
    digest = step.options.forgotten
    return [] if digest is None else [Input(ROLE, str(step.extra.forgotten), digest)]


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
    for name in ("license_tag", "created_at"):
        counts["absent"][name] = counts["absent"].get(name, 0) + table.column(name).null_count
    return msgspec.structs.replace(entry, sequence=row_sequence(table))


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
    paths = task.paths(ROLE)
    if not paths:
        return table, []
    listed = Forgotten.of_source(load_table(paths[0]), source or table.column("source")[0].as_py())
    rows = listed.rows(one_piece(table.column("doc_id")))
    if not len(rows):
        return table, []
    chosen = table.take(pa.array(rows)).combine_chunks()
    _add_gone(counts, chosen)
    stays = np.ones(table.num_rows, np.bool_)
    stays[rows] = False
    return table.filter(pa.array(stays)).combine_chunks(), chosen.column("doc_id").to_pylist()


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
        "absent": {},
    }


def write_ledger(
    task: Task,
    bad: list[BadRecord],
    dropped: list[Dropped],
    source: str,
    file: str,
    counts: Json,
    gone: Sequence[str] = (),
) -> list[FileEntry]:
    """One row per record that did not become a document, and per id that was forgotten;
    `counts` is added to."""
    counts["quarantined"] = dict(Counter(record.reason for record in bad))
    counts["dropped"] = dict(Counter(record.reason for record in dropped))
    if gone:
        counts["dropped"][REASON] = len(gone)
    if not bad and not dropped and not gone:
        return []
    common = {"source": source, "stage": "ingest"}
    quarantined = ledger_table(
        {
            **common,
            "verdict": "quarantine",
            "file": [record.file or file for record in bad],
            "reason": [record.reason for record in bad],
            "offset": [record.offset for record in bad],
            "detail": [record.detail for record in bad],
        },
        len(bad),
    )
    left_out = ledger_table(
        {
            **common,
            "verdict": "drop",
            "file": [record.file or file for record in dropped],
            "doc_id": [record.id for record in dropped],
            "reason": [record.reason for record in dropped],
            "value": [record.value for record in dropped],
            "threshold": [record.threshold for record in dropped],
            "offset": [record.offset for record in dropped],
        },
        len(dropped),
    )
    ledger = pa.concat_tables([quarantined, left_out, forgotten_ledger(source, gone)]).combine_chunks()
    return write_ledger_table(task.directory, task.key, ledger)


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


class PickOptions(TaskOptions, frozen=True):
    chunk: int
    room: dict[str, int]
    shard_bytes: int
    file: str
    span: Span | None


def candidate_task(task: Task[ReadOptions], sample: SampleOptions) -> Task[ReadOptions]:
    """The reading task of a chunk, told to keep candidates only."""
    return msgspec.structs.replace(
        task,
        function="sample.candidates",
        key=f"scan-{task.key}",  # its receipt must outlive that of the pick
        options=msgspec.structs.replace(task.options, sample=sample),
        followers=[],
    )


def stream_bound(sample: SampleOptions) -> dict[str, int] | None:
    """How much of the source a sample looks at, where that is not all of it."""
    return {"docs": sample.k + sample.buffer - 1} if sample.method == "shuffle_buffer" else None


def select_task(step: IngestStep, candidates: list[Receipt], sample: SampleOptions) -> Task[SampleOptions]:
    return Task(
        function="sample.select",
        key="selection",
        options=sample,
        inputs=tables_of(step, candidates, "keys"),
        directory=str(step.directory),
    )


def pick_task(
    reading_task: Task[ReadOptions], number: int, candidates: Receipt, selection: Receipt
) -> Task[PickOptions]:
    directory, asked = Path(reading_task.directory), reading_task.options
    kept = next(entry for entry in candidates.files if entry.table == "candidates")
    return Task(
        function="sample.pick",
        key=f"{number:05d}",
        options=PickOptions(
            chunk=number, room={}, shard_bytes=asked.shard_bytes, file=asked.file, span=asked.span
        ),
        inputs=[
            table_input("candidates", directory, kept),
            table_input("selection", directory, selection.files[0]),
            *(item for item in reading_task.inputs if item.role == ROLE),
        ],
        directory=reading_task.directory,
        followers=reading_task.followers,
    )


def is_scan(receipt: Receipt) -> bool:
    return receipt.key.startswith("scan-")


def ledger_receipt(candidates: Receipt) -> Receipt:
    """What stays of a candidates task: its ledger and what it counted, under a fingerprint of its own."""
    counts = {**candidates.counts, "kept": 0, "text_bytes": 0, "text_chars": 0, "absent": {}}
    return Receipt(
        key=candidates.key,
        fingerprint=fingerprint_of(["scan", candidates.fingerprint]),
        files=[entry for entry in candidates.files if entry.table == "ledger"],
        counts=counts,
        facts=candidates.facts,
    )


def perform_candidates(
    task: Task[ReadOptions], batches: Iterator[Any], bad: list[Any], dropped: list[Any]
) -> Made:
    """`batches` are the documents of the chunk; bad and dropped records gather while they are read."""
    sample, counts = task.options.sample, no_counts()
    assert sample is not None, "candidates are of a sample"
    k = sum((stream_bound(sample) or {"docs": sample.k}).values())
    chosen, chosen_keys = DOCUMENTS.empty_table(), np.zeros(0, np.uint64)
    seen = 0
    for documents in batches:
        seen += documents.num_rows
        keys = sample_keys(documents, sample)
        if len(chosen_keys) == k:  # most documents cannot enter any more: their text is not touched
            enters = np.flatnonzero(keys < chosen_keys.max())
            if not len(enters):
                continue
            keys, documents = keys[enters], documents.take(pa.array(enters))
        keys = np.concatenate([chosen_keys, keys])
        rows = bottom_k(keys, k)
        chosen = pa.concat_tables([chosen, documents]).take(pa.array(rows)).combine_chunks()
        chosen_keys = keys[rows]
    files = write_ledger(task, bad, dropped, task.options.reading.source, task.options.file, counts)
    counts["in"] = seen + len(bad) + len(dropped)
    counts["scanned"] = seen
    files += [
        write_shard_table(task.directory, f"candidates-{task.key}.parquet", "candidates", chosen),
        write_shard_table(
            task.directory, f"keys-{task.key}.parquet", "keys", pa.table([chosen_keys], schema=KEYS)
        ),
    ]
    # The candidates that are not selected become `not_sampled` when the selection is known.
    return Made(files, {**counts, "kept": seen})


def perform_select(task: Task[SampleOptions]) -> Made:
    keys = [np.asarray(load_table(path).column("key")) for path in task.paths("keys")]
    chunk = np.repeat(np.arange(len(keys), dtype=np.uint32), [len(column) for column in keys])
    row = np.concatenate([np.arange(len(column), dtype=np.uint32) for column in keys])
    sample = task.options
    if sample.method == "shuffle_buffer":
        taken = shuffle_buffer(len(row), sample.k, sample.buffer, sample.seed)
    else:
        taken = bottom_k(np.concatenate(keys), sample.k)
    table = pa.table([chunk[taken], row[taken]], schema=SELECTION)
    entry = write_sorted_shard_table(task.directory, "selection.parquet", "selection", table, by="chunk")
    return Made([entry], {})


def perform_pick(task: Task[PickOptions]) -> Made:
    options = task.options
    (path,) = task.paths("selection")
    rows = load_range(path, "chunk", options.chunk).column("row")
    documents = task.load("candidates").take(rows).combine_chunks()
    room, counts = Room(options.room), no_counts()
    files, gone = write_documents(task, [room.take(documents)], counts, options.shard_bytes)
    if gone:
        files += write_ledger(task, [], [], documents.column("source")[0].as_py(), "", counts, gone)
    facts = {"file": options.file or None, "span": as_fact(options.span), "is_full": room.is_full}
    return Made(files, {**counts, "in": counts["kept"] + len(gone)}, facts)


def sample_keys(documents: Any, sample: SampleOptions) -> Any:
    """uint64, the smallest are taken. Positive floats keep their order when their bits are read as
    integers."""
    if sample.method == "shuffle_buffer":
        return np.zeros(documents.num_rows, np.uint64)  # all are candidates
    drawn = draws(documents, sample.seed)
    if sample.method == "reservoir":
        return drawn
    weights = np.array([_weight(meta, sample.weight) for meta in documents.column("meta").to_pylist()])
    return weighted_keys(drawn, weights).view(np.uint64)


def _weight(meta: str | None, key: str) -> float:
    value = msgspec.json.decode(meta).get(key) if meta else None
    if not isinstance(value, (int, float)) or value < 0:
        raise InputError(
            f"sample.weight: a document has {value!r} as `{key}`, which is not a weight",
            next=f"carry a number of zero or more with `fields: {{meta: [{key}]}}`",
        )
    return float(value)


TASKS: dict[str, TaskFunction[Any]] = {
    "sample.select": TaskFunction(SampleOptions, perform_select),
    "sample.pick": TaskFunction(PickOptions, perform_pick),
}

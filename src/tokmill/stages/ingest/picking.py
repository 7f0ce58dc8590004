"""A sample of fixed size in one pass over the source, the same for any number of workers.

    chunk ─ the k smallest keys of its documents ─> candidates-<chunk>, keys-<chunk>
    keys of all chunks ─ the k smallest ─────────> selection      (chunk, row)
    candidates ─ selected rows ──────────────────> documents-<chunk>-<part>, cleaned at once

With `distinct`, the number that a document draws is made from its folded text alone, so all copies of a text
draw the same number, in whatever chunk: of equal numbers only the document with the smallest key is a
candidate, and of equal keys the first.

A shuffle buffer looks at the first k + buffer - 1 documents only, and draws by their numbers, not by keys.

A task holds at most k documents (those and the buffer) and one batch.
Candidates, keys and the selection are scaffolding: they are gone when the step is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Receipt, fingerprint_of
from tokmill.artifacts.step import Made, Task, TaskFunction, TaskOptions, table_input, tables_of
from tokmill.artifacts.tombstones import ROLE
from tokmill.artifacts.upstream import write_shard_table, write_sorted_shard_table
from tokmill.duplicates.shingling import folded_hashes
from tokmill.errors import InputError
from tokmill.schema import DISTINCT_KEYS, DOCUMENTS, KEYS, SELECTION, one_piece
from tokmill.stages.ingest.options import IngestStep, ReadOptions, SampleOptions, as_fact
from tokmill.stages.ingest.shards import Ledger, Room, no_counts, write_documents
from tokmill.stages.sampling import bottom_k, draws, hash_draws, shuffle_buffer, weighted_keys
from tokmill.storage.records import Span
from tokmill.storage.tables import load_range, load_table


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
            chunk=number,
            room={},
            shard_bytes=asked.shard_bytes,
            file=candidates.facts["file"] or "",  # without the name of one that was taken down
            span=asked.span,
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


def perform_candidates(task: Task[ReadOptions], batches: Iterator[Any], ledger: Ledger) -> Made:
    """`batches` are the documents of the chunk; reading them fills the ledger."""
    sample, counts = task.options.sample, no_counts()
    assert sample is not None, "candidates are of a sample"
    k = sum((stream_bound(sample) or {"docs": sample.k}).values())
    chosen, chosen_keys = DOCUMENTS.empty_table(), _no_keys(sample)
    seen = 0
    for documents in batches:
        seen += documents.num_rows
        keys, documents = _candidate_keys(documents, sample)
        if chosen_keys.num_rows == k:  # most documents cannot enter any more: their text is not touched
            enters = np.flatnonzero(_column(keys, "key") < _column(chosen_keys, "key").max())
            if not len(enters):
                continue
            keys, documents = keys.take(pa.array(enters)), documents.take(pa.array(enters))
        keys = pa.concat_tables([chosen_keys, keys]).combine_chunks()
        rows = pa.array(_smallest(keys, k))
        chosen = pa.concat_tables([chosen, documents]).take(rows).combine_chunks()
        chosen_keys = keys.take(rows)
    files = ledger.finish(counts)
    counts["in"] = seen + ledger.records
    counts["scanned"] = seen
    files += [
        write_shard_table(task.directory, f"candidates-{task.key}.parquet", "candidates", chosen),
        write_shard_table(task.directory, f"keys-{task.key}.parquet", "keys", chosen_keys),
    ]
    # The candidates that are not selected become `not_sampled` when the selection is known.
    return Made(files, {**counts, "kept": seen})


def perform_select(task: Task[SampleOptions]) -> Made:
    keys = [load_table(path) for path in task.paths("keys")]
    chunk = np.repeat(np.arange(len(keys), dtype=np.uint32), [own.num_rows for own in keys])
    row = np.concatenate([np.arange(own.num_rows, dtype=np.uint32) for own in keys])
    sample = task.options
    if sample.method == "shuffle_buffer":
        taken = shuffle_buffer(len(row), sample.k, sample.buffer, sample.seed)
    else:
        taken = _smallest(pa.concat_tables(keys), sample.k)
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
        files += Ledger(task, documents.column("source")[0].as_py(), "").finish(counts, gone)
    facts = {"file": options.file or None, "span": as_fact(options.span), "is_full": room.is_full}
    return Made(files, {**counts, "in": counts["kept"] + len(gone)}, facts)


def _no_keys(sample: SampleOptions) -> Any:
    return (DISTINCT_KEYS if sample.distinct else KEYS).empty_table()


def _candidate_keys(documents: Any, sample: SampleOptions) -> tuple[Any, Any]:
    """Keys of the documents that may be drawn, and those documents: with `distinct`, a blank one may not."""
    if not sample.distinct:
        return pa.table([sample_keys(documents, sample)], schema=KEYS), documents
    texts = one_piece(pc.replace_substring(documents.column("text"), "\0", ""))
    folded = folded_hashes(texts, np.asarray(pc.string_is_ascii(texts)))
    is_blank = (folded == 0).all(axis=1)
    if is_blank.any():
        documents, folded = documents.filter(pa.array(~is_blank)), folded[~is_blank]
    drawn = hash_draws(folded, sample.seed)
    return pa.table([sample_keys(documents, sample, drawn), drawn], schema=DISTINCT_KEYS), documents


def _smallest(keys: Any, k: int) -> NDArray[np.int64]:
    """Rows of the k smallest keys, in row order; of equal draws, where there are any, the smallest key."""
    key = _column(keys, "key")
    if "draw" not in keys.column_names:
        return bottom_k(key, k)
    drawn = _column(keys, "draw")
    order = np.lexsort((key, drawn))  # stable: of equal keys the first row
    is_first = np.append(True, drawn[order][1:] != drawn[order][:-1])[: len(order)]
    rows = np.sort(order[is_first])
    return rows[bottom_k(key[rows], k)]


def _column(keys: Any, name: str) -> NDArray[np.uint64]:
    return np.asarray(keys.column(name))


def sample_keys(documents: Any, sample: SampleOptions, drawn: NDArray[np.uint64] | None = None) -> Any:
    """uint64, the smallest are taken. Positive floats keep their order when their bits are read as
    integers."""
    if sample.method == "shuffle_buffer":
        return np.zeros(documents.num_rows, np.uint64)  # all are candidates
    drawn = draws(documents, sample.seed) if drawn is None else drawn
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

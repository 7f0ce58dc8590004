"""Forget: ingested shards again without documents that were taken down, made from the shards themselves.

    documents-<key> ─ ids in forgotten.parquet go ─> documents-<key>.<digest>, ids-<key>.<digest>
    ledger-<chunk>  ─ a row for each that went ────> ledger-<chunk>.<digest>
                      rows that name one: hidden
    forgotten.parquet of the run ─ the source's ───> forgotten.parquet of the step

    a source read anew, whole ─ ids of the list that no record has ─> a warning: what was taken down may be
                                back under another id

No source is read here, and the files are those that reading it with the same list would give
(`shards.key_of_rest`). A kill at any moment leaves the old ones whole, and the step ends by sweeping them
away. Shards and ledgers that say nothing of the documents keep their files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from tokmill.artifacts.manifest import (
    TOMBSTONES,
    FileEntry,
    Json,
    Manifest,
    Receipt,
    add_counts,
    sum_counts,
)
from tokmill.artifacts.step import Conduct, Made, Outcome, Task, TaskOptions, table_input
from tokmill.artifacts.tombstones import (
    REASON,
    ROLE,
    Forgotten,
    forgotten_ledger,
    load_forgotten,
    sha256_of,
    unmet_ids,
    write_ids,
)
from tokmill.artifacts.upstream import shard_key
from tokmill.formats.index import map_ids
from tokmill.schema import LEDGER
from tokmill.stages.ingest.options import IngestStep, forgotten_inputs
from tokmill.stages.ingest.shards import (
    corpus_digest,
    key_of_rest,
    no_counts,
    without_forgotten,
    write_documents_shard,
    write_ids_of,
    write_ledger_table,
)
from tokmill.stages.warnings import tell
from tokmill.storage.tables import load_table


class ForgetOptions(TaskOptions, frozen=True):
    source: str
    paths: tuple[str, ...]  # of the shards, as they are called now; likewise
    ledgers: tuple[str, ...]


def conduct_forget(step: IngestStep, before: Manifest) -> Conduct:
    """Take the listed documents out of the step whose manifest was `before`."""
    assert step.extra.forgotten is not None, "a takedown has a list"
    source = step.options.reading.source
    forgotten = Forgotten.of_source(load_forgotten(step.extra.forgotten.parent), source)
    receipts = [_unnamed(receipt, step) for receipt in before.receipts() if receipt.key != TOMBSTONES]
    held = [(receipt, *_holding(step.directory, receipt, forgotten)) for receipt in receipts]
    chosen = [(receipt, parts) for receipt, parts, is_named in held if parts or is_named]
    made = yield [_task(step, receipt, parts) for receipt, parts in chosen]
    new = dict(zip((receipt.key for receipt, _ in chosen), made, strict=True))
    receipts = [_merged(receipt, new[receipt.key]) if receipt.key in new else receipt for receipt in receipts]
    counts = sum_counts(receipts) if receipts else no_counts()
    facts: Json = {**before.facts, "corpus_digest": corpus_digest(receipts)}
    return Outcome([*receipts, *(yield tombstone_tasks(step))], counts, facts)


class TombstoneOptions(TaskOptions, frozen=True):
    source: str


def tombstone_tasks(step: IngestStep) -> list[Task[TombstoneOptions]]:
    """Keep the source's part of the list of takedowns beside its documents, if it has one: the list of the
    run can be made again from there."""
    if step.options.forgotten is None:
        return []
    return [
        Task(
            function="ingest.tombstones",
            key=TOMBSTONES,
            options=TombstoneOptions(source=step.options.reading.source),
            inputs=forgotten_inputs(step),
            directory=str(step.directory),
        )
    ]


def perform_tombstones(task: Task[TombstoneOptions]) -> Made:
    return Made([write_ids(task.directory, load_table(task.paths(ROLE)[0]), task.options.source)], {})


def _unnamed(receipt: Receipt, step: IngestStep) -> Receipt:
    """A receipt without the name of a file that was taken down."""
    file: str = receipt.facts.get("file") or ""
    if file not in step.extra.hidden:
        return receipt
    return replace(receipt, facts={**receipt.facts, "file": step.extra.hidden[file]})


def tell_unmet(step: IngestStep, receipts: Sequence[Receipt]) -> Json:
    """As facts: ids that were taken down, and that a source which was read to its end does not have. None
    knows whether their documents are gone, or are there under other ids."""
    if step.options.forgotten is None:
        return {}
    assert step.extra.forgotten is not None, "a digest is that of a list"
    source = step.options.reading.source
    entries = [entry for receipt in receipts for entry in receipt.files if entry.table == "ledger"]
    ledgers = (load_table(step.directory / entry.path, ["doc_id"]) for entry in entries)
    unmet = unmet_ids(load_forgotten(step.extra.forgotten.parent), source, ledgers)
    if not unmet:
        return {}
    ids = "1 id that was taken down is" if len(unmet) == 1 else f"{len(unmet):,} ids that were taken down are"
    line = (
        f"{ids} not in {source} any more: either its documents are gone, or they are back under other ids, "
        "as `files`, `fields.id`, `template` or `chat` of the source changed, or its records did; look for "
        "what they said, and take it down again under the ids that it has now"
    )
    tell(step.name, [line])
    return {"warnings": [line]}


def _holding(directory: Path, receipt: Receipt, forgotten: Forgotten) -> tuple[list[FileEntry], bool]:
    """The shards of a chunk that have, or may have, one of them; and whether its ledger names one."""
    found, is_named = [], False
    for entry in receipt.files:
        if entry.table == "ledger":
            ledger = load_table(directory / entry.path)
            is_named |= forgotten.hide_in(ledger) is not ledger
        if entry.table != "documents":
            continue
        hashes = map_ids(directory / f"ids-{shard_key(entry)}.npy", entry.rows)[0]
        if forgotten.holds(np.asarray(hashes)).any():
            found.append(entry)
    return found, is_named


def _task(step: IngestStep, receipt: Receipt, parts: list[FileEntry]) -> Task[ForgetOptions]:
    ledgers = [entry for entry in receipt.files if entry.table == "ledger"]
    inputs = [
        *(table_input("documents", step.directory, entry) for entry in parts),
        *(table_input("ledger", step.directory, entry) for entry in ledgers),
        *forgotten_inputs(step),
    ]
    options = ForgetOptions(
        source=step.options.reading.source,
        paths=tuple(entry.path for entry in parts),
        ledgers=tuple(entry.path for entry in ledgers),
    )
    return Task(
        function="ingest.forget",
        key=receipt.key,
        options=options,
        inputs=inputs,
        directory=str(step.directory),
    )


def perform_forget(task: Task[ForgetOptions]) -> Made:
    """The shards again, and what they lost. Which file takes whose place is in the facts."""
    lost: Json = {"forgotten": {"docs": 0, "chars": 0, "bytes": 0}, "absent": {}}
    kept, instead = no_counts(), dict[str, list[str]]()
    files: list[FileEntry] = []
    gone: list[str] = []
    for path, old in zip(task.paths("documents"), task.options.paths, strict=True):
        table = load_table(path)
        stays, ids = without_forgotten(task, table, lost, task.options.source)
        if not ids:  # they only looked alike, by the beginnings of their hashes
            continue
        gone += ids
        for name in ("license_tag", "created_at"):
            missing = table.column(name).null_count - stays.column(name).null_count
            lost["absent"][name] = lost["absent"].get(name, 0) + missing
        instead[old] = []
        if stays.num_rows:
            key = key_of_rest(old.removeprefix("documents-").removesuffix(".parquet"), stays)
            written = [
                write_documents_shard(task.directory, key, stays, kept),
                write_ids_of(task.directory, key, stays),
            ]
            files += written
            instead[old] = [entry.path for entry in written]
    told, replaced = _ledgers(task, gone)
    return Made([*files, *told], {}, {"lost": lost, "instead": instead | replaced})


def _ledgers(task: Task[ForgetOptions], gone: Sequence[str]) -> tuple[list[FileEntry], dict[str, list[str]]]:
    """The ledgers of the chunk that change: rows that name a forgotten id hide it, and the last one has a row
    for each document that went, now or before."""
    listed = Forgotten.of_source(load_table(task.paths(ROLE)[0]), task.options.source)
    tables = [load_table(path) for path in task.paths("ledger")]
    shown = [listed.hide_in(table) for table in tables]
    names = list(task.options.ledgers)
    if gone and not tables:
        tables, shown, names = [LEDGER.empty_table()], [LEDGER.empty_table()], [f"ledger-{task.key}.parquet"]
    if gone:
        shown[-1] = _with_forgotten(shown[-1], task.options.source, gone)
    files, instead = list[FileEntry](), dict[str, list[str]]()
    for name, before, after in zip(names, tables, shown, strict=True):
        if after is not before:
            key = key_of_rest(name.removeprefix("ledger-").removesuffix(".parquet"), after)
            written = write_ledger_table(task.directory, key, after.combine_chunks())
            files += written
            instead[name] = [entry.path for entry in written]
    return files, instead


def _with_forgotten(ledger: Any, source: str, gone: Sequence[str]) -> Any:
    was_forgotten = pc.equal(ledger.column("reason"), REASON)
    doc_ids = ledger.filter(was_forgotten).column("doc_id").to_pylist()
    hashes = [doc_id.removeprefix("sha256:") for doc_id in doc_ids] + [sha256_of(doc_id) for doc_id in gone]
    others = ledger.filter(pc.invert(was_forgotten))
    return pa.concat_tables([others, forgotten_ledger(source, hashes)])


_INDEX_OF = {"documents": "ids-{}.npy", "ledger": "ledger-ids-{}.npy"}


def _merged(old: Receipt, new: Receipt) -> Receipt:
    """The chunk's receipt as it is now: files in their order, counts without what went."""
    instead: dict[str, list[str]] = new.facts["instead"]
    if not instead:
        return old
    made = {entry.path: entry for entry in new.files}
    files: list[FileEntry] = []
    replaced = set()
    for path in instead:
        table, _, key = path.removesuffix(".parquet").partition("-")
        replaced.add(_INDEX_OF[table].format(key))
    for entry in old.files:
        if entry.path in instead:
            files += [made.pop(path) for path in instead[entry.path]]
        elif entry.path not in replaced:
            files.append(entry)
    files += made.values()  # the ledger of a chunk that had none
    return Receipt(
        key=old.key,
        fingerprint=new.fingerprint,
        files=files,
        counts=_less(old.counts, new.facts["lost"]),
        facts=old.facts,
    )


def _less(counts: Json, lost: Json) -> Json:
    gone: dict[str, Any] = lost["forgotten"]
    dropped = add_counts(counts["dropped"], {REASON: gone["docs"]} if gone["docs"] else {})
    return {
        **counts,
        "kept": counts["kept"] - gone["docs"],
        "text_bytes": counts["text_bytes"] - gone["bytes"],
        "text_chars": counts["text_chars"] - gone["chars"],
        "absent": {name: count - lost["absent"].get(name, 0) for name, count in counts["absent"].items()},
        "dropped": dropped,
        **({"forgotten": add_counts(counts.get("forgotten", {}), gone)} if gone["docs"] else {}),
    }

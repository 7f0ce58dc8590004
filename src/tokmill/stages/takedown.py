"""Forget: ingested shards again without documents that were taken down, made from the shards themselves.

    documents-<key> ─ ids in forgotten.parquet go ─> documents-<key>.<digest>, ids-<key>.<digest>
    ledger-<chunk>  ─ a row for each that went ────> ledger-<chunk>.<digest>

    a source read anew, whole ─ ids of the list that no record has ─> a warning: what was taken down may be
                                back under another id

No source is read here, and the files are those that reading it with the same list would give
(`shards.key_of_rest`). A kill at any moment leaves the old ones whole, and the step ends by sweeping them
away. A shard that has none of the documents keeps its files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokmill.artifacts.manifest import FileEntry, Json, Manifest, Receipt, add_counts, sum_counts
from tokmill.artifacts.step import Conduct, Made, Outcome, Task, TaskOptions, table_input
from tokmill.artifacts.tombstones import (
    REASON,
    Forgotten,
    forgotten_ledger,
    ids_of,
    load_forgotten,
    sha256_of,
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
    paths: tuple[str, ...]  # of the shards, as they are called now


def conduct_forget(step: IngestStep, before: Manifest) -> Conduct:
    """Take the listed documents out of the step whose manifest was `before`."""
    assert step.extra.forgotten is not None, "a takedown has a list"
    source = step.options.reading.source
    forgotten = Forgotten.of_source(load_forgotten(step.extra.forgotten.parent), source)
    receipts = before.receipts()
    chosen = [(receipt, _holding(step.directory, receipt, forgotten)) for receipt in receipts]
    made = yield [_task(step, receipt, parts) for receipt, parts in chosen if parts]
    new = dict(zip((receipt.key for receipt, parts in chosen if parts), made, strict=True))
    receipts = [_merged(receipt, new[receipt.key]) if receipt.key in new else receipt for receipt in receipts]
    counts = sum_counts(receipts) if receipts else no_counts()
    return Outcome(receipts, counts, {**before.facts, "corpus_digest": corpus_digest(receipts)})


def tell_unmet(step: IngestStep, receipts: Sequence[Receipt]) -> Json:
    """As facts: ids that were taken down, and that a source which was read to its end does not have. None
    knows whether their documents are gone, or are there under other ids."""
    if step.options.forgotten is None:
        return {}
    assert step.extra.forgotten is not None, "a digest is that of a list"
    source = step.options.reading.source
    unmet = set(ids_of(load_forgotten(step.extra.forgotten.parent), source))
    for entry in (entry for receipt in receipts for entry in receipt.files if entry.table == "ledger"):
        ledger = load_table(step.directory / entry.path, ["doc_id", "reason"])
        rows = ledger.filter(pc.equal(ledger.column("reason"), REASON)).column("doc_id").to_pylist()
        unmet -= {doc_id.removeprefix("sha256:") for doc_id in rows}
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


def _holding(directory: Path, receipt: Receipt, forgotten: Forgotten) -> list[FileEntry]:
    """The shards of a chunk that have, or may have, one of them."""
    found = []
    for entry in receipt.files:
        if entry.table != "documents":
            continue
        hashes = map_ids(directory / f"ids-{shard_key(entry)}.npy", entry.rows)[0]
        if forgotten.holds(np.asarray(hashes)).any():
            found.append(entry)
    return found


def _task(step: IngestStep, receipt: Receipt, parts: list[FileEntry]) -> Task[ForgetOptions]:
    ledgers = [entry for entry in receipt.files if entry.table == "ledger"]
    inputs = [
        *(table_input("documents", step.directory, entry) for entry in parts),
        *(table_input("ledger", step.directory, entry) for entry in ledgers),
        *forgotten_inputs(step),
    ]
    return Task(
        function="ingest.forget",
        key=receipt.key,
        options=ForgetOptions(source=step.options.reading.source, paths=tuple(entry.path for entry in parts)),
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
    if gone:
        ledger = _with_forgotten(task, gone)
        files += write_ledger_table(task.directory, key_of_rest(task.key, ledger), ledger)
    return Made(files, {}, {"lost": lost, "instead": instead})


def _with_forgotten(task: Task[ForgetOptions], gone: Sequence[str]) -> Any:
    """The ledger of the chunk with a row for each document that went, now or before."""
    earlier = [load_table(path) for path in task.paths("ledger")]
    ledger = pa.concat_tables([LEDGER.empty_table(), *earlier]).combine_chunks()
    was_forgotten = pc.equal(ledger.column("reason"), REASON)
    doc_ids = ledger.filter(was_forgotten).column("doc_id").to_pylist()
    hashes = [doc_id.removeprefix("sha256:") for doc_id in doc_ids] + [sha256_of(doc_id) for doc_id in gone]
    others = ledger.filter(pc.invert(was_forgotten))
    return pa.concat_tables([others, forgotten_ledger(task.options.source, hashes)]).combine_chunks()


def _merged(old: Receipt, new: Receipt) -> Receipt:
    """The chunk's receipt as it is now: files in their order, counts without what went."""
    if not new.facts["instead"]:
        return old
    made = {entry.path: entry for entry in new.files}
    files: list[FileEntry] = []
    replaced = {
        f"ids-{path.removeprefix('documents-').removesuffix('.parquet')}.npy" for path in new.facts["instead"]
    }
    for entry in old.files:
        if entry.path in new.facts["instead"]:
            files += [made.pop(path) for path in new.facts["instead"][entry.path]]
        elif entry.path not in replaced and entry.table not in ("ledger", "ledger_ids"):
            files.append(entry)
    files += made.values()  # the ledger and its index
    return Receipt(
        key=old.key,
        fingerprint=new.fingerprint,
        files=files,
        counts=_less(old.counts, new.facts["lost"]),
        facts=old.facts,
    )


def _less(counts: Json, lost: Json) -> Json:
    gone: dict[str, Any] = lost["forgotten"]
    dropped = add_counts(counts["dropped"], {REASON: gone["docs"]})
    return {
        **counts,
        "kept": counts["kept"] - gone["docs"],
        "text_bytes": counts["text_bytes"] - gone["bytes"],
        "text_chars": counts["text_chars"] - gone["chars"],
        "absent": {name: count - lost["absent"].get(name, 0) for name, count in counts["absent"].items()},
        "dropped": dropped,
        "forgotten": add_counts(counts.get("forgotten", {}), gone),
    }

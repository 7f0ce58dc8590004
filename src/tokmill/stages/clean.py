"""Clean: one pass over a shard measures, edits, judges and fingerprints every document.

    documents ─ normalize ─ measure ─ judge ─ exact hash ─> marks-<key>   kept, chars, bytes, hash: every row
                    │                   └───────────────────> ledger-<key>  drops and edits
                    └───────────────────────────────────────> edits-<key>   new text of the rows that changed

The texts are not written again: what cleaning leaves is the ingested text with the edits laid over it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tokmill.artifact import Artifact
from tokmill.clean.normalize import Edits, normalize_texts
from tokmill.clean.rules import Faults, judge
from tokmill.dedup.exact import HASH_NORMALIZATION, exact_hashes
from tokmill.errors import InputError
from tokmill.manifest import NO_DOCUMENTS, Json, add_counts, sum_counts
from tokmill.recipe import Filter, Normalize
from tokmill.schema import EDITS, MARKS, ledger_table, one_piece, string_column
from tokmill.stages.step import Conduct, Made, Outcome, Step, shard_key, write_shard_table
from tokmill.task import Input, Task, table_input


def clean_config(source: str, normalize: Normalize, filters: list[Filter]) -> Json:
    """All that can change a byte of the cleaned shards of one source."""
    return {
        "source": source,
        "normalize": normalize.model_dump(mode="json", exclude={"max_nul_fraction"}),
        "filters": [rule.model_dump(mode="json") for rule in filters],
        "hash": HASH_NORMALIZATION,
        "unicode_data": unicodedata.unidata_version,
    }


def shard_task(config: Json, directory: str, key: str, documents: Input) -> Task:
    return Task(function="clean", key=key, config=config, inputs=[documents], directory=directory)


def conduct(step: Step, upstream: Mapping[str, Artifact]) -> Conduct:
    (ingested,) = upstream.values()
    tasks = [
        shard_task(
            step.config,
            str(step.directory),
            shard_key(entry),
            table_input("documents", ingested.directory, entry),
        )
        for entry in ingested.manifest.entries("documents")
    ]
    receipts = yield tasks
    counts = add_counts(NO_DOCUMENTS, sum_counts(receipts))
    _check_nul(step, counts)
    return Outcome(receipts, counts, {})


def perform_clean(task: Task) -> Made:
    return clean_table(task, task.load("documents", ["text", "doc_id"]))


def clean_table(task: Task, documents: Any) -> Made:
    texts = one_piece(documents.column("text"))
    normal = normalize_texts(texts, Normalize.model_validate(task.config["normalize"]))
    sizes = np.diff(string_column(normal.texts).offsets)
    hashes = exact_hashes(normal.texts, normal.is_ascii)
    filters = [Filter.model_validate(rule) for rule in task.config["filters"]]
    is_blank = (hashes[:, 0] == 0) & (hashes[:, 1] == 0)
    faults = judge({"chars": normal.chars, "bytes": sizes}, filters, is_blank)

    kept = np.ones(len(texts), np.bool_)
    kept[faults.rows] = False
    marks = pa.table([kept, normal.chars, sizes, hashes[:, 0], hashes[:, 1]], schema=MARKS)
    files = [write_shard_table(task.directory, f"marks-{task.key}.parquet", "marks", marks)]
    useful = kept[normal.edits.rows]
    if useful.any():
        rows = normal.edits.rows[useful].astype(np.uint32)
        edits = pa.table([rows, normal.edits.texts.filter(pa.array(useful))], schema=EDITS)
        files.append(write_shard_table(task.directory, f"edits-{task.key}.parquet", "edits", edits))
    ledger = _ledger(task, documents.column("doc_id"), faults, normal.edits)
    if ledger.num_rows:
        files.append(write_shard_table(task.directory, f"ledger-{task.key}.parquet", "ledger", ledger))
    counts = {
        "in": len(texts),
        "kept": int(kept.sum()),
        "dropped": _tally(faults.reasons),
        "quarantined": {},
        "edited": {reason: len(rows) for reason, rows, _ in normal.edits.reasons},
        "kept_bytes": int(sizes[kept].sum()),
        "kept_chars": int(normal.chars[kept].sum()),
        "nul_chars": normal.nuls,
        "chars_in": normal.chars_in,
    }
    return Made(files, counts)


def _ledger(task: Task, doc_ids: Any, faults: Faults, edits: Edits) -> Any:
    common = {
        "shard": f"{task.config['source']}/{task.key}",
        "source": task.config["source"],
        "stage": "clean",
    }
    parts = [
        ledger_table(
            {
                **common,
                "row": faults.rows.astype(np.uint32),
                "doc_id": doc_ids.take(pa.array(faults.rows)),
                "verdict": "drop",
                "reason": faults.reasons,
                "value": faults.values,
                "threshold": faults.thresholds,
            },
            len(faults.rows),
        )
    ]
    for reason, rows, counts in edits.reasons:
        columns = {
            **common,
            "row": rows.astype(np.uint32),
            "doc_id": doc_ids.take(pa.array(rows)),
            "verdict": "edit",
            "reason": reason,
            "value": counts.astype(np.float64),
        }
        parts.append(ledger_table(columns, len(rows)))
    return pa.concat_tables(parts).combine_chunks()


def _tally(reasons: list[str]) -> dict[str, int]:
    return {reason: reasons.count(reason) for reason in sorted(set(reasons))}


def _check_nul(step: Step, counts: Json) -> None:
    ceiling = step.extra["max_nul_fraction"]
    if counts.get("nul_chars", 0) * 10**9 > counts.get("chars_in", 0) * int(ceiling * 10**9):
        raise InputError(
            f"{counts['nul_chars']:,} of {counts['chars_in']:,} characters are NUL: this is not plain text "
            "(UTF-16, or a binary file?)",
            where=f"source {step.config['source']}",
            next="convert the files to UTF-8, or raise `normalize.max_nul_fraction` if they are right",
        )

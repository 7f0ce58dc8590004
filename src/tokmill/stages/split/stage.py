"""Split: a label for every document, before anything is packed.

    tokmill.stages.split.selection ─> bounds       where each split ends, in order of the documents' keys
                             └> selection    labels of documents that are held together
    shard s ─ bounds, selection ─> labels-<s>     every row; NO_SPLIT: dropped before, or left out
            ─ or its own field ─┘ └> ledger-<s>   who is left out, and why

`hash` without clusters knows its bounds from the start, and `field` needs none: those take one round.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from tokmill.artifacts.artifact import Artifact
from tokmill.artifacts.manifest import FileEntry, Json, Receipt, sum_counts
from tokmill.artifacts.step import (
    Conduct,
    Input,
    Made,
    Outcome,
    Shard,
    Step,
    Task,
    kept_inputs,
    list_shards,
    write_shard_table,
)
from tokmill.errors import InputError
from tokmill.schema import LABELS, NO_SPLIT, ledger_table
from tokmill.stages.external import open_runs
from tokmill.stages.sampling import (
    NOWHERE,
    SPLITS,
    TEST,
    TRAIN,
    Bound,
    Labels,
    hash_bounds,
    label_keys,
    label_values,
    spelled_field,
)
from tokmill.stages.split.selection import KEYS, rest_of, select
from tokmill.storage.digest import id_hashes
from tokmill.storage.parquet import load_range

LOG = logging.getLogger("tokmill.stages.sampling")

NOT_COUNTED, UNKNOWN_SPLIT = "not_counted", "unknown_split"
SOURCE = "source"  # the field that every document has

_SHOWN_VALUES = 10  # of those that a field has and no split wants


def conduct(step: Step, upstream: Mapping[str, Artifact]) -> Conduct:
    config, shards = step.config, list_shards(upstream)
    kept = kept_inputs(upstream, shards)
    plain = [(shard, [shard.documents, item]) for shard, item in zip(shards, kept, strict=True)]
    facts: Json = {"splits": _names(config)}
    if config["method"] == "field":
        asked = {key: config[key] for key in ("field", "values", "unknown")}
        receipts = yield [_label_task("split.field", step, shard, inputs, asked) for shard, inputs in plain]
        facts["unknown"] = _check_field(config, receipts)
    elif config["method"] == "hash" and config["by"] == "document":
        bounds = hash_bounds(Decimal(config["valid_fraction"]), Decimal(config["test_fraction"]))
        asked = {"bounds": [list(bound) for bound in bounds], "rest": TRAIN, "start": 0}
        receipts = yield [_label_task("split", step, shard, inputs, asked) for shard, inputs in plain]
    else:
        found = yield from select(step, upstream, shards, kept)
        receipts = yield [
            _label_task(
                "split",
                step,
                shard,
                [*inputs, *own.inputs],
                {"bounds": own.bounds, "rest": rest_of(config), "start": own.start},
            )
            for (shard, inputs), own in zip(plain, found.shards, strict=True)
        ]
        facts |= found.facts
    return Outcome(receipts, sum_counts(receipts), facts)


def _names(config: Json) -> list[str]:
    """The splits of the run: the first two, and test where it is asked for."""
    method = config["method"]
    if method == "hash":
        has_test = Decimal(config["test_fraction"]) > 0
    elif method == "formula":
        has_test = config["test"]
    else:
        has_test = bool(config["counts" if method == "counts" else "values"]["test"])
    return list(SPLITS if has_test else SPLITS[:TEST])


def _label_task(function: str, step: Step, shard: Shard, inputs: list[Input], config: Json) -> Task:
    named = {"shard": shard.name, "number": shard.number, "source": shard.source, "domain": shard.domain}
    return Task(
        function=function,
        key=f"{shard.number:05d}",
        config={**config, **named, "splits": _names(step.config)},
        inputs=inputs,
        directory=str(step.directory),
    )


def perform_split(task: Task) -> Made:
    config = task.config
    kept = np.asarray(task.load("kept", ["kept"]).column("kept"))
    rows = np.flatnonzero(kept)
    doc_ids = task.load("documents", ["doc_id"]).column("doc_id")
    if task.paths("keys"):
        (run,) = open_runs(task.inputs, "keys", KEYS)
        (keys,) = run.read(0, run.rows, ["key"])
    else:
        keys = id_hashes(doc_ids.take(pa.array(rows)))
    numbers = config["start"] + np.arange(len(rows))
    bounds = [Bound(*bound) for bound in config["bounds"]]
    labels = np.full(len(kept), NO_SPLIT, np.uint8)
    labels[rows] = label_keys(keys, numbers, bounds, config["rest"])
    is_held = np.zeros(len(kept), np.bool_)
    for path in task.paths("selection"):
        chosen = load_range(path, "shard", config["number"])
        held = np.asarray(chosen.column("row"))
        is_held[held] = True
        labels[held] = np.asarray(chosen.column("split"))
    left_out = np.flatnonzero(labels[rows] == NO_SPLIT)
    # its place in the shuffle, from 0 to 1, and where the counted ones end; a cluster went as a whole
    last = bounds[-1].key if bounds else None
    alone = ~is_held[rows[left_out]]
    columns = {
        "value": pa.array(keys[left_out].astype(np.float64) / 2.0**64, mask=~alone),
        "threshold": pa.array(np.full(len(left_out), (last or 0) / 2.0**64), mask=~alone),
        "detail": pa.array(np.where(alone, "", "held together with others"), pa.string(), mask=alone),
    }
    ledger = _ledger(task, doc_ids, rows[left_out], NOT_COUNTED, columns)
    return Made([_write_labels(task, labels), *ledger], _counts(task, kept, labels, NOT_COUNTED))


# --- field ---


def perform_field(task: Task) -> Made:
    config = task.config
    kept = np.asarray(task.load("kept", ["kept"]).column("kept"))
    documents = task.load("documents", ["doc_id", "meta"])
    rows = np.flatnonzero(kept)
    if config["field"] == SOURCE:
        values: list[str | None] = [config["source"]] * len(rows)
    else:
        values = spelled_field(documents.column("meta").take(pa.array(rows)), config["field"])
    found = label_values(values, config["values"])
    unknown = np.flatnonzero(found == NOWHERE)
    found[unknown] = TRAIN if config["unknown"] == "train" else NO_SPLIT
    labels = np.full(len(kept), NO_SPLIT, np.uint8)
    labels[rows] = found
    told = Counter(values[place] for place in unknown.tolist())
    facts = {
        "present": sum(value is not None for value in values),
        "absent": told.pop(None, 0),
        "unknown": len(unknown),
        "values": dict(_most(told)),
    }
    details = [_detail(config["field"], values[place]) for place in unknown.tolist()]
    ledger = []
    if config["unknown"] == "drop":
        columns = {"detail": pa.array(details, pa.string())}
        ledger = _ledger(task, documents.column("doc_id"), rows[unknown], UNKNOWN_SPLIT, columns)
    files = [_write_labels(task, labels), *ledger]
    return Made(files, _counts(task, kept, labels, UNKNOWN_SPLIT), facts)


def _detail(field: str, value: str | None) -> str:
    return f"no `{field}`" if value is None else f"`{field}` is {value}"


def _check_field(config: Json, receipts: list[Receipt]) -> int:
    """How many documents have no value that a split wants; an error where that is not meant."""
    field, there = config["field"], sum(receipt.counts["in"] for receipt in receipts)
    present, absent, unknown = (
        sum(int(receipt.facts[name]) for receipt in receipts) for name in ("present", "absent", "unknown")
    )
    if there and not present:
        raise InputError(
            f"none of {there:,} documents has the field `{field}`",
            where="split.field",
            next=f"carry it along from the source with `fields: {{meta: [{field}]}}`",
        )
    if unknown and config["unknown"] == "fail":
        values: Counter[str] = Counter()
        for receipt in receipts:
            values.update(receipt.facts["values"])
        told = [f"{value} ({count:,})" for value, count in _most(values)]
        told += [f"none at all ({absent:,})"] if absent else []
        raise InputError(
            f"{unknown:,} of {there:,} documents have no value of `{field}` that a split wants: "
            + ", ".join(told),
            where="split.values",
            next="add it, or say what becomes of such documents with `unknown: train` or `unknown: drop`",
        )
    if unknown:
        message = "split: %s of %s documents have no value of `%s` that a split wants (%s none at all): %s"
        fate = "they train" if config["unknown"] == "train" else "they are dropped"
        LOG.warning(message, f"{unknown:,}", f"{there:,}", field, f"{absent:,}", fate)
    return unknown


def _most(values: Counter[Any]) -> list[tuple[str, int]]:
    return sorted(values.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN_VALUES]


# --- what every method writes ---


def _write_labels(task: Task, labels: Labels) -> FileEntry:
    table = pa.table([labels], schema=LABELS)
    return write_shard_table(task.directory, f"labels-{task.key}.parquet", "labels", table)


def _counts(task: Task, kept: Any, labels: Labels, reason: str) -> Json:
    by_split = {
        name: int((labels[kept] == number).sum()) for number, name in enumerate(task.config["splits"])
    }
    considered, labelled = int(kept.sum()), sum(by_split.values())
    return {
        "in": considered,
        "kept": labelled,
        "dropped": {reason: considered - labelled} if labelled < considered else {},
        "quarantined": {},
        **by_split,
        "domains": {task.config["domain"]: by_split},
    }


def _ledger(task: Task, doc_ids: Any, rows: Any, reason: str, columns: Mapping[str, Any]) -> list[FileEntry]:
    if not len(rows):
        return []
    table = ledger_table(
        {
            "shard": task.config["shard"],
            "row": rows,
            "source": task.config["source"],
            "doc_id": doc_ids.take(pa.array(rows)),
            "stage": "split",
            "verdict": "drop",
            "reason": reason,
            **columns,
        },
        len(rows),
    )
    return [write_shard_table(task.directory, f"ledger-{task.key}.parquet", "ledger", table)]

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
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import (
    NO_DOCUMENTS,
    FileEntry,
    Json,
    Manifest,
    Receipt,
    add_counts,
    sum_counts,
)
from tokmill.artifacts.step import Conduct, Input, Made, Outcome, Stage, Step, Task, TaskFunction, TaskOptions
from tokmill.artifacts.upstream import Shard, kept_inputs, list_shards, write_shard_table
from tokmill.errors import InputError
from tokmill.schema import LABELS, NO_SPLIT, ledger_table
from tokmill.stages.external.runs import open_runs
from tokmill.stages.split.keys import (
    NOWHERE,
    SPLITS,
    TEST,
    TRAIN,
    Bound,
    Labels,
    label_keys,
    label_values,
    spelled_field,
)
from tokmill.stages.split.options import FieldSplit, HashSplit, SplitOptions
from tokmill.stages.split.selection import (
    KEYS,
    KeyOptions,
    SelectOptions,
    perform_keys,
    perform_select,
    rest_of,
    select,
)
from tokmill.stages.warnings import split_warnings, tell
from tokmill.storage.digests import id_hashes
from tokmill.storage.tables import load_range

LOG = logging.getLogger("tokmill.stages.split")

NOT_COUNTED, UNKNOWN_SPLIT = "not_counted", "unknown_split"
SOURCE = "source"  # the field that every document has

_SHOWN_VALUES = 10  # of those that a field has and no split wants


class LabelOptions(TaskOptions, frozen=True):
    shard: str
    number: int
    source: str
    domain: str
    splits: tuple[str, ...]


class BoundOptions(LabelOptions, frozen=True):
    bounds: tuple[Bound, ...]
    rest: int
    start: int  # number of the first kept document, of all


class FieldOptions(LabelOptions, frozen=True):
    field: str
    values: dict[str, tuple[str, ...]]
    unknown: Literal["fail", "drop", "train"]


def conduct(step: Step[SplitOptions], upstream: Mapping[str, Artifact]) -> Conduct:
    options, shards = step.options, list_shards(upstream)
    kept = kept_inputs(upstream, shards)
    plain = [(shard, [shard.documents, item]) for shard, item in zip(shards, kept, strict=True)]
    names = SPLITS if options.has_test else SPLITS[:TEST]
    facts: Json = {"splits": list(names)}

    def task(
        function: str, kind: type[LabelOptions], shard: Shard, inputs: list[Input], **asked: Any
    ) -> Task[LabelOptions]:
        named: Json = {"number": shard.number, "source": shard.source, "domain": shard.domain}
        return Task(
            function=function,
            key=f"{shard.number:05d}",
            options=kind(shard=shard.name, splits=names, **named, **asked),
            inputs=inputs,
            directory=str(step.directory),
        )

    if isinstance(options, FieldSplit):
        asked = {"field": options.field, "values": options.values, "unknown": options.unknown}
        receipts = yield [
            task("split.field", FieldOptions, shard, inputs, **asked) for shard, inputs in plain
        ]
        facts["unknown"] = _check_field(options, receipts)
    elif isinstance(options, HashSplit) and options.by == "document":
        bounds = options.bounds()
        receipts = yield [
            task("split", BoundOptions, shard, inputs, bounds=bounds, rest=TRAIN, start=0)
            for shard, inputs in plain
        ]
    else:
        chosen, told = yield from select(options, step.directory, upstream, shards, kept)
        rest = rest_of(options)
        receipts = yield [
            task(
                "split",
                BoundOptions,
                shard,
                [*inputs, *own.inputs],
                bounds=own.bounds,
                rest=rest,
                start=own.start,
            )
            for (shard, inputs), own in zip(plain, chosen, strict=True)
        ]
        facts |= told
    counts = add_counts(NO_DOCUMENTS, sum_counts(receipts))
    facts |= _shared_ids([shard.source for shard in shards], receipts)
    tell(step.name, split_warnings(step.config, counts, facts))
    return Outcome(receipts, counts, facts)


def _shared_ids(sources: Sequence[str], receipts: Sequence[Receipt]) -> Json:
    """By source, where some share an id; told of the shards that they lie in,
    so of no pair in different ones."""
    found: Json = {}
    came: Counter[str] = Counter()
    for source, receipt in zip(sources, receipts, strict=True):
        came[source] += receipt.counts["in"]
        if "shared_ids" in receipt.facts:
            found[source] = add_counts(found.get(source, {}), receipt.facts["shared_ids"])
    told = {source: {**shared, "of": came[source]} for source, shared in found.items()}
    return {"shared_ids": told} if told else {}


def perform_split(task: Task[BoundOptions]) -> Made:
    options, bounds = task.options, task.options.bounds
    kept = np.asarray(task.load("kept", ["kept"]).column("kept"))
    rows = np.flatnonzero(kept)
    doc_ids = task.load("documents", ["doc_id"]).column("doc_id")
    if task.paths("keys"):
        (run,) = open_runs(task.inputs, "keys", KEYS)
        (keys,) = run.read(0, run.rows, ["key"])
    else:
        keys = id_hashes(doc_ids.take(pa.array(rows)))
    numbers = options.start + np.arange(len(rows))
    labels = np.full(len(kept), NO_SPLIT, np.uint8)
    labels[rows] = label_keys(keys, numbers, bounds, options.rest)
    is_held = np.zeros(len(kept), np.bool_)
    for path in task.paths("selection"):
        chosen = load_range(path, "shard", options.number)
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
    counts = _counts(task, kept, labels, NOT_COUNTED)
    return Made([_write_labels(task, labels), *ledger], counts, _ids_in_common(doc_ids.take(pa.array(rows))))


def _ids_in_common(doc_ids: Any) -> Json:
    """Documents of a shard that have their id in common with others, and the commonest of these ids."""
    counted = doc_ids.value_counts()
    times = np.asarray(counted.field("counts"))
    shared = times > 1
    if not shared.any():
        return {}
    most = int(times.argmax())
    commonest = {str(counted.field("values")[most].as_py()): int(times[most])}
    return {"shared_ids": {"documents": int(times[shared].sum()), "commonest": commonest}}


# --- field ---


def perform_field(task: Task[FieldOptions]) -> Made:
    options = task.options
    kept = np.asarray(task.load("kept", ["kept"]).column("kept"))
    documents = task.load("documents", ["doc_id", "meta"])
    rows = np.flatnonzero(kept)
    if options.field == SOURCE:
        values: list[str | None] = [options.source] * len(rows)
    else:
        values = spelled_field(documents.column("meta").take(pa.array(rows)), options.field)
    found = label_values(values, options.values)
    unknown = np.flatnonzero(found == NOWHERE)
    found[unknown] = TRAIN if options.unknown == "train" else NO_SPLIT
    labels = np.full(len(kept), NO_SPLIT, np.uint8)
    labels[rows] = found
    told = Counter(values[place] for place in unknown.tolist())
    facts = {
        "present": sum(value is not None for value in values),
        "absent": told.pop(None, 0),
        "unknown": len(unknown),
        "values": dict(_most(told)),
    }
    details = [_detail(options.field, values[place]) for place in unknown.tolist()]
    ledger = []
    if options.unknown == "drop":
        columns = {"detail": pa.array(details, pa.string())}
        ledger = _ledger(task, documents.column("doc_id"), rows[unknown], UNKNOWN_SPLIT, columns)
    files = [_write_labels(task, labels), *ledger]
    return Made(files, _counts(task, kept, labels, UNKNOWN_SPLIT), facts)


def _detail(field: str, value: str | None) -> str:
    return f"no `{field}`" if value is None else f"`{field}` is {value}"


def _check_field(options: FieldSplit, receipts: list[Receipt]) -> int:
    """How many documents have no value that a split wants; an error where that is not meant."""
    field, there = options.field, sum(receipt.counts["in"] for receipt in receipts)
    present, absent, unknown = (
        sum(int(receipt.facts[name]) for receipt in receipts) for name in ("present", "absent", "unknown")
    )
    if there and not present:
        raise InputError(
            f"none of {there:,} documents has the field `{field}`",
            where="split.field",
            next=f"carry it along from the source with `fields: {{meta: [{field}]}}`",
        )
    if unknown and options.unknown == "fail":
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
        outcome = "they train" if options.unknown == "train" else "they are dropped"
        LOG.warning(message, f"{unknown:,}", f"{there:,}", field, f"{absent:,}", outcome)
    return unknown


def _most(values: Counter[Any]) -> list[tuple[str, int]]:
    return sorted(values.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN_VALUES]


# --- what every method writes ---


def _write_labels(task: Task, labels: Labels) -> FileEntry:
    table = pa.table([labels], schema=LABELS)
    return write_shard_table(task.directory, f"labels-{task.key}.parquet", "labels", table)


def _counts(task: Task[LabelOptions], kept: Any, labels: Labels, reason: str) -> Json:
    by_split = {name: int((labels[kept] == number).sum()) for number, name in enumerate(task.options.splits)}
    considered, labelled = int(kept.sum()), sum(by_split.values())
    return {
        "in": considered,
        "kept": labelled,
        "dropped": {reason: considered - labelled} if labelled < considered else {},
        "quarantined": {},
        **by_split,
        "domains": {task.options.domain: by_split},
    }


def _ledger(
    task: Task[LabelOptions], doc_ids: Any, rows: Any, reason: str, columns: Mapping[str, Any]
) -> list[FileEntry]:
    if not len(rows):
        return []
    table = ledger_table(
        {
            "shard": task.options.shard,
            "row": rows,
            "source": task.options.source,
            "doc_id": doc_ids.take(pa.array(rows)),
            "stage": "split",
            "verdict": "drop",
            "reason": reason,
            **columns,
        },
        len(rows),
    )
    return [write_shard_table(task.directory, f"ledger-{task.key}.parquet", "ledger", table)]


def _hand_on(manifest: Manifest, taker: str) -> Json:
    """The names of the splits, and for a mixture the fractions that its target is divided by."""
    config = {"config": manifest.config} if taker == "mixture" else {}
    return {"splits": manifest.facts["splits"], **config}


STAGE = Stage(
    "split",
    SplitOptions,
    conduct,
    {
        "split.keys": TaskFunction(KeyOptions, perform_keys),
        "split.select": TaskFunction(SelectOptions, perform_select),
        "split.field": TaskFunction(FieldOptions, perform_field),
        "split": TaskFunction(BoundOptions, perform_split),
    },
    hand_on=_hand_on,
)

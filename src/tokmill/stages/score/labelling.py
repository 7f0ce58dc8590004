"""Which documents are examples, and of which label: by rules on what they carry or measure, or by a file.

documents of a shard ─ where, labels ─ label of each row ─┬─> labelled-<n>   and whether it is held out
                                                          └─> examples-<n>   n-grams as whole numbers
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Json, file_entry
from tokmill.artifacts.step import Made, Task, TaskOptions
from tokmill.artifacts.upstream import write_shard_table
from tokmill.clean.measures import measure
from tokmill.errors import InputError
from tokmill.schema import one_piece
from tokmill.scores.examples import write_examples
from tokmill.scores.labels import load_labels
from tokmill.scores.linear import Training
from tokmill.scores.training import NO_LABEL, Labels, held_out, learn_from, make_lesson
from tokmill.storage.tables import load_table
from tokmill.tokenizers.regions import strip_marks

INGEST = "ingest/"
LABELS_FILE = "labels"  # its role
_LABELLED = pa.schema([pa.field("label", pa.int32()), pa.field("is_held_out", pa.bool_())])
_ENTRY = pa.field("entry", pa.int64())  # of a file of labels


class RuleOptions(TaskOptions, frozen=True):
    """A document counts when min <= value <= max, or when its value is one of these."""

    field: str | None = None  # of meta
    measure: str | None = None
    min: int | float | None = None
    max: int | float | None = None
    values: tuple[str, ...] = ()


class SetOptions(TaskOptions, frozen=True):
    """Documents of one label."""

    step: str  # that ingests them
    label: int
    where: tuple[RuleOptions, ...] = ()


class ScoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """All that can change a bit of the model, but documents and labels themselves."""

    name: str
    labels: tuple[str, ...]
    label: str  # whose chance is measured
    training: Training
    max_docs: int | None
    held_out: Decimal
    sets: tuple[SetOptions, ...]  # empty: a file of labels
    # steps whose texts are conversations, and are learned without the marks of their regions; not in the
    # config where there are none, nor is the next
    chats: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    # keys of the score that its model, and so the figures of the card, do without
    beside: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    version: int = 1


class ExampleOptions(TaskOptions, frozen=True):
    step: str
    labels: tuple[str, ...]
    training: Training
    held_out: Decimal
    sets: tuple[SetOptions, ...]
    without_marks: bool = False
    has_entries: bool = False  # labels are those of a file, of which each entry should meet a document


def as_learned(documents: Any, options: ExampleOptions) -> Any:
    if not options.without_marks:
        return documents
    place = documents.schema.get_field_index("text")
    return documents.set_column(place, "text", strip_marks(one_piece(documents.column("text"))))


def perform_examples(task: Task[ExampleOptions]) -> Made:
    options = task.options
    documents = task.load("documents", ["text", "doc_id", "meta"])
    labels, entries, facts = _label(task, documents)
    lesson = make_lesson(
        as_learned(documents, options), labels, options.labels, options.training, options.held_out
    )
    number = task.key.rpartition("-")[2]
    path = f"examples-{number}.bin"
    examples = learn_from(lesson, options.training)
    written = write_examples(Path(task.directory) / path, examples)
    labelled = pa.table([labels, held_out(documents.column("doc_id"), options.held_out)], schema=_LABELLED)
    if entries is not None:
        labelled = labelled.append_column(_ENTRY, pa.array(entries))
    files = [
        file_entry(path, "examples", written, rows=len(examples.labels)),
        write_shard_table(task.directory, f"labelled-{number}.parquet", "labelled", labelled),
    ]
    learned = np.bincount(examples.labels, minlength=len(options.labels)).tolist()
    return Made(files, {}, {"learned": learned, **facts})


def perform_unmet(task: Task[TaskOptions]) -> Made:
    """Entries of the file of labels that no document of any shard has."""
    (file,) = (item for item in task.inputs if item.role == LABELS_FILE)
    is_met = np.zeros(len(load_labels(Path(file.path), file.content_sha256).numbers) + 1, np.bool_)
    for path in task.paths("labelled"):
        is_met[np.asarray(load_table(path, [_ENTRY.name]).column(0))] = True  # NOWHERE is the last
    return Made([], {}, {"entries": len(is_met) - 1, "unmet": int((~is_met[:-1]).sum())})


def _label(
    task: Task[ExampleOptions], documents: Any
) -> tuple[Labels, NDArray[np.int64] | None, dict[str, list[Json]]]:
    """Of every row its label, NO_LABEL where it is no example; of a file the entry that says so; and of each
    set what was found."""
    options = task.options
    doc_ids = one_piece(documents.column("doc_id"))
    source = options.step.partition("/")[2]
    for item in task.inputs:
        if item.role == LABELS_FILE:
            file = load_labels(Path(item.path), item.content_sha256)
            entries = file.find(source, doc_ids.to_pylist())
            return file.labels_of(entries), entries, {"sets": []}
    labels = np.full(documents.num_rows, NO_LABEL, np.int32)
    facts: list[Json] = []
    for one in options.sets:
        chosen, with_field = np.ones(documents.num_rows, np.bool_), []
        for rule in one.where:
            holds, known = _judge(documents, rule)
            chosen &= holds
            with_field.append(known)
        twice = np.flatnonzero(chosen & (labels != NO_LABEL) & (labels != one.label))
        if len(twice):
            first, second = options.labels[labels[twice[0]]], options.labels[one.label]
            raise InputError(
                f"the document {doc_ids[int(twice[0])].as_py()} is an example of `{first}` and of `{second}`",
                where=spoken(options.step),
                next="let no `where` of one side hold for documents of the other",
            )
        labels[chosen] = one.label
        facts.append({"documents": int(chosen.sum()), "with_field": with_field})
    return labels, None, {"sets": facts}


def _judge(documents: Any, rule: RuleOptions) -> tuple[NDArray[np.bool_], int]:
    """Who fulfils the rule, and how many have what it asks for."""
    if rule.measure is not None:
        values = measure(documents.column("text"), [rule.measure])[rule.measure].astype(np.float64)
        return _between(values, rule), len(values)
    metas = documents.column("meta").to_pylist()
    found = [None if meta is None else msgspec.json.decode(meta).get(rule.field) for meta in metas]
    known = sum(value is not None for value in found)
    if rule.values:
        chosen = [value is not None and _spelled(value) in rule.values for value in found]
        return np.array(chosen, np.bool_), known
    return _between(np.array([_number(value) for value in found], np.float64), rule), known


def _between(values: NDArray[np.float64], rule: RuleOptions) -> NDArray[np.bool_]:
    """NaN is nowhere."""
    holds = ~np.isnan(values)
    if rule.min is not None:
        holds &= values >= rule.min
    if rule.max is not None:
        holds &= values <= rule.max
    return holds


def _number(value: Any) -> float:
    """NaN: it is none."""
    try:
        return (
            float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else np.nan
        )
    except (ValueError, OverflowError):
        return np.nan


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def spoken(step: str) -> str:
    """Of who ingests examples, in the words of a recipe."""
    return f"source {step.removeprefix(INGEST)}" if step.startswith(INGEST) else f"the files of {step}"

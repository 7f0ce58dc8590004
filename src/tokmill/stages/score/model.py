"""From examples to a model with its card.

    examples of all shards ─> draft           the model, which knows numbers
    shard ─ labelled, draft ─┬─> names-<n>    what its strongest n-grams are called here
                             └─> scored-<n>   score, label and domain of documents that are held out
    names, scored of all shards ─┬─> <name>.model   with names and what was measured
                                 └─> card.json      data and digests; what thresholds would do to domains

Of the sources that examples come from the card tells of all documents that are held out, with a label or not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tokmill.artifacts.manifest import Json, file_entry
from tokmill.artifacts.step import Made, Task, TaskOptions
from tokmill.artifacts.upstream import write_shard_table
from tokmill.schema import one_piece, string_column
from tokmill.scores.evaluation import kept_by_group
from tokmill.scores.examples import load_examples
from tokmill.scores.linear import (
    LinearModel,
    LinearOptions,
    LinearScorer,
    Training,
    load_linear,
    write_linear,
)
from tokmill.scores.names import Names
from tokmill.scores.training import (
    NO_LABEL,
    THRESHOLDS,
    Labels,
    finish_model,
    make_lesson,
    name_strongest,
    train_draft,
)
from tokmill.stages.score.labelling import INGEST, ExampleOptions, ScoreOptions, as_learned
from tokmill.storage.disk import commit_bytes
from tokmill.storage.tables import load_table

CARD = "card.json"
MODEL = "model"  # the table of its entry
_NAMES = pa.schema(
    [pa.field("bucket", pa.uint32()), pa.field("name", pa.string()), pa.field("count", pa.int64())]
)
_SCORED = pa.schema(
    [pa.field("score", pa.float64()), pa.field("label", pa.int32()), pa.field("domain", pa.string())]
)


class DraftOptions(TaskOptions, frozen=True):
    labels: tuple[str, ...]
    training: Training
    max_docs: int | None


class MeasureOptions(ExampleOptions, frozen=True, kw_only=True):
    label: str


class CardOptions(TaskOptions, frozen=True):
    asked: ScoreOptions
    data: dict[str, str]  # digests of what the examples come from
    unmet: int = 0  # labels of a file that no document has


def perform_draft(task: Task[DraftOptions]) -> Made:
    options = task.options
    parts = (load_examples(path) for path in task.paths("examples"))
    model = train_draft(parts, options.labels, options.training, options.max_docs)
    written = write_linear(Path(task.directory) / "draft.model", model)
    return Made([file_entry("draft.model", "draft", written, rows=len(model.buckets))], {})


def perform_measure(task: Task[MeasureOptions]) -> Made:
    options = task.options
    (path,) = task.paths("draft")
    model, number = load_linear(path), task.key.rpartition("-")[2]
    documents = as_learned(task.load("documents", ["text", "doc_id", "domain"]), options)
    labelled = task.load("labelled")
    labels = np.asarray(labelled.column("label")).astype(np.int32)
    lesson = make_lesson(documents, labels, options.labels, options.training, options.held_out)
    files = [
        write_shard_table(
            task.directory, f"names-{number}.parquet", "names", _table_of(name_strongest(model, lesson))
        ),
        write_shard_table(
            task.directory,
            f"scored-{number}.parquet",
            "scored",
            _scored(model, options, documents, labels, np.asarray(labelled.column("is_held_out"))),
        ),
    ]
    return Made(files, {})


def _scored(
    model: LinearModel, options: MeasureOptions, documents: Any, labels: Labels, is_held_out: Any
) -> Any:
    """Of those held out: all of a source of the corpus, the examples of files."""
    is_corpus = options.step.startswith(INGEST)
    rows = np.flatnonzero(is_held_out if is_corpus else is_held_out & (labels != NO_LABEL))
    chosen = documents.take(rows)
    scores = LinearScorer(model, LinearOptions(label=options.label)).score(
        string_column(chosen.column("text"))
    )
    domains = one_piece(chosen.column("domain")) if is_corpus else pa.nulls(len(rows), pa.string())
    return pa.table([scores, labels[rows], domains], schema=_SCORED)


def _table_of(names: Names) -> Any:
    rows = [(bucket, name, names[bucket][name]) for bucket in sorted(names) for name in sorted(names[bucket])]
    columns = [[row[place] for row in rows] for place in range(3)]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, _NAMES, strict=True)], schema=_NAMES)


def _names_of(table: Any) -> Names:
    names: Names = {}
    for row in table.to_pylist():
        names.setdefault(row["bucket"], {})[row["name"]] = row["count"]
    return names


# --- the card ---


def perform_score(task: Task[CardOptions]) -> Made:
    asked = task.options.asked
    (path,) = task.paths("draft")
    scored = pa.concat_tables([load_table(path) for path in task.paths("scored")]).combine_chunks()
    scores, labels = np.asarray(scored.column("score")), np.asarray(scored.column("label"))
    is_example = labels != NO_LABEL
    names = (_names_of(load_table(path)) for path in task.paths("names"))
    model = finish_model(load_linear(path), names, scores[is_example], labels[is_example], asked.label)
    file = f"{asked.name}.model"
    written = write_linear(Path(task.directory) / file, model)
    entry = file_entry(file, MODEL, written, rows=len(model.buckets))
    card = {
        "name": asked.name,
        "model": {
            "file": file,
            "sha256": written.sha256,
            "bytes": written.bytes,
            "buckets": len(model.buckets),
        },
        "labels": list(asked.labels),
        "label": asked.label,
        "training": {**msgspec.to_builtins(asked.training), "max_docs": asked.max_docs},
        "data": {
            "digests": task.options.data,
            "sets": [{**msgspec.to_builtins(one), "label": asked.labels[one.label]} for one in asked.sets],
        },
        "examples": dict(zip(asked.labels, model.examples, strict=True)),
        "held_out": model.card["held_out"],
        "held_out_by": f"sha256 of the id below {asked.held_out} of its range, as `split` by hash",
        "metrics": model.card["metrics"],
        "strongest": model.strongest,
        "domains": _domains(scored),
    }
    if task.options.unmet:
        card["labels_without_document"] = task.options.unmet
    if asked.beside:
        keys = " and ".join(f"`{key}`" for key in asked.beside)
        card["figures_of"] = f"probabilities of whole texts; the score has {keys}"
    data = json.dumps(card, indent=1, ensure_ascii=False, sort_keys=True).encode() + b"\n"
    written_card = commit_bytes(Path(task.directory) / CARD, data)
    metrics = model.card["metrics"]
    facts: Json = {
        "file": file,
        "sha256": written.sha256,
        "examples": card["examples"],
        "held_out": card["held_out"],
        "auc": metrics["auc"] if metrics is not None else None,
    }
    return Made([entry, file_entry(CARD, "card", written_card, rows=1)], {}, facts)


def _domains(scored: Any) -> Json:
    """What each threshold would keep of each domain, of the documents that are held out."""
    of_corpus = scored.filter(scored.column("domain").is_valid())
    domains = of_corpus.column("domain").to_pylist()
    kept = kept_by_group(np.asarray(of_corpus.column("score")), domains, THRESHOLDS) if domains else {}
    return {
        "thresholds": list(THRESHOLDS),
        "documents": {name: domains.count(name) for name in sorted(set(domains))},
        "kept": kept,
    }

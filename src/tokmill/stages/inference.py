"""Scores that are computed once and stored: those of models whose floats hang on the machine.

    documents-<shard> ─ text, normalized ─ windows ─ scorer ─> scores-<shard>: doc_id, score.edu
                                                               null where the text is blank

A step between reading and cleaning, of each source. Cleaning takes the stored columns as measures; rules and
every later step hang on the artifact alone, so moving a threshold computes nothing. A shard that has its
receipt is not computed again, on whatever machine the run is resumed. On what each shard was computed, its
receipt says: the device, the precision and the versions of the libraries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import NO_DOCUMENTS, Json, add_counts, sum_counts
from tokmill.artifacts.plugins import Plugin
from tokmill.artifacts.step import (
    Conduct,
    Input,
    Made,
    Outcome,
    Stage,
    Step,
    Task,
    TaskFunction,
    TaskOptions,
    hook_inputs,
    table_input,
)
from tokmill.artifacts.upstream import shard_key, write_shard_table
from tokmill.clean.edits import NormalizeOptions, normalize_texts
from tokmill.clean.measures import measure_by
from tokmill.kernels import hashing
from tokmill.schema import one_piece, string_column
from tokmill.scores.device import choose_device
from tokmill.scores.scoring import HOOK, ScorePlan, describe_scorer, score_texts, texts_to_score
from tokmill.stages.clean import model_paths

KIND, TABLE = "inference", "scores"
_DOCUMENTS = "documents"


class InferenceOptions(TaskOptions, frozen=True):
    """All that can change a bit of the scores of one source, but for what computes them."""

    source: str
    normalize: NormalizeOptions
    scores: tuple[ScorePlan, ...]
    version: int = 1

    @property
    def plugins(self) -> list[Plugin]:
        return [plan.plugin for plan in self.scores if plan.plugin is not None]


@dataclass(frozen=True)
class InferenceExtra:
    models: tuple[Input, ...]


def conduct(step: Step[InferenceOptions, InferenceExtra], upstream: Mapping[str, Artifact]) -> Conduct:
    (ingested,) = upstream.values()
    inputs = [*hook_inputs(step.options.plugins), *step.extra.models]
    receipts = yield [
        Task(
            function=KIND,
            key=shard_key(entry),
            options=step.options,
            inputs=[table_input(_DOCUMENTS, ingested.directory, entry), *inputs],
            directory=str(step.directory),
        )
        for entry in ingested.manifest.entries(_DOCUMENTS)
    ]
    computed: dict[str, list[Json]] = {}
    for receipt in receipts:
        for name, told in receipt.facts["computed"].items():
            known = computed.setdefault(name, [])
            known += [told] if told not in known else []  # a run may be resumed on another machine
    return Outcome(receipts, add_counts(NO_DOCUMENTS, sum_counts(receipts)), {"computed": computed})


def perform_inference(task: Task[InferenceOptions]) -> Made:
    documents = task.load(_DOCUMENTS, None if task.options.plugins else ["doc_id", "text"])
    texts = normalize_texts(one_piece(documents.column("text")), task.options.normalize).texts
    rows = np.flatnonzero(~hashing.blank_rows(*string_column(texts)[:2]))
    is_blank = np.ones(documents.num_rows, np.bool_)
    is_blank[rows] = False
    texts = texts_to_score(texts, task.options.scores)
    some = string_column(texts.take(pa.array(rows)))
    files = model_paths(task)
    columns: dict[str, Any] = {"doc_id": one_piece(documents.column("doc_id"))}
    computed: Json = {}
    for plan in task.options.scores:
        values = np.zeros(documents.num_rows)
        if plan.kind == HOOK:
            values[rows] = _ask_hook(plan, documents.take(pa.array(rows)), texts.take(pa.array(rows)))
        else:
            values[rows] = score_texts(some, plan, files, len(task.options.scores))
        columns[plan.column] = pa.array(values, mask=is_blank)
        if len(rows):
            computed[plan.name] = describe_scorer(plan, files)
    path = f"{TABLE}-{task.key}.parquet"
    entry = write_shard_table(task.directory, path, TABLE, pa.table(columns))
    counts = {"in": documents.num_rows, "kept": documents.num_rows, "dropped": {}, "quarantined": {}}
    return Made([entry], counts, {"computed": computed})


def _ask_hook(plan: ScorePlan, documents: Any, texts: Any) -> Any:
    """It is given the columns of the documents that are not blank, and what to compute on."""
    assert plan.plugin is not None
    if not len(texts):
        return np.zeros(0)
    others = {name: one_piece(documents.column(name)) for name in documents.column_names if name != "text"}
    return measure_by(plan.plugin, {"text": texts, **others}, choose_device(plan.options["device"]))


STAGE = Stage(KIND, InferenceOptions, conduct, {KIND: TaskFunction(InferenceOptions, perform_inference)})

"""Every stage by its kind, and every task function by its name: what an engine calls in a worker.

perform(task) ─ options decoded ─ function ─ files, counts ─ conservation ─ receipt on disk ─> Receipt
    a task that has its files in a store (`stored`): the same between a fetch and an upload
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tokmill.artifacts.manifest import Receipt, check_conservation, write_receipt
from tokmill.artifacts.step import Stage, Task, TaskFunction, accept_hooks
from tokmill.publish.node import perform_in_store
from tokmill.stages import clean, curriculum, inference, ranking, texts
from tokmill.stages.build import mixture_stage
from tokmill.stages.build import stage as build
from tokmill.stages.dedup import stage as dedup
from tokmill.stages.indexes import stage as indexes
from tokmill.stages.ingest import stage as ingest
from tokmill.stages.score import stage as score
from tokmill.stages.split import stage as split
from tokmill.stages.tokens import stage as tokens
from tokmill.stages.tokens import tokenizer
from tokmill.storage.disk import system_error

STAGES: dict[str, Stage[Any]] = {
    stage.kind: stage
    for stage in (
        ingest.STAGE,
        ingest.EXAMPLES,
        inference.STAGE,
        score.STAGE,
        clean.STAGE,
        ranking.STAGE,
        dedup.STAGE,
        split.STAGE,
        tokenizer.STAGE,
        tokens.STAGE,
        mixture_stage.STAGE,
        build.STAGE,
        curriculum.STAGE,
        texts.STAGE,
        indexes.STAGE,
    )
}

FUNCTIONS: dict[str, TaskFunction[Any]] = {
    name: function for stage in STAGES.values() for name, function in stage.tasks.items()
}


def _decoded(task: Task) -> Task:
    """On a cluster options arrive as JSON; those that are decoded stay as they are."""
    options = msgspec.convert(task.options, FUNCTIONS[task.function].options)
    return msgspec.structs.replace(
        task, options=options, followers=[_decoded(follower) for follower in task.followers]
    )


def perform(task: Task) -> Receipt:
    if task.stored is not None:
        return perform_in_store(task, task.stored, _perform)
    return _perform(task)


def _perform(task: Task) -> Receipt:
    function = FUNCTIONS[task.function]
    task = _decoded(task)
    accept_hooks(task)
    try:
        made = function.perform(task)
    except (OSError, MemoryError) as error:
        raise system_error(error, task.directory) from error
    if "in" in made.counts:
        check_conservation(made.counts, where=f"{task.function} {task.key}")
    receipt = task.receipt(*made)
    write_receipt(Path(task.directory), receipt)
    return receipt

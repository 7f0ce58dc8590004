"""Every task function by its name: what an engine calls in a worker.

perform(task) ─ function ─ files, counts ─ conservation ─ receipt on disk ─> Receipt
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tokmill.artifact import Artifact
from tokmill.manifest import Receipt, check_conservation, write_receipt
from tokmill.stages import (
    build,
    clean,
    decontamination,
    dedup,
    equals,
    forget,
    ingest,
    mixture,
    neardup,
    passages,
    quotas,
    sampling,
    selection,
    settling,
    split,
    survivors,
    threads,
    tokenizer,
    tokenizer_sample,
    tokens,
)
from tokmill.stages.step import Conduct, Made, Step
from tokmill.storage.reading import system_error
from tokmill.task import Task

FUNCTIONS: dict[str, Callable[[Task], Made]] = {
    "ingest": ingest.perform_ingest,
    "ingest.forget": forget.perform_forget,
    "posts": threads.perform_posts,
    "sample.candidates": ingest.perform_candidates,
    "sample.select": sampling.perform_select,
    "sample.pick": sampling.perform_pick,
    "clean": clean.perform_clean,
    "dedup.hashes": equals.perform_hashes,
    "dedup.match": equals.perform_match,
    "dedup.fingerprint": neardup.perform_fingerprint,
    "dedup.candidates": neardup.perform_candidates,
    "dedup.extract": neardup.perform_extract,
    "dedup.verify": neardup.perform_verify,
    "dedup.resolve": survivors.perform_resolve,
    "dedup.contamination": decontamination.perform_contamination,
    "dedup.windows": passages.perform_windows,
    "dedup.meetings": passages.perform_meetings,
    "dedup.passage_texts": passages.perform_passage_texts,
    "dedup.spans": passages.perform_spans,
    "dedup.walk": settling.perform_walk,
    "dedup.settle": settling.perform_settle,
    "dedup.cut": passages.perform_cut,
    "dedup.verdicts": dedup.perform_verdicts,
    "split.keys": selection.perform_keys,
    "split.select": quotas.perform_select,
    "split.field": split.perform_field,
    "split": split.perform_split,
    "tokenizer": tokenizer.perform_tokenizer,
    "tokenizer.draw": tokenizer_sample.perform_draw,
    "tokenizer.choose": tokenizer_sample.perform_choose,
    "tokenizer.sample": tokenizer_sample.perform_sample,
    "tokenizer.train": tokenizer.perform_train,
    "tokens": tokens.perform_tokens,
    "mixture": mixture.perform_mixture,
    "build": build.perform_build,
}

CONDUCTORS: dict[str, Callable[[Step, Mapping[str, Artifact]], Conduct]] = {
    "ingest": ingest.conduct,
    "clean": clean.conduct,
    "dedup": dedup.conduct,
    "split": split.conduct,
    "tokenizer": tokenizer.conduct,
    "tokens": tokens.conduct,
    "mixture": mixture.conduct,
    "build": build.conduct,
}


def perform(task: Task) -> Receipt:
    try:
        made = FUNCTIONS[task.function](task)
    except (OSError, MemoryError) as error:
        raise system_error(error, task.directory) from error
    if "in" in made.counts:
        check_conservation(made.counts, where=f"{task.function} {task.key}")
    receipt = task.receipt(*made)
    write_receipt(Path(task.directory), receipt)
    return receipt

"""Every task function by its name: what an engine calls in a worker.

perform(task) ─ function ─ files, counts ─ conservation ─ receipt on disk ─> Receipt
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tokmill.artifacts.artifact import Artifact
from tokmill.artifacts.manifest import Receipt, check_conservation, write_receipt
from tokmill.artifacts.step import Conduct, Made, Step, Task
from tokmill.stages import clean
from tokmill.stages import takedown as forget
from tokmill.stages.build import mixture
from tokmill.stages.build import stage as build
from tokmill.stages.dedup import exact as decontamination
from tokmill.stages.dedup import exact as equals
from tokmill.stages.dedup import near as neardup
from tokmill.stages.dedup import passages, survivors
from tokmill.stages.dedup import passages as settling
from tokmill.stages.dedup import stage as dedup
from tokmill.stages.ingest import shards as sampling
from tokmill.stages.ingest import stage as ingest
from tokmill.stages.ingest import threads
from tokmill.stages.split import selection
from tokmill.stages.split import selection as quotas
from tokmill.stages.split import stage as split
from tokmill.stages.tokens import stage as tokens
from tokmill.stages.tokens import tokenizer
from tokmill.stages.tokens import tokenizer as tokenizer_sample
from tokmill.storage.reading import system_error

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

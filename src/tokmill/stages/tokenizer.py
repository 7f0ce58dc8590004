"""Tokenizer: the pinned file, copied beside the tokens it made, or one trained on the training split.

path  ─ sha256 against the pin ─ load ─ eos ─> tokenizer/<file>
train ─ texts drawn by hash to sample_megabytes ─ byte-level BPE ─> tokenizer/tokenizer.json
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tokmill.artifact import Artifact
from tokmill.kernels import sha256
from tokmill.manifest import Json, file_entry
from tokmill.schema import string_column
from tokmill.stages.step import Conduct, Made, Outcome, Step
from tokmill.stages.texts import labelled_shards, load_texts
from tokmill.storage.commit import commit_bytes
from tokmill.storage.location import read_whole
from tokmill.task import Input, Task
from tokmill.tokenizers.load import load_tokenizer, resolve_eos
from tokmill.tokenizers.train import train_byte_bpe

_MAX_TOKENIZER_BYTES = 1 << 30


def conduct(step: Step, upstream: Mapping[str, Artifact]) -> Conduct:
    if step.config["train"] is None:
        path, digest = step.extra["path"], step.config["sha256"]
        inputs = [Input("tokenizer", str(path), digest)]
    else:
        inputs = [item for _, items in labelled_shards(dict(upstream)) for item in items]
    task = Task(
        function="tokenizer",
        key="tokenizer",
        config=_task_config(step, upstream),
        inputs=inputs,
        directory=str(step.directory),
    )
    (receipt,) = yield [task]
    return Outcome([receipt], {}, receipt.facts)


def perform_tokenizer(task: Task) -> Made:
    config = task.config
    if config["train"] is None:
        source = Path(task.inputs[0].path)
        load_tokenizer(source, sha256=config["sha256"], encoding=config["encoding"])
        name, data = source.name, read_whole(source, _MAX_TOKENIZER_BYTES)
    else:
        trained = train_byte_bpe(
            _sample(task), vocab_size=config["train"]["vocab_size"], special_tokens=[config["eos"]]
        )
        name, data = "tokenizer.json", trained.data
    path = Path(task.directory) / name
    written = commit_bytes(path, data)
    tokenizer = load_tokenizer(path, encoding=config["encoding"])
    facts = {
        "kind": tokenizer.kind,
        "file": name,
        "sha256": tokenizer.sha256,
        "encoding": config["encoding"],
        "vocab_size": tokenizer.vocab_size,
        "eos_id": resolve_eos(tokenizer, config["eos"]),
    }
    return Made([file_entry(name, "tokenizer", written, rows=tokenizer.vocab_size)], {}, facts)


def _task_config(step: Step, upstream: Mapping[str, Artifact]) -> Json:
    config = dict(step.config)
    if config["train"] is not None:
        cleaned = [artifact for name, artifact in upstream.items() if name.startswith("clean/")]
        config["kept_bytes"] = sum(artifact.manifest.counts.get("kept_bytes", 0) for artifact in cleaned)
    return config


def _sample(task: Task) -> Iterator[str]:
    """Training texts whose hash of (seed, doc_id) falls below the share that fits the sample."""
    wanted = task.config["train"]["sample_megabytes"] << 20
    share = min((wanted << 64) // max(task.config["kept_bytes"], 1), 1 << 64)
    for inputs in _by_shard(task.inputs):
        table = load_texts(inputs, valid=False)
        texts = table.column("text").to_pylist()
        if share == 1 << 64:
            yield from texts
            continue
        chosen = np.flatnonzero(_draws(table.column("doc_id"), task.config["seed"]) < np.uint64(share))
        yield from (texts[row] for row in chosen.tolist())


def _draws(doc_ids: Any, seed: int) -> Any:
    """A uint64 per document from its id and the seed (the finalizer of splitmix64)."""
    column = string_column(doc_ids)
    draw = sha256.sha256_prefixes(column.data, column.offsets) ^ np.uint64(seed)
    draw = (draw ^ (draw >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    draw = (draw ^ (draw >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return draw ^ (draw >> np.uint64(31))


def _by_shard(inputs: list[Input]) -> Iterator[list[Input]]:
    """The flat inputs of all shards, shard by shard: each begins with its documents."""
    starts = [index for index, item in enumerate(inputs) if item.role == "documents"]
    for start, end in zip(starts, [*starts[1:], len(inputs)], strict=True):
        yield inputs[start:end]

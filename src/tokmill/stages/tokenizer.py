"""Tokenizer: the pinned file, copied beside the tokens it made, or one trained on the training split.

path  ─ sha256 against the pin ─ load ─ eos, control tokens ─> tokenizer/<file>
train ─ sample of the training texts ─ trainer ─ load ─ eos … ─> tokenizer/<file>, tokenizer/tokenizer.log.json
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from tokmill.artifact import Artifact
from tokmill.errors import TokenizerError
from tokmill.manifest import FileEntry, Json, Receipt, file_entry, sum_counts
from tokmill.stages.step import Conduct, Made, Outcome, Shard, Step
from tokmill.stages.texts import labelled_shards
from tokmill.stages.tokenizer_sample import read_sample
from tokmill.storage.commit import commit_bytes
from tokmill.storage.location import read_whole
from tokmill.task import Input, Task, table_input
from tokmill.tokenizers.checks import describe_tokenizer
from tokmill.tokenizers.load import pinned_tokenizer, resolve_controls, resolve_eos
from tokmill.tokenizers.train import train_tokenizer

LOG = "tokenizer.log.json"

_MAX_TOKENIZER_BYTES = 1 << 30
_MEGABYTE = 1 << 20
# Sources that a line names before it counts the rest.
_SHOWN = 4

_logger = logging.getLogger("tokmill.tokenizer")


def conduct(step: Step, upstream: Mapping[str, Artifact]) -> Conduct:
    if step.config["train"] is not None:
        return (yield from _conduct_training(step, upstream))
    pinned = Input("tokenizer", str(step.extra["path"]), step.config["sha256"])
    (receipt,) = yield [_task(step, "tokenizer", "tokenizer", step.config, [pinned])]
    return Outcome([receipt], {}, receipt.facts)


def _conduct_training(step: Step, upstream: Mapping[str, Artifact]) -> Conduct:
    seed, shards = step.config["seed"], labelled_shards(dict(upstream))
    draws = yield [
        _task(
            step,
            "tokenizer.draw",
            f"draws-{shard.number:05d}",
            {"seed": seed, "source": shard.source},
            inputs,
        )
        for shard, inputs in shards
    ]
    drawn = [table_input("draws", step.directory, receipt.files[0]) for receipt in draws]
    wanted = {
        "bytes": step.config["sample_megabytes"] * _MEGABYTE,
        "shares": step.config["shares"],
        "sources": [shard.source for shard, _ in shards],
    }
    (choice,) = yield [_task(step, "tokenizer.choose", "choice", wanted, drawn)]
    samples = yield [
        _task(
            step,
            "tokenizer.sample",
            f"sample-{shard.number:05d}",
            {"pick": choice.facts["picks"][shard.source], "shard": shard.number},
            [*inputs, draw],
        )
        for (shard, inputs), draw in zip(shards, drawn, strict=True)
    ]
    config = {
        **{key: step.config[key] for key in ("train", "eos", "control", "padded_vocab_size", "encoding")},
        "datasets": list(_datasets(step, [shard for shard, _ in shards], samples, choice.facts)),
    }
    texts = [table_input("sample", step.directory, receipt.files[0]) for receipt in samples]
    (receipt,) = yield [_task(step, "tokenizer.train", "tokenizer", config, texts)]
    return Outcome([receipt], {}, receipt.facts)


def _task(step: Step, function: str, key: str, config: Json, inputs: list[Input]) -> Task:
    return Task(function=function, key=key, config=config, inputs=inputs, directory=str(step.directory))


def _datasets(step: Step, shards: list[Shard], samples: list[Receipt], chosen: Json) -> Iterator[Json]:
    """What the log says of each source; those that have less than their share are also said aloud, in one breath."""
    short = []
    for name in dict.fromkeys(shard.source for shard in shards):
        taken = sum_counts(
            receipt for shard, receipt in zip(shards, samples, strict=True) if shard.source == name
        )
        available, wanted = chosen["available"][name], chosen["wanted"][name]
        told: Json = {
            "name": name,
            "dataset": step.config["datasets"][name],
            "samples": taken["samples"],
            "characters": taken["characters"],
            "bytes": taken["bytes"],
            "wanted_bytes": wanted,
        }
        if available < wanted:
            told["short_by_bytes"] = wanted - available
            short.append(f"{name} {available:,} of {wanted:,}")
        yield told
    if short:
        shown = ", ".join(short[:_SHOWN]) + (
            f" and {len(short) - _SHOWN} more" if len(short) > _SHOWN else ""
        )
        _logger.warning(
            "tokenizer: %s fewer bytes than the weights ask for, and all of them are taken: %s",
            "one source has" if len(short) == 1 else f"{len(short)} sources have",
            shown,
        )


def perform_tokenizer(task: Task) -> Made:
    """A file that the recipe names."""
    source = Path(task.inputs[0].path)
    entry, facts = _publish(task, source.name, read_whole(source, _MAX_TOKENIZER_BYTES))
    return Made([entry], {}, facts)


def perform_train(task: Task) -> Made:
    options, eos = task.config["train"], task.config["eos"]
    control = list(dict.fromkeys([*options["control_symbols"], *task.config["control"]]))
    name, trained = train_tokenizer(
        read_sample(task.inputs),
        {key: value for key, value in options.items() if key != "control_symbols"},
        eos=eos,
        control=[token for token in control if token != eos],
    )
    entry, facts = _publish(task, name, trained.data)
    log = {
        "model": name,
        "model_type": options["model"],
        "sha256": facts["sha256"],
        "vocab_size": facts["vocab_size"],
        "character_coverage": options.get("character_coverage", 1.0),
        "byte_fallback": options.get("byte_fallback", True),  # bytes spell everything
        "normalization": options.get("normalization", "identity"),
        "eos": eos,
        "eos_id": facts["eos_id"],
        "datasets": task.config["datasets"],
    }
    data = json.dumps(log, indent=1, ensure_ascii=False).encode() + b"\n"
    written = commit_bytes(Path(task.directory) / LOG, data)
    return Made([entry, file_entry(LOG, "log", written, rows=1)], {}, facts)


def _publish(task: Task, name: str, data: bytes) -> tuple[FileEntry, Json]:
    """Write the file, load it as everybody will, and say what later steps need to know of it."""
    config = task.config
    path = Path(task.directory) / name
    written = commit_bytes(path, data)
    tokenizer = pinned_tokenizer(str(path), config.get("sha256") or written.sha256, config["encoding"])
    described = describe_tokenizer(tokenizer)
    padded = config["padded_vocab_size"]
    if padded is not None and padded < tokenizer.vocab_size:
        raise TokenizerError(
            f"the vocabulary has {tokenizer.vocab_size:,} ids, padded_vocab_size is {padded:,}",
            where="tokenizer.padded_vocab_size",
            next=f"set it to {tokenizer.vocab_size} or more, or leave it out",
        )
    facts = {
        "kind": tokenizer.kind,
        "file": name,
        "sha256": tokenizer.sha256,
        "encoding": config["encoding"],
        "vocab_size": tokenizer.vocab_size,
        "padded_vocab_size": padded or tokenizer.vocab_size,
        "eos_id": resolve_eos(tokenizer, config["eos"]),
        "controls": resolve_controls(tokenizer, config["control"]),
        "character_coverage": described.character_coverage,
        "byte_fallback": described.byte_fallback,
        "normalization": {
            "rule": described.normalization,
            "add_dummy_prefix": described.add_dummy_prefix,
            "remove_extra_whitespaces": described.remove_extra_whitespaces,
        },
    }
    return file_entry(name, "tokenizer", written, rows=tokenizer.vocab_size), facts

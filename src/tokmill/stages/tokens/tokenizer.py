"""Tokenizer: the pinned file, copied beside the tokens it made, or one trained on the training split.

path  ─ sha256 against the pin ─ load ─ eos, bos, control tokens ─> tokenizer/<file>
plugin ─ its name, digest and options ─ load ─ eos … ─> tokenizer/tokenizer.plugin.json
train ─ sample of the training texts ─ trainer ─ load ─ eos … ─> tokenizer/<file>,
                                                                 tokenizer/tokenizer.log.json
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import FileEntry, Json, Manifest, Receipt, file_entry, sum_counts
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
    hook_inputs,
    table_input,
)
from tokmill.artifacts.upstream import Shard, is_chat
from tokmill.stages.tokens.reading import labelled_shards
from tokmill.stages.tokens.sample import (
    TASKS,
    ChooseOptions,
    DrawOptions,
    Pick,
    Shares,
    TakeOptions,
    read_sample,
)
from tokmill.stages.warnings import tell, vocabulary_warnings
from tokmill.storage.disk import commit_bytes
from tokmill.storage.location import read_whole
from tokmill.tokenizers.description import describe_tokenizer
from tokmill.tokenizers.load import pinned_tokenizer
from tokmill.tokenizers.plugin import PLUGIN_FILE, PluginTokenizer, plugin_file
from tokmill.tokenizers.protocol import Tokenizer
from tokmill.tokenizers.train import train_tokenizer
from tokmill.tokenizers.vocabulary import check_padded, resolve_bos, resolve_controls, resolve_eos

LOG = "tokenizer.log.json"

_MAX_TOKENIZER_BYTES = 1 << 30
_MEGABYTE = 1 << 20
# Sources that a line names before it counts the rest.
_SHOWN = 4

_logger = logging.getLogger("tokmill.tokenizer")


class _Vocabulary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is asked of any tokenizer."""

    eos: str | int
    control: tuple[str, ...]
    padded_vocab_size: int | None
    encoding: str | None
    bos: str | int | None = None


class TokenizerOptions(_Vocabulary, frozen=True, kw_only=True):
    """`tokenizer` of a recipe: a pinned file, a plugin, or one to train and what its sample depends on."""

    train: Json | None  # options of the trainer: `tokmill.tokenizers.train` knows them
    sha256: str | None = None  # of the pinned file
    plugin: Plugin | None = None
    options: Json | None = None  # of the plugin
    sample_megabytes: int = 0
    shares: Shares | None = None
    datasets: dict[str, str | None] | None = None  # by source
    seed: int | None = None


class TrainOptions(_Vocabulary, frozen=True, kw_only=True):
    train: Json
    datasets: list[Json]  # what the log says of each source


@dataclass(frozen=True)
class TokenizerExtra:
    path: Path  # of the pinned file


TokenizerStep = Step[TokenizerOptions, TokenizerExtra | None]


def open_published(step: TokenizerStep) -> Tokenizer:
    """The one that the step would copy, as everybody will open it."""
    options = step.options
    if options.plugin is not None:
        data = plugin_file(options.plugin, options.options or {})
        return PluginTokenizer(Path(PLUGIN_FILE), hashlib.sha256(data).hexdigest(), data)
    assert step.extra is not None, "a tokenizer that is not trained has a file"
    return pinned_tokenizer(str(step.extra.path), str(options.sha256), options.encoding)


def conduct(step: TokenizerStep, upstream: Mapping[str, Artifact]) -> Conduct:
    options = step.options
    if options.train is not None:
        return (yield from _conduct_training(step, options.train, upstream))
    if options.plugin is not None:
        inputs = hook_inputs([options.plugin])
    else:
        assert step.extra is not None, "a tokenizer that is not trained has a file"
        assert options.sha256 is not None, "likewise"
        inputs = [Input("tokenizer", str(step.extra.path), options.sha256)]
    (receipt,) = yield [_task(step, "tokenizer", "tokenizer", options, inputs)]
    return Outcome([receipt], {}, receipt.facts)


def _conduct_training(step: TokenizerStep, train: Json, upstream: Mapping[str, Artifact]) -> Conduct:
    asked, shards = step.options, labelled_shards(dict(upstream))
    known = (str(asked.eos), *_control_tokens(train, asked))
    if train["model"] != "byte_bpe":
        known = (*known, "<unk>", "<s>")
    controls = {shard.source: known for shard, _ in shards if is_chat(upstream[f"ingest/{shard.source}"])}
    assert asked.seed is not None, "a tokenizer that is trained has a sample"
    assert asked.shares is not None, "likewise"
    draws = yield [
        _task(
            step,
            "tokenizer.draw",
            f"draws-{shard.number:05d}",
            DrawOptions(seed=asked.seed, source=shard.source, controls=controls.get(shard.source)),
            inputs,
        )
        for shard, inputs in shards
    ]
    drawn = [table_input("draws", step.directory, receipt.files[0]) for receipt in draws]
    wanted = ChooseOptions(
        bytes=asked.sample_megabytes * _MEGABYTE,
        shares=asked.shares,
        sources=tuple(shard.source for shard, _ in shards),
    )
    (choice,) = yield [_task(step, "tokenizer.choose", "choice", wanted, drawn)]
    picks = msgspec.convert(choice.facts["picks"], dict[str, Pick])
    samples = yield [
        _task(
            step,
            "tokenizer.sample",
            f"sample-{shard.number:05d}",
            TakeOptions(
                pick=picks[shard.source],
                shard=shard.number,
                controls=controls.get(shard.source),
            ),
            [*inputs, draw],
        )
        for (shard, inputs), draw in zip(shards, drawn, strict=True)
    ]
    options = TrainOptions(
        train=train,
        eos=asked.eos,
        control=asked.control,
        padded_vocab_size=asked.padded_vocab_size,
        encoding=asked.encoding,
        bos=asked.bos,
        datasets=list(_datasets(asked, [shard for shard, _ in shards], samples, choice.facts)),
    )
    texts = [table_input("sample", step.directory, receipt.files[0]) for receipt in samples]
    (receipt,) = yield [_task(step, "tokenizer.train", "tokenizer", options, texts)]
    tell(step.name, vocabulary_warnings(train, receipt.facts))
    return Outcome([receipt], {}, receipt.facts)


def _task(step: TokenizerStep, function: str, key: str, options: Any, inputs: list[Input]) -> Task:
    return Task(function=function, key=key, options=options, inputs=inputs, directory=str(step.directory))


def _datasets(
    asked: TokenizerOptions, shards: list[Shard], samples: list[Receipt], chosen: Json
) -> Iterator[Json]:
    """What the log says of each source; those that have less than their share are also said aloud,
    in one breath."""
    short = []
    for name in dict.fromkeys(shard.source for shard in shards):
        taken = sum_counts(
            receipt for shard, receipt in zip(shards, samples, strict=True) if shard.source == name
        )
        available, wanted = chosen["available"][name], chosen["wanted"][name]
        told: Json = {
            "name": name,
            "dataset": (asked.datasets or {})[name],
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


def perform_tokenizer(task: Task[TokenizerOptions]) -> Made:
    """A file that the recipe names, or the name of a plugin as a file."""
    options = task.options
    if options.plugin is not None:
        name, data = PLUGIN_FILE, plugin_file(options.plugin, options.options or {})
    else:
        source = Path(task.inputs[0].path)
        name, data = source.name, read_whole(source, _MAX_TOKENIZER_BYTES)
    entry, facts = _publish(task, name, data, options.sha256)
    return Made([entry], {}, facts)


def _control_tokens(train: Json, asked: _Vocabulary) -> list[str]:
    """Of a tokenizer that is trained, beside eos."""
    control = [*train["control_symbols"], *asked.control]
    if asked.bos is not None and (asked.bos != "<s>" or train["model"] == "byte_bpe"):
        control.append(str(asked.bos))  # SentencePiece has its own <s>
    return [token for token in dict.fromkeys(control) if token != str(asked.eos)]


def perform_train(task: Task[TrainOptions]) -> Made:
    options, eos = task.options.train, str(task.options.eos)
    characters = sum(dataset["characters"] for dataset in task.options.datasets)
    name, trained = train_tokenizer(
        read_sample(task.inputs, Path(task.directory).name, characters),
        {key: value for key, value in options.items() if key != "control_symbols"},
        eos=eos,
        control=_control_tokens(options, task.options),
    )
    entry, facts = _publish(task, name, trained.data, None)
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
        "datasets": task.options.datasets,
    }
    data = json.dumps(log, indent=1, ensure_ascii=False).encode() + b"\n"
    written = commit_bytes(Path(task.directory) / LOG, data)
    return Made([entry, file_entry(LOG, "log", written, rows=1)], {}, facts)


def _publish(task: Task[_Vocabulary], name: str, data: bytes, sha256: str | None) -> tuple[FileEntry, Json]:
    """Write the file, load it as everybody will, and say what later steps need to know of it."""
    options = task.options
    path = Path(task.directory) / name
    written = commit_bytes(path, data)
    tokenizer = pinned_tokenizer(str(path), sha256 or written.sha256, options.encoding)
    described = describe_tokenizer(tokenizer)
    padded = options.padded_vocab_size
    check_padded(tokenizer.vocab_size, padded)
    facts: Json = {
        "kind": tokenizer.kind,
        "file": name,
        "sha256": tokenizer.sha256,
        "encoding": options.encoding,
        "vocab_size": tokenizer.vocab_size,
        "padded_vocab_size": padded or tokenizer.vocab_size,
        "eos_id": resolve_eos(tokenizer, options.eos),
        "controls": resolve_controls(tokenizer, options.control),
        "character_coverage": described.character_coverage,
        "byte_fallback": described.byte_fallback,
        "normalization": {
            "rule": described.normalization,
            "add_dummy_prefix": described.add_dummy_prefix,
            "remove_extra_whitespaces": described.remove_extra_whitespaces,
        },
    }
    if options.bos is not None:
        facts["bos_id"] = resolve_bos(tokenizer, options.bos, facts["eos_id"])
    return file_entry(name, "tokenizer", written, rows=tokenizer.vocab_size), facts


def _hand_on(manifest: Manifest, taker: str) -> Json:
    """What ends and begins documents, and control tokens: the file of the tokenizer does not say it."""
    return manifest.facts if taker == "tokens" else {}


STAGE = Stage(
    "tokenizer",
    TokenizerOptions,
    conduct,
    {
        "tokenizer": TaskFunction(TokenizerOptions, perform_tokenizer),
        "tokenizer.train": TaskFunction(TrainOptions, perform_train),
        **TASKS,
    },
    hand_on=_hand_on,
)

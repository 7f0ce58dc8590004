"""Tokenizer: the pinned file, copied beside the tokens it made, or one trained on the training split.

path  ─ sha256 against the pin ─ load ─ eos, bos, control tokens ─> tokenizer/<file>
plugin ─ its name, digest and options ─ load ─ eos … ─> tokenizer/tokenizer.plugin.json
train ─ sample of the training texts ─ trainer ─ load ─ eos … ─> tokenizer/<file>,
                                                                 tokenizer/tokenizer.log.json

What a tokenizer learns from: a part of the training texts, by weight and as good as random.

    shard ─ draw ─> draws-<shard>        per training document a number from (seed, source, doc_id, text), and
                                         its bytes; of a conversation those that are encoded as text
    draws of all shards ─ choose ─>      per source its share of the bytes, and the number up to which they
                                         are reached
    shard ─ sample ─> sample-<shard>     texts with smaller numbers; the last one of a source is cut to fit

    shares   weights of the sources, or those of the mixture, or as much as each source has

Every source gives exactly its share, or all it has. Which documents those are depends on the documents alone,
neither on their order nor on the number of shards. All of this is scaffolding, gone when the tokenizer is
there.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import FileEntry, Json, Receipt, file_entry, sum_counts
from tokmill.artifacts.plugins import Plugin
from tokmill.artifacts.progress import tell_count
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
from tokmill.artifacts.upstream import Shard, is_chat, write_shard_table
from tokmill.kernels import hashing
from tokmill.kernels.characters import measure_text
from tokmill.packing.mixture import Mixture, has_no_weight, natural_mixture
from tokmill.schema import DEDUP_EDITS, one_piece, string_column
from tokmill.stages.tokens.reading import labelled_shards, load_labels, load_split_texts
from tokmill.stages.warnings import tell, vocabulary_warnings
from tokmill.storage.disk import commit_bytes
from tokmill.storage.location import read_whole
from tokmill.storage.tables import load_table, open_arrow, table_sha256, write_arrow
from tokmill.tokenizers.description import describe_tokenizer
from tokmill.tokenizers.fast import starts
from tokmill.tokenizers.load import pinned_tokenizer
from tokmill.tokenizers.plugin import PLUGIN_FILE, PluginTokenizer, plugin_file
from tokmill.tokenizers.protocol import Tokenizer
from tokmill.tokenizers.regions import text_parts
from tokmill.tokenizers.train import train_tokenizer
from tokmill.tokenizers.vocabulary import check_padded, resolve_bos, resolve_controls, resolve_eos

DRAWS = pa.schema(
    [pa.field("draw", pa.uint64(), nullable=False), pa.field("bytes", pa.int64(), nullable=False)]
)
_SAMPLE = pa.schema([pa.field("text", pa.large_string(), nullable=False)])

_TRAIN = 0  # the number of the split
_BUCKET_BITS = 16


class Pick(msgspec.Struct, frozen=True):
    """Which documents of a source are taken: those whose (draw, shard, row) is smaller; that one is cut.

    `row` counts the training documents of the shard. Without a draw all are taken.
    """

    draw: int | None
    shard: int = 0
    row: int = 0
    cut_bytes: int = 0


class Shares(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of the sources in the sample: by source, or as in the mixture, or (neither) as much as they have.

    Weights are exact fractions, as text: "1/4".
    """

    sources: dict[str, str] | None = None
    domains: dict[str, str] | msgspec.UnsetType | None = msgspec.UNSET  # None: by what they have
    within: dict[str, dict[str, str]] | None = None
    domain_of: dict[str, str] | None = None


class DrawOptions(TaskOptions, frozen=True):
    seed: int
    source: str
    controls: tuple[str, ...] | None = None  # of conversations: what their template does not mean as text


class ChooseOptions(TaskOptions, frozen=True):
    bytes: int
    shares: Shares
    sources: tuple[str, ...]  # per shard


class TakeOptions(TaskOptions, frozen=True):
    pick: Pick
    shard: int
    controls: tuple[str, ...] | None = None


# --- draw ---


def perform_draw(task: Task[DrawOptions]) -> Made:
    by_role = {item.role: Path(item.path) for item in task.inputs}
    rows = np.flatnonzero(load_labels(task.inputs) == _TRAIN)
    doc_ids = one_piece(load_table(by_role["documents"], ["doc_id"]).column("doc_id"))
    marks = load_table(by_role["marks"], ["bytes", "exact_low"])
    if task.options.controls is None:
        sizes = np.asarray(marks.column("bytes")).copy()  # np.array hands out Arrow's own memory, read-only
        for role in DEDUP_EDITS:  # the marks are of the text before
            if role in by_role:
                edits = load_table(by_role[role], ["row", "text"])
                sizes[np.asarray(edits.column("row"))] = np.diff(string_column(edits.column("text")).offsets)
        sizes = sizes[rows]
    else:
        parts = text_parts(_train_texts(task.inputs), task.options.controls)
        sizes = np.diff(string_column(parts.texts).offsets[starts(parts.per_row)])
    drawn = _draws(
        doc_ids.take(pa.array(rows)),
        np.asarray(marks.column("exact_low"))[rows],
        task.options.seed,
        task.options.source,
    )
    table = pa.table([drawn, sizes], schema=DRAWS)
    return Made([write_shard_table(task.directory, f"{task.key}.parquet", "draws", table)], {})


def _train_texts(inputs: list[Input]) -> Any:
    """With the marks of conversations."""
    return one_piece(load_split_texts(inputs, _TRAIN, is_marked=True).column("text"))


def _draws(doc_ids: Any, text_hashes: NDArray[np.uint64], seed: int, source: str) -> NDArray[np.uint64]:
    """With the text, because documents of one source may share an id."""
    start = hashlib.sha256(f"{seed}/tokenizer/{source}".encode()).digest()
    state = np.empty((len(text_hashes), 2), np.uint64)
    state[:] = np.frombuffer(start[:16], "<u8")
    hashing.mix_column(*string_column(doc_ids), state)
    draw = state[:, 0] ^ text_hashes * np.uint64(0x9E3779B97F4A7C15)
    # the finalizer of splitmix64
    draw = (draw ^ (draw >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    draw = (draw ^ (draw >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = draw ^ (draw >> np.uint64(31))
    return mixed


# --- choose ---


def perform_choose(task: Task[ChooseOptions]) -> Made:
    """One pass finds how many bytes each source has by the upper bits of the draws,
    one the draw where to stop."""
    paths, owners = task.paths("draws"), task.options.sources
    sources = list(dict.fromkeys(owners))
    histograms = {name: np.zeros(1 << _BUCKET_BITS, np.int64) for name in sources}
    for path, owner in zip(paths, owners, strict=True):
        draws, sizes = _load_draws(path)
        # weights are summed as float64, exactly: no shard has 2^53 bytes
        summed = np.bincount(_bucket(draws), weights=sizes, minlength=1 << _BUCKET_BITS)
        histograms[owner] += summed.astype(np.int64)
    available = {name: int(histogram.sum()) for name, histogram in histograms.items()}
    wanted = divide_budget(available, task.options.bytes, task.options.shares)
    picks = {}
    for name in sources:
        places = [(shard, path) for shard, path in enumerate(paths) if owners[shard] == name]
        picks[name] = msgspec.to_builtins(_pick(places, histograms[name], wanted[name]))
    return Made([], {}, {"picks": picks, "wanted": wanted, "available": available})


def divide_budget(available: Mapping[str, int], budget: int, shares: Shares) -> dict[str, int]:
    """Bytes to take of each source that has so many; more than it has, where its weight asks for more."""
    if shares.sources is not None:
        weights = {name: Fraction(shares.sources[name]) for name in available}
        return {name: int(weight * budget) for name, weight in weights.items()}
    if shares.domain_of is not None:
        return _divide_by_domain(available, budget, shares, shares.domain_of)
    total = sum(available.values())
    if total <= budget:
        return dict(available)
    return {name: budget * count // total for name, count in available.items()}


def _divide_by_domain(
    available: Mapping[str, int], budget: int, shares: Shares, domain_of: Mapping[str, str]
) -> dict[str, int]:
    domains: dict[str, dict[str, int]] = {}
    for name, count in available.items():
        domains.setdefault(domain_of[name], {})[name] = count
    within = {
        domain: {name: Fraction(weight) for name, weight in weights.items()}
        for domain, weights in (shares.within or {}).items()
    }
    outer = natural_mixture(
        {
            domain: sum(count for name, count in counts.items() if not has_no_weight(within, domain, name))
            for domain, counts in domains.items()
        }
    ).domains
    if shares.domains:
        outer = {domain: Fraction(weight) for domain, weight in shares.domains.items()}
    mixture = Mixture(outer, within)
    wanted = {
        name: int(outer.get(domain, Fraction(0)) * weight * budget)
        for domain, counts in domains.items()
        for name, weight in mixture.within_domain(domain, counts).items()
    }
    return {name: wanted[name] for name in available}


def _pick(places: Sequence[tuple[int, Path]], histogram: NDArray[np.int64], wanted: int) -> Pick:
    ends = np.cumsum(histogram)
    if not len(ends) or int(ends[-1]) <= wanted:
        return Pick(None)
    bucket = int(np.searchsorted(ends, wanted, side="right"))  # the first that goes beyond
    draws, sizes, shards, rows = _load_bucket(places, bucket)
    order = np.lexsort((rows, shards, draws))
    reached = int(ends[bucket] - histogram[bucket]) + np.cumsum(sizes[order])
    last = int(np.searchsorted(reached, wanted, side="right"))
    place = order[last]
    left = wanted - int(reached[last] - sizes[place])
    return Pick(int(draws[place]), int(shards[place]), int(rows[place]), left)


def _load_bucket(places: Sequence[tuple[int, Path]], bucket: int) -> tuple[Any, ...]:
    """Of all documents in it: draw, bytes, shard, row."""
    columns: list[list[Any]] = [[], [], [], []]
    for shard, path in places:
        draws, sizes = _load_draws(path)
        rows = np.flatnonzero(_bucket(draws) == bucket)
        found = (draws[rows], sizes[rows], np.full(len(rows), shard), rows)
        for column, part in zip(columns, found, strict=True):
            column.append(part)
    return tuple(np.concatenate(column) for column in columns)


def _load_draws(path: Path) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    table = load_table(path)
    return np.asarray(table.column("draw")), np.asarray(table.column("bytes"))


def _bucket(draws: NDArray[np.uint64]) -> NDArray[np.int64]:
    return (draws >> np.uint64(64 - _BUCKET_BITS)).astype(np.int64)


# --- sample ---


def perform_sample(task: Task[TakeOptions]) -> Made:
    pick, shard = task.options.pick, task.options.shard
    taken, cut = _taken(_load_draws(*task.paths("draws"))[0], pick, shard)
    texts, samples = pa.array([], pa.large_string()), len(taken)
    if samples:  # else the shard is not read
        texts, last = _train_texts(task.inputs).take(pa.array(taken)), samples - 1
        if task.options.controls is not None:
            texts, per_row = text_parts(texts, task.options.controls)
            last = len(texts) - int(per_row[-1])
        if cut:
            texts = _cut(texts, last, pick.cut_bytes)
            samples -= len(texts) == last
    table = pa.table([texts], schema=_SAMPLE)
    name = f"{task.key}.arrow"
    written = write_arrow(Path(task.directory) / name, table)
    entry = file_entry(name, "sample", written, rows=table.num_rows, content_sha256=table_sha256(table))
    column = string_column(texts)
    counts = {
        "samples": samples,
        "characters": int(measure_text(*column[:2]).chars.sum()),
        "bytes": int(column.offsets[-1] - column.offsets[0]),
    }
    return Made([entry], counts)


def _taken(draws: NDArray[np.uint64], pick: Pick, shard: int) -> tuple[NDArray[np.int64], bool]:
    """Rows, the one to cut last, and whether there is one."""
    if pick.draw is None:
        return np.arange(len(draws)), False
    bound = np.uint64(pick.draw)
    rows = np.flatnonzero(draws < bound)
    equal = np.flatnonzero(draws == bound)
    before = equal if shard < pick.shard else equal[equal < pick.row] if shard == pick.shard else equal[:0]
    whole = np.sort(np.concatenate([rows, before]))
    if shard != pick.shard or not pick.cut_bytes:
        return whole, False
    return np.append(whole, pick.row), True


def _cut(texts: Any, first: int, max_bytes: int) -> Any:
    """Of the texts from the first one on as much as fits: none of one where not even a character does."""
    offsets = string_column(texts).offsets
    end = int(offsets[first]) + max_bytes
    whole = int(np.searchsorted(offsets, end, "right")) - 1
    if whole == len(texts):
        return texts
    begin = texts[whole].as_py().encode()[: end - int(offsets[whole])].decode(errors="ignore")
    return pa.concat_arrays([texts[:whole], pa.array([begin] if begin else [], pa.large_string())])


def read_sample(inputs: Sequence[Input], step: str, characters: int) -> Iterator[str]:
    """The texts of all shards in order, a few at a time as Python strings;
    says how many of the characters were read."""
    read = 0
    for item in inputs:
        for batch in open_arrow(Path(item.path)).to_batches(max_chunksize=256):
            texts = batch.column("text").to_pylist()
            yield from texts
            read += sum(map(len, texts))
            tell_count(step, read, characters, "characters read")


TASKS: dict[str, TaskFunction[Any]] = {
    "tokenizer.draw": TaskFunction(DrawOptions, perform_draw),
    "tokenizer.choose": TaskFunction(ChooseOptions, perform_choose),
    "tokenizer.sample": TaskFunction(TakeOptions, perform_sample),
}


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


STAGE = Stage(
    "tokenizer",
    TokenizerOptions,
    conduct,
    {
        "tokenizer": TaskFunction(TokenizerOptions, perform_tokenizer),
        "tokenizer.train": TaskFunction(TrainOptions, perform_train),
        **TASKS,
    },
)

"""Tokenizer: the pinned file, copied beside the tokens it made, or one trained on the training split.

path  ─ sha256 against the pin ─ load ─ eos, control tokens ─> tokenizer/<file>
train ─ sample of the training texts ─ trainer ─ load ─ eos … ─> tokenizer/<file>, tokenizer/tokenizer.log.json

What a tokenizer learns from: a part of the training texts, by weight and as good as random.

    shard ─ draw ─> draws-<shard>        per training document a number from (seed, source, doc_id, text), and its bytes
    draws of all shards ─ choose ─>      per source its share of the bytes, and the number up to which they are reached
    shard ─ sample ─> sample-<shard>     texts with smaller numbers; the last one of a source is cut to fit

    shares   weights of the sources, or those of the mixture, or as much as each source has

Every source gives exactly its share, or all it has. Which documents those are depends on the documents alone, neither
on their order nor on the number of shards. All of this is scaffolding, gone when the tokenizer is there.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifacts.artifact import Artifact
from tokmill.artifacts.manifest import FileEntry, Json, Receipt, file_entry, sum_counts
from tokmill.artifacts.step import (
    Conduct,
    Input,
    Made,
    Outcome,
    Shard,
    Step,
    Task,
    table_input,
    write_shard_table,
)
from tokmill.errors import TokenizerError
from tokmill.kernels import hashing
from tokmill.kernels.characters import measure_text
from tokmill.packing.mixture import Mixture, natural_mixture
from tokmill.schema import one_piece, string_column
from tokmill.stages.texts import labelled_shards, load_texts
from tokmill.storage.commit import commit_bytes
from tokmill.storage.digest import table_sha256
from tokmill.storage.location import read_whole
from tokmill.storage.parquet import load_table, open_arrow, write_arrow
from tokmill.tokenizers.load import describe_tokenizer, pinned_tokenizer, resolve_controls, resolve_eos
from tokmill.tokenizers.train import train_tokenizer

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


# --- draw ---


def perform_draw(task: Task) -> Made:
    by_role = {item.role: Path(item.path) for item in task.inputs}
    kept = np.asarray(load_table(by_role["kept"], ["kept"]).column("kept"))
    labels = np.asarray(load_table(by_role["labels"], ["split"]).column("split"))
    rows = np.flatnonzero(kept & (labels == _TRAIN))
    doc_ids = one_piece(load_table(by_role["documents"], ["doc_id"]).column("doc_id"))
    marks = load_table(by_role["marks"], ["bytes", "exact_low"])
    sizes = np.asarray(marks.column("bytes")).copy()  # np.array hands out Arrow's own memory, read-only
    if "trims" in by_role:  # the marks are of the text before
        trims = load_table(by_role["trims"], ["row", "text"])
        sizes[np.asarray(trims.column("row"))] = np.diff(string_column(trims.column("text")).offsets)
    drawn = _draws(
        doc_ids.take(pa.array(rows)),
        np.asarray(marks.column("exact_low"))[rows],
        task.config["seed"],
        task.config["source"],
    )
    table = pa.table([drawn, sizes[rows]], schema=DRAWS)
    return Made([write_shard_table(task.directory, f"{task.key}.parquet", "draws", table)], {})


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


def perform_choose(task: Task) -> Made:
    """One pass finds how many bytes each source has by the upper bits of the draws, one the draw where to stop."""
    paths, owners = task.paths("draws"), task.config["sources"]
    sources = list(dict.fromkeys(owners))
    histograms = {name: np.zeros(1 << _BUCKET_BITS, np.int64) for name in sources}
    for path, owner in zip(paths, owners, strict=True):
        draws, sizes = _load_draws(path)
        # weights are summed as float64, exactly: no shard has 2^53 bytes
        summed = np.bincount(_bucket(draws), weights=sizes, minlength=1 << _BUCKET_BITS)
        histograms[owner] += summed.astype(np.int64)
    available = {name: int(histogram.sum()) for name, histogram in histograms.items()}
    wanted = divide_budget(available, task.config["bytes"], task.config["shares"])
    picks = {}
    for name in sources:
        places = [(shard, path) for shard, path in enumerate(paths) if owners[shard] == name]
        picks[name] = msgspec.to_builtins(_pick(places, histograms[name], wanted[name]))
    return Made([], {}, {"picks": picks, "wanted": wanted, "available": available})


def divide_budget(available: Mapping[str, int], budget: int, shares: Json) -> dict[str, int]:
    """Bytes to take of each source that has so many; more than it has, where its weight asks for more."""
    if "sources" in shares:
        weights = {name: Fraction(shares["sources"][name]) for name in available}
        return {name: int(weight * budget) for name, weight in weights.items()}
    if "domain_of" in shares:
        return _divide_by_domain(available, budget, shares)
    total = sum(available.values())
    if total <= budget:
        return dict(available)
    return {name: budget * count // total for name, count in available.items()}


def _divide_by_domain(available: Mapping[str, int], budget: int, shares: Json) -> dict[str, int]:
    domains: dict[str, dict[str, int]] = {}
    for name, count in available.items():
        domains.setdefault(shares["domain_of"][name], {})[name] = count
    within = {
        domain: {name: Fraction(weight) for name, weight in weights.items()}
        for domain, weights in shares["within"].items()
    }
    outer = natural_mixture({domain: sum(counts.values()) for domain, counts in domains.items()}).domains
    if shares["domains"] is not None:
        outer = {domain: Fraction(weight) for domain, weight in shares["domains"].items()}
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


def perform_sample(task: Task) -> Made:
    pick, shard = msgspec.convert(task.config["pick"], Pick), task.config["shard"]
    taken, cut = _taken(_load_draws(*task.paths("draws"))[0], pick, shard)
    texts = pa.array([], pa.large_string())
    if len(taken):  # else the shard is not read
        texts = one_piece(load_texts(task.inputs, split=_TRAIN).column("text")).take(pa.array(taken))
        if cut:
            texts = pa.concat_arrays([texts[:-1], _cut(texts[-1].as_py(), pick.cut_bytes)])
    table = pa.table([texts], schema=_SAMPLE)
    name = f"{task.key}.arrow"
    written = write_arrow(Path(task.directory) / name, table)
    entry = file_entry(name, "sample", written, rows=table.num_rows, content_sha256=table_sha256(table))
    column = string_column(texts)
    counts = {
        "samples": len(texts),
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


def _cut(text: str, max_bytes: int) -> Any:
    """As much of the text as fits: none of it where not even one character does."""
    begin = text.encode()[:max_bytes].decode(errors="ignore")
    return pa.array([begin] if begin else [], pa.large_string())


def read_sample(inputs: Sequence[Input]) -> Iterator[str]:
    """The texts of all shards in order, a few at a time as Python strings."""
    for item in inputs:
        for batch in open_arrow(Path(item.path)).to_batches(max_chunksize=256):
            yield from batch.column("text").to_pylist()


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

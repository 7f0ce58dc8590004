"""What a tokenizer learns from: a part of the training texts, by weight and as good as random.

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
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifacts.manifest import file_entry
from tokmill.artifacts.progress import tell_count
from tokmill.artifacts.step import Input, Made, Task, TaskFunction, TaskOptions
from tokmill.artifacts.upstream import write_shard_table
from tokmill.kernels import hashing
from tokmill.kernels.characters import measure_text
from tokmill.packing.mixture import Mixture, has_no_weight, natural_mixture
from tokmill.schema import DEDUP_EDITS, one_piece, string_column
from tokmill.stages.tokens.reading import load_labels, load_split_texts
from tokmill.storage.digests import table_sha256
from tokmill.storage.tables import load_table, open_arrow, write_arrow
from tokmill.tokenizers.fast import starts
from tokmill.tokenizers.regions import text_parts

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

"""Held-out documents that another split has too, exactly or nearly.

    exact    hashes of the held-out documents, in memory ─ every other shard's hashes ─> equal ones
    near     fingerprints and texts of the held-out documents, in memory ─ fingerprints of a shard at a time
             ─ equal bands ─ estimate ─ exact Jaccard where that leaves a doubt ─> documents like another

Of conversations the messages are compared: what a template writes is in all of them.
Memory is bounded by the held-out side. Of more than EVAL_DOCUMENTS held-out documents, and of more than
TRAIN_BYTES of training text, as many as that are taken by the hash of their ids: what is found is then a
lower bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from numpy.typing import NDArray

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.step import Input
from tokmill.duplicates.near import NearOptions, compare_pairs, judge_pairs, signatures
from tokmill.kernels.minhash import band_keys
from tokmill.schema import NO_SPLIT, one_piece
from tokmill.stages.dedup.near import METHOD as NEAR
from tokmill.stages.split.keys import TRAIN
from tokmill.stages.tokens.reading import labelled_shards, load_labels, load_split_texts
from tokmill.storage.digests import id_hashes
from tokmill.storage.tables import load_table
from tokmill.tokenizers.regions import own_texts

EVAL_DOCUMENTS = 20_000  # held-out documents whose near duplicates are looked for: 25 MB of fingerprints
TRAIN_BYTES = 1 << 30  # of training text that they are compared with: thirteen seconds of one core


# Documents of a shard that one held-out document is compared with, in each band:
# boilerplate has thousands of equals.
_COMPARED = 8


class Example(NamedTuple):
    doc_id: str
    source: str
    other_doc_id: str
    other_source: str
    similarity: float


class Exact(NamedTuple):
    held_out: int  # documents
    overlapping: int
    examples: list[Example]
    copies: frozenset[tuple[int, int]]  # (shard, row) of held-out documents that have one


class NearOverlap(NamedTuple):
    held_out: int
    looked_at: int
    overlapping: int
    train_documents: int
    of_train_documents: int
    threshold: float
    ngram: int
    examples: list[Example]

    @property
    def is_complete(self) -> bool:
        return self.looked_at == self.held_out and self.train_documents == self.of_train_documents


class _Shard(NamedTuple):
    number: int
    source: str
    inputs: list[Input]
    labels: Any  # split of every row; NO_SPLIT where it was dropped


def _shards(artifacts: Mapping[str, Artifact]) -> list[_Shard]:
    return [
        _Shard(shard.number, shard.source, inputs, load_labels(inputs))
        for shard, inputs in labelled_shards(dict(artifacts))
    ]


def _is_held_out(labels: Any) -> Any:
    return (labels != TRAIN) & (labels != NO_SPLIT)


# --- exact ---


def find_exact(artifacts: Mapping[str, Artifact]) -> Exact:
    """Equal as in exact deduplication: case and spacing aside.
    A document without a visible character equals none."""
    shards = _shards(artifacts)
    hashes, splits, places = [], [], []
    for shard in shards:
        rows = np.flatnonzero(_is_held_out(shard.labels))
        if len(rows):
            hashes.append(_hashes(shard)[rows])
            splits.append(shard.labels[rows])
            places.append(np.column_stack([np.full(len(rows), shard.number), rows]))
    if not hashes:
        return Exact(0, 0, [], frozenset())
    mine, split, place = np.concatenate(hashes), np.concatenate(splits), np.concatenate(places)
    order = np.lexsort((mine[:, 1], mine[:, 0]))
    mine, split, place = mine[order], split[order], place[order]
    first_copy: dict[int, tuple[int, int]] = {}
    for shard in shards:
        rows = np.flatnonzero(shard.labels != NO_SPLIT)
        others = _hashes(shard)[rows]
        # a page that is there a million times is compared once for each split
        known = np.column_stack([others, shard.labels[rows].astype(np.uint64)])
        different, first = np.unique(known, axis=0, return_index=True)
        low = np.searchsorted(mine[:, 0], different[:, 0], side="left")
        high = np.searchsorted(mine[:, 0], different[:, 0], side="right")
        for at in np.flatnonzero((high > low) & different[:, :2].any(axis=1)).tolist():
            for number in range(int(low[at]), int(high[at])):
                if split[number] != different[at, 2] and mine[number, 1] == different[at, 1]:
                    first_copy.setdefault(number, (shard.number, int(rows[first[at]])))
    copies = {number: tuple(place[number].tolist()) for number in sorted(first_copy)}
    examples = [_example(shards, copies[number], first_copy[number], 1.0) for number in list(copies)[:3]]
    return Exact(len(mine), len(copies), examples, frozenset(copies.values()))


def _hashes(shard: _Shard) -> Any:
    (path,) = [Path(item.path) for item in shard.inputs if item.role == "marks"]
    marks = load_table(path, ["exact_high", "exact_low"])
    return np.column_stack([np.asarray(marks.column(name)) for name in ("exact_high", "exact_low")])


def _example(shards: list[_Shard], mine: Any, other: tuple[int, int], similarity: float) -> Example:
    named = []
    for number, row in (mine, other):
        (path,) = [Path(item.path) for item in shards[number].inputs if item.role == "documents"]
        named += [str(load_table(path, ["doc_id"]).column("doc_id")[row].as_py()), shards[number].source]
    return Example(*named, similarity)  # type: ignore[call-arg, arg-type]


# --- near ---


class _HeldOut(NamedTuple):
    texts: Any
    split: NDArray[np.uint8]
    place: NDArray[np.int64]  # shard, row
    values: NDArray[np.uint32]
    keys: NDArray[np.uint64]  # documents x bands


def find_near_overlap(
    artifacts: Mapping[str, Artifact],
    copies: frozenset[tuple[int, int]],
    max_held_out: int = EVAL_DOCUMENTS,
    max_train_bytes: int = TRAIN_BYTES,
) -> NearOverlap:
    """Held-out documents that are no exact copies, and have a near duplicate in another split."""
    options = _options(artifacts)
    shards = _shards(artifacts)
    held_out = sum(int(_is_held_out(shard.labels).sum()) for shard in shards)
    train = sum(int((shard.labels == TRAIN).sum()) for shard in shards)
    mine = _load_held_out(shards, copies, options, min(max_held_out / held_out, 1.0) if held_out else 1.0)
    text_bytes = sum(
        int(a.manifest.counts["text_bytes"]) for n, a in artifacts.items() if n.startswith("ingest/")
    )
    share = min(max_train_bytes / text_bytes, 1.0) if text_bytes else 1.0
    best = np.zeros(len(mine.split), np.float64)
    other: dict[int, tuple[int, int]] = {}
    compared = 0
    for shard in shards:
        table = load_split_texts(shard.inputs, is_marked=True)
        table = table.filter(pa.array(_drawn(table, share) | _is_held_out(np.asarray(table.column("split")))))
        labels = np.asarray(table.column("split"))
        compared += int((labels == TRAIN).sum())
        if not table.num_rows or not len(mine.split):
            continue
        texts = own_texts(one_piece(table.column("text")))
        theirs = signatures(texts, options)
        keys = band_keys(theirs.values, options.bands, options.rows)
        a, b = _candidates(mine.keys, keys)
        may = (mine.split[a] != labels[b]) & (best[a] == 0)
        a, b = a[may], b[may]
        similarity = _compare(mine, theirs.values, texts, a, b, options)
        rows = np.asarray(table.column("row"))
        for at in np.flatnonzero(similarity >= options.threshold).tolist():
            number = int(a[at])
            if similarity[at] > best[number]:
                best[number] = similarity[at]
                other[number] = (shard.number, int(rows[b[at]]))
    found = np.flatnonzero(best > 0).tolist()
    examples = [
        _example(shards, tuple(mine.place[number].tolist()), other[number], float(best[number]))
        for number in found[:3]
    ]
    looked_at = len(mine.split) + len(copies)
    return NearOverlap(
        held_out,
        min(looked_at, held_out),
        len(found),
        compared,
        train,
        float(options.threshold),
        options.ngram,
        examples,
    )


def _options(artifacts: Mapping[str, Artifact]) -> NearOptions:
    """Those of the run, where it looked for near duplicates; but always verified."""
    dedup = artifacts.get("dedup")
    asked = NEAR.asked_in(dedup.manifest) if dedup is not None else None
    return replace(asked, verify="exact") if asked else NearOptions()


def _load_held_out(
    shards: list[_Shard], copies: frozenset[tuple[int, int]], options: NearOptions, share: float
) -> _HeldOut:
    texts, splits, places = [], [np.empty(0, np.uint8)], [np.empty((0, 2), np.int64)]
    for shard in shards:
        if not _is_held_out(shard.labels).any():
            continue
        table = load_split_texts(shard.inputs, is_marked=True)
        rows = np.asarray(table.column("row"))
        is_copy = np.array([(shard.number, row) in copies for row in rows.tolist()], np.bool_)
        wanted = _is_held_out(np.asarray(table.column("split"))) & ~is_copy & _drawn(table, share)
        table = table.filter(pa.array(wanted))
        texts.append(own_texts(one_piece(table.column("text"))))
        splits.append(np.asarray(table.column("split")))
        places.append(
            np.column_stack([np.full(table.num_rows, shard.number), np.asarray(table.column("row"))])
        )
    column = pa.concat_arrays(texts) if texts else pa.array([], pa.large_string())
    made = signatures(column, options)
    keys = band_keys(made.values, options.bands, options.rows)
    return _HeldOut(column, np.concatenate(splits), np.concatenate(places), made.values, keys)


def _drawn(table: Any, share: float) -> Any:
    """Chosen by identity, so that the same documents are looked at each time."""
    if share >= 1.0:
        return np.ones(table.num_rows, np.bool_)
    # the bits below those that a split by hash goes by: a sample of each split, not of one end of it
    keys = id_hashes(table.column("doc_id")) << np.uint64(32)
    return keys < np.uint64(int(share * (1 << 32))) << np.uint64(32)


def _candidates(mine: Any, theirs: Any) -> tuple[Any, Any]:
    """Pairs that share the key of a band, each once; of one key at most the first _COMPARED of theirs."""
    found_a, found_b = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for band in range(mine.shape[1]):
        order = np.argsort(theirs[:, band], kind="stable")
        ordered = theirs[order, band]
        low = np.searchsorted(ordered, mine[:, band], side="left")
        high = np.searchsorted(ordered, mine[:, band], side="right")
        counts = np.where(mine[:, band] == 0, 0, np.minimum(high - low, _COMPARED))
        a = np.repeat(np.arange(len(mine)), counts)
        within = np.arange(len(a)) - np.repeat(np.cumsum(counts) - counts, counts)
        found_a.append(a)
        found_b.append(order[low[a] + within])
    pairs = np.unique(np.column_stack([np.concatenate(found_a), np.concatenate(found_b)]), axis=0)
    return pairs[:, 0], pairs[:, 1]


def _compare(mine: _HeldOut, values: Any, texts: Any, a: Any, b: Any, options: NearOptions) -> Any:
    """Similarity of each pair: estimated where that resolves it, else exact."""
    shift = len(mine.split)
    both = np.concatenate([mine.values, values])
    judged = judge_pairs(a, b + shift, options, both.__getitem__)
    similarity = np.where(judged.is_similar, judged.similarity, 0.0)
    doubtful = np.flatnonzero(judged.is_doubtful)
    if len(doubtful):
        column = pa.concat_arrays([mine.texts, texts])
        similarity[doubtful] = compare_pairs(
            a[doubtful], b[doubtful] + shift, options, lambda rows: column.take(pa.array(rows))
        )
    return similarity

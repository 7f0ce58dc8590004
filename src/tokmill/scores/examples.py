"""Examples for a classifier: of each labelled text the n-grams as numbers, made shard by shard.

    texts, labels, identities of a shard  ─ make_examples ─>  Examples  ─ write_examples ─>  a file
    files of all shards  ─ load_examples, join_examples ─>  Examples in one order  ─>  training

    keys     uint64[row, 2]      hash of the seed and the identity: the order in which rows are learned
    labels   int32[row]          number of the label
    totals   int64[row]          n-grams of the text
    digests  uint64[row]         of its buckets and counts
    ends     int64[row + 1]      row i has buckets[ends[i]:ends[i + 1]], each once
    buckets  uint32[…]           and counts  uint16[…]

The order of joined rows is by key, then by what is in them: it knows nothing of shards, and two rows that
nothing tells apart may stand either way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.errors import CorruptFile
from tokmill.kernels.hashing import mix_column
from tokmill.kernels.linear import count_buckets
from tokmill.kernels.ngrams import Shape, hash_ngrams
from tokmill.schema import StringColumn
from tokmill.scores.arrayfile import checked_arrays, load_arrays, write_arrays
from tokmill.storage.disk import Written

KIND = "examples"
_ARRAYS = {
    "keys": ("<u8", 2),
    "labels": ("<i4", 1),
    "totals": ("<i8", 1),
    "digests": ("<u8", 1),
    "ends": ("<i8", 1),
    "buckets": ("<u4", 1),
    "counts": ("<u2", 1),
}


class Examples(NamedTuple):
    shape: Shape
    keys: NDArray[np.uint64]
    labels: NDArray[np.int32]
    totals: NDArray[np.int64]
    digests: NDArray[np.uint64]
    ends: NDArray[np.int64]
    buckets: NDArray[np.uint32]
    counts: NDArray[np.uint16]


class _Facts(msgspec.Struct, forbid_unknown_fields=True):
    words: int
    min_chars: int
    max_chars: int
    bits: int


def identity_keys(columns: Sequence[StringColumn], seed: int, purpose: str) -> NDArray[np.uint64]:
    """128 bits of each row, by what people know it by (its source and its id): as good as random."""
    start = hashlib.sha256(f"{purpose} {seed}".encode()).digest()[:16]
    state = np.tile(np.frombuffer(start, "<u8").astype(np.uint64), (len(columns[0].offsets) - 1, 1))
    for column in columns:
        mix_column(*column, state)
    return state


def make_examples(
    texts: StringColumn, labels: NDArray[np.int32], keys: NDArray[np.uint64], shape: Shape
) -> Examples:
    """Of the rows whose label is not negative."""
    rows = np.flatnonzero(labels >= 0)
    ngrams = hash_ngrams(texts.data, texts.offsets, shape)
    counted = count_buckets(ngrams.buckets, ngrams.ends)
    every = Examples(shape, keys, labels, counted.totals, counted.digests, counted.ends, *counted[:2])
    return every if len(rows) == len(labels) else take_examples(every, rows)


def take_examples(examples: Examples, rows: NDArray[np.int64]) -> Examples:
    """These rows, in this order."""
    sizes = np.diff(examples.ends)[rows]
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    places = np.repeat(examples.ends[:-1][rows] - ends[:-1], sizes) + np.arange(ends[-1])
    return Examples(
        examples.shape,
        np.ascontiguousarray(examples.keys[rows]),
        examples.labels[rows],
        examples.totals[rows],
        examples.digests[rows],
        ends,
        examples.buckets[places],
        examples.counts[places],
    )


def join_examples(shards: Iterable[Examples], max_rows: int | None = None) -> Examples:
    """Of all shards, in the order of their keys; of each label at most `max_rows`, the first."""
    parts = list(shards)
    if not parts:
        raise ValueError("no shard of examples")
    if len({part.shape for part in parts}) > 1:
        raise ValueError("examples with several shapes of n-grams")
    starts = np.cumsum([0, *(len(part.buckets) for part in parts)])
    ends = [part.ends[1:] + start for part, start in zip(parts, starts[:-1], strict=True)]
    joined = Examples(
        parts[0].shape,
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.totals for part in parts]),
        np.concatenate([part.digests for part in parts]),
        np.concatenate([np.zeros(1, np.int64), *ends]),
        np.concatenate([part.buckets for part in parts]),
        np.concatenate([part.counts for part in parts]),
    )
    high, low = joined.keys.T
    order = np.lexsort((joined.digests, joined.totals, joined.labels, low, high))
    if max_rows is not None:
        rank = np.zeros(len(order), np.int64)
        of = joined.labels[order]
        for label in np.unique(of):
            rank[of == label] = np.arange((of == label).sum())
        order = order[rank < max_rows]
    return take_examples(joined, order)


def write_examples(path: Path, examples: Examples) -> Written:
    facts = _Facts(*examples.shape)
    return write_arrays(path, KIND, facts, dict(zip(_ARRAYS, examples[1:], strict=True)))


def load_examples(path: Path) -> Examples:
    file = load_arrays(path, KIND)
    keys, labels, totals, digests, ends, buckets, counts = checked_arrays(file, path, _ARRAYS)
    try:
        shape = Shape(*msgspec.structs.astuple(msgspec.json.decode(file.facts, type=_Facts))).checked()
        rows = len(labels)
        if keys.shape != (rows, 2) or len(totals) != rows or len(digests) != rows or len(ends) != rows + 1:
            raise ValueError("its columns have different rows")
        if ends[0] != 0 or ends[-1] != len(buckets) or (np.diff(ends) < 0).any() or len(counts) != ends[-1]:
            raise ValueError("its rows do not fit its buckets")
        if buckets.size and (int(buckets.max()) >> shape.bits or not counts.all()):
            raise ValueError("a bucket or a count is none")
        if (totals < np.diff(ends)).any() or (labels < 0).any():
            raise ValueError("a row has fewer n-grams than buckets, or no label")
    except (ValueError, msgspec.DecodeError) as error:
        raise CorruptFile(
            f"not examples that can be learned from: {error}", where=str(path), next="make them again"
        ) from None
    return Examples(shape, keys, labels, totals, digests, ends, buckets, counts)

"""Which documents are held out: decided by identity, never by order or chance.

hash      key = uint64(sha256(doc_id)[:8])         valid below floor(valid_fraction * 2^64), then test
counts    key = hash(seed, source, doc_id, text)   the least keys are valid, the next test …
formula   the same keys, domain by domain          formula_size(n) of n documents
field     no key: the document says it itself

In order of their keys the documents of a split lie together, so a split is known by the `Bound` where it
ends, and a shard can be labelled by itself. A decimal fraction is exact; growing a corpus never moves a
document that is split by hash to the other side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.formats.ids import SPLITS as SPLITS
from tokmill.kernels import hashing
from tokmill.schema import string_column

TRAIN, VALID, TEST = range(3)

Keys = NDArray[np.uint64]
Docs = NDArray[np.int64]
Labels = NDArray[np.uint8]


def shuffle_keys(doc_ids: Any, text_hashes: Keys, source: str, seed: int) -> Keys:
    """As good as random. Documents that share source, id and text (n × 2 hashes) have one key;
    position parts them.

    The text counts because ids need not be unique: without it the first chapters of a book would be held out.
    """
    start = np.frombuffer(hashlib.sha256(f"split {seed} {source}".encode()).digest()[:16], "<u8")
    state = np.ascontiguousarray(text_hashes ^ start)
    hashing.mix_column(*string_column(doc_ids), state)
    return np.ascontiguousarray(state[:, 0])


class Bound(NamedTuple):
    """Where a split ends: before document `number` of those with this key; None: at the end of all."""

    split: int
    key: int | None
    number: int = 0


def label_keys(keys: Keys, numbers: Docs, bounds: Sequence[Bound], rest: int) -> Labels:
    """The first bound that a document lies before says its split."""
    labels = np.full(len(keys), rest, np.uint8)
    for bound in reversed(bounds):
        if bound.key is None:
            labels[:] = bound.split
        else:
            key = np.uint64(bound.key)
            labels[(keys < key) | ((keys == key) & (numbers < bound.number))] = bound.split
    return labels


def formula_size(documents: int) -> int:
    """min(max(10, 5 %), 10 %), both rounded down: of fewer than ten documents none is held out."""
    return min(max(10, documents // 20), documents // 10)


# --- a field of the document ---

NOWHERE = -1


def spelled_field(metas: Any, field: str) -> list[str | None]:
    """Strings as they are, all else as JSON; None where there is no such key, or a null."""
    found = [None if meta is None else msgspec.json.decode(meta).get(field) for meta in metas.to_pylist()]
    return [
        value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()
        for value in found
    ]


def label_values(values: Sequence[str | None], splits: Mapping[str, Sequence[str]]) -> NDArray[np.int16]:
    """The number of the split that has the value in its list; NOWHERE: none has."""
    number = {value: SPLITS.index(split) for split, wanted in splits.items() for value in wanted}
    return np.array(
        [number.get(value, NOWHERE) if value is not None else NOWHERE for value in values], np.int16
    )

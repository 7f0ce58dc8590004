"""A file of labels: what people, or another model, say of documents.

    {"doc_id": "q-17", "label": "good"}                        of every document with this id
    {"doc_id": "q-17", "source": "se", "label": "good"}        of that source's alone

Any file of records: JSON Lines, CSV, Parquet, packed or not. A document with two labels is an error, and so
is a record without one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import InputError, RecipeError
from tokmill.scores.training import NO_LABEL
from tokmill.storage.codecs import read_batches
from tokmill.storage.records import Kind, Wanted

_WANTED = [
    Wanted("doc_id", "doc_id", Kind.SCALAR, required=True, others=("id",)),
    Wanted("label", "label", Kind.SCALAR, required=True),
    Wanted("source", "source", Kind.SCALAR, required=False),
]
_MAX_RECORD_BYTES = 1 << 20
POSITIVE = "positive"  # whose chance is the score, unless another is named


NOWHERE = -1


class LabelFile(NamedTuple):
    names: tuple[str, ...]  # of labels, in order
    numbers: NDArray[np.int32]  # of the label of each entry; an id of any source and of one is one entry
    places: dict[tuple[str | None, str], int]  # of the entry, by source, None: any, and id

    @property
    def sources(self) -> set[str]:
        return {source for source, _ in self.places if source is not None}

    def find(self, source: str, doc_ids: Sequence[str]) -> NDArray[np.int64]:
        """Places of the entries of these documents, NOWHERE where there is none."""
        anywhere = self.places
        found = [anywhere.get((source, doc_id), anywhere.get((None, doc_id), NOWHERE)) for doc_id in doc_ids]
        return np.array(found, np.int64).reshape(len(doc_ids))

    def labels_of(self, places: NDArray[np.int64]) -> NDArray[np.int32]:
        """Their numbers, NO_LABEL of NOWHERE."""
        return np.append(self.numbers, np.int32(NO_LABEL))[places]

    def of(self, source: str, doc_ids: Sequence[str]) -> NDArray[np.int32]:
        return self.labels_of(self.find(source, doc_ids))


@functools.lru_cache(maxsize=2)
def load_labels(path: Path, sha256: str) -> LabelFile:
    """`sha256` is of the file: a worker reads it once for all its shards."""
    spelled: dict[tuple[str | None, str], str] = {}
    for batch in read_batches(path, _WANTED, unit="line", max_record_bytes=_MAX_RECORD_BYTES):
        if batch.bad:
            bad = batch.bad[0]
            raise InputError(
                f"record at offset {bad.offset:,}: {bad.reason} ({bad.detail})",
                where=str(path),
                next="every record needs `doc_id` and `label`",
            )
        columns = [batch.table.column(name).to_pylist() for name in ("source", "doc_id", "label")]
        for source, doc_id, label in zip(*columns, strict=True):
            _refuse_second(spelled.setdefault((source, doc_id), label), label, doc_id, path)
    for (source, doc_id), label in spelled.items():
        if source is not None:
            _refuse_second(spelled.get((None, doc_id), label), label, doc_id, path)
    names = tuple(sorted(set(spelled.values())))
    if len(names) < 2:
        raise InputError(
            f"has {len(spelled):,} documents and {'one label, ' + names[0] if names else 'no label'}",
            where=str(path),
            next="a classifier needs documents of two labels, or more",
        )
    order = {name: number for number, name in enumerate(names)}
    numbers: list[int] = []
    places: dict[tuple[str | None, str], int] = {}
    for key in sorted(spelled, key=lambda key: key[0] is not None):  # those of any source first
        places[key] = places.get((None, key[1]), len(numbers))
        if places[key] == len(numbers):
            numbers.append(order[spelled[key]])
    return LabelFile(names, np.array(numbers, np.int32), places)


def wanted_label(names: Sequence[str], asked: str | None, where: str) -> str:
    """Whose chance is the score."""
    label = POSITIVE if asked is None else asked
    if label not in names:
        raise RecipeError(
            f"no document has the label {label!r}",
            where=where,
            next=f"name one with `label`: {', '.join(names[:10])}{', …' if len(names) > 10 else ''}",
        )
    return label


def _refuse_second(first: str, second: str, doc_id: str, path: Path) -> None:
    if first != second:
        raise InputError(
            f"the document {doc_id} has the labels {first} and {second}",
            where=str(path),
            next="keep one of them",
        )

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


class LabelFile(NamedTuple):
    names: tuple[str, ...]  # of labels, in order
    numbers: dict[tuple[str | None, str], int]  # by source, None: any, and id

    def of(self, source: str, doc_ids: Sequence[str]) -> NDArray[np.int32]:
        """Numbers of labels, NO_LABEL where there is none."""
        anywhere = self.numbers
        found = [anywhere.get((source, doc_id), anywhere.get((None, doc_id), NO_LABEL)) for doc_id in doc_ids]
        return np.array(found, np.int32).reshape(len(doc_ids))


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
    return LabelFile(names, {key: order[label] for key, label in spelled.items()})


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

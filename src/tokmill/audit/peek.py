"""One row of a build as the text that it stands for, document by document.

    row 17   |--- doc a, its end ---|--- doc b ---|--- doc c, its beginning ---|= padding =|

The documents are those of index.jsonl.zst; where there is none, EOS ends them. The tokenizer is the build's own, found
beside it as its maker left it, or given; either way its sha256 must be the recorded one.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np

from tokmill.audit.beside import find_tokenizer
from tokmill.errors import InputError
from tokmill.formats.row_index import DocumentSpan, find_row
from tokmill.loader.dataset import INDEX_NAME, Dataset, first_row, open_dataset


@dataclasses.dataclass(frozen=True)
class Piece:
    """A document in a row, or as much of it as is there."""

    start: int
    end: int
    text: str
    doc_id: str | None
    source: str | None
    offset: int | None  # the document's own number of the first token here
    is_ended: bool


@dataclasses.dataclass(frozen=True)
class Peeked:
    split: str
    row: int
    rows: int
    length: int
    padding: int
    pieces: list[Piece]

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def peek(
    directory: str | Path, row: int, *, split: str | None = None, tokenizer: str | Path | None = None
) -> Peeked:
    dataset = open_dataset(directory, split)
    if not -len(dataset) <= row < len(dataset):
        raise InputError(
            f"there is no row {row:,}",
            where=str(dataset.directory),
            next=f"rows are 0 to {len(dataset) - 1:,}; a negative one counts from the end",
        )
    row %= len(dataset)
    example = dataset[row]
    spans = _spans(dataset, row, example)
    loaded = find_tokenizer(dataset, tokenizer)
    ids, eos = example["ids"], dataset.facts.eos_id
    pieces = [
        Piece(
            span.start,
            span.end,
            loaded.decode(np.asarray(ids[span.start : span.end], np.int64)),
            span.doc_id or None,
            span.source or None,
            span.offset if span.doc_id else None,
            bool(span.end > span.start and ids[span.end - 1] == eos),
        )
        for span in spans
    ]
    length = spans[-1].end if spans else 0
    padding = (dataset.facts.seq_len or length) - length
    return Peeked(dataset.split, row, len(dataset), length, padding, pieces)


def _spans(dataset: Dataset, row: int, example: dict[str, Any]) -> list[DocumentSpan]:
    index = dataset.directory / INDEX_NAME
    if index.is_file():
        return find_row(index, row + (first_row(dataset.store) or 0)).docs
    ids = example["ids"]
    name = str(example.get("doc_id") or "")
    if dataset.facts.seq_len is None or dataset.facts.eos_id is None:
        return [DocumentSpan(name, "", 0, len(ids), 0)] if len(ids) else []
    ends = np.flatnonzero(ids == dataset.facts.eos_id) + 1
    bounds = sorted({0, *ends.tolist(), len(ids)})
    return [DocumentSpan("", "", start, end, 0) for start, end in itertools.pairwise(bounds)]

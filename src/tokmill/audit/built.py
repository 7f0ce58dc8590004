"""What a build holds of the documents of a split: read from its places and the order of the mixture.

    order-<split> ─> turns, one after the other        places.npy ─> of each turn, its tokens in rows
                                                       none       ─> documents are built whole

A document that has no turn is in no row; neither need one that has: the rows of a domain that is balanced, those after
the last whole one and those beyond a number of blocks are left out. Some 20 bytes for each turn.

One row of a build as the text that it stands for, document by document.

    row 17   |--- doc a, its end ---|--- doc b ---|--- doc c, its beginning ---|= padding =|

The documents are those of index.jsonl.zst; where there is none, EOS ends them. The tokenizer is the build's own, found
beside it as its maker left it, or given; either way its sha256 must be the recorded one.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.artifact import Artifact
from tokmill.audit.membership import find_tokenizer
from tokmill.audit.places import RunPlaces, Turns, entry_of, order_path, splits_of
from tokmill.errors import InputError
from tokmill.formats.index import DocumentSpan, find_row, map_places
from tokmill.loader.dataset import INDEX_NAME, Dataset, first_row, open_dataset
from tokmill.stages.tokens.tokenized import shards_of_split

_MEETINGS_AT_ONCE = 1 << 20


class BuiltSplit(NamedTuple):
    turns: Turns
    position: NDArray[
        np.int64
    ]  # of the document of each turn, among all of the split that the build could have
    written: NDArray[np.int64]  # tokens of each turn in rows

    def once(self) -> int:
        """Tokens of the documents that have a turn, each counted once however often it repeats."""
        lengths = self.turns.lengths()
        first = np.zeros(len(lengths), np.bool_)
        first[np.unique(self.position, return_index=True)[1]] = True
        return int(lengths[first].sum())

    def documents(self) -> int:
        """In rows, each once."""
        return len(np.unique(self.position[self.written > 0]))

    def in_rows(self) -> dict[int, NDArray[np.bool_]]:
        """By the number of the shard: which of its sequences have a token in a row."""
        sizes = [shard.lengths.rows for shard in self.turns.shards]
        marks = np.zeros(sum(sizes), np.bool_)
        marks[self.position[self.written > 0]] = True
        parts = np.split(marks, np.cumsum(sizes)[:-1]) if sizes else []
        return {shard.number: part for shard, part in zip(self.turns.shards, parts, strict=True)}


Builds = dict[str, dict[str, BuiltSplit]]  # by build and split


def load_built(run: RunPlaces, step: str, split: str) -> BuiltSplit:
    """Of the build that `step` made."""
    build, whole = run.artifacts[step], _whole(run.turns(step, split))
    if entry_of(build, split, "places") is None:
        return whole
    written = np.zeros(len(whole.position), np.int64)
    for document, _, width in read_meetings(build, split):
        np.add.at(written, document, width)
    return whole._replace(written=written)


def load_scheduled(artifacts: Mapping[str, Artifact], split: str) -> BuiltSplit:
    """Of a run that has no build yet: every turn, whole."""
    return _whole(Turns(shards_of_split(artifacts, split), [], order_path(artifacts, split)))


def _whole(turns: Turns) -> BuiltSplit:
    ends = np.cumsum([0, *(shard.lengths.rows for shard in turns.shards)]).tolist()
    position = turns.in_turn([np.arange(first, stop) for first, stop in itertools.pairwise(ends)])
    return BuiltSplit(turns, position, turns.lengths())


def read_meetings(build: Artifact, split: str) -> Iterator[tuple[Any, Any, Any]]:
    """(turn, row, tokens) of every meeting of a document and a row, in order of turns, some at a time."""
    entry = entry_of(build, split, "places")
    if entry is None:
        return
    places = map_places(build.path(entry), entry.rows)
    for first in range(0, entry.rows, _MEETINGS_AT_ONCE):
        part = slice(first, first + _MEETINGS_AT_ONCE)
        width = places.end[part].astype(np.int64) - places.start[part]
        yield places.document[part].astype(np.int64), places.row[part].astype(np.int64), width


def load_builds(run: RunPlaces) -> Builds:
    return {
        step.partition("/")[2]: {split: load_built(run, step, split) for split in splits_of(build)}
        for step, build in run.of_kind("build").items()
    }


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

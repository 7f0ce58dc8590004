"""When a model meets a document, or a text that is in documents: the steps that saw it, and those to come.

    doc_id ─ places ──────────────────────────┐
    text ─ documents that have it, as trained ─┴─> its turns ─ rows ─ loader/history: their samples ─> steps
           on ─ which of their tokens

A row that has another part of the document has not met the text. Where tokens are in another order than the
text (`fim`), all rows of the document are told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.audit.opened import ShardTables, numbers_in
from tokmill.audit.places import Place, RunPlaces, Turns, entry_of, places_in
from tokmill.audit.trace import BuildSplit, DocumentText, load_document
from tokmill.errors import InputError
from tokmill.loader.batches import Batches
from tokmill.loader.history import Sample, find_samples
from tokmill.stages.dedup.method import load_texts
from tokmill.storage.tables import load_table

Span = tuple[int, int]  # tokens of a document

MOST_DOCUMENTS = 1000  # that have a text


class Meeting(NamedTuple):
    """A row of a document in a step."""

    source: str
    doc_id: str
    build: str
    row: int
    columns: tuple[int, int]
    tokens: tuple[int, int]  # of the document
    epoch: int
    position: int  # in the epoch
    step: int | None  # None: the batch size was not told
    is_seen: bool
    is_placed: bool = True  # of a text: it stands in these tokens; or else somewhere in the document


class Sought(NamedTuple):
    """A document, and which of its tokens; None: all."""

    place: Place
    doc_id: str
    sequence: int
    tokens: int  # of the whole document
    spans: list[Span] | None
    is_placed: bool = True


def seek_document(split: BuildSplit, doc_id: str, source: str | None) -> list[Sought] | None:
    """All of that name that are in the split; None: nothing is called so."""
    run = run_around(split)
    places = run.find(doc_id, source)
    found = []
    for place in places:
        encoded = _load_encoded(run, place.shard, split.split)
        for at in np.flatnonzero(encoded.rows == place.row).tolist():
            found.append(Sought(place, doc_id, at, int(encoded.tokens[at]), None))
    return found if places else None


class _Encoded(NamedTuple):
    """Documents of a shard that have tokens in a split, by their sequence."""

    rows: NDArray[np.int64]
    tokens: NDArray[np.int64]
    ids: Any


def _load_encoded(run: RunPlaces, shard: ShardTables, split: str) -> _Encoded:
    entry = run.lengths_entry(shard, split)
    if entry is None:
        none = np.empty(0, np.int64)
        return _Encoded(none, none, [])
    table = load_table(run.artifacts["tokens"].path(entry), ["row", "tokens", "doc_id"])
    rows, tokens = (numbers_in(table, name).astype(np.int64) for name in ("row", "tokens"))
    return _Encoded(rows, tokens, table.column("doc_id"))


def seek_text(split: BuildSplit, turns: Turns, text: str, source: str | None) -> list[Sought]:
    """Find the documents of the split that have the text, as they are trained on. Each table is read once."""
    if not text:
        raise InputError("is empty", where="text", next="give some words that documents have")
    run, found = run_around(split), list[Sought]()
    mine = {shard.number for shard in turns.shards}
    for shard in run.shards:
        if shard.number not in mine or source not in (None, shard.source):
            continue
        encoded = _load_encoded(run, shard, split.split)
        texts = load_texts(run.text_inputs(shard), encoded.rows)
        for at in np.flatnonzero(np.asarray(pc.match_substring(texts, text))).tolist():
            place = Place(shard, int(encoded.rows[at]))
            document = load_document(run, place, split.split, at, str(texts[at]))
            spans = _spans_of(document, text)
            own = (str(encoded.ids[at]), at, int(encoded.tokens[at]))
            found.append(Sought(place, *own, spans, is_placed=spans is not None))
            if len(found) > MOST_DOCUMENTS:
                raise InputError(
                    f"more than {MOST_DOCUMENTS:,} documents have it", where="text", next="give more words"
                )
    return found


def _spans_of(document: DocumentText, text: str) -> list[Span] | None:
    """Tokens that have a character of the text, wherever it stands in the document; None: the tokens are not
    the text's one after the other, as with `fim`."""
    if not document.is_same:
        return None
    data, wanted, spans = document.text.encode(), text.encode(), list[Span]()
    at = data.find(wanted)
    while at >= 0:
        first = int(np.searchsorted(document.bounds.bounds, at, "right")) - 1
        stop = int(np.searchsorted(document.bounds.bounds, at + len(wanted), "left"))
        spans.append((first + document.lead, stop + document.lead))
        at = data.find(wanted, at + 1)
    return spans


def run_around(split: BuildSplit) -> RunPlaces:
    assert split.run is not None, "it was asked for its turns"
    return split.run


def meetings(
    loader: Batches,
    opened: Sequence[tuple[BuildSplit, Turns, list[Sought]]],
    now: Sample,
    epochs: int,
    has_steps: bool,
) -> list[Meeting]:
    """In so many epochs, in the order in which they are."""
    found = []
    for number, (split, turns, all_sought) in enumerate(opened):
        turns.look_up((sought.place.shard.number, sought.sequence) for sought in all_sought)
        for sought in all_sought:
            for row, columns, tokens in _rows_of(split, turns, sought):
                for sample in find_samples(loader.order, number, row, epochs):
                    step = step_of(loader, sample)
                    if loader.drop_last and step is None:
                        continue
                    build = split.name.removeprefix("build/")
                    told = (sought.place.shard.source, sought.doc_id, build, row, columns, tokens)
                    when = step if has_steps else None
                    found.append(Meeting(*told, *sample, when, sample < now, sought.is_placed))
    return sorted(found, key=lambda one: (one.epoch, one.position, one.columns))


def step_of(loader: Batches, sample: Sample) -> int | None:
    """The step that the sample is in; None: `drop_last` leaves it out."""
    within = sample.position // (loader.batch_size * loader.world_size)
    return sample.epoch * len(loader) + within if within < len(loader) else None


def _rows_of(split: BuildSplit, turns: Turns, sought: Sought) -> Iterator[tuple[int, Span, Span]]:
    """Row, columns in it, and tokens of the document."""
    for turn in turns.of(sought.place.shard.number, sought.sequence):
        spans = places_in(split.build, split.split, turn)
        if entry_of(split.build, split.split, "places") is None:  # a row is a document
            spans = spans._replace(end=spans.start + sought.tokens)
        columns = (spans.row, spans.start, spans.end, spans.offset)
        for row, start, end, offset in zip(*(column.tolist() for column in columns), strict=True):
            for first, stop in sought.spans if sought.spans is not None else [(offset, offset + end - start)]:
                low, high = max(first, offset), min(stop, offset + end - start)
                if low < high:
                    yield row, (start + low - offset, start + high - offset), (low, high)

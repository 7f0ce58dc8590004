"""When a model meets a document, or a text that is in documents: the steps that saw it, and those to come.

    doc_id ─ places ──────────────────────────┐
    text ─ documents that have it, as trained ─┴─> its turns ─ rows ─ loader/history: their samples ─> steps
           on ─ which of their tokens

A row that has another part of the document has not met the text. Where tokens are in another order than the
text (`fim`), all rows of the document are told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from tokmill.audit.opened import load_of, numbers_in
from tokmill.audit.places import Place, RunPlaces, Turns, entry_of, places_in
from tokmill.audit.trace import BuildSplit, load_clean_text, load_document
from tokmill.errors import InputError
from tokmill.loader.batches import Batches
from tokmill.loader.history import Sample, find_samples
from tokmill.schema import DEDUP_EDITS
from tokmill.storage.on_demand import at_hand
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
    spans: list[Span] | None
    is_placed: bool = True


def seek_document(split: BuildSplit, doc_id: str, source: str | None) -> list[Sought] | None:
    """All of that name that are in the split; None: nothing is called so."""
    run = run_around(split)
    places = run.find(doc_id, source)
    found = ((place, run.sequence_of(place, split.split)) for place in places)
    return [Sought(place, doc_id, own, None) for place, own in found if own is not None] if places else None


def seek_text(split: BuildSplit, turns: Turns, text: str, source: str | None) -> list[Sought]:
    """Of the documents of the split those that have the text, as they are trained on."""
    if not text:
        raise InputError("is empty", where="text", next="give some words that documents have")
    run, found = run_around(split), list[Sought]()
    mine = {shard.number for shard in turns.shards}
    for shard in run.shards:
        if shard.number not in mine or source not in (None, shard.source):
            continue
        path = at_hand(run.artifacts[f"ingest/{shard.source}"].path(shard.documents))
        table = load_table(path, ["doc_id", "text"])
        has_it = np.flatnonzero(np.asarray(pc.match_substring(table.column("text"), text)))
        for row in np.union1d(has_it, _edited(run, Place(shard, 0))).tolist():
            place = Place(shard, row)
            sequence = run.sequence_of(place, split.split)
            if sequence is None or text not in load_clean_text(run, place):
                continue
            spans = _spans_of(run, place, split.split, sequence, text)
            doc_id = str(table.column("doc_id")[row])
            found.append(Sought(place, doc_id, sequence, spans, is_placed=spans is not None))
            if len(found) > MOST_DOCUMENTS:
                raise InputError(
                    f"more than {MOST_DOCUMENTS:,} documents have it", where="text", next="give more words"
                )
    return found


def _edited(run: RunPlaces, place: Place) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Rows of the shard whose text is not as it was received."""
    shard = place.shard
    tables = [
        load_of(run.artifacts.get(f"clean/{shard.source}"), f"edits-{shard.key}.parquet", ["row"]),
        *(
            load_of(run.artifacts.get("dedup"), f"{name}-{shard.number:05d}.parquet", ["row"])
            for name in DEDUP_EDITS
        ),
    ]
    rows = [numbers_in(table, "row").astype(np.int64) for table in tables if table is not None]
    return np.unique(np.concatenate([np.empty(0, np.int64), *rows]))


def _spans_of(run: RunPlaces, place: Place, split: str, sequence: int, text: str) -> list[Span] | None:
    """Tokens that have a character of it, wherever it stands in the document; None: they are not the text's
    one after the other, as with `fim`."""
    document = load_document(run, place, split, sequence)
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
            length = run_around(split).tokens_of(sought.place, split.split)
            spans = spans._replace(end=spans.start + length)
        columns = (spans.row, spans.start, spans.end, spans.offset)
        for row, start, end, offset in zip(*(column.tolist() for column in columns), strict=True):
            for first, stop in sought.spans if sought.spans is not None else [(offset, offset + end - start)]:
                low, high = max(first, offset), min(stop, offset + end - start)
                if low < high:
                    yield row, (start + low - offset, start + high - offset), (low, high)

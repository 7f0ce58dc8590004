"""From a token back to the characters of its document, and from a document to its tokens.

    build, row, column ─ which document ─ which of its tokens ─ which characters ─ source, licence, history
    run, doc_id ─ history with its tokens (why.py) ─ origin: file and digest, or dataset and revision;
                                                     licence, language

    documents-<shard> ─ edits, stripped and trims of <shard> laid over ─ ids that spell it ─> bounds of
                                                                       └ or encoded again ┘   every token

What is stored must spell the text, or be what the text is encoded to: what is said of characters is proven,
or not said. A build taken out of its run answers with what its index says; the history is in the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.directory import Artifact, open_artifact
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.upstream import is_chat
from tokmill.audit.opened import load_of, numbers_in
from tokmill.audit.places import Place, RunPlaces, entry_of, open_places, places_in, splits_of
from tokmill.audit.why import History, Told, history_of, open_end_to_end, tell_histories
from tokmill.errors import InputError, RecipeError, StorageError, TokmillError
from tokmill.formats.ids import find_split
from tokmill.formats.index import DocumentSpan, find_row
from tokmill.formats.megatron import MegatronFile
from tokmill.schema import DEDUP_EDITS
from tokmill.storage.on_demand import at_hand
from tokmill.tokenizers.load import load_tokenizer
from tokmill.tokenizers.protocol import (
    Boundaries,
    Tokenizer,
    boundaries,
    characters_between,
    spelled_boundaries,
)
from tokmill.tokenizers.regions import marked_boundaries, without_marks

_AROUND = 60  # characters of the text on either side of an excerpt
_SHOWN = 400  # of what is marked


class Excerpt(NamedTuple):
    before: str
    marked: str
    after: str


class Stretch(NamedTuple):
    """Characters [start, end) of the cleaned text, and bytes; is_cut:
    a token ends inside a character there."""

    start: int
    end: int
    first_byte: int
    end_byte: int
    is_cut: bool
    excerpt: Excerpt


class DocumentText(NamedTuple):
    text: str
    bounds: Boundaries
    stored: np.ndarray[tuple[int], np.dtype[np.int64]]  # with what begins and ends it
    lead: int  # tokens before those of the text: 1 with a BOS
    is_same: bool  # encoded again, it has the ids that are stored

    def stretch(self, first: int, stop: int) -> Stretch:
        """Of the document's tokens [first, stop); one that begins or ends the document has no character."""
        data, last = self.text.encode(), len(self.bounds.ids)
        begin, end = (
            int(self.bounds.bounds[at]) if at < last else len(data)
            for at in (min(max(place - self.lead, 0), last) for place in (first, stop))
        )
        characters = characters_between(data, begin, end)
        return Stretch(
            characters.start,
            characters.end,
            begin,
            end,
            characters.is_cut,
            _excerpt(self.text, characters.start, characters.end, characters.is_cut),
        )


def load_clean_text(run: RunPlaces, place: Place) -> str:
    """As cleaning and deduplication left it, a conversation with its marks."""
    *_, (_, text) = read_layers(run, place)
    return text


def read_layers(run: RunPlaces, place: Place) -> Iterator[tuple[str, str]]:
    """The text as it was received, then after each table of edits; where one does not name it, as before."""
    shard = place.shard
    text = str(run.document(place)["text"])
    yield "documents", text
    layers = (
        ("edits", run.artifacts.get(f"clean/{shard.source}"), f"edits-{shard.key}.parquet"),
        *(
            (table, run.artifacts.get("dedup"), f"{table}-{shard.number:05d}.parquet")
            for table in DEDUP_EDITS
        ),
    )
    for name, artifact, path in layers:
        table = load_of(artifact, path, ["row", "text"])
        if table is not None:
            at = np.flatnonzero(numbers_in(table, "row") == place.row)
            text = str(table.column("text")[int(at[0])]) if len(at) else text
        yield name, text


def load_document(run: RunPlaces, place: Place, split: str, sequence: int, marked: str) -> DocumentText:
    """Bounds of the tokens of a document; `marked` is its text as cleaned, a conversation with its marks."""
    is_conversation = is_chat(run.artifacts[f"ingest/{place.shard.source}"])
    text = without_marks(marked) if is_conversation else marked
    stored = load_ids(run, place, split, sequence)
    artifact = run.artifacts["tokenizer"]
    (entry,) = artifact.manifest.entries("tokenizer")
    facts, path = artifact.manifest.facts, at_hand(artifact.path(entry))
    controls = facts.get("controls", {})
    lead = int("bos_id" in facts)
    inner = stored[lead:-1]
    found = spelled_boundaries(path, facts["kind"], inner, text, controls) if not is_conversation else None
    if found is None:
        tokenizer = _loaded(path, entry.content_sha256, facts["encoding"])
        found = (
            marked_boundaries(tokenizer, marked, tokenizer.specials)
            if is_conversation
            else boundaries(tokenizer, text, controls)
        )
    return DocumentText(text, found, stored, lead, np.array_equal(inner, found.ids))


def load_ids(
    run: RunPlaces, place: Place, split: str, sequence: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The document's tokens as the tokens step wrote them, EOS last, and BOS first if there is one."""
    tokens = run.artifacts["tokens"]
    (entry,) = (
        entry
        for entry in tokens.manifest.entries("tokens")
        if entry.path.startswith(f"{split}/") and entry.path.endswith(f"/tokens-{place.shard.number:05d}.bin")
    )
    return MegatronFile(tokens.path(entry).with_suffix("")).sequence(sequence).astype(np.int64)


def tokenizer_of(run: RunPlaces) -> Tokenizer:
    """The one that the run encoded with."""
    artifact = run.artifacts["tokenizer"]
    (entry,) = artifact.manifest.entries("tokenizer")
    return _loaded(artifact.path(entry), entry.content_sha256, artifact.manifest.facts["encoding"])


@lru_cache(maxsize=2)
def _loaded(path: Path, sha256: str, encoding: str | None) -> Tokenizer:
    return load_tokenizer(path, sha256=sha256, encoding=encoding)


def _excerpt(text: str, start: int, end: int, is_cut: bool) -> Excerpt:
    """What is marked, with a little around it. A part of a character shows the character."""
    if start == end and is_cut:
        start = max(start - 1, 0)
    marked = text[start:end]
    if len(marked) > _SHOWN:
        marked = f"{marked[: _SHOWN // 2]} … {marked[-_SHOWN // 2 :]}"
    return Excerpt(text[max(start - _AROUND, 0) : start], marked, text[end : end + _AROUND])


ELSEWHERE = "the history of this document is in the run that the build was taken from, which is not here"


class BuildSplit(NamedTuple):
    """One split of a build, and the run around it, if it is there."""

    build: Artifact
    split: str  # "." where the build has one and no directory for it
    run: RunPlaces | None

    @property
    def name(self) -> str:
        return self.build.manifest.step

    @property
    def rows(self) -> int:
        entry = entry_of(self.build, self.split, "index")
        return entry.rows if entry is not None else 0


class Traced(NamedTuple):
    """Columns [start, end) of a row, and what they are."""

    build: str
    split: str
    row: int
    start: int
    end: int
    source: str | None = None  # None: padding
    doc_id: str | None = None
    tokens: tuple[int, int] = (0, 0)  # of the document, [first, stop)
    document_tokens: int | None = None  # with the one that ends it
    ids: tuple[int, ...] = ()  # of one column
    ends_document: bool | None = None
    stretch: Stretch | None = None
    place: Json | None = None
    origin: Json | None = None
    history: History | None = None
    note: str | None = None

    def as_json(self) -> Json:
        stretch = self.stretch
        return {
            **self._asdict(),
            "tokens": list(self.tokens),
            "ids": list(self.ids),
            "stretch": {**stretch._asdict(), "excerpt": stretch.excerpt._asdict()} if stretch else None,
            "history": self.history.as_json() if self.history else None,
        }


def open_build(directory: str | Path, split: str | None = None) -> BuildSplit:
    """By the directory of a build, or of one split of it."""
    directory = Path(directory)
    for build, named in ((directory, split), (directory.parent, split or directory.name)):
        found = open_artifact(build)
        if found is None:
            continue
        if found.manifest.kind == "run":
            raise _not_a_build(directory, found)
        if found.manifest.kind == "build":
            splits = splits_of(found)
            chosen = find_split(named, splits) or named if named is not None else splits[0]
            if chosen not in splits and splits != ["."]:
                raise InputError(
                    f"has no split called {chosen}", where=str(build), next=f"one of: {', '.join(splits)}"
                )
            return BuildSplit(found, chosen if chosen in splits else ".", _run_around(found))
    raise StorageError(
        "is not a build", where=str(directory), next="give a build of a run, such as out/NAME/build/rows"
    )


def _not_a_build(directory: Path, run: Artifact) -> InputError:
    paths = [entry.path for entry in run.manifest.entries("manifest")]
    names = ", ".join(str(Path(path).parent) for path in paths if path.startswith("build/"))
    return InputError(
        "is a run, not a build",
        where=str(directory),
        next=f"give one of its builds: {names}" if names else "it has no build: run the recipe to its end",
    )


def _run_around(build: Artifact) -> RunPlaces | None:
    """The run that the build lies in and belongs to."""
    out = build.directory.resolve().parents[1]
    if build.directory.resolve().parent.name != "build" or not (out / "ingest").is_dir():
        return None
    try:
        run = open_places(out)
    except TokmillError:
        return None
    own = run.artifacts.get(build.manifest.step)
    return run if own is not None and own.manifest.identity == build.manifest.identity else None


def find_offset(found: BuildSplit, token: int) -> tuple[int, int]:
    """Row and column of a token of tokens.bin, or of the arrays of another format that has documents end to
    end, counted from 0."""
    documents = open_end_to_end(found.build, found.split)
    if documents is None:
        raise InputError(
            f"a build of the format {found.build.manifest.config['format']} has no tokens.bin",
            where=str(found.build.directory),
            next="give a row and a column (`--row`, `--column`)",
        )
    if not 0 <= token < documents.tokens:
        raise InputError(
            f"has no token {token:,}",
            where=str(documents.first_array),
            next=f"it has {documents.tokens:,}, counted from 0",
        )
    return documents.find(token)


def trace_row(found: BuildSplit, row: int, column: int | None = None) -> list[Traced]:
    """What the columns of a row are, or one of them."""
    if not 0 <= row < found.rows:
        raise InputError(
            f"{found.split} has no row {row:,}",
            where=str(found.build.directory),
            next=f"it has {found.rows:,}, counted from 0",
        )
    entry = entry_of(found.build, found.split, "index")
    assert entry is not None, "every build has an index"
    spans = find_row(found.build.path(entry), row).docs
    if column is None:
        return [_traced(found, row, span, span.start, span.end) for span in spans]
    for span in spans:
        if span.start <= column < span.end:
            return [_traced(found, row, span, column, column + 1)]
    length = found.build.manifest.config["pack"].get("length")
    if length is None or not 0 <= column < length:
        width = length or max((span.end for span in spans), default=0)
        raise InputError(
            f"row {row:,} has no column {column:,}",
            where=str(found.build.directory),
            next=f"it has {width:,}, counted from 0",
        )
    return [Traced(found.name, found.split, row, column, column + 1, note="padding")]


def _traced(found: BuildSplit, row: int, span: DocumentSpan, start: int, end: int) -> Traced:
    first = span.offset + start - span.start
    told = Traced(
        found.name,
        found.split,
        row,
        start,
        end,
        span.source,
        span.doc_id,
        (first, first + end - start),
        note=ELSEWHERE,
    )
    if found.run is None:
        return told
    located = _locate(found, found.run, row, span)
    if located is None:
        return told._replace(note="the run around this build does not know the document any more")
    place, sequence = located
    document = load_document(found.run, place, found.split, sequence, load_clean_text(found.run, place))
    history = history_of(found.run, place, span.doc_id)
    stop = told.tokens[1]
    return told._replace(
        document_tokens=len(document.stored),
        ids=_ids_of(document, first, stop) if end - start == 1 else (),
        ends_document=stop == len(document.stored),
        stretch=document.stretch(first, stop) if document.is_same else None,
        place={"shard": place.shard.name, "row": place.row, "sequence": sequence},
        origin=origin_of(found.run, place, history),
        history=history,
        note=None if document.is_same else "encoded again, the text has other ids: characters are not told",
    )


def _ids_of(document: DocumentText, first: int, stop: int) -> tuple[int, ...]:
    """None of what ends the document."""
    ids: list[int] = document.stored[first : min(stop, len(document.stored) - 1)].tolist()
    return tuple(ids)


def _locate(found: BuildSplit, run: RunPlaces, row: int, span: DocumentSpan) -> tuple[Place, int] | None:
    """The document by position. Where several share the id, it is the one whose tokens meet this row here."""
    named = [
        (place, sequence)
        for place in run.find(span.doc_id, span.source)
        if (sequence := run.sequence_of(place, found.split)) is not None
    ]
    if len(named) == 1:  # the order of a mixture, 80 MB for ten million documents, is not read
        return named[0]
    for place, sequence in named:
        for turn in run.turns(found.name, found.split).of(place.shard.number, sequence):
            meetings = places_in(found.build, found.split, turn)
            if ((meetings.row == row) & (meetings.start == span.start)).any():
                return place, sequence
    return None


def origin_of(run: RunPlaces, place: Place, history: History) -> Json:
    manifest = run.artifacts[f"ingest/{place.shard.source}"].manifest
    hub = manifest.config.get("hub")
    clean = history.clean or {}
    told: Json = {
        "source": place.shard.source,
        "file": history.ingest.get("file"),
        "dataset": hub["asked"]["dataset"] if hub else None,
        "revision": hub["revision"] if hub else None,
        "license": clean.get("license") or history.ingest.get("license_tag"),
        "language": clean.get("language"),
    }
    if not hub:
        told["file_sha256"] = manifest.inputs.get(f"file {told['file']}")
    return told


class TracedDocument(NamedTuple):
    source: str
    doc_id: str
    outcome: str
    origin: Json | None = None
    history: History | None = None  # None: it never was a document, or was taken down
    tokens: Json | None = None
    builds: tuple[Json, ...] = ()
    missing: tuple[str, ...] = ()  # steps that a run which was cut short did not come to

    def as_json(self) -> Json:
        return {
            **self._asdict(),
            "history": self.history.as_json() if self.history else None,
            "builds": list(self.builds),
            "missing": list(self.missing),
        }


@short_repr
class Trace(NamedTuple):
    """The documents behind a row or a column of a build; or every document of a name in a run."""

    documents: list[Traced] | list[TracedDocument]
    place: Json  # build, split, row and column; empty of a run

    def as_json(self) -> Json:
        return {**self.place, "documents": [document.as_json() for document in self.documents]}


def trace(
    directory: str | Path,
    *,
    row: int | None = None,
    column: int | None = None,
    offset: int | None = None,
    split: str | None = None,
    doc_id: str | None = None,
    source: str | None = None,
) -> Trace:
    """The characters behind a `row`, one `column` of it, or an `offset` in the tokens of a build of documents
    end to end, and their documents' histories; or where in a run the tokens of `doc_id` are. Of several
    documents of that name, in the order of the corpus; then records and documents that are not there."""
    if [row, offset, doc_id].count(None) != 2:
        raise RecipeError(
            "needs one of --row, --offset and --doc-id",
            where="tokmill trace",
            next="see `tokmill trace --help`",
        )
    if doc_id is not None:
        run = open_places(directory)
        return Trace([_traced_document(run, told) for told in tell_histories(run, doc_id, source)], {})
    found = open_build(directory, split)
    if offset is not None:
        row, column = find_offset(found, offset)
    assert row is not None, "one of them is given"
    place = {"build": found.name, "split": found.split, "row": row, "column": column}
    return Trace(trace_row(found, row, column), place)


def _traced_document(run: RunPlaces, told: Told) -> TracedDocument:
    place, history = told
    found = TracedDocument(history.source, history.doc_id, history.outcome, missing=tuple(run.missing))
    if place is None:
        return found._replace(origin={"source": history.source, **history.ingest})
    return found._replace(
        origin=origin_of(run, place, history),
        history=history._replace(tokens=None, builds=()),  # beside it, not in it
        tokens=history.tokens,
        builds=history.builds,
    )

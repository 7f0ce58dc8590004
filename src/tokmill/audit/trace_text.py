"""The text of a document as it was encoded, and the characters that a stretch of its tokens was read from.

    documents-<shard> ─ edits-<shard> laid over ─ trims-<shard> laid over ─ ids that spell it ─> bounds of every token
                                                                          └ or encoded again ┘

What is stored must spell the text, or be what the text is encoded to: what is said of characters is proven, or not said.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tokmill.audit.opened import numbers_in
from tokmill.audit.places import Place, RunPlaces
from tokmill.formats.megatron import MegatronFile
from tokmill.storage.parquet import load_table
from tokmill.tokenizers.boundaries import boundaries, characters_between
from tokmill.tokenizers.load import load_tokenizer
from tokmill.tokenizers.protocol import Boundaries, Tokenizer
from tokmill.tokenizers.spelling import spelled_boundaries

_AROUND = 60  # characters of the text on either side of an excerpt
_SHOWN = 400  # of what is marked


class Excerpt(NamedTuple):
    before: str
    marked: str
    after: str


class Stretch(NamedTuple):
    """Characters [start, end) of the cleaned text, and bytes; is_cut: a token ends inside a character there."""

    start: int
    end: int
    first_byte: int
    end_byte: int
    is_cut: bool
    excerpt: Excerpt


class DocumentText(NamedTuple):
    text: str
    bounds: Boundaries
    tokens: int  # with the one that ends it
    is_same: bool  # encoded again, it has the ids that are stored

    def stretch(self, first: int, stop: int) -> Stretch:
        """Of the document's tokens [first, stop); the last of all ends the document and has no character."""
        data, last = self.text.encode(), len(self.bounds.ids)
        begin, end = (
            int(self.bounds.bounds[at]) if at < last else len(data) for at in (min(first, last), stop)
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
    """As cleaning and deduplication left it."""
    shard = place.shard
    text = str(run.document(place)["text"])
    layers = (
        (run.artifacts.get(f"clean/{shard.source}"), f"edits-{shard.key}.parquet"),
        (run.artifacts.get("dedup"), f"trims-{shard.number:05d}.parquet"),
    )
    for artifact, path in layers:
        if artifact is not None and any(entry.path == path for entry in artifact.manifest.files):
            table = load_table(artifact.directory / path, ["row", "text"])
            at = np.flatnonzero(numbers_in(table, "row") == place.row)
            text = str(table.column("text")[int(at[0])]) if len(at) else text
    return text


def load_document(run: RunPlaces, place: Place, split: str, sequence: int) -> DocumentText:
    text = load_clean_text(run, place)
    stored = load_ids(run, place, split, sequence)
    artifact = run.artifacts["tokenizer"]
    (entry,) = artifact.manifest.entries("tokenizer")
    facts, path = artifact.manifest.facts, artifact.path(entry)
    controls = facts.get("controls", {})
    found = spelled_boundaries(path, facts["kind"], stored[:-1], text, controls)
    if found is None:
        found = boundaries(_loaded(path, entry.content_sha256, facts["encoding"]), text, controls)
    return DocumentText(text, found, len(stored), np.array_equal(stored[:-1], found.ids))


def load_ids(
    run: RunPlaces, place: Place, split: str, sequence: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The document's tokens as the tokens step wrote them, EOS last."""
    tokens = run.artifacts["tokens"]
    (entry,) = (
        entry
        for entry in tokens.manifest.entries("tokens")
        if entry.path.startswith(f"{split}/") and entry.path.endswith(f"/tokens-{place.shard.number:05d}.bin")
    )
    return MegatronFile(tokens.path(entry).with_suffix("")).sequence(sequence).astype(np.int64)


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

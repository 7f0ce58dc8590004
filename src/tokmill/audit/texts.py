"""Texts of documents by their places: as cleaned, and without the lines of their site, as near duplicates are
compared; or, of who was dropped before, as received and redacted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from tokmill.artifacts.directory import Artifact
from tokmill.clean.edits import apply_edits
from tokmill.clean.examine import CleanOptions
from tokmill.clean.redaction import redact_texts
from tokmill.schema import one_piece
from tokmill.storage.on_demand import at_hand
from tokmill.storage.tables import load_table
from tokmill.tokenizers.regions import without_marks

EXCERPT_CHARS = 480


class Place(NamedTuple):
    shard: str  # "<source>/<key>"
    row: int


class Text(NamedTuple):
    doc_id: str
    text: str
    chars: int  # of all of it


Layer = Literal["edits", "stripped"]


def load_texts(
    artifacts: Mapping[str, Artifact],
    places: Iterable[Place],
    max_chars: int | None = EXCERPT_CHARS,
    *,
    until: Layer = "stripped",
) -> dict[Place, Text]:
    """Beginnings of documents (None: all of them), by shard, so that each is opened once. `until` the edits
    of cleaning: as they were measured."""
    by_shard: dict[str, set[int]] = {}
    for place in places:
        by_shard.setdefault(place.shard, set()).add(place.row)
    loaded: dict[Place, Text] = {}
    for shard in sorted(by_shard):
        rows = sorted(by_shard[shard])
        ids, texts = _load_rows(artifacts, shard, np.array(rows), until)
        for row, doc_id, text in zip(rows, ids, texts, strict=True):
            text = without_marks(text)
            loaded[Place(shard, row)] = Text(doc_id, text[:max_chars], len(text))
    return loaded


def _load_rows(
    artifacts: Mapping[str, Artifact], shard: str, rows: Any, until: Layer
) -> tuple[list[str], list[str]]:
    """As cleaned; who was dropped as received, but redacted:
    what was not to be kept is not to be shown either."""
    source, _, key = shard.rpartition("/")
    path = artifacts[f"ingest/{source}"].directory / f"documents-{key}.parquet"
    documents = load_table(path, ["doc_id", "text"]).take(pa.array(rows))
    texts = one_piece(documents.column("text"))
    cleaned = artifacts.get(f"clean/{source}")
    if cleaned is not None:
        redact = cleaned.manifest.options(CleanOptions).redact
        if redact:
            redacted = redact_texts(texts, redact)
            texts = apply_edits(texts, redacted.rows, redacted.texts)
        texts = _edited(cleaned.directory / f"edits-{key}.parquet", rows, texts)
    dedup = artifacts.get("dedup") if until == "stripped" else None
    if dedup is not None and dedup.manifest.entries("stripped"):
        number = dedup.manifest.facts["shards"].index(shard)
        texts = _edited(dedup.directory / f"stripped-{number:05d}.parquet", rows, texts)
    return documents.column("doc_id").to_pylist(), texts.to_pylist()


def _edited(path: Any, rows: Any, texts: Any) -> Any:
    """The texts with those rows that a step changed and kept."""
    if not at_hand(path).is_file():
        return texts
    edits = load_table(path, ["row", "text"])
    edited = np.asarray(edits.column("row"))
    at = np.searchsorted(rows, edited)
    is_wanted = (at < len(rows)) & (rows[np.minimum(at, len(rows) - 1)] == edited)
    return apply_edits(texts, at[is_wanted], one_piece(edits.column("text").filter(pa.array(is_wanted))))

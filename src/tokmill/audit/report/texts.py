"""Beginnings of documents, to read: by shard, so that each is opened once.

A document that cleaning kept is shown as cleaned; one that it dropped as received, but with the redactions of
the recipe: what was not to be kept is not to be shown either.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tokmill.audit.report.found import Found
from tokmill.clean.normalize import apply_edits
from tokmill.clean.redact import redact_texts
from tokmill.schema import one_piece
from tokmill.storage.parquet import load_table

EXCERPT_CHARS = 480


class Place(NamedTuple):
    shard: str  # "<source>/<key>"
    row: int


class Text(NamedTuple):
    doc_id: str
    text: str
    chars: int  # of all of it


def load_texts(found: Found, places: Iterable[Place], max_chars: int = EXCERPT_CHARS) -> dict[Place, Text]:
    by_shard: dict[str, set[int]] = {}
    for place in places:
        by_shard.setdefault(place.shard, set()).add(place.row)
    loaded: dict[Place, Text] = {}
    for shard in sorted(by_shard):
        rows = sorted(by_shard[shard])
        ids, texts = _load_rows(found, shard, np.array(rows))
        for row, doc_id, text in zip(rows, ids, texts, strict=True):
            loaded[Place(shard, row)] = Text(doc_id, text[:max_chars], len(text))
    return loaded


def _load_rows(found: Found, shard: str, rows: Any) -> tuple[list[str], list[str]]:
    source, _, key = shard.rpartition("/")
    documents = load_table(
        found.artifacts[f"ingest/{source}"].directory / f"documents-{key}.parquet", ["doc_id", "text"]
    ).take(pa.array(rows))
    texts = one_piece(documents.column("text"))
    cleaned = found.artifacts.get(f"clean/{source}")
    if cleaned is not None:
        redact = cleaned.manifest.config.get("redact")
        if redact:
            redacted = redact_texts(texts, redact)
            texts = apply_edits(texts, redacted.rows, redacted.texts)
        texts = _edited(cleaned.directory / f"edits-{key}.parquet", rows, texts)
    return documents.column("doc_id").to_pylist(), texts.to_pylist()


def _edited(path: Any, rows: Any, texts: Any) -> Any:
    """The texts of those rows that cleaning changed and kept."""
    if not path.is_file():
        return texts
    edits = load_table(path, ["row", "text"])
    edited = np.asarray(edits.column("row"))
    at = np.searchsorted(rows, edited)
    is_wanted = (at < len(rows)) & (rows[np.minimum(at, len(rows) - 1)] == edited)
    return apply_edits(texts, at[is_wanted], one_piece(edits.column("text").filter(pa.array(is_wanted))))

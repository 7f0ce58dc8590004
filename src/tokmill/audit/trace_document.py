"""From a document to its tokens: where they are in every build, or where and why it left.

run, doc_id ─ history (why.py), with its tokens ─ origin: file and digest, or dataset and revision; licence, language
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tokmill.audit.places import RunPlaces, open_places
from tokmill.audit.trace import origin_of
from tokmill.audit.why import History, Told, tell_histories
from tokmill.manifest import Json


class TracedDocument(NamedTuple):
    source: str
    doc_id: str
    fate: str
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


def trace_document(directory: str | Path, doc_id: str, source: str | None = None) -> list[TracedDocument]:
    """Every document of that name, in the order of the corpus; then records and documents that are not there."""
    run = open_places(directory)
    return [_traced(run, told) for told in tell_histories(run, doc_id, source)]


def _traced(run: RunPlaces, told: Told) -> TracedDocument:
    place, history = told
    found = TracedDocument(history.source, history.doc_id, history.fate, missing=tuple(run.missing))
    if place is None:
        return found._replace(origin={"source": history.source, **history.ingest})
    return found._replace(
        origin=origin_of(run, place, history),
        history=history._replace(tokens=None, builds=()),  # beside it, not in it
        tokens=history.tokens,
        builds=history.builds,
    )

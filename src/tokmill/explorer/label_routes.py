"""Labels over HTTP: read, given, taken back; samples to label, and how right a rule is by what was said.

    GET  labels        all of them, or those of one document
    POST labels        {"id", "source" or "place", "label", "tags", "sample"}; a label of null is taken back
    GET  label_sample  documents without a label
    GET  precision     of a rule, with its interval

An answer to POST comes after the fsync: what the page says is saved is on the disk.
"""

from __future__ import annotations

import getpass
import threading
from collections.abc import Callable

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tokmill.artifacts.manifest import Json
from tokmill.audit.why import whole_history
from tokmill.errors import InputError
from tokmill.explorer.document import as_received, as_trained
from tokmill.explorer.label_samples import draw_sample, find_rule, labels_of_dropped
from tokmill.explorer.labels import Label, LabelStore, now, precision_of, sha256_of
from tokmill.explorer.site import Named, Site

MAX_SAMPLE = 500
_SAMPLES = ("random", "border", "disagreement")


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    label: str | None
    id: str | None = None
    place: str | None = None
    source: str | None = None
    tags: tuple[str, ...] = ()
    sample: str | None = None


class Desk:
    """The labels of a site, and the positions of documents that have one, which take long to find."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._store: LabelStore | None = None
        self._positions: dict[tuple[str | None, str], int | None] = {}
        self._lock = threading.Lock()

    @property
    def store(self) -> LabelStore:
        """Opened when it is first asked for: a file that cannot be read is an answer, and no end."""
        if self.site.labels is None:
            raise InputError(
                "labels are not kept",
                where=self.site.location,
                next="start again with `tokmill explore RUN --labels FILE`",
            )
        with self._lock:
            if self._store is None:
                self._store = LabelStore(self.site.labels)
            return self._store

    def list(self, id: str | None, source: str | None) -> Json:
        labels = self.store.load()
        shown = [one for one in labels if id in (None, one.doc_id) and source in (None, one.source)]
        return {
            "labels": [one.as_json() for one in shown],
            "count": len(labels),
            "path": str(self.store.path),
        }

    def give(self, asked: Asked) -> Json:
        named = self.site.find(id=asked.id, place=asked.place, source=asked.source)[0]
        source = named.place.shard.source
        if asked.label is None:
            return {"saved": self.store.remove(named.doc_id, source)}
        sample = asked.sample if asked.sample in _SAMPLES else None
        digest = sha256_of(self._text(named))
        said = Label(named.doc_id, source, asked.label, asked.tags, who(), now(), digest, sample)
        return {"saved": self.store.save(said), "text_sha256": digest}

    def _text(self, named: Named) -> str:
        """As it is shown to who labels it: what is trained on, or what was received where nothing is."""
        with self.site.lock:
            history = whole_history(self.site.run, named.place, named.doc_id)
            trained = as_trained(self.site, named.place, history)
            return as_received(self.site, named.place) if trained is None else trained

    def sample(self, kind: str, rule: str | None, count: int, seed: int) -> Json:
        known = {one.key for one in self.store.load()}
        drawn = draw_sample(
            self.site,
            kind,
            rule or None,
            min(count, MAX_SAMPLE),
            seed,
            lambda told: (told["source"], told["id"]) in known or (None, told["id"]) in known,
        )
        return {"kind": kind, "rule": rule, "documents": drawn}

    def precision(self, name: str | None) -> Json:
        rule = find_rule(self.site, name)
        labels = self.store.load()
        placed = [(one, position) for one in labels if (position := self._position(one)) is not None]
        told = precision_of(labels_of_dropped(self.site, rule, [(one.label, at) for one, at in placed]))
        drawn = [(one.label, at) for one, at in placed if one.sample == "random"]
        return {
            "rule": rule.name,
            **told.as_json(),
            "random": precision_of(labels_of_dropped(self.site, rule, drawn)).as_json(),
        }

    def _position(self, label: Label) -> int | None:
        """None: the run has no such document. Labels may be of an earlier one."""
        if label.key not in self._positions:
            with self.site.lock:
                found = self.site.run.find(label.doc_id, label.source)
            self._positions[label.key] = self.site.position(found[0]) if found else None
        return self._positions[label.key]


def who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        return ""


def routes(site: Site) -> list[Route]:
    desk = Desk(site)

    def listed(request: Request) -> Json:
        return desk.list(request.query_params.get("id"), request.query_params.get("source"))

    def sampled(request: Request) -> Json:
        asked = request.query_params
        count, seed = _whole(asked.get("count"), 25, "count"), _whole(asked.get("seed"), 0, "seed")
        return desk.sample(asked.get("kind", "random"), asked.get("rule"), count, seed)

    def measured(request: Request) -> Json:
        return desk.precision(request.query_params.get("rule"))

    async def given(request: Request) -> Response:
        try:
            asked = msgspec.json.decode(await request.body(), type=Asked)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InputError(
                f"is no label: {error}", where="labels", next="send id or place, label and tags"
            ) from None
        return _answer(await run_in_threadpool(desk.give, asked))

    return [
        Route("/labels", given, methods=["POST"]),
        Route("/labels", _asking(listed), methods=["GET"]),
        Route("/label_sample", _asking(sampled), methods=["GET"]),
        Route("/precision", _asking(measured), methods=["GET"]),
    ]


def _asking(act: Callable[[Request], Json]) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        return _answer(act(request))

    return endpoint


def _answer(told: Json) -> Response:
    return Response(msgspec.json.encode(told), media_type="application/json")


def _whole(text: str | None, default: int, where: str) -> int:
    if not text:
        return default
    if not text.isdecimal() or len(text) > 12:
        raise InputError(f"{text[:40]} is no whole number", where=where, next="0 or more")
    return int(text)

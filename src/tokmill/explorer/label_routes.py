"""Labels over HTTP: read, given, taken back; samples to label, and how right a rule is by what was said.

    GET  labels        all of them, or those of one document
    POST labels        {"id", "source" or "place", "label", "tags", "sample"}; a label of null is taken back
    GET  label_sample  documents without a label
    GET  precision     of a rule, with its interval

An answer to POST comes after the fsync: what the page says is saved is on the disk.
"""

from __future__ import annotations

import getpass
import itertools
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
from tokmill.explorer.label_samples import draw_sample, find_rule, labels_of_dropped, rules_of
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
        self._positions: dict[tuple[str | None, str, str | None], tuple[int, ...]] = {}
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

    def told(self, id: str | None, source: str | None, place: str | None) -> Json:
        """All; by an id, and a source; or the one of a document."""
        labels = self.store.load()
        if place is not None:
            (named,) = self.site.find(place=place)
            own = self._label_of(named)
            shown = [] if own is None else [own]
        else:
            wanted = [one for one in labels if id in (None, one.doc_id)]
            shown = [one for one in wanted if source is None or one.source in (None, source)]
        return {
            "labels": [one.as_json() for one in shown],
            "count": len(labels),
            "path": str(self.store.path),
        }

    def give(self, asked: Asked) -> Json:
        """Refused where the file could not say which document it is of; a label of the very text is taken
        back."""
        named = self.site.find(id=asked.id, place=asked.place, source=asked.source)[0]
        source = named.place.shard.source
        is_taken_back = asked.label is None and self._label_of(named) is not None
        if not is_taken_back and self._differ(self._find(named.doc_id, source)):
            raise InputError(
                f"two documents of {source} have this id, and a recipe learns by source and id: "
                "it would take a label of the one for the other's too",
                where=named.name,
                next="give them ids of their own in the source, and run the recipe again",
            )
        if asked.label is None:
            return {"saved": self.store.remove(named.doc_id, source)}
        digest = sha256_of(self._text(named))
        said = Label(
            *(named.doc_id, source, asked.label, asked.tags, who(), now(), digest, self._sample(asked.sample))
        )
        return {"saved": self.store.save(said), "text_sha256": digest}

    def _sample(self, sample: str | None) -> str | None:
        """One that there is."""
        kind, colon, rule = (sample or "").partition(":")
        if colon:
            return sample if kind == "random" and rule in rules_of(self.site) else None
        return sample if sample in _SAMPLES else None

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
        sample = f"{kind}:{rule}" if kind == "random" and rule else kind
        return {"kind": kind, "rule": rule, "sample": sample, "documents": drawn}

    def precision(self, name: str | None) -> Json:
        """`random` is of documents that were drawn from all, or from those that this rule drops."""
        rule = find_rule(self.site, name)
        placed = {  # one for each document: what is said of any source's comes first, and gives way
            position: one
            for one in sorted(self.store.load(), key=lambda one: one.source is not None)
            for position in self._positions_of(one)
        }
        drawn = {at: one for at, one in placed.items() if one.sample in ("random", f"random:{rule.name}")}
        told, random = (
            precision_of(labels_of_dropped(self.site, rule, [(one.label, at) for at, one in own.items()]))
            for own in (placed, drawn)
        )
        return {"rule": rule.name, **told.as_json(), "random": random.as_json()}

    def _label_of(self, named: Named) -> Label | None:
        source = named.place.shard.source
        label = self.store.of(named.doc_id, source)
        if label is None or not self._differ(self._find(named.doc_id, source)):
            return label
        return label if self.site.position(named.place) in self._positions_of(label) else None

    def _positions_of(self, label: Label) -> tuple[int, ...]:
        """One of each source; none where the run has no such document, or others with the same id, and none
        of them with the text that was looked at. Labels may be of an earlier run."""
        key = (*label.key, label.text_sha256)
        if key not in self._positions:
            positions = []
            found = self._find(label.doc_id, label.source)
            for _, group in itertools.groupby(found, lambda named: named.place.shard.source):
                own = list(group)
                if self._differ(own):
                    own = [one for one in own if sha256_of(self._text(one)) == label.text_sha256]
                positions += [self.site.position(one.place) for one in own[:1]]
            self._positions[key] = tuple(positions)
        return self._positions[key]

    def _find(self, doc_id: str, source: str | None) -> list[Named]:
        with self.site.lock:
            return [Named(place, doc_id) for place in self.site.run.find(doc_id, source)]

    def _differ(self, found: list[Named]) -> bool:
        """Whether they have other texts: a label of one is true of all that say the same."""
        with self.site.lock:
            texts = (as_received(self.site, one.place) for one in found)
            return len(found) > 1 and any(text != other for text, other in itertools.pairwise(texts))


def who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        return ""


def routes(site: Site) -> list[Route]:
    desk = Desk(site)

    def listed(request: Request) -> Json:
        asked = request.query_params
        return desk.told(asked.get("id"), asked.get("source"), asked.get("place"))

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

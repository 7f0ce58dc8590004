"""What the application knows of the run that it shows: opened once, read as it is asked for.

site.run        places and artifacts, as `tokmill why` and `trace` read them
site.columns    one value per document; site.queries asks them
site.find       a document by its place or its id
site.lock       around what keeps the last thing it read (`RunPlaces`): one request at a time
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from tokmill.artifacts.directory import open_artifact
from tokmill.artifacts.manifest import Json
from tokmill.audit.places import Place, RunPlaces, open_places
from tokmill.errors import InputError
from tokmill.explorer.columns import Columns
from tokmill.explorer.query import Queries


class Named(NamedTuple):
    """A document: where it is, and what people call it."""

    place: Place
    doc_id: str

    @property
    def name(self) -> str:
        return place_name(self.place)

    def as_json(self) -> Json:
        return {"id": self.doc_id, "place": self.name, "source": self.place.shard.source}


def place_name(place: Place) -> str:
    return f"{place.shard.name}:{place.row}"


class Site:
    def __init__(
        self,
        directory: Path,
        *,
        recipe: Path | None = None,
        labels: Path | None = None,
        compare: str | None = None,
        url: str | None = None,
    ) -> None:
        self.directory = directory
        self.url = url  # of a published run
        self.location = url or str(directory)  # as the user named it
        self.recipe = recipe  # that may be changed; None: nothing may
        self.labels = labels  # the file that labels are written to
        self.compare = compare
        self.other = None if compare is None else open_places(compare)  # now: one that is none is told
        self.run: RunPlaces = open_places(directory)
        self.columns = Columns(self.run)
        self.queries = Queries(self.columns)
        self.lock = threading.RLock()
        self.ended = threading.Event()  # what works in a thread may stop
        self._questions, self._counting = 0, threading.Lock()
        self._threads: list[threading.Thread] = []
        self._numbers = {shard.name: at for at, shard in enumerate(self.run.shards)}

    def start(self, act: Callable[[], None], name: str) -> threading.Thread:
        """In a thread; what takes long looks at `ended` now and then."""

        def work() -> None:
            try:
                act()
            except RuntimeError:
                if threading.main_thread().is_alive():  # or else the interpreter ends, and no pool takes work
                    raise

        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads = [one for one in self._threads if one.is_alive()] + [thread]
        thread.start()
        return thread

    def end(self) -> None:
        """Returns when no thread is at work: one that is inside DuckDB or Arrow when the interpreter ends
        aborts the process."""
        self.ended.set()
        for thread in self._threads:
            thread.join()

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Around each answer: what is done ahead of questions waits meanwhile."""
        with self._counting:
            self._questions += 1
        try:
            yield
        finally:
            with self._counting:
                self._questions -= 1

    @property
    def is_answering(self) -> bool:
        return self._questions > 0

    @cached_property
    def name(self) -> str:
        root = open_artifact(self.directory)
        return root.manifest.step if root is not None else self.directory.resolve().name

    @property
    def writable(self) -> bool:
        return self.recipe is not None

    def find(
        self, *, id: str | None = None, place: str | None = None, source: str | None = None
    ) -> list[Named]:
        """By its place, the one; by its id, every document of that name, in the order of the corpus."""
        with self.lock:
            if place is not None:
                return [self._placed(place)]
            if not id:
                raise InputError("no document is named", where="id", next="ask with place= or id=")
            found = [Named(one, id) for one in self.run.find(id, source)]
        if not found:
            raise InputError(
                f"no document is called {id}", where=self.location, next="look for it in the table"
            )
        return found

    def _placed(self, name: str) -> Named:
        shard, _, row = name.rpartition(":")
        at = self._numbers.get(shard)
        if (
            at is None
            or not row.isdecimal()
            or len(row) > 12
            or int(row) >= self.run.shards[at].documents.rows
        ):
            raise InputError(
                f"no document is at {name[:200]}", where=self.location, next="places are SHARD:ROW"
            )
        place = Place(self.run.shards[at], int(row))
        return Named(place, self.columns.rows("doc_id", [self.position(place)])[0])

    def position(self, place: Place) -> int:
        return self.columns.position_of(place.shard.name, place.row)

    def at(self, position: int) -> Place:
        shard, row = self.columns.place_of(position)
        return Place(shard, row)

    def named(self, positions: list[int]) -> list[Named]:
        ids = self.columns.rows("doc_id", positions)
        return [Named(self.at(position), doc_id) for position, doc_id in zip(positions, ids, strict=True)]

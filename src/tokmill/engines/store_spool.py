"""A spool in an object store, for nodes that share nothing else.

    <url>/pulse                               {"beat": 17}, written over
    <url>/prepare.json
    <url>/0003-0007/orders/000000, 000001 …   driver ──> job     lines of JSON; one object per time of writing
    <url>/0003-0007/replies/000000 …          job ──> driver     likewise

Objects of a box are numbered, so who reads asks for the next number, and who writes creates it on the
condition that there is none: a job that was requeued finds that its box has a first reply, and two of them at
once find out at their first word. A listing is asked for only to remove what it tells.

A look is a request. So it is taken at once after news, and then ever more seldom:

    time since the last news   x 0.15, at least 0.1 s, at most 5 s

which is 7 looks in the first 0.7 s, 14 more until 5 s, 13 more until 33 s, and then 12 a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import msgspec

from tokmill.engines.mailbox import (
    PREPARE,
    Box,
    Found,
    FromJob,
    Gone,
    Mailbox,
    ToJob,
    decode_lines,
    encode_lines,
    tried,
)
from tokmill.errors import StorageError, TokmillError
from tokmill.storage.cloud import patiently
from tokmill.storage.location import ObjectUrl
from tokmill.storage.objects import Store, open_store
from tokmill.storage.traffic import in_context

_PULSE = "pulse"
_NAPS = (0.1, 5.0)
_NAP_SHARE = 0.15  # of the time without news: what is waited for is late by that share of its time, at most
_AT_A_TIME = 16
_DELETED_AT_A_TIME = 1000

T = TypeVar("T")


class Taken(Exception):
    """Somebody else has written under that number."""


class StoreBox(Generic[T]):
    def __init__(self, store: Store, url: ObjectUrl, kinds: Any) -> None:
        self._store, self._url = store, url
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kinds)
        self._next = 0
        self._news_at = self._look_at = time.monotonic()

    def append(self, messages: Iterable[msgspec.Struct]) -> None:
        data, key = encode_lines(messages), self._key()
        if patiently(lambda: self._store.create(key, data)) is None:
            raise Taken(key)
        self._next += 1

    def read(self) -> list[T]:
        messages: list[T] = []
        while found := self._take():
            messages += found
        return messages

    def look(self) -> list[T]:
        if not self.is_due():
            return []
        messages = self._take()
        now = time.monotonic()
        if messages:
            self.hurry()
        else:
            nap = (now - self._news_at) * _NAP_SHARE
            self._look_at = now + min(max(nap, _NAPS[0]), _NAPS[1])
        return messages

    def is_due(self) -> bool:
        return time.monotonic() >= self._look_at

    def hurry(self) -> None:
        self._news_at = self._look_at = time.monotonic()

    def _take(self) -> list[T]:
        """The next object, which is never empty; none if it is not there."""
        key = self._key()
        found = patiently(lambda: self._store.load(key))
        if found is None:
            return []
        messages = decode_lines(found.data, self._decoder, key)
        self._next += 1
        return messages

    def _key(self) -> str:
        return self._url.child(f"{self._next:06}").key


class StoreSpool:
    pulse_seconds = 15.0
    beat_seconds = 20.0
    orphan_seconds = 90.0
    pending_nap = 0.1  # squeue tells when they begin
    carries_logs = True

    def __init__(self, url: ObjectUrl) -> None:
        self._url, self._store = url, open_store(url)
        self.address = str(url)
        self._threads: ThreadPoolExecutor | None = None

    def make(self, batch: int, index: int) -> Mailbox:
        """There is nothing to make: a number that is not there yet can be asked for."""
        return self.mailbox(batch, index)

    def mailbox(self, batch: int, index: int) -> Mailbox:
        url = self._url.child(f"{batch:04}-{index:04}")
        orders = StoreBox[ToJob](self._store, url.child("orders"), ToJob)
        return Mailbox(orders, StoreBox[FromJob](self._store, url.child("replies"), FromJob))

    def look(self, boxes: Sequence[Box[FromJob]]) -> list[Found[FromJob]]:
        due = [box for box in boxes if not isinstance(box, StoreBox) or box.is_due()]
        found = dict(zip(map(id, due), self._at_once(tried, due), strict=True))
        return [found.get(id(box), []) for box in boxes]

    def send(self, letters: Sequence[tuple[Box[ToJob], Sequence[ToJob]]]) -> None:
        for error in self._at_once(_sent, letters):
            if error is not None:
                raise error

    def write_prepare(self, data: bytes) -> None:
        patiently(lambda: self._store.upload(self._url.child(PREPARE).key, [data], len(data)))

    def load_prepare(self) -> bytes:
        found = patiently(lambda: self._store.load(self._url.child(PREPARE).key))
        if found is None:
            raise Gone(self.address)
        return found.data

    def write_pulse(self, beat: int) -> None:
        data = f'{{"beat": {beat}}}'.encode()
        patiently(lambda: self._store.upload(self._url.child(_PULSE).key, [data], len(data)))

    def read_pulse(self) -> bytes:
        found = patiently(lambda: self._store.load(self._url.child(_PULSE).key))
        if found is None:
            raise Gone(self.address)
        return found.data

    def remove(self) -> None:
        """The pulse first: without it the run is over for who still looks."""
        try:
            self._store.delete(self._url.child(_PULSE).key)
            keys = [meta.key for meta in self._store.list(f"{self._url.key}/")]
            for start in range(0, len(keys), _DELETED_AT_A_TIME):
                self._store.delete_all(keys[start : start + _DELETED_AT_A_TIME])
        except TokmillError:
            pass  # it is swept with the work area
        if self._threads is not None:
            self._threads.shutdown()

    def _at_once(self, act: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
        if len(items) < 2:
            return [act(item) for item in items]
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="spool")
        return list(self._threads.map(in_context(act), items))


def _sent(letter: tuple[Box[ToJob], Sequence[ToJob]]) -> TokmillError | None:
    box, messages = letter
    try:
        box.append(messages)
    except Taken as error:
        return StorageError(
            "somebody else gives orders in this mailbox",
            where=str(error),
            next="see that one run at a time has this URL, then run the same command again",
        )
    except TokmillError as error:
        return error
    return None

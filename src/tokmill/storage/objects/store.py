"""What the mill asks of an object store, and nothing more.

    head(key)                 size, etag, time; None where there is no such object
    read(key, start, end, etag)   a range of that version, or InputChanged
    load(key)                 a small object with its etag, in one request; None likewise
    create(key, data)         If-None-Match: *      ─┬─ its etag
    replace(key, data, etag)  If-Match: etag        ─┘  None: somebody else was first
    upload(key, pieces)       any size, in parts; all of it or nothing appears
    list(prefix)              whatever the server tells of it
    delete(key)               gone, or never there

A conditional write whose answer was lost is tried again by the client, and then meets itself: so the refusal of
`create` and `replace` is believed only when the object is not, byte for byte, the one that was to be written.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Protocol

from tokmill.storage.objects.cloud import open_cloud
from tokmill.storage.objects.memory import open_memory
from tokmill.storage.objects.meta import Loaded, Meta
from tokmill.storage.objects.url import ObjectUrl

_opening = threading.Lock()


class Client(Protocol):
    """One bucket of one kind of store."""

    def head(self, key: str) -> Meta | None: ...
    def load(self, key: str) -> Loaded | None: ...
    def read(self, key: str, start: int, end: int, etag: str | None) -> bytes: ...
    def put_if(self, key: str, data: bytes, etag: str | None) -> str | None: ...
    def upload(self, key: str, pieces: Iterable[bytes], size: int) -> str: ...
    def list(self, prefix: str) -> Iterator[Meta]: ...
    def delete(self, key: str) -> None: ...


class Store:
    """A bucket. Made once per process, and never sent to another: a URL is."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.head = client.head
        self.load = client.load
        self.read = client.read
        self.upload = client.upload
        self.list = client.list
        self.delete = client.delete

    def create(self, key: str, data: bytes) -> str | None:
        return self._client.put_if(key, data, None) or self._own_etag(key, data)

    def replace(self, key: str, data: bytes, etag: str) -> str | None:
        return self._client.put_if(key, data, etag) or self._own_etag(key, data)

    def _own_etag(self, key: str, data: bytes) -> str | None:
        found = self.load(key)
        return found.etag if found is not None and found.data == data else None


def open_store(url: ObjectUrl) -> Store:
    with _opening:
        return _open(url.scheme, url.bucket)


@cache
def _open(scheme: str, bucket: str) -> Store:
    return Store(open_memory(bucket) if scheme == "memory" else open_cloud(scheme, bucket))

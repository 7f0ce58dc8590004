"""Object stores, s3:// gs:// az:// memory://: what the mill asks of one, and nothing more.

    head(key)                 size, etag, time; None where there is no such object
    read(key, start, end, etag)   a range of that version, or InputChanged
    load(key)                 a small object with its etag, in one request; None likewise
    create(key, data)         If-None-Match: *      ─┬─ its etag
    replace(key, data, etag)  If-Match: etag        ─┘  None: somebody else was first
    upload(key, pieces)       any size, in parts; all of it or nothing appears
    copy(key, target)         in the store itself: no byte passes through here
    list(prefix)              whatever the server tells of it
    delete(key)               gone, or never there; delete_all(keys) in as few requests as the store can

A conditional write whose answer was lost is tried again by the client, and then meets itself: so the refusal
of `create` and `replace` is believed only when the object is not, byte for byte, the one that was to be
written.

A listing is asked for patterns and for what may be swept, never for what is published.

memory:// is fsspec's file system of this process, with conditional writes under a lock: for tests and
notebooks. `probe_store` asks whether a server keeps these promises. One that says yes where it must refuse
*pretends*: two runs could then publish over each other.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tokmill.errors import InputChanged, MissingExtra, StorageError, TokmillError, install_hint
from tokmill.storage.cloud import (
    PART_BYTES,
    Loaded,
    Meta,
    Transient,
    open_cloud,
    patiently,
    upload_requests,
    wrong_etag,
)
from tokmill.storage.traffic import count

if TYPE_CHECKING:
    from tokmill.storage.location import ObjectUrl

_opening = threading.Lock()


class Client(Protocol):
    """One bucket of one kind of store."""

    def head(self, key: str) -> Meta | None: ...
    def load(self, key: str) -> Loaded | None: ...
    def read(self, key: str, start: int, end: int, etag: str | None) -> bytes: ...
    def put_if(self, key: str, data: bytes, etag: str | None) -> str | None: ...
    def upload(self, key: str, pieces: Iterable[bytes], size: int) -> str: ...
    def copy(self, key: str, target: str) -> None: ...
    def list(self, prefix: str) -> Iterator[Meta]: ...
    def delete(self, key: str) -> None: ...
    def delete_all(self, keys: Sequence[str]) -> int: ...  # how many requests that took


class Store:
    """A bucket. Made once per process, and never sent to another: a URL is. Who was forked opens it again.
    What is asked of it is counted (tokmill.storage.traffic)."""

    def __init__(self, name: str, client: Client) -> None:
        self._name, self._client = name, client

    def head(self, key: str) -> Meta | None:
        count("head")
        return self._client.head(key)

    def load(self, key: str) -> Loaded | None:
        found = self._client.load(key)
        count("get", down=len(found.data) if found is not None else 0)
        return found

    def read(self, key: str, start: int, end: int, etag: str | None) -> bytes:
        data = self._client.read(key, start, end, etag)
        count("get", down=len(data))
        return data

    def create(self, key: str, data: bytes) -> str | None:
        """None where another object is there. S3 also refuses it for a moment while the key is being written
        or deleted (409): then it wants to be asked again."""

        def attempt() -> str | None:
            count("put", up=len(data))
            etag = self._client.put_if(key, data, None)
            if etag is not None:
                return etag
            found = self.load(key)
            if found is None:
                raise Transient(
                    "the store refuses to create this object, and there is none",
                    where=f"{self._name}/{key}",
                    next="run the same command again later: it goes on where it stopped",
                )
            return found.etag if found.data == data else None

        return patiently(attempt)

    def replace(self, key: str, data: bytes, etag: str) -> str | None:
        count("put", up=len(data))
        return self._client.put_if(key, data, etag) or self._own_etag(key, data)

    def upload(self, key: str, pieces: Iterable[bytes], size: int) -> str:
        etag = self._client.upload(key, pieces, size)
        count("put", requests=upload_requests(size), up=size)
        return etag

    def copy(self, key: str, target: str) -> None:
        count("copy")
        self._client.copy(key, target)

    def list(self, prefix: str) -> Iterator[Meta]:
        """A page at least, of a thousand each."""
        number = 0
        for number, meta in enumerate(self._client.list(prefix), 1):  # noqa: B007
            yield meta
        count("list", requests=max(-(-number // 1000), 1))

    def delete(self, key: str) -> None:
        count("delete")
        self._client.delete(key)

    def delete_all(self, keys: Sequence[str]) -> None:
        count("delete", requests=self._client.delete_all(keys))

    def _own_etag(self, key: str, data: bytes) -> str | None:
        found = self.load(key)
        return found.etag if found is not None and found.data == data else None


def open_store(url: ObjectUrl) -> Store:
    with _opening:
        return _open(url.scheme, url.bucket, os.getpid())


@cache
def _open(scheme: str, bucket: str, pid: int) -> Store:
    name = f"{scheme}://{bucket}"
    if scheme == "memory":
        return Store(name, open_memory(bucket))
    return Store(name, open_cloud(scheme, bucket) if _first_pid() == pid else _open_relay(scheme, bucket))


def _open_relay(scheme: str, bucket: str) -> Client:
    from tokmill.storage.relay import RelayClient

    return RelayClient(scheme, bucket)


@cache
def _first_pid() -> int:
    """Of the process that opened a cloud first. One that was forked from it finds its number here."""
    return os.getpid()


# In the memory of this process

_writing = threading.RLock()


class MemoryClient:
    def __init__(self, bucket: str, system: Any) -> None:
        self._bucket, self._system = bucket, system

    def head(self, key: str) -> Meta | None:
        data = self._bytes(key)
        return None if data is None else Meta(key, len(data), _memory_etag(data), "")

    def load(self, key: str) -> Loaded | None:
        data = self._bytes(key)
        return None if data is None else Loaded(data, _memory_etag(data))

    def read(self, key: str, start: int, end: int, etag: str | None) -> bytes:
        data = self._bytes(key)
        where = f"memory://{self._bucket}/{key}"
        if data is None:
            raise StorageError(
                "no such object in the memory of this process",
                where=where,
                next="workers do not share memory: run with one worker, or put the files on a disk",
            )
        if etag is not None and etag != _memory_etag(data):
            raise InputChanged("the object is another one by now", where=where, next="run again")
        return data[start:end]

    def put_if(self, key: str, data: bytes, etag: str | None) -> str | None:
        with _writing:
            found = self._bytes(key)
            if (found is None) if etag is None else (found is not None and _memory_etag(found) == etag):
                self._system.pipe_file(self._path(key), data)
                return _memory_etag(data)
        return None

    def upload(self, key: str, pieces: Iterable[bytes], size: int) -> str:
        data = b"".join(pieces)
        with _writing:
            self._system.pipe_file(self._path(key), data)
        return _memory_etag(data)

    def copy(self, key: str, target: str) -> None:
        meta = self.head(key)
        self.upload(target, [self.read(key, 0, meta.size if meta else 0, None)], 0)

    def list(self, prefix: str) -> Iterator[Meta]:
        whole = self._path(prefix)
        for path in sorted(self._system.store):
            if path.startswith(whole):
                meta = self.head(path.removeprefix(self._path("")))
                if meta is not None:
                    yield meta

    def delete(self, key: str) -> None:
        with _writing:
            self._system.store.pop(self._path(key), None)

    def delete_all(self, keys: Sequence[str]) -> int:
        for key in keys:
            self.delete(key)
        return len(keys)

    def _path(self, key: str) -> str:
        return f"/{self._bucket}/{key}"

    def _bytes(self, key: str) -> bytes | None:
        file = self._system.store.get(self._path(key))
        return None if file is None else bytes(file.getvalue())


def open_memory(bucket: str) -> MemoryClient:
    try:
        from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise MissingExtra(
            "memory:// needs the package fsspec", where=f"memory://{bucket}", next=install_hint("s3")
        ) from error
    return MemoryClient(bucket, MemoryFileSystem())


def _memory_etag(data: bytes) -> str:
    return f'"{hashlib.sha256(data).hexdigest()[:32]}"'


# Does a store keep its promises? Asked with objects of a key of its own, which are gone afterwards

OK = "ok"


class Finding(NamedTuple):
    what: str
    outcome: str  # "ok", "pretends: …" or "fails: …"


def probe_store(url: ObjectUrl) -> list[Finding]:
    """What was found, in order. Only a store that cannot be opened at all is an error."""
    store = open_store(url)
    below = url.child(f"tokmill-probe-{secrets.token_hex(8)}")
    keys = {name: below.child(name).key for name in ("small", "once", "parts")}
    asked: list[tuple[str, Callable[[], str]]] = [
        ("write and read back", lambda: _probe_round_trip(store, keys["small"])),
        ("create if absent", lambda: _probe_create(store, keys["once"])),
        ("replace by etag", lambda: _probe_replace(store, keys["once"], url.scheme)),
        ("read by etag", lambda: _probe_read(store, keys["small"], url.scheme)),
        ("upload in parts", lambda: _probe_parts(store, keys["parts"])),
        ("list", lambda: _probe_list(store, keys["small"])),
        ("delete", lambda: _probe_delete(store, keys["small"])),
    ]
    found = []
    try:
        for what, ask in asked:
            try:
                found.append(Finding(what, ask()))
            except TokmillError as error:
                found.append(Finding(what, f"fails: {error.what}"))
    finally:
        for key in keys.values():
            with contextlib.suppress(TokmillError):
                store.delete(key)
    return found


def _probe_round_trip(store: Store, key: str) -> str:
    for data in (b"first", b"and second"):  # an overwrite must be seen as well
        etag = store.upload(key, [data], len(data))
        meta = store.head(key)
        if meta is None or (meta.size, meta.etag) != (len(data), etag):
            return "fails: what was just written is not what is there"
        if store.read(key, 0, len(data), None) != data:
            return "fails: other bytes came back"
    return OK


def _probe_create(store: Store, key: str) -> str:
    if store.create(key, b"one") is None:
        return "fails: refused although nothing is there"
    if store.create(key, b"two") is not None:
        return "pretends: If-None-Match is accepted, and the object written over"
    return OK


def _probe_replace(store: Store, key: str, scheme: str) -> str:
    before = store.load(key)
    if before is None:
        return "fails: the object is gone"
    if store.replace(key, b"three", wrong_etag(scheme)) is not None:
        return "pretends: If-Match with a wrong etag is accepted, and the object written over"
    after = store.replace(key, b"four", before.etag)
    if after is None:
        return "fails: refused although the etag is right"
    if store.replace(key, b"five", before.etag) is not None:
        return "pretends: If-Match with the etag of an older version is accepted"
    return OK


def _probe_read(store: Store, key: str, scheme: str) -> str:
    try:
        store.read(key, 0, 3, wrong_etag(scheme))
    except InputChanged:
        return OK
    return "pretends: If-Match is ignored for reads, so an input that changes may go unnoticed"


def _probe_parts(store: Store, key: str) -> str:
    size = PART_BYTES + 1  # two parts
    block = bytes(range(256)) * 4096
    pieces = [block[: size - start] for start in range(0, size, len(block))]
    store.upload(key, pieces, size)
    meta = store.head(key)
    if meta is None or meta.size != size:
        return "fails: the parts were not put together"
    read = store.read(key, 0, size, meta.etag)
    is_same = hashlib.sha256(read).digest() == hashlib.sha256(b"".join(pieces)).digest()
    return OK if is_same else "fails: other bytes came back"


def _probe_list(store: Store, key: str) -> str:
    listed = {meta.key for meta in store.list(key.rpartition("/")[0] + "/")}
    return (
        OK if key in listed else "fails: an object is not listed; name inputs one by one, without wildcards"
    )


def _probe_delete(store: Store, key: str) -> str:
    store.delete(key)
    store.delete(key)  # what is not there can be deleted as well
    return OK if store.head(key) is None else "fails: the object is still there"

"""Does a store keep its promises? Asked with objects of a key of its own, which are gone afterwards.

    write · read back · If-None-Match · If-Match · a range under If-Match · parts · listing · delete

A server that says yes where it must refuse *pretends*: two runs could then publish over each other.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Callable
from typing import NamedTuple

from tokmill.errors import InputChanged, TokmillError
from tokmill.storage.objects.cloud import PART_BYTES
from tokmill.storage.objects.meta import wrong_etag
from tokmill.storage.objects.store import Store, open_store
from tokmill.storage.objects.url import parse_url

OK = "ok"


class Finding(NamedTuple):
    what: str
    outcome: str  # "ok", "pretends: …" or "fails: …"


def probe_store(location: str) -> list[Finding]:
    """What was found, in order. Only a store that cannot be opened at all is an error."""
    url = parse_url(location)
    store = open_store(url)
    below = url.child(f"tokmill-probe-{secrets.token_hex(8)}")
    keys = {name: below.child(name).key for name in ("small", "once", "parts")}
    asked: list[tuple[str, Callable[[], str]]] = [
        ("write and read back", lambda: _round_trip(store, keys["small"])),
        ("create if absent", lambda: _create(store, keys["once"])),
        ("replace by etag", lambda: _replace(store, keys["once"], url.scheme)),
        ("read by etag", lambda: _read(store, keys["small"], url.scheme)),
        ("upload in parts", lambda: _parts(store, keys["parts"])),
        ("list", lambda: _list(store, keys["small"])),
        ("delete", lambda: _delete(store, keys["small"])),
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


def _round_trip(store: Store, key: str) -> str:
    for data in (b"first", b"and second"):  # an overwrite must be seen as well
        etag = store.upload(key, [data], len(data))
        meta = store.head(key)
        if meta is None or (meta.size, meta.etag) != (len(data), etag):
            return "fails: what was just written is not what is there"
        if store.read(key, 0, len(data), None) != data:
            return "fails: other bytes came back"
    return OK


def _create(store: Store, key: str) -> str:
    if store.create(key, b"one") is None:
        return "fails: refused although nothing is there"
    if store.create(key, b"two") is not None:
        return "pretends: If-None-Match is accepted, and the object written over"
    return OK


def _replace(store: Store, key: str, scheme: str) -> str:
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


def _read(store: Store, key: str, scheme: str) -> str:
    try:
        store.read(key, 0, 3, wrong_etag(scheme))
    except InputChanged:
        return OK
    return "pretends: If-Match is ignored for reads, so an input that changes may go unnoticed"


def _parts(store: Store, key: str) -> str:
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


def _list(store: Store, key: str) -> str:
    listed = {meta.key for meta in store.list(key.rpartition("/")[0] + "/")}
    return (
        OK if key in listed else "fails: an object is not listed; name inputs one by one, without wildcards"
    )


def _delete(store: Store, key: str) -> str:
    store.delete(key)
    store.delete(key)  # what is not there can be deleted as well
    return OK if store.head(key) is None else "fails: the object is still there"

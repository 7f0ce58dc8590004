"""Files and receipts of a run that is under way, in the store that it will be published to.

    <url>/work/objects/<sha256>                 a file that a task wrote, or that the driver had alone
    <url>/work/receipts/<fingerprint>.json      what a task made, and on which node; after its files
    <url>/work/orders/<run>/…                   what an engine and its jobs say to each other

Objects are named by what is in them, so two attempts of a task write the same bytes under the same key, and
none of them needs a condition. A receipt is written on the condition that there is none: the first attempt
counts. Both are asked for by name, and never listed but to be removed. Whoever reads an object proves it.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from tokmill.artifacts.manifest import FileEntry, Receipt, canonical
from tokmill.artifacts.stored import StoredFile
from tokmill.errors import CorruptFile, InputChanged, StorageError
from tokmill.storage.cloud import Loaded, patiently
from tokmill.storage.location import ObjectUrl, open_binary
from tokmill.storage.objects import open_store
from tokmill.storage.traffic import in_context

WORK = "work"
_OBJECTS, _RECEIPTS, _ORDERS = "objects", "receipts", "orders"
_PIECE_BYTES = 8 << 20
# Sending this much takes as long as a request takes before its first byte.
_ASKED_BYTES = 1 << 20
# Two parts of each may wait: 128 MiB with PART_BYTES of 16 MiB.
_FILES_AT_A_TIME = 4
_LOOKS_AT_A_TIME = 16

# Names of objects, below the keys of their kinds
_HEX, _HEX_JSON, _ANY = (re.compile(name) for name in ("[0-9a-f]{64}", "[0-9a-f]{64}\\.json", ".*"))

T = TypeVar("T")
U = TypeVar("U")


class Note(msgspec.Struct, frozen=True):
    """A receipt in the store."""

    receipt: Receipt
    node: str


class WorkArea:
    def __init__(self, url: ObjectUrl) -> None:
        self.url = url
        self._store = open_store(url)
        self._area = url.child(WORK)
        self.spool = self._area.child(_ORDERS)

    def place(self, file: StoredFile) -> ObjectUrl:
        return self.url._replace(key=file.key) if file.key else self._area.child(f"{_OBJECTS}/{file.sha256}")

    def has(self, file: StoredFile) -> bool:
        """By its size, as a file on a disk is looked at."""
        meta = patiently(lambda: self._store.head(self.place(file).key))
        return meta is not None and meta.size == file.bytes

    def read(self, file: StoredFile) -> Iterator[bytes]:
        """Its bytes in pieces; other ones are an error, at the latest with the last piece."""
        place, digest = self.place(file), hashlib.sha256()
        try:
            for start in range(0, file.bytes, _PIECE_BYTES):
                end = min(start + _PIECE_BYTES, file.bytes)
                piece = patiently(lambda a=start, b=end: self._store.read(place.key, a, b, None))  # type: ignore[misc]
                digest.update(piece)
                yield piece
        except InputChanged:
            raise _wrong(file, place) from None
        if digest.hexdigest() != file.sha256:
            raise _wrong(file, place)

    def send(self, path: Path, file: StoredFile) -> None:
        """A file of this machine; nothing where it is there already, of one that is large enough to be asked
        for. One that is not as it is said to be does not appear."""
        if file.bytes > _ASKED_BYTES and self.has(file):
            return
        patiently(lambda: self._store.upload(self.place(file).key, _read_proven(path, file), file.bytes))

    def load_note(self, fingerprint: str) -> Note | None:
        """One that cannot be decoded counts as absent: its task runs again."""
        found = self._load(fingerprint)
        return None if found is None else _decoded(found)

    def has_files(self, files: Iterable[FileEntry]) -> bool:
        return all(at_once(self.has, [stored(entry) for entry in files]))

    def commit(self, receipt: Receipt, node: str) -> Note:
        """After its files. The one that counts: another attempt may have been first."""
        mine = Note(receipt, node)
        data = canonical(msgspec.to_builtins(mine)) + b"\n"
        key = self._receipt(receipt.fingerprint)
        while patiently(lambda: self._store.create(key, data)) is None:
            found = self._load(receipt.fingerprint)
            if found is None:
                continue  # removed just now
            first = _decoded(found)
            if first is not None and self.has_files(first.receipt.files):
                _check_same(first, mine)
                return first
            etag = found.etag
            if patiently(lambda etag=etag: self._store.replace(key, data, etag)) is not None:  # type: ignore[misc]
                break
        return mine

    def remove(self, check: Callable[[], None]) -> None:
        """Remove all of it, receipts before what they vouch for; objects of others stay. `check` raises when
        it is not ours to remove."""
        for kind, names in ((_RECEIPTS, _HEX_JSON), (_OBJECTS, _HEX), (_ORDERS, _ANY)):
            prefix = f"{self._area.child(kind).key}/"
            keys = [meta.key for meta in self._store.list(prefix)]
            keys = [key for key in keys if names.fullmatch(key.removeprefix(prefix))]
            for start in range(0, len(keys), 1000):
                check()
                self._store.delete_all(keys[start : start + 1000])

    def _receipt(self, fingerprint: str) -> str:
        return self._area.child(f"{_RECEIPTS}/{fingerprint}.json").key

    def _load(self, fingerprint: str) -> Loaded | None:
        return patiently(lambda: self._store.load(self._receipt(fingerprint)))


def stored(entry: FileEntry) -> StoredFile:
    return StoredFile(entry.sha256, entry.bytes)


def at_once(act: Callable[[U], T], items: Sequence[U], threads: int = _LOOKS_AT_A_TIME) -> list[T]:
    """In the order of the items. The first error is raised when no thread is at work any more."""
    if len(items) < 2:
        return [act(item) for item in items]
    with ThreadPoolExecutor(min(threads, len(items))) as pool:
        waiting = [pool.submit(in_context(act), item) for item in items]
        try:
            return [future.result() for future in waiting]
        finally:
            for future in waiting:
                future.cancel()


def move_files(act: Callable[[U], T], items: Sequence[U]) -> list[T]:
    """The same for whole files."""
    return at_once(act, items, _FILES_AT_A_TIME)


def _decoded(found: Loaded) -> Note | None:
    with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
        return msgspec.json.decode(found.data, type=Note)
    return None


def _check_same(first: Note, second: Note) -> None:
    """Two attempts of one task have made the same, or one of their nodes is broken."""
    made = [
        ([(file.path, file.content_sha256) for file in note.receipt.files], note.receipt.counts)
        for note in (first, second)
    ]
    if made[0] != made[1]:
        raise CorruptFile(
            f"two nodes, {first.node} and {second.node}, made different bytes of one task",
            where=f"task {first.receipt.key}",
            next="look at the memory and the disks of both; run without the one that is broken, into another "
            "URL or after all objects under work/ below this one were deleted",
        )


def _read_proven(path: Path, file: StoredFile) -> Iterator[bytes]:
    digest, size = hashlib.sha256(), 0
    with open_binary(path) as opened:
        while piece := opened.read(_PIECE_BYTES):
            digest.update(piece)
            size += len(piece)
            yield piece
    if (size, digest.hexdigest()) != (file.bytes, file.sha256):
        raise StorageError(
            "the file changed while it was sent; it did not appear in the store",
            where=str(path),
            next="run again when nothing writes to it any more",
        )


def _wrong(file: StoredFile, place: ObjectUrl) -> CorruptFile:
    by = f" by the node {file.node}" if file.node else ""
    return CorruptFile(
        f"the object has other bytes than were written{by} (sha256 {file.sha256[:16]}… is not theirs)",
        where=str(place),
        next="look at that node's memory and disk; delete the object, and run the same command again: what "
        "made it runs once more",
    )

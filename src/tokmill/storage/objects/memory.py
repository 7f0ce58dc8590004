"""memory://: fsspec's file system of this process, with conditional writes under a lock.

Made for tests and notebooks. Another process sees another memory: a worker that is asked for such an object says so.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from tokmill.errors import InputChanged, MissingExtra, StorageError
from tokmill.storage.objects.meta import Loaded, Meta

_writing = threading.RLock()


class MemoryClient:
    def __init__(self, bucket: str, system: Any) -> None:
        self._bucket, self._system = bucket, system

    def head(self, key: str) -> Meta | None:
        data = self._bytes(key)
        return None if data is None else Meta(key, len(data), _etag(data), "")

    def load(self, key: str) -> Loaded | None:
        data = self._bytes(key)
        return None if data is None else Loaded(data, _etag(data))

    def read(self, key: str, start: int, end: int, etag: str | None) -> bytes:
        data = self._bytes(key)
        where = f"memory://{self._bucket}/{key}"
        if data is None:
            raise StorageError(
                "no such object in the memory of this process",
                where=where,
                next="workers do not share memory: run with one worker, or put the files on a disk",
            )
        if etag is not None and etag != _etag(data):
            raise InputChanged("the object is another one by now", where=where, next="run again")
        return data[start:end]

    def put_if(self, key: str, data: bytes, etag: str | None) -> str | None:
        with _writing:
            found = self._bytes(key)
            if (found is None) if etag is None else (found is not None and _etag(found) == etag):
                self._system.pipe_file(self._path(key), data)
                return _etag(data)
        return None

    def upload(self, key: str, pieces: Iterable[bytes], size: int) -> str:
        data = b"".join(pieces)
        with _writing:
            self._system.pipe_file(self._path(key), data)
        return _etag(data)

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
            "memory:// needs the package fsspec", where=f"memory://{bucket}", next="pip install 'tokmill[s3]'"
        ) from error
    return MemoryClient(bucket, MemoryFileSystem())


def _etag(data: bytes) -> str:
    return f'"{hashlib.sha256(data).hexdigest()[:32]}"'

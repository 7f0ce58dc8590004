"""An object store for a process that was forked from one that had a client: a process of its own asks.

    parent ─ fork ─> worker ── ("read", key, start, end, etag) ──> relay ──> store
                            <── (True, bytes) · (False, error) ──

The clients of object stores run threads, and a fork has none of its parent's: a request would wait for ever
(a DataLoader forks its workers). The relay is a Python that was started, not forked. It ends when the
connection does, so also when its worker is killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from tokmill.errors import StorageError, TokmillError
from tokmill.storage.cloud import Loaded, Meta, open_cloud

_ASKED = ("head", "load", "read", "put_if", "list", "delete")


class RelayClient:
    """One bucket, as `CloudClient` is; one request at a time. Nothing is uploaded by a fork."""

    def __init__(self, scheme: str, bucket: str) -> None:
        self._where = f"{scheme}://{bucket}"
        self._asking = threading.Lock()
        self._connection, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tokmill.storage.relay", scheme, bucket, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            # what this process may import, the other one may too
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        theirs.close()

    def head(self, key: str) -> Meta | None:
        meta: Meta | None = self._ask("head", key)
        return meta

    def load(self, key: str) -> Loaded | None:
        loaded: Loaded | None = self._ask("load", key)
        return loaded

    def read(self, key: str, start: int, end: int, etag: str | None) -> bytes:
        data: bytes = self._ask("read", key, start, end, etag)
        return data

    def put_if(self, key: str, data: bytes, etag: str | None) -> str | None:
        written: str | None = self._ask("put_if", key, data, etag)
        return written

    def list(self, prefix: str) -> Iterator[Meta]:
        return iter(self._ask("list", prefix))

    def delete(self, key: str) -> None:
        self._ask("delete", key)

    def delete_all(self, keys: Sequence[str]) -> int:
        for key in keys:
            self.delete(key)
        return len(keys)

    def upload(self, key: str, pieces: Iterable[bytes], size: int) -> str:
        raise AssertionError("a forked process publishes nothing")

    def copy(self, key: str, target: str) -> None:
        raise AssertionError("a forked process publishes nothing")

    def _ask(self, *request: Any) -> Any:
        with self._asking:
            try:
                self._connection.send(request)
                is_answer, told = self._connection.recv()
            except (EOFError, OSError):
                is_answer, told = False, self._gone()
            except BaseException:  # an interrupt: the answer would be taken for that of the next request
                self._connection.close()
                raise
        if not is_answer:
            raise told
        return told

    def _gone(self) -> StorageError:
        return StorageError(
            "the process that reads for a forked one has ended",
            where=self._where,
            next="run again; workers that are spawned, and not forked, do without it",
        )


def answer(scheme: str, bucket: str, connection: Connection) -> None:
    """Every request, until nobody can ask any more."""
    client = None
    while True:
        try:
            name, *arguments = connection.recv()
        except (EOFError, OSError):
            return
        assert name in _ASKED, f"{name} is not asked of a store"
        try:
            client = client or open_cloud(scheme, bucket)
            told = getattr(client, name)(*arguments)
            connection.send((True, list(told) if name == "list" else told))
        except TokmillError as error:
            connection.send((False, error))


if __name__ == "__main__":
    answer(sys.argv[1], sys.argv[2], Connection(int(sys.argv[3])))

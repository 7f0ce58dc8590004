"""SHA-256 of the files of sources, by threads, from when they are listed on.

    run ─ examine ─ begin: files of a source ─┬─ tokenizer, rules, … are examined ─ plan ─ digest ─>
                                              └─ threads ─────────────────────────────┘

What a source is is known by its bytes, so no step can be planned without. Hashing waits for nobody, and holds
no lock of Python: it is done beside the examination.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from threading import Event

from tokmill.artifacts.manifest import available_cores
from tokmill.storage.disk import told_as_unreadable
from tokmill.storage.location import AnyPath, InputFile, open_binary
from tokmill.storage.traffic import in_context

_THREADS = 8  # two are enough to keep a disk busy, and more where memory holds the files
_APART = 4 << 20  # 4 to 10 ms of SHA-256; two threads take 2 to begin
_PIECE = 4 << 20


class Hashing:
    """Of files, until it is closed."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._asked: dict[tuple[AnyPath, int, int], Future[str]] = {}
        self._abandoned = Event()

    def begin(self, files: Sequence[InputFile]) -> None:
        """Where it is worth a thread; the others are hashed when their digests are asked for."""
        files = [file for file in files if _version(file) not in self._asked]
        if sum(file.bytes for file in files) < _APART:
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(min(max(available_cores(), 2), _THREADS))
        for file in files:
            self._asked[_version(file)] = self._pool.submit(in_context(self._hash), file.path)

    def digest(self, file: InputFile) -> str:
        asked = self._asked.get(_version(file))
        return asked.result() if asked is not None else self._hash(file.path)

    def close(self) -> None:
        """What nobody has asked for is broken off: an examination that fails waits for no large file."""
        self._abandoned.set()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _hash(self, path: AnyPath) -> str:
        digest = hashlib.sha256()
        with open_binary(path) as file, told_as_unreadable(path):
            while not self._abandoned.is_set() and (piece := file.read(_PIECE)):
                digest.update(piece)
        return digest.hexdigest()


def _version(file: InputFile) -> tuple[AnyPath, int, int]:
    return file.path, file.bytes, file.modified_ns


_current: ContextVar[Hashing | None] = ContextVar("hashing", default=None)


@contextlib.contextmanager
def hashing_files() -> Iterator[Hashing]:
    """The same for all that is done within it."""
    current = _current.get()
    if current is not None:
        yield current
        return
    made = Hashing()
    token = _current.set(made)
    try:
        yield made
    finally:
        _current.reset(token)
        made.close()

"""Whole files in a directory of this machine, by the SHA-256 of their bytes: at most so many bytes are kept.

    <cache>/files/<sha256>          read-only, committed as every file is
    <cache>/files/lock              held by who adds or evicts
    <cache>/files/claim-1f          held by who brings a file whose digest begins so: the others wait for it
    <cache>/tasks/<random>/         where one task works: its inputs are hard links to files of the cache
    <cache>/tasks/<random>.lock     held while it works; of a killed one nobody does, and both are removed

Any number of processes of one machine share a cache. A file that a task is reading has two names, so that
evicting it would free nothing: it stays. Evicted is what was used longest ago. A task needs all its inputs at
once, so a bound that is smaller than these is exceeded by them, for as long as the task works.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tokmill.errors import CorruptFile, DiskFull, StorageError, TokmillError
from tokmill.storage.disk import TEMP_PREFIX, make_directory, open_commit, storage_error, told_as_unwritable

CACHE_BYTES = 32 << 30

_FILES, _TASKS, _LOCK = "files", "tasks", "lock"
_FILE = re.compile(r"[0-9a-f]{64}")
_ABANDONED_SECONDS = 3600


class FileCache:
    def __init__(self, directory: Path, max_bytes: int = CACHE_BYTES) -> None:
        self._files, self._tasks, self._max_bytes = directory / _FILES, directory / _TASKS, max_bytes
        for path in (self._files, self._tasks):
            make_directory(path)

    def link(self, sha256: str, size: int, target: Path, read: Callable[[], Iterable[bytes]]) -> None:
        """The file under another name, in a task's directory; `read` gives its bytes where it is not here."""
        path = self._files / sha256
        make_directory(target.parent)
        while not _linked(path, target, size):
            with self._locked(f"claim-{sha256[:2]}"):
                if not _is_whole(path, size):  # or another was quicker
                    self._bring(path, sha256, size, read)

    def add(self, sha256: str, path: Path) -> None:
        """A file that a task has written, and the next may read: it costs a name, no copy. Best effort."""
        with contextlib.suppress(OSError), self._locked(_LOCK):
            kept = self._files / sha256
            if not kept.exists():
                self._make_room(path.stat().st_size)
                path.chmod(0o444)
                kept.hardlink_to(path)

    @contextlib.contextmanager
    def open_task(self) -> Iterator[Path]:
        """A directory for one task, which is gone afterwards."""
        self._remove_dead()
        directory = self._tasks / secrets.token_hex(8)
        lock = directory.with_suffix(".lock")
        with _held(lock):
            make_directory(directory)
            try:
                yield directory
            finally:
                shutil.rmtree(directory, ignore_errors=True)
                lock.unlink(missing_ok=True)
        with contextlib.suppress(OSError), self._locked(_LOCK):
            self._make_room(0)  # inputs that did not fit beside the others are no longer held

    def refused(self, error: TokmillError) -> StorageError:
        """That a file of a task could not be written, in the words of who has this node."""
        if isinstance(error, DiskFull):
            return DiskFull(
                "no space left for the files of a task; nothing half-written was kept",
                where=str(self._files.parent),
                next="name a larger disk of this node in TOKMILL_NODE_CACHE, or set "
                "TOKMILL_NODE_CACHE_GIGABYTES to less than it has free",
            )
        return StorageError(
            error.what,
            where=str(self._files.parent),
            next="name a directory of this node that can be written to in TOKMILL_NODE_CACHE",
        )

    def _bring(self, path: Path, sha256: str, size: int, read: Callable[[], Iterable[bytes]]) -> None:
        with self._locked(_LOCK):
            self._make_room(size)
        try:
            with open_commit(path) as file:
                for piece in read():
                    file.write(piece)
                if (file.written.bytes, file.written.sha256) != (size, sha256):
                    raise CorruptFile("its bytes are not those of its name", where=str(path))
        except DiskFull as error:
            raise self.refused(error) from error
        with told_as_unwritable(path):
            path.chmod(0o444)

    def _make_room(self, coming: int) -> None:
        """The lock is held. What was used longest ago goes until the rest fits."""
        held = []
        with told_as_unwritable(self._files):
            now = _time_of_disk(self._files / _LOCK)
            for entry in os.scandir(self._files):
                with contextlib.suppress(FileNotFoundError):
                    if _FILE.fullmatch(entry.name):
                        stat = entry.stat()
                        held.append((stat.st_mtime_ns, entry.path, stat.st_size, stat.st_nlink))
                    elif entry.name.startswith(TEMP_PREFIX) and _is_abandoned(entry.stat(), now):
                        Path(entry.path).unlink(missing_ok=True)
            used = sum(size for _, _, size, _ in held)
            for _, path, size, names in sorted(held):
                if used + coming <= self._max_bytes:
                    break
                if names == 1:
                    Path(path).unlink(missing_ok=True)
                    used -= size

    def _remove_dead(self) -> None:
        """Directories of tasks that were killed."""
        for lock in sorted(self._tasks.glob("*.lock")):
            with contextlib.suppress(OSError), lock.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while it works
                shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                lock.unlink(missing_ok=True)

    def _locked(self, name: str) -> contextlib.AbstractContextManager[None]:
        return _held(self._files / name)


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    """For this thread alone, of all processes. The kernel unlocks what a killed one held."""
    descriptor = _lock(path)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(path: Path) -> int:
    """Locked, and still of that name: who removes a file of the dead holds it while it does."""
    while True:
        with told_as_unwritable(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_ino == os.fstat(descriptor).st_ino:
                    return descriptor
            os.close(descriptor)


def _linked(path: Path, target: Path, size: int) -> bool:
    try:
        if not _is_whole(path, size):
            return False
        os.utime(path)
        target.unlink(missing_ok=True)
        target.hardlink_to(path)
    except FileNotFoundError:  # evicted between the look and the link
        return False
    except OSError as error:
        raise storage_error(error, target) from error
    return True


def _is_whole(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def _is_abandoned(temporary: os.stat_result, now: float) -> bool:
    """By when it was last written to: containers that share a cache do not see each other's processes."""
    return temporary.st_mtime < now - _ABANDONED_SECONDS


def _time_of_disk(path: Path) -> float:
    """By the clock that times of files are told by, which need not be that of this process."""
    os.utime(path)
    return path.stat().st_mtime

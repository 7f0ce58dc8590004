"""Nothing half-written ever has its final name.

    open_commit(path)  ->  .tmp-<pid>-<random>-<n>-<name>   in the same directory
        write()            every byte, or an error: a short write is never retried into a hole
    leave the block    ->  fsync(file)  rename(temp, path)  fsync(directory)
    raise in the block ->  the temp file is removed, `path` is untouched

A directory that is made, and a file that is removed, are synced likewise: what a later step relies on is as safe as a
file that was written, whatever order a disk without power keeps.

Files are written with write(2), not through a memory map: on a full disk a map ends the process with
SIGBUS, write(2) returns an error that names the file.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import itertools
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tokmill.errors import DiskFull, StorageError

TEMP_PREFIX = ".tmp-"

# One write(2) moves at most 0x7ffff000 bytes on Linux; smaller pieces also keep a short write visible.
_WRITE_BYTES = 64 << 20

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)

_serial = itertools.count()


@dataclass(frozen=True)
class Written:
    """What reached the disk under its final name."""

    bytes: int
    sha256: str


class CommitFile:
    """The open temp file: accepts anything with a contiguous buffer, counts and hashes what it writes."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path
        self._sha256 = hashlib.sha256()
        self._bytes = 0

    def write(self, data: object) -> int:
        view = memoryview(data)  # type: ignore[arg-type]
        view = view.cast("B") if view.nbytes else memoryview(b"")  # Python casts no array of 0 rows
        for start in range(0, len(view), _WRITE_BYTES):
            piece = view[start : start + _WRITE_BYTES]
            with _told_as_storage_error(self._path):
                written = os.write(self._descriptor, piece)
                if written != len(piece):
                    raise OSError(errno.ENOSPC, f"short write: {written} of {len(piece)} bytes")
            self._sha256.update(piece)
        self._bytes += len(view)
        return len(view)

    @property
    def written(self) -> Written:
        return Written(self._bytes, self._sha256.hexdigest())


@contextlib.contextmanager
def open_commit(path: Path) -> Iterator[CommitFile]:
    """Write `path` whole or not at all."""
    path = Path(path)
    temp = temp_beside(path)
    with _told_as_storage_error(path):
        make_directory(path.parent)
        descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        try:
            yield CommitFile(descriptor, path)
            with _told_as_storage_error(path):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        with _told_as_storage_error(path):
            temp.replace(path)
            sync_directory(path.parent)
    except BaseException:
        _remove_if_there(temp)
        raise


def temp_beside(path: Path) -> Path:
    """A name that no other process has, here or in a pod that shares the disk; sweeps know it by its prefix."""
    return path.with_name(f"{TEMP_PREFIX}{os.getpid()}-{_mark()}-{next(_serial)}-{path.name}")


def commit_bytes(path: Path, data: object) -> Written:
    with open_commit(path) as file:
        file.write(data)
    return file.written


def move_committed(path: Path, target: Path) -> None:
    """A file that is whole, under another name on the same disk."""
    with _told_as_storage_error(target):
        make_directory(target.parent)
        path.replace(target)
        sync_directory(target.parent)


def remove_file(path: Path) -> None:
    """Gone for good, or never there; or an error that names it."""
    with _told_as_storage_error(path), contextlib.suppress(FileNotFoundError):
        path.unlink()
        sync_directory(path.parent)


def make_directory(path: Path) -> None:
    """With its parents; each is safe in the one above it."""
    missing = []
    while not path.exists() and path != path.parent:
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
        with contextlib.suppress(PermissionError):  # one may write to a directory that one may not read
            sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """The names in it: those that are new, and those that are gone."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_refused_write(error: OSError) -> bool:
    """Whether only a write can have met it."""
    return error.errno in (*_FULL, *_REFUSED)


def storage_error(error: OSError, path: Path) -> StorageError:
    """The same fault in words a user can act on."""
    if error.errno in _FULL:
        return DiskFull(
            "no space left to write this file; nothing half-written was kept",
            where=str(path),
            next="free some space (or choose another `--out`) and run the same command again: it resumes",
        )
    if error.errno in _REFUSED:
        return StorageError(
            f"cannot write here ({error.strerror})",
            where=str(path),
            next="choose a directory that can be written to (`--out`)",
        )
    return StorageError(f"cannot write ({error})", where=str(path), next="check the disk, then run again")


@functools.cache
def _mark() -> str:
    """Of this process. Pids repeat: in a container the first is 1. A fork has the same mark and another pid."""
    return secrets.token_hex(4)


@contextlib.contextmanager
def _told_as_storage_error(path: Path) -> Iterator[None]:
    """Only faults of writing: an error that the caller's block raises is the caller's."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, path) from error


def _remove_if_there(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()

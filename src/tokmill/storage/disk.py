"""Files on the disk: nothing half-written ever has its final name,
and nothing is read in part without an error.

    open_commit(path)  ->  .tmp-<pid>-<random>-<n>-<name>   in the same directory
        write()            every byte, or an error: a short write is never retried into a hole
    leave the block    ->  fsync(file)  rename(temp, path)  fsync(directory)
    raise in the block ->  the temp file is removed, `path` is untouched

A directory that is made, and a file that is removed, are synced likewise:
what a later step relies on is as safe as a file that was written, whatever order a disk without power keeps.

Files are written with write(2), not through a memory map: on a full disk a map ends the process with
SIGBUS, write(2) returns an error that names the file.

    told_as_unwritable(path)        an OSError of the block  ->  DiskFull, or StorageError
    told_as_unreadable(path)        an OSError of the block  ->  StorageError, or OutOfMemory
    map_array(path, kind, …)        a mapped array; of nothing, an empty one
    load_bytes · load_array         a small file, or one of numbers
    read_arrays                     the numbers, some at a time
    read_at(descriptor, …)          as many bytes as were asked for, fewer only where the file ends
    system_error(error, where)      what nobody expected, at the doors of a task and of a command

Zstandard is the standard library's, and its backport before Python 3.14: its readers raise on a frame that
did not end, where those of the package `zstandard` return the short data as if it were all (a test keeps both
facts).

What could not be read says nothing of what is on disk: only bytes that were read can be called damaged.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import io
import itertools
import os
import re
import secrets
import stat
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import CorruptFile, DiskFull, OutOfMemory, StorageError, TokmillError
from tokmill.storage.on_demand import at_hand

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CompressionParameter = zstd.CompressionParameter
DecompressionParameter = zstd.DecompressionParameter
ZstdCompressor = zstd.ZstdCompressor
ZstdDecompressor = zstd.ZstdDecompressor
ZstdError = zstd.ZstdError
ZstdFile = zstd.ZstdFile

TEMP_PREFIX = ".tmp-"

# One write(2) moves at most 0x7ffff000 bytes on Linux; smaller pieces also keep a short write visible.
_WRITE_BYTES = 64 << 20

# 1 ms of SHA-256 at 1,050 MB/s, 2.7 on an x86 core that has no instructions for it; a thread takes 0.08.
_HASHED_APART = 1 << 20

_SYNCED_APART = 64 << 20  # a disk of 1 GB/s takes 64 ms for it

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
        self._syncing: _Syncing | None = None

    def write(self, data: object) -> int:
        view = memoryview(data)  # type: ignore[arg-type]
        view = view.cast("B") if view.nbytes else memoryview(b"")  # Python casts no array of 0 rows
        for start in range(0, len(view), _WRITE_BYTES):
            piece = view[start : start + _WRITE_BYTES]
            hashing = self._hash(piece)
            try:
                with told_as_unwritable(self._path):
                    written = os.write(self._descriptor, piece)
                    if written != len(piece):
                        raise OSError(errno.ENOSPC, f"short write: {written} of {len(piece)} bytes")
            finally:
                if hashing is not None:
                    hashing.join()
            self._sync_behind(len(piece))
        self._bytes += len(view)
        return len(view)

    def sync(self) -> None:
        """What was written is on the disk afterwards. The system tells an error once: one that was met on the
        way is raised, too."""
        with told_as_unwritable(self._path):
            if self._syncing is not None:
                self._syncing.finish()
            os.fsync(self._descriptor)

    def stop(self) -> None:
        """Nobody uses the descriptor any more."""
        if self._syncing is not None:
            self._syncing.stop()

    def _sync_behind(self, written: int) -> None:
        """The disk works while a large file is still being made."""
        if self._syncing is None:
            self._syncing = _Syncing(self._descriptor)
        with told_as_unwritable(self._path):
            self._syncing.add(written)

    def _hash(self, piece: memoryview) -> threading.Thread | None:
        """Of a large piece, a thread's: it is hashed while it is written."""
        if len(piece) >= _HASHED_APART:
            hashing = threading.Thread(target=self._sha256.update, args=(piece,))
            with contextlib.suppress(RuntimeError):  # no more threads are given here
                hashing.start()
                return hashing
        self._sha256.update(piece)
        return None

    @property
    def written(self) -> Written:
        return Written(self._bytes, self._sha256.hexdigest())


class _Syncing:
    """Syncs of a file while more is written to it, by a thread; one at a time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting = 0  # bytes that no sync was asked for
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None

    def add(self, written: int) -> None:
        self._waiting += written
        if self._waiting >= _SYNCED_APART and not (self._thread and self._thread.is_alive()):
            self.finish()
            self._waiting = 0
            thread = threading.Thread(target=self._sync)
            with contextlib.suppress(RuntimeError):  # no more threads are given here: the last sync does it
                thread.start()
                self._thread = thread

    def finish(self) -> None:
        """Raises what the disk said."""
        self.stop()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _sync(self) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            self._error = error


@contextlib.contextmanager
def open_commit(path: Path, mode: int | None = None) -> Iterator[CommitFile]:
    """Write `path` whole or not at all."""
    path = Path(path)
    temp = temp_beside(path)
    with told_as_unwritable(path):
        make_directory(path.parent)
        descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        try:
            if mode is not None:
                os.fchmod(descriptor, mode)
            file = CommitFile(descriptor, path)
            try:
                yield file
                file.sync()
            finally:
                file.stop()
        finally:
            os.close(descriptor)
        with told_as_unwritable(path):
            temp.replace(path)
            sync_directory(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temp.unlink()
        raise


def temp_beside(path: Path) -> Path:
    """A name that no other process has, here or in a pod that shares the disk;
    sweeps know it by its prefix."""
    return path.with_name(f"{TEMP_PREFIX}{os.getpid()}-{_mark()}-{next(_serial)}-{path.name}")


# Of `temp_beside`, and of who is about to take over a lock (tokmill.storage.lease).
_TEMP_NAME = re.compile(re.escape(TEMP_PREFIX) + r"(\d+-[0-9a-f]+-\d+|[0-9a-f]{16,64})-.+", re.DOTALL)


def is_temp(name: str) -> bool:
    """True for the name of a file that a process of ours was writing: others may begin with the prefix."""
    return _TEMP_NAME.fullmatch(name) is not None


def place_beside(directory: Path, suffix: str) -> Path:
    """What goes with a directory, whichever name that is called by: beside what a link, or `.`, leads to."""
    is_itself = directory.name not in ("", "..") and not directory.is_symlink()
    own = directory if is_itself else directory.resolve()
    return own.with_name(f"{own.name}{suffix}")


def commit_bytes(path: Path, data: object) -> Written:
    with open_commit(path) as file:
        file.write(data)
    return file.written


def rewrite_bytes(path: Path, data: object) -> None:
    """A file of somebody's own: a link to it stays one, and it keeps its mode."""
    with told_as_unwritable(path):
        path = path.resolve()
        mode = stat.S_IMODE(path.stat().st_mode)
    with open_commit(path, mode) as file:
        file.write(data)


def move_committed(path: Path, target: Path) -> None:
    """A file that is whole, under another name on the same disk."""
    with told_as_unwritable(target):
        make_directory(target.parent)
        path.replace(target)
        sync_directory(target.parent)


def remove_file(path: Path) -> None:
    """Gone for good, or never there; or an error that names it."""
    with told_as_unwritable(path), contextlib.suppress(FileNotFoundError):
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
    """Of this process. Pids repeat: in a container the first is 1.
    A fork has the same mark and another pid."""
    return secrets.token_hex(4)


@contextlib.contextmanager
def told_as_unwritable(path: Path) -> Iterator[None]:
    """Only faults of writing: an error that the caller's block raises is the caller's."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, path) from error


# --- reading ---


_LEVEL = 3
_OF_THE_PATH = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ELOOP)


def frame_options() -> dict[int, int]:
    """Every frame carries a checksum, so that a flipped bit is an error and not other text."""
    return {CompressionParameter.compression_level: _LEVEL, CompressionParameter.checksum_flag: 1}


@contextlib.contextmanager
def told_as_unreadable(path: object) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unreadable(error, path) from error


def unreadable(error: OSError, path: object) -> TokmillError:
    if error.errno == errno.ENOMEM:
        return _out_of_memory("there is no memory left to read this file", str(path))
    # in the system's words: Arrow puts the path and its own story into the text
    why = os.strerror(error.errno) if error.errno else error.strerror or str(error) or type(error).__name__
    of_the_path = error.errno in _OF_THE_PATH or isinstance(error, FileNotFoundError)
    next = "check the path and its permissions" if of_the_path else "check the disk, then run again"
    return StorageError(f"cannot be read ({why})", where=str(path), next=next)


def is_fault_of_reading(error: BaseException) -> bool:
    """Of the system, not of what the bytes say: libraries raise an OSError without a number for damage."""
    return isinstance(error, OSError) and bool(error.errno or isinstance(error, FileNotFoundError))


def system_error(error: OSError | MemoryError, where: str) -> TokmillError:
    """A fault of the machine that was met where none was looked for;
    by the name of its file, if it has one."""
    if isinstance(error, MemoryError) or error.errno == errno.ENOMEM:
        named = getattr(error, "filename", None)
        return _out_of_memory("there is no memory left", str(named or where))
    if error.filename is None and _is_directory_gone():
        return StorageError(
            "the directory in which this command was started is gone",
            where=where or "current directory",
            next="change to a directory that is there, and give the same command again",
        )
    if error.filename is None and "temporary directory" in (error.strerror or ""):  # tempfile's own words
        return StorageError(
            "there is no directory for temporary files that can be written",
            where=os.environ.get("TMPDIR", "/tmp"),
            next="set TMPDIR to a directory with room, and give the same command again",
        )
    place = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else where
    if is_refused_write(error):
        return storage_error(error, Path(place))
    why = error.strerror or str(error) or type(error).__name__
    return StorageError(f"the system refuses ({why})", where=place, next="check the disk, then run again")


def map_array(
    path: Path, kind: Any, *, offset: int = 0, shape: tuple[int, ...] | None = None
) -> NDArray[Any]:
    """Mapped read-only, read when touched; without a shape, all that follows `offset`.
    A path into an object store (`tokmill.loader.remote`) has a way of its own."""
    dtype = np.dtype(kind)
    if isinstance(path, Mappable):
        return path.map(dtype, offset, shape)
    at_hand(path)
    with told_as_unreadable(path):
        size = path.stat().st_size
        if 0 in (shape if shape is not None else (size - offset,)):  # a map of nothing is refused
            return np.empty(shape if shape is not None else 0, dtype)
        return np.memmap(path, dtype, "r", offset, shape)


@runtime_checkable
class Mappable(Protocol):
    """A path that is not of this machine: what is mapped there behaves as an array, and is none."""

    def map(self, dtype: np.dtype[Any], offset: int, shape: tuple[int, ...] | None) -> NDArray[Any]: ...


def load_bytes(path: Path) -> bytes:
    at_hand(path)
    with told_as_unreadable(path):
        return read_regular(path) if isinstance(path, Path) else path.read_bytes()


def open_regular(path: Path) -> io.FileIO:
    """Open a file that tokmill wrote. Anything else under its name is an OSError: opening a named pipe would
    wait for a writer."""

    def opened(name: str, flags: int) -> int:
        descriptor = os.open(name, flags | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError("it is no regular file")
        return descriptor

    return io.FileIO(path, "rb", opener=opened)


def read_regular(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.readall()


def load_array(path: Path, kind: Any) -> NDArray[Any]:
    """All of a file as an array of our own. Not np.fromfile:
    what a fault hides from it is missing without a word."""
    at_hand(path)
    with told_as_unreadable(path):
        most = max(path.stat().st_size, 1)
    parts = list(read_arrays(path, kind, most))
    return parts[0] if parts else np.empty(0, kind)


def read_arrays(path: Path, kind: Any, rows: int) -> Iterator[NDArray[Any]]:
    """The same, so many rows at a time."""
    dtype = np.dtype(kind)
    at_hand(path)
    with told_as_unreadable(path), open_regular(path) as file:
        total = os.fstat(file.fileno()).st_size // dtype.itemsize
        for first in range(0, total, rows):
            yield read_array_at(file.fileno(), min(rows, total - first), dtype, first * dtype.itemsize, path)


def read_array_at(descriptor: int, rows: int, kind: Any, offset: int, path: object) -> NDArray[Any]:
    """So many rows from `offset` on; a file that has fewer is damaged."""
    column = np.empty(rows, kind)
    view, done = memoryview(column.view(np.uint8).reshape(-1).data), 0
    while done < len(view):
        with told_as_unreadable(path):
            got = os.preadv(descriptor, [view[done:]], offset + done)
        if not got:
            raise CorruptFile("ends early", where=str(path), next="run again to rebuild it")
        done += got
    return column


def read_at(descriptor: int, size: int, offset: int, path: object) -> bytes:
    """pread(2) may return fewer bytes than there are."""
    pieces: list[bytes] = []
    with told_as_unreadable(path):
        while size and (piece := os.pread(descriptor, size, offset)):
            pieces.append(piece)
            size, offset = size - len(piece), offset + len(piece)
    return b"".join(pieces)


def _out_of_memory(what: str, where: str) -> OutOfMemory:
    return OutOfMemory(
        what,
        where=where,
        next="end other programs and try again; `tokmill run` needs less memory with fewer `--workers`",
    )


def _is_directory_gone() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 (Path.cwd asks the same)
    except OSError:
        return True
    return False


class ChunkStream(io.RawIOBase):
    """Bytes that an iterator gives, as a file; none of its chunks is empty."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        super().__init__()
        self._chunks, self._left = chunks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            self._left = memoryview(next(self._chunks, b""))
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count

"""Reading files of ours: all that was asked for, or an error that names the file.

    told_as_unreadable(path)        an OSError of the block  ->  StorageError, or OutOfMemory
    map_array(path, kind, …)        a mapped array; of nothing, an empty one
    load_bytes · load_array         a small file, or one of numbers
    read_arrays                     the numbers, some at a time
    read_at(descriptor, …)          as many bytes as were asked for, fewer only where the file ends
    system_error(error, where)      what nobody expected, at the doors of a task and of a command

Zstandard is the standard library's, and its backport before Python 3.14: its readers raise on a frame that did not end,
where those of the package `zstandard` return the short data as if it were all (a test keeps both facts).

What could not be read says nothing of what is on disk: only bytes that were read can be called damaged.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import CorruptFile, OutOfMemory, StorageError, TokmillError
from tokmill.storage.commit import is_refused_write, storage_error

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CompressionParameter = zstd.CompressionParameter
ZstdCompressor = zstd.ZstdCompressor
ZstdDecompressor = zstd.ZstdDecompressor
ZstdError = zstd.ZstdError
ZstdFile = zstd.ZstdFile

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
    why = error.strerror or str(error) or type(error).__name__
    of_the_path = error.errno in _OF_THE_PATH or isinstance(error, FileNotFoundError)
    next = "check the path and its permissions" if of_the_path else "check the disk, then run again"
    return StorageError(f"cannot be read ({why})", where=str(path), next=next)


def is_fault_of_reading(error: BaseException) -> bool:
    """Of the system, not of what the bytes say: libraries raise an OSError without a number for damage."""
    return isinstance(error, OSError) and bool(error.errno or isinstance(error, FileNotFoundError))


def system_error(error: OSError | MemoryError, where: str) -> TokmillError:
    """A fault of the machine that was met where none was looked for; by the name of its file, if it has one."""
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
    """Mapped read-only, read when touched; without a shape, all that follows `offset`."""
    dtype = np.dtype(kind)
    with told_as_unreadable(path):
        size = path.stat().st_size
        if 0 in (shape if shape is not None else (size - offset,)):  # a map of nothing is refused
            return np.empty(shape if shape is not None else 0, dtype)
        return np.memmap(path, dtype, "r", offset, shape)


def load_bytes(path: Path) -> bytes:
    with told_as_unreadable(path):
        return path.read_bytes()


def load_array(path: Path, kind: Any) -> NDArray[Any]:
    """All of a file as an array of our own. Not np.fromfile: what a fault hides from it is missing without a word."""
    with told_as_unreadable(path):
        most = max(path.stat().st_size, 1)
    parts = list(read_arrays(path, kind, most))
    return parts[0] if parts else np.empty(0, kind)


def read_arrays(path: Path, kind: Any, rows: int) -> Iterator[NDArray[Any]]:
    """The same, so many rows at a time."""
    dtype = np.dtype(kind)
    with told_as_unreadable(path), path.open("rb", buffering=0) as file:
        left = os.fstat(file.fileno()).st_size // dtype.itemsize
        while left:
            part = np.empty(min(rows, left), dtype)
            view, done = memoryview(part.view(np.uint8).reshape(-1).data), 0
            while done < len(view):
                got = file.readinto(view[done:])
                if not got:
                    raise CorruptFile("ends early", where=str(path), next="run again to rebuild it")
                done += got
            left -= len(part)
            yield part


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

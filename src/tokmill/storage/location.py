"""Where bytes live: the one seam between the mill and the file system.

Everything that lists or opens input goes through here: an object store is one more branch on the scheme, and
nothing above it changes.

    find_files("data/*.jsonl.zst", base)            ->  sorted InputFile(name, path, bytes, modified_ns)
    find_files("s3://bucket/data/*.jsonl.zst", …)   ->  the same, of objects
    open_input(text, size)                          ->  the path that a task was told as text
    open_binary(path)                               ->  unbuffered binary stream
"""

from __future__ import annotations

import glob
import hashlib
import io
import os
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tokmill.errors import CorruptFile, EmptyGlob, InputError, StorageError
from tokmill.storage.objects.file import find_objects, from_url
from tokmill.storage.objects.url import is_url, parse_url
from tokmill.storage.reading import told_as_unreadable


class Sized(Protocol):
    @property
    def st_size(self) -> int: ...


class Remote(Protocol):
    """A file that is not on this machine: as much of a path as readers need."""

    @property
    def name(self) -> str: ...
    @property
    def suffix(self) -> str: ...
    @property
    def suffixes(self) -> list[str]: ...
    def stat(self) -> Sized: ...
    def open(self) -> io.RawIOBase: ...


AnyPath = Path | Remote


class InputFile(NamedTuple):
    """`name` is the path below the pattern's fixed part: what manifests record, the same on every machine.

    An object has no time that can be trusted: there `modified_ns` is a number made of its etag.
    """

    name: str
    path: AnyPath
    bytes: int
    modified_ns: int


def find_files(pattern: str, base: Path) -> list[InputFile]:
    """Every regular file that matches, sorted by name. Matching nothing is an error."""
    if is_url(pattern):
        return _find_objects(pattern)
    wanted = Path(pattern).expanduser()
    root = base / _fixed_part(wanted)
    found = set()  # "**/**" matches a file more than once
    # not Path.glob, which refuses absolute patterns; `base` apart, because a wildcard in its name is a letter
    for match in glob.glob(str(wanted), root_dir=base, recursive=True):  # noqa: PTH207
        path = base / match
        if match.endswith(os.sep):  # what is below a name; also said of a file, by "a.jsonl/**"
            continue
        if path.is_file():
            stat = path.stat()
            found.add(InputFile(path.relative_to(root).as_posix(), path, stat.st_size, stat.st_mtime_ns))
        elif not path.exists():
            raise StorageError(
                "is a link to a file that is not there",
                where=str(path),
                next="fetch the file it points to, or remove the link",
            )
    if not found:
        raise EmptyGlob(
            "the pattern matches no file",
            where=pattern,
            next=_why_empty(root, base),
        )
    return sorted(found)


def _find_objects(pattern: str) -> list[InputFile]:
    found = find_objects(pattern)
    if not found:
        raise EmptyGlob(
            "the pattern matches no object",
            where=str(parse_url(pattern)),
            next="check the bucket and the key; `*` does not cross a slash",
        )
    return [InputFile(name, file, file.size, file.version_number) for name, file in found]


def open_input(text: str, size: int) -> AnyPath:
    """What `str(path)` of an input file was: how a task is told which one to read."""
    return from_url(text, size) if is_url(text) else Path(text)


def local_path(path: AnyPath) -> Path:
    """For whoever needs the file on this machine."""
    if not isinstance(path, Path):
        raise InputError(
            "is not on this machine, and is needed here as a file",
            where=str(path),
            next="copy it to a directory of this machine and name it there",
        )
    return path


class Metered:
    """A file that counts the bytes that are read from it, in however many openings: how far a reader went."""

    def __init__(self, path: AnyPath) -> None:
        self._path = path
        self.name, self.suffix, self.suffixes = path.name, path.suffix, path.suffixes
        self.bytes_read = 0

    def __str__(self) -> str:
        return str(self._path)

    def stat(self) -> Sized:
        return self._path.stat()

    def open(self) -> io.RawIOBase:
        return _MeteredBytes(open_binary(self._path), self)


class _MeteredBytes(io.RawIOBase):
    def __init__(self, raw: io.RawIOBase, meter: Metered) -> None:
        super().__init__()
        self._raw, self._meter = raw, meter

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._raw.seek(offset, whence)

    def tell(self) -> int:
        return self._raw.tell()

    def readinto(self, buffer: Any) -> int:
        count: int = self._raw.readinto(buffer) or 0
        self._meter.bytes_read += count
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def open_binary(path: AnyPath) -> io.RawIOBase:
    if not isinstance(path, Path):
        return path.open()
    with told_as_unreadable(path):
        return io.FileIO(path, "rb")


def file_sha256(path: AnyPath) -> str:
    with open_binary(path) as file, told_as_unreadable(path):
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_whole(path: Path, max_bytes: int) -> bytes:
    """A small file in one piece; a larger one than `max_bytes` is refused before it is read."""
    with open_binary(path) as file, told_as_unreadable(path):
        size = path.stat().st_size
        if size > max_bytes:
            raise InputError(f"{size:,} bytes is more than the {max_bytes:,} expected here", where=str(path))
        data = file.readall()
    if len(data) != size:
        raise CorruptFile(f"{len(data):,} of {size:,} bytes could be read", where=str(path))
    return data


def is_within(path: str) -> bool:
    """Whether a path that a file lists stays in the directory that it is relative to."""
    return bool(path) and not path.startswith("/") and ".." not in path.split("/") and "\0" not in path


def _fixed_part(pattern: Path) -> Path:
    """The directory above the first wildcard; of a plain path, its parent."""
    for index, part in enumerate(pattern.parts):
        if glob.has_magic(part):
            return Path(*pattern.parts[:index])
    return pattern.parent


def _why_empty(root: Path, base: Path) -> str:
    shown = root.relative_to(base) if root.is_relative_to(base) else root
    if not root.is_dir():
        return f"there is no directory {shown}/; paths are relative to the recipe"
    names = sorted(entry.name for entry in root.iterdir())
    some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return f"{shown}/ holds {len(names)} entries" + (f": {some}" if names else "")

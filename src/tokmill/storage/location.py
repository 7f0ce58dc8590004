"""Where bytes live: the one seam between the mill and the file system.

Everything that opens input goes through here: an object store is one more branch on the scheme, and nothing
above it changes. Which files a pattern means is in patterns.py.

    open_input(text, size)      ->  the path that a task was told as text
    open_binary(path)           ->  unbuffered binary stream

An object as an input is one version of it: str(file) is s3://bucket/data/a.jsonl.zst#etag="9b2c…", which a
task is told. Each range is read under If-Match: a version that is gone is an error, never a mixture.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol

from tokmill.errors import CorruptFile, InputError, StorageError
from tokmill.storage.disk import open_regular, told_as_unreadable
from tokmill.storage.objects import open_store
from tokmill.storage.on_demand import at_hand

# --- the address of an object: scheme, bucket and key ---
# it is written down and shown, so it carries no secret

SCHEMES = ("s3", "gs", "az", "memory")

_SCHEME = re.compile(r"^([a-z][a-z0-9+.-]+)://")
_SQUEEZED = re.compile(rf"^({'|'.join(SCHEMES)}):/[^/]")
# "?" is also a wildcard: only what a signed URL carries is taken for a query
_SIGNED = re.compile(
    r"[?&](x-amz-|x-goog-|awsaccesskeyid=|googleaccessid=|signature=|sig=|sv=|token=)", re.IGNORECASE
)


class ObjectUrl(NamedTuple):
    """`key` may be empty (the bucket itself), has no leading slash, and is not percent-encoded."""

    scheme: str
    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}"

    def child(self, path: str) -> ObjectUrl:
        return self._replace(key=f"{self.key}/{path}" if self.key else path)


def is_url(location: object) -> bool:
    return _SCHEME.match(str(location)) is not None


def parse_url(text: str) -> ObjectUrl:
    scheme = _SCHEME.match(text)
    name = scheme[1] if scheme else ""
    if name not in SCHEMES:
        raise StorageError(
            f"{name}:// is not an object store that tokmill knows",
            where=_shown(text),
            next="give an s3://, gs://, az:// or memory:// URL, or a directory of this machine",
        )
    bucket, _, key = text[len(name) + 3 :].partition("/")
    if "@" in bucket or _SIGNED.search(text):
        raise StorageError(
            "the URL has a secret in it, and URLs are written down",
            where=_shown(text),
            next="take it out; credentials come from the environment (docs/object-storage.md)",
        )
    if not bucket:
        raise StorageError("the URL names no bucket", where=text, next=f"write {name}://BUCKET/KEY")
    key = key.strip("/")
    if "//" in key or any(part in (".", "..") for part in key.split("/")):
        raise StorageError(
            "the key has an empty part, or one that is `.` or `..`", where=text, next="write the key as it is"
        )
    return ObjectUrl(name, bucket, key)


def refuse_url(location: object, what: str) -> None:
    """For whatever works on directories of this machine."""
    if is_url(location):
        raise StorageError(
            f"{what} works on a directory of this machine",
            where=_shown(str(location)),
            next="bring it here first: `tokmill fetch URL DIRECTORY`",
        )
    refuse_squeezed_url(location)


def refuse_squeezed_url(location: object) -> None:
    """Path("s3://a/b") is "s3:/a/b": nobody means the directory `s3:`."""
    if _SQUEEZED.match(str(location)):
        raise StorageError(
            "a Path has made one slash of the two of a URL",
            where=_shown(str(location)),
            next="give the URL as a string",
        )


def _shown(text: str) -> str:
    """Without user, password and query."""
    text = re.sub(r"://[^/]*@", "://***@", text)
    signed = _SIGNED.search(text)
    return f"{text[: signed.start()]}?***" if signed else text


# --- files and objects ---


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
    `written` is the whole path in the words of the pattern, of what a pattern found.

    An object has no time that can be trusted: there `modified_ns` is a number made of its etag.
    """

    name: str
    path: AnyPath
    bytes: int
    modified_ns: int
    written: str = ""


def marks_of_place(path: AnyPath) -> Iterator[str]:
    """Of a file or directory of this machine, where it is and which one it is: either is enough to know it
    again, moved or seen from another node. An object's version is known by its etag."""
    if is_url(path):
        return
    yield hashlib.sha256(os.fsencode(os.path.realpath(str(path)))).hexdigest()[:16]
    with contextlib.suppress(OSError):
        there = Path(str(path)).stat()
        yield f"{there.st_dev}:{there.st_ino}"


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
    at_hand(path)
    with told_as_unreadable(path):
        return io.FileIO(path, "rb")


def file_sha256(path: AnyPath) -> str:
    with open_binary(path) as file, told_as_unreadable(path):
        return hashlib.file_digest(file, "sha256").hexdigest()


def _open_small(path: AnyPath) -> io.RawIOBase:
    """Open a file of this machine only if it is a regular one; an object of a store always is."""
    return open_regular(path) if isinstance(path, Path) else path.open()


def read_whole(path: Path, max_bytes: int) -> bytes:
    """A small file in one piece; a larger one than `max_bytes` is refused before it is read."""
    at_hand(path)
    with told_as_unreadable(path), _open_small(path) as file:
        size = path.stat().st_size
        if size > max_bytes:
            raise InputError(f"{size:,} bytes is more than the {max_bytes:,} expected here", where=str(path))
        data = file.readall()
    if len(data) != size:
        raise CorruptFile(f"{len(data):,} of {size:,} bytes could be read", where=str(path))
    return data


# As most systems have it: asked about longer ones, they raise what says nothing about a file.
_MAX_NAME_BYTES, _MAX_PATH_BYTES = 255, 4096


def is_within(path: str) -> bool:
    """Whether a path that a file lists stays in the directory that it is relative to, and can be a path."""
    names = path.split("/")
    if not path or path.startswith("/") or ".." in names or "\0" in path:
        return False
    spelled = [len(name.encode(errors="surrogatepass")) for name in names]
    return max(spelled) <= _MAX_NAME_BYTES and sum(spelled) + len(spelled) <= _MAX_PATH_BYTES


# Objects

_ETAG = "#etag="


class Stat(NamedTuple):
    st_size: int


class ObjectFile(NamedTuple):
    """One version of one object; for a reader, what a path is."""

    url: ObjectUrl
    size: int
    etag: str
    modified: str = ""

    @property
    def name(self) -> str:
        return PurePosixPath(self.url.key).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.url.key).suffix

    @property
    def suffixes(self) -> list[str]:
        return PurePosixPath(self.url.key).suffixes

    def __str__(self) -> str:
        return f"{self.url}{_ETAG}{self.etag}"

    @property
    def version_number(self) -> int:
        """Etag and time as a number, where a local file has its time of change."""
        digest = hashlib.sha256(f"{self.etag} {self.modified}".encode()).digest()
        return int.from_bytes(digest[:7], "big")  # exact in JSON wherever it is read

    def stat(self) -> Stat:
        return Stat(self.size)

    def open(self) -> io.RawIOBase:
        store, key = open_store(self.url), self.url.key
        return RangedBytes(self.size, lambda start, end: store.read(key, start, end, self.etag))


def from_url(text: str, size: int) -> ObjectFile:
    """The file that `str(file)` names."""
    url, _, etag = text.rpartition(_ETAG)
    assert url, f"{text} is not a version of an object"
    return ObjectFile(parse_url(url), size, etag)


# A file that is read by ranges: little after a jump (a Parquet footer),
# twice as much each time reading goes on

MIN_FETCH_BYTES = 64 << 10
MAX_FETCH_BYTES = 16 << 20

Fetch = Callable[[int, int], bytes | bytearray]


class RangedBytes(io.RawIOBase):
    """`fetch(start, end)` gives exactly those bytes. Unbuffered as a local file is;
    a read returns all it was asked for."""

    def __init__(self, size: int, fetch: Fetch, max_fetch_bytes: int = MAX_FETCH_BYTES) -> None:
        super().__init__()
        self._size, self._fetch, self._max_fetch_bytes = size, fetch, max_fetch_bytes
        self._position = 0
        self._start = 0
        self._held: bytes | bytearray = b""  # the range fetched last
        self._ahead = MIN_FETCH_BYTES

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._refuse_if_closed()
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"negative seek position {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        self._refuse_if_closed()
        view = memoryview(buffer).cast("B")
        filled = 0
        while filled < len(view) and self._position < self._size:
            at = self._position - self._start
            if not 0 <= at < len(self._held):
                self._hold(len(view) - filled)
                at = 0
            piece = memoryview(self._held)[at : at + len(view) - filled]
            view[filled : filled + len(piece)] = piece
            filled += len(piece)
            self._position += len(piece)
        return filled

    def readall(self) -> bytes:
        return self.read(max(self._size - self._position, 0)) or b""

    def close(self) -> None:
        self._held = b""
        super().close()

    def _refuse_if_closed(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _hold(self, wanted: int) -> None:
        goes_on = bool(self._held) and self._position == self._start + len(self._held)
        self._ahead = min(2 * self._ahead, self._max_fetch_bytes) if goes_on else MIN_FETCH_BYTES
        end = min(self._position + max(wanted, self._ahead), self._size)
        self._start, self._held = self._position, self._fetch(self._position, end)

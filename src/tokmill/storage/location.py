"""Where bytes live: the one seam between the mill and the file system.

Everything that lists or opens input goes through here: an object store is one more branch on the scheme, and
nothing above it changes.

    find_files("data/*.jsonl.zst", base)            ->  sorted InputFile(name, path, bytes, modified_ns)
    find_files("s3://bucket/data/*.jsonl.zst", …)   ->  the same, of objects
    open_input(text, size)                          ->  the path that a task was told as text
    open_binary(path)                               ->  unbuffered binary stream

An object as an input is one version of it: str(file) is s3://bucket/data/a.jsonl.zst#etag="9b2c…", which a
task is told. Each range is read under If-Match: a version that is gone is an error, never a mixture. A
pattern means what it means on a disk: `*` stays within a part of the key, `**` is any number of parts, and
what begins with a dot is found only by a dot.
"""

from __future__ import annotations

import difflib
import fnmatch
import glob
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol

from tokmill.errors import CorruptFile, EmptyGlob, InputError, StorageError
from tokmill.storage.cloud import Meta
from tokmill.storage.disk import told_as_unreadable
from tokmill.storage.elsewhere import at_hand
from tokmill.storage.objects import open_store

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

    An object has no time that can be trusted: there `modified_ns` is a number made of its etag.
    """

    name: str
    path: AnyPath
    bytes: int
    modified_ns: int


def find_files(pattern: str, base: Path) -> list[InputFile]:
    """Every regular file that matches, sorted by name; of a dataset that was saved to disk, its files.
    Matching nothing is an error. `a-{00..12}.tar` is thirteen names, and none of them may be missing."""
    is_a_name = not is_url(pattern) and (base / Path(pattern).expanduser()).exists()
    if not is_a_name and (several := _spelled_out(pattern)):
        return [file for one in several for file in find_files(one, base)]
    if is_url(pattern):
        return _object_files(pattern)
    wanted = Path(pattern).expanduser()
    root = base / Path(*fixed_part(wanted.parts))
    found = set()  # "**/**" matches a file more than once
    # not Path.glob, which refuses absolute patterns; `base` apart, because a wildcard in its name is a letter
    for match in glob.glob(str(wanted), root_dir=base, recursive=True):  # noqa: PTH207
        path = base / match
        if match.endswith(os.sep):  # what is below a name; also said of a file, by "a.jsonl/**"
            continue
        if path.is_file():
            stat = path.stat()
            found.add(InputFile(path.relative_to(root).as_posix(), path, stat.st_size, stat.st_mtime_ns))
        elif path.is_dir():  # what `**` finds is also found file by file
            for part in _saved_files(path) if "**" not in pattern else ():
                stat = part.stat()
                found.add(InputFile(part.relative_to(root).as_posix(), part, stat.st_size, stat.st_mtime_ns))
        elif not path.exists():
            raise StorageError(
                "is a link to a file that is not there",
                where=str(path),
                next="fetch the file it points to, or remove the link",
            )
    if not found and (base / wanted).is_dir():
        raise _is_directory(pattern)
    if not found:
        raise EmptyGlob(
            "the pattern matches no file",
            where=pattern,
            next=_why_empty(root, base, PurePosixPath(pattern).name),
        )
    return sorted(found)


def _is_directory(pattern: str) -> EmptyGlob:
    path = pattern.rstrip("/") or "/"
    return EmptyGlob(
        "matches no file: it is a directory",
        where=pattern,
        next=f"name the files in it: `files: {path}/*.jsonl`, or `files: {path}/**/*.jsonl` for those "
        f"below; where every file is a document: `directory: {{path: {path}}}` instead of `files`",
    )


_NUMBERS = re.compile(r"\{(\d{1,9})\.\.(\d{1,9})\}")
_MAX_SPELLED = 100_000


def _spelled_out(pattern: str) -> list[str]:
    """Names of `a-{00..12}`, as shells and WebDataset write numbered shards; of any other pattern none."""
    numbers = _NUMBERS.search(pattern)
    if numbers is None:
        return []
    first, last = numbers.groups()
    count = int(last) - int(first) + 1
    if not 0 < count <= _MAX_SPELLED:
        raise InputError(
            f"`{numbers[0]}` is {max(count, 0):,} numbers",
            where=pattern,
            next=f"write them from the smaller to the larger, {_MAX_SPELLED:,} at most, or use `*`",
        )
    return [
        f"{pattern[: numbers.start()]}{number:0{len(first)}d}{pattern[numbers.end() :]}"
        for number in range(int(first), int(last) + 1)
    ]


_STATE, _SPLITS = "state.json", "dataset_dict.json"
_MAX_STATE_BYTES = 16 << 20


def _saved_files(directory: Path) -> list[Path]:
    """Of a directory that `save_to_disk` of `datasets` wrote, the files that it names; of any other none.

    saved/state.json           {"_data_files": [{"filename": "data-00000-of-00001.arrow"}, …], …}
    saved/dataset_dict.json    {"splits": ["train", …]}      a directory for each, as above
    """
    if (directory / _SPLITS).is_file():
        splits = _said_in(directory / _SPLITS, "splits")
        raise InputError(
            f"it has the splits {', '.join(map(str, splits))}",
            where=str(directory),
            next=f"name one of them: `files: {directory.name}/{splits[0] if splits else 'train'}`",
        )
    state = directory / _STATE
    if not (state.is_file() and (directory / "dataset_info.json").is_file()):
        return []
    names = [
        entry.get("filename") if isinstance(entry, dict) else None for entry in _said_in(state, "_data_files")
    ]
    files = [directory / name for name in names if isinstance(name, str) and is_within(name)]
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None or len(files) < len(names) or not files:
        raise CorruptFile(
            f"names {missing.name if missing else 'no file of this directory'}, and it is not there",
            where=str(state),
            next="save or copy the dataset again",
        )
    return files


def _said_in(path: Path, key: str) -> list[Any]:
    try:
        said = json.loads(read_whole(path, _MAX_STATE_BYTES)).get(key)
    except (ValueError, AttributeError, RecursionError):
        said = None
    if not isinstance(said, list):
        raise CorruptFile(f"has no list of `{key}`", where=str(path), next="save or copy the dataset again")
    return said


def _object_files(pattern: str) -> list[InputFile]:
    found = find_objects(pattern)
    if not found:
        raise EmptyGlob(
            "the pattern matches no object",
            where=str(parse_url(pattern)),
            next="check the bucket and the key; `*` does not cross a slash",
        )
    return found


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


# As most systems have it: asked about longer ones, they raise what says nothing about a file.
_MAX_NAME_BYTES, _MAX_PATH_BYTES = 255, 4096


def is_within(path: str) -> bool:
    """Whether a path that a file lists stays in the directory that it is relative to, and can be a path."""
    names = path.split("/")
    if not path or path.startswith("/") or ".." in names or "\0" in path:
        return False
    spelled = [len(name.encode(errors="surrogatepass")) for name in names]
    return max(spelled) <= _MAX_NAME_BYTES and sum(spelled) + len(spelled) <= _MAX_PATH_BYTES


def fixed_part(parts: Sequence[str]) -> Sequence[str]:
    """Of a pattern, what is above the first wildcard; of a plain path, its parent."""
    return parts[: next((n for n, part in enumerate(parts) if glob.has_magic(part)), -1)]


def _why_empty(root: Path, base: Path, last: str) -> str:
    shown = root.relative_to(base) if root.is_relative_to(base) else root
    if not root.is_dir():
        return f"there is no directory {shown}/; paths are relative to the recipe"
    names = sorted(entry.name for entry in root.iterdir())
    if not glob.has_magic(last) and (nearest := difflib.get_close_matches(last, names, 1, 0.8)):
        return f"did you mean {shown / nearest[0]}?"
    some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return f"{shown}/ holds {len(names)} entries" + (f": {some}" if names else "")


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


def find_objects(pattern: str) -> list[InputFile]:
    """Every object that matches, by its name below the pattern's fixed part; sorted."""
    url = parse_url(pattern)
    store = open_store(url)
    wanted = url.key.split("/")
    fixed = "/".join(fixed_part(wanted))
    if not glob.has_magic(url.key):
        meta = store.head(url.key)
        return [] if meta is None else [_found(url, meta, fixed)]
    listed = {meta.key: meta for meta in store.list(f"{fixed}/" if fixed else "")}  # a page may come twice
    return [_found(url, listed[key], fixed) for key in sorted(listed) if _matches(key.split("/"), wanted)]


def _found(url: ObjectUrl, meta: Meta, fixed: str) -> InputFile:
    name = meta.key.removeprefix(f"{fixed}/") if fixed else meta.key
    file = ObjectFile(url._replace(key=meta.key), meta.size, meta.etag, meta.modified)
    return InputFile(name, file, file.size, file.version_number)


def _matches(parts: list[str], wanted: list[str]) -> bool:
    if not wanted:
        return not parts
    if wanted[0] == "**":
        visible = next((n for n, part in enumerate(parts) if part.startswith(".")), len(parts))
        if len(wanted) == 1:
            return bool(parts) and visible == len(parts)
        return any(_matches(parts[n:], wanted[1:]) for n in range(visible + 1))
    if not parts or (parts[0].startswith(".") and not wanted[0].startswith(".")):
        return False
    return fnmatch.fnmatchcase(parts[0], wanted[0]) and _matches(parts[1:], wanted[1:])


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

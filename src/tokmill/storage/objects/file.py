"""An object as an input.

    find_objects("s3://bucket/data/*.jsonl.zst")   one listing, at planning
    str(file)  =  s3://bucket/data/a.jsonl.zst#etag="9b2c…"   ─ told to a task ─>  from_url(text, size)
    file.open()    ranges, each with If-Match: a version that is gone is an error, never a mixture

A pattern means what it means on a disk: `*` stays within a part of the key, `**` is any number of parts, and what
begins with a dot is found only by a dot.
"""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import io
from pathlib import PurePosixPath
from typing import NamedTuple

from tokmill.storage.objects.meta import Meta
from tokmill.storage.objects.store import open_store
from tokmill.storage.objects.url import ObjectUrl, parse_url
from tokmill.storage.ranged import RangedBytes

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


class Found(NamedTuple):
    name: str  # below the fixed part of the pattern
    file: ObjectFile


def find_objects(pattern: str) -> list[Found]:
    """Every object that matches, by its name below the pattern's fixed part; sorted."""
    url = parse_url(pattern)
    store = open_store(url)
    if not glob.has_magic(url.key):
        meta = store.head(url.key)
        return [] if meta is None else [_found(url, meta, url.key.rpartition("/")[0])]
    fixed = _fixed_part(url.key)
    wanted = url.key.split("/")
    listed = {meta.key: meta for meta in store.list(f"{fixed}/" if fixed else "")}  # a page may come twice
    return [_found(url, listed[key], fixed) for key in sorted(listed) if _matches(key.split("/"), wanted)]


def _found(url: ObjectUrl, meta: Meta, fixed: str) -> Found:
    name = meta.key.removeprefix(f"{fixed}/") if fixed else meta.key
    return Found(name, ObjectFile(url._replace(key=meta.key), meta.size, meta.etag, meta.modified))


def _fixed_part(key: str) -> str:
    parts = key.split("/")
    return "/".join(parts[: next(index for index, part in enumerate(parts) if glob.has_magic(part))])


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

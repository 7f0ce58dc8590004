"""The description beside ids, meta.json: sorted keys, written last; and what its files must be."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import msgspec

from tokmill.artifacts.manifest import FileEntry, file_entry, fingerprint_of
from tokmill.errors import CorruptFile, InputError
from tokmill.storage.disk import Written, commit_bytes, load_bytes, remove_file
from tokmill.storage.location import is_within

T = TypeVar("T")


META_NAME = "meta.json"
Count = Annotated[int, msgspec.Meta(ge=0)]


def write_meta(path: Path, described: Mapping[str, object]) -> Written:
    encoded = msgspec.json.format(msgspec.json.encode(described, order="sorted"), indent=2)
    return commit_bytes(path, encoded + b"\n")


def load_meta(directory: Path, format: str, what: str, facts: type[T]) -> tuple[dict[str, Any], T]:
    """What a build of this format tells of itself: all that was written, and what its reader must know."""
    path = directory / META_NAME
    if not path.is_file():
        raise InputError(
            "no such file", where=str(path), next=f"give the directory of a finished {format} build"
        )
    try:
        meta = msgspec.json.decode(load_bytes(path), type=dict[str, Any])
        return meta, msgspec.convert(meta, facts)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise corrupt(f"not the description of {what} ({error})", path) from error


class SplitFacts(msgspec.Struct):
    """What the description of a split tells, whatever the format."""

    format: str
    n_seqs: Count
    n_tokens: Count
    seq_len: Annotated[int, msgspec.Meta(ge=1)] | None

    def check(self, name: str, path: Path) -> None:
        if self.format != name:
            raise corrupt(f"describes {self.format!r}, not {name}", path)
        if self.seq_len is not None and self.n_seqs * self.seq_len != self.n_tokens:
            rows = f"{self.n_seqs:,} rows of {self.seq_len:,}"
            raise corrupt(f"{self.n_tokens:,} tokens are not {rows}", path)


class FilePart(msgspec.Struct, frozen=True):
    """One of the files of a format that writes each by itself, and what is in it."""

    entry: FileEntry
    rows: int
    tokens: int


class ListedPart(Protocol):
    @property
    def file(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def tokens(self) -> int: ...


def check_parts(facts: SplitFacts, parts: Sequence[ListedPart], path: Path) -> None:
    if not all(is_within(part.file) for part in parts):
        raise corrupt("lists a file outside of its directory", path)
    sums = [sum(part.rows for part in parts), sum(part.tokens for part in parts)]
    if sums != [facts.n_seqs, facts.n_tokens]:
        raise corrupt("its parts do not add up to its sequences and tokens", path)


def described_as(name: str) -> Callable[[Path], bool]:
    """Is this a directory whose description says so?"""
    mark = f'"format": "{name}"'.encode()

    def recognizes(directory: Path) -> bool:
        meta = directory / META_NAME
        return meta.is_file() and mark in meta.read_bytes()

    return recognizes


def remove_stale(directory: Path, pattern: str, written: Collection[str]) -> None:
    """What an earlier, longer build left behind."""
    for path in sorted(directory.glob(pattern)):
        if path.name not in written:
            remove_file(path)


def meta_entry(directory: Path, written: Written) -> FileEntry:
    """Of meta.json: when it was written is not what it says."""
    described = json.loads(load_bytes(directory / META_NAME))
    del described["created_at"]
    return file_entry(META_NAME, "meta", written, rows=1, content_sha256=fingerprint_of(described))


def check_size(path: Path, expected: int) -> None:
    """Of a file that the description tells of."""
    if not path.is_file():
        raise CorruptFile(
            f"no such file, and {META_NAME} tells of it", where=str(path), next="copy the directory again"
        )
    size = path.stat().st_size
    if size != expected:
        raise corrupt(f"{size:,} bytes, but {META_NAME} describes {expected:,}", path)


def corrupt(what: str, path: Path | str) -> CorruptFile:
    return CorruptFile(
        what, where=str(path), next="copy the file again, or build it again: it is cut or damaged"
    )

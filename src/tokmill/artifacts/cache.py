"""What tasks found out about the texts of a shard, kept beside the run: the next one looks it up.

    <out>.cache/<step>/<texts>-<how>.<table>      texts: 16 characters of the digest of the shard's documents
                                                  how: a fingerprint of all else that it depends on

    file   CRC-32 of the rest 4 │ bytes of the header 8 │ header, JSON │ column │ column …
           header   {"columns": [[name, dtype, shape, bytes], …], "names": […]}
           column   zstd of its bytes in planes: all first bytes, then all second ones, …

A name says what the content depends on, and nothing else is in it: no number of a shard, no rank, no place.
So an entry is right for every run that asks for its name, and what it says is what the task would compute:
runs with a cache, without one, and with a part of one have the same digests. Nothing of it is listed in a
manifest. A file that is damaged, cut short or gone is one that was never there; writing one may fail, and
nothing is lost but time. Its checksum is of the kind that tells damage, and takes a fiftieth of the time of
SHA-256, which was a fifth of what it took to look up signatures.

All that is kept has at most 15 % of the bytes of the texts. Where that is not enough for all shards, those
with the longest documents are kept: they have the most text for what they take. Entries of shards that the
run no longer has go when the step begins, before anything else is done: nothing of a document that was taken
down stays.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from zlib_ng import zlib_ng

from tokmill.artifacts.manifest import fingerprint_of
from tokmill.errors import TokmillError
from tokmill.storage.disk import (
    commit_bytes,
    is_temp,
    make_directory,
    place_beside,
    read_regular,
    storage_error,
    sync_directory,
)

_SUFFIX = ".cache"
_TEXTS_CHARS, _HOW_CHARS = 16, 24
_CHECKSUM_BYTES, _LENGTH_BYTES = 4, 8

# of a shard's texts, and of a partition of pairs (`tokmill.stages.dedup.compared`)
_ENTRY = re.compile(rf"([0-9a-f]{{{_TEXTS_CHARS}}}-[0-9a-f]{{{_HOW_CHARS}}}|\d{{5,}})\.\w+")

# Of an entry besides its rows: digest, header, and what a frame of zstd adds.
ENTRY_BYTES = 512

# Of the bytes of all texts. 112 positions of documents of 3.3 kB are 12.4 %.
MAX_SHARE = 0.145
# What is known of pairs of documents, likewise.
MAX_PAIRS_SHARE = 0.005


class Cached(msgspec.Struct, frozen=True):
    """Where a task finds what was kept, and may leave what it finds out: no part of its fingerprint."""

    directory: str
    names: tuple[str, ...]  # of each shard that it is about
    room: int  # bytes for what it leaves

    def path(self, table: str, name: str | None = None) -> Path:
        return Path(self.directory) / f"{name or self.names[0]}.{table}"


class Columns(NamedTuple):
    columns: dict[str, NDArray[Any]]
    names: list[str]


class _Header(msgspec.Struct):
    columns: list[tuple[str, str, list[int], int]]
    names: list[str]


def cache_directory(out: Path) -> Path:
    return place_beside(out, _SUFFIX)


def prepare_cache(out: Path, *, lean: bool) -> None:
    """There while the run works, where it keeps anything: tasks ask for it by its place."""
    if not lean:
        make_directory(cache_directory(out))
    else:
        _remove_steps(cache_directory(out), "*")


def cache_of(out: Path, step: str) -> Path | None:
    """Of one step; None where nothing is kept."""
    directory = cache_directory(out)
    return directory / step if directory.is_dir() else None


def cache_bytes(out: Path) -> int:
    """That the cache takes: files of the run that have a second name there take none."""
    entries = [entry for step in cache_directory(out).glob("*/") for entry in _entries(step)]
    files = [path for entry in entries for path in (entry, *entry.rglob("*")) if path.is_file()]
    stats = [path.lstat() for path in files]
    return sum(stat.st_size for stat in stats if stat.st_nlink == 1)


def entry_name(documents_sha256: str, how: Any) -> str:
    return f"{documents_sha256[:_TEXTS_CHARS]}-{fingerprint_of(how)[:_HOW_CHARS]}"


def sweep_texts(directory: Path, documents: Iterable[str]) -> None:
    """Entries of shards with other documents than these (their digests) go."""
    _remove(unknown_texts(directory, documents))


def sweep_table(directory: Path, table: str, names: Collection[str]) -> None:
    """Of one table, entries of other names than these."""
    wanted = {f"{name}.{table}" for name in names}
    _remove(p for p in _entries(directory) if p.suffix == f".{table}" and p.name not in wanted)


def unknown_texts(directory: Path, documents: Iterable[str]) -> list[Path]:
    """Entries that are of no shard with these documents."""
    present = {sha256[:_TEXTS_CHARS] for sha256 in documents}
    return [path for path in _entries(directory) if path.name.partition("-")[0] not in present]


def discard_cache(out: Path, step: str) -> None:
    """Of a step that the run no longer has."""
    kept = cache_directory(out)
    _remove_steps(kept, step)
    _remove_steps(kept, f"{step}.*")


def _remove_steps(kept: Path, pattern: str) -> None:
    """Entries of these steps, and directories that are empty then: files of others stay."""
    directories = [path for path in sorted(kept.glob(f"{pattern}/")) if path.is_dir()]
    for directory in directories:
        _remove(_entries(directory))
    for directory in (*directories, kept):
        if directory.is_dir() and not any(directory.iterdir()):
            _remove([directory])


def _entries(directory: Path) -> list[Path]:
    """Whatever else lies there is of others."""
    if not directory.is_dir():
        return []
    return [path for path in sorted(directory.iterdir()) if _ENTRY.fullmatch(path.name) or is_temp(path.name)]


def _remove(paths: Iterable[Path]) -> None:
    parents = set()
    for path in list(paths):
        try:
            if path.is_dir():
                shutil.rmtree(path)
            elif path.exists():
                path.unlink()
            else:
                continue
        except OSError as error:
            raise storage_error(error, path) from error
        parents.add(path.parent)
    for parent in sorted(parents):
        sync_directory(parent)


def allot(
    directory: Path, table: str, texts: Sequence[int], wanted: Sequence[int], reserved: float = 0.0
) -> list[int]:
    """Bytes that each shard may take for its entry of a table: what it wants, or nothing. `texts` are the
    bytes of their texts; what other tables take counts, and the share that is reserved for those to come."""
    others = [path for path in _entries(directory) if path.suffix != f".{table}" and path.is_file()]
    taken = max(sum(path.stat().st_size for path in others), int(reserved * sum(texts)))
    left = int(MAX_SHARE * sum(texts)) - taken
    rooms = [0] * len(texts)
    by_yield = sorted(range(len(texts)), key=lambda shard: (-texts[shard] / max(wanted[shard], 1), shard))
    for shard in by_yield:
        if wanted[shard] <= left:
            rooms[shard] = wanted[shard]
            left -= wanted[shard]
    return rooms


def save_columns(
    path: Path, columns: Mapping[str, NDArray[Any]], room: int, names: Sequence[str] = ()
) -> None:
    """Kept if it fits; a disk that is full, or cannot be written, keeps nothing."""
    packed = [(name, np.ascontiguousarray(column)) for name, column in columns.items()]
    bodies = [_pack(column) for _, column in packed]
    header = msgspec.json.encode(
        _Header(
            [
                (name, column.dtype.str, list(column.shape), len(body))
                for (name, column), body in zip(packed, bodies, strict=True)
            ],
            list(names),
        )
    )
    rest = b"".join([len(header).to_bytes(_LENGTH_BYTES, "little"), header, *bodies])
    if _CHECKSUM_BYTES + len(rest) <= room:
        with contextlib.suppress(TokmillError, OSError):
            commit_bytes(path, _checksum(rest) + rest)


def load_columns(path: Path) -> Columns | None:
    """None: not there, or not as it was written."""
    try:
        data = read_regular(path)
    except OSError:
        return None
    checksum, rest = data[:_CHECKSUM_BYTES], memoryview(data)[_CHECKSUM_BYTES:]
    if len(rest) < _LENGTH_BYTES or _checksum(rest) != checksum:
        return None
    at = _LENGTH_BYTES + int.from_bytes(rest[:_LENGTH_BYTES], "little")
    header = msgspec.json.decode(rest[_LENGTH_BYTES:at], type=_Header)
    columns = {}
    for name, kind, shape, size in header.columns:
        columns[name] = _unpack(rest[at : at + size], np.dtype(kind), shape)
        at += size
    return Columns(columns, header.names)


def _checksum(data: bytes | memoryview) -> bytes:
    return zlib_ng.crc32(data).to_bytes(_CHECKSUM_BYTES, "little")


def _pack(column: NDArray[Any]) -> bytes:
    planes = np.ascontiguousarray(column.reshape(-1).view(np.uint8).reshape(-1, column.dtype.itemsize).T)
    packed: bytes = pa.compress(planes.tobytes(), "zstd", asbytes=True)
    return packed


def _unpack(data: memoryview, kind: np.dtype[Any], shape: list[int]) -> NDArray[Any]:
    size = int(np.prod(shape)) * kind.itemsize
    plain = pa.decompress(data, size, "zstd", asbytes=True) if size else b""
    planes = np.frombuffer(plain, np.uint8).reshape(kind.itemsize, -1)
    rows = np.empty(planes.shape[::-1], np.uint8)
    for place, plane in enumerate(planes):  # a quarter of the time of a transposed copy
        rows[:, place] = plane
    return rows.reshape(-1).view(kind).reshape(shape)

"""Blocks of objects in a directory of this machine, which never hold more than so many bytes.

    object   |── block 0 ──|── block 1 ──|── block 2 ─|       4 MiB each, the last as long as it is
    row                  |----|                               read from the blocks that it lies in

    <cache>/blocks/<32 hex>/00000001    block 1 of one version of an object: the name is a hash of its URL,
                                        size and etag, so what was replaced is never read for what is there
    <cache>/blocks/lock                 held by who writes or evicts; in it, the bytes that blocks take
    <cache>/blocks/claim-1f             held by who brings a block whose number and object have this hash

Any number of processes share a cache. A block is brought once, the others wait for it; it is committed as
every file is, so what a killed process leaves has no block's name, and who evicts next removes it. Bytes are
counted before they are written. Evicted is what was read longest ago: every read sets the time of its file.

Nothing is kept open between two reads. So a block that is evicted gives its bytes back at once, and a fork
needs nothing of its parent. A row that is here takes some 30 µs of CPU, where one of a map takes 1.

    BlockCache(directory, max_bytes).fill(file, pieces)     bytes of an object to where they belong
    BlockArray(cache, file, dtype, offset, shape)           what np.memmap is of a file: rows are copies of it
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import CorruptFile, DiskFull, InputError
from tokmill.storage.disk import TEMP_PREFIX, commit_bytes, make_directory, told_as_unwritable
from tokmill.storage.location import ObjectFile
from tokmill.storage.objects import open_store

# A request takes some 30 ms before its first byte, as long as 3 MB take at 100 MB/s.
BLOCK_BYTES = 4 << 20
CACHE_BYTES = 32 << 30

_BLOCKS, _LOCK = "blocks", "lock"
_CLAIMS = 64
_AT_A_TIME = 8  # blocks that one read brings together
_OBJECT, _BLOCK = re.compile(r"[0-9a-f]{32}"), re.compile(r"[0-9]{8,}")


class Piece(NamedTuple):
    """Bytes of an object from `start` on, as many as `into` has room for."""

    start: int
    into: memoryview


class _Held(NamedTuple):
    modified_ns: int
    path: Path
    bytes: int


class BlockCache:
    def __init__(self, directory: Path, max_bytes: int, block_bytes: int = BLOCK_BYTES) -> None:
        if max_bytes < block_bytes:
            raise InputError(
                f"{max_bytes:,} bytes do not hold one block of {block_bytes:,}",
                where="cache_bytes",
                next="set the bytes of the split, so that each is sent once, or as many as there is room for",
            )
        self.directory, self.max_bytes, self.block_bytes = directory, max_bytes, block_bytes
        self._blocks = directory / _BLOCKS
        self._folders: dict[ObjectFile, str] = {}
        with told_as_unwritable(self._blocks):
            make_directory(self._blocks)

    def fill(self, file: ObjectFile, pieces: Iterable[Piece]) -> None:
        """Every piece; what is not here is brought, some blocks at a time."""
        by_block: dict[int, list[Piece]] = {}
        for piece in pieces:
            self._cut(piece, by_block)
        missing = [(number, some) for number, some in by_block.items() if not self._read(file, number, some)]
        if len(missing) == 1:
            self._bring(file, *missing[0])
        elif missing:
            with ThreadPoolExecutor(min(len(missing), _AT_A_TIME)) as pool:
                for waiting in [pool.submit(self._bring, file, *one) for one in missing]:
                    waiting.result()

    def _cut(self, piece: Piece, by_block: dict[int, list[Piece]]) -> None:
        start, into = piece
        while len(into):
            number, within = divmod(start, self.block_bytes)
            room = self.block_bytes - within
            by_block.setdefault(number, []).append(Piece(within, into[:room]))
            start, into = start + room, into[room:]

    def _read(self, file: ObjectFile, number: int, pieces: list[Piece]) -> bool:
        """From the block, whose time is now; False: it is not here, or is not whole."""
        try:
            descriptor = os.open(self._path(file, number), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            if os.fstat(descriptor).st_size != self._size(file, number):
                return False
            os.utime(descriptor)
            return all(_read_into(descriptor, start, into) for start, into in pieces)
        except OSError:  # a disk that cannot be read is no reason to stop: the object can
            return False
        finally:
            os.close(descriptor)

    def _bring(self, file: ObjectFile, number: int, pieces: list[Piece]) -> None:
        path = Path(self._path(file, number))
        start, size = number * self.block_bytes, self._size(file, number)
        with self._locked(f"claim-{_hash_of(path.parent.name, path.name) % _CLAIMS:02x}"):
            if self._read(file, number, pieces):  # another was quicker
                return
            data = open_store(file.url).read(file.url.key, start, start + size, file.etag)
            self._keep(path, data)
        for within, into in pieces:
            into[:] = data[within : within + len(into)]

    def _keep(self, path: Path, data: bytes) -> None:
        try:
            with self._locked(_LOCK) as lock:
                used = _counted(lock)
                if used is None or used + len(data) > self.max_bytes:
                    used = self._evict(len(data))
                # before the block: a kill leaves a number that is too large, never one that is too small
                with told_as_unwritable(self._blocks / _LOCK):
                    os.pwrite(lock, f"{used + len(data):020d}\n".encode(), 0)
                commit_bytes(path, data)
        except DiskFull as error:
            raise DiskFull(
                "no space left for a block of the cache; nothing half-written was kept",
                where=str(self.directory),
                next="set `cache_bytes` to less than the disk has free, or `cache` to another disk",
            ) from error

    def _evict(self, coming: int) -> int:
        """What was read longest ago goes, until a tenth is free:
        all are looked at here, and not for every block. Returns the bytes that stay."""
        most = self.max_bytes - max(coming, self.max_bytes // 10)
        held = sorted(self._held())
        used = sum(one.bytes for one in held)
        with told_as_unwritable(self._blocks):
            for one in held:
                if used <= most:
                    break
                one.path.unlink(missing_ok=True)
                used -= one.bytes
                with contextlib.suppress(OSError):  # others are in it
                    one.path.parent.rmdir()
        return used

    def _held(self) -> Iterator[_Held]:
        """The blocks. What was being written is no one's: who writes holds the lock, and it is ours."""
        with told_as_unwritable(self._blocks):
            for directory in os.scandir(self._blocks):
                if not _OBJECT.fullmatch(directory.name):
                    continue
                for entry in os.scandir(directory.path):
                    if entry.name.startswith(TEMP_PREFIX):
                        Path(entry.path).unlink(missing_ok=True)
                    elif _BLOCK.fullmatch(entry.name):
                        stat = entry.stat()
                        yield _Held(stat.st_mtime_ns, Path(entry.path), stat.st_size)

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[int]:
        """For this thread alone, of all processes. The kernel unlocks what a killed one held."""
        path = self._blocks / name
        with told_as_unwritable(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with told_as_unwritable(path):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            with contextlib.suppress(OSError):  # said, because a fork may have the descriptor too
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _path(self, file: ObjectFile, number: int) -> str:
        folder = self._folders.get(file)
        if folder is None:
            version = f"{file.url}\n{file.size}\n{file.etag}\n{self.block_bytes}"
            name = hashlib.sha256(version.encode()).hexdigest()[:32]
            folder = self._folders[file] = str(self._blocks / name)
        return f"{folder}/{number:08d}"

    def _size(self, file: ObjectFile, number: int) -> int:
        return min(self.block_bytes, file.size - number * self.block_bytes)


def _hash_of(*names: str) -> int:
    return int.from_bytes(hashlib.sha256("/".join(names).encode()).digest()[:8], "big")


def _counted(lock: int) -> int | None:
    """The bytes that the lock's file tells of; None: it is new, or somebody wrote into it."""
    told = os.pread(lock, 32, 0)
    return int(told) if re.fullmatch(rb"[0-9]{20}\n", told) else None


def _read_into(descriptor: int, start: int, into: memoryview) -> bool:
    while len(into):
        count = os.preadv(descriptor, [into], start)
        if not count:
            return False
        start, into = start + count, into[count:]
    return True


class BlockArray:
    """Numbers of an object, row after row from `offset` on. What is taken of it is an array of its own."""

    def __init__(
        self, cache: BlockCache, file: ObjectFile, dtype: Any, offset: int, shape: tuple[int, ...]
    ) -> None:
        self._cache, self._file, self._offset = cache, file, offset
        self.dtype, self.shape = np.dtype(dtype), shape
        self._width = math.prod(shape[1:]) * self.dtype.itemsize  # bytes of a row
        self.nbytes = len(self) * self._width
        if offset + self.nbytes > file.size:
            raise CorruptFile(
                f"ends early: {file.size:,} bytes of at least {offset + self.nbytes:,}",
                where=str(file.url),
                next="publish the run again, or copy the build again",
            )

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            assert step == 1, "rows side by side"
            return self._between(start, max(stop, start))
        if isinstance(key, np.ndarray) and key.ndim:
            return self.take(key)
        row = range(len(self))[int(key)]
        return self._between(row, row + 1)[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self._between(0, len(self)), dtype)

    def take(self, rows: NDArray[np.integer], axis: int = 0) -> NDArray[Any]:
        """A copy of these rows, to be written to."""
        assert axis == 0, "rows are taken"
        wanted = np.where(rows < 0, rows + len(self), rows).astype(np.int64)
        if wanted.size and not 0 <= int(wanted.min()) <= int(wanted.max()) < len(self):
            raise IndexError(f"rows {int(wanted.min())} to {int(wanted.max())} of {len(self)}")
        if len(self.shape) == 1:
            return self._numbers(wanted)
        taken = np.empty((len(wanted), *self.shape[1:]), self.dtype)
        places = _bytes_of(taken)
        starts = (self._offset + wanted * self._width).tolist()
        ends = range(0, len(places) + 1, self._width)
        pieces = [Piece(at, places[b : b + self._width]) for at, b in zip(starts, ends, strict=False)]
        self._cache.fill(self._file, pieces)
        return taken

    def view(self, dtype: Any) -> BlockArray:
        """The same bytes as other numbers."""
        kind = np.dtype(dtype)
        assert len(self.shape) == 1, "of one dimension"
        if self.nbytes % kind.itemsize:
            raise CorruptFile(
                f"{self.nbytes:,} bytes are no whole numbers of {kind.itemsize}",
                where=str(self._file.url),
                next="publish the run again, or copy the build again",
            )
        return BlockArray(self._cache, self._file, kind, self._offset, (self.nbytes // kind.itemsize,))

    def reshape(self, rows: int, width: int) -> BlockArray:
        assert rows == -1, "as many as there are"
        assert self.size % width == 0, "whole rows"
        return BlockArray(self._cache, self._file, self.dtype, self._offset, (self.size // width, width))

    def _between(self, start: int, stop: int) -> NDArray[Any]:
        taken = np.empty((stop - start, *self.shape[1:]), self.dtype)
        if taken.size:
            self._cache.fill(self._file, [Piece(self._offset + start * self._width, _bytes_of(taken))])
        taken.flags.writeable = False  # as a map is
        return taken

    def _numbers(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Of each block all that lies between the first and the last that are wanted of it."""
        taken = np.empty(len(rows), self.dtype)
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        blocks = (self._offset + ordered * self._width) // self._cache.block_bytes
        bounds = np.flatnonzero(np.diff(blocks, prepend=-1, append=-1)).tolist()
        spans = []
        for first, stop in itertools.pairwise(bounds):
            low, high = int(ordered[first]), int(ordered[stop - 1])
            spans.append((first, stop, low, np.empty(high - low + 1, self.dtype)))
        self._cache.fill(
            self._file,
            [Piece(self._offset + low * self._width, _bytes_of(span)) for _, _, low, span in spans],
        )
        for first, stop, low, span in spans:
            taken[order[first:stop]] = span[ordered[first:stop] - low]
        return taken


def _bytes_of(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data

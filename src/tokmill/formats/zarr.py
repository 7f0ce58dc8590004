"""One-dimensional arrays of integers in Zarr 3's sharded form, as tensorstore writes and reads them.

    zarr.json      the shape, 2^54 (an array that can be added to), and the codecs
    c/0 c/1 …      shards of 2^27 values; behind the last value there is none

shard    offset                  bytes  what (little-endian)
         0                              K chunks of 2^18 values, the last filled up with zeros; each:
                                    16  the header of a Blosc frame
                              W * 2^18  values, W bytes each
         K * (16 + W * 2^18)      8192  of all 512 chunks offset and bytes, uint64; 2^64 - 1 twice: not there
         … + 8192                    4  CRC-32C of these 8,192 bytes

frame    0    1  2, the version of Blosc's frames
         1    1  1, the version of LZ4's
         2    1  0x23: LZ4, bytes shuffled, and stored as they are
         3    1  W
         4    4  bytes of values, uint32
         8    4  bytes of a block, uint32: half of them
         12   4  bytes of the frame, uint32

The codecs are those that Levanter opens its caches with; it takes no others. A frame that is stored as it is
is what Blosc itself writes where ids do not get smaller, and it needs no package: values are written as they
come and mapped where they lie.

Sources: "Zarr core specification (version 3)" and "Sharding codec (version 1.0)", zarr-specs.readthedocs.io;
README_CHUNK_FORMAT.rst of c-blosc 1.21.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import FileEntry, file_entry
from tokmill.formats.description import check_size, corrupt, remove_stale
from tokmill.formats.ids import Pieces
from tokmill.formats.stores import Ids, plain
from tokmill.storage.disk import commit_bytes, load_bytes, map_array, open_commit, told_as_unreadable

_HEADER = 16
_SHAPE = 1 << 54
_DESCRIPTION = "zarr.json"


class Grid(NamedTuple):
    chunk: int = 1 << 18  # values of a chunk
    chunks: int = 512  # of a shard

    @property
    def shard(self) -> int:
        return self.chunk * self.chunks

    def chunks_of(self, count: int) -> Iterator[int]:
        """Of every shard of so many values."""
        for start in range(0, count, self.shard):
            yield -(-min(count - start, self.shard) // self.chunk)


GRID = Grid()  # Levanter's


def write_array(
    directory: Path,
    name: str,
    values: Iterable[NDArray[np.integer]],
    *,
    count: int,
    kind: str,
    table: str,
    grid: Grid = GRID,
) -> list[FileEntry]:
    """`count` values into `directory/name`; paths are relative to `directory`."""
    pieces, entries = Pieces(values, kind, str(directory / name)), []
    item = np.dtype(kind).itemsize
    written = []
    for number, chunks in enumerate(grid.chunks_of(count)):
        path = f"{name}/c/{number}"
        left = min(count - number * grid.shard, grid.shard)
        with open_commit(directory / path) as file:
            for _ in range(chunks):
                here = min(left, grid.chunk)
                file.write(_frame_header(grid, item))
                for piece in pieces.take(here):
                    file.write(piece)
                if here < grid.chunk:
                    file.write(bytes(item * (grid.chunk - here)))
                left -= here
            file.write(_index(grid, chunks, item))
        written.append(str(number))
        entries.append(file_entry(path, table, file.written, rows=0))
    assert pieces.is_empty(), f"{directory / name}: more values came than were counted"
    remove_stale(directory / name, "c/*", written)
    path = f"{name}/{_DESCRIPTION}"
    described = commit_bytes(directory / path, _description(grid, kind))
    return [*entries, file_entry(path, "meta", described, rows=1)]


class ZarrArray:
    """`count` values that `write_array` wrote: sizes, description and the tables of shards are as they must
    be; values are mapped when touched."""

    def __init__(self, directory: Path, count: int, kind: str, grid: Grid = GRID) -> None:
        self._directory, self._grid, self._count = directory, grid, count
        self._kind = np.dtype(kind).newbyteorder("<")
        self._header = _HEADER // self._kind.itemsize
        self._width = self._header + grid.chunk  # of a chunk, in values
        self._chunks = list(grid.chunks_of(count))
        self._shards: dict[int, Ids] = {}
        for path, expected in self.files():
            check_size(path, expected)
        path = directory / _DESCRIPTION
        if load_bytes(path) != _description(grid, kind):
            raise corrupt("describes another array than Levanter opens", path)
        for number, chunks in enumerate(self._chunks):
            self._check_index(self._path(number), chunks)

    def files(self) -> Iterator[tuple[Path, int]]:
        for number, chunks in enumerate(self._chunks):
            size = _HEADER + self._grid.chunk * self._kind.itemsize
            yield self._path(number), chunks * size + 16 * self._grid.chunks + 4
        yield self._directory / _DESCRIPTION, len(_description(self._grid, self._kind.name))

    def take(self, begin: int, end: int) -> Ids:
        """A view where all lie in one chunk, and otherwise a copy."""
        if end <= begin:
            return plain(np.empty(0, self._kind))
        first, last = begin // self._grid.chunk, (end - 1) // self._grid.chunk
        parts = []
        for chunk in range(first, last + 1):
            start = chunk * self._grid.chunk
            parts.append(self._values(chunk, max(begin - start, 0), min(end - start, self._grid.chunk)))
        return parts[0] if len(parts) == 1 else plain(np.concatenate(parts))

    def at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        found = np.empty(len(places), np.int64)
        numbers = places // self._grid.shard
        for number in np.unique(numbers).tolist():
            mine = numbers == number
            chunks, within = np.divmod(places[mine] % self._grid.shard, self._grid.chunk)
            found[mine] = self._shard(number)[chunks * self._width + self._header + within]
        return found

    def read_chunks(self) -> Iterator[tuple[Path, Ids]]:
        """All values, with the file that they are in; headers and what fills the last chunk are looked at."""
        expected = np.frombuffer(_frame_header(self._grid, self._kind.itemsize), self._kind)
        for number, chunks in enumerate(self._chunks):
            path = self._path(number)
            for chunk in range(chunks):
                turn = number * self._grid.chunks + chunk
                if (self._values(turn, -self._header, 0) != expected).any():
                    raise corrupt(f"chunk {chunk} has another header than a stored Blosc frame", path)
                values = self._values(turn, 0, self._grid.chunk)
                here = self._count - turn * self._grid.chunk
                if values[here:].any():
                    raise corrupt("holds values behind its last one", path)
                yield path, values[:here]

    def _path(self, number: int) -> Path:
        return self._directory / "c" / str(number)

    def _values(self, chunk: int, start: int, stop: int) -> Ids:
        begin = chunk % self._grid.chunks * self._width + self._header
        values: Ids = self._shard(chunk // self._grid.chunks)[begin + start : begin + stop]
        return values

    def _shard(self, number: int) -> Ids:
        """A header is as wide as some values: a shard is one array of headers and values."""
        shard = self._shards.get(number)
        if shard is None:
            shape = (self._chunks[number] * self._width,)
            shard = self._shards[number] = plain(map_array(self._path(number), self._kind, shape=shape))
        return shard

    def _check_index(self, path: Path, chunks: int) -> None:
        expected = _index(self._grid, chunks, self._kind.itemsize)
        with told_as_unreadable(path), path.open("rb") as file:
            file.seek(-len(expected), 2)
            if file.read() != expected:
                raise corrupt("does not end with the table of its chunks", path)


def _frame_header(grid: Grid, item: int) -> bytes:
    size = grid.chunk * item
    return bytes([2, 1, 0x23, item]) + np.array([size, size // 2, size + _HEADER], "<u4").tobytes()


def _index(grid: Grid, chunks: int, item: int) -> bytes:
    table = np.full((grid.chunks, 2), (1 << 64) - 1, "<u8")
    size = _HEADER + grid.chunk * item
    table[:chunks, 0] = np.arange(chunks) * size
    table[:chunks, 1] = size
    spelled = table.tobytes()
    return spelled + _crc32c(spelled).to_bytes(4, "little")


def _description(grid: Grid, kind: str) -> bytes:
    """As tensorstore spells it."""
    in_order = {"name": "bytes", "configuration": {"endian": "little"}}
    blosc = {
        "name": "blosc",
        "configuration": {
            "blocksize": 0,
            "clevel": 5,
            "cname": "lz4",
            "shuffle": "shuffle",
            "typesize": np.dtype(kind).itemsize,
        },
    }
    sharding = {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": [grid.chunk],
            "codecs": [in_order, blosc],
            "index_codecs": [in_order, {"name": "crc32c"}],
        },
    }
    described = {
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [grid.shard]}},
        "chunk_key_encoding": {"name": "default"},
        "codecs": [sharding],
        "data_type": kind,
        "fill_value": 0,
        "node_type": "array",
        "shape": [_SHAPE],
        "zarr_format": 3,
    }
    return json.dumps(described, sort_keys=True, separators=(",", ":")).encode()


def _crc32c(data: bytes) -> int:
    """Castagnoli's; zlib has another. A table of a shard is 8 KB: a loop will do."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _crc_table() -> list[int]:
    values = list(range(256))
    for _ in range(8):
        values = [value >> 1 ^ (0x82F63B78 if value & 1 else 0) for value in values]
    return values


_CRC = _crc_table()

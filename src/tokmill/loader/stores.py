"""The files of one split behind one face, whatever their format: a row is its ids, without padding.

    RowStore        memmap, npy     rows of one length, mapped; `block(rows)` takes many at once
    BareStore       bare npy        the same of shards that nothing describes but their headers
    MegatronStore   megatron        lengths and pointers are mapped: opening reads 34 bytes
    PartedStore     token cache     a part is mapped when a row of it is asked for
                    parquet         a shard is decoded when a row of it is asked for, and kept while there is room

Nothing here knows what the ids mean. Readers are imported for the format that is there, so that a trainer which maps
rows needs neither Arrow nor the reading of anything else.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import CorruptFile
from tokmill.formats.ids import cast_ids

Ids = NDArray[np.integer]

# Of Parquet shards that are held decoded: 1 GB.
_HELD_TOKENS = 1 << 28


class RowStore:
    """Shards of `rows_per_shard` rows each, mapped when first touched; a memmap is one shard."""

    _shards: list[Ids | None]
    _whole: Ids | None

    def __init__(self, directory: Path, format: str) -> None:
        self.format = format
        self._directory = directory
        if format == "memmap":
            from tokmill.formats.memmap import IDS_NAME, MemmapRows

            rows = MemmapRows(directory)
            self.meta = rows.meta
            self.size, self.seq_len = rows.ids.shape
            self.dtype = str(self.meta["dtype"])
            self._rows_per_shard = max(self.size, 1)
            self._whole = _plain(rows.ids)
            self._shards = [self._whole]
            self._files = [(directory / IDS_NAME, rows.ids.nbytes)]
            return
        from tokmill.formats.npy import NpyRows, npy_header, shard_name

        self._npy = NpyRows(directory)
        self.meta = self._npy.meta
        self.size, self.seq_len, self.dtype = len(self._npy), self._npy.seq_len, "int32"
        self._rows_per_shard = int(self.meta["rows_per_shard"])
        self._whole = None
        self._shards = [None] * self._npy.n_shards
        counts = [
            min(self._rows_per_shard, self.size - number * self._rows_per_shard)
            for number in range(self._npy.n_shards)
        ]
        self._files = [
            (
                directory / shard_name(number),
                len(npy_header((count, self.seq_len))) + 4 * count * self.seq_len,
            )
            for number, count in enumerate(counts)
        ]

    def view(self, row: int) -> Ids:
        number, within = divmod(row, self._rows_per_shard)
        return cast("Ids", self._shard(number)[within])

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.full(len(rows), self.seq_len, np.int64)

    def block(self, rows: NDArray[np.int64]) -> Ids:
        """(rows, seq_len), a copy in the dtype of the file."""
        if self._whole is not None:
            # 8.5 µs for eight rows of 2,048; [rows] takes 11.8, and a named axis 0.3 more
            return self._whole.take(rows, 0)
        taken = np.empty((len(rows), self.seq_len), self.dtype)
        numbers, within = np.divmod(rows, self._rows_per_shard)
        for place, (number, row) in enumerate(zip(numbers.tolist(), within.tolist(), strict=True)):
            taken[place] = self._shard(number)[row]
        return taken

    def files(self) -> Iterator[tuple[Path, int]]:
        """Every file of ids, and its bytes as they must be; -1 where only reading it tells."""
        return iter(self._files)

    def digests(self) -> list[tuple[Path, str]]:
        """sha256 of the files, where the format itself knows them."""
        return []

    def _shard(self, number: int) -> Ids:
        shard = self._shards[number]
        if shard is None:
            shard = self._shards[number] = _plain(self._npy.shard(number))
        return shard


class BareStore(RowStore):
    """`.npy` shards of any number of rows each, which nothing describes but their headers."""

    def __init__(self, directory: Path) -> None:
        from tokmill.formats.npy import BareShards

        self.format, self._directory = "npy", directory
        self._bare = BareShards(directory)
        self.meta = {}
        self.size, self.seq_len, self.dtype = sum(self._bare.rows), self._bare.seq_len, str(self._bare.dtype)
        self._ends = list(itertools.accumulate(self._bare.rows))
        self._whole, self._shards = None, [None] * len(self._bare.rows)
        self._files = list(zip(self._bare.paths, self._bare.sizes, strict=True))

    def view(self, row: int) -> Ids:
        number = bisect.bisect_right(self._ends, row)
        return cast("Ids", self._shard(number)[row - (self._ends[number - 1] if number else 0)])

    def block(self, rows: NDArray[np.int64]) -> Ids:
        taken = np.empty((len(rows), self.seq_len), self.dtype)
        for place, row in enumerate(rows.tolist()):
            taken[place] = self.view(row)
        if taken.size and not np.can_cast(taken.dtype, np.int32):  # batches are int32: an id must not wrap
            cast_ids(taken, "int32", where=str(self._directory))
        return taken

    def _shard(self, number: int) -> Ids:
        shard = self._shards[number]
        if shard is None:
            shard = self._shards[number] = _plain(self._bare.shard(number))
        return shard


class MegatronStore:
    format = "megatron"
    seq_len: int | None = None

    def __init__(self, directory: Path) -> None:
        from tokmill.formats.megatron import MegatronFile

        self._file = MegatronFile(directory / "tokens")
        self.meta: dict[str, Any] = {}
        self.size = len(self._file)
        self.dtype = str(np.dtype(self._file.dtype.name))
        self._bin, self._idx = directory / "tokens.bin", directory / "tokens.idx"
        if self.size:  # the last sequence must end where the file does: what is cut off is missed at once
            expected = int(self._file.pointers[-1]) + int(self._file.lengths[-1]) * self._file.dtype.itemsize
        else:
            expected = 0
        self._bin_bytes = expected
        self._ids = (
            _plain(self._file.ids) if self._bin.stat().st_size == expected else np.empty(0, self.dtype)
        )

    def view(self, row: int) -> Ids:
        pointer, length = int(self._file.pointers[row]), int(self._file.lengths[row])
        start = pointer // self._file.dtype.itemsize
        if length < 0 or not 0 <= start <= start + length <= len(self._ids):
            raise CorruptFile(
                f"sequence {row} lies beyond the end of tokens.bin",
                where=str(self._idx),
                next="copy the files again, or build them again: they do not belong together",
            )
        return self._ids[start : start + length]

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._file.lengths[rows].astype(np.int64)

    def files(self) -> Iterator[tuple[Path, int]]:
        yield self._bin, self._bin_bytes
        yield self._idx, self._idx.stat().st_size  # the header was compared with it

    def digests(self) -> list[tuple[Path, str]]:
        """sha256 of the files, where the format itself knows them."""
        return []


class PartedStore:
    """Sequences in numbered parts, each opened or decoded as a whole: a token cache, or Parquet."""

    seq_len: int | None = None
    dtype = "int32"

    def __init__(self, directory: Path, format: str, split: str | None = None) -> None:
        self.format = format
        self.split: str | None = None  # of a cache that holds several, one after the other
        self._directory = directory
        if format == "token_cache":
            from tokmill.formats.token_cache import TokenCache

            self._cache = TokenCache(directory, model_sha256=None)
            described = self._cache.meta
            self.meta: dict[str, Any] = {
                "tokenizer_sha256": described.model_sha256,
                "eos_id": described.eos_id,
                "vocab_size": described.vocab_size,
                "pad_id": None,
                "files": described.files,
                "input_manifest": described.input_manifest,
                "asked": described.asked,
                "domain_of": described.domain_of,
            }
            counts = [part.examples for part in described.parts]
            self._tokens = [part.tokens for part in described.parts]
            self._known = [(directory / part.file, part.sha256) for part in described.parts]
        else:
            from tokmill.formats.parquet import load_meta, load_meta_whole

            shards = load_meta(directory).shards
            self.meta = load_meta_whole(directory)
            self.seq_len = self.meta.get("seq_len")
            counts = [shard.rows for shard in shards]
            self._tokens = [shard.tokens for shard in shards]
            self._known = [(directory / shard.file, shard.content_sha256) for shard in shards]
        self._ends = list(itertools.accumulate(counts))
        self.first, self.size = 0, self._ends[-1] if self._ends else 0
        if format == "token_cache" and (described.splits or split):
            found = self._cache.split(split)
            self.split, self.first, self.size = found.name, found.first, found.examples
            self.meta["split"] = found.name
        self._held: dict[int, tuple[Ids, NDArray[np.int64], Any]] = {}

    def view(self, row: int) -> Ids:
        number, within = self._place(row)
        ids, begins, _ = self._part(number)
        return ids[begins[within] : begins[within + 1]]

    def _place(self, row: int) -> tuple[int, int]:
        """The part, and the row in it."""
        row += self.first
        number = bisect.bisect_right(self._ends, row)
        return number, row - (self._ends[number - 1] if number else 0)

    def block(self, rows: NDArray[np.int64]) -> Ids:
        """(rows, seq_len), a copy."""
        assert self.seq_len is not None, "sequences of any length are no block"
        taken = np.empty((len(rows), self.seq_len), self.dtype)
        for place, row in enumerate(rows.tolist()):
            taken[place] = self.view(row)
        return taken

    def doc_id(self, row: int) -> str | None:
        number, within = self._place(row)
        names = self._part(number)[2]
        return None if names is None else str(names[within])

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        rows = rows + self.first
        numbers = np.searchsorted(self._ends, rows, "right")
        found = np.empty(len(rows), np.int64)
        for number in np.unique(numbers).tolist():
            mine = numbers == number
            begins = self._part(number)[1]
            within = rows[mine] - (self._ends[number - 1] if number else 0)
            found[mine] = begins[within + 1] - begins[within]
        return found

    def files(self) -> Iterator[tuple[Path, int]]:
        for number, (path, _) in enumerate(self._known):
            if self.format == "token_cache":
                self._part(number)  # its two arrays must lie within the file
                yield path, path.stat().st_size
            else:
                yield path, -1

    def digests(self) -> list[tuple[Path, str]]:
        return self._known if self.format == "token_cache" else []

    def content(self) -> list[str]:
        return [digest for _, digest in self._known]

    def check_content(self) -> None:
        """Every shard of Parquet decoded and compared: compressed bytes are not its identity."""
        from tokmill.formats.parquet import read_parquet

        for _ in read_parquet(self._directory):
            pass

    def _part(self, number: int) -> tuple[Ids, NDArray[np.int64], Any]:
        held = self._held.get(number)
        if held is None:
            if self.format == "token_cache":
                part = self._cache.part(number)
            else:
                from tokmill.formats.parquet import load_shard

                part = load_shard(self._directory, number)
                while self._held and self._held_tokens() + self._tokens[number] > _HELD_TOKENS:
                    self._held.pop(next(iter(self._held)))  # the one that has been here longest
            begins = np.concatenate((np.zeros(1, np.int64), np.cumsum(part.lengths, dtype=np.int64)))
            held = self._held[number] = (_plain(part.ids), begins, part.doc_ids)
        return held

    def _held_tokens(self) -> int:
        return sum(self._tokens[number] for number in self._held)


Store = RowStore | MegatronStore | PartedStore


def open_store(directory: Path, format: str, split: str | None = None) -> Store:
    if format == "bare":
        return BareStore(directory)
    if format in ("memmap", "npy"):
        return RowStore(directory, format)
    return MegatronStore(directory) if format == "megatron" else PartedStore(directory, format, split)


def _plain(ids: Ids) -> Ids:
    """As an ndarray: a slice of np.memmap takes 2 µs to be made, one of its base 0.15."""
    plain = np.asarray(ids).view(np.ndarray)
    plain.flags.writeable = False
    return plain

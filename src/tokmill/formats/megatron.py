"""Megatron-LM indexed datasets: `<prefix>.bin` holds the ids, `<prefix>.idx` says where each sequence lies.

.idx    offset      bytes  what (little-endian)
        0               9  "MMIDIDX\\0\\0"
        9               8  version, uint64 = 1
        17              1  dtype code, uint8: uint8 1, int8 2, int16 3, int32 4, int64 5,
                                              float64 6, float32 7, uint16 8
        18              8  S, number of sequences, uint64
        26              8  D, length of the document list, uint64 (documents + 1)
        34             4S  lengths, int32: tokens in each sequence
        34 +  4S       8S  pointers, int64: first byte of each sequence in .bin
        34 + 12S       8D  documents, int64: first sequence of each document; the first is 0, the last is S

    .bin    the ids of sequence 0, 1, …, without a gap

tokmill writes one sequence per document, so documents are 0, 1, …, S. `.idx` is written last:
a prefix without one does not exist.

The pair says nothing of itself. Of the rest of a run a file beside it does, since loaders heed it:

    meta.json       "is_in_order": true; not there where rows may be shuffled

What goes with the tokens one by one, a loss mask or weights, is a pair of its own beside them:

    <prefix>.loss_mask.bin  <prefix>.loss_mask.idx      the same lengths, one value per token,
                                                        any dtype of the list
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import FileEntry, file_entry
from tokmill.errors import CorruptFile, InputError
from tokmill.formats import Format, Tokens
from tokmill.formats.description import META_NAME, corrupt, described_as, load_meta, write_meta
from tokmill.formats.ids import cast_ids
from tokmill.formats.stores import Store, plain
from tokmill.storage.disk import Written, map_array, open_commit, remove_file
from tokmill.storage.on_demand import at_hand

MAGIC = b"MMIDIDX\0\0"
VERSION = 1
DTYPE_CODES = {
    "uint8": 1,
    "int8": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "float64": 6,
    "float32": 7,
    "uint16": 8,
}

_DTYPE_NAMES = {code: name for name, code in DTYPE_CODES.items()}
_HEADER = struct.Struct("<9sQBQQ")
_MAX_LENGTH = (1 << 31) - 1  # lengths are int32

_PREFIX = "tokens"  # of the pair of a build

# Indices are checked and made in pieces of this many entries: 8 MB at a time, whatever the size of the file.
_BLOCK = 1 << 20


# Of sequences, in one array or in pieces that can be iterated again and again.
Lengths = NDArray[np.integer] | Iterable[NDArray[np.integer]]


def write_megatron(
    prefix: Path, chunks: Iterable[NDArray[np.integer]], lengths: Lengths, *, dtype: str
) -> dict[str, Written]:
    """Write `chunks` of ids, of any size, as the sequences of these `lengths`; keyed by file name."""
    assert dtype in ("uint8", "int8", "int16", "int32", "int64", "uint16"), f"{dtype} is not a dtype for ids"
    bin_path, idx_path = _paths(prefix)
    expected = first = 0
    for block in _read_lengths(lengths):
        assert int(block.min()) >= 0, "a document has a negative length"
        if int(block.max()) > _MAX_LENGTH:
            raise InputError(
                f"document {first + int(block.argmax())} has {int(block.max()):,} tokens, "
                f"and the format ends at {_MAX_LENGTH:,}",
                where=str(idx_path),
                next="split the document, or set a maximum document size in filters",
            )
        expected += int(block.sum())
        first += block.size
    with open_commit(bin_path) as bin_file:
        written = 0
        for chunk in chunks:
            if chunk.size:
                bin_file.write(cast_ids(chunk, dtype, where=str(bin_path)))
                written += chunk.size
        assert written == expected, f"{bin_path}: {written} tokens came, lengths add up to {expected}"
    idx_written = write_index(idx_path, lengths, dtype)
    return {bin_path.name: bin_file.written, idx_path.name: idx_written}


def write_aligned(
    prefix: Path, name: str, chunks: Iterable[NDArray[np.generic]], *, dtype: str
) -> dict[str, Written]:
    """Values for every token of `<prefix>`, which is there already, in chunks of any size."""
    lengths = MegatronFile(prefix).lengths
    bin_path, idx_path = _paths(_aligned_prefix(prefix, name))
    expected, written = int(lengths.sum(dtype=np.int64)), 0
    with open_commit(bin_path) as file:
        for chunk in chunks:
            if chunk.size:
                assert np.can_cast(chunk.dtype, dtype), f"{name}: {chunk.dtype} does not fit {dtype}"
                file.write(np.ascontiguousarray(chunk, dtype=np.dtype(dtype).newbyteorder("<")))
                written += chunk.size
        if written != expected:
            raise InputError(
                f"{written:,} values for {expected:,} tokens",
                where=str(bin_path),
                next="give one value for each token, in the order of the tokens",
            )
    return {bin_path.name: file.written, idx_path.name: write_index(idx_path, lengths, dtype)}


def write_index(idx_path: Path, lengths: Lengths, dtype: str) -> Written:
    """Where sequences of these lengths lie in a `.bin` of that dtype."""
    n_sequences = sum(block.size for block in _read_lengths(lengths))
    with open_commit(idx_path) as idx_file:
        idx_file.write(_HEADER.pack(MAGIC, VERSION, DTYPE_CODES[dtype], n_sequences, n_sequences + 1))
        for block in _read_lengths(lengths):
            idx_file.write(block.astype("<i4"))
        itemsize, pointer = np.dtype(dtype).itemsize, 0
        for block in _read_lengths(lengths):
            # int64 throughout: an int32 product wraps at 2^31 bytes, which is 537 million int32 tokens
            sizes = block * itemsize
            ends = pointer + np.cumsum(sizes)
            idx_file.write((ends - sizes).astype("<i8"))
            pointer = int(ends[-1])
        for part in _blocks(n_sequences + 1):
            idx_file.write(np.arange(part.start, part.stop, dtype="<i8"))
    return idx_file.written


def _read_lengths(lengths: Lengths) -> Iterator[NDArray[np.int64]]:
    """In blocks, none of which is empty."""
    for piece in (lengths,) if isinstance(lengths, np.ndarray) else lengths:
        for block in _blocks(piece.size):
            yield piece[block].astype(np.int64)


class MegatronFile:
    """A pair of files, mapped: nothing is read until it is asked for.

    The arrays are read-only views at the file's own, unaligned offsets; np.array(x) makes an aligned copy.
    """

    def __init__(self, prefix: Path) -> None:
        self._prefix = prefix
        self._bin_path, self._idx_path = _paths(self._prefix)
        for path in (self._idx_path, self._bin_path):
            if not at_hand(path).is_file():
                raise InputError("no such file", where=str(path), next="give the path without .bin and .idx")
        index = map_array(self._idx_path, np.uint8)
        code, n_sequences, n_documents = self._read_header(index)
        self.dtype = np.dtype(_DTYPE_NAMES[code]).newbyteorder("<")
        begin = _HEADER.size
        self.lengths: NDArray[np.int32] = self._numbers("<i4", begin, n_sequences)
        self.pointers: NDArray[np.int64] = self._numbers("<i8", begin + 4 * n_sequences, n_sequences)
        self.documents: NDArray[np.int64] = self._numbers("<i8", begin + 12 * n_sequences, n_documents)
        self._ids = map_array(self._bin_path, np.uint8)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def ids(self) -> NDArray[np.integer]:
        """All ids of the file, one sequence after the other."""
        return self._ids.view(self.dtype)

    def sequence(self, number: int) -> NDArray[np.generic]:
        """The ids of one sequence: a read-only view of the file."""
        pointer, length = int(self.pointers[number]), int(self.lengths[number])
        stop = pointer + length * self.dtype.itemsize
        if not 0 <= pointer <= stop <= len(self._ids):
            raise corrupt(f"sequence {number} lies beyond the end of the file", self._bin_path)
        return self._ids[pointer:stop].view(self.dtype)

    def aligned(self, name: str) -> MegatronFile:
        """Values that go with the tokens, opened; their lengths must be those of the tokens."""
        found = MegatronFile(_aligned_prefix(self._prefix, name))
        if not np.array_equal(found.lengths, self.lengths):
            raise corrupt(f"its lengths are not those of {self._idx_path.name}", found._idx_path)
        return found

    def check(self) -> None:
        """Every length, pointer and document index against every other, and against the size of `.bin`."""
        itemsize, expected = self.dtype.itemsize, 0
        for block in _blocks(len(self)):
            lengths = self.lengths[block].astype(np.int64)
            if int(lengths.min()) < 0:
                raise corrupt(
                    f"sequence {block.start + int(lengths.argmin())} has a negative length", self._idx_path
                )
            ends = expected + np.cumsum(lengths * itemsize)
            wrong = np.flatnonzero(self.pointers[block] != ends - lengths * itemsize)
            if wrong.size:
                raise corrupt(
                    f"sequence {block.start + int(wrong[0])} does not begin where the one before ends",
                    self._idx_path,
                )
            expected = int(ends[-1])
        if len(self._ids) != expected:
            raise corrupt(f"{len(self._ids):,} bytes, but the index describes {expected:,}", self._bin_path)
        if int(self.documents[0]) != 0 or int(self.documents[-1]) != len(self):
            raise corrupt(f"documents do not run from sequence 0 to {len(self)}", self._idx_path)
        for block in _blocks(len(self.documents) - 1):
            if (np.diff(self.documents[block.start : block.stop + 1]) < 0).any():
                raise corrupt("document indices go backwards", self._idx_path)

    def _numbers(self, kind: str, offset: int, count: int) -> NDArray[Any]:
        return plain(map_array(self._idx_path, kind, offset=offset, shape=(count,)))

    def _read_header(self, index: NDArray[np.uint8]) -> tuple[int, int, int]:
        if len(index) < _HEADER.size:
            raise corrupt(f"{len(index)} bytes, shorter than a header ({_HEADER.size})", self._idx_path)
        magic, version, code, n_sequences, n_documents = _HEADER.unpack(index[: _HEADER.size].tobytes())
        if magic != MAGIC:
            raise corrupt(f"does not begin with {MAGIC!r} but with {magic!r}", self._idx_path)
        if version != VERSION:
            raise corrupt(f"format version {version}, and only {VERSION} is known", self._idx_path)
        if code not in _DTYPE_NAMES:
            raise corrupt(f"unknown dtype code {code}", self._idx_path)
        if n_documents < 1:
            raise corrupt("the document list is empty; it has at least the leading 0", self._idx_path)
        expected = _HEADER.size + 12 * n_sequences + 8 * n_documents
        if len(index) != expected:
            raise corrupt(f"{len(index):,} bytes, but the header describes {expected:,}", self._idx_path)
        return code, n_sequences, n_documents


def _paths(prefix: Path) -> tuple[Path, Path]:
    # not with_suffix: a prefix may hold a dot
    return prefix.with_name(prefix.name + ".bin"), prefix.with_name(prefix.name + ".idx")


def _aligned_prefix(prefix: Path, name: str) -> Path:
    return prefix.with_name(f"{prefix.name}.{name}")


def _blocks(count: int) -> Iterable[slice]:
    return (slice(start, min(start + _BLOCK, count)) for start in range(0, count, _BLOCK))


class _Facts(msgspec.Struct):
    is_in_order: bool = False


class MegatronStore(Store):
    """One pair of files: opening reads 34 bytes of them."""

    format, seq_len = "megatron", None

    def __init__(self, directory: Path) -> None:
        self._file = MegatronFile(directory / _PREFIX)
        self.meta: dict[str, Any] = {}
        if described_as(self.format)(directory):
            _, facts = load_meta(directory, self.format, "a split in order", _Facts)
            self.meta["is_in_order"] = facts.is_in_order
        self.size = len(self._file)
        self.dtype = str(np.dtype(self._file.dtype.name))
        self._bin, self._idx = _paths(directory / _PREFIX)
        if self.size:  # the last sequence must end where the file does: what is cut off is missed at once
            expected = int(self._file.pointers[-1]) + int(self._file.lengths[-1]) * self._file.dtype.itemsize
        else:
            expected = 0
        self._bin_bytes = expected
        self._ids = plain(self._file.ids) if self._bin.stat().st_size == expected else np.empty(0, self.dtype)

    def view(self, row: int) -> NDArray[np.integer]:
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

    def block(self, rows: NDArray[np.int64]) -> NDArray[np.integer]:
        raise AssertionError("sequences of any length are no block")


def _write(directory: Path, tokens: Tokens) -> list[FileEntry]:
    written = write_megatron(directory / _PREFIX, tokens.read_ids(), tokens.lengths(), dtype=tokens.dtype)
    tables = zip(("tokens", "sequences"), written.items(), strict=True)
    entries = [file_entry(name, table, one, rows=tokens.rows) for table, (name, one) in tables]
    if not tokens.describe().get("is_in_order"):
        remove_file(directory / META_NAME)  # of an earlier build
        return entries
    meta = write_meta(directory / META_NAME, {"format": "megatron", "is_in_order": True})
    return [*entries, file_entry(META_NAME, "meta", meta, rows=1)]


def _open_store(directory: Path, split: str | None) -> MegatronStore:
    return MegatronStore(directory)


def _check(directory: Path) -> None:
    MegatronFile(directory / _PREFIX).check()


MEGATRON = Format(
    name="megatron",
    recognizes=lambda directory: _paths(directory / _PREFIX)[1].is_file(),
    open_store=_open_store,
    check=_check,
    write=_write,
    shapes=("documents",),
    dtypes=("uint16", "int32"),
)

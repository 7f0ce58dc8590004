"""Ids end to end in flat files, for trainers that map them and cut windows of their own.

    <array> …     ids, uint16 or uint32, little-endian; before them the header of the format, if it has one
    <index>       of documents: where each ends, in tokens from the first array on, uint64; rows have none
    meta.json     format, n_seqs, n_tokens, seq_len, dtype, index, arrays (file, tokens),
                  and where they come from

`nanogpt`, `llmc`, `olmo` and `nanotron` are this under the names and headers that their trainers expect.
Those read the arrays alone; index and description are for our own loader, and to prove the bytes.
`meta.json` is written last and goes first; arrays that an earlier, longer build left behind are removed
before that.
"""

from __future__ import annotations

import itertools
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import FileEntry, file_entry
from tokmill.formats import Format, Parts, Shape, Tokens
from tokmill.formats.description import (
    META_NAME,
    Count,
    FilePart,
    SplitFacts,
    check_size,
    corrupt,
    described_as,
    load_meta,
    meta_entry,
    remove_stale,
    write_meta,
)
from tokmill.formats.ids import Pieces, check_vocabulary, cut_sequences, sequence_lengths
from tokmill.formats.stores import Ids, RowStore, Store, plain
from tokmill.storage.disk import (
    commit_bytes,
    load_bytes,
    map_array,
    open_commit,
    remove_file,
    told_as_unreadable,
)
from tokmill.storage.location import is_within
from tokmill.storage.on_demand import at_hand

# Ids have no sign in these files: the bytes of int32 without it. In a batch they are int32 again.
_KINDS = {"uint16": "uint16", "int32": "uint32"}
_STORED = {kind: dtype for dtype, kind in _KINDS.items()}

_BLOCK = 1 << 20  # entries of an index, and ids, that are looked at together


def _no_header(tokens: int, kind: str) -> bytes:
    return b""


def _nothing_beside(tokens: Tokens, total: int) -> dict[str, bytes]:
    return {}


@dataclass(frozen=True)
class Layout:
    name: str
    array: Callable[[str, int], str]  # of a split and a number, the file's name
    index: Callable[[str], str]
    max_tokens: int | None = None  # of an array; None: there is one
    is_cut: bool = False  # a document goes on in the next array; or else an array holds whole documents
    header: Callable[[int, str], bytes] = _no_header  # of an array of so many tokens, uint16 or uint32
    beside: Callable[[Tokens, int], dict[str, bytes]] = _nothing_beside  # other files, and what is in them


def stream_format(
    layout: Layout,
    shapes: tuple[Shape, ...],
    dtypes: tuple[str, ...],
    read_as: Callable[[int], str] | None = None,
) -> Format:
    parts = Parts(
        cut=lambda tokens: _cut(tokens, layout),
        write=lambda directory, tokens, first: _write(directory, tokens, first, layout),
        describe=lambda directory, tokens, written: _describe(directory, tokens, written, layout),
    )
    return Format(
        name=layout.name,
        recognizes=described_as(layout.name),
        open_store=lambda directory, split: _Streams(directory, layout).store(),
        check=lambda directory: _Streams(directory, layout).check(),
        write=parts.write_all,
        parts=parts,
        shapes=shapes,
        dtypes=dtypes,
        read_as=read_as,
    )


class Array(msgspec.Struct):
    file: str
    tokens: Count


class _Facts(SplitFacts):
    dtype: Literal["uint16", "uint32"]
    index: str | None
    arrays: list[Array]


def _cut(tokens: Tokens, layout: Layout) -> Iterator[tuple[int, int]] | None:
    """None where there is one array, or a document goes on in the next."""
    if layout.max_tokens is None or (layout.is_cut and not tokens.seq_len):
        return None
    lengths = sequence_lengths(tokens.rows, tokens.seq_len, tokens.lengths())
    return cut_sequences(lengths, max_sequences=sys.maxsize, max_tokens=layout.max_tokens)


def _write(directory: Path, tokens: Tokens, first: int, layout: Layout) -> list[FilePart]:
    remove_file(directory / META_NAME)
    kind, parts = _KINDS[tokens.dtype], []
    pieces = Pieces(tokens.read_ids(), kind, str(directory))
    for number, (rows, count) in enumerate(_counts(tokens, layout), first):
        name = layout.array(tokens.split, number)
        with open_commit(directory / name) as file:
            file.write(layout.header(count, kind))
            for piece in pieces.take(count):
                file.write(piece)
        parts.append(FilePart(file_entry(name, "tokens", file.written, rows=0), rows, count))
    assert pieces.is_empty(), f"{directory}: more ids came than were counted"
    return parts


def _describe(
    directory: Path, tokens: Tokens, written: Sequence[FilePart], layout: Layout
) -> list[FileEntry]:
    entries = [part.entry for part in written]
    arrays = [Array(part.entry.path, part.tokens) for part in written]
    first = Path(layout.array(tokens.split, 0))
    remove_stale(directory, f"{first.parent}/*{first.suffix}", [Path(array.file).name for array in arrays])
    index = None if tokens.seq_len else layout.index(tokens.split)
    if index is not None:
        entries.append(_write_index(directory, index, tokens))
    total = sum(array.tokens for array in arrays)
    for name, data in layout.beside(tokens, total).items():
        entries.append(file_entry(name, "meta", commit_bytes(directory / name, data), rows=1))
    whole = {
        **tokens.describe(),
        "format": layout.name,
        "n_seqs": tokens.rows,
        "n_tokens": total,
        "seq_len": tokens.seq_len or None,
        "dtype": _KINDS[tokens.dtype],
        "index": index,
        "arrays": arrays,
    }
    return [*entries, meta_entry(directory, write_meta(directory / META_NAME, whole))]


def _write_index(directory: Path, name: str, tokens: Tokens) -> FileEntry:
    end = 0
    with open_commit(directory / name) as file:
        for block in tokens.lengths():
            ends = end + np.cumsum(block, dtype=np.int64)
            file.write(ends.astype("<u8"))
            end = int(ends[-1]) if ends.size else end
    return file_entry(name, "sequences", file.written, rows=tokens.rows)


def _counts(tokens: Tokens, layout: Layout) -> Iterator[tuple[int, int]]:
    """Rows and tokens of each array; of arrays that are cut anywhere, all rows are in the first."""
    whole = _cut(tokens, layout)
    if whole is not None:
        yield from whole
        return
    if tokens.seq_len:
        total = tokens.rows * tokens.seq_len
    else:
        total = sum(int(block.sum()) for block in tokens.lengths())
    most = layout.max_tokens or total
    # one array of nothing where there is one at all
    starts = range(0, total, most) if layout.max_tokens else [0]
    yield from ((0 if start else tokens.rows, min(most, total - start)) for start in starts)


class Documents(NamedTuple):
    """Where each document of a split ends, in tokens from the first array on; a map, read when touched."""

    ends: NDArray[np.int64]
    first_array: Path
    tokens: int

    def span(self, number: int) -> tuple[int, int]:
        """The first token of a document, and how many it has."""
        begin = int(self.ends[number - 1]) if number else 0
        return begin, int(self.ends[number]) - begin

    def find(self, token: int) -> tuple[int, int]:
        """The document that the token is in, and which of its tokens it is."""
        number = int(np.searchsorted(self.ends, token, side="right"))
        return number, token - self.span(number)[0]


def open_documents(index: Path) -> Documents | None:
    """By the index of a split; None: the file is not of a format that is told here."""
    path = index.with_name(META_NAME)
    if not at_hand(path).is_file():
        return None
    try:
        facts = msgspec.json.decode(load_bytes(path), type=_Facts)
    except (msgspec.MsgspecError, ValueError):
        return None
    if facts.index != index.name or facts.seq_len is not None or not facts.arrays:
        return None
    check_size(at_hand(index), 8 * facts.n_seqs)
    return Documents(_map_ends(index, facts), index.parent / facts.arrays[0].file, facts.n_tokens)


def _map_ends(index: Path, facts: _Facts) -> NDArray[np.int64]:
    mapped: NDArray[np.int64] = map_array(index, "<i8", shape=(facts.n_seqs,))
    ends = cast("NDArray[np.int64]", plain(mapped))
    if (int(ends[-1]) if ends.size else 0) != facts.n_tokens:
        raise corrupt(f"the last document does not end at token {facts.n_tokens:,}", index)
    return ends


class _Streams:
    """A directory whose description, sizes and headers agree; ids are not read yet."""

    def __init__(self, directory: Path, layout: Layout) -> None:
        self._directory, self._layout = directory, layout
        self._meta_path = self._directory / META_NAME
        self.meta, self.facts = load_meta(self._directory, layout.name, f"ids of {layout.name}", _Facts)
        facts = self.facts
        facts.check(layout.name, self._meta_path)
        names = [array.file for array in facts.arrays] + ([facts.index] if facts.index else [])
        if not all(map(is_within, names)):
            raise corrupt("lists a file outside of its directory", self._meta_path)
        if sum(array.tokens for array in facts.arrays) != facts.n_tokens:
            raise corrupt(f"its arrays do not add up to {facts.n_tokens:,} tokens", self._meta_path)
        if facts.seq_len is not None:
            if any(array.tokens % facts.seq_len for array in facts.arrays):
                raise corrupt(f"an array does not hold whole rows of {facts.seq_len:,}", self._meta_path)
        elif facts.index is None:
            raise corrupt("names no index of its documents", self._meta_path)
        self._kind = np.dtype(facts.dtype).newbyteorder("<")
        self._headers = [layout.header(array.tokens, facts.dtype) for array in facts.arrays]
        for number, (path, expected) in enumerate(self.files()):
            self._check_file(path, expected, self._headers[number] if number < len(self._headers) else b"")
        self.ends = _map_ends(self._index_path, facts) if facts.seq_len is None else np.empty(0, np.int64)

    @property
    def dtype(self) -> str:
        return _STORED[self.facts.dtype]

    def files(self) -> Iterator[tuple[Path, int]]:
        for array, header in zip(self.facts.arrays, self._headers, strict=True):
            yield self._directory / array.file, len(header) + array.tokens * self._kind.itemsize
        if self.facts.seq_len is None and self.facts.index is not None:
            yield self._directory / self.facts.index, 8 * self.facts.n_seqs

    def ids(self, number: int) -> Ids:
        """Of one array: a map, read when touched."""
        array = self.facts.arrays[number]
        path, kind = self._directory / array.file, np.dtype(self.dtype).newbyteorder("<")
        return plain(map_array(path, kind, offset=len(self._headers[number]), shape=(array.tokens,)))

    def store(self) -> Store:
        facts = self.facts
        if facts.seq_len is None:
            return _DocumentStore(self)
        length = facts.seq_len
        return RowStore(
            facts.format,
            self.meta,
            [array.tokens // length for array in facts.arrays],
            lambda number: self.ids(number).reshape(-1, length),
            seq_len=length,
            dtype=self.dtype,
            files=list(self.files()),
        )

    def check(self) -> None:
        """Every end against the one before, and every id against the vocabulary."""
        before = 0
        for start in range(0, len(self.ends), _BLOCK):
            block = self.ends[start : start + _BLOCK]
            wrong = np.flatnonzero(np.diff(block, prepend=before) < 0)
            if wrong.size:
                raise corrupt(f"document {start + int(wrong[0])} ends before it begins", self._index_path)
            before = int(block[-1])
        for number, array in enumerate(self.facts.arrays):
            ids = self.ids(number)
            for start in range(0, len(ids), _BLOCK):
                check_vocabulary(ids[start : start + _BLOCK], self.meta, self._directory / array.file)

    @property
    def _index_path(self) -> Path:
        return self._directory / str(self.facts.index)

    def _check_file(self, path: Path, expected: int, header: bytes) -> None:
        check_size(path, expected)
        with told_as_unreadable(path), path.open("rb") as file:
            if file.read(len(header)) != header:
                raise corrupt(f"does not begin with the header that {META_NAME} describes", path)


class _DocumentStore(Store):
    """Documents, wherever in the arrays they lie."""

    seq_len = None

    def __init__(self, streams: _Streams) -> None:
        self._streams = streams
        self.format, self.meta = streams.facts.format, streams.meta
        self.size, self.dtype = streams.facts.n_seqs, streams.dtype
        self._ends = streams.ends
        self._bounds = list(itertools.accumulate((array.tokens for array in streams.facts.arrays), initial=0))
        self._arrays: dict[int, Ids] = {}

    def view(self, row: int) -> Ids:
        begin, end = int(self._ends[row - 1]) if row else 0, int(self._ends[row])
        if not 0 <= begin <= end <= self._bounds[-1]:
            raise corrupt(f"document {row} lies beyond the last token", self._streams._index_path)
        first = min(bisect_right(self._bounds, begin) - 1, len(self._bounds) - 2)
        parts = []
        for number in range(first, len(self._bounds) - 1):
            start = self._bounds[number]
            parts.append(self._array(number)[max(begin - start, 0) : end - start])
            if end <= self._bounds[number + 1]:
                break
        if len(parts) == 1:
            return parts[0]
        return plain(np.concatenate([*parts, np.empty(0, self.dtype)]))

    def block(self, rows: NDArray[np.int64]) -> Ids:
        raise AssertionError("documents of any length are no block")

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        begins = np.where(rows > 0, self._ends[rows - 1], 0)
        return np.asarray(self._ends[rows] - begins, np.int64)

    def files(self) -> Iterator[tuple[Path, int]]:
        return self._streams.files()

    def _array(self, number: int) -> Ids:
        array = self._arrays.get(number)
        if array is None:
            array = self._arrays[number] = self._streams.ids(number)
        return array


def file_split(split: str) -> str:
    """As trainers spell it in the names of files."""
    return "val" if split == "valid" else split


def index_of(split: str) -> str:
    """Beside arrays of which the trainer reads the tokens alone."""
    return "documents.index"

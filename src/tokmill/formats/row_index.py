"""Which document every column of every row comes from, one line per row, and any line without those before it.

    index.jsonl.zst     {"row":0,"docs":[{"doc_id":"a","source":"web","start":0,"end":512,"offset":0}, …]}

        start:end are columns of the row, offset is the document's own number of the first of these tokens.
        Columns that no document covers are padding.

    frame 0    rows 0 … 4,095           compressed, with a checksum
    frame 1    rows 4,096 … 8,191
    …
    table      skippable frame: the bytes of each frame, compressed and not (Zstandard's seekable format)

Any reader of Zstandard reads the file as one stream of lines; one that knows the table reads a single frame.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.errors import CorruptFile, InputError
from tokmill.storage.commit import Written, open_commit
from tokmill.storage.reading import (
    ZstdCompressor,
    ZstdDecompressor,
    ZstdError,
    frame_options,
    told_as_unreadable,
    unreadable,
)

# One frame: about 1 MB of lines at three documents a row, 2 ms to read.
FRAME_ROWS = 4096

_SKIPPABLE, _SEEKABLE = 0x184D2A5E, 0x8F92EAB1
_TABLE_HEAD, _TABLE_ENTRY, _TABLE_FOOT = struct.Struct("<II"), struct.Struct("<II"), struct.Struct("<IBI")


class RowSpans(NamedTuple):
    """Meetings of rows and documents, sorted by row and column: five int64 arrays of one length."""

    row: NDArray[np.int64]
    document: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    offset: NDArray[np.int64]


class DocumentSpan(msgspec.Struct):
    doc_id: str
    source: str
    start: int
    end: int
    offset: int


class IndexRow(msgspec.Struct):
    row: int
    docs: list[DocumentSpan]


class ArrowStrings(Protocol):
    """An Arrow column of strings, without importing Arrow: trainers read these files too."""

    def take(self, indices: Any) -> Any: ...


class NamedSpans(NamedTuple):
    """Spans of whole rows, and the names that their document numbers stand for."""

    spans: RowSpans
    doc_ids: Sequence[str] | ArrowStrings
    sources: Sequence[str] | ArrowStrings


def write_row_index(
    path: Path,
    spans: RowSpans | Iterable[RowSpans],
    doc_ids: Sequence[str] | ArrowStrings,
    sources: Sequence[str] | ArrowStrings,
) -> Written:
    """One line per row. Spans may come in pieces of whole rows; names are looked up by document number."""
    pieces = (spans,) if isinstance(spans, RowSpans) else spans
    return write_named_rows(path, (NamedSpans(piece, doc_ids, sources) for piece in pieces))


def write_named_rows(path: Path, pieces: Iterable[NamedSpans]) -> Written:
    """The same, where every piece has names of its own."""
    encoder = msgspec.json.Encoder()
    frames: list[tuple[int, int]] = []
    with open_commit(path) as file:
        for rows in _frames(pieces):
            lines = encoder.encode_lines(rows)
            compressor = ZstdCompressor(options=frame_options())
            packed = compressor.compress(lines, mode=ZstdCompressor.FLUSH_FRAME)
            file.write(packed)
            frames.append((len(packed), len(lines)))
        if not frames:  # an empty stream is one empty frame
            packed = ZstdCompressor(options=frame_options()).compress(b"", mode=ZstdCompressor.FLUSH_FRAME)
            file.write(packed)
            frames.append((len(packed), 0))
        table = b"".join(_TABLE_ENTRY.pack(*sizes) for sizes in frames)
        file.write(_TABLE_HEAD.pack(_SKIPPABLE, len(table) + _TABLE_FOOT.size))
        file.write(table + _TABLE_FOOT.pack(len(frames), 0, _SEEKABLE))
    return file.written


def read_row_index(path: Path, first: int = 0, stop: int | None = None) -> Iterator[IndexRow]:
    """Rows first … stop - 1 in order (None: to the last); frames that have none of them are not read."""
    decoder = msgspec.json.Decoder(IndexRow)
    for frame, (offset, size) in enumerate(_table(path)):
        number = frame * FRAME_ROWS
        if number + FRAME_ROWS <= first or (stop is not None and number >= stop):
            continue
        lines = _lines(path, offset, size, frame)
        begin, end = max(first - number, 0), len(lines) if stop is None else stop - number
        for line in lines[begin:end]:
            try:
                yield decoder.decode(line)
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                raise _corrupt(f"line {number + begin} is not a row of the index ({error})", path) from error
            number += 1


def find_row(path: Path, row: int) -> IndexRow:
    """One row: its frame is read, and no other."""
    frames, frame = _table(path), row // FRAME_ROWS
    lines = _lines(path, *frames[frame], frame) if 0 <= frame < len(frames) else []
    if row % FRAME_ROWS >= len(lines):
        raise InputError(f"has no row {row:,}", where=str(path), next="rows are counted from 0")
    try:
        found = msgspec.json.decode(lines[row % FRAME_ROWS], type=IndexRow)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _corrupt(f"line {row} is not a row of the index ({error})", path) from error
    if found.row != row:
        raise _corrupt(f"row {found.row:,} stands where row {row:,} should", path)
    return found


def _table(path: Path) -> list[tuple[int, int]]:
    """Where each frame begins, and its bytes. A file without a table, or of another size, is cut."""
    try:
        with Path(path).open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(end - _TABLE_FOOT.size, 0))
            foot = file.read()
            count, _, magic = _TABLE_FOOT.unpack(foot) if len(foot) == _TABLE_FOOT.size else (0, 0, 0)
            begin = end - _TABLE_FOOT.size - count * _TABLE_ENTRY.size
            if magic != _SEEKABLE or begin < _TABLE_HEAD.size:
                raise _corrupt("is cut or damaged: it does not end in a table of its frames", path)
            file.seek(begin)
            sizes = np.frombuffer(file.read(count * _TABLE_ENTRY.size), "<u4")[::2].astype(np.int64)
    except FileNotFoundError:
        raise InputError(
            "no such file", where=str(path), next="give the index.jsonl.zst of a build"
        ) from None
    except OSError as error:
        raise unreadable(error, path) from error
    ends = np.cumsum(sizes)
    if not count or int(ends[-1]) != begin - _TABLE_HEAD.size:
        raise _corrupt("is cut or damaged: its table tells of other frames than it has", path)
    return list(zip((ends - sizes).tolist(), sizes.tolist(), strict=True))


def _lines(path: Path, offset: int, size: int, frame: int) -> list[bytes]:
    with told_as_unreadable(path), Path(path).open("rb") as file:
        file.seek(offset)
        packed = file.read(size)
    try:
        return ZstdDecompressor().decompress(packed).split(b"\n")[:-1]
    except (ZstdError, EOFError) as error:
        raise _corrupt(f"is cut or damaged in frame {frame} ({error})", path) from error


def _frames(pieces: Iterable[NamedSpans]) -> Iterator[list[IndexRow]]:
    """FRAME_ROWS rows at a time."""
    waiting: list[IndexRow] = []
    for piece in pieces:
        for rows in _index_rows(piece, len(waiting)):
            waiting += rows
            if len(waiting) == FRAME_ROWS:
                yield waiting
                waiting = []
    if waiting:
        yield waiting


def _index_rows(piece: NamedSpans, begun: int) -> Iterator[list[IndexRow]]:
    """The rows of a piece; the first so many as a frame that was begun lacks."""
    spans = piece.spans
    if not len(spans.row):
        return
    first_row, stop_row = int(spans.row[0]), int(spans.row[-1]) + 1
    room = FRAME_ROWS - begun
    bounds = [first_row, *range(first_row + room, stop_row, FRAME_ROWS), stop_row]
    for first, stop in itertools.pairwise(bounds):
        begins = np.searchsorted(spans.row, np.arange(first, stop + 1)).tolist()
        mine = RowSpans(*(column[begins[0] : begins[-1]] for column in spans))
        docs = list(
            map(
                DocumentSpan,
                _named(piece.doc_ids, mine.document),
                _named(piece.sources, mine.document),
                mine.start.tolist(),
                mine.end.tolist(),
                mine.offset.tolist(),
            )
        )
        yield [
            IndexRow(first + at, docs[begin - begins[0] : end - begins[0]])
            for at, (begin, end) in enumerate(itertools.pairwise(begins))
        ]


def _named(strings: Sequence[str] | ArrowStrings, numbers: NDArray[np.int64]) -> list[str]:
    if hasattr(strings, "take"):
        return cast("list[str]", strings.take(numbers).to_pylist())
    return [strings[number] for number in numbers.tolist()]


def _corrupt(what: str, path: Path) -> CorruptFile:
    return CorruptFile(
        what, where=str(path), next="copy the file again, or build it again: it is cut or damaged"
    )

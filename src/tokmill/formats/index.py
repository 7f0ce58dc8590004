"""Which document is where: three indexes beside the tokens, from rows to documents and back.

    index.jsonl.zst   {"row":0,"docs":[{"doc_id":"a","source":"web","start":0,"end":512,"offset":0}, …]}
                      a line per row

        start:end are columns of the row, offset is the document's own number of the first of these tokens.
        Columns that no document covers are padding.

        frame 0    rows 0 … 4,095           compressed, with a checksum
        frame 1    rows 4,096 … 8,191
        …
        table      skippable frame: the bytes of each frame, compressed and not (Zstandard's seekable format)

places.npy        uint32 (meetings, 5)    document   its turn in the build
                                          row        of the build
                                          start end  columns of the row
                                          offset     the document's own number of the first of these tokens
ids-<shard>.npy   uint64 (2, documents)   first 8 bytes of sha256(doc_id), big-endian, ascending
                                          the row of that document in the shard

Any reader of Zstandard reads the first as one stream of lines; one that knows the table reads a single frame.
Meetings of rows and documents are in order of the document, then of the offset. The other two are NumPy's own
files, mapped and searched, and never read whole. A hash finds; whoever asks compares the id itself.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.errors import CorruptFile, InputError, StorageError
from tokmill.formats.description import corrupt
from tokmill.formats.ids import npy_header
from tokmill.storage.disk import (
    Written,
    ZstdCompressor,
    ZstdDecompressor,
    ZstdError,
    frame_options,
    map_array,
    open_commit,
    read_at,
    told_as_unreadable,
    unreadable,
)
from tokmill.storage.on_demand import at_hand

INDEX: Final = "index.jsonl.zst"
PLACES: Final = "places.npy"

# One frame: about 1 MB of lines at three documents a row, 2 ms to read.
FRAME_ROWS = 4096

_SKIPPABLE, _SEEKABLE = 0x184D2A5E, 0x8F92EAB1
_TABLE_HEAD, _TABLE_ENTRY, _TABLE_FOOT = struct.Struct("<II"), struct.Struct("<II"), struct.Struct("<IBI")
_COLUMNS: Final = ("document", "row", "start", "end", "offset")


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


def write_row_index(
    path: Path,
    spans: RowSpans | Iterable[RowSpans],
    doc_ids: Sequence[str] | ArrowStrings,
    sources: Sequence[str] | ArrowStrings,
) -> Written:
    """One line per row. Spans may come in pieces of whole rows; names are looked up by document number."""
    pieces = (spans,) if isinstance(spans, RowSpans) else spans
    encoder = msgspec.json.Encoder()
    frames = (encoder.encode_lines(rows) for rows in _frames(pieces, doc_ids, sources))
    return write_frames(path, frames)


def write_frames(path: Path, frames: Iterable[bytes]) -> Written:
    """The same of lines: those of FRAME_ROWS rows at a time, of fewer at the end."""
    return _write_packed(path, (_Frame(_pack(lines), len(lines)) for lines in frames))


def join_indexes(path: Path, parts: Iterable[Path]) -> tuple[Written, str]:
    """One index of several, each of whole frames but the last; and the sha256 of all lines.
    Frames are copied as they are."""
    content = hashlib.sha256()

    def packed() -> Iterator[_Frame]:
        for part in parts:
            for frame, (offset, size) in enumerate(_table(part)):
                packed = _packed_frame(part, offset, size)
                lines = _unpack(packed, part, frame)
                content.update(lines)
                if lines:
                    yield _Frame(packed, len(lines))

    return _write_packed(path, packed()), content.hexdigest()


class _Frame(NamedTuple):
    packed: bytes
    size: int  # of its lines


def _write_packed(path: Path, frames: Iterable[_Frame]) -> Written:
    sizes: list[tuple[int, int]] = []
    with open_commit(path) as file:
        for frame in frames:
            file.write(frame.packed)
            sizes.append((len(frame.packed), frame.size))
        if not sizes:  # an empty stream is one empty frame
            packed = _pack(b"")
            file.write(packed)
            sizes.append((len(packed), 0))
        table = b"".join(_TABLE_ENTRY.pack(*size) for size in sizes)
        file.write(_TABLE_HEAD.pack(_SKIPPABLE, len(table) + _TABLE_FOOT.size))
        file.write(table + _TABLE_FOOT.pack(len(sizes), 0, _SEEKABLE))
    return file.written


def _pack(lines: bytes) -> bytes:
    return ZstdCompressor(options=frame_options()).compress(lines, mode=ZstdCompressor.FLUSH_FRAME)


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
                raise corrupt(f"line {number + begin} is not a row of the index ({error})", path) from error
            number += 1


def find_row(path: Path, row: int) -> IndexRow:
    """One row: its frame is read, and no other."""
    found = next(read_row_index(path, row, row + 1), None)
    if found is None:
        raise InputError(f"has no row {row:,}", where=str(path), next="rows are counted from 0")
    if found.row != row:
        raise corrupt(f"row {found.row:,} stands where row {row:,} should", path)
    return found


def _table(path: Path) -> list[tuple[int, int]]:
    """Where each frame begins, and its bytes. A file without a table, or of another size, is cut."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(end - _TABLE_FOOT.size, 0))
            foot = file.read()
            count, _, magic = _TABLE_FOOT.unpack(foot) if len(foot) == _TABLE_FOOT.size else (0, 0, 0)
            begin = end - _TABLE_FOOT.size - count * _TABLE_ENTRY.size
            if magic != _SEEKABLE or begin < _TABLE_HEAD.size:
                raise corrupt("is cut or damaged: it does not end in a table of its frames", path)
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
        raise corrupt("is cut or damaged: its table tells of other frames than it has", path)
    return list(zip((ends - sizes).tolist(), sizes.tolist(), strict=True))


def _lines(path: Path, offset: int, size: int, frame: int) -> list[bytes]:
    return _unpack(_packed_frame(path, offset, size), path, frame).split(b"\n")[:-1]


def _packed_frame(path: Path, offset: int, size: int) -> bytes:
    with told_as_unreadable(path), path.open("rb") as file:
        file.seek(offset)
        return file.read(size)


def _unpack(packed: bytes, path: Path, frame: int) -> bytes:
    try:
        return ZstdDecompressor().decompress(packed)
    except (ZstdError, EOFError) as error:
        raise corrupt(f"is cut or damaged in frame {frame} ({error})", path) from error


def _frames(
    pieces: Iterable[RowSpans],
    doc_ids: Sequence[str] | ArrowStrings,
    sources: Sequence[str] | ArrowStrings,
) -> Iterator[list[IndexRow]]:
    """FRAME_ROWS rows at a time."""
    waiting: list[IndexRow] = []
    for piece in pieces:
        for rows in _index_rows(piece, doc_ids, sources, len(waiting)):
            waiting += rows
            if len(waiting) == FRAME_ROWS:
                yield waiting
                waiting = []
    if waiting:
        yield waiting


def _index_rows(
    spans: RowSpans,
    doc_ids: Sequence[str] | ArrowStrings,
    sources: Sequence[str] | ArrowStrings,
    begun: int,
) -> Iterator[list[IndexRow]]:
    """The rows of a piece; the first so many as a frame that was begun lacks."""
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
                _named(doc_ids, mine.document),
                _named(sources, mine.document),
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


def hash_id(doc_id: str) -> int:
    """What a document is found by."""
    return int.from_bytes(hashlib.sha256(doc_id.encode()).digest()[:8], "big")


def write_ids(path: Path, hashes: NDArray[np.uint64], rows: NDArray[np.integer] | None = None) -> Written:
    """`hashes` are those of the documents in `rows`, ascending (None: in all).
    Equal hashes stay in their order."""
    order = np.argsort(hashes, kind="stable")
    named = order if rows is None else rows[order]
    with open_commit(path) as file:
        file.write(npy_header((2, len(hashes)), "<u8"))
        file.write(hashes[order].astype("<u8"))
        file.write(named.astype("<u8"))
    return file.written


def map_ids(path: Path, documents: int) -> NDArray[np.uint64]:
    """Hashes and rows of so many documents, not read yet."""
    return _map(path, (2, documents), "<u8")


def find_id(path: Path | str, documents: int, wanted: int) -> list[int]:
    """Rows of the shard whose document has this hash.

    Hashes lie evenly, so its place is known to within a few times sqrt(n) / 2: one page is read,
    12 µs with opening the file, against 90 µs for a map. Ten million documents in 1,700 shards: 30 ms.
    """
    if not documents:
        return []
    header = npy_header((2, documents), "<u8")
    descriptor = _open_to_read(path)
    try:
        if read_at(descriptor, len(header), 0, path) != header:
            raise _not_an_index(path, documents)
        guess = wanted * documents >> 64
        first, stop = max(guess - _AROUND, 0), min(guess + _AROUND, documents)
        hashes = _read_entries(descriptor, path, len(header), first, stop, documents)
        is_between = (first == 0 or hashes[0] < wanted) and (stop == documents or hashes[-1] > wanted)
        if not is_between:  # far off: ids that share a hash, or were chosen for it
            first, stop = 0, documents
            hashes = _read_entries(descriptor, path, len(header), first, stop, documents)
        low, high = (
            np.searchsorted(hashes, np.uint64(wanted), "left"),
            np.searchsorted(hashes, np.uint64(wanted), "right"),
        )
        if low == high:
            return []
        rows = _read_entries(
            descriptor, path, len(header) + 8 * documents, first + int(low), first + int(high), documents
        )
        found: list[int] = rows.tolist()
        return found
    finally:
        os.close(descriptor)


_AROUND: Final = 256  # entries: 4 KB of hashes, 6 standard deviations in a shard of 6,000 documents


def _open_to_read(path: Path | str) -> int:
    at_hand(path)
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise _missing(path) from None
    except OSError as error:
        raise unreadable(error, path) from error


def _read_entries(
    descriptor: int, path: Path | str, offset: int, first: int, stop: int, documents: int
) -> NDArray[np.uint64]:
    data = read_at(descriptor, 8 * (stop - first), offset + 8 * first, path)
    if len(data) != 8 * (stop - first):
        raise _not_an_index(path, documents)
    return np.frombuffer(data, "<u8")


def write_places(path: Path, meetings: int, blocks: Iterable[RowSpans]) -> Written:
    """So many meetings of a build, in blocks of ascending documents;
    within a block they come in order of rows."""
    left = meetings
    with open_commit(path) as file:
        file.write(npy_header((meetings, len(_COLUMNS)), "<u4"))
        for spans in blocks:
            order = None if _is_in_order(spans) else np.lexsort((spans.offset, spans.document))
            found = np.empty((len(spans.row), len(_COLUMNS)), "<u4")
            for at, name in enumerate(_COLUMNS):
                column = getattr(spans, name)
                assert not len(column) or 0 <= int(column.min()) <= int(column.max()) < 1 << 32, (
                    f"{name} of a place"
                )
                found[:, at] = column if order is None else column[order]
            file.write(found)
            left -= len(found)
        assert not left, f"{path}: {left} of {meetings} meetings did not come"
    return file.written


def _is_in_order(spans: RowSpans) -> bool:
    """By document, then by offset: as the rows of a stream have them."""
    steps = np.diff(spans.document)
    return bool((steps >= 0).all() and (np.diff(spans.offset)[steps == 0] > 0).all())


def map_places(path: Path, meetings: int) -> RowSpans:
    """All of them, not read yet: columns of uint32, in order of the document."""
    document, row, start, end, offset = _map(path, (meetings, len(_COLUMNS)), "<u4").T
    return RowSpans(row, document, start, end, offset)


def read_places(path: Path, meetings: int, at_once: int) -> Iterator[NDArray[np.uint32]]:
    """Their table, read in pieces of whole documents, of about so many meetings."""
    map_places(path, meetings)  # is it one
    head, width = len(npy_header((meetings, len(_COLUMNS)), "<u4")), 4 * len(_COLUMNS)
    with at_hand(path).open("rb") as file:
        first, size = 0, at_once
        while first < meetings:
            file.seek(head + first * width)
            table = np.fromfile(file, "<u4", min(size, meetings - first) * len(_COLUMNS))
            table = table.reshape(-1, len(_COLUMNS))
            stop = len(table)
            if first + stop < meetings:  # the last document may go on
                stop = int(np.searchsorted(table[:, 0], table[-1, 0]))
            if not stop:
                size *= 2
                continue
            yield table[:stop]
            first, size = first + stop, at_once


def find_places(path: Path, meetings: int, document: int) -> RowSpans:
    """The meetings of one document. Looked up one by one:
    `np.searchsorted` would copy a column that is not dense."""
    places = map_places(path, meetings)
    first, stop = (
        bisect.bisect_left(range(meetings), wanted, key=lambda at: int(places.document[at]))
        for wanted in (document, document + 1)
    )
    return RowSpans(*(column[first:stop].astype(np.int64) for column in places))


def _map(path: Path, shape: tuple[int, int], kind: str) -> NDArray[np.unsignedinteger]:
    header = npy_header(shape, kind)
    size = len(header) + shape[0] * shape[1] * np.dtype(kind).itemsize
    try:
        with at_hand(path).open("rb") as file:
            if file.read(len(header)) != header or file.seek(0, 2) != size:
                raise _not_an_index(path, max(shape))
    except FileNotFoundError:
        raise _missing(path) from None
    except OSError as error:
        raise unreadable(error, path) from error
    return map_array(path, kind, offset=len(header), shape=shape)


def _missing(path: Path | str) -> StorageError:
    return StorageError(
        "no such file", where=str(path), next="copy the directory again: its manifest lists the file"
    )


def _not_an_index(path: Path | str, entries: int) -> CorruptFile:
    return CorruptFile(
        f"is not an index of {entries:,} entries",
        where=str(path),
        next="copy the file again, or build it again: it is cut or damaged",
    )

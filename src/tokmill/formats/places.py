"""Where a document is: two indexes that are mapped and searched, and never read whole.

    ids-<shard>.npy   uint64 (2, documents)   first 8 bytes of sha256(doc_id), big-endian, ascending
                                              the row of that document in the shard
    places.npy        uint32 (meetings, 5)    document   its turn in the build
                                              row        of the build
                                              start end  columns of the row
                                              offset     the document's own number of the first of these tokens

Meetings of rows and documents are in order of the document, then of the offset. Both files are NumPy's own, so
`np.load` reads them anywhere. A hash finds; whoever asks compares the id itself.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import CorruptFile, StorageError
from tokmill.formats.npy import npy_header
from tokmill.formats.row_index import RowSpans
from tokmill.storage.commit import Written, open_commit
from tokmill.storage.reading import map_array, read_at, unreadable

PLACES: Final = "places.npy"

_COLUMNS: Final = ("document", "row", "start", "end", "offset")


def hash_id(doc_id: str) -> int:
    """What a document is found by."""
    return int.from_bytes(hashlib.sha256(doc_id.encode()).digest()[:8], "big")


def write_ids(path: Path, hashes: NDArray[np.uint64], rows: NDArray[np.integer] | None = None) -> Written:
    """`hashes` are those of the documents in `rows`, ascending (None: in all). Equal hashes stay in their order."""
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

    Hashes lie evenly, so its place is known to within a few times sqrt(n) / 2: one page is read, 12 µs with opening
    the file, against 90 µs for a map. Ten million documents in 1,700 shards: 30 ms.
    """
    if not documents:
        return []
    header = _header((2, documents), "<u8")
    descriptor = _open_to_read(path)
    try:
        if read_at(descriptor, len(header), 0, path) != header:
            raise _corrupt(path, documents)
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
        raise _corrupt(path, documents)
    return np.frombuffer(data, "<u8")


@functools.lru_cache(maxsize=64)
def _header(shape: tuple[int, int], kind: str) -> bytes:
    return npy_header(shape, kind)


def write_places(path: Path, meetings: int, blocks: Iterable[RowSpans]) -> Written:
    """So many meetings of a build, in blocks of ascending documents; within a block they come in order of rows."""
    left = meetings
    with open_commit(path) as file:
        file.write(npy_header((meetings, len(_COLUMNS)), "<u4"))
        for spans in blocks:
            order = np.lexsort((spans.offset, spans.document))
            found = np.empty((len(order), len(_COLUMNS)), "<u4")
            for at, name in enumerate(_COLUMNS):
                column = getattr(spans, name)
                assert not len(column) or 0 <= int(column.min()) <= int(column.max()) < 1 << 32, (
                    f"{name} of a place"
                )
                found[:, at] = column[order]
            file.write(found)
            left -= len(order)
        assert not left, f"{path}: {left} of {meetings} meetings did not come"
    return file.written


def map_places(path: Path, meetings: int) -> RowSpans:
    """All of them, not read yet: columns of uint32, in order of the document."""
    document, row, start, end, offset = _map(path, (meetings, len(_COLUMNS)), "<u4").T
    return RowSpans(row, document, start, end, offset)


def find_places(path: Path, meetings: int, document: int) -> RowSpans:
    """The meetings of one document. Looked up one by one: `np.searchsorted` would copy a column that is not dense."""
    places = map_places(path, meetings)
    first, stop = (
        bisect.bisect_left(range(meetings), wanted, key=lambda at: int(places.document[at]))
        for wanted in (document, document + 1)
    )
    return RowSpans(*(column[first:stop].astype(np.int64) for column in places))


def _map(path: Path, shape: tuple[int, int], kind: str) -> NDArray[np.unsignedinteger]:
    header = _header(shape, kind)
    size = len(header) + shape[0] * shape[1] * np.dtype(kind).itemsize
    try:
        with path.open("rb") as file:
            if file.read(len(header)) != header or file.seek(0, 2) != size:
                raise _corrupt(path, max(shape))
    except FileNotFoundError:
        raise _missing(path) from None
    except OSError as error:
        raise unreadable(error, path) from error
    return map_array(path, kind, offset=len(header), shape=shape)


def _missing(path: Path | str) -> StorageError:
    return StorageError(
        "no such file", where=str(path), next="copy the directory again: its manifest lists the file"
    )


def _corrupt(path: Path | str, entries: int) -> CorruptFile:
    return CorruptFile(
        f"is not an index of {entries:,} entries",
        where=str(path),
        next="copy the file again, or build it again: it is cut or damaged",
    )

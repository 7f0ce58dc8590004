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
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import CorruptFile, StorageError
from tokmill.formats.npy import npy_header
from tokmill.formats.row_index import RowSpans
from tokmill.storage.commit import Written, open_commit

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


def find_id(path: Path, documents: int, wanted: int) -> list[int]:
    """Rows of the shard whose document has this hash."""
    if not documents:
        return []
    hashes, rows = map_ids(path, documents)
    first = int(np.searchsorted(hashes, np.uint64(wanted)))
    found = []
    while first < documents and int(hashes[first]) == wanted:
        found.append(int(rows[first]))
        first += 1
    return found


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
    header = npy_header(shape, kind)
    size = len(header) + shape[0] * shape[1] * np.dtype(kind).itemsize
    try:
        with path.open("rb") as file:
            actual = file.read(len(header))
            is_whole = actual == header and file.seek(0, 2) == size
            if is_whole and shape[0] and shape[1]:
                return np.memmap(file, kind, "r", len(header), shape)
    except FileNotFoundError:
        raise StorageError(
            "no such file", where=str(path), next="copy the directory again: its manifest lists the file"
        ) from None
    if not is_whole:
        raise CorruptFile(
            f"is not an index of {max(shape):,} entries",
            where=str(path),
            next="copy the file again, or build it again: it is cut or damaged",
        )
    return np.empty(shape, kind)

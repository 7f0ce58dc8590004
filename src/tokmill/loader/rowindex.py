"""Where documents begin in every row, from index.jsonl.zst: exact also where EOS is an ordinary id.

begins   row r has columns[begins[r] : begins[r + 1]]            8 bytes per row
columns  in which a document begins or goes on                   4 bytes per meeting of row and document
ends     where the padding of each row begins                    4 bytes per row
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import CorruptFile

if TYPE_CHECKING:
    from tokmill.formats.row_index import DocumentSpan


class RowIndex(NamedTuple):
    begins: NDArray[np.int64]
    columns: NDArray[np.int32]
    ends: NDArray[np.int32]

    def starts_of(self, row: int) -> NDArray[np.int32]:
        return self.columns[self.begins[row] : self.begins[row + 1]]


def load_row_index(path: Path, rows: int, first: int | None = None) -> RowIndex:
    """Of rows first … first + rows - 1; None: the index is of this split alone, and must tell of no other row."""
    from tokmill.formats.row_index import read_row_index

    counts, columns, ends = [], [], []
    for line in read_row_index(path, first or 0, None if first is None else first + rows):
        starts = _starts(line.docs)
        counts.append(len(starts))
        columns += starts
        ends.append(line.docs[-1].end if line.docs else 0)
    if len(counts) != rows:
        raise CorruptFile(
            f"tells of {len(counts):,} rows, but there are {rows:,}",
            where=str(path),
            next="copy the file again, or build it again",
        )
    return RowIndex(
        np.cumsum([0, *counts], dtype=np.int64), np.array(columns, np.int32), np.array(ends, np.int32)
    )


def _starts(spans: list[DocumentSpan]) -> list[int]:
    """One for each document: of one that was cut to fit, the beginning and the EOS are two spans."""
    starts = [span.start for span in spans[:1]]
    for before, span in itertools.pairwise(spans):
        if not goes_on(before, span):
            starts.append(span.start)
    return starts


def goes_on(before: DocumentSpan, span: DocumentSpan) -> bool:
    """Whether a span is of the document of the one before it, and not of that document's next turn."""
    is_same = (before.doc_id, before.source) == (span.doc_id, span.source)
    return is_same and span.offset >= before.offset + before.end - before.start

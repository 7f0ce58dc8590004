"""Text columns as rows of units: folded, then split by kernels.shingles, a megabyte at a time.

    texts ─ NFKC, casefold (rows beyond ASCII) ─ words or characters ─> uint32 units per row

Batches bound the memory; where they are cut changes nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill import wordclasses
from tokmill.codepoints import fold, fold_table
from tokmill.kernels import classes, folding, shingles
from tokmill.kernels.columns import Bytes, Offsets
from tokmill.schema import large_strings, string_column

Shingle = Literal["word", "char"]

# Text shingled at a time: its units stay in the second-level cache.
_BATCH_BYTES = 1 << 20


@functools.cache
def unit_kinds() -> NDArray[np.uint8]:
    """What each code point does to words, for kernels.shingles."""
    bits = wordclasses.class_table()
    kinds = np.full(len(bits), shingles.SEPARATOR, np.uint8)
    for bit, kind in (
        (classes.LETTER, shingles.PART),
        (classes.SPACELESS, shingles.WHOLE),
        (classes.MARK, shingles.MARK),
        (classes.DIGIT, shingles.DIGIT),
    ):
        kinds[bits & bit != 0] = kind
    kinds.flags.writeable = False
    return kinds


class FoldedBatch(NamedTuple):
    """Consecutive rows in NFKC and casefold, but for the case of ASCII, and the number of the first."""

    start: int
    data: Bytes
    offsets: Offsets


def folded_batches(texts: Any, batch_bytes: int) -> Iterator[FoldedBatch]:
    column = string_column(texts)
    start, rows = 0, len(column.offsets) - 1
    while start < rows:
        reach = column.offsets[start] + batch_bytes
        stop = max(int(np.searchsorted(column.offsets, reach, side="right")) - 1, start + 1)
        yield FoldedBatch(start, *_folded(column.data, column.offsets[start : stop + 1]))
        start = stop


def unit_batches(
    texts: Any, shingle: Shingle, *, keep_digits: bool
) -> Iterator[tuple[int, shingles.UnitRows]]:
    """Units of about a megabyte of text at a time, and the number of the first row."""
    make = shingles.word_units if shingle == "word" else shingles.char_units
    for start, data, offsets in folded_batches(texts, _BATCH_BYTES):
        yield start, make(data, offsets, unit_kinds(), keep_digits=keep_digits)


def all_units(texts: Any, shingle: Shingle, *, keep_digits: bool) -> shingles.UnitRows:
    parts = [part for _, part in unit_batches(texts, shingle, keep_digits=keep_digits)]
    if len(parts) == 1:
        return parts[0]
    lengths = [np.zeros(1, np.int64), *(np.diff(part.offsets) for part in parts)]
    units = np.concatenate([np.empty(0, np.uint32), *(part.units for part in parts)])
    numbers = np.concatenate([np.empty(0, np.uint32), *(part.numbers for part in parts)])
    return shingles.UnitRows(units, np.cumsum(np.concatenate(lengths)), numbers)


def _folded(data: Bytes, offsets: Offsets) -> tuple[Bytes, Offsets]:
    """The kernels fold ASCII as they go: text of nothing else is not copied."""
    if data[offsets[0] : offsets[-1]].max(initial=0) < 128:
        return data, offsets
    folded = folding.fold_rows(data, offsets, fold_table())
    if folded.is_exact.all():
        return folded.data, folded.offsets
    # Marks compose or change places in some rows: those through `unicodedata`, one by one.
    slow = ~folded.is_exact
    rows = large_strings(data, offsets).filter(pa.array(slow)).to_pylist()
    column = string_column(
        pc.replace_with_mask(
            large_strings(folded.data, folded.offsets),
            pa.array(slow),
            pa.array([fold(text) for text in rows], pa.large_string()),
        )
    )
    return column.data, column.offsets

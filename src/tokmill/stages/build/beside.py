"""What lies beside every format: which documents each row holds, and where each document stands.

    rows of a stretch ─ names, lines ─> <split>.index-<n>.part     whole frames, by a task of their own
    all parts ─ join ─> index.jsonl.zst                            frame after frame, none packed again
    all rows ─> places.npy                                         of rows: the other way round

Sequences are the documents themselves, in their order, and need no places.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifacts.manifest import FileEntry, file_entry
from tokmill.formats import index as row_index
from tokmill.formats.index import (
    INDEX,
    PLACES,
    join_indexes,
    write_frames,
    write_places,
)
from tokmill.kernels.jit import Bytes
from tokmill.kernels.rowlines import spell_rows
from tokmill.schema import string_column
from tokmill.stages.build.blocks import Block, read_meetings
from tokmill.stages.build.documents import Names
from tokmill.stages.build.tokens import SplitTokens

INDEX_PART = "index part"


def write_index(directory: Path, tokens: SplitTokens) -> FileEntry:
    """Of all rows."""
    content = hashlib.sha256()
    written = write_frames(directory / INDEX, _hashed(_frames(tokens), content))
    return file_entry(INDEX, "index", written, rows=tokens.rows, content_sha256=content.hexdigest())


def write_index_part(directory: Path, name: str, tokens: SplitTokens) -> FileEntry:
    """Of some, the first of which begins a frame."""
    assert tokens.first_row % row_index.FRAME_ROWS == 0, f"row {tokens.first_row} is inside of a frame"
    return file_entry(name, INDEX_PART, write_frames(directory / name, _frames(tokens)), rows=tokens.rows)


def join_index(directory: Path, parts: Sequence[Path], rows: int) -> FileEntry:
    written, content = join_indexes(directory / INDEX, parts)
    return file_entry(INDEX, "index", written, rows=rows, content_sha256=content)


def write_places_of(directory: Path, blocks: Iterable[Block], meetings: int) -> FileEntry:
    written = write_places(directory / PLACES, meetings, read_meetings(blocks))
    return file_entry(PLACES, "places", written, rows=meetings)


def _hashed(pieces: Iterable[bytes], digest: Any) -> Iterator[bytes]:
    for piece in pieces:
        digest.update(piece)
        yield piece


def _frames(tokens: SplitTokens) -> Iterator[bytes]:
    """The lines of FRAME_ROWS rows each; one goes on in the next block."""
    sources = string_column(pa.array([source for _, source, _ in tokens.options.shards], pa.string()))
    stop_row = tokens.first_row + tokens.rows
    waiting: list[bytes] = []
    for block in tokens.blocks:
        row, end = max(block.first_row, tokens.first_row), min(block.first_row + block.plan.n_rows, stop_row)
        while row < end:
            stop = min((row // row_index.FRAME_ROWS + 1) * row_index.FRAME_ROWS, end)
            waiting.append(_lines(block, row, stop, tokens.blocks.names, (sources.data, sources.offsets)))
            row = stop
            if row % row_index.FRAME_ROWS == 0:
                yield b"".join(waiting)
                waiting = []
    if waiting:
        yield b"".join(waiting)


def _lines(
    block: Block, first_row: int, stop_row: int, names: Names, sources: tuple[Bytes, NDArray[np.int64]]
) -> bytes:
    spans = block.spans(first_row - block.first_row, stop_row - block.first_row)
    lowest, past = _bounds(spans.document)
    is_met = np.zeros(past - lowest, np.bool_)
    is_met[spans.document - lowest] = True
    met = np.flatnonzero(is_met) + lowest
    place = np.cumsum(is_met) - 1
    named = string_column(names.take(block.documents.number[met]))
    return bytes(
        spell_rows(
            first_row,
            np.searchsorted(spans.row, np.arange(first_row, stop_row + 1)),
            (place[spans.document - lowest], spans.start, spans.end, spans.offset),
            (named.data, named.offsets),
            sources,
            block.documents.shard[met].astype(np.int32),
        ).data
    )


def _bounds(documents: NDArray[np.int64]) -> tuple[int, int]:
    return (int(documents.min()), int(documents.max()) + 1) if len(documents) else (0, 0)

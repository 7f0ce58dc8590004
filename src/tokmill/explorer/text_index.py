"""Which documents may have some words in them: an index of three characters in a row, built on demand.

    texts ─ blocks of some documents ─ a bit for each gram ─> <cache>/tokmill/explore/<digest>.trigrams
    words ─ their grams ─ blocks that have all of them ─> rows to look at

The file is in the user's cache directory and is named by the texts that it is of. It is written whole or not
at all; one that is damaged, or of another format, is built anew. A block has 64 KB of text or more, and 8 KB
in the index: at most MAX_BLOCKS of them, and of all indexes together at most TOTAL_BYTES are kept, those that
were used longest ago are removed.

    segments: grams x blocks, bits │ first positions of blocks, uint32 │ footer (JSON) │ its bytes │ sha256
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.audit.places import RunPlaces, digest_of_texts, text_index_path
from tokmill.explorer.case_folds import fold, load_folds
from tokmill.kernels.trigrams import GRAMS, hash_trigrams, mark_trigrams
from tokmill.schema import StringColumn, string_column
from tokmill.storage.disk import TEMP_PREFIX, open_commit
from tokmill.storage.tables import load_table

BLOCK_BYTES = 64 << 10  # of text, at least
MAX_BLOCKS = 1 << 16  # 512 MB
TOTAL_BYTES = 2 << 30  # of the indexes of all runs
_SEGMENT = 512  # blocks: 4 MB
_STALE_SECONDS = 86_400  # of a file that nobody ended
_DIGEST_BYTES, _SIZE_BYTES = 32, 4
_FORMAT = f"tokmill trigrams 1, Unicode {unicodedata.unidata_version}"

OnShare = Callable[[float], None]


class Footer(msgspec.Struct):
    format: str
    texts: str
    documents: int
    blocks: int


class Stopped(Exception):
    """Nobody waits for the index any more."""


class TextIndex(NamedTuple):
    starts: NDArray[np.uint32]  # positions of the first documents of blocks, and the number of documents last
    segments: list[NDArray[np.uint8]]  # a row for each gram, a bit for each block

    def candidates(self, text: str) -> NDArray[np.int64] | None:
        """Blocks that may have the text; None: it is too short to say."""
        grams = np.unique(hash_trigrams(fold(text)))
        if not len(grams):
            return None
        found = []
        for number, segment in enumerate(self.segments):
            bits = np.bitwise_and.reduce(segment[grams], axis=0)
            found.append(np.flatnonzero(np.unpackbits(bits, bitorder="little")) + number * _SEGMENT)
        return np.concatenate([np.zeros(0, np.int64), *found])


def most_bytes(run: RunPlaces) -> int:
    """What the index of the run may take on the disk."""
    blocks = min(_text_bytes(run) // BLOCK_BYTES + 2 * len(run.shards), MAX_BLOCKS + len(run.shards))
    return blocks * GRAMS // 8


def _text_bytes(run: RunPlaces) -> int:
    counted = sum(one.manifest.counts.get("text_bytes", 0) for one in run.of_kind("ingest").values())
    return int(counted) or 3 * sum(shard.documents.bytes for shard in run.shards)


def load_index(run: RunPlaces) -> TextIndex | None:
    """None: there is none, or it is not whole, or not of these texts."""
    path = text_index_path(run)
    try:
        data = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError):
        return None
    with contextlib.suppress(msgspec.MsgspecError, ValueError):
        content: Any = data[:-_DIGEST_BYTES]
        if hashlib.sha256(content).digest() != data[-_DIGEST_BYTES:].tobytes():
            return None
        size = int.from_bytes(content[-_SIZE_BYTES:].tobytes(), "little")
        footer = msgspec.json.decode(content[-_SIZE_BYTES - size : -_SIZE_BYTES].tobytes(), type=Footer)
        documents = sum(shard.documents.rows for shard in run.shards)
        if (footer.format, footer.texts, footer.documents) != (_FORMAT, digest_of_texts(run), documents):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # it was used
        return _parse(content[: -_SIZE_BYTES - size], footer.blocks)
    return None


def _parse(data: NDArray[np.uint8], blocks: int) -> TextIndex:
    segments, at = [], 0
    for first in range(0, blocks, _SEGMENT):
        width = (min(_SEGMENT, blocks - first) + 7) // 8
        segments.append(data[at : at + GRAMS * width].reshape(GRAMS, width))
        at += GRAMS * width
    return TextIndex(data[at:].copy().view(np.uint32), segments)


def build_index(run: RunPlaces, on_share: OnShare, is_stopped: Callable[[], bool]) -> TextIndex | None:
    """Written, and loaded again: what is used is what is on the disk."""
    path = text_index_path(run)
    size = max(BLOCK_BYTES, -(-_text_bytes(run) // MAX_BLOCKS))
    total = sum(shard.documents.rows for shard in run.shards)
    digest, starts, position = hashlib.sha256(), [np.zeros(0, np.int64)], 0
    with open_commit(path) as file:

        def write(piece: Any) -> None:
            digest.update(piece)
            file.write(piece)

        segments = _Segments(write)
        for texts in _read_texts(run, is_stopped):
            firsts = _cut(texts.offsets, size)
            segments.add(texts, firsts)
            starts.append(firsts + position)
            position += len(texts.offsets) - 1
            on_share(position / max(total, 1))
        segments.end()
        write(np.concatenate([*starts, [position]]).astype(np.uint32))
        footer = msgspec.json.encode(Footer(_FORMAT, digest_of_texts(run), position, segments.blocks))
        write(footer + len(footer).to_bytes(_SIZE_BYTES, "little"))
        file.write(digest.digest())
    _let_go(path)
    return load_index(run)


class _Segments:
    """Bits of blocks, as many at a time as stand together in the file."""

    def __init__(self, write: Callable[[Any], None]) -> None:
        self._write = write
        self._bits = np.zeros((GRAMS, _SEGMENT // 8), np.uint8)
        self.blocks = 0

    def add(self, texts: StringColumn, firsts: NDArray[np.int64]) -> None:
        bounds = np.append(firsts, len(texts.offsets) - 1)
        done = 0
        while done < len(firsts):
            at = self.blocks % _SEGMENT
            count = min(_SEGMENT - at, len(firsts) - done)
            some = bounds[done : done + count + 1]
            mark_trigrams(texts.data, texts.offsets, some, load_folds(), self._bits, at)
            done, self.blocks = done + count, self.blocks + count
            if self.blocks % _SEGMENT == 0:
                self._write(self._bits)
                self._bits[:] = 0

    def end(self) -> None:
        width = (self.blocks % _SEGMENT + 7) // 8
        if width:
            self._write(np.ascontiguousarray(self._bits[:, :width]))


def _read_texts(run: RunPlaces, is_stopped: Callable[[], bool]) -> Iterator[StringColumn]:
    for shard in run.shards:
        if is_stopped():
            raise Stopped
        path = run.artifacts[f"ingest/{shard.source}"].path(shard.documents)
        yield string_column(load_table(path, ["text"]).column("text"))


def _cut(offsets: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """First rows of blocks of about `size` bytes."""
    numbers = (offsets[:-1] - offsets[0]) // size if len(offsets) > 1 else np.zeros(0, np.int64)
    return np.flatnonzero(np.diff(numbers, prepend=-1))


def _let_go(kept: Path) -> None:
    """Of all indexes the ones that were used longest ago, and what was never ended."""
    found = []
    for path in kept.parent.iterdir():
        with contextlib.suppress(OSError):
            stat = path.stat()
            if path.suffix == kept.suffix and not path.name.startswith(TEMP_PREFIX):
                found.append((path == kept, stat.st_mtime, stat.st_size, path))
            elif path.name.startswith(TEMP_PREFIX) and time.time() - stat.st_mtime > _STALE_SECONDS:
                path.unlink()
    held = 0
    for _, _, size, path in sorted(found, reverse=True):
        held += size
        if held > TOTAL_BYTES and path != kept:
            with contextlib.suppress(OSError):
                path.unlink()

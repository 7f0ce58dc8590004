"""What the storage tests share: files by suffix, readers run to their end, and lines found the slow way."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import settings

from tokmill.storage import blocks, jsonl, plaintext
from tokmill.storage.records import BadRecord, Batch

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"

QUICK = settings(deadline=None, max_examples=100)
BOM = b"\xef\xbb\xbf"


def write_as(path: Path, content: bytes) -> Path:
    """`content` at `path`, compressed by libraries that the product does not use."""
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(content, mtime=0))
    elif path.suffix == ".zst":
        path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(content))
    else:
        path.write_bytes(content)
    return path


def read_as(path: Path) -> bytes:
    """The content of `path`, decompressed by libraries that the product does not use."""
    raw = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(raw)
    if path.suffix == ".zst":
        return zstandard.ZstdDecompressor().decompressobj().decompress(raw)
    return raw


@contextmanager
def blocks_of(size: int) -> Iterator[None]:
    """Read in blocks of `size` bytes, so that a few bytes of input have many block boundaries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", size)
        patch.setattr(plaintext, "BLOCK_BYTES", size)
        patch.setattr(jsonl, "_PEEKED_BYTES", size)
        yield


def collect(batches: Iterable[Batch]) -> tuple[list[dict[str, Any]], list[BadRecord]]:
    rows: list[dict[str, Any]] = []
    bad: list[BadRecord] = []
    for batch in batches:
        rows += batch.table.to_pylist()
        bad += batch.bad
    return rows, bad


def slow_lines(content: bytes) -> list[tuple[int, bytes]]:
    """(offset, line without its newline) of every line;
    a file that ends in a newline has no line after it."""
    position = len(BOM) if content.startswith(BOM) else 0
    lines = content[position:].split(b"\n")
    if not lines[-1]:
        lines.pop()
    found = []
    for line in lines:
        found.append((position, line))
        position += len(line) + 1
    return found

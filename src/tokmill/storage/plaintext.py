"""Plain text: a document is the whole file, a paragraph, or a line.

Paragraphs are separated by blank lines. Blank lines are never documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from tokmill.storage.commit import Written, open_commit
from tokmill.storage.records import WHOLE, BadRecord, Batch, Span, Wanted, string_table
from tokmill.storage.streams import BLOCK_BYTES, Oversize, open_stream, read_blocks, read_exactly

SUFFIXES = (".txt", ".txt.gz", ".txt.zst", ".md")
Unit = Literal["document", "paragraph", "line"]

_BLANK_LINES = re.compile(rb"\n(?:[ \t\r]*\n)+")
_UTF8_BOM = b"\xef\xbb\xbf"


def read_batches(
    path: Path, wanted: list[Wanted], *, unit: Unit, max_record_bytes: int, span: Span = WHOLE
) -> Iterator[Batch]:
    """Only the column `text` exists; any other wanted one is null."""
    if unit == "line":
        pieces = _lines(path, max_record_bytes, span)
    elif unit == "paragraph":
        pieces = _paragraphs(path, max_record_bytes)
    else:
        pieces = _document(path, max_record_bytes)
    for offsets, texts, bad in pieces:
        good: list[str | None] = []
        for offset, text in zip(offsets, texts, strict=True):
            if len(text) > max_record_bytes:
                bad.append(_too_large(offset, len(text), max_record_bytes))
                continue
            try:
                good.append(text.decode())
            except UnicodeDecodeError as error:
                bad.append(BadRecord(offset, "invalid_utf8", f"byte {error.start}: {error.reason}"))
        nothing: list[str | None] = [None] * len(good)
        columns = [good if want.key == "text" else nothing for want in wanted]
        yield Batch(string_table(wanted, columns), sorted(bad))


def write_text(path: Path, table: Any) -> Written:
    """The text column, one paragraph per document."""
    with open_commit(path) as file:
        for number, text in enumerate(table.column("text").to_pylist()):
            file.write((b"\n\n" if number else b"") + text.encode())
        file.write(b"\n")
    return file.written


Piece = tuple[list[int], list[bytes], list[BadRecord]]


def _lines(path: Path, max_record_bytes: int, span: Span) -> Iterator[Piece]:
    for block in read_blocks(path, max_record_bytes=max_record_bytes, start=span.start, end=span.end):
        if isinstance(block, Oversize):
            yield [], [], [_too_large(block.offset, block.bytes, max_record_bytes)]
            continue
        offsets, texts, position = [], [], block.offset
        for line in block.data.split(b"\n"):
            if line.strip(b" \t\r"):
                offsets.append(position)
                texts.append(line.removesuffix(b"\r"))
            position += len(line) + 1
        yield offsets, texts, []


def _paragraphs(path: Path, max_record_bytes: int) -> Iterator[Piece]:
    tail, tail_offset = b"", 0
    for block in read_blocks(path, max_record_bytes=max_record_bytes):
        if isinstance(block, Oversize):
            yield [], [], [_too_large(block.offset, block.bytes, max_record_bytes)]
            continue
        data, start = tail + block.data, tail_offset if tail else block.offset
        breaks = list(_BLANK_LINES.finditer(data))
        cut = breaks[-1].end() if breaks else 0
        yield _split_paragraphs(data[:cut], start)
        tail, tail_offset = data[cut:], start + cut
        if len(tail) > max_record_bytes:
            yield [], [], [_too_large(tail_offset, len(tail), max_record_bytes)]
            tail = b""
    yield _split_paragraphs(tail, tail_offset)


def _split_paragraphs(data: bytes, start: int) -> Piece:
    offsets, texts, position = [], [], 0
    for gap in [*_BLANK_LINES.finditer(data), None]:
        end = gap.start() if gap else len(data)
        text = data[position:end].strip(b"\r\n")
        if text.strip(b" \t\r\n"):
            offsets.append(start + position)
            texts.append(text)
        position = gap.end() if gap else end
    return offsets, texts, []


def _document(path: Path, max_record_bytes: int) -> Iterator[Piece]:
    pieces, size = [], 0
    with closing(open_stream(path)) as stream:
        while True:
            piece = read_exactly(stream, BLOCK_BYTES, path)
            size += len(piece)
            if size <= max_record_bytes:
                pieces.append(piece)
            if len(piece) < BLOCK_BYTES:
                break
    if size > max_record_bytes:
        yield [], [], [_too_large(0, size, max_record_bytes)]
    else:
        yield [0], [b"".join(pieces).removeprefix(_UTF8_BOM)], []


def _too_large(offset: int, size: int, max_record_bytes: int) -> BadRecord:
    return BadRecord(
        offset, "too_large", f"{size:,} bytes in one text; max_record_bytes is {max_record_bytes:,}"
    )

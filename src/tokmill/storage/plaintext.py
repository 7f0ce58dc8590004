"""Plain text: a document is the whole file, a paragraph, or a line.

Paragraphs are separated by blank lines. Blank lines are never documents.
A text ends before its "\\n" or "\\r\\n".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokmill.storage.blocks import (
    BLOCK_BYTES,
    UTF8_BOM,
    Oversize,
    open_stream,
    packed,
    read_blocks,
    read_exactly,
)
from tokmill.storage.disk import Written, open_commit
from tokmill.storage.location import AnyPath
from tokmill.storage.records import WHOLE, BadRecord, Batch, Kind, Span, Wanted, string_table, too_large

SUFFIXES = packed(".txt", ".md")
Unit = Literal["document", "paragraph", "line"]

_PARAGRAPH = re.compile(rb"^(?:[ \t\r]*+[^ \t\r\n][^\n]*+\n?)++", re.MULTILINE)


def read_batches(
    path: AnyPath, wanted: list[Wanted], *, unit: Unit, max_record_bytes: int, span: Span = WHOLE
) -> Iterator[Batch]:
    """A column of texts that every record must have is the text;
    besides it only `text` exists, any other is null."""
    lacking = [want.key for want in wanted if want.required and not _is_the_text(want)]
    if unit == "line":
        pieces = _lines(path, max_record_bytes, span)
    elif unit == "paragraph":
        pieces = _paragraphs(path, max_record_bytes)
    else:
        pieces = _document(path, max_record_bytes)
    for offsets, texts, bad in pieces:
        good: list[str | None] = []
        at: list[int] = []
        for offset, text in zip(offsets, texts, strict=True):
            try:
                good.append(text.decode())
                at.append(offset)
            except UnicodeDecodeError as error:
                bad.append(BadRecord(offset, "invalid_utf8", f"byte {error.start}: {error.reason}"))
        if lacking:
            bad = [*bad, *(BadRecord(offset, "missing_field", f"no field `{lacking[0]}`") for offset in at)]
            good, at = [], []
        nothing: list[str | None] = [None] * len(good)
        columns = [good if _is_the_text(want) else nothing for want in wanted]
        yield Batch(string_table(wanted, columns), sorted(bad), np.array(at, np.int64))


def _is_the_text(want: Wanted) -> bool:
    return "text" in want.keys or (want.required and want.kind in (Kind.TEXT, Kind.LINES))


def write_text(path: Path, table: Any) -> Written:
    """The text column, one paragraph per document."""
    with open_commit(path) as file:
        for number, text in enumerate(table.column("text").to_pylist()):
            file.write((b"\n\n" if number else b"") + text.encode())
        file.write(b"\n")
    return file.written


def write_separated(path: Path, texts: Iterable[Any], separator: str) -> tuple[Written, int]:
    """Columns of texts, `separator` after each text; and how many had to change for it.

    "\\n": line ends inside of a text become a space. "\\n\\n": blank lines inside go. Read back by line or by
    paragraph they are the same texts. Any other separator may be in no text: ValueError with the first that
    has it.
    """
    reshaped = 0
    with open_commit(path) as file:
        for column in texts:
            spelled = column
            for pattern, instead in _UNSEPARATED.get(separator, ()):
                spelled = pc.replace_substring_regex(spelled, pattern, instead)
            reshaped += pc.sum(pc.not_equal(spelled, column)).as_py() or 0
            holds = pc.match_substring(spelled, separator)
            if pc.any(holds).as_py():
                raise ValueError(pc.index(holds, True).as_py())
            joined = pc.binary_join_element_wise(
                spelled, pa.scalar(separator, spelled.type), pa.scalar("", spelled.type)
            )
            file.write("".join(joined.to_pylist()).encode())
    return file.written, reshaped


# What is read as one line or one paragraph has none of these inside, nor line ends around it.
_UNSEPARATED = {
    "\n": ((r"\A[\r\n]+|[\r\n]+\z", ""), (r"[\r\n]+", " ")),
    "\n\n": ((r"\A(?:[ \t\r]*\n)+|(?:\n[ \t\r]*)+\z|\r+\z", ""), (r"\n(?:[ \t\r]*\n)+", "\n")),
}

Piece = tuple[list[int], list[bytes], list[BadRecord]]


def _lines(path: AnyPath, max_record_bytes: int, span: Span) -> Iterator[Piece]:
    for block in read_blocks(path, max_record_bytes=max_record_bytes, start=span.start, end=span.end):
        if isinstance(block, Oversize):
            yield [], [], [too_large(*block, max_record_bytes, "text")]
            continue
        offsets, texts, bad, position = [], [], [], block.offset
        for line in block.data.split(b"\n"):
            if not line.strip(b" \t\r"):
                pass
            elif len(line) > max_record_bytes:
                bad.append(too_large(position, len(line), max_record_bytes, "text"))
            else:
                offsets.append(position)
                texts.append(line.removesuffix(b"\r"))
            position += len(line) + 1
        yield offsets, texts, bad


def _paragraphs(path: AnyPath, max_record_bytes: int) -> Iterator[Piece]:
    run = _Run(0, max_record_bytes)
    for block in read_blocks(path, max_record_bytes=max_record_bytes):
        piece: Piece = ([], [], [])
        if isinstance(block, Oversize):
            run = run if run.size else _Run(block.offset, max_record_bytes)
            run.extend(b"", block.offset + block.bytes)
            continue
        reach = 0
        for match in _PARAGRAPH.finditer(block.data):
            start, reach = match.span()
            if start or not run.size:
                run.finish(piece)
                run = _Run(block.offset + start, max_record_bytes)
            run.extend(match[0], block.offset + start + len(match[0].removesuffix(b"\n")))
        if reach < len(block.data):  # the block ends with a blank line, and the paragraph before it
            run.finish(piece)
            run = _Run(0, max_record_bytes)
        yield piece
    piece = ([], [], [])
    run.finish(piece)
    yield piece


class _Run:
    """Lines of one paragraph, from as many blocks as it takes.
    Too many are let go, but counted to the end."""

    def __init__(self, offset: int, max_record_bytes: int) -> None:
        self.offset, self.size = offset, 0
        self._held: list[bytes] = []
        self._max_record_bytes = max_record_bytes

    def extend(self, lines: bytes, end: int) -> None:
        self.size = end - self.offset
        if self.size <= self._max_record_bytes:
            self._held.append(lines)
        else:
            self._held.clear()

    def finish(self, piece: Piece) -> None:
        offsets, texts, bad = piece
        if self.size > self._max_record_bytes:
            bad.append(too_large(self.offset, self.size, self._max_record_bytes, "text"))
        elif self.size:
            offsets.append(self.offset)
            texts.append(b"".join(self._held).removesuffix(b"\n").removesuffix(b"\r"))


def _document(path: AnyPath, max_record_bytes: int) -> Iterator[Piece]:
    pieces, size = [], 0
    with open_stream(path) as stream:
        while True:
            piece = read_exactly(stream, BLOCK_BYTES, path)
            size += len(piece)
            if size <= max_record_bytes:
                pieces.append(piece)
            if len(piece) < BLOCK_BYTES:
                break
    if size > max_record_bytes:
        yield [], [], [too_large(0, size, max_record_bytes, "text")]
    else:
        yield [0], [b"".join(pieces).removeprefix(UTF8_BOM)], []

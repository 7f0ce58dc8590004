"""What WikiExtractor wrote: pages in <doc> blocks, or one JSON object a line.

It escapes <, > and & in what it writes (--html-safe); that is undone.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

import numpy as np

from tokmill.errors import CorruptFile
from tokmill.kernels import jsonlines
from tokmill.sources.reading import Dropped, Reading
from tokmill.sources.wikipage import Page, too_large
from tokmill.storage import jsonl, streams
from tokmill.storage.location import AnyPath
from tokmill.storage.records import BadRecord, Kind, Wanted

_DOC_LINE = re.compile(rb'^(?:<doc (?P<attributes>id="[^\n]*")>|</doc>)[ \t\r]*$', re.MULTILINE)
_ATTRIBUTE = re.compile(r'([a-z]+)="(.*?)"(?= [a-z]+="|$)')  # a title may have a quote that is not escaped
_NOT_ESCAPED = re.compile(r"[<>]|&(?!amp;|lt;|gt;)")

_JSON_COLUMNS = [
    Wanted("id", "id", Kind.SCALAR, False),
    Wanted("revid", "revid", Kind.SCALAR, False),
    Wanted("url", "url", Kind.SCALAR, False),
    Wanted("title", "title", Kind.TEXT, True),
    Wanted("text", "text", Kind.TEXT, True),
]


def read_blocks(path: AnyPath, reading: Reading) -> Iterator[Page | BadRecord | Dropped]:
    open_block: _OpenBlock | None = None
    stray: int | None = None  # where text that belongs to no block begins
    is_cut = False  # the last line has no newline
    for block in streams.read_blocks(path, max_record_bytes=reading.max_record_bytes):
        if isinstance(block, streams.Oversize):
            if open_block:
                open_block.extend(b"", block.bytes + 1)
            elif stray is None:
                stray = block.offset
            continue
        is_cut = not block.data.endswith(b"\n")
        position = 0
        for match in (*_DOC_LINE.finditer(block.data), None):
            until = match.start() if match else len(block.data)
            between = block.data[position:until]
            if open_block:
                open_block.extend(between, len(between))
            elif stray is None and between.strip():
                stray = block.offset + position + len(between) - len(between.lstrip())
            if match is None:
                break
            position = match.end()
            is_start = match["attributes"] is not None
            if stray is not None and is_start:
                yield _outside(stray)
                stray = None
            if open_block:
                yield open_block.finish(not is_start)
                open_block = None
            elif not is_start and stray is None:
                stray = block.offset + until
            if is_start:
                open_block = _OpenBlock(block.offset + until, match["attributes"], reading.max_record_bytes)
    if open_block or (stray is not None and is_cut):
        raise CorruptFile(
            f"the block at byte {open_block.offset if open_block else stray:,} has no end: the file is truncated",
            where=str(path),
            next="copy it, or extract it, again",
        )
    if stray is not None:
        yield _outside(stray)


class _OpenBlock:
    """A <doc> whose </doc> is not read yet. More than is accepted is let go, but counted."""

    def __init__(self, offset: int, attributes: bytes, max_record_bytes: int) -> None:
        self.offset, self.size = offset, 0
        self._attributes, self._max_record_bytes = attributes, max_record_bytes
        self._held: list[bytes] = []

    def extend(self, data: bytes, size: int) -> None:
        self.size += size
        if self.size <= self._max_record_bytes:
            self._held.append(data)
        else:
            self._held.clear()

    def finish(self, is_closed: bool) -> Page | BadRecord:
        if not is_closed:
            return BadRecord(self.offset, "unclosed_block", "another <doc> begins before its </doc>")
        if self.size > self._max_record_bytes:
            return too_large(self.offset, self.size, self._max_record_bytes)
        try:
            given = {
                key: html.unescape(value) for key, value in _ATTRIBUTE.findall(self._attributes.decode())
            }
            body = b"".join(self._held).decode().lstrip("\r").removeprefix("\n")
        except UnicodeDecodeError as error:
            return BadRecord(self.offset, "invalid_utf8", f"byte {error.start}: {error.reason}")
        return _extracted(
            self.offset, given.get("id"), given.get("title", ""), body, given.get("url"), given.get("revid")
        )


def read_lines(path: AnyPath, reading: Reading) -> Iterator[Page | BadRecord | Dropped]:
    limit = reading.max_record_bytes
    # a batch has no offsets of its good records; it is made of one block, which has
    blocks = streams.read_blocks(path, max_record_bytes=limit)
    batches = jsonl.read_batches(path, _JSON_COLUMNS, max_record_bytes=limit)
    for batch, block in zip(batches, blocks, strict=True):
        yield from batch.bad
        if not batch.table.num_rows or isinstance(block, streams.Oversize):
            continue
        starts = jsonlines.audit_lines(np.frombuffer(block.data, np.uint8)).starts + block.offset
        bad = {record.offset for record in batch.bad}
        offsets = [start for start in starts.tolist() if start not in bad]
        columns = (batch.table.column(want.name).to_pylist() for want in _JSON_COLUMNS)
        for offset, id, revid, url, title, text in zip(offsets, *columns, strict=True):
            yield _extracted(offset, id, html.unescape(title), text, url, revid)


def _extracted(
    offset: int, id: str | None, title: str, body: str, url: str | None, revid: str | None
) -> Page:
    # <doc> blocks repeat the title above a blank line, and so did --json before version 3
    first, newline, rest = body.partition("\n")
    if newline and html.unescape(first.strip()) == title and not rest.partition("\n")[0].strip():
        body = rest
    if "&" in body and not _NOT_ESCAPED.search(body):
        body = body.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return Page(offset, id, title, body.strip(), url, revid)


def _outside(offset: int) -> BadRecord:
    return BadRecord(offset, "outside_block", "text that is in no <doc> block")

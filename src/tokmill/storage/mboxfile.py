"""Mail folders: where each message begins and ends.

    From ann@example.org Tue Jan  2 03:04:05 2024     the envelope, at the beginning or behind a blank line
    Subject: …                                        header fields, a blank line, the body
    >From here on …                                   a line of the body that would look like an envelope
                                                      a blank line, and the next `From ` line

A message begins at a line with `From ` behind a blank line (RFC 4155, appendix A; stricter than Python's
`mailbox`, which takes every such line). Quoting is that of mboxrd: one ">" is taken from every line that
begins with ">From ", ">>From ", …; files of mboxo, which quote `From ` alone, read the same but for texts
that had such a line with ">" already.

A message belongs to the span that its first byte lies in: parts of a file give each message once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tokmill.errors import CorruptFile
from tokmill.storage.blocks import UTF8_BOM, open_stream, read_exactly
from tokmill.storage.location import AnyPath
from tokmill.storage.records import BadRecord, Span, too_large

_PIECE_BYTES = 1 << 20
_BEFORE = 3  # bytes before a message that show that it is one: "\n\n" or "\n\r\n"
_NEXT = re.compile(rb"\n\r?\n(?=From )")
_OVERLAP = 8  # of the two, less one
_BLANK_LINES = re.compile(rb"[\r\n]*")
_QUOTED = re.compile(rb"^>(?=>*From )", re.MULTILINE)


class Mail(NamedTuple):
    """One message as it lies in the file, envelope and all, without the blank line behind it."""

    offset: int
    data: bytes


def read_mail(path: AnyPath, span: Span, max_record_bytes: int) -> Iterator[Mail | BadRecord]:
    with open_stream(path) as stream:
        if span.start:
            stream.seek(span.start - min(span.start, _BEFORE))  # type: ignore[attr-defined]
        feed = _Feed(stream, path, span.start - min(span.start, _BEFORE))
        if span.start:
            feed.skip_to(span.start)
        else:
            feed.open()
        while not feed.is_empty and (span.end is None or feed.offset < span.end):
            offset = feed.offset
            size, data = feed.take(max_record_bytes)
            if data is None:
                yield too_large(offset, size, max_record_bytes, "message")
            else:
                yield Mail(offset, data)


def unquoted(message: bytes) -> bytes:
    return _QUOTED.sub(b"", message) if b">From " in message else message


class _Feed:
    """What is read and not yet taken; `offset` is where it begins."""

    def __init__(self, stream: Any, path: AnyPath, offset: int) -> None:
        self._stream, self._path = stream, path
        self._held, self.offset, self._at_end = bytearray(), offset, False

    @property
    def is_empty(self) -> bool:
        return not self._held and self._at_end

    def open(self) -> None:
        """The beginning of a file."""
        self._more()
        if self._held.startswith(UTF8_BOM):
            self._let_go(len(UTF8_BOM))
        blank = _BLANK_LINES.match(self._held)
        self._let_go(blank.end() if blank else 0)
        if self._held and not self._held.startswith(b"From "):
            raise CorruptFile(
                "does not begin with a `From ` line, as a mail folder does",
                where=str(self._path),
                next="check what the file is",
            )

    def skip_to(self, start: int) -> None:
        """To the first message that begins there or later."""
        while True:
            self._more()
            # a list, because nothing can be let go while a search is under way
            ends = [found.end() for found in _NEXT.finditer(self._held)]
            ahead = [end for end in ends if self.offset + end >= start]
            if ahead:
                self._let_go(ahead[0])
                return
            if self._at_end:
                self._let_go(len(self._held))
                return
            self._let_go(max(len(self._held) - _OVERLAP, 0))

    def take(self, max_bytes: int) -> tuple[int, bytes | None]:
        """The message that begins here, and its size; None for one that is too large to be held."""
        size, seen, is_kept = 0, 0, True
        while True:
            found = _NEXT.search(self._held, seen)
            if found is not None or self._at_end:
                end, beyond = (found.start() + 1, found.end()) if found else (len(self._held),) * 2
                size += end
                data = bytes(memoryview(self._held)[:end]) if is_kept and size <= max_bytes else None
                self._let_go(beyond)
                if not self._held:
                    self._more()
                return size, data
            seen = max(len(self._held) - _OVERLAP, 0)
            if size + seen > max_bytes:
                is_kept, size = False, size + seen
                self._let_go(seen)
                seen = 0
            self._more()

    def _more(self) -> None:
        piece = read_exactly(self._stream, _PIECE_BYTES, self._path)
        self._held += piece
        self._at_end = len(piece) < _PIECE_BYTES

    def _let_go(self, size: int) -> None:
        del self._held[:size]
        self.offset += size

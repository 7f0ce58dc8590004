"""Files of WARC records: where each begins and ends, gzip members and all.

    file ─ members ─ bytes ─┬ "WARC/1.0" headers ┬─ whole ───────────────────────> Frame(offset, bytes)
                            │ Content-Length     ├─ broken ─ next one is sought ─> BadRecord
                            └ body CRLF CRLF     └─ cut short ───────────────────> CorruptFile

FastWARC over a whole file gives a truncated archive as a shorter one without a word, and stops at the first
record that is broken. Here a record that is broken is reported and reading goes on where the next one begins.
Every byte that a header promises must be there, and every gzip member must end: otherwise the file is
truncated, which is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from zlib_ng import zlib_ng

from tokmill.errors import CorruptFile
from tokmill.storage.location import AnyPath
from tokmill.storage.records import BadRecord, read_exactly, too_large

MAX_HEADER_BYTES = 64 << 10
ZLIB_ERRORS: tuple[Any, ...] = (zlib_ng.error,)
GZIP = b"\x1f\x8b\x08"

_PIECE_BYTES = 1 << 20
_GZIP_WINDOW = 31

_HEADER_END = re.compile(rb"\r?\n\r?\n")
_LENGTH = re.compile(rb"^content-length[ \t]*:[ \t]*(\d{1,18})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_NEXT_RECORD = re.compile(rb"\nWARC/[01]\.\d+\r?\n")
_BLANK_LINES = re.compile(rb"[\r\n]+")


class Frame(NamedTuple):
    """One record as it lies in the file, headers and body."""

    offset: int
    data: bytes


# -- bytes of a file -------------------------------------------------------------------------------


class _Damage(Exception):
    """A gzip member cannot be decompressed; `feed.recover` goes on at the next one."""


class _Feed:
    """Bytes of a plain file, a piece at a time; `offset` is where `held` begins."""

    def __init__(self, raw: Any, path: AnyPath) -> None:
        self.held, self.offset, self.at_end = bytearray(), 0, False
        self.path = path
        self._raw = raw

    def fill(self, size: int) -> bool:
        """Hold `size` bytes or more; False where the file ends before."""
        while len(self.held) < size and not self.at_end:
            self._more(size - len(self.held))
        return len(self.held) >= size

    def let_go(self, size: int) -> None:
        del self.held[:size]
        self.offset += size

    def skip(self, size: int) -> None:
        """Let go of bytes that need not be held all at once."""
        start = self.offset
        while size:
            if not self.held and not self.fill(1):
                raise _truncated(self.path, start)
            step = min(size, len(self.held))
            self.let_go(step)
            size -= step

    def finish(self, size: int) -> None:
        """Hold what shows whether a record of `size` bytes ends there."""
        self.fill(size + 1)

    def recover(self, why: str, record_offset: int) -> None:
        raise AssertionError("a plain file has no members")

    def _more(self, missing: int) -> None:
        piece = read_exactly(self._raw, max(_PIECE_BYTES, missing), self.path)
        self.held += piece
        self.at_end = not piece


class _Members(_Feed):
    """The same of a file of gzip members, which usually are one record each."""

    def __init__(self, raw: Any, path: AnyPath) -> None:
        super().__init__(raw, path)
        self._input = b""
        self._input_end = 0  # in the compressed file: what was read of it
        self._member: Any = None
        self._member_at = 0  # in the compressed file
        self._member_offset = 0  # in the decompressed one
        self._is_only = True

    def _more(self, missing: int) -> None:
        if not self._input:
            self._input = read_exactly(self._raw, _PIECE_BYTES, self.path)
            self._input_end += len(self._input)
            if not self._input:
                if self._member is not None or not self._input_end:
                    raise _truncated(self.path, self.offset + len(self.held))
                self.at_end = True
                return
        if self._member is None:
            self._input = self._input.lstrip(b"\0")  # padding between members is allowed
            if not self._input:
                return
            self._is_only = self._is_only and not self._input_end - len(self._input)
            self._begin(self._input_end - len(self._input))
        try:
            self.held += self._member.decompress(self._input, max(_PIECE_BYTES, missing))
        except ZLIB_ERRORS as error:
            raise _Damage(str(error)) from error
        if self._member.eof:
            self._input, self._member = self._member.unused_data, None
        else:
            self._input = self._member.unconsumed_tail

    def _begin(self, at: int) -> None:
        self._member = zlib_ng.decompressobj(wbits=_GZIP_WINDOW)
        self._member_at, self._member_offset = at, self.offset + len(self.held)

    def finish(self, size: int) -> None:
        """To the end of the member where it is near, because its checksum vouches for the record;
        not further, because the next member may be damaged."""
        while self._member is not None and len(self.held) < size + 64:
            self._more(64)

    def recover(self, why: str, record_offset: int) -> None:
        """Go on at the next member. What a damaged one held is known only if it was one record."""
        at = self._next_member(self._member_at + 1)
        if record_offset != self._member_offset or (self._is_only and at is None):
            raise CorruptFile(
                f"cannot be decompressed ({why}) from byte {self._member_at:,}, and more than one record may "
                "be lost",
                where=str(self.path),
                next="copy or download it again",
            )
        self.let_go(len(self.held))
        self._input, self._member, self._is_only = b"", None, False
        if at is None:
            self.at_end = True
        else:
            self._raw.seek(at)
            self._input_end = at

    def _next_member(self, at: int) -> int | None:
        """Where in the compressed file the next record's member begins."""
        self._raw.seek(at)
        window = b""
        while True:
            piece = read_exactly(self._raw, _PIECE_BYTES, self.path)
            window += piece
            found = window.find(GZIP)
            while found >= 0 and (found + MAX_HEADER_BYTES <= len(window) or not piece):
                if _begins_record(window[found : found + MAX_HEADER_BYTES]):
                    return at + found
                found = window.find(GZIP, found + 1)
            if not piece:
                return None
            cut = found if found >= 0 else max(len(window) - len(GZIP) + 1, 0)
            at, window = at + cut, window[cut:]


def _begins_record(member: bytes) -> bool:
    try:
        return bytes(zlib_ng.decompressobj(wbits=_GZIP_WINDOW).decompress(member, 5)) == b"WARC/"
    except ZLIB_ERRORS:
        return False


# -- records of a file -----------------------------------------------------------------------------


def read_frames(raw: Any, path: AnyPath, max_record_bytes: int) -> Iterator[Frame | BadRecord]:
    feed = _Members(raw, path) if path.suffix == ".gz" else _Feed(raw, path)
    while True:
        start = feed.offset
        try:
            if not feed.fill(1):
                return
            if blank := _BLANK_LINES.match(feed.held):
                feed.let_go(blank.end())
                continue
            found = _frame(feed, max_record_bytes)
        except _Damage as error:
            feed.recover(str(error), start)
            found = BadRecord(start, "corrupt_record", f"cannot be decompressed ({error})")
        yield found


def _frame(feed: _Feed, max_record_bytes: int) -> Frame | BadRecord:
    """The record that begins where the feed is; the feed is left behind it."""
    start = feed.offset
    if feed.fill(5) and not feed.held.startswith(b"WARC/"):
        if start == 0:
            raise CorruptFile(
                "does not begin with a WARC record",
                where=str(feed.path),
                next="check what the file is; web archives begin with WARC/1.0 or WARC/1.1",
            )
        return _resume(feed, 0, "bad_header", "this is not the beginning of a WARC record")
    header = _HEADER_END.search(feed.held, 0, MAX_HEADER_BYTES)
    while header is None and len(feed.held) < MAX_HEADER_BYTES:
        if not feed.fill(len(feed.held) + 1):
            raise _truncated(feed.path, start)
        header = _HEADER_END.search(feed.held, 0, MAX_HEADER_BYTES)
    if header is None:
        return _resume(feed, 5, "bad_header", f"the header does not end within {MAX_HEADER_BYTES:,} bytes")
    lengths = _LENGTH.findall(feed.held, 0, header.end())
    if len(lengths) != 1:
        return _resume(feed, 5, "bad_header", "the header has no Content-Length that can be used")
    size = header.end() + int(lengths[0])
    if size > max_record_bytes:
        feed.skip(size)
        return too_large(start, size, max_record_bytes, "record")
    if not feed.fill(size):
        raise _truncated(feed.path, start)
    feed.finish(size)
    if len(feed.held) > size and feed.held[size] not in b"\r\n":
        return _resume(feed, 5, "bad_length", "the record does not end where its Content-Length says")
    frame = Frame(start, bytes(memoryview(feed.held)[:size]))
    feed.let_go(size)
    return frame


def _resume(feed: _Feed, size: int, reason: str, detail: str) -> BadRecord:
    """Give up the record that begins here, and go on at the next line that begins one."""
    bad = BadRecord(feed.offset, reason, detail)
    feed.let_go(size)
    while True:
        found = _NEXT_RECORD.search(feed.held)
        if found:
            feed.let_go(found.start() + 1)
            return bad
        # a line that begins a record may lie half in what is held
        feed.let_go(max(len(feed.held) - 16, 0))
        if not feed.fill(len(feed.held) + 1):
            feed.let_go(len(feed.held))
            return bad


def _truncated(path: AnyPath, offset: int) -> CorruptFile:
    return CorruptFile(
        f"the record at byte {offset:,} is longer than what is left: the file is truncated",
        where=str(path),
        next="copy or download it again",
    )

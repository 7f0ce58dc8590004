"""Files of WARC records: where each begins and ends, gzip members and all, and which are of a span.

    file ─ members ─ bytes ─┬ "WARC/1.0" headers ┬─ whole ───────────────────────> Frame(offset, bytes)
                            │ Content-Length     ├─ broken ─ next one is sought ─> BadRecord
                            └ body CRLF CRLF     └─ cut short ───────────────────> CorruptFile, or BadRecord

FastWARC over a whole file gives a truncated archive as a shorter one without a word, and stops at the first
record that is broken. Here a record that is broken is reported and reading goes on where the next one begins.
Every byte that a header promises must be there, and every gzip member must end: otherwise the file is
truncated, which is an error, or one last bad record where that is asked for.

**Spans.** A *place* is where reading can begin: the first byte of a record in a plain file; in one of gzip
members the first byte of a member whose first byte is the first of a record. An offset is the place of a
record: of a member with several, all have that of the member. From a place on the same is read, whatever was
read before it: so a part of a file needs to know its first place, and nothing else.

    span [0, 100)       place 0 ─ record ─ record ─ record ──> the first place at 100 or later: 117
    span [100, 200)     guesses 117: a member that decompresses to "WARC/", a line "WARC/1.0"
                        ─ record ─ record ───────────────────> 203
    span [200, 300)     guesses 203 ─ …

Nobody can tell from inside a file that a guess is right: an archive within a record, stored as it is, has
members and records like the file around it. So the guess is proved afterwards. Each part says where it began
and where the next has to (`Seam`), the first begins at 0, and whoever reads the parts compares the two
(tokmill.stages.ingest.seams): a part that guessed wrong is read again from the right place. A file that has
no place but its beginning (one member for all, records across members) is read by its first part, and the
others find nothing, or are told that nothing is left for them. What is read is thus what one part of the
whole file reads, in every case; a wrong guess costs time alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from zlib_ng import zlib_ng

from tokmill.errors import CorruptFile
from tokmill.storage.blocks import read_exactly
from tokmill.storage.location import AnyPath, open_binary
from tokmill.storage.records import BadRecord, Seam, Span, too_large

MAX_HEADER_BYTES = 64 << 10
ZLIB_ERRORS: tuple[Any, ...] = (zlib_ng.error,)
GZIP = b"\x1f\x8b\x08"

_PIECE_BYTES = 1 << 20
# Given to a member at a time, counted from its beginning: how far it can be read does not depend on where
# reading began. What is behind its end is copied; most members are smaller than this.
_FED_BYTES = 64 << 10
_GZIP_WINDOW = 31

_HEADER_END = re.compile(rb"\r?\n\r?\n")
_LENGTH = re.compile(rb"^content-length[ \t]*:[ \t]*(\d{1,18})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_NEXT_RECORD = re.compile(rb"\nWARC/[01]\.\d+\r?\n")
_LINE_BYTES = 16  # of a line that begins a record, and may lie half in what is held
_BLANK_LINES = re.compile(rb"[\r\n]+")

Truncated = Literal["error", "quarantine"]


class Frame(NamedTuple):
    """One record as it lies in the file, headers and body."""

    offset: int
    data: bytes


# -- bytes of a file -------------------------------------------------------------------------------


class _Damage(Exception):
    """A gzip member cannot be decompressed; `feed.recover` goes on at the next one."""


class _Cut(Exception):
    """The file ends inside a record, or inside a gzip member."""


class _Feed:
    """Bytes of a plain file from a place on, a piece at a time; `at` is where `held` begins."""

    def __init__(self, raw: Any, path: AnyPath, begins: int) -> None:
        self.held, self.at, self.at_end = bytearray(), begins, False
        self.raw, self.path = raw, path
        if begins:
            raw.seek(begins)

    def fill(self, size: int) -> bool:
        """Hold `size` bytes or more; False where the file ends before."""
        while len(self.held) < size and not self.at_end:
            self._more(size - len(self.held))
        return len(self.held) >= size

    def let_go(self, size: int) -> None:
        del self.held[:size]
        self.at += size

    def skip(self, size: int) -> None:
        """Let go of bytes that need not be held all at once."""
        while size:
            if not self.held and not self.fill(1):
                raise _Cut
            step = min(size, len(self.held))
            self.let_go(step)
            size -= step

    def finish(self, size: int) -> None:
        """Hold what shows whether a record of `size` bytes ends there."""
        self.fill(size + 1)

    def place(self) -> tuple[int, int]:
        """Where reading has to begin for what lies here, and how many bytes of it come before."""
        return self.at, 0

    def recover(self, why: str, record: tuple[int, int]) -> None:
        raise AssertionError("a plain file has no members")

    def next_place(self, at: int, end: int | None) -> int | None:
        """The first one at `at` or later that looks like one."""
        return _next_line(self.raw, self.path, at, end)

    def _more(self, missing: int) -> None:
        piece = read_exactly(self.raw, max(_PIECE_BYTES, missing), self.path)
        self.held += piece
        self.at_end = not piece


class _Members(_Feed):
    """The same of a file of gzip members, which usually are one record each; `at` counts decompressed bytes
    from where reading began."""

    def __init__(self, raw: Any, path: AnyPath, begins: int) -> None:
        super().__init__(raw, path, begins)
        self.at = 0
        self._window, self._used = memoryview(b""), 0
        self._read_to = begins  # in the compressed file, as are places
        self._member: Any = None
        self._starts: list[tuple[int, int]] = []  # of members, from that of `at` on: their `at`, their place
        self._is_only = True

    def _more(self, missing: int) -> None:
        if len(self._window) - self._used < _FED_BYTES and not self._refill():
            return
        if self._member is None and not self._begin():
            return
        fed = self._window[self._used : self._used + _FED_BYTES]
        try:
            self.held += self._member.decompress(fed, _PIECE_BYTES)
        except ZLIB_ERRORS as error:
            raise _Damage(str(error)) from error
        if self._member.eof:
            self._used += len(fed) - len(self._member.unused_data)
            self._member = None
        else:
            self._used += len(fed) - len(self._member.unconsumed_tail)

    def _refill(self) -> bool:
        """More to give to members, while there is; False where all of it was given."""
        piece = read_exactly(self.raw, _PIECE_BYTES, self.path)
        if piece:
            self._window, self._used = memoryview(bytes(self._window[self._used :]) + piece), 0
            self._read_to += len(piece)
        elif self._used == len(self._window):
            if self._member is not None or not self._read_to:
                raise _Cut
            self.at_end = True
            return False
        return True

    def _begin(self) -> bool:
        """The next member; False where nothing but padding is at hand, which is allowed between them."""
        if not self._window[self._used]:
            padded = bytes(self._window[self._used : self._used + _FED_BYTES])
            self._used += len(padded) - len(padded.lstrip(b"\0"))
            return False
        place = self._read_to - len(self._window) + self._used
        self._is_only = self._is_only and not place
        self._member = zlib_ng.decompressobj(wbits=_GZIP_WINDOW)
        self._starts.append((self.at + len(self.held), place))
        return True

    def finish(self, size: int) -> None:
        """To the end of the member where it is near, because its checksum vouches for the record;
        not further, because the next member may be damaged."""
        while self._member is not None and len(self.held) < size + 64:
            self._more(64)

    def let_go(self, size: int) -> None:
        super().let_go(size)
        self._forget_starts()

    def place(self) -> tuple[int, int]:
        self._forget_starts()
        at, place = self._starts[0] if self._starts else (self.at, self._read_to)
        return place, self.at - at

    def _forget_starts(self) -> None:
        while len(self._starts) > 1 and self._starts[1][0] <= self.at:
            del self._starts[0]

    def recover(self, why: str, record: tuple[int, int]) -> None:
        """Go on at the next member. What a damaged one held is known only if it was one record, whose place
        this is."""
        place = self._starts[-1][1]
        ahead = self.next_place(place + 1, None)
        if record != (place, 0) or (self._is_only and ahead is None):
            raise CorruptFile(
                f"cannot be decompressed ({why}) from byte {place:,}, and more than one record may be lost",
                where=str(self.path),
                next="copy or download it again",
            )
        self.let_go(len(self.held))
        self._window, self._used, self._member, self._is_only = memoryview(b""), 0, None, False
        self._starts.clear()
        if ahead is None:
            self.at_end = True
        else:
            self.raw.seek(ahead)
            self._read_to = ahead

    def next_place(self, at: int, end: int | None) -> int | None:
        return _next_member(self.raw, self.path, at, end)


def _next_line(raw: Any, path: AnyPath, at: int, end: int | None) -> int | None:
    """Where in a plain file the next line lies that begins a record, from `at` on and before `end`."""
    at = max(at - 1, 0)  # the end of the line before it
    raw.seek(at)
    window = b""
    while end is None or at < end:
        piece = read_exactly(raw, _PIECE_BYTES, path)
        window += piece
        if found := _NEXT_RECORD.search(window):
            place = at + found.start() + 1
            return place if end is None or place < end else None
        if not piece:
            return None
        cut = max(len(window) - _LINE_BYTES, 0)
        at, window = at + cut, window[cut:]
    return None


def _next_member(raw: Any, path: AnyPath, at: int, end: int | None) -> int | None:
    """Where in a compressed file the next member lies that begins a record, from `at` on and before `end`."""
    raw.seek(at)
    window = b""
    while end is None or at < end:
        piece = read_exactly(raw, _PIECE_BYTES, path)
        window += piece
        found = window.find(GZIP)
        while found >= 0 and (found + MAX_HEADER_BYTES <= len(window) or not piece):
            if end is not None and at + found >= end:
                return None
            if _begins_record(window[found : found + MAX_HEADER_BYTES]):
                return at + found
            found = window.find(GZIP, found + 1)
        if not piece:
            return None
        cut = found if found >= 0 else max(len(window) - len(GZIP) + 1, 0)
        at, window = at + cut, window[cut:]
    return None


def _begins_record(member: bytes) -> bool:
    try:
        return bytes(zlib_ng.decompressobj(wbits=_GZIP_WINDOW).decompress(member, 5)) == b"WARC/"
    except ZLIB_ERRORS:
        return False


# -- records of a span -----------------------------------------------------------------------------


class Frames:
    """The records of a span, once: those from its first place on to the next one at its end or behind it.

    `is_known`: the span begins at a place, as the one before it said; otherwise it is guessed."""

    def __init__(
        self,
        path: AnyPath,
        span: Span,
        max_record_bytes: int,
        truncated: Truncated = "error",
        *,
        is_known: bool = False,
    ) -> None:
        self._path, self._span = path, span
        self._max_record_bytes, self._truncated = max_record_bytes, truncated
        self.is_guess = bool(span.start) and not is_known
        self.seam = Seam(None, None)

    def __iter__(self) -> Iterator[Frame | BadRecord]:
        span, kind = self._span, _Members if self._path.suffix == ".gz" else _Feed
        if span.end is not None and span.start >= span.end:  # the part before read on beyond this one
            self.seam = Seam(None, span.start)
            return
        with open_binary(self._path) as raw:
            begins: int | None = span.start
            feed = kind(raw, self._path, span.start)
            if self.is_guess:
                begins = feed.next_place(span.start, span.end)
                if begins is None:
                    return
                feed = kind(raw, self._path, begins)
            self.seam = Seam(begins, None)
            yield from self._read(feed)

    def _read(self, feed: _Feed) -> Iterator[Frame | BadRecord]:
        while True:
            fault: _Damage | _Cut | None = None
            try:
                if not feed.fill(1):
                    return
                if blank := _BLANK_LINES.match(feed.held):
                    feed.let_go(blank.end())
                    continue
            except (_Damage, _Cut) as error:  # of whom it is shows the place
                fault = error
            place, within = record = feed.place()
            if self._span.end is not None and place >= self._span.end and not within:
                self.seam = self.seam._replace(ends=place)
                return
            try:
                if fault is not None:
                    raise fault
                found = _frame(feed, self._max_record_bytes, place, is_first=record == (0, 0))
            except _Damage as error:
                feed.recover(str(error), record)
                found = BadRecord(place, "corrupt_record", f"cannot be decompressed ({error})")
            except _Cut:
                yield self._cut_record(feed, *record)
                return
            if within and isinstance(found, BadRecord):
                found = found._replace(detail=found.detail + _where(within))
            yield found

    def _cut_record(self, feed: _Feed, place: int, within: int) -> BadRecord:
        """The last record of a truncated file; an error, unless it is asked for and is the only one lost."""
        again = "copy or download it again"
        if self._truncated == "error" or not (place or within):
            allow = (
                "" if not (place or within) else ", or set `warc: {truncated: quarantine}` for this source"
            )
            raise CorruptFile(
                f"the record at byte {place:,} is longer than what is left: the file is truncated",
                where=str(feed.path),
                next=again + allow,
            )
        if (behind := feed.next_place(place + 5, None)) is not None:
            raise CorruptFile(
                f"the record at byte {place:,} is longer than what is left, and at byte {behind:,} "
                "another seems to begin: more than one may be lost",
                where=str(feed.path),
                next=again,
            )
        return BadRecord(place, "truncated", "the file ends inside this record" + _where(within))


def _where(within: int) -> str:
    """In a gzip member of several records."""
    return f"; {within:,} bytes into what the gzip member there holds" if within else ""


def _frame(feed: _Feed, max_record_bytes: int, place: int, *, is_first: bool) -> Frame | BadRecord:
    """The record that begins where the feed is; the feed is left behind it."""
    if feed.fill(5) and not feed.held.startswith(b"WARC/"):
        if is_first:
            raise CorruptFile(
                "does not begin with a WARC record",
                where=str(feed.path),
                next="check what the file is; web archives begin with WARC/1.0 or WARC/1.1",
            )
        return _resume(feed, 0, place, "bad_header", "this is not the beginning of a WARC record")
    header = _HEADER_END.search(feed.held, 0, MAX_HEADER_BYTES)
    while header is None and len(feed.held) < MAX_HEADER_BYTES:
        if not feed.fill(len(feed.held) + 1):
            raise _Cut
        header = _HEADER_END.search(feed.held, 0, MAX_HEADER_BYTES)
    if header is None:
        return _resume(
            feed, 5, place, "bad_header", f"the header does not end within {MAX_HEADER_BYTES:,} bytes"
        )
    lengths = _LENGTH.findall(feed.held, 0, header.end())
    if len(lengths) != 1:
        return _resume(feed, 5, place, "bad_header", "the header has no Content-Length that can be used")
    size = header.end() + int(lengths[0])
    if size > max_record_bytes:
        feed.skip(size)
        return too_large(place, size, max_record_bytes, "record")
    if not feed.fill(size):
        raise _Cut
    feed.finish(size)
    if len(feed.held) > size and feed.held[size] not in b"\r\n":
        return _resume(feed, 5, place, "bad_length", "the record does not end where its Content-Length says")
    data = bytes(memoryview(feed.held)[:size])
    feed.let_go(size)
    return Frame(place, data)


def _resume(feed: _Feed, size: int, place: int, reason: str, detail: str) -> BadRecord:
    """Give up the record that begins here, and go on at the next line that begins one."""
    feed.let_go(size)
    while True:
        found = _NEXT_RECORD.search(feed.held)
        if found:
            feed.let_go(found.start() + 1)
            break
        feed.let_go(max(len(feed.held) - _LINE_BYTES, 0))
        if not feed.fill(len(feed.held) + 1):
            feed.let_go(len(feed.held))
            break
    return BadRecord(place, reason, detail)

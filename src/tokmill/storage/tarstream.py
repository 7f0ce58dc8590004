"""Members of a tar archive, read as a stream: where each begins, what it is called, and its bytes if wanted.

    header    512 bytes   name 100 · mode 8 · uid 8 · gid 8 · size 12 · mtime 12 · checksum 8 · type 1 ·
                          link 100 · "ustar" 6 · version 2 · owner 32 · group 32 · device 16 · prefix 155
    content   size bytes, filled up with NUL to a multiple of 512
    end       a block of 512 NUL or more

    type      0 NUL 7   a file                x   pax: "LENGTH key=value\\n" … of the next member
              1 … 6     link, device,         g   the same of all that follow
                        directory: no bytes   L   GNU: the name of the next      K   the name of its link
              S         GNU: a sparse file, of which blocks are left out

    read_members(stream, path, wants, max_bytes) ─> Member(offset, name, size, data, fault)

`tarfile` takes an archive that was cut at a header for a whole one, and holds every header that it has seen.
Here a member that is longer than what is left, a header whose sum is
wrong and an archive without its end are errors. Several archives in one file, as `cat` makes them, are read.
The layout is that of POSIX.1-2017, pax, and of the GNU tar manual, "Basic Tar Format".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn

from tokmill.errors import CorruptFile
from tokmill.storage.blocks import BLOCK_BYTES, Stream, read_exactly
from tokmill.storage.location import AnyPath

_BLOCK = 512
_ZERO = bytes(_BLOCK)
_FILES, _EMPTY = (b"0", b"\0", b"7", b"S"), b"123456"
# A name, or what pax says of a member. More is no name: it asks for memory.
_MAX_ABOUT_BYTES = 1 << 20
_OCTAL = re.compile(rb"[ \0]*([0-7]*)[ \0]*")
_PAX = re.compile(rb"(\d{1,7}) ([^=\n]+)=")


class Member(NamedTuple):
    """A file of an archive. `data`: None where it was not wanted, or has a `fault`."""

    offset: int
    name: bytes
    size: int
    data: bytes | None
    fault: str = ""  # "sparse file", "link", "too_large"


class _Feed:
    """Bytes of the archive in order; `offset` is where the next one lies."""

    def __init__(self, stream: Stream, path: AnyPath) -> None:
        self.path, self.offset = path, 0
        self._stream, self._held, self._at = stream, b"", 0

    def take(self, size: int) -> bytes:
        """So many, or those that are left."""
        if self._at + size > len(self._held):
            rest = self._held[self._at :]
            self._held = rest + read_exactly(self._stream, max(BLOCK_BYTES, size - len(rest)), self.path)
            self._at = 0
        taken = self._held[self._at : self._at + size]
        self._at += len(taken)
        self.offset += len(taken)
        return taken

    def take_all(self, size: int, start: int) -> bytes:
        taken = self.take(size)
        if len(taken) < size:
            self.truncated(start)
        return taken

    def skip(self, size: int, start: int) -> None:
        while size:
            size -= len(self.take_all(min(size, BLOCK_BYTES), start))

    def truncated(self, start: int) -> NoReturn:
        raise CorruptFile(
            f"the member at byte {start:,} is longer than what is left: the archive is truncated",
            where=str(self.path),
            next="copy or download it again",
        )

    def corrupt(self, what: str) -> NoReturn:
        raise CorruptFile(
            what, where=str(self.path), next="check what the file is; copy or download it again"
        )


def read_members(
    stream: Stream, path: AnyPath, wants: Callable[[bytes], bool], max_bytes: int
) -> Iterator[Member]:
    """Every file of the archive, in order; with its bytes where its name is wanted and it has no more than
    `max_bytes`."""
    feed = _Feed(stream, path)
    every: dict[bytes, bytes] = {}  # what pax says of all members
    own: dict[bytes, bytes] = {}  # and of the next one
    ended, start = False, 0
    while header := feed.take(_BLOCK):
        if header == _ZERO:
            ended = True
            continue
        start = start if own else feed.offset - len(header)
        if len(header) < _BLOCK:
            feed.truncated(start)
        ended = False
        kind, size = header[156:157], _checked_size(header, feed)
        if kind in b"xgLK":
            if size > _MAX_ABOUT_BYTES:
                feed.corrupt(f"what is said of the member at byte {start:,} has {size:,} bytes")
            about = _content(feed, size, start)
            if kind == b"g":
                every |= _pax(about, feed, start)
            elif kind == b"x":
                own |= _pax(about, feed, start)
            else:
                own |= {b"path" if kind == b"L" else b"linkpath": about.partition(b"\0")[0]}
            continue
        said = every | own
        own = {}
        name = said.get(b"GNU.sparse.name") or said.get(b"path") or _name(header)
        if b"size" in said:
            if not re.fullmatch(rb"\d{1,18}", said[b"size"]):
                feed.corrupt(f"the size of the member at byte {start:,} is no number")
            size = int(said[b"size"])
        if kind in _EMPTY:
            if kind in b"12":
                yield Member(start, name, 0, None, "link")
            continue
        if kind == b"S":
            _skip_map(feed, header, start)
        is_sparse = kind == b"S" or any(key.startswith(b"GNU.sparse.") for key in said)
        fault = "sparse file" if is_sparse else "too_large" if size > max_bytes else ""
        is_file = kind in _FILES
        if fault or not is_file or not wants(name):
            feed.skip(size + -size % _BLOCK, start)
            data = None
        else:
            data = _content(feed, size, start)
        if is_file:
            yield Member(start, name, size, data, fault)
    if own or not ended:
        feed.corrupt("the archive has no end: it is truncated" if feed.offset else "is empty, and no archive")


def _content(feed: _Feed, size: int, start: int) -> bytes:
    return feed.take_all(size + -size % _BLOCK, start)[:size]


def _checked_size(header: bytes, feed: _Feed) -> int:
    start = feed.offset - _BLOCK
    told = _OCTAL.fullmatch(header[148:156])
    # the sum is of the header with spaces in the place of the sum
    if told is None or int(told[1] or b"0", 8) != sum(header) - sum(header[148:156]) + 8 * 0x20:
        feed.corrupt(
            f"no header of a tar archive at byte {start:,}"
            if start
            else "does not begin with the header of a tar archive"
        )
    field = header[124:136]
    if field[0] == 0x80:  # a number of 11 bytes, for what has more than 8 GiB
        return int.from_bytes(field[1:], "big")
    size = _OCTAL.fullmatch(field)
    if size is None:
        feed.corrupt(f"the size of the member at byte {start:,} is no number")
    return int(size[1] or b"0", 8)


def _name(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _pax(about: bytes, feed: _Feed, start: int) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(about):
        record = _PAX.match(about, at)
        end = at + int(record[1]) if record else 0
        if record is None or end > len(about) or end <= record.end() or about[end - 1] != 0x0A:
            feed.corrupt(f"the pax header at byte {start:,} is damaged")
        found[record[2]] = about[record.end() : end - 1]
        at = end
    return found


def _skip_map(feed: _Feed, header: bytes, start: int) -> None:
    """Blocks that tell more holes of a sparse file than the header can."""
    goes_on = header[482]
    while goes_on:
        goes_on = feed.take_all(_BLOCK, start)[504]

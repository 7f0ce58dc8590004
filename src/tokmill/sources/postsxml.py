"""Rows of a Posts.xml: plain ones by a kernel, the rest by expat, and nothing that expat would refuse.

    <?xml …?>  <posts>  │ <row … /> <row … /> │ <!-- --> │ <row … /> │ </posts>
    └ expat ────────────┘└ kernel ─────────────┘└ expat ──┘└ kernel ───┘└ expat ┘

One parser lives as long as the file and sees all of it except the plain rows, which the kernel cuts out where the
parser stands inside <posts> and between two elements. A plain row is well-formed by itself and leaves the parser
where it was, so what is accepted, what is refused, and at which byte, is what expat alone would say. XML that is
cut or damaged is an error that names the file, and a document type is refused before it can declare an entity.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from xml.parsers import expat

from tokmill.errors import CorruptFile, InputError
from tokmill.kernels import xmlrows
from tokmill.storage.location import open_binary
from tokmill.storage.streams import read_exactly

# The attributes of a row that are read, those with a number first.
ATTRIBUTES = [
    "Id",
    "PostTypeId",
    "Score",
    "ParentId",
    "AcceptedAnswerId",
    "CreationDate",
    "DeletionDate",
    "ContentLicense",
    "Title",
    "Body",
    "Tags",
]
_NUMBERS = ATTRIBUTES.index("AcceptedAnswerId") + 1
_WANTED = xmlrows.wanted_names(ATTRIBUTES)
_CHUNK_BYTES = 1 << 20
_MAX_ROWS = 1 << 13  # of one scan: 1 MB has a thousand
# What may lie behind the place where the parser's last element began or ended. At a "\r" expat waits for a "\n".
_BETWEEN_ROWS = re.compile(rb"(?:<posts>|</row>)?(?:[ \t\r\n]*[ \t\n])?")


class ScannedRows(NamedTuple):
    """Plain rows, as columns in `room` that the next step of the reader overwrites."""

    base: int  # where the block begins
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody wants here
    room: xmlrows.Room


class ParsedRow(NamedTuple):
    offset: int
    attributes: dict[str, str]


def read_rows(path: Path, max_record_bytes: int, where: str) -> Iterator[ScannedRows | list[ParsedRow]]:
    """All rows of a file; the memory is that of one row and one chunk. `where` is the file the user knows."""
    parser = _Parser(where)
    room = xmlrows.Room(len(ATTRIBUTES), 2 * _CHUNK_BYTES, _MAX_ROWS)
    position, rest, chunk = 0, b"", b" "
    feed_bytes = 1
    with open_binary(path) as stream:
        while chunk:
            chunk = read_exactly(stream, _CHUNK_BYTES, path)
            if not position:
                parser.is_utf8 = not chunk.startswith((b"\xfe\xff", b"\xff\xfe")) and 0 not in chunk[:4]
            position += len(chunk)
            data = rest + chunk
            base = position - len(data)
            at = 0
            while at < len(data):
                if parser.is_between_rows:
                    scan = xmlrows.scan_rows(data, at, _WANTED, _NUMBERS, room)
                    if scan.rows:
                        yield ScannedRows(base, scan.rows, room)
                        parser.latest = base + scan.last_end
                        feed_bytes = 1
                    parser.skipped += scan.at - at
                    at = scan.at
                    if scan.why in (xmlrows.AT_END, xmlrows.FULL):
                        continue
                    if scan.why == xmlrows.CUT and chunk and len(data) - at <= _CHUNK_BYTES:
                        break  # the next chunk has the rest of this row
                # A line, and twice as much each time that what follows is odd too.
                end = data.find(b"\n", at + feed_bytes - 1) + 1 or len(data)
                parser.feed(data[at:end])
                feed_bytes = min(2 * feed_bytes, _CHUNK_BYTES)
                at = end
            rest = data[at:]
            if not chunk:
                parser.feed(b"", is_last=True)
            if parser.found:
                yield parser.found
                parser.found = []
            if position - parser.latest > max_record_bytes + _CHUNK_BYTES:
                raise InputError(
                    f"more than max_record_bytes {max_record_bytes:,} in one row, at byte {parser.latest:,}",
                    where=where,
                    next="raise `max_record_bytes` of this source if such a row is right",
                )


def check_root(path: Path) -> None:
    """Look at the beginning: is it <posts>?"""
    parser = expat.ParserCreate()
    roots: list[str] = []
    parser.StartElementHandler = lambda name, _: roots.append(name)
    _refuse_declarations(parser, str(path))
    with open_binary(path) as stream:
        head = read_exactly(stream, 1 << 16, path)
    with contextlib.suppress(expat.ExpatError, LookupError):  # the whole file is judged when it is read
        parser.Parse(head, False)
    if not roots or roots[0] != "posts":
        raise _not_posts(str(path), roots[0] if roots else None)


class _Parser:
    """expat, told of what it is not shown."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._expat: Any = expat.ParserCreate()
        self._expat.StartElementHandler, self._expat.EndElementHandler = self._begin, self._end
        self._expat.XmlDeclHandler = self._declare
        _refuse_declarations(self._expat, where)
        self._depth = 0
        self._fed = 0
        self.skipped = 0  # bytes that the kernel took
        self.latest = 0  # where an element began or ended, in the file
        self.found: list[ParsedRow] = []
        self.is_utf8 = True
        self.is_between_rows = False

    def feed(self, data: bytes, *, is_last: bool = False) -> None:
        start = self._fed + self.skipped
        try:
            self._expat.Parse(data, is_last)
        except expat.ExpatError as error:
            raise CorruptFile(
                f"is not well-formed XML: {expat.errors.messages[error.code]} "
                f"at byte {self._expat.ErrorByteIndex + self.skipped:,}",
                where=self._where,
                next="the file is cut or damaged: copy or download it again",
            ) from error
        except LookupError as error:  # Python's own word for an encoding that it does not know
            raise CorruptFile(
                f"declares an encoding that nobody knows ({error})",
                where=self._where,
                next="the file is cut or damaged: copy or download it again",
            ) from error
        self._fed += len(data)
        # An element in these bytes: the parser has read all of them, and what lies behind it is white space.
        self.is_between_rows = (
            self.is_utf8
            and self._depth == 1
            and self.latest >= start
            and _BETWEEN_ROWS.fullmatch(data, self.latest - start) is not None
        )

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        self.latest = self._expat.CurrentByteIndex + self.skipped
        if not self._depth and name != "posts":
            raise _not_posts(self._where, name)
        if self._depth == 1 and name == "row":
            self.found.append(ParsedRow(self.latest, attributes))
        self._depth += 1

    def _end(self, name: str) -> None:
        self.latest = self._expat.CurrentByteIndex + self.skipped
        self._depth -= 1

    def _declare(self, version: str, encoding: str | None, standalone: int) -> None:
        self.is_utf8 &= encoding is None or encoding.lower() == "utf-8"


def _refuse_declarations(parser: Any, where: str) -> None:
    def refuse(*_: Any) -> None:
        raise CorruptFile(
            "declares a document type or an entity, which no dump does and a few bytes of which can fill memory",
            where=where,
            next="download the dump again from its publisher",
        )

    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse


def _not_posts(where: str, root: str | None) -> InputError:
    what = f"its root is <{root[:40]}>" if root else "it does not begin as XML"
    return InputError(
        f"is not a Posts.xml: {what}, not <posts>", where=where, next="narrow `files` to the Posts.xml files"
    )

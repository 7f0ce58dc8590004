"""Posts of a Posts.xml as tables: rows by a kernel or by expat, checked numbers, HTML as text,
the licence of their day.

    <?xml …?>  <posts>  │ <row … /> <row … /> │ <!-- --> │ <row … /> │ </posts>
    └ expat ────────────┘└ kernel ─────────────┘└ expat ──┘└ kernel ───┘└ expat ┘

    rows ─ plain, and a question or an answer ─ whole columns ─> POSTS
       └ anything else (a wiki, deleted, no number, odd XML) ─ one by one, by `_post` ─> POSTS

One parser lives as long as the file and sees all of it except the plain rows, which the kernel cuts out where
the parser stands inside <posts> and between two elements. A plain row is well-formed by itself and leaves the
parser where it was, so what is accepted, what is refused, and at which byte, is what expat alone would say.
XML that is truncated or damaged is an error that names the file, and a document type is refused before it can
declare an entity.

`_post` says what a row means; the columns give the same for the rows that they take.

HTML fragments as plain text: one pass, no tree, no recursion, whatever the input.

    html ─ cut at tags ─ text, tag, text, tag, … ─ blocks ─ joined by one or two newlines

    <p>, <h1>, <div>, …     a block of its own, a blank line before it; white space collapsed
    <pre>                   every space and newline kept
    <ul>, <ol>, <li>        "- item", "1. item", nested lists indented by two spaces
    <br>                    a newline
    <table>                 a row is a line, its cells separated by tabs
    <script>, comments      dropped with what they hold; images too
    anything else           its text

A tag ends at the first ">" that is not inside a quoted value, or with the input, as in the HTML standard's
own tokenizer. So no character is looked at twice: a tree builder needs 25 s for 100,000 nested <div>, this
takes time by the byte.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from xml.parsers import expat

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokmill.errors import CorruptFile, InputError
from tokmill.kernels import htmltext as kernel
from tokmill.kernels import xmlrows
from tokmill.kernels.htmlentities import Entities, Names, html_entities, name_table
from tokmill.kernels.jit import Bytes, Offsets
from tokmill.kernels.xmlrows import NOT_A_NUMBER, NUMBER
from tokmill.schema import large_strings
from tokmill.storage.blocks import read_exactly
from tokmill.storage.location import open_binary

_MAX_INDENTED_LISTS = 8  # deeper ones stay there: 100,000 nested lists must not make 10 GB of spaces

_BLOCKS = (
    "p div h1 h2 h3 h4 h5 h6 blockquote hr dl dt dd section article header footer main nav aside figure "
    "figcaption address form fieldset details summary center caption option body"
)
_HIDDEN = "script style template noframes iframe"
# What the opening and the closing tag do.
_ACTS = dict.fromkeys(_BLOCKS.split(), (kernel.BLOCK, kernel.BLOCK)) | {
    "br": (kernel.BREAK, kernel.BREAK),
    "pre": (kernel.PRE, kernel.PRE_END),
    "ul": (kernel.LIST, kernel.LIST_END),
    "ol": (kernel.NUMBERED, kernel.LIST_END),
    "li": (kernel.ITEM, kernel.ITEM_END),
    "table": (kernel.TABLE, kernel.TABLE_END),
    "tr": (kernel.ROW, kernel.ROW_END),
    "td": (kernel.CELL, kernel.INLINE),
    "th": (kernel.CELL, kernel.INLINE),
    **dict.fromkeys(_HIDDEN.split(), (kernel.HIDDEN, kernel.INLINE)),
}


def html_column(data: Bytes, offsets: Offsets) -> Any:
    """The texts of a column of fragments, laid out as the module says."""
    tags, entities = _tables()
    return large_strings(
        *kernel.lay_out(data, offsets, tags, entities, max_indented_lists=_MAX_INDENTED_LISTS)
    )


def html_to_text(html: str) -> str:
    """The text of one fragment."""
    data = np.frombuffer(html.encode(), np.uint8)
    text: str = html_column(data, np.array([0, data.size]))[0].as_py()
    return text


@functools.cache
def _tables() -> tuple[Names, Entities]:
    tags = {name: opening | closing << 8 for name, (opening, closing) in _ACTS.items()}
    return name_table(tags), html_entities()


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
# What may lie behind the place where the parser's last element began or ended.
# At a "\r" expat waits for a "\n".
_BETWEEN_ROWS = re.compile(rb"(?:<posts>|</row>)?(?:[ \t\r\n]*[ \t\n])?")


# --- rows ---


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
            what = expat.errors.messages[error.code]
            at = self._expat.ErrorByteIndex + self.skipped
            raise self._corrupt(f"is not well-formed XML: {what} at byte {at:,}") from error
        except LookupError as error:  # Python's own word for an encoding that it does not know
            raise self._corrupt(f"declares an unknown encoding ({error})") from error
        self._fed += len(data)
        # An element in these bytes: the parser has read all of them, and what lies behind it is white space.
        self.is_between_rows = (
            self.is_utf8
            and self._depth == 1
            and self.latest >= start
            and _BETWEEN_ROWS.fullmatch(data, self.latest - start) is not None
        )

    def _corrupt(self, what: str) -> CorruptFile:
        return CorruptFile(
            what, where=self._where, next="the file is truncated or damaged: copy or download it again"
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
            "declares a document type or an entity, which no dump does and a few bytes of which can fill "
            "memory",
            where=where,
            next="download the dump again from its publisher",
        )

    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse


def _not_posts(where: str, root: str | None) -> InputError:
    what = f"its root is <{root[:40]}>" if root else "it does not begin as XML"
    return InputError(
        f"is not a Posts.xml: {what}, not <posts>", where=where, next="narrow `files` to the Posts.xml files"
    )


# --- posts ---

POSTS = pa.schema(
    [
        pa.field("question_id", pa.int64(), nullable=False),
        pa.field("post_id", pa.int64(), nullable=False),
        pa.field("kind", pa.int8(), nullable=False),
        pa.field("score", pa.int64(), nullable=False),
        pa.field("accepted_id", pa.int64()),
        pa.field("title", pa.string()),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("tags", pa.string()),
        pa.field("license", pa.string()),
        pa.field("created_at", pa.string()),
        pa.field("offset", pa.int64(), nullable=False),  # bytes into the XML
        pa.field("reason", pa.string()),  # of a post that can be in no thread
        pa.field("detail", pa.string()),
    ]
)
BAD, LEFT_OUT, QUESTION, ANSWER = -1, 0, 1, 2

_INTEGER = re.compile(r"-?[0-9]{1,18}")
# https://stackoverflow.com/help/licensing: by the day of the contribution
_LICENSES = (("2011-04-08", "CC-BY-SA-2.5"), ("2018-05-02", "CC-BY-SA-3.0"))
_LATEST_LICENSE = "CC-BY-SA-4.0"
_COLUMN = {name: column for column, name in enumerate(ATTRIBUTES)}


class Post(NamedTuple):
    """A row of POSTS."""

    question_id: int
    post_id: int
    kind: int
    score: int
    accepted_id: int | None
    title: str | None
    text: str
    tags: str | None
    license: str | None
    created_at: str | None
    offset: int
    reason: str | None = None
    detail: str | None = None


def read_posts(path: Path, max_record_bytes: int, where: str) -> Iterator[Any]:
    """Every row of a file in tables of some megabytes; `where` is the file that the user knows."""
    for rows in read_rows(path, max_record_bytes, where):
        yield _posts_of(rows) if isinstance(rows, ScannedRows) else post_table([_post(*row) for row in rows])


def post_table(posts: list[Post]) -> Any:
    columns = list(zip(*posts, strict=True)) if posts else [()] * len(POSTS)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, POSTS, strict=True)], POSTS
    )


def partitions_of(posts: Any, partitions: int) -> Any:
    """Of the thread; posts of no thread are spread evenly."""
    is_in_thread = np.asarray(posts.column("kind")) > LEFT_OUT
    return (
        np.where(is_in_thread, np.asarray(posts.column("question_id")), np.asarray(posts.column("offset")))
        % partitions
    )


# One row


def _post(offset: int, row: dict[str, str]) -> Post:
    for name in ("Id", "PostTypeId"):
        if not row.get(name):
            return _bad(offset, "missing_field", f"no attribute `{name}`")
    kind = row["PostTypeId"]
    numbers = ["Id", "PostTypeId", "Score"]
    if kind == "2":
        numbers.append("ParentId")
        if not row.get("ParentId"):
            return _bad(offset, "missing_field", "no attribute `ParentId`")
    for name in numbers:
        if not _INTEGER.fullmatch(row.get(name) or "0"):
            return _bad(offset, "wrong_type", f"`{name}` is {row[name][:40]!r}, not a number")
    post_id = int(row["Id"])
    reason = "deleted" if row.get("DeletionDate") else "" if kind in ("1", "2") else "not_a_question"
    if reason:
        return Post(0, post_id, LEFT_OUT, 0, None, None, "", None, None, None, offset, reason)
    accepted = row.get("AcceptedAnswerId") or ""
    date = row.get("CreationDate") or None
    return Post(
        post_id if kind == "1" else int(row["ParentId"]),
        post_id,
        int(kind),
        int(row.get("Score") or 0),
        int(accepted) if kind == "1" and _INTEGER.fullmatch(accepted) else None,
        row.get("Title"),
        html_to_text(row.get("Body") or ""),
        row.get("Tags"),
        _spdx(row.get("ContentLicense")) or _license_of_day(date),
        date,
        offset,
    )


def _bad(offset: int, reason: str, detail: str) -> Post:
    return Post(0, 0, BAD, 0, None, None, "", None, None, None, offset, reason, detail)


def _spdx(given: str | None) -> str | None:
    return given.strip().replace(" ", "-") or None if given else None


def _license_of_day(date: str | None) -> str | None:
    return next((tag for before, tag in _LICENSES if date < before), _LATEST_LICENSE) if date else None


# Whole columns


def _posts_of(rows: ScannedRows) -> Any:
    count, room = rows.count, rows.room
    # a copy: pyarrow would keep a view of the room
    numbers, kinds = room.numbers[:, :count].copy(), room.number_kinds[:, :count]
    widths = np.diff(room.offsets[:, : count + 1])
    post_id, kind = numbers[_COLUMN["Id"]], numbers[_COLUMN["PostTypeId"]]
    is_question = kind == QUESTION
    is_plain = (
        (kinds[_COLUMN["Id"]] == NUMBER)
        & (is_question | ((kind == ANSWER) & (kinds[_COLUMN["ParentId"]] == NUMBER)))
        & (widths[_COLUMN["PostTypeId"]] == 1)
        & (kinds[_COLUMN["Score"]] != NOT_A_NUMBER)
        & (widths[_COLUMN["DeletionDate"]] == 0)
    )
    accepts = is_question & (kinds[_COLUMN["AcceptedAnswerId"]] == NUMBER)
    created_at = _strings(rows, "CreationDate", widths[_COLUMN["CreationDate"]] > 0)
    posts = pa.table(
        [
            pa.array(np.where(is_question, post_id, numbers[_COLUMN["ParentId"]])),
            pa.array(post_id),
            pa.array(kind.astype(np.int8)),
            pa.array(numbers[_COLUMN["Score"]]),
            pa.array(numbers[_COLUMN["AcceptedAnswerId"]], mask=~accepts),
            _strings(rows, "Title"),
            html_column(*_buffers(rows, "Body")),
            _strings(rows, "Tags"),
            _licenses(_strings(rows, "ContentLicense"), created_at),
            created_at,
            pa.array(room.starts[:count] + rows.base),
            pa.nulls(count, pa.string()),
            pa.nulls(count, pa.string()),
        ],
        POSTS,
    )
    if is_plain.all():
        return posts
    others = [
        _post(rows.base + int(room.starts[row]), _row(rows, row))
        for row in np.flatnonzero(~is_plain).tolist()
    ]
    return pa.concat_tables([posts.filter(pa.array(is_plain)), post_table(others)])


def _licenses(given: Any, created_at: Any) -> Any:
    """Few values, each spelled once; the day decides where none is given."""
    values = given.dictionary_encode()
    spelled = pa.array([_spdx(value) for value in values.dictionary.to_pylist()], pa.string())
    licenses = spelled.take(values.indices)
    if not licenses.null_count:
        return licenses
    of_day = pc.if_else(created_at.is_valid(), _LATEST_LICENSE, pa.scalar(None, pa.string()))
    for before, tag in reversed(_LICENSES):
        of_day = pc.if_else(pc.less(created_at, before).fill_null(False), tag, of_day)
    return pc.coalesce(licenses, of_day)


def _strings(rows: ScannedRows, name: str, is_valid: Any = None) -> Any:
    data, offsets = _buffers(rows, name)
    is_valid = rows.room.present[_COLUMN[name], : rows.count] if is_valid is None else is_valid
    return pa.StringArray.from_buffers(
        rows.count,
        pa.py_buffer(offsets.astype(np.int32)),
        pa.py_buffer(data.copy()),
        pa.py_buffer(np.packbits(is_valid, bitorder="little")),
    )


def _row(rows: ScannedRows, row: int) -> dict[str, str]:
    return {
        name: _buffers(rows, name).text(row)
        for name, column in _COLUMN.items()
        if rows.room.present[column, row]
    }


class _Buffers(NamedTuple):
    data: np.ndarray[Any, np.dtype[np.uint8]]
    offsets: np.ndarray[Any, np.dtype[np.int64]]

    def text(self, row: int) -> str:
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes().decode()


def _buffers(rows: ScannedRows, name: str) -> _Buffers:
    """An attribute's column of the room."""
    column, room = _COLUMN[name], rows.room
    offsets = room.offsets[column, : rows.count + 1]
    first = column * room.max_bytes
    return _Buffers(room.data[first : first + int(offsets[-1])], offsets)

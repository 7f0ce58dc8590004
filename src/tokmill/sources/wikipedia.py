"""Wikipedia: what WikiExtractor wrote, or a MediaWiki dump itself.

    <doc id="12" url="…" title="Anarchism">      WikiExtractor; its files (wiki_00) have no suffix, so the
    Anarchism                                    layout is found from the content, never from the name
                                                 alone
    Anarchism is a political …
    </doc>

    {"id": "12", "revid": "9", "url": "…", "title": "Anarchism", "text": "…"}        WikiExtractor --json

    <mediawiki><siteinfo>…</siteinfo><page><title/><ns/><id/><revision>… <text/></revision></page>… a dump

    read ─ _sniff ─┬─ read_blocks   <doc>      ┐
                   ├─ read_lines    JSON       ├─> Page ─> record: title, a blank line, text
                   └─ read_dump     XML        ┘

A dump is read as it passes; of a page with several revisions the last one counts.
WikiExtractor escapes <, > and & in what it writes (--html-safe); that is undone.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import quote
from xml.parsers import expat

from tokmill.artifacts.manifest import Json
from tokmill.errors import CorruptFile
from tokmill.recipe import Source, Wikipedia
from tokmill.sources import wikitext
from tokmill.sources.reading import Dropped, Reader, Reading, Record, Taken, gather, whole_file
from tokmill.storage import blocks, jsonl, records
from tokmill.storage.location import AnyPath, InputFile
from tokmill.storage.records import BadRecord, Kind, Span, Wanted


class Page(NamedTuple):
    offset: int
    id: str | None
    title: str
    text: str
    url: str | None
    revid: str | None
    date: str | None = None


# --- a MediaWiki dump ---

_MAX_DEPTH = 32  # of elements; a dump has six
_INTEGER = re.compile(r"-?[0-9]{1,9}")


def read_dump(path: AnyPath, reading: Reading) -> Iterator[Page | BadRecord | Dropped]:
    dump = _Dump(path, reading)
    fed = 0
    with blocks.open_stream(path) as stream:
        while True:
            data = blocks.read_exactly(stream, min(blocks.BLOCK_BYTES, 1 << 20), path)
            fed += len(data)
            dump.feed(data, fed)
            found, dump.found = dump.found, []
            for item in found:
                yield item if not isinstance(item, Page) else _as_text(item, dump.hidden_prefixes)
            if not data:
                return


def _as_text(page: Page, hidden_prefixes: frozenset[str]) -> Page | BadRecord:
    try:
        return page._replace(text=wikitext.plain_text(page.text, hidden_prefixes))
    except wikitext.Unparsable as error:
        return BadRecord(page.offset, "unparsable_wikitext", f"page {page.id}: {error}", id=page.id or "")


class _Dump:
    """The pages of a dump from its events: one is being collected,
    and those of the last block wait in `found`."""

    def __init__(self, path: AnyPath, reading: Reading) -> None:
        self.found: list[Page | BadRecord | Dropped] = []
        self.hidden_prefixes = wikitext.HIDDEN_PREFIXES
        self._path, self._limit = path, reading.max_record_bytes
        self._namespaces = frozenset(reading.options["namespaces"])
        self._base_url = ""
        self._open: list[str] = []
        self._page: dict[str, str] = {}
        self._page_offset = 0
        self._is_redirect = False
        self._hides = False  # inside the name of a namespace whose links show nothing
        self._text: list[str] | None = None  # of the element at hand, where it is wanted
        self._text_bytes = self._text_depth = 0
        self._largest = 0  # bytes of a field of this page
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters
        self._parser.StartDoctypeDeclHandler = self._refuse_declaration
        self._parser.EntityDeclHandler = self._refuse_declaration

    def feed(self, data: bytes, fed: int) -> None:
        try:
            self._parser.Parse(data, not data)
        except expat.ExpatError as error:
            ends = "the XML ends in the middle" if not data else "the XML is damaged"
            raise self._corrupt(
                f"{ends} ({expat.ErrorString(error.code)})", self._parser.ErrorByteIndex
            ) from error
        except LookupError as error:  # Python's own word for an encoding that it does not know
            raise self._corrupt(f"declares an unknown encoding ({error})", 0) from error
        if fed - self._parser.CurrentByteIndex > self._limit + len(data):
            raise self._corrupt("one tag is longer than max_record_bytes", self._parser.CurrentByteIndex)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if not self._open and name != "mediawiki":
            raise self._corrupt(f"is XML, but no MediaWiki dump: it begins with <{name[:40]}>", 0)
        if len(self._open) >= _MAX_DEPTH:
            raise self._corrupt("elements are nested deeper than in any dump", self._parser.CurrentByteIndex)
        self._open.append(name)
        match self._open[1:]:
            case ["page"]:
                self._page, self._page_offset = {}, self._parser.CurrentByteIndex
                self._is_redirect, self._largest = False, 0
            case ["page", "redirect"]:
                self._is_redirect = True
            case ["page", "revision"]:
                for field in ("revision/id", "revision/timestamp", "revision/model", "revision/text"):
                    self._page.pop(field, None)  # those of the revision before
                self._largest = 0
            case ["siteinfo", "namespaces", "namespace"]:
                self._hides = attributes.get("key") in ("-2", "6", "14")
                self._collect()
            case (
                ["siteinfo", "base"]
                | ["page", "title" | "ns" | "id"]
                | ["page", "revision", "id" | "timestamp" | "model"]
            ):
                self._collect()
            case ["page", "revision", "text"] if self._is_wanted():
                self._collect()

    def _end(self, name: str) -> None:
        place = self._open[1:]
        self._open.pop()
        if place == ["page"]:
            self.found.append(self._finish())
        if self._text is None or len(place) != self._text_depth:
            return
        text, self._text = "".join(self._text), None
        match place:
            case ["page", *rest]:
                self._page["/".join(rest)] = text
                self._largest = max(self._largest, self._text_bytes)
            case ["siteinfo", "base"]:
                self._base_url = text.rpartition("/")[0]
            case ["siteinfo", "namespaces", "namespace"] if self._hides and text and not self._page_offset:
                self.hidden_prefixes |= {text.lower()}

    def _collect(self) -> None:
        self._text, self._text_bytes, self._text_depth = [], 0, len(self._open) - 1

    def _characters(self, data: str) -> None:
        if self._text is None:
            return
        self._text_bytes += len(data) if data.isascii() else len(data.encode())
        if self._text_bytes <= self._limit:
            self._text.append(data)
        else:
            self._text.clear()

    def _is_wanted(self) -> bool:
        ns = self._page.get("ns", "")
        return not self._is_redirect and _INTEGER.fullmatch(ns) is not None and int(ns) in self._namespaces

    def _finish(self) -> Page | BadRecord | Dropped:
        page, offset = self._page, self._page_offset
        id, title, ns = page.get("id"), page.get("title"), page.get("ns", "")
        if not id or not title or not _INTEGER.fullmatch(ns):
            return BadRecord(offset, "missing_field", "a page needs <title>, <ns> and <id>", id=id or "")
        if int(ns) not in self._namespaces:
            return Dropped(offset, id, "not_an_article", float(ns))
        if self._is_redirect:
            return Dropped(offset, id, "redirect")
        if page.get("revision/model", "wikitext") != "wikitext":
            return Dropped(offset, id, "not_wikitext")
        text = page.get("revision/text", "")
        if self._largest > self._limit:
            return records.too_large(offset, self._largest, self._limit, "page")._replace(id=id)
        date = page.get("revision/timestamp") or None
        url = (
            f"{self._base_url}/{quote(title.replace(' ', '_'), safe='/:(),!*;@')}" if self._base_url else None
        )
        return Page(offset, id, title, text, url, page.get("revision/id") or None, date)

    def _refuse_declaration(self, *_: object) -> None:
        raise self._corrupt("declares a document type or entities, which no dump does", 0)

    def _corrupt(self, what: str, offset: int) -> CorruptFile:
        return CorruptFile(
            f"{what} at byte {max(offset, 0):,}", where=str(self._path), next="copy or download it again"
        )


# --- WikiExtractor ---

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
    for block in blocks.read_blocks(path, max_record_bytes=reading.max_record_bytes):
        if isinstance(block, blocks.Oversize):
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
            f"the block at byte {open_block.offset if open_block else stray:,} has no end: the file is "
            "truncated",
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
        attributes = self._attributes.decode(errors="surrogateescape")
        given = {key: html.unescape(value) for key, value in _ATTRIBUTE.findall(attributes)}
        found = self._finish(is_closed, given)
        return found._replace(id=records.known_id(given.get("id"))) if isinstance(found, BadRecord) else found

    def _finish(self, is_closed: bool, given: dict[str, str]) -> Page | BadRecord:
        if not is_closed:
            return BadRecord(self.offset, "unclosed_block", "another <doc> begins before its </doc>")
        if self.size > self._max_record_bytes:
            return records.too_large(self.offset, self.size, self._max_record_bytes, "page")
        try:
            self._attributes.decode()
            body = b"".join(self._held).decode().lstrip("\r").removeprefix("\n")
        except UnicodeDecodeError as error:
            return BadRecord(self.offset, "invalid_utf8", f"byte {error.start}: {error.reason}")
        return _extracted(
            self.offset, given.get("id"), given.get("title", ""), body, given.get("url"), given.get("revid")
        )


def read_lines(path: AnyPath, reading: Reading) -> Iterator[Page | BadRecord | Dropped]:
    limit = reading.max_record_bytes
    batches = jsonl.read_jsonl(path, _JSON_COLUMNS, max_record_bytes=limit)
    for batch in batches:
        yield from batch.bad
        columns = (batch.table.column(want.name).to_pylist() for want in _JSON_COLUMNS)
        for offset, id, revid, url, title, text in zip(batch.offsets.tolist(), *columns, strict=True):
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


# --- the reader ---

_SNIFFED_BYTES = 64 << 10
_BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")


def resolve(source: Source, files: list[InputFile]) -> Json:
    """The recipe's section, and what reads wikitext where there is some:
    another version may read it otherwise."""
    namespaces = (source.wikipedia or Wikipedia()).namespaces
    has_dump = any(_sniff(file.path) is read_dump for file in files)
    return {
        "namespaces": sorted(set(namespaces)),
        "wikitext": wikitext.parser_version() if has_dump else None,
    }


def read(path: AnyPath, name: str, span: Span, reading: Reading) -> Iterator[Taken]:
    return gather(_record(item) if isinstance(item, Page) else item for item in _sniff(path)(path, reading))


def _record(page: Page) -> Record | Dropped:
    if not page.text:
        return Dropped(page.offset, page.id, "empty_page")
    text = f"{page.title}\n\n{page.text}" if page.title else page.text
    meta = {"title": page.title, "url": page.url, "revid": page.revid, "date": page.date}
    return Record(text, page.id, page.date, meta)


def _sniff(path: AnyPath) -> Callable[[AnyPath, Reading], Iterator[Page | BadRecord | Dropped]]:
    """Who reads it, from what it begins with."""
    with blocks.open_stream(path) as stream:
        head = blocks.read_exactly(stream, _SNIFFED_BYTES, path)
    for bom in _BOMS:
        head = head.removeprefix(bom)
    start = head.lstrip()[:5]
    if start == b"<doc ":
        return read_blocks
    if start[:1] == b"{":
        return read_lines
    if start[:1] == b"<" or ".xml" in path.suffixes:
        return read_dump
    if len(head) < _SNIFFED_BYTES and not start:
        return read_blocks  # of which there are none
    raise CorruptFile(
        "is neither WikiExtractor output (<doc> blocks or --json lines) nor a MediaWiki dump",
        where=str(path),
        next="leave it out of `files`, or read it without the `wikipedia` section",
    )


READER = Reader(resolve, whole_file, read)

"""A MediaWiki dump: the pages of one large XML file, as they pass.

    <mediawiki><siteinfo>…</siteinfo><page><title/><ns/><id/><revision>… <text/></revision></page>…

Of a page with several revisions the last one counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote
from xml.parsers import expat

from tokmill.errors import CorruptFile
from tokmill.sources import wikitext
from tokmill.sources.reading import Dropped, Reading
from tokmill.sources.wikipage import Page, too_large
from tokmill.storage import streams
from tokmill.storage.location import AnyPath
from tokmill.storage.records import BadRecord

_MAX_DEPTH = 32  # of elements; a dump has six
_INTEGER = re.compile(r"-?[0-9]{1,9}")


def read_dump(path: AnyPath, reading: Reading) -> Iterator[Page | BadRecord | Dropped]:
    dump = _Dump(path, reading)
    fed = 0
    with streams.open_stream(path) as stream:
        while True:
            data = streams.read_exactly(stream, min(streams.BLOCK_BYTES, 1 << 20), path)
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
        return BadRecord(page.offset, "unparsable_wikitext", f"page {page.id}: {error}")


class _Dump:
    """The pages of a dump from its events: one is being collected, and those of the last block wait in `found`."""

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
            raise self._corrupt(f"declares an encoding that nobody knows ({error})", 0) from error
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
            return BadRecord(offset, "missing_field", "a page needs <title>, <ns> and <id>")
        if int(ns) not in self._namespaces:
            return Dropped(offset, id, "not_an_article", float(ns))
        if self._is_redirect:
            return Dropped(offset, id, "redirect")
        if page.get("revision/model", "wikitext") != "wikitext":
            return Dropped(offset, id, "not_wikitext")
        text = page.get("revision/text", "")
        if self._largest > self._limit:
            return too_large(offset, self._largest, self._limit)
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

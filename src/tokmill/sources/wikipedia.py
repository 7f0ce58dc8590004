"""Wikipedia: what WikiExtractor wrote, or a MediaWiki dump itself.

    <doc id="12" url="…" title="Anarchism">      WikiExtractor; its files (wiki_00) have no suffix, so the
    Anarchism                                    layout is told from the content, never from the name
                                                 alone
    Anarchism is a political …
    </doc>

    {"id": "12", "revid": "9", "url": "…", "title": "Anarchism", "text": "…"}        WikiExtractor --json

    <mediawiki><siteinfo>…</siteinfo><page><title/><ns/><id/><revision>… <text/></revision></page>… a dump

A document is its title, a blank line, and its text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any

from tokmill.errors import CorruptFile
from tokmill.manifest import Json
from tokmill.recipe import Source, Wikipedia
from tokmill.sources import wikiextractor, wikitext
from tokmill.sources.reading import Dropped, Reading, Taken, record_table
from tokmill.sources.wikidump import read_dump
from tokmill.sources.wikipage import Page
from tokmill.storage import streams
from tokmill.storage.location import AnyPath, InputFile
from tokmill.storage.records import WHOLE, BadRecord, Span

_BATCH_PAGES = 1000
_BATCH_CHARS = 4 << 20
_SNIFFED_BYTES = 64 << 10
_BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")


class Layout(StrEnum):
    BLOCKS = "blocks"
    LINES = "lines"
    DUMP = "dump"


def settle(source: Source, files: list[InputFile]) -> Json:
    """The recipe's section, and what reads wikitext where there is some: another version may read it otherwise."""
    namespaces = (source.wikipedia or Wikipedia()).namespaces
    has_dump = any(_sniff(file.path) is Layout.DUMP for file in files)
    return {
        "namespaces": sorted(set(namespaces)),
        "wikitext": wikitext.parser_version() if has_dump else None,
    }


def split(path: AnyPath, size: int, options: Json, target_bytes: int) -> list[Span]:
    return [WHOLE]


def read(path: AnyPath, name: str, span: Span, reading: Reading) -> Iterator[Taken]:
    readers: dict[Layout, Callable[[AnyPath, Reading], Iterator[Page | BadRecord | Dropped]]] = {
        Layout.BLOCKS: wikiextractor.read_blocks,
        Layout.LINES: wikiextractor.read_lines,
        Layout.DUMP: read_dump,
    }
    pages: list[Page] = []
    bad: list[BadRecord] = []
    dropped: list[Dropped] = []
    size = 0
    for item in readers[_sniff(path)](path, reading):
        if isinstance(item, BadRecord):
            bad.append(item)
        elif isinstance(item, Dropped):
            dropped.append(item)
        elif not item.text:
            dropped.append(Dropped(item.offset, item.id, "empty_page"))
        else:
            pages.append(item)
            size += len(item.text)
        if size >= _BATCH_CHARS or len(pages) + len(bad) + len(dropped) >= _BATCH_PAGES:
            yield Taken(_records(pages), bad, dropped)
            pages, bad, dropped, size = [], [], [], 0
    if pages or bad or dropped:
        yield Taken(_records(pages), bad, dropped)


def _records(pages: list[Page]) -> Any:
    nothing: list[str | None] = [None] * len(pages)
    texts = [f"{page.title}\n\n{page.text}" if page.title else page.text for page in pages]
    return record_table(texts, [page.id for page in pages], nothing, [p.date for p in pages], _metas(pages))


def _metas(pages: list[Page]) -> list[Json | None]:
    named = ({"title": p.title, "url": p.url, "revid": p.revid, "date": p.date} for p in pages)
    return [{key: value for key, value in meta.items() if value is not None} for meta in named]


def _sniff(path: AnyPath) -> Layout:
    with streams.open_stream(path) as stream:
        head = streams.read_exactly(stream, _SNIFFED_BYTES, path)
    for bom in _BOMS:
        head = head.removeprefix(bom)
    start = head.lstrip()[:5]
    if start == b"<doc ":
        return Layout.BLOCKS
    if start[:1] == b"{":
        return Layout.LINES
    if start[:1] == b"<" or ".xml" in path.suffixes:
        return Layout.DUMP
    if len(head) < _SNIFFED_BYTES and not start:
        return Layout.BLOCKS  # of which there are none
    raise CorruptFile(
        "is neither WikiExtractor output (<doc> blocks or --json lines) nor a MediaWiki dump",
        where=str(path),
        next="leave it out of `files`, or read it without the `wikipedia` section",
    )

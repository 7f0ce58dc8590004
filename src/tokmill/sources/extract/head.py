"""What a web page says of itself: title, date, language, address, licence, and what robots are told.

    nodes ─ kernel ─> values by field ─┬─ <h1>, og:title, <title>, … ───────────> title
                                       ├─ published_time, JSON-LD, URL, <time> ─> date
                                       ├─ <html lang>, og:locale ───────────────> language
                                       ├─ rel=canonical, og:url ────────────────> canonical_url
                                       ├─ rel=license, deeds at the edges ──────> license, license_link
                                       └─ robots, googlebot, tdm-reservation ───> robots

Right before complete: what is not clearly said is None. Rules and their order were chosen on the 682 pages of
trafilatura's evaluation, whose titles, dates and licences people wrote down; figures here are of those. A few
values of each field are looked at, each up to MAX_CHARS, so that the time is bounded whatever the page.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from html import unescape
from typing import Literal, NamedTuple
from urllib.parse import urljoin, urlsplit

from tokmill.kernels.htmlhead import FIELDS, find_head
from tokmill.kernels.htmltree import TAGS, TEXT, Tree
from tokmill.kernels.jit import Bytes
from tokmill.sources.extract.attributes import attributes_of
from tokmill.sources.extract.commons import license_of
from tokmill.sources.extract.dates import date_of_url, read_date
from tokmill.sources.extract.linkeddata import Work, read_linked_data

MAX_CHARS = 1000  # of a value: more is none
MAX_URL_CHARS = 2000
_MAX_NODES = 64  # of a heading
_MAX_ABOVE = 12  # elements around a link that are looked at
_MAX_LINKS = 8  # that are recorded
_MAX_ROBOTS = 32  # words
_MAX_TAG = 1024

_SCRIPT, _STYLE, _BR, _FOOTER, _BODY = (TAGS[name] for name in ["script", "style", "br", "footer", "body"])
_FIGURES = frozenset([TAGS["figure"], TAGS["figcaption"]])


class Head(NamedTuple):
    title: str | None = None
    date: str | None = None  # YYYY-MM-DD, or with its time
    language: str | None = None  # a primary subtag of BCP 47
    canonical_url: str | None = None
    license: str | None = None  # SPDX
    license_link: str | None = None  # addresses with a space between them
    robots: str | None = None


def read_head(
    data: Bytes, tree: Tree, url: str | None, *, crawled: str | None = None, licenses: Sequence[str] = ()
) -> Head:
    """`crawled`: when the page was fetched; it was not published later. `licenses`: addresses that the server
    gave with the page."""
    page = _Page(data, tree)
    articles, pages = read_linked_data(page.scripts())
    site = _first(page.texts("SITE"))
    license, links = _license(page, articles, pages, url, licenses)
    return Head(
        title=_title(page, articles, site, url),
        date=_date(page, articles, pages, url, crawled),
        language=_language(page),
        canonical_url=_canonical(page, url),
        license=license,
        license_link=" ".join(links[:_MAX_LINKS]) or None,
        robots=_robots(page),
    )


class _Page:
    """The values of each field, in the order of the page."""

    def __init__(self, data: Bytes, tree: Tree) -> None:
        self.data, self.tree = data, tree
        self.rows: dict[str, list[tuple[int, int, int]]] = {}
        for node, field, start, end in find_head(data, tree).tolist():
            self.rows.setdefault(FIELDS[field], []).append((node, start, end))

    def texts(self, *fields: str) -> Iterator[str]:
        for field in fields:
            for _, start, end in self.rows.get(field, ()):
                text = self._text(start, end)
                if text:
                    yield text

    def headings(self, field: str) -> Iterator[str]:
        """The texts of elements."""
        for node, _, _ in self.rows.get(field, ()):
            text = self._content(node)
            if text:
                yield text

    def links(self, field: str) -> Iterator[tuple[int, str]]:
        for node, start, end in self.rows.get(field, ()):
            yield node, self._text(start, end)

    def scripts(self) -> list[bytes]:
        return [self.data[start:end].tobytes() for _, start, end in self.rows.get("LINKED_DATA", ())]

    def place(self, node: int) -> Literal["edge", "figure", "content"]:
        """The edge is the frame of the site around what is the page's own; a figure has its own licence."""
        for _ in range(_MAX_ABOVE):
            tag = int(self.tree.tag[node])
            if node <= 0 or tag == _BODY:
                break
            if tag in _FIGURES:
                return "figure"
            attributes = self.attributes(node)
            names = f"{attributes.get('class', '')} {attributes.get('id', '')}"
            if _CAPTION_NAMES.search(names):
                return "figure"
            if tag == _FOOTER or _EDGE_NAMES.search(names):
                return "edge"
            node = int(self.tree.parent[node])
        return "content"

    def attributes(self, node: int) -> dict[str, str]:
        start, end = int(self.tree.start[node]), int(self.tree.end[node])
        return attributes_of(self.data, start, min(end, start + _MAX_TAG))

    def _text(self, start: int, end: int) -> str:
        return "" if end - start > 4 * MAX_CHARS else _plain(self.data[start:end].tobytes())

    def _content(self, node: int) -> str:
        pieces: list[bytes] = []
        tree, size, last = self.tree, 0, int(self.tree.last[node])
        if last - node > _MAX_NODES:
            return ""
        for k in range(node + 1, last):
            tag = int(tree.tag[k])
            if tag == TEXT and int(tree.tag[int(tree.parent[k])]) not in (_SCRIPT, _STYLE):
                start, end = int(tree.start[k]), int(tree.end[k])
                size += end - start
                if size > 4 * MAX_CHARS:
                    return ""
                pieces.append(self.data[start:end].tobytes())
            elif tag == _BR:
                pieces.append(b" ")
        return _plain(b"".join(pieces))


def _plain(text: bytes) -> str:
    """One line, without entities and characters that show nothing."""
    plain = text.decode(errors="replace")
    if "&" in plain:
        plain = unescape(plain)
    plain = " ".join(plain.split())
    if not plain.isprintable():
        plain = " ".join("".join(c for c in plain if c.isprintable() or c == " ").split())
    return plain if len(plain) <= MAX_CHARS else ""


def _first(values: Iterator[str]) -> str | None:
    return next(values, None)


# --- title ---

_SEPARATOR = re.compile(r"\s+[-\u2013\u2014|·•»«›‹>:~/]+\s+|\s*[|»]\s*|:\s+|\s+::\s+")
_WORDS = re.compile(r"[^\W_]+")
_MIN_ALONE = 10  # characters of the only heading, where no title repeats it: "Opinion", "Details" are none


@functools.lru_cache(maxsize=64)  # the same titles in several elements of a page
def _folded(text: str) -> str:
    return " ".join(_WORDS.findall(unicodedata.normalize("NFKC", text).casefold()))


def _title(page: _Page, articles: Work, site: str | None, url: str | None) -> str | None:
    """A heading that the page's declared titles repeat; else what is declared, without the site's name."""
    tags = list(page.headings("TITLE"))[:1]
    graph = list(page.texts("OG_TITLE"))[:1]
    others = [*list(page.texts("META_TITLE"))[:1], *list(page.texts("TWITTER_TITLE"))[:1]]
    if articles.headline is not None:
        others.append(_plain(articles.headline[: 2 * MAX_CHARS].encode(errors="replace")))
    declared = [text for text in (*graph, *others, *tags) if text]
    names = _site_names(site, url, [*page.texts("APPLICATION")])
    headings = [text for text in page.headings("H1") if not _is_site(text, names)]
    folded = [f" {_folded(text)} " for text in declared]
    agreed = [text for text in headings if _is_repeated(f" {_folded(text)} ", folded)]
    if agreed:
        return max(agreed, key=len)
    if len(headings) == 1 and len(headings[0]) >= _MIN_ALONE:
        return headings[0]
    for text in declared:
        cut = _without_site(text, names)
        if cut:
            return cut
    return headings[0] if headings else None


def _is_repeated(heading: str, titles: Sequence[str]) -> bool:
    """A title begins with it, or is little more than it; the name of a site or a section ends it."""
    return any(
        title.startswith(heading) or (heading in title and 2 * len(heading) > len(title)) for title in titles
    )


def _site_names(site: str | None, url: str | None, others: Sequence[str]) -> list[str]:
    """Folded, without spaces: of og:site_name, and the names of the host."""
    names = [_folded(text).replace(" ", "") for text in [*([site] if site else []), *others]]
    host = (_host(url) or "").removeprefix("www.")
    labels = host.split(".")
    names += [host.replace(".", "").replace("-", ""), *(label.replace("-", "") for label in labels[:-1])]
    return [name for name in dict.fromkeys(names) if len(name) > 2]


def _is_site(text: str, names: Sequence[str]) -> bool:
    return _folded(text).replace(" ", "") in names


def _without_site(title: str, names: Sequence[str]) -> str:
    """ "Title - Site" and "Site | Title"; a title that is the site's name stays."""
    cuts = list(_SEPARATOR.finditer(title))[:16]
    for cut in cuts:
        if cut.start() and _is_site(title[cut.end() :], names):
            return title[: cut.start()]
    for cut in reversed(cuts):
        if cut.end() < len(title) and _is_site(title[: cut.start()], names):
            return title[cut.end() :]
    return title


# --- date ---


def _date(page: _Page, articles: Work, pages: Work, url: str | None, crawled: str | None) -> str | None:
    """The first that is a date, and not after the page was fetched, in any time zone."""
    latest = _day_after(crawled)
    for spelled in (page.texts("PUBLISHED"), articles.dates, page.texts("ISSUED"), pages.dates):
        for value in spelled:
            found = read_date(value)
            if found is not None and found[:10] <= latest:
                return found
    found = date_of_url(url) if url is not None else None
    if found is not None and found <= latest:
        return found
    for value in page.texts("TIME", "DATED"):
        found = read_date(value)
        if found is not None and found[:10] <= latest:
            return found
    return None


def _day_after(crawled: str | None) -> str:
    try:
        return (date.fromisoformat((crawled or "")[:10]) + timedelta(days=1)).isoformat()
    except (ValueError, OverflowError):
        return "9999-12-31"


# --- language, address ---

_LANGUAGE = re.compile(r"([a-z]{2,3})(?:[-_].*)?", re.IGNORECASE | re.DOTALL)
# Codes of ISO 639 that were withdrawn for others, as in the registry of BCP 47.
_REPLACED = {"iw": "he", "in": "id", "ji": "yi", "jw": "jv", "mo": "ro", "sh": "sr"}
_NO_LANGUAGE = frozenset(["und", "mul", "zxx", "mis"])


def _language(page: _Page) -> str | None:
    for value in page.texts("LANG", "CONTENT_LANGUAGE", "LOCALE"):
        match = _LANGUAGE.fullmatch(value)
        code = match[1].lower() if match is not None else ""
        if code and code not in _NO_LANGUAGE:
            return _REPLACED.get(code, code)
    return None


_ABSOLUTE = re.compile(r"https?://[a-z0-9-]+(?:\.[a-z0-9-]+)*(?::\d{1,5})?(?:[/?#]|$)", re.I)


def _host(url: str | None) -> str | None:
    try:
        return urlsplit(url or "").hostname
    except ValueError:
        return None


def _resolved(value: str, url: str | None) -> str | None:
    """Against the address of the page; only http and https, with a host."""
    if len(value) > MAX_URL_CHARS or len(value.split()) != 1:
        return None
    if _ABSOLUTE.match(value):
        return value
    try:
        joined = urljoin(url or "", value)
        parts = urlsplit(joined)
        has_host = bool(parts.hostname)
    except ValueError:
        return None
    return joined if parts.scheme in ("http", "https") and has_host else None


def _canonical(page: _Page, url: str | None) -> str | None:
    """Two that differ say nothing."""
    for field in ("CANONICAL", "OG_URL"):
        found = {_resolved(value, url) for value in page.texts(field)} - {None}
        if len(found) == 1:
            return found.pop()
    return None


# --- licence ---

_EDGE_NAMES = re.compile(
    r"foot|copyright|licen[sc]e|lizenz|colophon|imprint|impressum|creative-?commons|\bcc\b|sidebar|widget",
    re.I,
)
_CAPTION_NAMES = re.compile(r"caption|credit", re.I)
_ADDRESS = re.compile(r"https?://[^\s\"'<>]{1,200}", re.I)


def _license(
    page: _Page, articles: Work, pages: Work, url: str | None, given: Sequence[str]
) -> tuple[str | None, list[str]]:
    """What the page is licensed under, where it says one thing; and the addresses that say so."""
    marked = [*given, *(link for node, link in page.links("LICENSE") if page.place(node) != "figure")]
    stated = [
        address
        for text in (*page.texts("RIGHTS"), *articles.licenses, *pages.licenses)
        for address in _ADDRESS.findall(text[:MAX_CHARS])
    ]
    deeds = [address for node, address in page.links("COMMONS") if page.place(node) == "edge"]
    for addresses in (marked, stated, [address for address in deeds if license_of(address) is not None]):
        links = [
            link for address in dict.fromkeys(addresses) if (link := _resolved(address, url)) is not None
        ]
        if links:
            names = {license_of(link) for link in links}
            return (names.pop() if len(names) == 1 else None), links
    return None, []


# --- robots ---


# What is so without it: 3 of 5 pages say "index, follow, max-image-preview:large" or the like.
_PERMITTED = re.compile(r"index|follow|all|archive|max-[a-z-]+\s*:\s*(?:-1|large|standard)", re.I)


def _forbidding(value: str) -> list[str]:
    words = (word.strip() for word in re.split(r"[,;]", value))
    return [word for word in words if word and not _PERMITTED.fullmatch(word)]


def _robots(page: _Page) -> str | None:
    """`noindex, noai`: words that forbid, once, as they are spelled; those for one robot behind its name."""
    words = [word for value in page.texts("ROBOTS") for word in _forbidding(value)]
    for node, value in page.links("ROBOT"):
        attributes = page.attributes(node)
        name = attributes.get("name", attributes.get("property", "robot")).strip().lower()
        words += [f"{name}: {word}" for word in _forbidding(value)]
    if any(value.strip() == "1" for value in page.texts("TDM")):
        words.append("tdm-reservation")
    return join_robots(words)


def join_robots(words: Sequence[str]) -> str | None:
    """With commas between them, each once."""
    once: dict[str, str] = {}
    for word in words:
        if word.strip():
            once.setdefault(word.strip().lower(), word.strip())
    return ", ".join(list(once.values())[:_MAX_ROBOTS]) or None

"""Where a web page says what it is: its meta elements, links, dates and scripts, in one pass over its nodes.

    <html lang=de>                               LANG          de
    <meta property="og:title" content="A">       OG_TITLE      A
    <link rel="shortlink canonical" href="/a">   CANONICAL     /a
    <time datetime="2019-11-20">                 TIME          2019-11-20
    <a rel=license href="…">                     LICENSE       …
    <a href="//creativecommons.org/…">           COMMONS       //creativecommons.org/…
    <script type="application/ld+json">          LINKED_DATA   its text
    <title>, <h1>                                TITLE, H1     only the node

    row   node, field, where the value begins and ends in the page

Each tag is walked through once, and no more than MAX_TAG bytes of it. Of a field the first MAX_ROWS count, so
that no page makes more of them. Values are as they are written.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.htmltree import TAGS, TEXT, Tree, hash_name, is_space, name_hash, next_attribute, parse
from tokmill.kernels.htmlwriter import step
from tokmill.kernels.jit import Bytes, Int, frozen, raw_kernel

MAX_TAG = 8192  # bytes: descriptions of a page may be long, and stand before the name
MAX_ROWS = 16  # of one field
_MAX_NAME = 40  # bytes of the name of an attribute or a property

U64 = np.uint64

# What `property`, `name`, `itemprop` or `http-equiv` of <meta> may be, in any case.
_PROPERTIES = {
    "OG_TITLE": "og:title",
    "TWITTER_TITLE": "twitter:title",
    "META_TITLE": "dc.title dcterms.title dc:title citation_title parsely-title sailthru.title headline",
    "SITE": "og:site_name",
    "APPLICATION": "application-name apple-mobile-web-app-title",
    "PUBLISHED": """
        article:published_time article:published og:article:published_time og:published_time og:pubdate
    """,
    "ISSUED": """
        datepublished date.published rnews:datepublished publishdate publish-date publish_date publisheddate
        published_time published_date pubdate pub_date publication_date publication-date parsely-pub-date
        sailthru.date article.published article_date_original originalpublicationdate bt:pubdate
        cxenseparse:recs:publishtime shareaholic:article_published_time ptime dc.date.issued dcterms.issued
        dcterms.date.issued dc.date.publication citation_publication_date citation_online_date citation_date
        prism.publicationdate date_published article:post_date
    """,
    "DATED": """
        date dc.date dcterms.date dc:date dc.date.created dcterms.created datecreated date.created
        creation_date created eprints.date
    """,
    "AUTHOR": """
        author article:author_name parsely-author sailthru.author citation_author dc.creator dcterms.creator
        dc:creator byl
    """,
    "OG_AUTHOR": "article:author og:article:author",
    "LOCALE": "og:locale",
    "CONTENT_LANGUAGE": "content-language dc.language dcterms.language language",
    "OG_URL": "og:url",
    "RIGHTS": "dc.rights dcterms.rights dcterms.license dc:rights dc.rights.license rights license",
    "ROBOTS": "robots",
    "ROBOT": "googlebot googlebot-news google-extended bingbot slurp msnbot ccbot gptbot yandex baiduspider",
    "TDM": "tdm-reservation",
}
_OTHERS = ["LANG", "CANONICAL", "LICENSE", "COMMONS", "TIME", "LINKED_DATA", "TITLE", "H1"]
FIELDS = [*_PROPERTIES, *_OTHERS]
_OF = {name: number for number, name in enumerate(FIELDS)}
_LANG, _CANONICAL, _LICENSE, _COMMONS, _TIME, _LINKED_DATA, _TITLE_FIELD, _H1_FIELD = (
    _OF[f] for f in _OTHERS
)


def _properties() -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Hashes in order, and the field of each."""
    rows = sorted(
        (name_hash(name), _OF[field]) for field, names in _PROPERTIES.items() for name in names.split()
    )
    hashes, fields = zip(*rows, strict=True)
    return frozen(np.array(hashes, np.uint64), np.uint64), frozen(np.array(fields, np.int64), np.int64)


_HASHES, _FIELD_OF = _properties()
_PROPERTY, _NAME, _ITEMPROP, _HTTP_EQUIV = (
    U64(name_hash(name)) for name in ["property", "name", "itemprop", "http-equiv"]
)
_CONTENT, _HREF, _REL, _TYPE, _DATETIME, _LANG_NAME, _XML_LANG = (
    U64(name_hash(name)) for name in ["content", "href", "rel", "type", "datetime", "lang", "xml:lang"]
)
_REL_CANONICAL, _REL_LICENSE, _REL_CC = (
    U64(name_hash(name)) for name in ["canonical", "license", "cc:license"]
)
_LD_JSON, _DATE_PUBLISHED = U64(name_hash("application/ld+json")), U64(name_hash("datepublished"))
_COMMONS_TEXT = frozen(np.frombuffer(b"creativecommons.org/", np.uint8), np.uint8)

_META, _LINK, _HTML, _TIME_TAG, _SCRIPT, _A, _AREA, _TITLE_TAG, _H1, _SVG = (
    TAGS[name] for name in ["meta", "link", "html", "time", "script", "a", "area", "title", "h1", "svg"]
)


def find_head(data: Bytes, tree: Tree) -> NDArray[np.int32]:
    """Rows of (node, field, begin, end), in the order of the page."""
    rows = np.empty((MAX_ROWS * len(FIELDS), 4), np.int32)
    counts = np.zeros(len(FIELDS), np.int64)
    number = _find(
        frozen(data, np.uint8), tree.tag, tree.last, tree.start, tree.end, _HASHES, _FIELD_OF, _COMMONS_TEXT,
        counts, rows,
    )  # fmt: skip
    return rows[:number]


@step
def _hash_of(data: Bytes, at: Int, end: Int) -> np.uint64:
    """Of a name in any case; 0 for one that is too long to be looked for."""
    while at < end and is_space(data[at]):
        at += 1
    while end > at and is_space(data[end - 1]):
        end -= 1
    return hash_name(data, at, end) if end - at <= _MAX_NAME else U64(0)


@step
def _field_of(value: np.uint64, hashes: NDArray[np.uint64], fields: NDArray[np.int64]) -> Int:
    low: Int = 0
    high: Int = hashes.size
    while low < high:
        middle = (low + high) >> 1
        if hashes[middle] < value:
            low = middle + 1
        else:
            high = middle
    return fields[low] if low < hashes.size and hashes[low] == value else -1


@step
def _relations(data: Bytes, at: Int, end: Int) -> tuple[bool, bool]:
    """Of `rel`: has it `canonical`, and has it `license`?"""
    is_canonical = is_license = False
    while at < end:
        while at < end and is_space(data[at]):
            at += 1
        first = at
        while at < end and not is_space(data[at]):
            at += 1
        if at > first:
            value = _hash_of(data, first, at)
            is_canonical |= value == _REL_CANONICAL
            is_license |= value == _REL_LICENSE or value == _REL_CC
    return is_canonical, is_license


@step
def _is_commons(data: Bytes, at: Int, end: Int, text: Bytes) -> bool:
    """Within the first bytes of an address."""
    for first in range(at, min(at + 16, end - text.size + 1)):
        is_same = True
        for k in range(text.size):
            byte = np.int64(data[first + k])
            if (byte | 0x20 if byte >= 0x41 and byte <= 0x5A else byte) != text[k]:
                is_same = False
                break
        if is_same:
            return True
    return False


@step
def _has_items(data: Bytes, at: Int, end: Int) -> bool:
    """`itemprop`: most tags have none, and to see that is faster than to read their attributes."""
    at += 4
    while at < end - 3:
        # the p in its middle; by any of the eight letters one could go on faster, but tags are short
        if data[at] | 0x20 == 0x70 and data[at - 1] | 0x20 == 0x6D and data[at - 4] | 0x20 == 0x69:
            return True
        at += 1
    return False


@step
def _put(
    rows: NDArray[np.int32], counts: NDArray[np.int64], to: Int, node: Int, field: Int, at: Int, end: Int
) -> Int:
    if counts[field] >= MAX_ROWS:
        return to
    counts[field] += 1
    rows[to, 0], rows[to, 1], rows[to, 2], rows[to, 3] = node, field, at, end
    return to + 1


@raw_kernel(lambda: find_head(_one_page(), parse(_one_page())))
def _find(
    data: Bytes,
    tag: Bytes,
    last: NDArray[np.int32],
    start: NDArray[np.int32],
    end: NDArray[np.int32],
    hashes: NDArray[np.uint64],
    fields: NDArray[np.int64],
    commons: Bytes,
    counts: NDArray[np.int64],
    rows: NDArray[np.int32],
) -> Int:
    to: Int = 0
    node: Int = 1
    while node < tag.size:
        name: Int = tag[node]
        if name == TEXT:
            node += 1
            continue
        if name == _SVG:  # has titles of its own
            node = max(np.int64(last[node]), node + 1)
            continue
        if name == _TITLE_TAG:
            to = _put(rows, counts, to, node, _TITLE_FIELD, 0, 0)
        elif name == _H1:
            to = _put(rows, counts, to, node, _H1_FIELD, 0, 0)
        is_full = name == _META or name == _LINK or name == _HTML or name == _TIME_TAG or name == _SCRIPT
        is_link = name == _A or name == _AREA or name == _LINK
        begin: Int = start[node]
        stop: Int = min(np.int64(end[node]), begin + MAX_TAG)
        at = begin + 1
        while at < stop and data[at] != 0x3E and data[at] != 0x2F and not is_space(data[at]):
            at += 1
        if stop - at < 8 or not (is_full or is_link or _has_items(data, at, stop)):
            node += 1
            continue
        property: Int = -1
        second: Int = -1  # one of them may name what is not looked for, or another field
        is_item = False
        content: Int = -1
        content_end: Int = -1
        href: Int = -1
        href_end: Int = -1
        rel: Int = -1
        rel_end: Int = -1
        is_data = False
        moment: Int = -1
        moment_end: Int = -1
        while at < stop and data[at] != 0x3E:
            first, name_end, value, value_end, at = next_attribute(data, at, stop)
            width = name_end - first
            if width < 3 or width > 10 or at >= stop:
                continue
            letter = data[first] | 0x20
            if not (
                is_full
                or (width == 8 and letter == 0x69)
                or (is_link and ((width == 4 and letter == 0x68) or (width == 3 and letter == 0x72)))
            ):
                continue
            key = _hash_of(data, first, name_end)
            if key == _PROPERTY or key == _NAME or key == _HTTP_EQUIV or key == _ITEMPROP:
                if name == _META or key == _ITEMPROP:
                    if key == _ITEMPROP:
                        is_item |= _hash_of(data, value, value_end) == _DATE_PUBLISHED
                    field = _field_of(_hash_of(data, value, value_end), hashes, fields)
                    if property < 0:
                        property = field
                    else:
                        second = field
            elif key == _CONTENT:
                content, content_end = value, value_end
            elif key == _HREF:
                href, href_end = value, value_end
            elif key == _REL:
                rel, rel_end = value, value_end
            elif key == _DATETIME:
                moment, moment_end = value, value_end
            elif key == _TYPE:
                is_data = _hash_of(data, value, value_end) == _LD_JSON
            elif (key == _LANG_NAME or key == _XML_LANG) and name == _HTML:
                to = _put(rows, counts, to, node, _LANG, value, value_end)
        if name == _META:
            if content >= 0:
                if property >= 0:
                    to = _put(rows, counts, to, node, property, content, content_end)
                if second >= 0 and second != property:
                    to = _put(rows, counts, to, node, second, content, content_end)
        elif is_item:
            if moment < 0:
                moment, moment_end = content, content_end
            if moment < 0 and node + 1 < last[node] and tag[node + 1] == TEXT:
                moment, moment_end = np.int64(start[node + 1]), np.int64(end[node + 1])
            if moment >= 0 and property >= 0:
                to = _put(rows, counts, to, node, property, moment, moment_end)
        elif name == _TIME_TAG and moment >= 0:
            to = _put(rows, counts, to, node, _TIME, moment, moment_end)
        elif name == _SCRIPT and is_data and last[node] == node + 2:
            to = _put(rows, counts, to, node, _LINKED_DATA, start[node + 1], end[node + 1])
        if is_link and href >= 0:
            is_canonical, is_license = False, False
            if rel >= 0:
                is_canonical, is_license = _relations(data, rel, rel_end)
            if is_license:
                to = _put(rows, counts, to, node, _LICENSE, href, href_end)
            elif _is_commons(data, href, href_end, commons):
                to = _put(rows, counts, to, node, _COMMONS, href, href_end)
            if is_canonical and name == _LINK:
                to = _put(rows, counts, to, node, _CANONICAL, href, href_end)
        node += 1
    return to


def _one_page() -> Bytes:
    return np.frombuffer(b"<title>a", np.uint8)

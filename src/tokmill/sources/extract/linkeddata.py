"""JSON-LD of a page: what it says of the page itself, or of the article on it.

    <script type="application/ld+json">
      {"@graph": [{"@type": "WebSite", …}, {"@type": ["NewsArticle"], "datePublished": "2019-11-20", …}]}

An article comes before a page, and both before anything else; of the same kind the first. Lists of other
articles, comments and reviews are passed over. Nothing here trusts the page: scripts and objects beyond a
number, size or depth are not read, and what is no JSON says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

MAX_BYTES = 1 << 19  # of one script
_MAX_OBJECTS = 500
_MAX_DEPTH = 6

_WANTED = (b"datePublished", b"headline", b"license", b'"author"')
_CONTROL = bytes(range(32))
_SPACES = bytes.maketrans(_CONTROL, b" " * len(_CONTROL))
_ARTICLE = re.compile(r"Article|Posting|Report|Recipe|HowTo|^Review$")
_PAGE = re.compile(r"Page$|^(?:CreativeWork|Question|Book|Chapter|PodcastEpisode|VideoObject)$")
# What is within them is another work.
_OTHER_WORKS_NAMES = """
    itemListElement hasPart isPartOf comment review mentions citation isRelatedTo subjectOf image video
    publisher author creator logo breadcrumb potentialAction suggestedAnswer acceptedAnswer aggregateRating
    thumbnail isBasedOn workExample relatedLink about
"""
_OTHER_WORKS = frozenset(_OTHER_WORKS_NAMES.split())


class Work(NamedTuple):
    """Of the best object; values as they are written."""

    dates: tuple[str, ...]
    headline: str | None
    licenses: tuple[str, ...]
    authors: tuple[str, ...]


NOTHING = Work((), None, (), ())


def read_linked_data(scripts: Sequence[bytes]) -> tuple[Work, Work]:
    """Of articles, and of pages."""
    kinds: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    room = _MAX_OBJECTS
    for script in scripts:
        if len(script) > MAX_BYTES or not any(name in script for name in _WANTED):
            continue
        for found in _objects(_decoded(script), 0):
            room -= 1
            if room < 0:
                break
            types = _texts(found.get("@type"))
            if any(_ARTICLE.search(name) for name in types):
                kinds[0].append(found)
            elif any(_PAGE.search(name) for name in types):
                kinds[1].append(found)
    articles, pages = (_merged(objects) for objects in kinds)
    return articles, pages


def _decoded(script: bytes) -> Any:
    text = script.strip().removeprefix(b"<!--").removesuffix(b"-->").strip()
    text = (
        text.removeprefix(b"//").strip().removeprefix(b"<![CDATA[").removesuffix(b"]]>").removesuffix(b"//")
    )
    for form in (text.rstrip(b"; \t\r\n"), text.translate(_SPACES)):
        try:
            return msgspec.json.decode(form)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            continue
    return None


def _objects(value: Any, depth: int) -> Iterator[dict[str, Any]]:
    """In the order of the page, the outer one first."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, dict):
        yield value
        for key, inner in value.items():
            if key not in _OTHER_WORKS and isinstance(inner, (dict, list)):
                yield from _objects(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value[:_MAX_OBJECTS]:
            yield from _objects(inner, depth + 1)


def _merged(objects: list[dict[str, Any]]) -> Work:
    if not objects:
        return NOTHING
    return Work(
        tuple(text for found in objects for text in _texts(found.get("datePublished"))),
        next((text for found in objects for text in _texts(found.get("headline"))), None),
        tuple(text for found in objects for text in _texts(found.get("license"), "url", "@id")),
        tuple(_texts(objects[0].get("author"), "name")),
    )


def _texts(value: Any, *keys: str) -> list[str]:
    """A text, or those of a list; of an object the first key that has one."""
    values = value[:_MAX_OBJECTS] if isinstance(value, list) else [value]
    texts = []
    for one in values:
        if isinstance(one, dict):
            one = next((one[key] for key in keys if isinstance(one.get(key), str)), None)
        if isinstance(one, str) and one.strip():
            texts.append(one)
    return texts

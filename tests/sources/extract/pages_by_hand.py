"""Small web pages, made at random or by hand, and what a page says by Python's own parser."""

from __future__ import annotations

import gzip
from html.parser import HTMLParser

from hypothesis import strategies as st

WORDS = st.lists(
    st.sampled_from(["cats", "sleep", "a lot,", "and hunt.", "Home", "About", "© 2020", "42", "é", "&amp;"]),
    min_size=1,
    max_size=30,
).map(" ".join)
_ELEMENTS = [
    "div",
    "p",
    "li",
    "ul",
    "main",
    "article",
    "nav",
    "footer",
    "h1",
    "h2",
    "span",
    "a",
    "td",
    "aside",
]
_ATTRIBUTES = [
    "",
    ' class="content main"',
    ' id="footer"',
    ' style="display: none"',
    " hidden",
    ' class="a b"',
]


def _element(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(
        lambda name, attribute, parts: f"<{name}{attribute}>{''.join(parts)}</{name}>",
        st.sampled_from(_ELEMENTS),
        st.sampled_from(_ATTRIBUTES),
        st.lists(inner, max_size=4),
    )


PAGES = st.lists(st.recursive(WORDS, _element, max_leaves=25), min_size=1, max_size=6).map("\n".join)

SENTENCE = (
    "Cats are small animals that live with people; they sleep a lot, hunt mice, and rarely obey anyone who "
    "calls them. In winter they lie by the stove, and nobody knows what they think."
)


def article(title: str = "A tale of cats", paragraphs: int = 6) -> str:
    prose = "".join(f'<p id="p{n}">Number {n}. {SENTENCE}</p>\n' for n in range(paragraphs))
    return (
        f"<html><head><title>{title}</title></head><body>\n"
        '<nav class="menu"><ul><li><a href="/">Home</a></li><li><a href="/a">About us</a></li></ul></nav>\n'
        f'<main><div class="content wide"><h1>{title}</h1>\n{prose}</div></main>\n'
        '<div style="display:none">Words that nobody sees.</div>\n'
        "<footer>Copyright 2020 by us &amp; them, all rights reserved</footer></body></html>"
    )


class Said(HTMLParser):
    """The texts of an article of ours: those between two tags of elements that are blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._is_head = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._is_head = tag in ("head", "title")

    def handle_endtag(self, tag: str) -> None:
        self._is_head = False

    def handle_data(self, data: str) -> None:
        if data.strip() and not self._is_head:
            self.texts.append(" ".join(data.split()))


def texts_of(html: str) -> list[str]:
    said = Said()
    said.feed(html)
    return said.texts


def archived(number: int | None, html: str) -> bytes:
    """A record of a web archive, a gzip member of its own; one without a number has no id."""
    body = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n" + html.encode()
    id = f"WARC-Record-ID: <urn:uuid:page-{number}>\r\n" if number is not None else ""
    head = (
        f"WARC/1.0\r\nWARC-Type: response\r\n{id}WARC-Date: 2024-05-18T01:58:10Z\r\n"
        f"WARC-Target-URI: https://example.org/{number}\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return gzip.compress(head.encode() + body + b"\r\n\r\n", mtime=0)

"""A page of the web as text: its charset, how deep it is nested, and what of it is read.

    bytes ─ charset of the mark, the header, the page ─ decode ─┬─> HTML, characters replaced
                                                                └─> Broken: undecodable
    HTML ─ depth of nesting ─ tree ─ main_text ─┬─> text
                                                └─> Broken: too_deep

The depth is bounded before text is taken out, because the time for that grows with its square.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from tokmill.errors import MissingExtra

# Main text of nested <div> takes time that grows with the square of the depth: 0.02 s at 1,000, 10 s at 20,000.
_MAX_DEPTH = 1000
_MAX_CROSSED = 10 * _MAX_DEPTH  # tags that may be open; a tree of so many still parses in 0.4 s
_TAG = re.compile(r"<(/?)([a-zA-Z][^\s/>]{0,20})")
# Elements that hold nothing, or that the next of their kind closes: many of them in a row are not nested.
_FLAT = frozenset(
    re.findall(
        r"\w+",
        "area base br col embed hr img input link meta param source track wbr "
        "html head body p li dt dd option optgroup tr td th tbody thead tfoot colgroup rp rt a",
    )
)
# A page with one bad byte is a page; one with more than this is in another charset than it says.
_MAX_REPLACED_FRACTION = 0.001


class Broken(Exception):
    """Why a record is quarantined: reason, detail."""


class PageParsers:
    """The optional packages that read a page."""

    def __init__(self) -> None:
        try:
            from resiliparse.extract.html2text import extract_plain_text  # type: ignore[import-untyped]
            from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5  # type: ignore[import-untyped]
            from resiliparse.parse.html import HTMLTree  # type: ignore[import-untyped]
        except ImportError as error:
            raise missing_package(error) from error
        self.tree: Any = HTMLTree
        self.detect_encoding, self.web_charset = detect_encoding, map_encoding_to_html5
        self.extract_plain_text: Any = extract_plain_text


def missing_package(error: ImportError) -> MissingExtra:
    return MissingExtra(
        f"web archives need a package that is not installed ({error.name})",
        next="pip install 'tokmill[warc]'",
    )


def decode(body: bytes, declared: str | None, parse: PageParsers, *, is_html: bool) -> tuple[str, int]:
    """In the charset of the byte order mark, else the declared one, else the likeliest; and how many characters
    stand for bytes that the charset does not have."""
    charset = _charset(body, declared, parse, is_html)
    text = body.decode(charset, "replace").removeprefix("\ufeff")
    try:
        body.decode(charset)
        return text, 0
    except UnicodeDecodeError as error:
        replaced = text.count("\ufffd")
        if replaced > _MAX_REPLACED_FRACTION * len(text):
            raise Broken("undecodable", f"byte {error.start} is not {charset}: {error.reason}") from error
        return text, replaced


def _charset(body: bytes, declared: str | None, parse: PageParsers, is_html: bool) -> str:
    for mark, charset in ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")):
        if body.startswith(mark):
            return charset
    if declared:
        # only charsets of the web; it answers utf-8 to any other name, so that one must have been meant
        charset = parse.web_charset(_LATIN.get(declared, declared))
        if charset != "utf-8" or declared.replace("_", "-") in ("utf-8", "utf8"):
            return str(charset)
    return str(parse.detect_encoding(body, from_html_meta=is_html))


# names that the table of web charsets lacks
_LATIN = {"latin-1": "iso-8859-1", "iso8859-1": "iso-8859-1", "iso_8859-1": "iso-8859-1"}


def main_text(html: str, parse: PageParsers, main_content: bool) -> str:
    sure, possible = _nesting(html)
    if sure > _MAX_DEPTH or possible > _MAX_CROSSED:
        raise _too_deep(max(sure, min(possible, _MAX_CROSSED)))
    tree = parse.tree.parse(html)
    if possible > _MAX_DEPTH and _is_deeper(tree, _MAX_DEPTH):
        raise _too_deep(_MAX_DEPTH)
    return str(
        parse.extract_plain_text(
            tree,
            main_content=main_content,
            preserve_formatting=True,
            links=False,
            alt_texts=False,
            list_bullets=True,
        )
    )


def _nesting(html: str) -> tuple[int, int]:
    """How many elements are open at once at most: counted by name, and if each end tag that does not match the
    last start tag were ignored, as a parser may do. The tree is no deeper than the second by much."""
    if html.count("<") - html.count("</") <= _MAX_DEPTH:
        return 0, 0
    opened: Counter[str] = Counter()
    stack: list[str] = []
    depth = deepest = highest = 0
    for slash, name in _TAG.findall(html):
        tag = name.lower()
        if tag in _FLAT:
            continue
        if not slash:
            opened[tag] += 1
            depth += 1
            stack.append(tag)
            deepest, highest = max(deepest, depth), max(highest, len(stack))
        else:
            if opened[tag]:
                opened[tag] -= 1
                depth -= 1
            if stack and stack[-1] == tag:
                stack.pop()
    return deepest, highest


def _is_deeper(tree: Any, limit: int) -> bool:
    node, depth = tree.document, 0
    while node is not None:
        child = node.first_child
        if child is not None:
            node, depth = child, depth + 1
            if depth > limit:
                return True
            continue
        while node is not None and node.next is None:
            node, depth = node.parent, depth - 1
        node = None if node is None else node.next
    return False


def _too_deep(depth: int) -> Broken:
    return Broken(
        "too_deep", f"{depth:,} elements or more inside each other; at most {_MAX_DEPTH:,} are read"
    )

"""Who takes the text out of a page: tokmill, or the packages of others.

    page ─┬─ tokmill ──────────────────────────────────────> text, Markdown
          ├─ resiliparse ─ depth of nesting ─ tree ─┬──────> text
          │                                         └──────> Broken: too_deep
          └─ trafilatura ──────────────────────────────────> text, Markdown

The depth is bounded before Resiliparse takes text out, because the time for that grows with its square:
0.02 s for 1,000 nested <div>, 10 s for 20,000.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from tokmill.artifacts.manifest import Json
from tokmill.errors import MissingExtra, install_hint
from tokmill.kernels.htmltree import Tree
from tokmill.kernels.jit import Bytes
from tokmill.recipe import Extract
from tokmill.sources.extract import page as own
from tokmill.sources.extract.comments import kept_blocks
from tokmill.sources.extract.model import model_digest

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

# From a page, and the tree of its UTF-8, to its text.
Engine = Callable[[str, Bytes, Tree], str]


class Broken(Exception):
    """Why a page is quarantined: reason, detail."""


def open_engine(options: Json, *, main_text: bool) -> Engine:
    """What `extract:` of a source says, as a function from a page to its text."""
    chosen = Extract.model_validate(options)
    engine = {"tokmill": _tokmill, "resiliparse": _resiliparse, "trafilatura": _trafilatura}[chosen.engine]
    return engine(chosen, main_text)


def engine_version(options: Json) -> str:
    """What decides, beside the options, which text a page has: it is of the fingerprint of what was read."""
    engine = Extract.model_validate(options).engine
    if engine == "tokmill":
        return f"tokmill, model {model_digest()[:16]}"
    return f"{engine} {importlib.metadata.version(engine)}"


def _tokmill(chosen: Extract, main_text: bool) -> Engine:
    def read(html: str, data: Bytes, tree: Tree) -> str:
        page = own.find_blocks(data, tree)
        verdicts = own.judge(page)
        keep = kept_blocks(page, verdicts, main_text=main_text, comments=chosen.comments)
        return own.render(page, keep, markup=chosen.markup, links=chosen.links)

    return read


# -- others ----------------------------------------------------------------------------------------


def _trafilatura(chosen: Extract, main_text: bool) -> Engine:
    try:
        import trafilatura
    except ImportError as error:
        raise MissingExtra(
            "`extract: {engine: trafilatura}` needs a package that is not installed",
            next=install_hint("trafilatura"),
        ) from error
    if not main_text:
        return lambda html, data, tree: str(trafilatura.html2txt(html) or "")
    written = {"text": "txt", "markdown": "markdown"}[chosen.markup]
    options: dict[str, Any] = {"output_format": written, "include_comments": chosen.comments}
    return lambda html, data, tree: str(
        trafilatura.extract(html, include_links=chosen.links, **options) or ""
    )


def _resiliparse(chosen: Extract, main_text: bool) -> Engine:
    try:
        from resiliparse.extract.html2text import extract_plain_text  # type: ignore[import-untyped]
        from resiliparse.parse.html import HTMLTree  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtra(
            f"`extract: {{engine: resiliparse}}` needs a package that is not installed ({error.name})",
            next=install_hint("warc"),
        ) from error
    options = {"preserve_formatting": True, "links": False, "alt_texts": False, "list_bullets": True}
    take_out = functools.partial(extract_plain_text, main_content=main_text, **options)

    def read(html: str, data: Bytes, tree: Tree) -> str:
        sure, possible = _nesting(html)
        if sure > _MAX_DEPTH or possible > _MAX_CROSSED:
            raise _too_deep(max(sure, min(possible, _MAX_CROSSED)))
        parsed = HTMLTree.parse(html)
        if possible > _MAX_DEPTH and _is_deeper(parsed, _MAX_DEPTH):
            raise _too_deep(_MAX_DEPTH)
        return str(take_out(parsed))

    return read


def _nesting(html: str) -> tuple[int, int]:
    """How many elements are open at once at most: counted by name, and if each end tag that does not match
    the last start tag were ignored, as a parser may do. The tree is no deeper than the second by much."""
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

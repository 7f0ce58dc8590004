"""Pages made of labelled ones: with teasers of other texts behind their own, with code and tables in it.

    page          <article class=post> … <p>a block that belongs</p> … </article> …
    with teasers  <article class=post> … <p>its last block that belongs</p> … </article>
                  <article class=post><h2><a>…</a></h2><p>…</p></article> … as many again
    with parts    … <p>a block that belongs</p> <pre>…</pre> <table>…</table> … </article> …

Blogs show the next texts, or some that are alike, in the very elements of the first: of 84 articles by hand
one page does. To tell them from it, a model has to look at what is repeated and at where the title is, and
not at classes and words alone. What it then learns of a text's end is wrong for code and tables, which no
article by hand has: so some are put in, most of them behind all prose.

How they look is drawn by a hash of the page's name: an element with the class of one around the text, or with
none; a heading, a link or neither; whole paragraphs or cut ones; how many elements end before they begin.
Teasers are beginnings of texts, and parts are those of documentation, of pages in the same fold: nothing of
an unseen page is learned. A teaser's blocks do not belong, a part's do; all others keep their labels.
"""

from __future__ import annotations

import hashlib
import html as entities
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from extraction_labels import Texts, parse_blocks

_MIN_CHARS = 120  # of a paragraph that is worth a teaser
_MIN_OTHERS = 8  # to choose from
_TITLE_WORDS = 8
_MAX_PART_CHARS, _MAX_ROWS = 1500, 12
_SHAPES = ("article", "article", "div", "section", "li")
_END_TAG = re.compile(rb"\s*</[a-zA-Z][\w-]*\s*>")
_INLINE_END = re.compile(
    rb"\s*</(?:a|abbr|b|big|cite|code|em|font|i|q|small|span|strong|sub|sup|time|u)\s*>", re.IGNORECASE
)
_START_TAG = re.compile(rb"<[a-zA-Z][\w-]*((?:\s[^<>]*)?)>")
_CLASS = re.compile(rb"""\sclass\s*=\s*("[^"<>]*"|'[^'<>]*')""", re.IGNORECASE)


class Teaser(NamedTuple):
    title: str
    text: str


class Made(NamedTuple):
    html: str
    label: list[float]  # [block]


class Draws:
    """Numbers that follow from a name."""

    def __init__(self, name: str) -> None:
        self.name, self.count = name, 0

    def __call__(self, below: int) -> int:
        self.count += 1
        digest = hashlib.sha256(f"{self.name} {self.count}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % below


def teaser_of(html: str, label: Sequence[float]) -> Teaser | None:
    """The first long paragraph of a page, and as its title how the second begins."""
    texts = Texts(html).texts
    long = [text for text, share in zip(texts, label, strict=True) if share > 0.9 and len(text) > _MIN_CHARS]
    return Teaser(" ".join(long[1].split()[:_TITLE_WORDS]), long[0]) if len(long) > 1 else None


def with_teasers(html: str, label: Sequence[float], name: str, others: Sequence[Teaser]) -> Made | None:
    """The page with some of the others behind the last block that belongs; None if no block does, or others
    are too few."""
    belongs = np.flatnonzero(np.asarray(label) > 0.5)
    if not len(belongs) or len(others) < _MIN_OTHERS:
        return None
    _, tree, blocks = parse_blocks(html)
    source, draw = html.encode(), Draws(name)
    at = int(tree.end[blocks.end[belongs[-1]] - 1])
    for _ in range(1 + draw(4)):
        ended = _END_TAG.match(source, at)
        at = ended.end() if ended else at
    element = int(blocks.element[belongs[len(belongs) // 2]])
    for _ in range(draw(3)):
        element = max(int(tree.parent[element]), 0)
    tag = _START_TAG.match(source, int(tree.start[element]))
    marks = _CLASS.search(tag[1]) if tag else None
    shape = _SHAPES[draw(len(_SHAPES))]
    start = f"<{shape} class={marks[1].decode()}>" if draw(2) and marks else f"<{shape}>"
    heading, is_cut = draw(4), draw(3) == 0
    made = []
    for _ in range(2 + draw(6)):
        title, text = others[draw(len(others))]
        if is_cut:
            text = f"{text[: 100 + draw(200)]}…"
        title = entities.escape(title)
        link = f"<a href=/>{title}</a>"
        head = ("", f"<h2>{link}</h2>", f"<h3>{title}</h3>", link)[heading]
        made.append(f"{start}{head}<p>{entities.escape(text)}</p></{shape}>")
    whole = f"<ul>{''.join(made)}</ul>" if shape == "li" else "".join(made)
    return _put_in(source, label, at, whole.encode(), 0.0)


def parts_of(gold: dict[str, Any]) -> list[str]:
    """Code and tables of a page whose structure is known, as HTML."""
    code = [f"<pre>{entities.escape(text)}</pre>" for text in gold["code"] if len(text) <= _MAX_PART_CHARS]
    tables = []
    for rows in gold["tables"]:
        cells = ("".join(f"<td>{entities.escape(cell)}</td>" for cell in row) for row in rows[:_MAX_ROWS])
        tables.append(f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>")
    return code + [table for table in tables if len(table) <= 4 * _MAX_PART_CHARS]


def with_parts(html: str, label: Sequence[float], name: str, others: Sequence[str]) -> Made | None:
    """The page with one to three parts, most of them behind the last block that belongs; None if no block
    does, or others are too few."""
    draw, made = Draws(f"{name} parts"), None
    for _ in range(1 + draw(3)):
        belongs = np.flatnonzero(np.asarray(label) > 0.5)
        if not len(belongs) or len(others) < _MIN_OTHERS:
            return None
        _, tree, blocks = parse_blocks(html)
        source = html.encode()
        block = int(belongs[-1] if draw(3) else belongs[draw(len(belongs))])
        at = int(tree.end[blocks.end[block] - 1])
        while ended := _INLINE_END.match(source, at):
            at = ended.end()
        ended = _END_TAG.match(source, at)
        at = ended.end() if ended else at
        made = _put_in(source, label, at, _dressed(others[draw(len(others))], draw).encode(), 1.0)
        if made is None:
            return None
        html, label = made
    return made


def _dressed(part: str, draw: Draws) -> str:
    """As sites write it: code in <code>, in a box, with its language; a table's first row as its head, its
    first column as links."""
    if part.startswith("<pre>"):
        language = ("", " class=language-python", " class=hljs", "")[draw(4)]
        if draw(2):
            part = f"<pre><code{language}>{part[5:-6]}</code></pre>"
        return (part, part, f"<div class=highlight>{part}</div>", f"<figure>{part}</figure>")[draw(4)]
    if draw(3) == 0:  # names that lead to more
        part = re.sub("<tr><td>(.*?)</td>", r"<tr><td><a href=/>\1</a></td>", part)
    if draw(2):
        head, rest = part.split("</tr>", 1)
        part = head.replace("<td>", "<th>").replace("</td>", "</th>") + "</tr>" + rest
    return (part, part, f"<div class=table>{part}</div>", f"<figure>{part}</figure>")[draw(4)]


def _put_in(source: bytes, label: Sequence[float], at: int, added: bytes, share: float) -> Made | None:
    """None where what is put in changes what the blocks around it are."""
    html = (source[:at] + added + source[at:]).decode()
    _, tree, blocks = parse_blocks(html)
    begins = tree.start[blocks.first]
    is_added = (begins >= at) & (begins < at + len(added))
    if np.count_nonzero(~is_added) != len(label):
        return None
    labels = np.full(len(is_added), share)
    labels[~is_added] = label
    return Made(html, labels.tolist())

"""Pages with teasers of other texts behind their own, made of labelled pages: by hand there is one of 84.

    page          <article class=post> … <p>its last block that belongs</p> … </article> …
    made of it    <article class=post> … <p>its last block that belongs</p> … </article>
                  <article class=post><h2><a>…</a></h2><p>…</p></article> … as many again
    teasers       beginnings of other texts, of pages in the same fold: nothing of an unseen page is learned

Blogs show the next texts, or some that are alike, in the very elements of the first. To tell them from it, a
model has to look at what is repeated and at where the title is, and not at classes and words alone. How they
look is drawn by a hash of the page's name: an element with the class of one around the text, or with none; a
heading, a link or neither; whole paragraphs or cut ones; and how many elements end before they begin. Labels
are made as for any page: no run of a teaser's words is in the gold.
"""

from __future__ import annotations

import hashlib
import html as entities
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from extraction_labels import Texts, parse_blocks

_MIN_CHARS = 120  # of a paragraph that is worth a teaser
_MIN_TEASERS = 8  # to choose from
_TITLE_WORDS = 8
_SHAPES = ("article", "article", "div", "section", "li")
_END_TAG = re.compile(rb"\s*</[a-zA-Z][\w-]*\s*>")
_START_TAG = re.compile(rb"<[a-zA-Z][\w-]*((?:\s[^<>]*)?)>")
_CLASS = re.compile(rb"""\sclass\s*=\s*("[^"<>]*"|'[^'<>]*')""", re.IGNORECASE)


class Teaser(NamedTuple):
    title: str
    text: str


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


def with_teasers(html: str, label: Sequence[float], name: str, others: Sequence[Teaser]) -> str | None:
    """The page with some of the others behind the last block that belongs; None if no block does, or others
    are too few."""
    belongs = np.flatnonzero(np.asarray(label) > 0.5)
    if not len(belongs) or len(others) < _MIN_TEASERS:
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
    return (source[:at] + whole.encode() + source[at:]).decode()

"""What is asked of a block about articles and its branch, found a second way from lists of ancestors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.kernels import htmlcounts as hc
from tokmill.kernels.htmlblocks import Blocks, cut
from tokmill.kernels.htmlclasses import Marks, mark
from tokmill.kernels.htmlcounts import count
from tokmill.kernels.htmlfeatures import NAMES, features
from tokmill.kernels.htmlodds import odds_table
from tokmill.kernels.htmltree import TAGS, Tree, parse

NEW = (
    *("articles_around", "ellipses", "article_share", "branch_chars", "branch_link_share"),
    *("branch_long_share", "branch_alike", "branch_place", "branch_kind"),
)
KINDS = {"div": 1, "p": 2, "li": 3, "h1": 6, "h2": 7, "section": 15, "article": 16, "body": 27, "ul": 28}
HEADINGS = {TAGS[name]: number for name, number in {"h1": 6, "h2": 7, "h3": 8, "h4": 9}.items()}
LONG = "All rivers run to the sea; yet the sea is not full, "
LONG += "for to the place where they rise the waters will return. "
TEXTS = st.sampled_from(
    [
        "Rivers of Asia",
        "Rivers",
        "short",
        LONG,
        f"{LONG}&hellip;",
        f"{LONG * 2}...",
        f"<a>{LONG}</a>",
        "a <b>b</b>",
    ]
)


def element(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    names = st.sampled_from(
        ["article", "article class=post", "div", "div class=a", "section", "ul", "li", "p"]
    )
    return st.builds(
        lambda name, inner: f"<{name}>{''.join(inner)}</{name.split()[0]}>",
        names,
        st.lists(children, max_size=4),
    )


LEAVES = st.one_of(
    TEXTS, TEXTS.map("<p>{}</p>".format), TEXTS.map("<h1>{}</h1>".format), TEXTS.map("<h2>{}</h2>".format)
)
PAGES = st.lists(st.recursive(LEAVES, element, max_leaves=20), max_size=5).map(
    lambda parts: "<title>Rivers of Asia</title><body>" + "".join(parts)
)


def of_html(html: str) -> tuple[Tree, Blocks, np.ndarray, Marks]:
    data = np.frombuffer(html.encode(), np.uint8)
    tree = parse(data)
    blocks = cut(tree, np.zeros(tree.tag.size, np.uint8))
    return tree, blocks, count(data, tree, blocks, odds_table({})), mark(data, tree, odds_table({}))


def title_of(tree: Tree, blocks: Blocks, counts: np.ndarray) -> int | None:
    """The heading with the most words of the title; a higher one, or the first, where they are equal."""
    best, title = 0, None
    for block, node in enumerate(blocks.element.tolist()):
        level = HEADINGS.get(int(tree.tag[node]), 0)
        words, common = int(counts[block, hc.WORDS]), int(counts[block, hc.TITLE_WORDS])
        if level and words and common / words >= 0.5:
            worth = 4 * min(words, 12) * common // words + 10 - level
            if worth > best:
                best, title = worth, block
    return title


def slow_features(html: str) -> list[dict[str, int]]:
    tree, blocks, counts, marks = of_html(html)
    size = len(blocks.element)

    def above(node: int) -> list[int]:
        """Itself and what is around it, outwards."""
        chain = [node]
        while chain[-1] > 0:
            chain.append(int(tree.parent[chain[-1]]))
        return chain

    ancestors = [above(int(tree.parent[first])) for first in blocks.first]
    is_block_level = [int(blocks.around[node]) == node for node in range(tree.tag.size)]

    def sums(node: int) -> tuple[int, int, int]:
        """Characters, of them in links, and of them in prose, of the blocks in an element."""
        chars = links = long = 0
        for block in range(size):
            if node in ancestors[block]:
                own, linked = int(counts[block, hc.CHARS]), int(counts[block, hc.LINK_CHARS])
                chars += own
                links += linked
                long += own if own >= 80 and 3 * linked < own else 0
        return chars, links, long

    def alike(node: int) -> list[int]:
        def key(one: int) -> tuple[int, int]:
            return int(marks.signature[one]), int(marks.signature[tree.parent[one]])

        return [one for one in range(1, tree.tag.size) if is_block_level[one] and key(one) == key(node)]

    def share(part: int, whole: int) -> int:
        return 1000 * part // whole if whole else -1

    page_long = sums(0)[2]
    title = title_of(tree, blocks, counts)
    rows = []
    for block in range(size):
        articles = [node for node in ancestors[block] if tree.tag[node] == TAGS["article"]]
        row = dict.fromkeys(NEW, -1)
        row["articles_around"] = len(articles)
        row["ellipses"] = int(counts[block, hc.ELLIPSES])
        if articles:
            row["article_share"] = share(sums(articles[0])[2], page_long)
        if title is not None:
            around_title = set(above(int(blocks.element[title])))
            levels = [node for node in above(int(blocks.element[block])) if is_block_level[node]]
            outside = [node for node in levels if node not in around_title][:16]
            if outside:
                branch = outside[-1]
                chars, links, long = sums(branch)
                row["branch_chars"] = min(chars, 4000)
                row["branch_link_share"] = share(links, chars)
                row["branch_long_share"] = share(long, chars)
                row["branch_alike"] = len(alike(branch))
                row["branch_place"] = alike(branch).index(branch) + 1
                name = next(name for name, tag in TAGS.items() if tag == tree.tag[branch])
                row["branch_kind"] = KINDS[name]
        rows.append(row)
    return rows


def fast_features(html: str) -> list[dict[str, int]]:
    made = features(*of_html(html))
    columns = [NAMES.index(name) for name in NEW]
    return [dict(zip(NEW, row, strict=True)) for row in made[:, columns].tolist()]


@settings(deadline=None, max_examples=400)
@given(PAGES)
def test_articles_and_branches_of_blocks_are_those_of_their_ancestors(html: str) -> None:
    assert fast_features(html) == slow_features(html)


TEASER = f"<article class=post><h2><a>Another</a></h2><p>{LONG}&hellip;</p></article>"


@pytest.mark.parametrize("hull", ["{}", "<div>{}</div>"])
def test_teasers_behind_a_text_are_branches_alike(hull: str) -> None:
    own = f"<article class=post><h1>Rivers of Asia</h1><p>{LONG * 3}</p><pre>code</pre></article>"
    rows = fast_features(f"<title>Rivers of Asia</title><body><main>{own}{hull.format(TEASER * 3)}</main>")
    title, text, code, *teasers = rows
    assert title["branch_chars"] == -1  # nothing is beside itself
    size = len("".join(LONG.split()))
    whole = 3 * size + 3 * (size + 1)
    of_own, of_teaser = 1000 * 3 * size // whole, 1000 * (size + 1) // whole
    assert text["article_share"] == code["article_share"] == of_own
    assert (code["branch_chars"], code["branch_alike"], code["branch_place"]) == (4, 1, 1)
    assert [row["ellipses"] for row in teasers] == [0, 1] * 3
    assert {row["article_share"] for row in teasers} == {of_teaser}
    prose = 1000 * (size + 1) // (size + 1 + len("Another"))
    assert {row["branch_long_share"] for row in teasers} == {prose}
    if hull == "{}":
        assert [row["branch_place"] for row in teasers] == [2, 2, 3, 3, 4, 4]
        assert {row["branch_alike"] for row in teasers} == {4}
    else:
        assert {(row["branch_place"], row["branch_alike"]) for row in teasers} == {(1, 1)}

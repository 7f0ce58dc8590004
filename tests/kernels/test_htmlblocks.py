"""Blocks cut a second way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from kernels.html_soup import SOUP
from tokmill.kernels.htmlblocks import Blocks, cut
from tokmill.kernels.htmltree import TAGS, TEXT, TRAITS, WHITE, Tree, parse

BREAKING = {number for number in TAGS.values() if TRAITS[number] & 4} | {TAGS["button"]}
NEVER_SHOWN = {
    TAGS[name]
    for name in [
        "head",
        "title",
        "script",
        "style",
        "noscript",
        "template",
        "svg",
        "select",
        "option",
        "optgroup",
        "textarea",
        "iframe",
        "object",
        "canvas",
        "video",
        "audio",
        "noembed",
        "noframes",
        "map",
    ]
}


def cut_slowly(tree: Tree) -> list[list[int]]:
    """Texts of each block: one block-level element around them, and nothing that breaks between."""
    blocks: list[list[int]] = []
    around: dict[int, int] = {0: 0}
    state = None  # of the block that goes on: its element, how many breaks there were before it
    breaks = lines = 0
    hidden_until = 0
    for node in range(1, tree.tag.size):
        tag, above = int(tree.tag[node]), int(tree.parent[node])
        around[node] = node if tag in BREAKING and tag != TEXT else around[above]
        if node < hidden_until:
            continue
        if tag == TEXT:
            goes_on = state == (around[node], breaks) and lines < 2
            is_white = bool(tree.flags[node] & WHITE)
            if not goes_on and not is_white:
                blocks.append([])
                state, goes_on = (around[node], breaks), True
            if goes_on:
                blocks[-1].append(node)
            lines = lines if is_white else 0
        elif tag in NEVER_SHOWN:
            hidden_until = int(tree.last[node])
        else:
            breaks += tag in BREAKING
            lines += tag == TAGS["br"]
    return blocks


def of_html(html: str) -> tuple[bytes, Tree, Blocks]:
    data = html.encode()
    tree = parse(np.frombuffer(data, np.uint8))
    return data, tree, cut(tree, np.zeros(tree.tag.size, np.uint8))


@settings(deadline=None, max_examples=300)
@given(SOUP)
def test_a_block_is_a_run_of_text_that_nothing_interrupts(html: str) -> None:
    _, tree, blocks = of_html(html)
    slow = cut_slowly(tree)
    assert [np.flatnonzero(blocks.of == number).tolist() for number in range(len(slow))] == slow
    assert blocks.first.tolist() == [texts[0] for texts in slow]
    assert blocks.end.tolist() == [texts[-1] + 1 for texts in slow]


def test_a_page_of_very_many_blocks_has_several_judged_as_one() -> None:
    _, tree, blocks = of_html("<p>a" * 10_000)
    slow = cut_slowly(tree)
    assert len(slow) == 10_000
    # 40,000 bytes may have 689: 15 would be one, and where that is more than 8, eight times as many are
    assert len(blocks.element) == 84
    assert blocks.of[[texts[0] for texts in slow]].tolist() == [number // 120 for number in range(10_000)]
    assert blocks.first.tolist() == [texts[0] for texts in slow[::120]]
    assert blocks.end.tolist() == [texts[-1] + 1 for texts in [*slow[119::120], slow[-1]]]


@pytest.mark.parametrize(
    ("html", "most"),
    [
        ("<p>a" * 50, 64),  # few blocks are all judged
        ("<p>a" * 2_000, 64 + 8_000 // 64),
        ("<p>a" * 250_000, 2_048 // 8),
        (f"<p>{'a ' * 40}" * 3_000, 2_048),
    ],
)
def test_pages_dense_in_blocks_are_judged_by_fewer_of_them(html: str, most: int) -> None:
    _, tree, blocks = of_html(html)
    texts = np.flatnonzero(tree.tag == TEXT)[1:]  # the first is the document
    assert len(blocks.element) <= most + 1
    # every text is in one, in order, and each has as many as any other but the last
    numbers = blocks.of[texts]
    assert (np.diff(numbers) >= 0).all()
    sizes = np.bincount(numbers)
    assert (sizes[:-1] == sizes[0]).all()
    assert 0 < sizes[-1] <= sizes[0]
    assert texts[np.cumsum(sizes) - sizes].tolist() == blocks.first.tolist()

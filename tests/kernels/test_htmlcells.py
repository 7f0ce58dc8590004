"""The table around a block, found a second way by walking up from its text."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tokmill.kernels.htmlblocks import cut
from tokmill.kernels.htmlcells import tables_of
from tokmill.kernels.htmltree import TAGS, parse

BEGINS = [f"<{name}>" for name in ("table", "table", "tr", "td", "th", "p", "div")]
PIECES = st.sampled_from([*BEGINS, "</table>", "</td>", "</p>", "</div>", "a", "b c"])


@settings(deadline=None, max_examples=400)
@given(st.lists(PIECES, max_size=40).map("".join))
@example("<table><tr><td>a<table><tr><td>b</table>c</table>d<table><tr><td>e")
@example("<table></table><table><tr><td>a</table>b")
@example("<p>a<p>b" * 3000 + "<table><tr><td>c" * 9)
def test_a_block_lies_in_the_innermost_table_around_its_text(html: str) -> None:
    tree = parse(np.frombuffer(html.encode(), np.uint8))
    blocks = cut(tree, np.zeros(tree.tag.size, np.uint8))
    expected = []
    for node in blocks.first.tolist():
        while node >= 0 and tree.tag[node] != TAGS["table"]:
            node = int(tree.parent[node]) if node > 0 else -1
        expected.append(node)
    assert tables_of(tree, blocks).tolist() == expected

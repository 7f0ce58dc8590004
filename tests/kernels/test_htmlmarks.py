"""Marks of formulas in start tags, found a second way by a regular expression."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.kernels.htmlmarks import marked_nodes
from tokmill.kernels.htmltree import TAGS, parse

MARK = re.compile(rb"(?<=.)([Mm]ath|[Mm][Jj][Xx]|(?<![A-Za-z])tex(?![A-Za-z])|atex(?![A-Za-z]))")
LOOKED_AT = {TAGS[name] for name in ["math", "script", "img", "span", "div", "p", "td", "figure", "amp-img"]}
WORDS = st.sampled_from(
    ["math", "MathJax", "katex", "latex", "tex", "text-left", "atext", "mjx-x", "mat h", "m"]
)
PIECES = st.one_of(
    WORDS,
    st.builds('<{} class="{}">'.format, st.sampled_from(["span", "div", "img", "a", "b", "zzz"]), WORDS),
    st.builds("<{}>".format, st.sampled_from(["math", "mjx-container", "p", "tex", "script type=math/tex"])),
)


@settings(deadline=None)
@given(st.lists(PIECES, max_size=12).map("".join))
def test_start_tags_with_a_mark_are_found(html: str) -> None:
    data = html.encode()
    tree = parse(np.frombuffer(data, np.uint8))
    wanted = [
        node
        for node in range(1, tree.tag.size)
        if (tree.tag[node] in LOOKED_AT or tree.tag[node] >= 240)
        and MARK.search(data[tree.start[node] : tree.end[node]])
    ]
    assert marked_nodes(np.frombuffer(data, np.uint8), tree).tolist() == wanted

"""Pages rendered with all of their text, each run of inline text a block."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.htmlformulas import find_formulas
from tokmill.kernels.htmlrender import Formulas, Options, render
from tokmill.kernels.htmltree import TAGS, TEXT, TRAITS, Tree, parse

HIDDEN_NAMES = """
head script style title template noscript svg iframe textarea select noframes noembed
"""
HIDDEN = HIDDEN_NAMES.split()
_HIDDEN_TAGS = {TAGS[name] for name in HIDDEN}
_BLOCK = 4  # of TRAITS


def segmented(tree: Tree, formulas: Formulas) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """A block for each nearest element that is block-level, and all of them kept."""
    block = np.full(tree.tag.size, -1, np.int32)
    owner, hidden = [0] * tree.tag.size, [False] * tree.tag.size
    numbers: dict[int, int] = {}
    is_formula = set(formulas.node.tolist())
    for node in range(1, tree.tag.size):
        above, tag = int(tree.parent[node]), int(tree.tag[node])
        hidden[node] = hidden[above] or tag in _HIDDEN_TAGS
        owner[node] = node if tag != TEXT and TRAITS[tag] & _BLOCK else owner[above]
        if node in is_formula or (tag == TEXT and not hidden[node]):
            block[node] = numbers.setdefault(owner[above], len(numbers))
    return block, np.ones(len(numbers), np.uint8)


def rendered(html: str | bytes, markup: str = "text", *, links: bool = False) -> str:
    data = np.frombuffer(html.encode() if isinstance(html, str) else html, np.uint8)
    tree = parse(data)
    formulas = find_formulas(data, tree)
    return render(data, tree, *segmented(tree, formulas), formulas, Options(markup, links)).decode()

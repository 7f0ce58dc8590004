"""Elements that may hold a formula, by what their start tags say: one look at the tags, none at the text.

<span class="math">   <img class="tex" …>   <mjx-container …>   <script type="math/tex">   <math>
             ^^^^                  ^^^        ^^^                             ^^^^           ^^^^
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.htmltree import TAGS, Tree, parse
from tokmill.kernels.jit import Bytes, Int, Offsets, frozen, raw_kernel

_FIRST_OTHER = 240  # names that the tree does not know


def _looked_at() -> NDArray[np.uint8]:
    """Not links: their addresses are long, and no renderer marks them."""
    tags = np.zeros(256, np.uint8)
    tags[_FIRST_OTHER:] = 1
    for name in ("math", "script", "img", "span", "div", "p", "td", "figure", "amp-img"):
        tags[TAGS[name]] = 1
    return tags


_LOOKED_AT = frozen(_looked_at(), np.uint8)


class Formulas(NamedTuple):
    """In the order of the page. One without LaTeX is a second picture of another: nothing is written."""

    node: NDArray[np.int32]  # where it stands
    until: NDArray[np.int32]  # the node after all that it covers
    latex: Bytes
    offsets: Offsets
    is_display: NDArray[np.uint8]


NO_FORMULAS = Formulas(
    frozen(np.empty(0, np.int32), np.int32),
    frozen(np.empty(0, np.int32), np.int32),
    frozen(np.empty(0, np.uint8), np.uint8),
    frozen(np.zeros(1, np.int64), np.int64),
    frozen(np.empty(0, np.uint8), np.uint8),
)


def marked_nodes(data: Bytes, tree: Tree) -> NDArray[np.int32]:
    """Those with math, Math, mjx, MJX, latex, katex or a word tex in their start tags."""
    nodes = np.empty(tree.tag.size, np.int32)
    return nodes[: _find_marked(frozen(data, np.uint8), tree, _LOOKED_AT, nodes)]


def _first_call() -> object:
    data = np.frombuffer(b"a", np.uint8)
    return marked_nodes(data, parse(data))


@raw_kernel(_first_call)
def _find_marked(data: Bytes, tree: Tree, looked_at: Bytes, nodes: NDArray[np.int32]) -> Int:
    count: Int = 0
    for node in range(1, tree.tag.size):
        if not looked_at[tree.tag[node]]:
            continue
        begin, end = np.int64(tree.start[node]), np.int64(tree.end[node])
        for at in range(begin + 3, end):
            byte = data[at]
            if byte != 0x68 and byte != 0x78 and byte != 0x58:  # h, x, X
                continue
            one, two, three = data[at - 1], data[at - 2], data[at - 3]
            if byte == 0x68:
                is_mark = one == 0x74 and two == 0x61 and (three | 0x20) == 0x6D
            elif byte == 0x78 and one == 0x65 and two == 0x74:
                follower = data[at + 1] | 0x20 if at + 1 < end else 0  # class="text-left" has no tex
                is_mark = (follower < 0x61 or follower > 0x7A) and (
                    three == 0x61 or (three | 0x20) < 0x61 or (three | 0x20) > 0x7A
                )
            else:
                is_mark = (one | 0x20) == 0x6A and (two | 0x20) == 0x6D
            if is_mark:
                nodes[count] = node
                count += 1
                break
    return count

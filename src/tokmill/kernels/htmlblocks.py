"""The blocks of a web page.

    <div>one <b>two</b> <p>three</p> four<br><br>five</div>

    block            0                 1         2         3
                     one two           three     four      five
    element          div               p         div       div        the block-level element it lies in

A block is a run of text that no block-level element and no empty line interrupts. Text that is never shown
(scripts, styles, the head, drawings, menus of a form) is in none: its number is -1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.htmltree import (
    TAGS,
    TEXT,
    TRAITS,
    WHITE,
    Tree,
    parse,
)
from tokmill.kernels.jit import Bytes, Int, frozen, raw_kernel

_BLOCK = 4  # of TRAITS
_BR = TAGS["br"]
# To judge a block takes 5 us, and a page has one in 800 bytes. Where there is more than one in so many bytes,
# several neighbours are judged as one, so that no page takes long. Of 1,405 real pages that is none. Pages of
# nothing but tags have little time left for it: where many are one already, eight times as many are. A small
# page may have MIN_BLOCKS, and one more in MIN_BYTES; the densest real one has 99 in 6,945 bytes.
_BYTES_PER_BLOCK, _MAX_SMALL = 512, 2048
_MIN_BLOCKS, _MIN_BYTES = 64, 64
_SEVERAL, _COARSER = 8, 8
_NEVER_SHOWN = """
    head title script style noscript template svg select option optgroup textarea iframe object canvas video
    audio noembed noframes map datalist
"""


def _hidden_tags() -> NDArray[np.uint8]:
    hidden = np.zeros(256, np.uint8)
    for name in _NEVER_SHOWN.split():
        if name in TAGS:
            hidden[TAGS[name]] = 1
    return hidden


def _breaking_tags() -> NDArray[np.uint8]:
    breaking: NDArray[np.uint8] = (TRAITS & _BLOCK != 0).astype(np.uint8)
    breaking[TAGS["button"]] = 1
    return breaking


_HIDDEN = frozen(_hidden_tags(), np.uint8)
_BREAKING = frozen(_breaking_tags(), np.uint8)


class Blocks(NamedTuple):
    of: NDArray[np.int32]  # [node]: the block of a text, or -1
    element: NDArray[np.int32]  # [block]
    first: NDArray[np.int32]  # [block]: its first text
    end: NDArray[np.int32]  # [block]: one after its last
    around: NDArray[np.int32]  # [node]: the block-level element that it is, or lies in


def cut(tree: Tree, shown: NDArray[np.uint8]) -> Blocks:
    """`shown`: nodes that stand for text though they are none, as formulas do; with all that they hold."""
    nodes, size = len(tree.tag), int(tree.end.max(initial=0))
    of, element, first, end, around = np.empty((5, nodes), np.int32)
    blocks = int(_cut(*tree, _HIDDEN, _BREAKING, frozen(shown, np.uint8), of, element, first, end, around))
    small = min(_MIN_BLOCKS + size // _MIN_BYTES, _MAX_SMALL)
    several = -(-blocks // max(small, size // _BYTES_PER_BLOCK))
    several *= _COARSER if several > _SEVERAL else 1
    if several > 1:
        of //= several  # -1 stays -1
        ends = np.append(end[several - 1 : blocks : several], end[blocks - 1])
        element, first, end = element[:blocks:several], first[:blocks:several], ends
        blocks = len(element)
    cut_to = [frozen(one[:blocks], np.int32) for one in (element, first, end)]
    return Blocks(frozen(of, np.int32), cut_to[0], cut_to[1], cut_to[2], frozen(around, np.int32))


def one_page() -> tuple[Bytes, Tree, Blocks]:
    """A small one, that kernels are compiled with."""
    data = frozen(np.frombuffer(b"<p class=a>a", np.uint8), np.uint8)
    tree = parse(data)
    return data, tree, cut(tree, np.zeros(len(tree.tag), np.uint8))


@raw_kernel(one_page)
def _cut(
    tag: Bytes,
    parent: NDArray[np.int32],
    last: NDArray[np.int32],
    start: NDArray[np.int32],
    end_of: NDArray[np.int32],
    flags: Bytes,
    hidden: Bytes,
    breaking: Bytes,
    shown: Bytes,
    of: NDArray[np.int32],
    element: NDArray[np.int32],
    first: NDArray[np.int32],
    end: NDArray[np.int32],
    around: NDArray[np.int32],
) -> Int:
    blocks: Int = 0
    epoch = held = 0  # how many breaks there were, and how many when the block began
    lines = 0  # <br> since the last text
    around[0] = 0
    of[0] = -1
    node: Int = 1
    while node < tag.size:
        of[node] = -1
        inside = around[parent[node]]
        is_shown = shown[node] != 0
        if tag[node] == TEXT or is_shown:
            around[node] = inside
            is_white = not is_shown and (flags[node] & WHITE) != 0
            goes_on = blocks > 0 and held == epoch and element[blocks - 1] == inside and lines < 2
            if not is_white and not goes_on:
                element[blocks], first[blocks] = inside, node
                held = epoch
                blocks += 1
                goes_on = True
            if not is_white:
                lines = 0
            if goes_on:
                of[node] = blocks - 1
                end[blocks - 1] = last[node]
            if is_shown:  # with all that it holds
                for within in range(node + 1, last[node]):
                    of[within] = blocks - 1
                    around[within] = inside
                node = last[node]
                continue
            node += 1
            continue
        if hidden[tag[node]]:
            for within in range(node, last[node]):
                of[within] = -1
                around[within] = inside
            node = last[node]
            continue
        around[node] = node if breaking[tag[node]] else inside
        epoch += breaking[tag[node]]
        lines += tag[node] == _BR
        node += 1
    return blocks

"""The table that each block of a page lies in.

<table> a <table> b </table> c </table> d       block    a  b  c  d
                                                table    1  2  1  none: -1
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.htmlblocks import Blocks, one_page
from tokmill.kernels.htmltree import TAGS, Tree
from tokmill.kernels.jit import frozen, raw_kernel


def tables_of(tree: Tree, blocks: Blocks) -> NDArray[np.int32]:
    """[block]: the innermost <table> around its first text, or -1."""
    tables = np.flatnonzero(tree.tag == TAGS["table"]).astype(np.int32)
    of = np.full(len(blocks.first), -1, np.int32)
    if len(tables):
        _tables_of(frozen(tables, np.int32), tree.last, blocks.first, np.empty(len(tables), np.int32), of)
    return of


def _first() -> object:
    _, tree, blocks = one_page()
    none = np.zeros(1, np.int32)
    return _tables_of(frozen(none, np.int32), tree.last, blocks.first, none, none.copy())


@raw_kernel(_first)
def _tables_of(
    tables: NDArray[np.int32],
    last: NDArray[np.int32],
    first: NDArray[np.int32],
    open_: NDArray[np.int32],
    of: NDArray[np.int32],
) -> None:
    top = at = 0  # how many tables are open, and which is the next to begin
    for block in range(first.size):
        where = first[block]
        while at < tables.size and tables[at] <= where:
            while top > 0 and last[open_[top - 1]] <= tables[at]:
                top -= 1
            open_[top] = tables[at]
            top += 1
            at += 1
        while top > 0 and last[open_[top - 1]] <= where:
            top -= 1
        of[block] = open_[top - 1] if top > 0 else -1

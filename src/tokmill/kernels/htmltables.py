"""Is a table one, or does it lay out a page?

    data     no table, heading, <pre> or quote in it, two cells in a row somewhere, and either
             a <th>, <caption> or <thead> and no cell longer than a paragraph, or
             two such rows, short texts, and no lists or paragraphs in its cells
    layout   any other, and role=presentation: it is written as the blocks that it holds

A table that holds another is layout, so those that are data do not overlap, and looking into each of them
takes time by the node. Cells that span others are filled with empty ones unless that makes many more of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.htmlattributes import (
    COLSPAN,
    NO_ROLE,
    PRESENTATION,
    ROLE,
    ROWSPAN,
    find_attribute,
    number_of,
)
from tokmill.kernels.htmltree import TAGS, TEXT, WHITE, Tree, hash_name
from tokmill.kernels.htmlwriter import MAX_COLUMNS, SPANS, step
from tokmill.kernels.jit import Bytes, Int, frozen

_MAX_MARKED, _MAX_SHORT = 1000, 200  # bytes of a cell
_MORE_CELLS, _SPARE_CELLS = 8, 256
_PLAIN_TAG = 12  # bytes: shorter than <td colspan=2>

_ROW, _CELL, _MARK, _TABLE, _NEVER, _BLOCK = 1, 2, 4, 8, 16, 32


def _kinds() -> NDArray[np.uint8]:
    kinds = np.zeros(256, np.uint8)
    for bit, names in (
        (_ROW, "tr"),
        (_CELL, "td th"),
        (_MARK, "th caption thead"),
        (_TABLE, "table"),
        (_NEVER, "pre listing xmp h1 h2 h3 h4 h5 h6 blockquote article section form textarea"),
        (_BLOCK, "ul ol dl p div figure hr fieldset details center"),
    ):
        for name in names.split():
            kinds[TAGS[name]] |= bit
    return kinds


TABLE_KINDS = frozen(_kinds(), np.uint8)


@step
def columns_of(
    data: Bytes, tree: Tree, table: Int, kinds: Bytes, block: NDArray[np.int32], state: NDArray[np.int64]
) -> tuple[Int, Int]:
    """How many columns a table has, none if it is layout; and do cells span others in it?"""
    tag, start, end = tree.tag, tree.start, tree.end
    after = np.int64(tree.last[table])
    at, stop = find_attribute(data, np.int64(start[table]), np.int64(end[table]), ROLE)
    if at >= 0:
        role = hash_name(data, at, stop)
        if role == PRESENTATION or role == NO_ROLE:
            return 0, 0
    rows: Int = 0
    cells: Int = 0
    in_row: Int = 0
    widest: Int = 0
    wide_rows: Int = 0
    text: Int = 0
    longest: Int = 0
    blocks: Int = 0
    spanned: Int = 0
    has_blocks = is_marked = False
    for k in range(table + 1, after):
        kind = kinds[tag[k]]
        if kind == 0:
            if tag[k] == TEXT and block[k] >= 0 and not tree.flags[k] & WHITE:
                text += end[k] - start[k]
                longest = max(longest, text)
            continue
        if kind & (_TABLE | _NEVER):
            return 0, 0
        if kind & _ROW:
            rows += 1
            in_row = text = 0
        elif kind & _CELL:
            cells += 1
            in_row += 1
            widest = max(widest, in_row)
            wide_rows += 1 if in_row == 2 else 0
            text = blocks = 0
            if end[k] - start[k] > _PLAIN_TAG:
                width = number_of(data, np.int64(start[k]), np.int64(end[k]), COLSPAN)
                spanned += min(max(width, np.int64(1)), np.int64(MAX_COLUMNS))
        elif kind & _BLOCK:
            blocks += 1
            if blocks > 1:
                has_blocks = True
        if kind & _MARK:
            is_marked = True
    if widest < 2:
        return 0, 0
    if is_marked:
        if longest > _MAX_MARKED:
            return 0, 0
    elif wide_rows < 2 or longest > _MAX_SHORT or has_blocks:
        return 0, 0
    limit = _MORE_CELLS * cells + _SPARE_CELLS
    if spanned > limit:
        return widest, 0
    # -- the columns that cells span
    state[SPANS : SPANS + MAX_COLUMNS] = 0
    columns: Int = 0
    column: Int = 0
    for k in range(table + 1, after):
        kind = kinds[tag[k]]
        if kind & _ROW:
            for i in range(columns):
                state[SPANS + i] -= state[SPANS + i] > 0
            column = 0
        elif kind & _CELL:
            _, column = take_cell(data, np.int64(start[k]), np.int64(end[k]), column, state)
            columns = max(columns, column)
            if columns * rows > limit:
                return widest, 0
    state[SPANS : SPANS + MAX_COLUMNS] = 0
    return columns, 1


@step
def take_cell(data: Bytes, start: Int, end: Int, column: Int, state: NDArray[np.int64]) -> tuple[Int, Int]:
    """The column of a cell that follows `column` others in its row, and the one after it."""
    while column < MAX_COLUMNS and state[SPANS + column] > 0:
        column += 1
    width: Int = 1
    height: Int = 1
    if end - start > _PLAIN_TAG:
        width = max(number_of(data, start, end, COLSPAN), np.int64(1))
        height = max(number_of(data, start, end, ROWSPAN), np.int64(1))
    after = min(column + width, MAX_COLUMNS)
    for k in range(column, after):
        state[SPANS + k] = height
    return min(column, MAX_COLUMNS - 1), after

"""From a web page to its text.

    bytes ─ parse ─> tree ─┬─ find_formulas ─> formulas
                           └─ cut ─> blocks ─ features ─ first trees ─ context ─ second trees ─> verdicts
    tree, blocks, verdicts, formulas ─ render ─> text or Markdown

A block is kept if the second score is above the model's threshold. Then three repairs: what a page hides is
left out where enough is kept without it; where next to nothing is kept, the best of it is; and of a table of
short cells, which are blocks of their own, all are kept where a third of its characters is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels import htmlrender
from tokmill.kernels.boosting import ONE, score
from tokmill.kernels.htmlblocks import Blocks, cut
from tokmill.kernels.htmlcells import tables_of
from tokmill.kernels.htmlclasses import mark
from tokmill.kernels.htmlcounts import CHARS, count
from tokmill.kernels.htmlfeatures import CELLS, NAMES, context, features
from tokmill.kernels.htmlformulas import find_formulas
from tokmill.kernels.htmlmarks import Formulas
from tokmill.kernels.htmlrender import Options
from tokmill.kernels.htmltree import Tree, parse
from tokmill.kernels.jit import Bytes, frozen
from tokmill.sources.extract.model import Model, load_model

# The first score as the second trees see it: 1/512, which is what `context` clips to four thousand.
_STEP = ONE // 512
# Characters: with so many in sight what is hidden is not needed, and with fewer than these the best counts.
_ENOUGH, _LITTLE = 300, 200
_NEAR_BEST = 3 * ONE // 2
_IS_HIDDEN, _KIND = NAMES.index("is_hidden"), NAMES.index("kind")
_MAX_CELL = 500  # characters: a table with a longer one may be the layout of a page


class Page(NamedTuple):
    data: Bytes
    tree: Tree
    blocks: Blocks
    formulas: Formulas


class Verdicts(NamedTuple):
    """Of each block."""

    features: NDArray[np.int32]
    context: NDArray[np.int32]
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    keep: NDArray[np.uint8]
    completed: NDArray[np.uint8]  # kept with the rest of their table, though not above the threshold


def parse_page(html: bytes) -> tuple[Bytes, Tree]:
    """Of UTF-8."""
    data = frozen(np.frombuffer(html, np.uint8), np.uint8)
    return data, parse(data)


def find_blocks(data: Bytes, tree: Tree) -> Page:
    formulas = find_formulas(data, tree)
    shown = np.zeros(len(tree.tag), np.uint8)
    shown[formulas.node[np.diff(formulas.offsets) > 0]] = 1
    return Page(data, tree, cut(tree, shown), formulas)


def judge(page: Page, model: Model | None = None) -> Verdicts:
    data, tree, blocks, _ = page
    model = model or load_model()
    counts, marks = count(data, tree, blocks, model.text_odds), mark(data, tree, model.class_odds)
    own = features(tree, blocks, counts, marks)
    first = score(own, model.first)
    seen = np.clip((first + _STEP // 2) // _STEP, -4000, 4000).astype(np.int32)
    around = context(tree, blocks, counts, marks, seen)
    second = score(np.concatenate((own, around), axis=1), model.second)
    keep = _keep(second, counts, own, model.threshold)
    completed = _rest_of_tables(keep, tables_of(tree, blocks), counts[:, CHARS], own)
    return Verdicts(own, around, first, second, keep | completed, completed)


def _keep(
    scores: NDArray[np.int64], counts: NDArray[np.int32], own: NDArray[np.int32], threshold: int
) -> NDArray[np.uint8]:
    chars, is_hidden = counts[:, CHARS], own[:, _IS_HIDDEN] != 0
    keep = scores > threshold
    if chars[keep & ~is_hidden].sum() >= _ENOUGH:
        keep &= ~is_hidden
    if chars[keep].sum() < _LITTLE and len(scores):
        keep = scores > min(threshold, int(scores.max()) - _NEAR_BEST)
    return keep.astype(np.uint8)


def _rest_of_tables(
    keep: NDArray[np.uint8], table: NDArray[np.int32], chars: NDArray[np.int32], own: NDArray[np.int32]
) -> NDArray[np.uint8]:
    """Cells that were not kept, of tables that are. A row of numbers says little by itself."""
    rest = np.zeros(len(keep), np.uint8)
    cells = np.flatnonzero(table >= 0)
    if len(cells):
        _, number = np.unique(table[cells], return_inverse=True)
        size, is_cell = chars[cells], np.isin(own[cells, _KIND], CELLS)
        is_kept = keep[cells] != 0
        whole, part = np.bincount(number, size), np.bincount(number, size * is_kept)
        others = np.bincount(number, ~is_cell | (size > _MAX_CELL))
        is_good = (3 * part >= whole) & (part > 0) & (others == 0)
        rest[cells] = is_good[number] & ~is_kept & (own[cells, _IS_HIDDEN] == 0)
    return rest


def in_sight(verdicts: Verdicts) -> NDArray[np.uint8]:
    """All blocks that the page shows."""
    keep: NDArray[np.uint8] = (verdicts.features[:, _IS_HIDDEN] == 0).astype(np.uint8)
    return keep


def extract(html: bytes, *, markup: str = "text", links: bool = False, model: Model | None = None) -> str:
    """The main text of a page in UTF-8: plain, or with `markup="markdown"` its structure too."""
    page = find_blocks(*parse_page(html))
    return render(page, judge(page, model).keep, markup=markup, links=links)


def render(page: Page, keep: NDArray[np.uint8], *, markup: str = "text", links: bool = False) -> str:
    text = htmlrender.render(
        page.data, page.tree, page.blocks.of, keep, page.formulas, Options(markup, links)
    )
    return text.decode()

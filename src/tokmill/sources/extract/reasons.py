"""Why the blocks of a page were kept or left out.

    page, verdicts ─┬─ text, element path ────────────────────────────────┐
                    ├─ verdict: kept, left out, hidden ───────────────────┼─> Block, …
                    └─ trees ─ attribute ─ phrases ─> reasons of a score ─┘

A score is a sum of leaves. What a feature adds to it is read from the trees (Saabas, "Interpreting random
forests", 2014): each node is worth the mean of the leaves below it, and the step from a node to its child,
from one worth to another, is credited to the feature that the node asks for:

    tree   node 0 (worth 4): link_share <= 80 ?  no ─> leaf 9       link_share +5
    score  sum of the worths of roots (the bias) + what all features add: exactly, worths are whole numbers

The second trees also see the scores of a first judgement. That of the block itself is one reason, and what
the first trees made of it is told beside it; those of other blocks are one reason, "neighbours and
containers".
"""

from __future__ import annotations

from html import unescape
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Json
from tokmill.kernels.boosting import ONE, Trees
from tokmill.kernels.htmlfeatures import CONTEXT_NAMES, NAMES
from tokmill.kernels.htmltree import TAGS, TEXT
from tokmill.kernels.jit import Bytes
from tokmill.sources.extract.attributes import attributes_of
from tokmill.sources.extract.comments import kept_blocks
from tokmill.sources.extract.model import Model, load_model
from tokmill.sources.extract.page import Page, Verdicts
from tokmill.sources.extract.phrases import GROUPS, group_of, say

# A page may have a block in 256 bytes: so many are told with their reasons.
MAX_BLOCKS = 2000
_SHOWN_CHARS = 2000  # of a text
_SHOWN_REASONS = 6
_SHOWN_LEVELS, _SHOWN_NAME = 6, 40  # of a path, and characters of a class
_MAX_TAG = 4096
_ROWS = 256  # that walk down all trees at once: 30,000 walks

NEIGHBOURS = "neighbours and containers"
_OWN_SCORE = CONTEXT_NAMES[0]
_IS_HIDDEN = NAMES.index("is_hidden")

Verdict = Literal["kept", "left out", "hidden"]


class Reason(NamedTuple):
    """`points` of the score, in 1/65536, are of this feature."""

    feature: str
    words: str
    points: int

    def as_json(self) -> Json:
        return {"feature": self.feature, "words": self.words, "points": self.points / ONE}


class Block(NamedTuple):
    number: int
    text: str
    chars: int  # of the whole text
    path: str
    verdict: Verdict
    because: str
    score: int  # in 1/65536, as all points
    bias: int
    reasons: tuple[Reason, ...] = ()  # the heaviest first, then all others: together score - bias
    first: int = 0  # its score in the first judgement
    first_bias: int = 0
    first_reasons: tuple[Reason, ...] = ()

    def as_json(self) -> Json:
        """Points are exact: sums of powers of two."""
        return {
            **{name: getattr(self, name) for name in ("number", "text", "chars", "path", "verdict")},
            "because": self.because,
            **{name: getattr(self, name) / ONE for name in ("score", "bias", "first", "first_bias")},
            "reasons": [one.as_json() for one in self.reasons],
            "first_reasons": [one.as_json() for one in self.first_reasons],
        }


class Tally(NamedTuple):
    blocks: int
    chars: int


class Explained(NamedTuple):
    """`blocks` are the first MAX_BLOCKS; `tallies` are of all, by verdict."""

    blocks: tuple[Block, ...]
    tallies: dict[Verdict, Tally]
    threshold: int

    def as_json(self, *, blocks: bool = True) -> Json:
        tallies = {name.replace(" ", "_"): tally._asdict() for name, tally in self.tallies.items()}
        told = {"blocks": [block.as_json() for block in self.blocks]} if blocks else {}
        return {"threshold": self.threshold / ONE, **tallies, **told}


def explain(
    page: Page,
    verdicts: Verdicts,
    model: Model | None = None,
    *,
    main_text: bool = True,
    comments: bool = False,
) -> Explained:
    """`main_text`: the blocks are those that were judged good, and `comments` where they are asked for;
    otherwise all that the page shows."""
    model = model or load_model()
    keep = kept_blocks(page, verdicts, main_text=main_text, comments=comments)
    texts = block_texts(page)
    names = [_verdict(*pair) for pair in zip(keep, _is_hidden(verdicts), strict=True)]
    tallies: dict[Verdict, Tally] = {}
    for name in ("kept", "left out", "hidden"):
        sizes = [len(text) for text, own in zip(texts, names, strict=True) if own == name]
        tallies[name] = Tally(len(sizes), sum(sizes))
    some = slice(0, MAX_BLOCKS)
    own, around = verdicts.features[some], verdicts.context[some]
    features = np.concatenate((own, around), axis=1)
    first_bias, first_points = attribute(own, model.first)
    bias, points = attribute(features, model.second)
    reasons, first_reasons = _reasons(features, points), _reasons(own, first_points)
    blocks = tuple(
        Block(
            number,
            _shortened(texts[number]),
            len(texts[number]),
            element_path(page, int(page.blocks.element[number])),
            names[number],
            _because(number, verdicts, keep, model.threshold, main_text),
            int(verdicts.second[number]),
            bias,
            reasons[number],
            int(verdicts.first[number]),
            first_bias,
            first_reasons[number],
        )
        for number in range(len(own))
    )
    return Explained(blocks, tallies, model.threshold)


# -- verdicts --------------------------------------------------------------------------------------


def _is_hidden(verdicts: Verdicts) -> NDArray[np.bool_]:
    hidden: NDArray[np.bool_] = verdicts.features[:, _IS_HIDDEN] != 0
    return hidden


def _verdict(is_kept: int, is_hidden: bool) -> Verdict:
    return "kept" if is_kept else "hidden" if is_hidden else "left out"


def _because(
    number: int, verdicts: Verdicts, keep: NDArray[np.uint8], threshold: int, main_text: bool
) -> str:
    is_hidden, is_above = bool(_is_hidden(verdicts)[number]), int(verdicts.second[number]) > threshold
    if not main_text:
        return "the page hides it" if is_hidden else "all that the page shows is kept"
    if keep[number]:
        if not verdicts.keep[number]:
            return "a comment of a reader, and those are asked for"
        if verdicts.completed[number]:
            return "a cell of a table that is kept"
        if not is_above:
            return "below the threshold, and of the best that the page has"
        return "above the threshold, and hidden: nothing else is" if is_hidden else "above the threshold"
    return "the page hides it" if is_hidden else "not above the threshold"


# -- what features add to a score --------------------------------------------------------------------


def expectations(trees: Trees) -> NDArray[np.int64]:
    """[node]: the mean of all leaves below it, rounded down."""
    yes, no = (_part(trees, shift).tolist() for shift in (32, 48))
    sums, sizes = [0] * len(yes), [0] * len(yes)
    values = trees.values.tolist()
    for base, stop, leaf in zip(trees.nodes[:-1], trees.nodes[1:], trees.leaves[:-1], strict=True):
        for node in range(int(stop) - 1, int(base) - 1, -1):  # children come after their parent
            for child in (yes[node], no[node]):
                sums[node] += values[leaf + ~child] if child < 0 else sums[base + child]
                sizes[node] += 1 if child < 0 else sizes[base + child]
    return np.array(sums, np.int64) // np.maximum(np.array(sizes, np.int64), 1)


def attribute(features: NDArray[np.int32], trees: Trees) -> tuple[int, NDArray[np.int64]]:
    """The bias, and of each row what each feature adds to it: together its score."""
    worth = expectations(trees)
    points = np.zeros(features.shape, np.int64)
    for at in range(0, len(features), _ROWS):
        _walk(features[at : at + _ROWS], trees, worth, points[at : at + _ROWS])
    return int(worth[trees.nodes[:-1]].sum()), points


def _walk(
    features: NDArray[np.int32], trees: Trees, worth: NDArray[np.int64], points: NDArray[np.int64]
) -> None:
    """All rows down all trees, a level at a time."""
    asked, threshold, yes, no = (_part(trees, shift) for shift in (0, 16, 32, 48))
    rows, width = features.shape
    row, tree = (one.ravel() for one in np.indices((rows, len(trees.nodes) - 1)))
    node = trees.nodes[tree]
    while len(row):
        feature = asked[node]
        child = np.where(features[row, feature] <= threshold[node], yes[node], no[node])
        is_leaf = child < 0
        below = np.where(is_leaf, 0, trees.nodes[tree] + child)
        leaf = np.where(is_leaf, trees.leaves[tree] + ~child, 0)
        step = np.where(is_leaf, trees.values[leaf], worth[below]) - worth[node]
        np.add.at(points.reshape(-1), row * width + feature, step)
        row, tree, node = row[~is_leaf], tree[~is_leaf], below[~is_leaf]


def _part(trees: Trees, shift: int) -> NDArray[np.int64]:
    """One of the four numbers of every node; a feature has no sign, and is below 32,768."""
    return (trees.words >> shift).astype(np.int16).astype(np.int64)


def _reasons(features: NDArray[np.int32], points: NDArray[np.int64]) -> list[tuple[Reason, ...]]:
    """Of each row what adds or takes the most, the heaviest first, and the rest of it by
    what it is of."""
    names = (*NAMES, _OWN_SCORE)[: points.shape[1]]
    others = points[:, len(names) :].sum(axis=1, keepdims=True)
    weighed = np.concatenate((points[:, : len(names)], others), axis=1)
    order = np.argsort(-np.abs(weighed), axis=1, kind="stable")[:, :_SHOWN_REASONS]
    groups = list(GROUPS)
    of = [groups.index(group_of(name)) for name in names]
    by_group = weighed[:, : len(names)] @ np.eye(len(groups), dtype=np.int64)[of]
    found = []
    for values, own, heaviest, rest in zip(features, weighed, order.tolist(), by_group, strict=True):
        some = []
        for at in heaviest:
            if at < len(names):
                some.append(Reason(names[at], say(names[at], int(values[at])), int(own[at])))
                rest[of[at]] -= own[at]
        some.append(Reason("neighbours", NEIGHBOURS, int(own[-1])))
        some.sort(key=lambda one: -abs(one.points))
        some += [
            Reason("others", f"all else of {group}", points)
            for group, points in zip(groups, rest.tolist(), strict=True)
        ]
        found.append(tuple(one for one in some if one.points))
    return found


# -- texts and places ------------------------------------------------------------------------------


def block_texts(page: Page) -> list[str]:
    """Of every block, white space as one space; formulas as LaTeX."""
    data, tree, blocks, formulas = page
    pieces: list[list[str]] = [[] for _ in range(len(blocks.element))]
    latex = {int(node): number for number, node in enumerate(formulas.node)}
    covered = 0
    for node in np.flatnonzero(blocks.of >= 0).tolist():
        if node < covered:
            continue
        own = pieces[blocks.of[node]]
        if node in latex:
            number = latex[node]
            start, end = formulas.offsets[number], formulas.offsets[number + 1]
            own.append(f"${_decoded(formulas.latex, start, end)}$" if end > start else "")
            covered = int(formulas.until[number])
        elif tree.tag[node] == TEXT:
            own.append(unescape(_decoded(data, tree.start[node], tree.end[node])))
    return [" ".join("".join(own).split()) for own in pieces]


def element_path(page: Page, node: int) -> str:
    """main > div.content > p"""
    names: list[str] = []
    while node > 0:
        if page.tree.tag[node] not in _WHOLE_PAGE:
            names.append(_named(page, node))
        node = int(page.tree.parent[node])
    if len(names) > _SHOWN_LEVELS:
        names[_SHOWN_LEVELS:] = ["…"]
    return " > ".join(reversed(names)) or "body"


_WHOLE_PAGE = (TAGS["html"], TAGS["body"])
_TAG_NAMES = {number: name for name, number in TAGS.items()}


def _named(page: Page, node: int) -> str:
    """With its first class, or its id."""
    start, end = int(page.tree.start[node]), int(page.tree.end[node])
    name = _TAG_NAMES.get(int(page.tree.tag[node]))
    if name is None:
        tag = _decoded(page.data, start + 1, min(end, start + 1 + _SHOWN_NAME))
        name = tag.replace("/", " ").replace(">", " ").split(maxsplit=1)[0].lower() if tag.split() else "?"
    attributes = attributes_of(page.data, start, min(end, start + _MAX_TAG))
    classes, id = attributes.get("class", "").split(), attributes.get("id", "").split()
    if classes:
        return f"{name}.{classes[0][:_SHOWN_NAME]}"
    return f"{name}#{id[0][:_SHOWN_NAME]}" if id else name


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _decoded(data: Bytes, start: int, end: int) -> str:
    return data[start:end].tobytes().decode(errors="replace")

"""Boosted decision trees over whole numbers: the same bits on every machine.

tree   node 0: feature 3 <= 80 ?  yes: node 1   no: leaf ~2       a child that is negative is a leaf
       node 1: feature 0 <= 12 ?  yes: leaf ~0  no: leaf ~1
word   feature | threshold << 16 | yes << 32 | no << 48           a node: four numbers of 16 bits
score  the sum of one leaf of each tree, in 1/65536
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import Int, frozen, raw_kernel, raw_step

U64 = np.uint64
ONE = 1 << 16
_TILE = 128  # rows


class Trees(NamedTuple):
    words: NDArray[np.int64]  # nodes of all trees, one tree after the other
    nodes: NDArray[np.int64]  # [tree + 1]: where its nodes begin
    values: NDArray[np.int32]  # leaves of all trees
    leaves: NDArray[np.int64]  # [tree + 1]: where its leaves begin


def pack(
    feature: NDArray[Any], threshold: NDArray[Any], yes: NDArray[Any], no: NDArray[Any]
) -> NDArray[np.int64]:
    """The words of nodes."""
    parts = [
        np.asarray(one).astype(np.int16).astype(np.int64) & 0xFFFF for one in (feature, threshold, yes, no)
    ]
    return parts[0] | parts[1] << 16 | parts[2] << 32 | parts[3] << 48


def check_trees(trees: Trees, features: int) -> Trees:
    """That no walk leaves its tree or asks for a feature that is not there."""
    if not _fits(trees, features):
        raise ValueError(f"trees that ask for a node, a leaf or a feature of {features} that is not there")
    words, nodes, values, leaves = (frozen(one, one.dtype.type) for one in trees)
    return Trees(words, nodes, values, leaves)


def _fits(trees: Trees, features: int) -> bool:
    words, nodes, values, leaves = trees
    types = [np.dtype(of) for of in (np.int64, np.int64, np.int32, np.int64)]
    if [one.dtype for one in trees] != types or any(one.ndim != 1 for one in trees):
        return False
    if len(nodes) != len(leaves) or len(nodes) < 2 or nodes[0] != 0 or leaves[0] != 0:
        return False
    sizes, ends = np.diff(nodes), np.diff(leaves)
    if (sizes <= 0).any() or (ends <= 0).any() or nodes[-1] != len(words) or leaves[-1] != len(values):
        return False
    owner = np.repeat(np.arange(len(sizes)), sizes)
    number = np.arange(len(owner)) - nodes[owner]
    fits = bool(((words & 0xFFFF) < features).all())
    for shift in (32, 48):
        child = (words >> shift).astype(np.int16).astype(np.int64)
        is_there = np.where(child < 0, ~child < ends[owner], (child > number) & (child < sizes[owner]))
        fits = fits and bool(is_there.all())
    return fits


def score(features: NDArray[np.int32], trees: Trees) -> NDArray[np.int64]:
    """[row], in 1/65536. The trees are checked for so many features."""
    scores = np.zeros(len(features), np.int64)
    _score(frozen(features, np.int32), *trees, scores)
    return scores


def _first() -> object:
    one, none = np.array([0, 1]), np.zeros(1)
    words = pack(none, none, np.array([-1]), np.array([-2]))
    trees = Trees(words, one, np.zeros(2, np.int32), np.array([0, 2]))
    return score(np.zeros((1, 1), np.int32), check_trees(trees, 1))


@raw_kernel(_first)
def _score(
    features: NDArray[np.int32],
    words: NDArray[np.int64],
    nodes: NDArray[np.int64],
    values: NDArray[np.int32],
    leaves: NDArray[np.int64],
    scores: NDArray[np.int64],
) -> None:
    # Some rows at a time, that they stay in the cache beside a tree: 45,000 at once took 13 us a row. Four of
    # them together: a step waits for the one before it, and not for those of other rows. 2.3 us a row of 120
    # trees, and 3.3 one by one.
    for first in range(0, features.shape[0], _TILE):
        end = min(first + _TILE, features.shape[0])
        for tree in range(nodes.size - 1):
            base = nodes[tree]
            leaf = leaves[tree]
            row = first
            while row + 4 <= end:
                a = b = c = d = 0
                while (a & b & c & d) >= 0:  # until all are leaves
                    a = _next(features, words, base, row, a)
                    b = _next(features, words, base, row + 1, b)
                    c = _next(features, words, base, row + 2, c)
                    d = _next(features, words, base, row + 3, d)
                scores[row] += values[leaf + ~a]
                scores[row + 1] += values[leaf + ~b]
                scores[row + 2] += values[leaf + ~c]
                scores[row + 3] += values[leaf + ~d]
                row += 4
            while row < end:
                a = 0
                while a >= 0:
                    a = _next(features, words, base, row, a)
                scores[row] += values[leaf + ~a]
                row += 1


@raw_step
def _next(features: NDArray[np.int32], words: NDArray[np.int64], base: Int, row: Int, node: Int) -> Any:
    """The child where the row goes on; a leaf stays."""
    word = words[U64(base + max(node, 0))]
    is_yes = features[U64(row), U64(word & 0xFFFF)] <= np.int16(word >> 16)
    child = np.int64(np.int16(word >> (32 if is_yes else 48)))
    return child if node >= 0 else np.int64(node)

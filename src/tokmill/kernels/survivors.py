"""Who is kept, over a graph of verified edges: union-find and one greedy walk, in integers.

edges (earlier, later, similarity), nodes numbered in order of precedence
  join_components   node -> the first node of its component
  choose_survivors  node -> the kept node that it is dropped for, or KEPT
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.columns import Int, frozen
from tokmill.kernels.raw import raw_kernel, raw_step

Nodes = NDArray[np.int64]

KEPT = -1


def join_components(nodes: int, earlier: Nodes, later: Nodes) -> Nodes:
    roots = np.arange(nodes, dtype=np.int64)
    _join_components(frozen(earlier, np.int64), frozen(later, np.int64), roots)
    return roots


def choose_survivors(
    earlier: Nodes, later: Nodes, similarity: NDArray[np.float64], is_safe: NDArray[np.bool_]
) -> tuple[Nodes, NDArray[np.float64]]:
    """Edges come sorted by their later node. A node is dropped for the kept one among its earlier neighbours that it
    is most similar to, the first of several; without a kept one, or where it is safe, it is kept itself."""
    survivors = np.full(is_safe.size, KEPT, np.int64)
    best = np.zeros(is_safe.size, np.float64)
    _choose_survivors(
        frozen(earlier, np.int64),
        frozen(later, np.int64),
        frozen(similarity, np.float64),
        frozen(is_safe, np.bool_),
        survivors,
        best,
    )
    return survivors, best


@raw_kernel
def _join_components(earlier: Nodes, later: Nodes, roots: Nodes) -> None:
    for edge in range(earlier.size):
        one, other = _root(roots, earlier[edge]), _root(roots, later[edge])
        roots[max(one, other)] = min(one, other)
    for node in range(roots.size):
        roots[node] = roots[roots[node]]  # its parent comes before it, and points to the root already


@raw_step
def _root(roots: Nodes, node: Int) -> Int:
    while roots[node] != node:
        roots[node] = roots[roots[node]]
        node = roots[node]
    return node


@raw_kernel
def _choose_survivors(
    earlier: Nodes,
    later: Nodes,
    similarity: NDArray[np.float64],
    is_safe: NDArray[np.bool_],
    survivors: Nodes,
    best: NDArray[np.float64],
) -> None:
    edge: Int = 0
    while edge < later.size:
        node = later[edge]
        survivor: Int = KEPT
        most = 0.0
        while edge < later.size and later[edge] == node:
            other = earlier[edge]
            if survivors[other] == KEPT and (
                survivor == KEPT or similarity[edge] > most or (similarity[edge] == most and other < survivor)
            ):
                survivor, most = other, similarity[edge]
            edge += 1
        if not is_safe[node]:
            survivors[node] = survivor
            best[node] = most

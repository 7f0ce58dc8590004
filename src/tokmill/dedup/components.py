"""Survivors: which documents stay, given the verified edges between them.

    edges ─ union-find ─ components
          ─ documents in keep order: dropped if similar enough to one that is kept already, else kept

A chain A ~ B ~ C with A unlike C keeps A and C: B is dropped for A, and then nothing is left that C could be dropped
for. Every dropped document has an edge of its own to its survivor. Memory goes with the edges, not with the corpus:
documents without an edge are kept, and cost only their place in the answer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.survivors import KEPT, choose_survivors, join_components

Docs = NDArray[np.int64]


class Resolved(NamedTuple):
    """One row per document."""

    survivor: Docs  # the document it is dropped for, -1: it is kept
    similarity: NDArray[np.float64]  # with the survivor; 0 where kept
    component: Docs  # the first document, in keep order, of its connected component; itself if it is alone
    component_size: Docs


def resolve(
    n_docs: int,
    a: Docs,
    b: Docs,
    similarity: NDArray[np.float64],
    order: Docs | None = None,
    is_reference: NDArray[np.bool_] | None = None,
) -> Resolved:
    """Edges in any order, either end first, repeated or not.

    `order` ranks the documents, the least is kept first, ties by number; None is their numbers. Reference documents
    come before all others and are never dropped. At a billion documents give only those that have edges: `linked`.
    """
    is_edge = a != b
    found = linked(a[is_edge], b[is_edge])
    ranks = found.docs if order is None else order[found.docs]
    is_safe = np.zeros(len(ranks), np.bool_) if is_reference is None else is_reference[found.docs]
    by_precedence = np.lexsort((found.docs, ranks, ~is_safe))
    nodes, is_safe = found.docs[by_precedence], is_safe[by_precedence]
    place = np.empty(len(nodes), np.int64)
    place[by_precedence] = np.arange(len(nodes))
    one, other = place[found.a], place[found.b]
    earlier, later = np.minimum(one, other), np.maximum(one, other)
    by_later = np.argsort(later, kind="stable")
    roots = join_components(len(nodes), earlier, later)
    survivors, best = choose_survivors(
        earlier[by_later], later[by_later], similarity[is_edge][by_later].astype(np.float64), is_safe
    )
    resolved = Resolved(
        np.full(n_docs, KEPT, np.int64),
        np.zeros(n_docs, np.float64),
        np.arange(n_docs, dtype=np.int64),
        np.ones(n_docs, np.int64),
    )
    resolved.survivor[nodes] = np.where(survivors == KEPT, KEPT, nodes[survivors])
    resolved.similarity[nodes] = best
    resolved.component[nodes] = nodes[roots]
    resolved.component_size[nodes] = np.bincount(roots, minlength=len(nodes))[roots]
    return resolved


class Linked(NamedTuple):
    """The documents that have edges, ascending, and the edges in their new numbers."""

    docs: Docs
    a: Docs
    b: Docs


def linked(a: Docs, b: Docs) -> Linked:
    docs = np.unique(np.concatenate([a, b]))
    return Linked(docs, np.searchsorted(docs, a), np.searchsorted(docs, b))

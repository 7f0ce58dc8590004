"""Survivors against a greedy walk in plain Python, and what must hold whatever the edges are."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from plain import near as slow
from tokmill.duplicates.near import Resolved, resolve

QUICK = settings(deadline=None, max_examples=300)
COUNT = 12
DOCS = st.integers(0, COUNT - 1)
EDGES = st.lists(
    st.tuples(DOCS, DOCS, st.sampled_from([0.8, 0.85, 0.9, 1.0])).filter(lambda edge: edge[0] != edge[1]),
    max_size=25,
    unique_by=lambda edge: tuple(sorted(edge[:2])),
)


def resolved(edges: list[slow.Edge], count: int = COUNT) -> Resolved:
    a, b = (np.array([edge[end] for edge in edges], np.int64) for end in (0, 1))
    return resolve(count, a, b, np.array([edge[2] for edge in edges], np.float64))


@QUICK
@given(EDGES)
def test_survivors_and_components_are_those_of_the_greedy_walk(edges: list[slow.Edge]) -> None:
    found = resolved(edges)
    survivors, component = slow.greedy(COUNT, edges, [0] * COUNT, [False] * COUNT)
    assert found.survivor.tolist() == survivors
    assert found.component.tolist() == component


@QUICK
@given(EDGES)
def test_what_must_hold(edges: list[slow.Edge]) -> None:
    found = resolved(edges)
    similarity = {frozenset(edge[:2]): edge[2] for edge in edges}
    kept = found.survivor < 0
    for document in np.flatnonzero(~kept).tolist():
        survivor = int(found.survivor[document])
        assert kept[survivor], "the survivor of a dropped document is kept"
        assert similarity[frozenset((document, survivor))] == found.similarity[document]
        assert survivor < document
    for one, other, _ in edges:
        assert not (kept[one] and kept[other]), "at most one of a pair is kept"


@QUICK
@given(EDGES, st.randoms(use_true_random=False))
def test_neither_the_order_nor_the_direction_nor_repeats_of_edges_count(
    edges: list[slow.Edge], shuffler: object
) -> None:
    others = [*edges, *((b, a, s) for a, b, s in edges)]
    shuffler.shuffle(others)  # type: ignore[attr-defined]
    for one, other in zip(resolved(edges), resolved(others), strict=True):
        assert one.tolist() == other.tolist()


@QUICK
@given(EDGES)
def test_the_first_of_a_component_is_kept(edges: list[slow.Edge]) -> None:
    found = resolved(edges)
    assert (found.survivor[np.unique(found.component)] == -1).all()
    assert (found.component <= np.arange(COUNT)).all()


def test_a_chain_does_not_collapse() -> None:
    found = resolved([(0, 1, 0.9), (1, 2, 0.9), (2, 3, 0.9)], count=4)
    assert found.survivor.tolist() == [-1, 0, -1, 2]
    assert found.component.tolist() == [0] * 4


def test_the_survivor_is_the_most_similar_kept_document_and_the_first_of_several() -> None:
    assert resolved([(0, 2, 0.8), (1, 2, 0.9)], count=3).survivor.tolist() == [-1, -1, 1]
    assert resolved([(1, 2, 0.9), (0, 2, 0.9)], count=3).survivor.tolist() == [-1, -1, 0]


def test_no_edges_drop_nothing() -> None:
    found = resolved([], count=3)
    assert found.survivor.tolist() == [-1] * 3
    assert found.component.tolist() == [0, 1, 2]
    assert resolved([(1, 1, 1.0)], count=3).survivor.tolist() == [-1] * 3

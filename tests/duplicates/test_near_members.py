"""Members, components and survivors in pieces are those of a greedy walk in plain Python."""

from __future__ import annotations

import bisect
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plain import near as slow
from tokmill.duplicates import near as members_module
from tokmill.duplicates.near import Components, Members
from tokmill.errors import DedupLimit
from tokmill.kernels.survivors import get_bits, no_bits, walk_edges

numbers = st.lists(st.integers(0, 3000), max_size=80)


@settings(deadline=None, max_examples=200)
@given(numbers, st.integers(0, 3000), st.integers(0, 3000))
def test_a_member_has_the_place_of_its_number_among_all_and_back(
    chosen: list[int], start: int, length: int
) -> None:
    members = Members(3001)
    for number in chosen:
        members.add(np.array([number], np.int64))
    members.seal()
    ordered = sorted(set(chosen))
    assert members.count == len(ordered)
    places = members.places(np.array(ordered, np.int64))
    assert places.tolist() == list(range(len(ordered)))
    assert members.numbers(places).tolist() == ordered
    stop = min(start + length, 3001)
    expected = ordered[bisect.bisect_left(ordered, start) : bisect.bisect_left(ordered, stop)]
    assert members.between(start, stop).tolist() == expected


edges = st.lists(
    st.tuples(st.integers(0, 25), st.integers(0, 25), st.integers(16, 20)).filter(lambda e: e[0] != e[1]),
    max_size=60,
    unique_by=lambda e: (min(e[:2]), max(e[:2])),
)
ranked = st.lists(st.integers(0, 3), min_size=26, max_size=26)


@settings(deadline=None, max_examples=300)
@given(edges, ranked, st.sets(st.integers(0, 25), max_size=4), st.integers(1, 9))
def test_edges_in_pieces_give_the_components_and_survivors_of_the_whole(
    found: list[tuple[int, int, int]], given_ranks: list[int], safe: set[int], size: int
) -> None:
    """Reference documents come first by their ranks, as in a run."""
    ranks = [0 if number in safe else 1 + rank for number, rank in enumerate(given_ranks)]
    order = np.array(ranks, np.int64)
    is_safe = np.array([number in safe for number in range(26)])
    directed = [[*sorted(pair[:2], key=lambda n: (ranks[n], n)), pair[2]] for pair in found]
    directed.sort(key=lambda edge: (ranks[edge[1]], edge[1]))
    a, b, tenths = np.array(directed, np.int64).reshape(-1, 3).T
    similarity = tenths / 20
    all_edges = list(zip(a.tolist(), b.tolist(), similarity.tolist(), strict=True))
    survivors, firsts = slow.greedy(26, all_edges, ranks, is_safe.tolist())
    shares = {frozenset(edge[:2]): edge[2] for edge in all_edges}
    members = Members(26)
    members.add(a)
    members.add(b)
    members.seal()
    everyone = members.between(0, 26)
    components = Components(members.count, order[everyone])
    for start in range(0, len(a), size):
        part = slice(start, start + size)
        components.join(members.places(b[part]), members.places(a[part]))
    components.seal()
    expected = [firsts[number] for number in everyone]
    assert members.numbers(components.roots.astype(np.int64)).tolist() == expected
    assert components.count() == len(set(expected))
    dropped, outcomes = no_bits(26), {}
    for start, stop in pieces(b.tolist(), size):
        part = slice(start, stop)
        told = walk_edges(a[part], order[a[part]], b[part], similarity[part], is_safe[b[part]], dropped)
        outcomes.update(
            {doc: (other, share) for doc, other, share in zip(*(c.tolist() for c in told[:3]), strict=True)}
        )
    gone = [doc for doc in range(26) if survivors[doc] >= 0]
    assert outcomes == {doc: (survivors[doc], shares[frozenset((doc, survivors[doc]))]) for doc in gone}
    assert np.flatnonzero(get_bits(dropped, np.arange(26))).tolist() == gone


def pieces(later: list[int], size: int) -> list[tuple[int, int]]:
    """About `size` edges each, with all of a document in one."""
    cuts = [0]
    for place in range(1, len(later)):
        if later[place] != later[place - 1] and place - cuts[-1] >= size:
            cuts.append(place)
    return list(zip(cuts, [*cuts[1:], len(later)], strict=True))


def test_equal_ranks_need_not_be_held() -> None:
    components = Components(4, None)
    components.join(np.array([3, 2]), np.array([1, 3]))
    components.seal()
    assert components.roots.tolist() == [0, 1, 1, 1]


def test_more_members_than_four_bytes_can_name_are_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr(members_module, "_MOST", 2)
    members = Members(100)
    members.add(np.array([1, 50, 99]))
    with pytest.raises(DedupLimit, match="3 documents are like another one, more than 2"):
        members.seal()

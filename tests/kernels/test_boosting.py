"""Trees walked one row at a time, and models that are broken."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tokmill.kernels.boosting import Trees, check_trees, pack, score

FEATURES = 5


@st.composite
def forests(draw: st.DrawFn) -> Trees:
    words, nodes, values, leaves = [], [0], [], [0]
    for _ in range(draw(st.integers(1, 6))):
        size = draw(st.integers(1, 9))
        # every node but the first is a child of an earlier one; the places that stay are leaves
        free = [(0, 0), (0, 1)]
        child = np.zeros((size, 2), np.int64)
        for node in range(1, size):
            at, side = free.pop(draw(st.integers(0, len(free) - 1)))
            child[at, side] = node
            free += [(node, 0), (node, 1)]
        for leaf, (at, side) in enumerate(free):
            child[at, side] = ~leaf
        feature = draw(st.lists(st.integers(0, FEATURES - 1), min_size=size, max_size=size))
        threshold = draw(st.lists(st.integers(-4000, 4000), min_size=size, max_size=size))
        words.append(pack(np.array(feature), np.array(threshold), child[:, 0], child[:, 1]))
        values += draw(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=size + 1, max_size=size + 1))
        nodes.append(nodes[-1] + size)
        leaves.append(len(values))
    return Trees(np.concatenate(words), np.array(nodes), np.array(values, np.int32), np.array(leaves))


def signed(word: int, shift: int) -> int:
    part = word >> shift & 0xFFFF
    return part - 0x10000 if part >= 0x8000 else part


def walked(row: list[int], trees: Trees) -> int:
    total = 0
    for tree in range(len(trees.nodes) - 1):
        node = 0
        while node >= 0:
            word = int(trees.words[trees.nodes[tree] + node])
            is_yes = row[word & 0xFFFF] <= signed(word, 16)
            node = signed(word, 32 if is_yes else 48)
        total += int(trees.values[trees.leaves[tree] + ~node])
    return total


ROWS = st.lists(st.lists(st.integers(-4100, 4100), min_size=FEATURES, max_size=FEATURES), max_size=11)


@settings(deadline=None, max_examples=150)
@given(forests(), ROWS)
def test_a_score_is_the_sum_of_one_leaf_of_each_tree(trees: Trees, rows: list[list[int]]) -> None:
    features = np.array(rows, np.int32).reshape(-1, FEATURES)
    assert score(features, check_trees(trees, FEATURES)).tolist() == [walked(row, trees) for row in rows]


def small() -> dict[str, NDArray[np.int64] | NDArray[np.int32]]:
    words = np.concatenate(
        [
            pack(np.array([3, 0]), np.array([80, 12]), np.array([1, -1]), np.array([-3, -2])),
            pack(np.array([1]), np.array([0]), np.array([-1]), np.array([-2])),
        ]
    )
    return {
        "words": words,
        "nodes": np.array([0, 2, 3]),
        "values": np.array([1, 2, 3, 4, 5], np.int32),
        "leaves": np.array([0, 3, 5]),
    }


def packed(*node: int) -> int:
    return int(pack(*(np.array([part]) for part in node))[0])


# part of a model, and what stands there instead
BROKEN = {
    "a feature that is not there": ("words", [packed(FEATURES, 80, 1, -3), None, None]),
    "a negative feature": ("words", [packed(-1, 80, 1, -3), None, None]),
    "a node of another tree": ("words", [packed(3, 80, 2, -3), None, None]),
    "a node that is its own child": ("words", [packed(3, 80, 0, -3), None, None]),
    "a child before its node": ("words", [None, packed(0, 12, -1, 0), None]),
    "a leaf of another tree": ("words", [None, packed(0, 12, -1, -4), None]),
    "a leaf beyond the last": ("words", [None, None, packed(1, 0, -1, -3)]),
    "a node too few": ("words", [None, None]),
    "a node too many": ("words", [None, None, None, 0]),
    "a tree without nodes": ("nodes", [0, 0, 3]),
    "nodes from one on": ("nodes", [1, 2, 3]),
    "nodes that go back": ("nodes", [0, 4, 3]),
    "trees without leaves": ("leaves", [0, 5, 5]),
    "leaves from one on": ("leaves", [1, 3, 5]),
    "leaves that go back": ("leaves", [0, 6, 5]),
    "leaves of fewer trees": ("leaves", [0, 5]),
    "leaves of more trees": ("leaves", [0, 3, 4, 5]),
    "no offsets": ("nodes", []),
    "no offsets of leaves": ("leaves", []),
    "a value too few": ("values", [1, 2, 3, 4]),
    "a value too many": ("values", [1, 2, 3, 4, 5, 6]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_model_of_which_a_walk_could_get_lost_is_refused(name: str) -> None:
    check_trees(Trees(**small()), FEATURES)  # type: ignore[arg-type]
    part, values = BROKEN[name]
    whole = small()
    kept = [int(whole[part][at]) if value is None else value for at, value in enumerate(values)]
    whole[part] = np.array(kept, whole[part].dtype)
    with pytest.raises(ValueError, match="trees that ask for a node, a leaf or a feature"):
        check_trees(Trees(**whole), FEATURES)  # type: ignore[arg-type]


@pytest.mark.parametrize(("part", "dtype"), [("words", np.int32), ("values", np.int64), ("nodes", np.int32)])
def test_a_model_of_other_types_is_refused(part: str, dtype: type[np.generic]) -> None:
    whole = small()
    whole[part] = whole[part].astype(dtype)
    with pytest.raises(ValueError, match="trees that ask for"):
        check_trees(Trees(**whole), FEATURES)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=300)
@given(forests(), st.data())
def test_a_model_with_a_number_changed_is_refused_or_still_scores(trees: Trees, data: st.DataObject) -> None:
    """No walk of what passes leaves its arrays: the slow twin would raise."""
    part = data.draw(st.sampled_from(Trees._fields))
    values = getattr(trees, part).copy()
    at = data.draw(st.integers(0, len(values) - 1))
    width = 32 if values.dtype == np.int32 else 64
    if part in ("nodes", "leaves"):
        values[at] += data.draw(st.integers(-3, 3))
    else:
        values[at] ^= np.array(1 << data.draw(st.integers(0, width - 2)), values.dtype)
    broken = trees._replace(**{part: values})
    try:
        checked = check_trees(broken, FEATURES)
    except ValueError:
        return
    rows = [[0] * FEATURES, [4000] * FEATURES, [-4000] * FEATURES]
    assert score(np.array(rows, np.int32), checked).tolist() == [walked(row, checked) for row in rows]

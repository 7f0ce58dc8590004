"""Batches cut anew: the same groups however the sequences came."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.formats.ids import Sequences, regroup


def batches_of(lengths: list[int], cuts: list[int]) -> list[Sequences]:
    bounds = sorted({0, len(lengths), *(cut % (len(lengths) + 1) for cut in cuts)})
    ids = np.arange(sum(lengths))
    begins = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    return [
        Sequences(
            ids[begins[start] : begins[stop]],
            np.array(lengths[start:stop], np.int64),
            [f"d{n}" for n in range(start, stop)],
        )
        for start, stop in itertools.pairwise(bounds)
    ]


def groups_slowly(lengths: list[int], max_sequences: int, max_tokens: int) -> list[list[int]]:
    groups: list[list[int]] = [[]]
    for number, length in enumerate(lengths):
        held = sum(lengths[other] for other in groups[-1])
        if len(groups[-1]) == max_sequences or (held and held + length > max_tokens):
            groups.append([])
        groups[-1].append(number)
    return [group for group in groups if group]


@given(
    lengths=st.lists(st.integers(0, 9), max_size=20),
    cuts=st.lists(st.integers(0, 99), max_size=6),
    max_sequences=st.integers(1, 6),
    max_tokens=st.integers(1, 20),
)
@settings(deadline=None, max_examples=300)
def test_groups_depend_on_the_sequences_alone(lengths, cuts, max_sequences, max_tokens):
    found = list(
        regroup(batches_of(lengths, cuts), max_sequences=max_sequences, max_tokens=max_tokens, where="x")
    )
    groups = groups_slowly(lengths, max_sequences, max_tokens)
    assert [group.lengths.tolist() for group in found] == [[lengths[n] for n in group] for group in groups]
    assert [group.doc_ids for group in found] == [[f"d{n}" for n in group] for group in groups]
    assert [id for group in found for id in group.ids.tolist()] == list(range(sum(lengths)))
    assert all(group.ids.dtype == np.int32 and group.lengths.dtype == np.int64 for group in found)

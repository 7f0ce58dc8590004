"""Candidate pairs against the promise, spelled out in plain Python."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from duplicates.pairs_in_memory import all_pairs
from plain import near as slow
from tokmill.duplicates.near import LEADERS, NEIGHBOURS, Pairs, read_pairs, unique_pairs
from tokmill.duplicates.shingling import partition_of
from tokmill.kernels.minhash import repeated

QUICK = settings(deadline=None, max_examples=200)
KEYS = st.sampled_from([0, 1, 2, 3, 2**63, 2**64 - 1])
# (key, rank, digest); the document is the row's number.
ROWS = st.lists(st.tuples(KEYS, st.integers(0, 5), st.integers(0, 4)), max_size=40)


def found_pairs(rows: list[tuple[int, int, int]], docs: list[int], **limits: int) -> list[tuple[int, int]]:
    keys, digests = (np.array([row[part] for row in rows], np.uint64) for part in (0, 2))
    ranks = np.array([row[1] for row in rows], np.int64)
    found = all_pairs(keys, np.array(docs, np.int64), digests=digests, ranks=ranks, **limits)
    return list(zip(found.a.tolist(), found.b.tolist(), strict=True))


@QUICK
@given(ROWS, st.integers(0, 3), st.integers(0, 3), st.randoms(use_true_random=False))
def test_pairs_are_those_promised_each_once_and_in_keep_order(
    rows: list[tuple[int, int, int]], leaders: int, neighbours: int, shuffler: object
) -> None:
    docs = list(range(len(rows)))
    found = found_pairs(rows, docs, leaders=leaders, neighbours=neighbours)
    assert len(set(found)) == len(found)
    twin = [(key, rank, doc, digest) for doc, (key, rank, digest) in zip(docs, rows, strict=True)]
    assert set(found) == slow.bucket_pairs(twin, leaders, neighbours)
    assert all((rows[a][1], a) < (rows[b][1], b) for a, b in found)
    shuffler.shuffle(docs)  # type: ignore[attr-defined]
    assert sorted(found) == sorted(
        found_pairs([rows[doc] for doc in docs], docs, leaders=leaders, neighbours=neighbours)
    )


@QUICK
@given(ROWS, st.integers(1, 7))
def test_pairs_do_not_depend_on_the_number_of_partitions(
    rows: list[tuple[int, int, int]], partitions: int
) -> None:
    home = partition_of(np.array([row[0] for row in rows], np.uint64), partitions).tolist()
    found = []
    for partition in range(partitions):
        docs = [doc for doc in range(len(rows)) if home[doc] == partition]
        found += found_pairs([rows[doc] for doc in docs], docs)
    assert sorted(found) == sorted(found_pairs(rows, list(range(len(rows)))))


@QUICK
@given(ROWS, st.integers(0, 3), st.integers(1, 9))
def test_pairs_come_some_at_a_time_and_are_the_same(
    rows: list[tuple[int, int, int]], leaders: int, most: int
) -> None:
    keys, digests = (np.array([row[part] for row in rows], np.uint64) for part in (0, 2))
    ranks, docs = np.array([row[1] for row in rows], np.int64), np.arange(len(rows))
    parts = list(read_pairs(keys, docs, digests=digests, ranks=ranks, leaders=leaders, most=most))
    found = [pair for part in parts for pair in zip(*(ends.tolist() for ends in part), strict=True)]
    assert found == found_pairs(rows, docs.tolist(), leaders=leaders)
    assert all(len(part.a) <= max(most, leaders + NEIGHBOURS + 1) for part in parts)


def test_a_bucket_of_few_different_documents_is_compared_in_full() -> None:
    count = LEADERS + NEIGHBOURS + 1
    found = all_pairs(np.full(count, 9, np.uint64), np.arange(count))
    assert len(found.a) == count * (count - 1) // 2


def test_a_huge_bucket_costs_a_bounded_number_of_pairs_per_document() -> None:
    count = 100_000
    keys, docs = np.full(count, 7, np.uint64), np.arange(count)
    found = all_pairs(keys, docs)
    assert len(found.a) <= (LEADERS + NEIGHBOURS + 1) * count
    assert np.array_equal(np.unique(found.b), docs[1:]), "everyone but the first meets someone before it"
    equal = all_pairs(keys, docs, digests=np.full(count, 5, np.uint64))
    assert equal.a.tolist() == [0] * (count - 1)
    assert equal.b.tolist() == docs[1:].tolist()


def test_an_equal_document_meets_all_that_the_first_of_its_equals_meets() -> None:
    """Else it would survive when that first is dropped for a third."""
    keys = np.full(60, 7, np.uint64)
    digests = np.array([*range(1, 51), *([31] * 10)], np.uint64)
    found = all_pairs(keys, np.arange(60), digests=digests)
    met = {doc: set(found.a[found.b == doc].tolist()) for doc in range(60)}
    assert all(met[doc] == met[30] | {30} for doc in range(50, 60))


@QUICK
@given(st.lists(KEYS | st.integers(0, 2**64 - 1), max_size=60))
def test_repeated_keys_are_marked(keys: list[int]) -> None:
    assert repeated(np.array(keys, np.uint64)).tolist() == [key != 0 and keys.count(key) > 1 for key in keys]


@QUICK
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=30))
def test_unique_pairs_are_sorted_and_each_is_there_once(pairs: list[tuple[int, int]]) -> None:
    a, b = (np.array([pair[end] for pair in pairs], np.int64) for end in (0, 1))
    found: Pairs = unique_pairs(a, b)
    assert list(zip(found.a.tolist(), found.b.tolist(), strict=True)) == sorted(set(pairs))

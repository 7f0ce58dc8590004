"""Indexes of ids and places, against lists that are searched from end to end."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokmill.errors import CorruptFile, StorageError
from tokmill.formats.index import (
    RowSpans,
    find_id,
    find_places,
    hash_id,
    map_ids,
    map_places,
    write_ids,
    write_places,
)

HASHES = st.lists(
    st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 7, 2**63, 2**64 - 1])), max_size=60
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(hashes=HASHES)
def test_a_hash_finds_every_row_that_has_it(tmp_path: Path, hashes: list[int]) -> None:
    path = tmp_path / "ids.npy"
    write_ids(path, np.array(hashes, np.uint64))
    for wanted in {*hashes, 0, 5, 2**64 - 1}:
        rows = [row for row, own in enumerate(hashes) if own == wanted]
        assert find_id(path, len(hashes), wanted) == rows
    assert np.load(path).tolist() == map_ids(path, len(hashes)).tolist()


@pytest.mark.parametrize("count", [10_000, 70_000])
def test_many_even_and_uneven_hashes_are_found(tmp_path: Path, count: int) -> None:
    """Even ones lie where they are expected; those of a liar do not, and are found too."""
    path = tmp_path / "ids.npy"
    even = np.array([hash_id(f"doc-{n}") for n in range(count)], np.uint64)
    uneven = np.arange(count, dtype=np.uint64) // np.uint64(3)
    for hashes in (even, uneven):
        write_ids(path, hashes)
        for row in range(0, count, 997):
            expected = np.flatnonzero(hashes == hashes[row]).tolist()
            assert find_id(path, count, int(hashes[row])) == expected
        assert find_id(path, count, 2**64 - 2) == []


def test_rows_may_be_some_of_many_and_a_hash_is_that_of_the_split(tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    write_ids(path, np.array([9, 3, 9], np.uint64), np.array([10, 20, 30]))
    assert (find_id(path, 3, 9), find_id(path, 3, 3)) == ([10, 30], [20])
    assert hash_id("é") == int.from_bytes(hashlib.sha256("é".encode()).digest()[:8], "big")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), unique=True, max_size=30))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_document_has_its_meetings_in_order(tmp_path: Path, meetings: list[tuple[int, int]]) -> None:
    path = tmp_path / "places.npy"
    document, offset = (np.array([pair[at] for pair in meetings], np.int64) for at in (0, 1))
    spans = RowSpans(np.arange(len(meetings)), document, offset * 2, offset * 2 + 1, offset)
    write_places(path, len(meetings), [spans])
    for number in range(7):
        found = find_places(path, len(meetings), number)
        expected = sorted((own, row) for row, (doc, own) in enumerate(meetings) if doc == number)
        assert list(zip(found.offset.tolist(), found.row.tolist(), strict=True)) == expected
        assert found.end.tolist() == [own * 2 + 1 for own, _ in expected]
    assert sorted(map_places(path, len(meetings)).document.tolist()) == sorted(document.tolist())


def test_an_index_that_is_cut_missing_or_of_another_shard_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    write_ids(path, np.arange(50, dtype=np.uint64) << np.uint64(58))
    with pytest.raises(CorruptFile, match="is not an index of 49 entries"):
        find_id(path, 49, 3)
    with pytest.raises(CorruptFile, match="is not an index of 49 entries"):
        map_ids(path, 49)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CorruptFile, match="is not an index of 50 entries"):
        find_id(path, 50, int(np.uint64(49) << np.uint64(58)))
    with pytest.raises(CorruptFile, match="is not an index of 50 entries"):
        map_ids(path, 50)
    for read in (lambda: find_id(tmp_path / "no.npy", 3, 1), lambda: map_ids(tmp_path / "no.npy", 3)):
        with pytest.raises(StorageError, match="no such file"):
            read()

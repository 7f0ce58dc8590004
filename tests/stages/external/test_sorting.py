"""Tables sorted through the disk: against `sorted`, and as to what is left behind and what is held."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.errors import DiskFull
from tokmill.stages.external import sorting
from tokmill.stages.external.sorting import open_scratch_file, sort_tables


def tables_of(numbers: list[int], cut: int) -> list[pa.Table]:
    """A name that tells the number, so that rows which come apart show."""
    whole = pa.table(
        [pa.array(numbers, pa.uint64()), pa.array([f"n{number}" for number in numbers], pa.string())],
        names=["number", "name"],
    )
    return [whole.slice(first, cut) for first in range(0, len(numbers), cut)]


@given(
    numbers=st.lists(st.integers(0, (1 << 64) - 1), unique=True, max_size=80),
    cut=st.integers(1, 30),
    run=st.integers(1, 20),
    memory=st.integers(1, 40),
)
@settings(deadline=None, max_examples=150)
def test_tables_come_in_order_for_any_run_batch_and_cut(tmp_path_factory, numbers, cut, run, memory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorting, "_RUN_ROWS", run)
        patch.setattr(sorting, "_MIN_BATCH_ROWS", 1)
        found = list(
            sort_tables(
                tables_of(numbers, cut), "number", len(numbers), tmp_path_factory.getbasetemp(), memory
            )
        )
    rows = [row for table in found for row in zip(*table.to_pydict().values(), strict=True)]
    assert rows == [(number, f"n{number}") for number in sorted(numbers)]


def test_what_is_held_does_not_grow_with_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in memory at any time: those of a run while it is made, then two batches of each run."""
    monkeypatch.setattr(sorting, "_RUN_ROWS", 1000)
    monkeypatch.setattr(sorting, "_MIN_BATCH_ROWS", 1)
    draw = np.random.default_rng(1)
    for count in (4_000, 32_000):
        numbers = draw.permutation(count).tolist()
        found = [
            table.num_rows for table in sort_tables(tables_of(numbers, 100), "number", count, tmp_path, 400)
        ]
        assert sum(found) == count
        assert max(found) <= 400
        assert len(found) <= 6 * count / 400, "and a round is worth its while"


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_scratch_has_no_name_and_is_gone_when_nobody_reads_on(tmp_path: Path) -> None:
    merged = sort_tables(tables_of(list(range(5000)), 1000), "number", 5000, tmp_path, 100)
    assert next(merged).num_rows
    assert list(tmp_path.iterdir()) == [], "a kill leaves nothing"
    assert is_open_in(tmp_path)
    merged.close()
    assert not is_open_in(tmp_path)


def is_open_in(directory: Path) -> bool:
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return any(str(link.readlink()).startswith(str(directory)) for link in links)


def test_a_full_disk_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with open_scratch_file(tmp_path) as scratch, pytest.raises(DiskFull, match="no space left"):
        scratch.append(b"rows")

"""Runs, drawers and appended tables: what is read in parts is what was written as a whole."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.artifacts.step import Task
from tokmill.duplicates.shingling import partition_of
from tokmill.errors import CorruptFile
from tokmill.stages.external import runs as runs_module
from tokmill.stages.external.appended import open_table, read_tables
from tokmill.stages.external.drawers import Drawers, open_scratch
from tokmill.stages.external.runs import (
    Run,
    by_hash,
    hash_pairs,
    hash_range,
    joined,
    load_partition,
    partitions_for,
    read_in_order,
    write_run,
)
from tokmill.storage.digests import table_sha256
from tokmill.storage.tables import load_range, load_table

LAYOUT = {"key": "<u8", "number": "<u4", "values": ("<u4", (3,)), "is_sure": "|b1"}


def task_in(directory: Path, key: str = "t") -> Task:
    return Task(function="", key=key, options={}, inputs=[], directory=str(directory))


def write(directory: Path, name: str, columns: list[Any], layout: Any) -> Run:
    entry = write_run(task_in(directory, name), "run", columns, layout)
    return Run(directory / entry.path, entry.rows, layout)


@pytest.mark.parametrize("count", [0, 1, 3, 1000])
def test_partitions_of_any_number_hold_every_row_once(tmp_path: Path, count: int) -> None:
    draw = np.random.Generator(np.random.PCG64(count))
    found, written = [], []
    for shard in range(3):
        keys = draw.integers(0, 2**64, count, np.uint64, endpoint=False)
        keys = keys[by_hash(keys)]
        columns = [
            keys,
            np.arange(count, dtype=np.uint32),
            draw.integers(0, 9, (count, 3), np.uint32),
            keys % 2 == 0,
        ]
        written.append(columns)
        found.append(write(tmp_path, f"{shard}", columns, LAYOUT))
    for partitions in (1, 2, 3, 7, 100):
        parts = [joined(load_partition(found, part, partitions), LAYOUT) for part in range(partitions)]
        assert sum(len(part[0]) for part in parts) == 3 * count
        rows = sorted(
            (int(key), int(number), values.tolist(), bool(sure))
            for part in parts
            for key, number, values, sure in zip(*part, strict=True)
        )
        assert rows == sorted(
            (int(key), int(number), values.tolist(), bool(sure))
            for columns in written
            for key, number, values, sure in zip(*columns, strict=True)
        )
        for part, (keys, *_) in enumerate(parts):
            low, high = hash_range(part, partitions)
            assert all(low <= key < high for key in keys.tolist())


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=20), st.integers(1, 4096))
def test_ranges_of_32_bits_are_the_partitions_of_exact_hashes(hashes: list[int], partitions: int) -> None:
    home = partition_of(np.array(hashes, np.uint64), partitions).tolist()
    for value, partition in zip(hashes, home, strict=True):
        low, high = hash_range(partition, partitions, 32)
        assert low <= value < high


def test_there_are_as_many_partitions_as_rows_call_for() -> None:
    assert partitions_for(0, 100, 4) == 4
    assert partitions_for(401, 100, 4) == 5
    assert partitions_for(10**12, 100, 4) == runs_module.MAX_PARTITIONS


def test_pairs_of_numbers_are_spread_evenly() -> None:
    """Also those that share their first: the followers of one document are not all in one partition."""
    for a, b in (
        (np.zeros(100_000, np.int64), np.arange(100_000)),
        (np.arange(100_000), np.arange(1, 100_001)),
        (np.arange(100_000) * 4096, np.full(100_000, 7)),
    ):
        counts = np.bincount(partition_of(hash_pairs(a, b), 16).astype(np.int64), minlength=16)
        assert counts.min() > 0.8 * 100_000 / 16
        assert counts.max() < 1.2 * 100_000 / 16


ORDERED = {"rank": "<i8", "number": "<i8", "value": "<i8"}
rows = st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 12), st.integers(0, 9)), max_size=40)


@settings(deadline=None, max_examples=150)
@given(st.lists(rows, max_size=5), st.integers(1, 30))
def test_runs_are_read_in_one_order_with_all_of_a_document_together(
    tmp_path_factory: pytest.TempPathFactory, given_runs: list[list[tuple[int, int, int]]], size: int
) -> None:
    directory = tmp_path_factory.mktemp("runs")
    found, everything = [], []
    for number, own in enumerate(given_runs):
        own.sort()
        everything += own
        columns = list(np.array(own, np.int64).reshape(-1, 3).T)
        found.append(write(directory, f"{number}", columns, ORDERED))
    pieces = [
        list(zip(*(column.tolist() for column in piece), strict=True))
        for piece in read_in_order(found, "rank", "number", size)
    ]
    documents = [{row[:2] for row in piece} for piece in pieces]
    assert sum(map(len, documents)) == len({row[:2] for row in everything}), "one is in two pieces"
    flat = [row for piece in pieces for row in piece]
    assert [row[:2] for row in flat] == sorted(row[:2] for row in everything)
    assert sorted(flat) == sorted(everything)


def test_pieces_are_of_about_the_size_asked_for(tmp_path: Path) -> None:
    found = []
    for shard in range(4):
        numbers = np.arange(shard, 40_000, 4)
        ranks = (numbers * 7) % 5
        order = np.lexsort((numbers, ranks))
        found.append(write(tmp_path, f"{shard}", [ranks[order], numbers[order], numbers[order]], ORDERED))
    sizes = [len(piece[0]) for piece in read_in_order(found, "rank", "number", 1000)]
    assert sum(sizes) == 40_000
    assert max(sizes) <= 1500


def test_a_run_that_was_cut_short_is_an_error_that_names_it(tmp_path: Path) -> None:
    run = write(tmp_path, "short", [np.arange(9, dtype=np.uint64)], {"key": "<u8"})
    (tmp_path / "run-short.bin").write_bytes((tmp_path / "run-short.bin").read_bytes()[:-8])
    for act in (lambda: run.read(0, 9), lambda: run.find((3,)), lambda: run.take(np.array([1]), ["key"])):
        with pytest.raises(CorruptFile, match=r"run-short\.bin: is not 72 bytes long"):
            act()


def test_drawers_give_back_what_was_put_into_them_and_go_with_the_block(tmp_path: Path) -> None:
    chance = random.Random(1)
    expected: dict[int, list[tuple[int, float]]] = {}
    with open_scratch(task_in(tmp_path)) as scratch:
        drawers = Drawers(scratch, "rows", [("number", "<i8"), ("value", "<f8")])
        for start in range(0, 100, 10):
            homes = [chance.randrange(4) for _ in range(10)]
            drawers.put(np.array(homes), np.arange(start, start + 10), np.arange(10) / 2)
            for place, home in enumerate(homes):
                expected.setdefault(home, []).append((start + place, place / 2))
        drawers.put(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
        for home in range(5):
            assert drawers.load(home).tolist() == expected.get(home, [])
            assert [row for part in drawers.read(home) for row in part.tolist()] == expected.get(home, [])
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_is_appended_to_is_one_table(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("shard", pa.uint32()), pa.field("survivor_shard", pa.string())])
    numbers = np.repeat(np.arange(9), 30_000).astype(np.uint32)
    whole = pa.table([numbers, [f"web/{number}" for number in numbers.tolist()]], schema=schema)
    with open_table(task_in(tmp_path), "long.parquet", "long", schema, by="shard") as table:
        for start in range(0, len(numbers), 100_000):
            table.append(whole.slice(start, 100_000))
    assert (table.entry.rows, table.entry.content_sha256) == (len(numbers), table_sha256(whole))
    assert table.entry.bytes == (tmp_path / "long.parquet").stat().st_size
    assert load_table(tmp_path / "long.parquet").equals(whole)
    assert load_range(tmp_path / "long.parquet", "shard", 4).equals(whole.slice(120_000, 30_000))
    parts = list(read_tables(tmp_path / "long.parquet", ["shard"]))
    assert max(part.num_rows for part in parts) <= 65536
    assert pa.concat_tables(parts).column("shard").to_pylist() == numbers.tolist()
    with open_table(task_in(tmp_path), "empty.parquet", "long", schema, by="shard") as nothing:
        pass
    assert (nothing.entry.rows, load_table(tmp_path / "empty.parquet").num_rows) == (0, 0)


def test_a_table_whose_writer_fails_is_not_there(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("shard", pa.uint32())])

    def write_half() -> None:
        with open_table(task_in(tmp_path), "half.parquet", "long", schema, by="shard") as half:
            half.append(pa.table([np.arange(9, dtype=np.uint32)], schema=schema))
            half.append(pa.table([[1, 2]], names=["shard"]))

    with pytest.raises(ValueError, match="schema"):
        write_half()
    assert not (tmp_path / "half.parquet").exists()


def test_a_damaged_table_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 not PAR1")
    with pytest.raises(CorruptFile, match=r"bad\.parquet: cannot be read as Parquet"):
        list(read_tables(tmp_path / "bad.parquet", ["shard"]))

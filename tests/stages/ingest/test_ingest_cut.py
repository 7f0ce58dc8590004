"""Cutting a stream of documents into shards."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokmill
from tokmill.stages.ingest.shards import cut_shards
from written import load_tables

TEXTS = st.lists(st.text("ab é日", max_size=8), max_size=8)


def table(texts: list[str], first: int, margin: int, pieces: int) -> pa.Table:
    """Rows in one or several chunks, sliced out of a longer table, as readers give them."""
    around = ["outside"] * margin
    column = pa.array([*around, *texts, *around], pa.large_string()).slice(margin, len(texts))
    size = max(1, -(-len(texts) // pieces))
    chunks = [column.slice(start, size) for start in range(0, len(texts), size)]
    numbers = pa.array(range(first, first + len(texts)), pa.int64())
    return pa.table({"text": pa.chunked_array(chunks, pa.large_string()), "number": numbers})


def shards_of(texts: list[str]) -> list[list[str]]:
    """As a run writes them, with a megabyte to a shard."""
    data = [{"text": text} for text in texts]
    recipe = {"name": "r", "sources": [{"name": "s", "data": data}], "shards": {"megabytes": 1}}
    with tempfile.TemporaryDirectory() as place:
        out = tokmill.run(recipe, Path(place) / "out", workers=1, until="ingest").out / "ingest/s"
        return [shard.column("text").to_pylist() for shard in load_tables(out, "documents")]


def sizes(shard: pa.Table) -> list[int]:
    return [len(text.encode()) for text in shard.column("text").to_pylist()]


def cut(batches: list[list[str]], shard_bytes: int, margin: int = 0, pieces: int = 1) -> list[pa.Table]:
    tables, first = [], 0
    for batch in batches:
        tables.append(table(batch, first, margin, pieces))
        first += len(batch)
    return list(cut_shards(iter(tables), shard_bytes))


@settings(deadline=None, max_examples=300)
@given(st.lists(TEXTS, max_size=5), st.integers(1, 40), st.integers(0, 2), st.integers(1, 3))
def test_rows_stay_in_order_and_every_shard_but_the_last_is_just_large_enough(
    batches: list[list[str]], shard_bytes: int, margin: int, pieces: int
) -> None:
    shards = cut(batches, shard_bytes, margin, pieces)
    flat = [text for batch in batches for text in batch]
    assert [text for shard in shards for text in shard.column("text").to_pylist()] == flat
    assert [number for shard in shards for number in shard.column("number").to_pylist()] == list(
        range(len(flat))
    )
    assert all(shard.num_rows for shard in shards)
    for shard in shards[:-1]:
        assert sum(sizes(shard)) >= shard_bytes
    for shard in shards:
        assert sum(sizes(shard)[:-1]) < shard_bytes, "the row before the last was enough"


@settings(deadline=None, max_examples=150)
@given(TEXTS, st.integers(1, 40), st.data())
def test_the_shards_depend_on_the_rows_and_not_on_the_batches_they_come_in(
    texts: list[str], shard_bytes: int, data: st.DataObject
) -> None:
    ends = sorted(data.draw(st.lists(st.integers(0, len(texts)), max_size=4)))
    batches = [texts[start:end] for start, end in zip([0, *ends], [*ends, len(texts)], strict=True)]
    whole = [shard.to_pylist() for shard in cut([texts], shard_bytes)]
    assert [shard.to_pylist() for shard in cut(batches, shard_bytes)] == whole


def test_a_document_larger_than_a_shard_is_one_shard_whole() -> None:
    long = "b" * 3_000_000
    assert shards_of(["a", long, "c"]) == [["a", long], ["c"]]


def test_documents_without_text_are_not_lost() -> None:
    assert shards_of(["", "", "", ""]) == [["", "", "", ""]]


@pytest.mark.parametrize("batches", [[], [[]], [[], [], []]])
def test_nothing_makes_no_shard(batches: list[list[str]]) -> None:
    assert cut(batches, 10) == []

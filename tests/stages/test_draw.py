"""Samples are uniform, repeatable, and know nothing of chunks and workers."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import tokmill
from tokmill.stages.sampling import bottom_k, draws, shuffle_buffer, weighted_keys
from written import load_tables


def documents(count: int) -> pa.Table:
    return pa.table(
        {
            "doc_id": pa.array([f"d{n}" for n in range(count)], pa.string()),
            "text": pa.array([f"text {n}" for n in range(count)], pa.large_string()),
        }
    )


def chi_square(observed: np.ndarray, expected: np.ndarray) -> float:
    return float(((observed - expected) ** 2 / expected).sum())


def test_every_document_is_taken_equally_often_over_many_seeds() -> None:
    table, seeds, k = documents(200), 2000, 20
    taken = np.zeros(200)
    for seed in range(seeds):
        taken[bottom_k(draws(table, seed), k)] += 1
    # inclusion counts are negatively correlated: the statistic has mean (1 - k/n) * n and df 199
    statistic = chi_square(taken, np.full(200, seeds * k / 200)) / (1 - k / 200)
    assert 130 < statistic < 285  # 0.9999 interval of chi-square with 199 degrees of freedom


def test_pairs_of_documents_are_taken_together_as_often_as_chance_has_it() -> None:
    table, seeds = documents(50), 4000
    together = sum({0, 49} <= set(bottom_k(draws(table, seed), 10).tolist()) for seed in range(seeds))
    expected = seeds * (10 / 50) * (9 / 49)
    assert abs(together - expected) < 5 * expected**0.5


def test_weights_are_respected() -> None:
    table, seeds = documents(100), 3000
    weights = np.where(np.arange(100) < 50, 3.0, 1.0)
    first = [bottom_k(weighted_keys(draws(table, seed), weights), 1)[0] < 50 for seed in range(seeds)]
    assert abs(np.mean(first) - 0.75) < 5 * (0.75 * 0.25 / seeds) ** 0.5
    nothing = bottom_k(weighted_keys(draws(table, 1), np.where(np.arange(100) < 50, 0.0, 1.0)), 50)
    assert nothing.tolist() == list(range(50, 100))


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 60),
    st.integers(0, 20),
    st.integers(0, 2**63 - 1),
    st.lists(st.integers(0, 60), max_size=5),
)
def test_a_sample_of_samples_of_chunks_is_the_sample_of_the_whole(
    count: int, k: int, seed: int, cuts: list[int]
) -> None:
    table = documents(count)
    keys = draws(table, seed)
    bounds = sorted({0, count, *(cut for cut in cuts if cut < count)})
    candidates = np.concatenate(
        [
            start + bottom_k(draws(table.slice(start, end - start), seed), k)
            for start, end in itertools.pairwise(bounds)
        ]
    )
    assert candidates[bottom_k(keys[candidates], k)].tolist() == bottom_k(keys, k).tolist()


def sampled(count: int, seed: int, **sample: Any) -> list[int]:
    """The documents, of so many, that a run takes of a source, in its order."""
    data = [{"id": str(number), "text": f"text {number}"} for number in range(count)]
    recipe = {"name": "r", "seed": seed, "sources": [{"name": "s", "data": data, "sample": sample}]}
    with tempfile.TemporaryDirectory() as place:
        out = tokmill.run(recipe, Path(place) / "out", workers=1, until="ingest").out / "ingest/s"
        return [int(id) for part in load_tables(out, "documents") for id in part.column("doc_id").to_pylist()]


def test_a_hash_sample_does_not_change_when_the_source_grows() -> None:
    before = sampled(1000, 7, method="hash", fraction="0.3")
    after = sampled(5000, 7, method="hash", fraction="0.3")
    assert before == [number for number in after if number < 1000]
    assert abs(len(after) / 5000 - 0.3) < 5 * (0.21 / 5000) ** 0.5
    assert after != sampled(5000, 8, method="hash", fraction="0.3")
    assert sampled(1000, 7, method="hash", fraction="1") == list(range(1000))
    assert sampled(1000, 7, method="hash", fraction="0") == []


def test_a_shuffle_buffer_looks_no_further_than_it_reaches() -> None:
    asked: dict[str, Any] = {"method": "shuffle_buffer", "k": 100, "buffer": 50}
    taken = sampled(10_000, 3, **asked)
    assert len(set(taken)) == len(taken) == 100
    assert 100 <= max(taken) < 100 + 50 - 1
    assert taken == sampled(149, 3, **asked)
    assert taken != sampled(10_000, 4, **asked)
    assert sampled(7, 3, **asked) == list(range(7))
    assert sampled(100, 3, method="shuffle_buffer", k=10, buffer=1) == list(range(10))  # of one: the head


def test_a_shuffle_buffer_as_large_as_the_stream_is_a_uniform_sample() -> None:
    seeds, taken = 2000, np.zeros(200)
    for seed in range(seeds):
        taken[shuffle_buffer(200, 20, 200, seed)] += 1
    statistic = chi_square(taken, np.full(200, seeds * 20 / 200)) / (1 - 20 / 200)
    assert 130 < statistic < 285  # 0.9999 interval of chi-square with 199 degrees of freedom

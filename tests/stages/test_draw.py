"""Samples are uniform, repeatable, and know nothing of chunks and workers."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import tempfile
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokmill
from tokmill.errors import RecipeError
from tokmill.stages.sampling import below_fraction, bottom_k, draws, shuffle_buffer, weighted_keys
from written import load_manifest, load_tables


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


def side_of(id: str) -> float:
    """From 0 to 1: below `valid_fraction` a document is held out by its id."""
    return int.from_bytes(hashlib.sha256(id.encode()).digest()[:8]) / 2**64


def test_a_hash_sample_has_its_share_of_what_is_held_out_whatever_the_seed() -> None:
    ids = [f"doc-{number}" for number in range(4000)]
    sides, column = np.array([side_of(id) for id in ids]), pa.array(ids)
    for fraction, valid in itertools.product(("0.01", "0.1", "0.5"), (0.01, 0.1)):
        is_held_out, statistic = sides < valid, 0.0
        for seed in range(51):
            is_taken = below_fraction(column, Decimal(fraction), seed)
            assert abs(is_taken.sum() - 4000 * float(fraction)) < 5 * (4000 * float(fraction)) ** 0.5
            expected = is_taken.sum() * is_held_out.mean()
            statistic += (is_held_out[is_taken].sum() - expected) ** 2 / expected
        # about 51, and of so few as 0.4 expected at most 3 for each standard deviation of chi-square
        assert statistic < 150, (fraction, valid, statistic)


def test_a_sampled_source_is_trained_on_and_held_out_like_any_other(tmp_path: Path) -> None:
    # two documents of each id, of which one goes where the other does
    lines = [
        json.dumps({"id": f"doc-{number // 2}", "text": f"document {number} of its own"})
        for number in range(8000)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    drawn = tokmill.sample(
        [str(tmp_path / "a.jsonl")], tmp_path / "b.jsonl", method="hash", fraction="0.1", workers=1
    )
    sample = {"method": "hash", "fraction": "0.1"}
    recipe = {
        "name": "r",
        "sources": [{"name": "a", "files": str(tmp_path / "a.jsonl"), "sample": sample}],
        "split": {"method": "hash", "valid_fraction": "0.2"},
    }
    out = tokmill.run(recipe, tmp_path / "out", workers=1, until="split").out
    ids = [id for part in load_tables(out / "ingest/a", "documents") for id in part["doc_id"].to_pylist()]
    assert set(Counter(ids).values()) == {2}
    labels = [label for part in load_tables(out / "split", "labels") for label in part["split"].to_pylist()]
    assert abs(labels.count(1) / len(ids) - 0.2) < 5 * (0.16 / (len(ids) / 2)) ** 0.5
    assert labels.count(0) + labels.count(1) == len(ids)
    # the verb draws as the recipe does
    assert [json.loads(line)["doc_id"] for line in drawn.path.read_text().splitlines()] == ids


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


@pytest.mark.parametrize("method", ["reservoir", "weighted"])
def test_a_distinct_sample_has_no_copies_wherever_files_are_cut(tmp_path: Path, method: str) -> None:
    """And draws the same documents of a source that had no copies from the start."""
    spellings = ("text number {}", "Text  Number {}", "\u00a0text number {}\n", "text number\0 {}")
    records = [
        {"id": f"{copy}-{n}", "text": spelling.format(n), "w": 1 + n % 3}
        for copy, spelling in enumerate(spellings)
        for n in range(copy * 10, 60)
    ]
    sample: dict[str, Any] = {"method": method, "k": 40, "distinct": True}
    fields: dict[str, Any] = {"id": "id"}
    if method == "weighted":
        sample["weight"], fields["meta"] = "w", ["w"]
    drawn = []
    for name, cuts in (("whole", []), ("cut", [15, 75, 130]), ("first", [])):
        (tmp_path / name).mkdir()
        lines = records[:60] if name == "first" else records
        for number, (start, stop) in enumerate(itertools.pairwise([0, *cuts, len(lines)])):
            part = "".join(json.dumps(record) + "\n" for record in lines[start:stop])
            (tmp_path / name / f"{number}.jsonl").write_text(part)
        source = {"name": "s", "files": f"{name}/*.jsonl", "fields": fields, "sample": sample}
        recipe = {"name": "r", "seed": 5, "sources": [source]}
        with contextlib.chdir(tmp_path):
            out = tokmill.run(recipe, tmp_path / f"out-{name}", workers=1, until="ingest").out / "ingest/s"
        drawn.append([row for part in load_tables(out, "documents") for row in part.to_pylist()])
        assert load_manifest(out).counts["dropped"] == {"not_sampled": len(lines) - 40}
    whole, cut, first = ([row["doc_id"] for row in rows] for rows in drawn)
    assert len(whole) == len({row["text"].split()[-1] for row in drawn[0]}) == 40
    assert whole == cut == first


def test_distinct_is_refused_of_methods_that_do_not_compare() -> None:
    with pytest.raises(RecipeError, match="distinct: is for reservoir and weighted, not for head"):
        sampled(5, 1, method="head", k=3, distinct=True)

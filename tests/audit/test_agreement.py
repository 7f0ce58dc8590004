"""`score compare` and `score apply` against other ways to count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from made_fasttext import score_of, write_model
from mill import small_corpus, tokmill
from tokmill.errors import InputError, RecipeError
from written import load_lines, load_table

EDU = {"name": "edu", "fasttext": {"path": "edu.bin", "label": "good"}}
FILTERS = [{"measure": "chars", "min": 5, "reason": "too_short"}]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("agreement")
    write_model(directory / "edu.bin")
    return mill.run(small_corpus(directory, 120, scores=[EDU], filters=FILTERS), workers=1, until="clean").out


def kept(run: Path) -> list[tuple[str, float, float]]:
    found: list[tuple[str, float, float]] = []
    for source in ("problems", "notes"):
        ids = (
            load_table(run / f"ingest/{source}/documents-00000-000.parquet", ["doc_id"]).column(0).to_pylist()
        )
        marks = load_table(run / f"clean/{source}/marks-00000-000.parquet", ["kept"]).column(0).to_pylist()
        rows = load_table(run / f"clean/{source}/measures-00000-000.parquet").to_pylist()
        found += [
            (doc_id, row["score.edu"], row["chars"])
            for doc_id, is_in, row in zip(ids, marks, rows, strict=True)
            if is_in
        ]
    return found


def slow_ranks(values: list[float]) -> list[float]:
    return [sum(other < one for other in values) + (values.count(one) + 1) / 2 for one in values]


def slow_correlation(a: list[float], b: list[float]) -> float:
    ranks = slow_ranks(a), slow_ranks(b)
    means = [sum(one) / len(one) for one in ranks]
    top = sum((x - means[0]) * (y - means[1]) for x, y in zip(*ranks, strict=True))
    sides = [sum((x - mean) ** 2 for x in one) for one, mean in zip(ranks, means, strict=True)]
    return float(top / (sides[0] * sides[1]) ** 0.5)


def test_the_correlation_is_that_of_the_slow_way(run: Path) -> None:
    found, rows = mill.score_compare(run, "score.edu", "chars"), kept(run)
    scores, chars = [row[1] for row in rows], [row[2] for row in rows]
    assert found.documents == len(rows)
    assert found.correlation == pytest.approx(slow_correlation(scores, chars), abs=1e-8)
    ranks = slow_ranks(scores), slow_ranks(chars)
    apart = [abs(a - b) for a, b in zip(*ranks, strict=True)]
    worst = rows[apart.index(max(apart))]
    assert found.examples[0]["doc_id"] == worst[0]
    assert found.examples[0]["values"] == [worst[1], worst[2]]


def test_a_score_agrees_with_itself(run: Path) -> None:
    assert mill.score_compare(run, "score.edu", "score.edu").correlation == 1


def test_sources_that_are_not_cleaned_yet_are_named(tmp_path: Path) -> None:
    """A run that was cut short: what it has is compared."""
    run = mill.run(small_corpus(tmp_path, 8, filters=FILTERS), workers=1, until="clean").out
    measured = load_table(run / "clean/problems/measures-00000-000.parquet", ["chars"])
    whole = mill.score_compare(run, "chars", "chars")
    assert whole.missing == ()
    assert sorted(whole.by_source) == ["notes", "problems"]
    for left in (run, run / "clean/notes"):
        (left / "manifest.json").unlink()
    found = mill.score_compare(run, "chars", "chars", examples=99)
    assert found.missing == ("notes",)
    assert found.documents == measured.num_rows
    assert {one["source"] for one in found.examples} == {"problems"} == set(found.by_source)
    told = tokmill("score", "compare", run, "chars", "chars")
    assert told.returncode == 0
    assert "not cleaned yet: notes" in told.stderr
    (run / "clean/problems/manifest.json").unlink()
    with pytest.raises(InputError, match="no source of this run is cleaned yet"):
        mill.score_compare(run, "chars", "chars")


def test_what_was_not_measured_is_named_with_what_was(run: Path) -> None:
    with pytest.raises(InputError, match=r"score\.math was not measured of problems\n.*chars, score\.edu"):
        mill.score_compare(run, "score.edu", "score.math")


def test_apply_writes_the_score_of_every_document_in_order(tmp_path: Path) -> None:
    small_corpus(tmp_path, 40)
    write_model(tmp_path / "edu.bin")
    asked: Any = {"fasttext": tmp_path / "edu.bin", "label": "good", "text": "question", "workers": 1}
    found = mill.score_apply([str(tmp_path / "problems.jsonl")], out=tmp_path / "scores.jsonl.zst", **asked)
    lines = load_lines(tmp_path / "scores.jsonl.zst")
    texts = [json.loads(line)["question"] for line in (tmp_path / "problems.jsonl").read_text().splitlines()]
    assert [line["score"] for line in lines] == pytest.approx([score_of(text) for text in texts], abs=1e-6)
    assert (found.documents, found.scored) == (40, 40)
    assert found.mean == pytest.approx(sum(map(score_of, texts)) / 40, abs=1e-6)
    with pytest.raises(RecipeError, match="is there already"):
        mill.score_apply([str(tmp_path / "problems.jsonl")], out=tmp_path / "scores.jsonl.zst", **asked)


def test_what_is_made_of_windows_needs_windows(tmp_path: Path) -> None:
    small_corpus(tmp_path, 20)
    write_model(tmp_path / "edu.bin")
    words = ["score", "apply", tmp_path / "problems.jsonl", "--fasttext", tmp_path / "edu.bin"]
    words += ["--label", "good", "--text", "question", "--out", tmp_path / "scores.jsonl.zst"]
    refused = tokmill(*words, "--aggregate", "max")
    assert refused.returncode == 1
    assert "--aggregate: is of windows" in refused.stderr
    assert "--window-words" in refused.stderr
    assert not (tmp_path / "scores.jsonl.zst").exists()
    found = {}
    for name, asked in (("plain", ()), ("mean", ("--aggregate", "mean")), ("max", ("--aggregate", "max"))):
        made = tokmill(*words, "--replace", "--window-words", "10", *asked)
        assert made.returncode == 0, made.stderr
        found[name] = [line["score"] for line in load_lines(tmp_path / "scores.jsonl.zst")]
    assert found["plain"] == found["mean"]
    assert all(most >= mean for most, mean in zip(found["max"], found["mean"], strict=True))
    assert found["max"] != found["mean"]


def test_a_bound_on_percentiles_can_be_moved(tmp_path: Path) -> None:
    write_model(tmp_path / "edu.bin")
    rules = [{"measure": "score.edu.percentile", "min": 40}]
    scores = [EDU | {"percentile": "corpus"}]
    out = mill.run(small_corpus(tmp_path, scores=scores, filters=rules), workers=1).out
    moved = mill.whatif(out, {"score.edu.percentile.min": 70})
    ranks = [
        value
        for number in range(2)
        for value in load_table(out / f"scores/percentiles-{number:05d}.parquet").column(0).to_pylist()
        if value is not None
    ]
    assert (moved.kept_now, moved.kept_then) == (sum(r >= 40 for r in ranks), sum(r >= 70 for r in ranks))
    assert len(moved.movers) == moved.kept_now - moved.kept_then > 0
    with pytest.raises(InputError, match="beside another rule"):
        mill.whatif(out, {"score.edu.percentile.min": 70, "score.edu.min": 0.1})

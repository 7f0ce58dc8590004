"""Models that are trained here, in a recipe: each number recounted from the written texts by slow twins."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from kernels.slow_ngrams import named_ngrams
from kernels.test_importance import grams_of, slow_bucket
from mill import digest_of, small_corpus
from scores.reviews import column, documents, examples_of, texts_of
from tokmill.errors import TokmillError
from tokmill.scores.examples import join_examples
from tokmill.scores.importance import count_texts, fit_importance, load_importance, write_importance
from tokmill.scores.linear import Training, load_linear, train_linear, write_linear
from tokmill.scores.perplexity import (
    count_text_ngrams,
    count_words,
    make_vocabulary,
    train_language_model,
    write_language_model,
)
from written import load_manifest, load_table

SCORES = [
    {"name": "good", "linear": {"path": "good.bin", "output": "margin"}, "percentile": "corpus"},
    {"name": "like", "importance": {"path": "like.bin"}},
    {"name": "fluent", "perplexity": {"path": "fluent.bin"}, "windows": {"words": 10}},
]


def write_models(directory: Path, rows: list[dict[str, Any]]) -> None:
    """The files that SCORES name."""
    training = Training()
    model = train_linear(join_examples([examples_of(rows, training.shape)]), ["bad", "good"], training)
    write_linear(directory / "good.bin", model)
    target = column([row["text"] for row in rows if row["label"]])
    write_importance(
        directory / "like.bin", fit_importance(count_texts(target, 200), count_texts(texts_of(rows), 200))
    )
    words = make_vocabulary([count_words(texts_of(rows))])
    language = train_language_model(count_text_ngrams(texts_of(rows), words, 3), words)
    write_language_model(directory / "fluent.bin", language)


def corpus(directory: Path, workers: int) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    write_models(directory, documents(80))
    recipe = small_corpus(directory, scores=SCORES, shards={"megabytes": 1})
    return mill.run(recipe, workers=workers).out


def measured(out: Path) -> list[tuple[str, dict[str, float]]]:
    rows: list[tuple[str, dict[str, float]]] = []
    for source in ("problems", "notes"):
        for entry in load_manifest(out / "ingest" / source).entries("documents"):
            key = entry.path.removeprefix("documents-")
            texts = load_table(out / "ingest" / source / entry.path, ["text"]).column("text").to_pylist()
            measures = load_table(out / "clean" / source / f"measures-{key}").to_pylist()
            rows += zip(texts, measures, strict=True)
    return rows


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus(tmp_path_factory.mktemp("kinds"), 1)


def test_every_document_has_the_scores_that_its_words_say(run: Path) -> None:
    linear, weights = load_linear(run.parents[1] / "good.bin"), load_importance(run.parents[1] / "like.bin")
    known = dict(zip(linear.buckets.tolist(), linear.weights[:, 0].tolist(), strict=True))
    rows = measured(run)
    assert len(rows) > 60
    for text, measures in rows:
        if "\0" in text:  # cleaning takes it out
            continue
        buckets = [bucket for _, bucket in named_ngrams(text, linear.shape)]
        total = sum(known.get(bucket, 0) for bucket in buckets) << linear.scale
        margin = (total / math.sqrt(len(buckets)) + int(linear.bias[0])) / (1 << 20)
        assert measures["score.good"] == pytest.approx(margin, abs=1e-3)
        logs = [int(weights.logs[slow_bucket(gram, 200, False)]) for gram in grams_of(text)]
        assert measures["score.like"] == pytest.approx(sum(logs) / (1 << 24), abs=1e-6)
        assert measures["score.fluent"] > 1
    assert len({measures["score.good"] for _, measures in rows}) > 10


def test_any_number_of_workers_gives_one_digest(run: Path, tmp_path: Path) -> None:
    assert digest_of(corpus(tmp_path, 3)) == digest_of(run)


def test_why_shows_the_pieces_of_all_three(run: Path) -> None:
    entry = load_manifest(run / "ingest/problems").entries("documents")[0]
    doc_id = load_table(run / "ingest/problems" / entry.path, ["doc_id"]).column("doc_id")[0].as_py()
    told = str(mill.why(run, doc_id, explain=True).as_json())
    for name in ("score.good", "score.like", "score.fluent"):
        assert name in told


def test_a_label_that_the_model_has_not_stops_the_run_before_anything_is_read(tmp_path: Path) -> None:
    corpus(tmp_path / "first", 1)
    scores = [{"name": "good", "linear": {"path": "good.bin", "label": "best"}}]
    recipe = small_corpus(tmp_path / "first", scores=scores)
    with pytest.raises(TokmillError, match="no label 'best'"):
        mill.run(recipe, tmp_path / "second", workers=1)
    assert not list((tmp_path / "second").glob("*/ingest"))

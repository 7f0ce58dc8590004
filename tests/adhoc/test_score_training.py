"""Classifiers from labelled files: one model however the files are cut, figures recounted, mistakes told."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from scores.reviews import documents
from tokmill.errors import CorruptFile, EmptyGlob, RecipeError, TokmillError
from tokmill.scores.linear import load_linear


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    lines = [json.dumps({"id": row["doc_id"], "source": "made", "text": row["text"]}) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def sides(directory: Path, count: int = 200) -> tuple[Path, Path]:
    directory.mkdir(parents=True, exist_ok=True)
    rows = documents(count)
    return (
        write_lines(directory / "good.jsonl", [row for row in rows if row["label"]]),
        write_lines(directory / "bad.jsonl", [row for row in rows if not row["label"]]),
    )


def test_the_model_is_the_same_however_the_files_are_cut(tmp_path: Path) -> None:
    good, bad = sides(tmp_path)
    made = mill.score_train(positive=good, negative=bad, out=tmp_path / "m")
    rows = [row for row in documents(200) if row["label"]]
    first, second = (
        write_lines(tmp_path / f"part-{k}.jsonl", part) for k, part in enumerate((rows[70:], rows[:70]))
    )
    again = mill.score_train(positive=[first, second], negative=bad, out=tmp_path / "n")
    assert again.sha256 == made.sha256 == hashlib.sha256((tmp_path / "m").read_bytes()).hexdigest()
    few, cut = (
        mill.score_train(positive=files, negative=bad, out=tmp_path / name, max_docs=30)
        for name, files in (("p", good), ("q", [first, second]))
    )
    assert few.sha256 == cut.sha256 != made.sha256
    assert few.examples == {"negative": 30, "positive": 30}
    other = mill.score_train(positive=good, negative=bad, out=tmp_path / "o", seed=1)
    assert other.sha256 != made.sha256


def test_those_held_out_are_measured_and_are_not_learned_from(tmp_path: Path) -> None:
    good, bad = sides(tmp_path)
    made = mill.score_train(positive=good, negative=bad, out=tmp_path / "m", valid_fraction=0.3)
    for label in ("positive", "negative"):
        assert made.examples[label] + made.held_out[label] == 100
        assert 15 < made.held_out[label] < 45
    assert made.metrics is not None
    assert made.metrics["auc"] > 0.9
    assert load_linear(tmp_path / "m").card["metrics"] == made.metrics
    assert {"bean", "roasted"} & {name for name, weight in made.strongest["negative"] if weight > 0}
    none = mill.score_train(positive=good, negative=bad, out=tmp_path / "n", valid_fraction=0)
    assert (none.metrics, none.held_out) == (None, {"negative": 0, "positive": 0})
    assert none.examples == {"negative": 100, "positive": 100}


def test_evaluation_counts_the_scores_that_apply_would_give(tmp_path: Path) -> None:
    good, bad = sides(tmp_path)
    mill.score_train(positive=good, negative=bad, out=tmp_path / "m")
    found = mill.score_eval(tmp_path / "m", positive=good, negative=bad)
    flipped = mill.score_eval(tmp_path / "m", positive=good, negative=bad, label="negative")
    assert found.documents == {"negative": 100, "positive": 100}
    assert found.metrics["auc"] == pytest.approx(1 - flipped.metrics["auc"], abs=0.01)
    kept = [one["kept"] for one in found.metrics["thresholds"]]
    assert kept == sorted(kept, reverse=True)
    assert sum(tenth["documents"] for tenth in found.metrics["calibration"]) == 200


def test_weights_and_language_models_are_trained_and_applied(tmp_path: Path) -> None:
    good, bad = sides(tmp_path)
    asked: dict[str, dict[str, Any]] = {
        "importance": {"negative": bad},
        "perplexity": {"order": 3},
    }
    for kind, more in asked.items():
        model = tmp_path / kind
        made = mill.score_train(positive=good, out=model, kind=kind, **more)  # type: ignore[arg-type]
        assert made.sha256 == hashlib.sha256(model.read_bytes()).hexdigest()
        assert made.examples == {"positive": 100} | ({"negative": 100} if "negative" in more else {})
        means = []
        for side in (good, bad):
            out = tmp_path / f"{kind}-{side.stem}.jsonl"
            means.append(mill.score_apply(side, out=out, workers=1, **{kind: model}).mean)  # type: ignore[arg-type]
            lines = [json.loads(line)["score"] for line in out.read_text().splitlines()]
            assert means[-1] == pytest.approx(sum(lines) / 100)
        # the target is likelier, and less of a surprise to its own model
        assert means[0] > means[1] if kind == "importance" else means[0] < means[1]


def test_the_language_model_is_one_however_the_files_are_cut(tmp_path: Path) -> None:
    good, _ = sides(tmp_path)
    whole = mill.score_train(positive=good, out=tmp_path / "m", kind="perplexity")
    lines = good.read_text().splitlines(keepends=True)
    for number in range(2):
        (tmp_path / f"part-{number}.jsonl").write_text("".join(lines[number::2]))
    parts = [tmp_path / f"part-{number}.jsonl" for number in range(2)]
    assert mill.score_train(positive=parts, out=tmp_path / "n", kind="perplexity").sha256 == whole.sha256


def test_a_trained_classifier_is_applied_as_the_run_does(tmp_path: Path) -> None:
    good, bad = sides(tmp_path)
    mill.score_train(positive=good, negative=bad, out=tmp_path / "m")
    found = mill.score_eval(tmp_path / "m", positive=good, negative=bad)
    scores: dict[str, list[float]] = {}
    for name, side in (("up", good), ("down", bad)):
        out = tmp_path / f"{name}.jsonl"
        mill.score_apply(side, out=out, linear=tmp_path / "m", workers=1)
        scores[name] = [json.loads(line)["score"] for line in out.read_text().splitlines()]
    pairs = [(a > b) + (a == b) / 2 for a in scores["up"] for b in scores["down"]]
    assert found.metrics["auc"] == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"kind": "linear"}, "--negative: is missing"),
        ({"kind": "importance"}, "--negative: is missing"),
        ({"kind": "perplexity", "negative": "bad.jsonl"}, "--negative: is for other kinds"),
        (
            {"kind": "importance", "negative": "bad.jsonl", "order": 3},
            "--order: is not for --kind importance",
        ),
        ({"kind": "perplexity", "epochs": 9}, "has options of a classifier"),
    ],
)
def test_options_of_another_kind_are_refused(asked: dict[str, Any], why: str, tmp_path: Path) -> None:
    good, _ = sides(tmp_path, 20)
    with pytest.raises(RecipeError, match=why):
        mill.score_train(positive=good, out=tmp_path / "m", **asked)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({}, "names 0 models"),
        ({"linear": "m", "perplexity": "m"}, "names 2 models"),
        ({"fasttext": "m"}, "--label: is missing"),
        ({"importance": "m", "label": "good"}, "--label: is for classifiers"),
        ({"linear": "m", "lower": True}, "are for --fasttext"),
        ({"linear": "m", "aggregate": "max"}, "--aggregate: is of windows.*\n.*`--window-words`"),
        ({"linear": "m", "aggregate": "mean"}, "--aggregate: is of windows"),
        (
            {"fasttext": "m", "label": "good", "first_words": 50, "window_words": 20},
            "--first-words: would be of every window",
        ),
    ],
)
def test_a_model_is_applied_with_its_own_options_alone(
    asked: dict[str, Any], why: str, tmp_path: Path
) -> None:
    good, _ = sides(tmp_path, 20)
    with pytest.raises(RecipeError, match=why):
        mill.score_apply(good, out=tmp_path / "s.jsonl", **asked)
    assert not (tmp_path / "s.jsonl").exists()


def test_mistakes_are_told_and_nothing_is_written(tmp_path: Path) -> None:
    good, bad = sides(tmp_path, 20)
    out = tmp_path / "m"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"positive": tmp_path / "none.jsonl"}, "none.jsonl"),
        ({"words": 0}, "neither words nor characters"),
        ({"min_chars": 4, "max_chars": 3}, "no n-grams are like this"),
        ({"rate": 20.0}, "rate"),
        ({"valid_fraction": 1.0}, "valid-fraction"),
    ]
    for change, why in wrong:
        arguments: dict[str, Any] = {"positive": good, "negative": bad, "out": out} | change
        with pytest.raises(TokmillError, match=why):
            mill.score_train(**arguments)
    assert not out.exists()
    mill.score_train(positive=good, negative=bad, out=out)
    with pytest.raises(RecipeError, match="is there already"):
        mill.score_train(positive=good, negative=bad, out=out)
    with pytest.raises(RecipeError, match="no label 'best'"):
        mill.score_eval(out, positive=good, negative=bad, label="best")
    out.write_bytes(out.read_bytes()[:-1])
    with pytest.raises(CorruptFile):
        mill.score_eval(out, positive=good, negative=bad)


def test_a_file_of_the_command_line_is_named_and_no_recipe(tmp_path: Path) -> None:
    """The recipe of a single command is made of its options, and nobody has seen it."""
    missing, model = tmp_path / "missing.jsonl", tmp_path / "model.bin"
    with pytest.raises(EmptyGlob) as told:
        mill.score_train(positive=missing, negative=missing, out=model)
    assert told.value.where == str(missing)
    (tmp_path / "texts.jsonl").write_text('{"text": "a"}\n')
    model.write_bytes(b"no model")
    with pytest.raises(TokmillError) as told_of_model:
        mill.score_apply(tmp_path / "texts.jsonl", linear=model, out=tmp_path / "scores.jsonl")
    assert "the recipe" not in str(told_of_model.value)
    assert str(model) in str(told_of_model.value)

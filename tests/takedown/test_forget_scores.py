"""Scores outlive a takedown only by the models and labels that they were made with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from made_fasttext import WEIGHTS, write_model
from scores.reviews import documents
from takedown.marked import ids, tree
from tokmill.artifacts.manifest import build_manifest, load_manifest, write_manifest
from tokmill.errors import InputError


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_labels(directory: Path, name: str) -> None:
    """Of the posts; `name` is that of the good ones."""
    rows = [{"doc_id": row["doc_id"], "label": (name, "middling")[row["label"]]} for row in documents(80)]
    write_lines(directory / "labels.jsonl", rows)


def scored_run(directory: Path, *names: str, **sections: Any) -> Path:
    """Posts with labels, and pages that nothing is learned from."""
    rows = [{"id": row["doc_id"], "text": row["text"]} for row in documents(120)]
    write_lines(directory / "posts.jsonl", rows[:80])
    write_lines(directory / "pages.jsonl", rows[80:])
    write_labels(directory, "good")
    write_model(directory / "edu.bin")
    posts = [
        {"source": "posts", "where": {"measure": "words", **bound}} for bound in ({"min": 16}, {"max": 15})
    ]
    scores: dict[str, Any] = {
        "edu": {"fasttext": {"path": "edu.bin", "label": "good"}},
        "liked": {"train": {"labels": "labels.jsonl", "label": "good"}},
        "long": {"train": {"positive": posts[:1], "negative": posts[1:]}},
    }
    recipe = {
        "name": "scored",
        "sources": [{"name": name, "files": f"{name}.jsonl"} for name in ("posts", "pages")],
        "scores": [{"name": name, **scores[name]} for name in names],
        "dedup": {"exact": True},
        **sections,
    }
    path = directory / "recipe.yaml"
    path.write_text(json.dumps(recipe))
    return mill.run(path, workers=1).out


def refused(out: Path, doc_id: str) -> str:
    """What the takedown says; nothing of the run is touched."""
    before = tree(out)
    with pytest.raises(InputError) as told:
        mill.forget(out, **ids(doc_id), workers=1)
    assert tree(out) == before
    assert "restore it" in told.value.next or "--base" in told.value.next
    return str(told.value)


def test_labels_that_are_others_by_now_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    out = scored_run(tmp_path, "liked")
    write_labels(tmp_path, "zealous")  # the names change places
    assert "is not the file that the run was made with (the labels of score/liked)" in refused(out, "d2")
    (tmp_path / "labels.jsonl").unlink()
    assert "the run needs the labels of score/liked, which is not part of it" in refused(out, "d2")
    write_labels(tmp_path, "good")
    mill.forget(out, **ids("d2"), workers=1)
    assert mill.verify(out).problems == []


def test_a_model_that_is_another_by_now_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    out = scored_run(tmp_path, "edu", "long")
    write_model(tmp_path / "edu.bin", {**WEIGHTS, "the": 2.0})
    assert "is not the file that the run was made with (the model of the score edu)" in refused(out, "d2")
    (tmp_path / "edu.bin").unlink()
    assert "the run needs the models of clean/posts, which is not part of it" in refused(out, "d2")
    write_model(tmp_path / "edu.bin")
    mill.forget(out, **ids("d2"), workers=1)
    assert mill.verify(out).problems == []


def test_a_model_that_learned_from_other_sources_is_kept_and_judges_nothing_anew(tmp_path: Path) -> None:
    out = scored_run(tmp_path, "long")
    model = (out / "score/long/long.model").read_bytes()
    done = mill.forget(out, **ids("d90"), workers=1)
    assert {"score/long", "clean/posts"} <= set(done.skipped)
    assert (out / "score/long/long.model").read_bytes() == model
    assert mill.verify(out).problems == []


def test_models_are_found_whatever_else_the_recipe_says(tmp_path: Path) -> None:
    """`recall` beside the `min_score` that is written down with it: a recipe has one of them."""
    own = {"language": {"detector": "py3langid", "recall": "0.95"}}
    out = scored_run(tmp_path, "edu", **own, domains={"default": own})
    mill.forget(out, **ids("d2"), workers=1)
    assert mill.verify(out).problems == []


def test_a_recipe_that_cannot_be_read_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    out = scored_run(tmp_path)
    made = load_manifest(out)
    kept = ("kind", "step", "inputs", "counts", "facts", "environment")
    body = {name: getattr(made, name) for name in kept}
    config = {**made.config, "mill": {"stones": 2}}
    write_manifest(
        out,
        build_manifest(**body, config=config, receipts=made.receipts(), experiment_id=made.experiment_id),
    )
    before = tree(out)
    with pytest.raises(InputError, match="the recipe that it was made with cannot be read"):
        mill.forget(out, **ids("d2"), workers=1)
    assert tree(out) == before

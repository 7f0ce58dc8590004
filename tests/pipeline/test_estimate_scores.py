"""What is estimated where scores decide, beside what the run writes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import tokmill as mill
from mill import write_recipe
from tokmill.artifacts.progress import Silence
from tokmill.errors import InputError
from tokmill.pipeline.estimation.estimate import estimate_run
from tokmill.pipeline.estimation.figures import Estimate
from tokmill.recipe.file import read_recipe

GOOD = ("theorem", "proof", "lemma", "integral", "matrix")
BAD = ("click", "buy", "sale", "free", "offer")
PLAIN = ("the", "a", "of", "and", "river", "mill", "stone", "bread", "door", "house")
FIELDS = {"id": "id", "meta": ["rated"]}
BY_FIELD = {
    "positive": [{"source": "first", "where": {"field": "rated", "min": 7}}],
    "negative": [{"source": "first", "where": {"field": "rated", "max": 3}}],
}


def score(**train: Any) -> list[dict[str, Any]]:
    return [{"name": "good", "train": train or BY_FIELD, "percentile": "corpus"}]


def corpus(directory: Path, documents: int = 500, **sections: Any) -> Path:
    """Two sources of documents that are more or less good; every one is rated from 0 to 10."""
    directory.mkdir()
    for seed, name in enumerate(("first", "second")):
        chance = random.Random(seed)
        with (directory / f"{name}.jsonl").open("w") as file:
            for number in range(documents):
                rated = chance.randrange(11)
                marked = [chance.choice(GOOD if chance.random() < rated / 10 else BAD) for _ in range(20)]
                text = " ".join([*marked, *(chance.choice(PLAIN) for _ in range(30))])
                file.write(json.dumps({"id": f"{name}{number}", "text": text, "rated": rated}) + "\n")
    sources = [
        {"name": name, "domain": name, "files": f"{name}.jsonl", "fields": FIELDS}
        for name in ("first", "second")
    ]
    whole = {"sources": sources, "filters": [], "builds": [{"name": "rows", "format": "memmap"}], **sections}
    return write_recipe(directory, **whole)


def estimated(recipe: Path, progress: Silence | None = None, **asked: int) -> Estimate:
    whole = read_recipe(recipe).recipe
    assert whole is not None
    size = sum(path.stat().st_size for path in recipe.parent.glob("*.jsonl"))
    return estimate_run(whole, recipe.parent, progress, **{"text_bytes": size // 4, **asked})


def written_tokens(out: Path) -> int:
    return sum(len(np.fromfile(path, "<i4")) for path in (out / "build/rows").glob("*/*.mmap"))


def documents_with_tokens(out: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in out.glob("tokens/*/*/lengths-*.parquet"))


def kept(estimate: Estimate) -> float:
    return sum(one.kept.value for one in estimate.sources.values())


@pytest.mark.parametrize(
    "mixture",
    [
        {"select": {"by": "score.good", "tokens": "15k"}},
        {"select": {"by": "score.good", "tokens": "40k"}, "tokens": "24k"},
        {"select": {"by": "score.good", "tokens": "900M"}},
        {"repeat": {"by": "score.good", "percentiles": {"90": 4, "0": 1}}},
        {"tokens": "12k", "held_out": "whole"},
    ],
    ids=["selection", "selection_of_a_target", "selection_of_all", "repeat", "whole_splits"],
)
def test_a_mixture_is_as_large_in_the_estimate_as_in_the_run(tmp_path: Path, mixture: dict[str, Any]) -> None:
    recipe = corpus(tmp_path / "in", scores=score(), mixture=mixture, split={"valid_fraction": "0.2"})
    found = estimated(recipe)
    assert 0.2 < found.share < 0.3
    actual = written_tokens(mill.run(recipe, workers=1).out)
    assert found.builds["rows"] == pytest.approx(actual, rel=0.1)
    assert found.notes == []


def label_some(recipe: Path, good: int, bad: int) -> None:
    """The first documents of `first` that are rated so."""
    rows = [json.loads(line) for line in (recipe.parent / "first.jsonl").read_text().splitlines()]
    chosen = [(row["id"], "positive") for row in rows if row["rated"] >= 8][:good]
    chosen += [(row["id"], "bad") for row in rows if row["rated"] <= 2][:bad]
    lines = [json.dumps({"doc_id": one, "label": label}) for one, label in chosen]
    (recipe.parent / "labels.ndjson").write_text("\n".join(lines) + "\n")


LABELS: dict[str, Any] = {"labels": "labels.ndjson", "min_docs": 1}
HALF = [{"measure": "score.good.percentile", "min": 50, "reason": "poor"}]


def test_a_score_of_few_labels_learns_from_all_that_is_read(tmp_path: Path) -> None:
    recipe = corpus(tmp_path / "in", scores=score(**LABELS), filters=HALF)
    label_some(recipe, good=4, bad=4)
    found = estimated(recipe)
    assert 0.2 < found.share < 0.3
    assert found.notes == []
    assert "score/good" in found.cpu_seconds
    assert all(one.documents == pytest.approx(500) for one in found.sources.values())
    # half of all documents stay, whoever they are
    assert kept(found) == pytest.approx(500, rel=0.1)
    actual = documents_with_tokens(mill.run(recipe, workers=1).out)
    assert actual == pytest.approx(500, abs=2)
    dropped = sum(one.dropped["scores: poor"] for one in found.sources.values())
    assert dropped + kept(found) == pytest.approx(1000)


class Heard(Silence):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, message: str) -> None:
        self.lines.append(message)


def test_a_score_that_finds_no_examples_is_left_out_and_the_estimate_says_so(tmp_path: Path) -> None:
    mixture = {"select": {"by": "score.good", "tokens": "9k"}}
    recipe = corpus(tmp_path / "in", scores=score(**LABELS), filters=HALF, mixture=mixture)
    label_some(recipe, good=2, bad=2)
    heard = Heard()
    found = estimated(recipe, heard, text_bytes=20_000, read_bytes=20_000)
    (note,) = found.notes
    assert note.startswith("score.good: ")
    assert "too few examples to learn from" in note
    assert note.endswith("without what asks for it: filters, mixture.select")
    assert f"! {note}" in heard.lines
    assert found.as_json()["notes"] == [note]
    assert not [step for step in found.cpu_seconds if step.startswith(("score", "examples"))]
    assert kept(found) == pytest.approx(1000, rel=0.01)  # nothing else drops a document


def test_a_score_that_learns_from_some_of_its_examples_is_told(tmp_path: Path) -> None:
    recipe = corpus(tmp_path / "in", scores=score(), filters=HALF)
    size = sum(path.stat().st_size for path in recipe.parent.glob("*.jsonl"))
    found = estimated(recipe, read_bytes=size // 3)
    (note,) = found.notes
    assert note.startswith("score.good: learned from ")
    assert "33.3% of the documents" in note
    assert kept(found) == pytest.approx(500, rel=0.1)


def test_a_source_that_is_read_for_a_score_alone_is_left_out_with_it(tmp_path: Path) -> None:
    train = {
        "positive": [{"source": "first", "where": {"field": "rated", "min": 11}}],
        "negative": [{"source": "second", "where": {"field": "rated", "max": 3}}],
    }
    mixture = {"weights": {"first": 0, "second": 1}, "normalize": True}
    recipe = corpus(tmp_path / "in", scores=score(**train), mixture=mixture)
    found = estimated(recipe, read_bytes=20_000)
    assert list(found.sources) == ["second"]
    assert found.notes[0].endswith("without what asks for it: sources.first")


def test_scores_that_are_stored_are_computed_side_by_side(tmp_path: Path) -> None:
    stored = [{"name": "long", "hook": "hooks.py:measure", "device": "cpu"}]
    sources = [
        {"name": name, "domain": name, "files": f"{name}*.jsonl", "fields": FIELDS}
        for name in ("first", "second")
    ]
    recipe = corpus(tmp_path / "in", scores=stored, sources=sources, documents=60)
    for number in range(3):
        write = (recipe.parent / f"first-{number}.jsonl").write_text
        write((recipe.parent / "first.jsonl").read_text().replace('"first', f'"{number}-'))
    measure = "def measure(columns, device):\n    return [len(text) / 1000 for text in columns['text']]\n"
    (recipe.parent / "hooks.py").write_text(measure)
    found = estimated(recipe, text_bytes=20_000_000)
    out = mill.run(recipe, workers=1, until="clean").out
    written = {
        name: len(list(out.glob(f"inference/{name}/scores-*.parquet"))) for name in ("first", "second")
    }
    assert written == {"first": 4, "second": 1}
    told = sorted(found.tasks["inference"])
    each = [found.cpu_seconds[f"inference/{name}"] / n for name, n in written.items() for _ in range(n)]
    assert told == pytest.approx(sorted(each))


def test_a_score_that_has_no_examples_at_all_is_a_mistake_of_the_estimate_too(tmp_path: Path) -> None:
    train = {**BY_FIELD, "positive": [{"source": "first", "where": {"field": "rated", "min": 11}}]}
    recipe = corpus(tmp_path / "in", documents=60, scores=score(**train))
    with pytest.raises(InputError, match="is an example of `positive`"):
        estimated(recipe)

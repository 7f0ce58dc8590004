"""Conversations are scored, and learned from, as people read them: without the marks of their regions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from made_fasttext import score_of, write_model
from written import load_manifest, load_table

pytest.importorskip("jinja2")

WEIGHTS = {"</s>": 0.25, "Say": 2.0, "It": -1.5, "thanks": 1.0, "Note": 0.75}
MARKS = dict.fromkeys(range(0xFDD0, 0xFDF0))
HOOKS = """
def first(columns):
    return [float(ord(text[0])) for text in columns["text"].to_pylist()]

def stored(columns, device):
    return [float(ord(text[0])) for text in columns["text"].to_pylist()]
"""


def write_recipe(directory: Path, **sections: Any) -> Path:
    talks = [
        {
            "id": f"c{number}",
            "messages": [
                {"role": "user", "content": f"Say {number} {'twice ' * (number % 3)}"},
                {"role": "assistant", "content": f"It is {number}"},
                {"role": "user", "content": "thanks a lot" if number % 2 else "why though"},
                {"role": "assistant", "content": "Sure"},
            ],
        }
        for number in range(60)
    ]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "talk.jsonl").write_text("".join(json.dumps(talk) + "\n" for talk in talks))
    (directory / "notes.txt").write_text("\n\n".join(f"Note {n} of the mill." for n in range(12)))
    labels = [{"doc_id": f"c{n}", "label": ("negative", "positive")[n % 2]} for n in range(60)]
    (directory / "labels.jsonl").write_text("".join(json.dumps(label) + "\n" for label in labels))
    (directory / "hooks.py").write_text(HOOKS)
    write_model(directory / "edu.bin", WEIGHTS)
    fasttext = {"path": "edu.bin", "label": "good"}
    recipe: dict[str, Any] = {
        "name": "talks",
        "sources": [
            {"name": "talk", "domain": "chat", "files": "talk.jsonl", "fields": {"id": "id"}, "chat": {}},
            {"name": "notes", "domain": "prose", "files": "notes.txt", "unit": "paragraph"},
        ],
        "scores": [
            {"name": "edu", "fasttext": fasttext},
            {"name": "liked", "train": {"labels": "labels.jsonl"}},
            {"name": "first", "hook": "hooks.py:first"},
            {"name": "stored", "hook": "hooks.py:stored", "device": "cpu"},
        ],
        **sections,
    }
    path = directory / "recipe.yaml"
    path.write_text(json.dumps(recipe))
    return path


def scored(out: Path, source: str) -> list[tuple[str, str, dict[str, float]]]:
    """Id, text as it is between the steps, and scores."""
    found = []
    for entry in load_manifest(out / "ingest" / source).entries("documents"):
        documents = load_table(out / "ingest" / source / entry.path)
        path = out / "clean" / source / entry.path.replace("documents-", "measures-")
        columns = [documents.column(name).to_pylist() for name in ("doc_id", "text")]
        found += zip(*columns, load_table(path).to_pylist(), strict=True)
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")  # of the hook that is told its device
    return mill.run(write_recipe(tmp_path_factory.mktemp("talks")), workers=1, until="clean").out


def test_models_and_functions_judge_the_text_without_its_marks(run: Path) -> None:
    rows = scored(run, "talk")
    assert len(rows) == 60
    for _, text, scores in rows:
        plain = text.translate(MARKS)
        assert len(plain) < len(text)
        assert scores["score.edu"] == pytest.approx(score_of(plain, WEIGHTS), abs=1e-6)
        assert scores["score.first"] == scores["score.stored"] == ord(plain[0])
    assert len({scores["score.edu"] for _, _, scores in rows}) > 1


def test_a_model_that_learns_from_conversations_is_that_of_their_plain_texts(
    run: Path, tmp_path: Path
) -> None:
    sides: dict[str, list[dict[str, str]]] = {"even": [], "odd": []}
    for doc_id, text, _ in scored(run, "talk"):
        side = "odd" if int(doc_id[1:]) % 2 else "even"
        sides[side].append({"id": doc_id, "text": text.translate(MARKS)})
    for side, rows in sides.items():
        (tmp_path / f"{side}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = mill.score_train(
        positive=tmp_path / "odd.jsonl",
        negative=tmp_path / "even.jsonl",
        out=tmp_path / "m",
        seed=0,
        valid_fraction=0.1,
    )
    assert (run / "score/liked/liked.model").read_bytes() == (tmp_path / "m").read_bytes()
    assert json.loads((run / "score/liked/card.json").read_bytes())["metrics"] == made.metrics


def test_an_explanation_of_a_conversation_has_nothing_to_excuse(run: Path) -> None:
    told = json.dumps(mill.why(run, "c3", explain=True).as_json())
    assert "score.edu" in told
    assert "it scores" not in told


def test_other_sources_have_the_plans_that_they_had(run: Path) -> None:
    plans = {name: load_manifest(run / "clean" / name).config["scores"] for name in ("talk", "notes")}
    assert all(plan["without_marks"] for plan in plans["talk"])
    assert not any("without_marks" in plan for plan in plans["notes"])
    assert "without_marks" not in json.dumps(load_manifest(run / "inference/notes").config)

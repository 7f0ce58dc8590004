"""A hook that is told its device: called in a step of its own, and its scores are stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from mill import digest_of, small_corpus
from tokmill.errors import TokmillError
from written import load_table

HOOKS = '''
from pathlib import Path

CALLS = Path(__file__).with_name("calls")


def vowels(columns, device):
    """The share of vowels; and who was asked, on what."""
    with CALLS.open("a") as file:
        file.write(f"{device} {len(columns['text'])} {','.join(sorted(set(columns['source'])))}\\n")
    assert all(text.strip() for text in columns["text"])
    return [sum(letter in "aeiou" for letter in text) / len(text) for text in columns["text"]]


def alone(columns):
    return [1.0 for _ in columns["text"]]
'''


def corpus(directory: Path, least: float = 0.2, hook: str = "hooks.py:vowels", **score: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "hooks.py").write_text(HOOKS)
    scores = [{"name": "open", "hook": hook, "device": "cpu", **score}]
    filters = [{"measure": "score.open", "min": least, "reason": "too_few_vowels"}]
    return small_corpus(directory, scores=scores, filters=filters, shards={"megabytes": 1})


def calls_of(directory: Path) -> list[list[str]]:
    return [line.split() for line in (directory / "calls").read_text().splitlines()]


def test_its_scores_are_stored_and_every_later_step_reads_them(tmp_path: Path) -> None:
    out = mill.run(corpus(tmp_path), workers=1).out
    for source in ("problems", "notes"):
        for path in sorted((out / "inference" / source).glob("scores-*.parquet")):
            key = path.name.removeprefix("scores-")
            texts = load_table(out / "ingest" / source / f"documents-{key}").column("text").to_pylist()
            stored = load_table(path).column("score.open").to_pylist()
            measured = load_table(out / "clean" / source / f"measures-{key}").column("score.open").to_pylist()
            kept = load_table(out / "clean" / source / f"marks-{key}").column("kept").to_pylist()
            assert stored == measured
            assert kept == [value >= 0.2 for value in stored]
            for text, value in zip(texts, stored, strict=True):
                text = text.replace("\r\n", "\n")
                assert value == pytest.approx(len([c for c in text if c in "aeiou"]) / len(text), abs=0.02)
    assert {device for device, *_ in calls_of(tmp_path)} == {"cpu"}
    assert {name for *_, name in calls_of(tmp_path)} == {"problems", "notes"}  # all columns are there
    manifest = json.loads((out / "inference/problems/manifest.json").read_text())
    assert manifest["facts"]["computed"]["open"] == [{"device": "cpu"}]


@pytest.mark.usefixtures("forked_workers")
def test_a_threshold_that_moves_does_not_call_it_again(tmp_path: Path) -> None:
    mill.run(corpus(tmp_path), workers=1)
    before = calls_of(tmp_path)
    out = mill.run(corpus(tmp_path, least=0.3), workers=1).out
    assert calls_of(tmp_path) == before
    assert digest_of(out) == digest_of(mill.run(corpus(tmp_path / "fresh", least=0.3), workers=3).out)


def test_another_function_is_another_result(tmp_path: Path) -> None:
    first = digest_of(mill.run(corpus(tmp_path), workers=1).out)
    path = tmp_path / "hooks.py"
    recipe = corpus(tmp_path)
    path.write_text(HOOKS.replace('"aeiou"', '"aeiouy"'))
    before = len(calls_of(tmp_path))
    assert digest_of(mill.run(recipe, workers=1).out) != first
    assert len(calls_of(tmp_path)) > before


def test_a_document_that_is_forgotten_is_gone_from_the_stored_scores(tmp_path: Path) -> None:
    out = mill.run(corpus(tmp_path), workers=1).out
    one = load_table(sorted((out / "inference/problems").glob("scores-*.parquet"))[0])
    gone = one.column("doc_id").to_pylist()[3]
    mill.forget(out, doc_id=[gone], source="problems", base=tmp_path, workers=1)
    left = [
        doc
        for path in sorted((out / "inference/problems").glob("scores-*.parquet"))
        for doc in load_table(path).column("doc_id").to_pylist()
    ]
    assert gone not in left
    assert len(left) >= 50
    digest_of(out)


def test_a_function_that_takes_no_device_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(TokmillError, match="alone"):
        mill.run(corpus(tmp_path, hook="hooks.py:alone"), workers=1)


def test_a_device_belongs_to_a_hook(tmp_path: Path) -> None:
    score = {"name": "open", "device": "cpu", "fasttext": {"path": "m.bin", "label": "a"}}
    recipe = small_corpus(tmp_path, scores=[score])
    with pytest.raises(TokmillError, match="belongs to `hook`"):
        mill.load_recipe(recipe)

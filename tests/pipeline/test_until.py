"""`--until`: every word that it takes is the name of a step, or of several, and the plan ends there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tokmill
from tokmill.errors import RecipeError

SIDES = {"positive": [{"source": "a"}], "negative": [{"files": "b.jsonl"}]}
LEARNED: dict[str, Any] = {"name": "edu", "train": SIDES, "percentile": "corpus"}
STORED: dict[str, Any] = {"name": "deep", "hook": "h.py:f", "device": "cpu"}
STAGES = [{"name": "main", "tokens": 64, "length": 16}, {"name": "last", "tokens": 64, "length": 16}]
ROWS = {"name": "rows", "format": "memmap"}
TEXTS = {"name": "prose", "format": "jsonl", "content": "text"}


@pytest.mark.parametrize(
    ("sections", "kinds"),
    [
        (
            {"scores": [LEARNED], "mixture": {"held_out": "whole", "stages": STAGES}, "builds": [ROWS]},
            "ingest examples score clean scores dedup split tokenizer tokens stage build curriculum",
        ),
        (
            {"scores": [STORED], "mixture": {"weights": {"default": 1}}, "builds": [ROWS, TEXTS]},
            "ingest inference clean dedup split tokenizer tokens mixture build texts",
        ),
    ],
)
def test_every_word_that_is_offered_ends_the_plan_with_its_last_step(
    tmp_path: Path, sections: dict[str, Any], kinds: str
) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": f"a text of {name}"}) + "\n")
    (tmp_path / "h.py").write_text("def f(columns, device):\n    return [0.5 for _ in columns['text']]\n")
    path = tmp_path / "recipe.yaml"
    content = {
        "name": "t",
        "sources": [{"name": "a", "files": "a.jsonl"}],
        "tokenizer": {"train": {"vocab_size": 300}, "eos": "<e>"},
        "pack": {"length": 16},
        **sections,
    }
    path.write_text(json.dumps(content))
    every = list(tokmill.plan(path).steps)
    with pytest.raises(RecipeError) as told:
        tokmill.plan(path, until="nothing")
    words = told.value.next.removeprefix("one of: ").split(", ")
    assert set(words) == set(every) | set(kinds.split())
    for word in words:
        last = [at for at, name in enumerate(every) if f"{name}/".startswith(f"{word}/")][-1]
        assert list(tokmill.plan(path, until=word).steps) == every[: last + 1]

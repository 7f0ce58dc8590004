"""The target of a rest is of the whole run, and its files are those of the rest: what was trained on is not
asked of them again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from mill import write_problems
from tokmill.errors import InputError, RecipeError
from tokmill.loader import Batches, open_dataset

LENGTH = 48


def recipe_of(directory: Path, name: str, source: str, **sections: Any) -> Path:
    path = directory / f"{name}.yaml"
    recipe = {
        "name": name,
        "seed": 3,
        "sources": [
            {
                "name": source,
                "domain": source,
                "files": f"{source}.jsonl",
                "fields": {"text": "answer", "id": "id"},
            }
        ],
        "tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<|endoftext|>"},
        "pack": {"length": LENGTH},
        "split": {"valid_fraction": "0"},
        "builds": [{"name": "rows", "format": "memmap"}, {"name": "mega", "format": "megatron"}],
        **sections,
    }
    path.write_text(json.dumps(recipe))
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`old`, which was trained on whole, and a small source that comes after it."""
    directory = tmp_path_factory.mktemp("target")
    write_problems(directory / "web.jsonl", 200, seed=1)
    write_problems(directory / "late.jsonl", 12, seed=2)
    mill.run(recipe_of(directory, "old", "web"), directory / "old", workers=1)
    return directory


def rest_of(place: Path, out: Path, **mixture: Any) -> Path:
    build = place / "old/build/rows"
    data = open_dataset(build, "train")
    state = {**Batches(data, 1, 1, shuffle="none").state_dict(), "position": len(data)}
    recipe = recipe_of(place, out.name, "late", mixture=mixture)
    return mill.continue_(build, at=state, recipe=recipe, out=out, workers=1).run.out


@pytest.mark.parametrize("unit", ["tokens", "blocks"])
def test_what_was_trained_on_is_not_asked_of_the_files(place: Path, unit: str, tmp_path: Path) -> None:
    data = open_dataset(place / "old/build/rows", "train")
    seen, more = sum(int(data[at]["length"]) for at in range(len(data))), 10
    size = (place / "late.jsonl").stat().st_size
    target = seen + more * LENGTH
    assert target > 2 * size, "more than the files of the rest could give"
    rest = rest_of(place, tmp_path / "rest", **{unit: target if unit == "tokens" else target // LENGTH})
    if unit == "tokens":
        mega = open_dataset(rest / "build/mega", "train")
        built = sum(len(mega[at]["ids"]) for at in range(len(mega)))
        longest = max(len(mega[at]["ids"]) for at in range(len(mega)))
        assert more * LENGTH - longest < built <= more * LENGTH
    else:
        assert more - 1 <= len(open_dataset(rest / "build/rows", "train")) <= more


@pytest.mark.parametrize("unit", ["tokens", "blocks"])
def test_what_is_left_of_a_target_must_be_in_the_files(place: Path, unit: str, tmp_path: Path) -> None:
    data = open_dataset(place / "old/build/rows", "train")
    seen = sum(int(data[at]["length"]) for at in range(len(data)))
    wanted = 2 * (place / "late.jsonl").stat().st_size + 2 * LENGTH
    target = seen + wanted
    with pytest.raises((InputError, RecipeError), match="which cannot give more than"):
        rest_of(place, tmp_path / "rest", **{unit: target if unit == "tokens" else target // LENGTH + 1})

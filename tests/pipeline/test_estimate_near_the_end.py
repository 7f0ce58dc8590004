"""A mixture that takes nearly all there is of a source: a share of the documents has sometimes less than its
share of the tokens, and the estimate is of the run all the same."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import tokmill as mill
from tokmill.errors import InputError
from tokmill.pipeline.estimation.estimate import estimate_run
from tokmill.pipeline.estimation.figures import Estimate
from tokmill.recipe.file import read_recipe

NAMES = ("web", "math")
LENGTH = 64


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("near")
    for seed, name in enumerate(NAMES):
        chance = random.Random(seed)
        lines = []
        for number in range(600):
            words = int(chance.paretovariate(1.2) * 30) % 800 + 20
            text = " ".join(f"word{chance.randrange(50)}" for _ in range(words))
            lines.append(json.dumps({"id": f"{name}-{number}", "text": text}) + "\n")
        (directory / f"{name}.jsonl").write_text("".join(lines))
    return directory


def recipe_of(directory: Path, **mixture: Any) -> Path:
    recipe = {
        "name": "near",
        "seed": 3,
        "sources": [
            {"name": name, "domain": name, "files": f"{name}.jsonl", "fields": {"id": "id"}} for name in NAMES
        ],
        "split": {"valid_fraction": "0"},
        "tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 300, "sample_megabytes": 1}, "eos": "<e>"},
        "pack": {"length": LENGTH},
        "mixture": {"weights": {"web": "0.5", "math": "0.5"}, "held_out": "whole", **mixture},
        "builds": [{"name": "rows", "format": "memmap"}],
    }
    path = directory / "recipe.yaml"
    path.write_text(json.dumps(recipe))
    return path


@pytest.fixture(scope="module")
def reach(place: Path) -> int:
    """Tokens that the smaller source lets a mixture of halves have."""
    out = mill.run(recipe_of(place, tokens=1000), place / "counted", workers=1).out
    tokens = [
        sum(
            sum(pq.read_table(path, columns=["tokens"]).column(0).to_pylist())
            for path in (out / "tokens/train" / name).glob("lengths-*.parquet")
        )
        for name in NAMES
    ]
    return 2 * min(tokens)


def estimated(recipe: Path, share: float) -> Estimate:
    whole = read_recipe(recipe).recipe
    assert whole is not None
    size = sum((recipe.parent / f"{name}.jsonl").stat().st_size for name in NAMES)
    return estimate_run(whole, recipe.parent, text_bytes=int(size * share))


def staged(amount: int) -> dict[str, Any]:
    half = amount // 2
    return {"stages": [{"name": "main", "tokens": half}, {"name": "last", "tokens": half}]}


@pytest.mark.parametrize("kind", ["stages", "tokens"])
def test_what_runs_is_estimated(place: Path, reach: int, kind: str, tmp_path: Path) -> None:
    amount = int(reach * 0.99)
    recipe = recipe_of(place, **(staged(amount) if kind == "stages" else {"tokens": amount}))
    out = mill.run(recipe, tmp_path / "out", workers=1).out
    written = {
        path.parent.parent.name: path.stat().st_size // 4 for path in out.glob("build/*/train/input_ids.mmap")
    }
    for share in (0.5, 0.125, 0.0625):
        found = estimated(recipe, share)
        for build, tokens in written.items():
            assert found.builds[build] == pytest.approx(tokens, rel=0.05)


def test_a_source_that_may_be_too_small_is_named(place: Path, reach: int) -> None:
    found = estimated(recipe_of(place, **staged(int(reach * 1.3))), 0.25)
    assert any("math" in note or "web" in note for note in found.notes)
    assert all("may have enough, or the run stops" in note for note in found.notes)
    found = estimated(recipe_of(place, **staged(int(reach * 0.4))), 0.25)
    assert found.notes == []


def test_what_is_far_beyond_all_there_is_is_refused(place: Path, reach: int) -> None:
    with pytest.raises(InputError, match="is exhausted"):
        estimated(recipe_of(place, **staged(4 * reach)), 0.25)


def test_from_all_documents_the_estimate_refuses_what_the_run_does(place: Path, reach: int) -> None:
    recipe = recipe_of(place, **staged(int(reach * 1.1)))
    with pytest.raises(InputError, match="is exhausted"):
        estimated(recipe, 1)

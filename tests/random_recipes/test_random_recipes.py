"""Recipes drawn at random: whatever they ask for, what is promised of every run holds.

    make test      40 of them, by a seed that is another one each week
    make random    3,000

A failing case is printed, as small as it could be made; `python -m random_recipes --case FILE` tries it
again.
"""

from __future__ import annotations

import datetime
import os
import random
from pathlib import Path

import pytest

from random_recipes.drawing import Suite
from random_recipes.recipes import NOT_DRAWN, Draw, draw_case, drawable, options, repaired
from tokmill.recipe.keys import key_paths


def week() -> str:
    year, number, _ = datetime.date.today().isocalendar()
    return os.environ.get("RANDOM_RECIPES_SEED", f"{year}-{number:02}")


def try_recipes(
    count: int, directory: Path, monkeypatch: pytest.MonkeyPatch, seed: str, shrink_seconds: float
) -> Suite:
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    suite = Suite(seed, directory, shrink_seconds=shrink_seconds)
    for number in range(count):
        suite.try_one(str(number), suite.draw())
    print(suite.told())
    return suite


def test_what_is_promised_of_every_run_holds_for_recipes_drawn_at_random(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = try_recipes(40, tmp_path, monkeypatch, week(), shrink_seconds=60)
    assert not suite.faults, suite.told()
    assert suite.did["milled"] >= 15, "most recipes are refused: the generator knows too little of them"


@pytest.mark.slow_random
@pytest.mark.parametrize("part", range(10))
def test_what_is_promised_holds_for_three_thousand(
    part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = try_recipes(300, tmp_path, monkeypatch, f"{week()} {part}", shrink_seconds=120)
    assert not suite.faults, suite.told()


def test_every_option_is_drawn_or_is_in_the_list_of_those_that_are_not() -> None:
    missing = drawable()
    for number in range(3000):
        recipe = repaired(
            Draw(random.Random(number), frozenset(".".join(sorted(missing)[:2]).split(".")), most=3).recipe()
        )
        missing -= options(recipe) if recipe else set()
        if not missing:
            break
    assert not missing, (
        f"random_recipes/recipes.py draws none of these, and NOT_DRAWN does not say why: {sorted(missing)}"
    )


def test_what_is_not_drawn_is_an_option() -> None:
    known = {".".join(path) for path in key_paths()}
    assert {name.partition("=")[0] for name in NOT_DRAWN} <= known


def test_one_seed_is_one_case() -> None:
    one, other = (draw_case(random.Random(5)) for _ in range(2))
    assert one == other

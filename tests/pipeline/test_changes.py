"""Six changes of mind: which steps are made again, and why, in the words of the recipe."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

import tokmill

RECIPE: dict[str, Any] = {
    "name": "minds",
    "sources": [
        {"name": "web", "files": "web.jsonl", "domain": "web"},
        {"name": "notes", "files": "notes.jsonl", "domain": "prose"},
    ],
    "filters": [{"measure": "chars", "min": 5, "reason": "too_short"}],
    "domains": {
        "web": {
            "filters": [
                {"measure": "chars", "min": 5, "reason": "too_short"},
                {"measure": "words", "max": 500, "reason": "too_long"},
                {"measure": "words", "min": 2, "reason": "few_words"},
            ]
        }
    },
    "split": {"valid_fraction": 0.1},
    "tokenizer": {"train": {"vocab_size": 300}, "eos": "<eos>"},
    "mixture": {"weights": {"web": 0.5, "prose": 0.5}, "tokens": 1200},
    "pack": {"length": 16},
    "builds": [{"name": "rows", "format": "memmap"}],
}


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("web", "notes"):
        lines = [
            json.dumps({"id": f"{name}{n}", "text": f"{name} has mill {n} and {n * n} sacks."})
            for n in range(80)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    tokmill.run(RECIPE, tmp_path / "out", workers=1)
    return tmp_path / "out"


def changed(*path: Any, to: Any) -> dict[str, Any]:
    recipe = copy.deepcopy(RECIPE)
    place: Any = recipe
    for key in path[:-1]:
        place = place[key]
    if to is None:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return recipe


def test_nothing_changed_has_no_reasons(out: Path) -> None:
    assert not any(tokmill.plan(RECIPE, out).steps.values())


@pytest.mark.parametrize(
    ("recipe", "step", "reason"),
    [
        (
            changed("domains", "web", "filters", 2, "min", to=3),
            "clean/web",
            "`domains.web.filters[2].min` changed 2 → 3",
        ),
        (changed("filters", 0, "min", to=8), "clean/notes", "`filters[0].min` changed 5 → 8"),
        (
            changed("sources", 1, "limit", to={"docs": 50}),
            "ingest/notes",
            '`sources.notes.limit` added: {"docs": 50}',
        ),
        (changed("split", "valid_fraction", to=0.2), "split", "`split.valid_fraction` changed 0.1 → 0.2"),
        (
            changed("tokenizer", "train", "vocab_size", to=310),
            "tokenizer",
            "`tokenizer.train.vocab_size` changed 300 → 310",
        ),
        (changed("mixture", "tokens", to=1000), "mixture", "`mixture.tokens` changed 1200 → 1000"),
        (changed("pack", "length", to=32), "build/rows", "`pack.length` changed 16 → 32"),
        (
            changed("domains", "web", "filters", 1, to=None),
            "clean/web",
            '`domains.web.filters[1]` removed (was {"max": 500, "measure": "words", "reason": "too_long"})',
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "/" not in value else "",
)
def test_a_step_is_made_again_for_a_reason_in_the_words_of_the_recipe(
    out: Path, recipe: dict[str, Any], step: str, reason: str
) -> None:
    reasons = tokmill.plan(recipe, out).steps[step]
    assert reasons == [reason]


@pytest.mark.parametrize(
    ("recipe", "ran"),
    [
        (changed("mixture", "weights", to={"web": 0.4, "prose": 0.6}), ["mixture", "build/rows"]),
        (changed("pack", "length", to=32), ["build/rows"]),
        (changed("mixture", "tokens", to=1000), ["mixture", "build/rows"]),
    ],
    ids=["weights", "length", "budget"],
)
def test_a_change_redoes_what_depends_on_it_and_nothing_else(
    out: Path, recipe: dict[str, Any], ran: list[str]
) -> None:
    assert tokmill.run(recipe, out, workers=1).ran == ran


def test_a_tokenizer_follows_the_mixture_where_that_is_asked_for(out: Path) -> None:
    following = changed("tokenizer", "train", "weights", to="mixture")
    tokmill.run(following, out, workers=1)
    following["mixture"]["weights"] = {"web": 0.4, "prose": 0.6}
    reasons = tokmill.plan(following, out).steps["tokenizer"]
    assert "`mixture.weights.web` changed 0.5 → 0.4" in reasons
    assert any("`tokenizer.train.weights: mixture`" in reason for reason in reasons), "and says how to choose"

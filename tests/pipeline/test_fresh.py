"""An edited run is a fresh run of the recipe as it is then: every manifest, and so the digest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from mill import differences, digest_of, steps_of
from takedown.marked import BOOKS, BUILDS, make_corpus, make_recipe
from tokmill.formats import find_format, format_names
from tokmill.recipe.tokens import TEXT_FORMATS

Json = dict[str, Any]
Edit = Callable[[Json], object]


def edited(recipe: Path, edit: Edit) -> None:
    content = json.loads(recipe.read_text())
    edit(content)
    recipe.write_text(json.dumps(content))


def compare_with_fresh(recipe: Path, edit: Edit) -> None:
    """Run, edit, run again; and once from nothing."""
    out = mill.run(recipe, workers=1).out
    before = steps_of(out)
    edited(recipe, edit)
    mill.run(recipe, workers=1)
    assert steps_of(out) != before, "the edit must change something, or this proves nothing"
    fresh = mill.run(recipe, out.with_name("fresh"), workers=1).out
    assert differences(steps_of(fresh), steps_of(out)) == []
    assert digest_of(fresh) == digest_of(out)
    assert [step for step, reasons in mill.plan(recipe).steps.items() if reasons] == []


def keep_all(recipe: Json) -> None:
    recipe["filters"].append({"measure": "chars", "min": 1})


def builds_of_every_format() -> list[Json]:
    builds = []
    for name in format_names():
        shapes = find_format(name).shapes
        layouts = [{"pack": {"layout": "concat", "length": 64}}] if "rows" in shapes else [{}]
        layouts += [{"pack": {"layout": "indexed"}}] if {"rows", "documents"} <= set(shapes) else []
        for number, layout in enumerate(layouts):
            builds.append({"name": f"{name}-{number}".replace("_", "-"), "format": name, **layout})
    return builds + [{"name": f"t-{name}", "content": "text", "format": name} for name in TEXT_FORMATS]


def test_a_filter_that_drops_nobody_makes_of_every_format_what_a_fresh_run_makes(tmp_path: Path) -> None:
    make_corpus(tmp_path)
    recipe = make_recipe(tmp_path, dedup={"exact": True}, builds=builds_of_every_format(), mixture={})
    edited(recipe, lambda content: content["tokenizer"].update(encoding="gpt2"))  # ids of two bytes
    compare_with_fresh(recipe, keep_all)


# Each was thought to change nothing in steps whose files and settings stay what they were.
EDITS: dict[str, Edit] = {
    "eos": lambda recipe: recipe["tokenizer"].update(eos="<|fim_prefix|>"),
    "bos": lambda recipe: recipe["tokenizer"].update(bos="<|fim_prefix|>"),
    "a control token": lambda recipe: recipe["tokenizer"].update(control=["<|fim_suffix|>"]),
    "a padded vocabulary": lambda recipe: recipe["tokenizer"].update(padded_vocab_size=100_352),
    "a split without a document": lambda recipe: recipe["split"].update(test_fraction="0.000001"),
    "a limit that leaves room for a fallback": lambda recipe: recipe["sources"][1]["limit"].update(docs=10),
    "the fractions of a target": lambda recipe: recipe["split"].update(valid_fraction="0.250001"),
    "passes that nobody takes": lambda recipe: recipe["mixture"].update(max_epochs=8),
    "the domain of a source without documents": lambda recipe: recipe["sources"][3].update(domain="x"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_makes_what_a_fresh_run_makes(tmp_path: Path, name: str) -> None:
    make_corpus(tmp_path)
    recipe = make_recipe(
        tmp_path,
        dedup={"exact": True},
        split={"valid_fraction": "0.25"},
        sources=[
            {"name": "web", "domain": "web", "files": "web-*.jsonl"},
            {**BOOKS, "limit": {"docs": 8}, "fallback": "more"},
            {"name": "more", "domain": "prose", "files": "more.jsonl"},
            {"name": "none", "domain": "prose", "files": "more.jsonl", "where": {"id": "nobody"}},
        ],
        mixture={"tokens": 4000, "exhausted": "repeat", "max_epochs": 9},
        builds=[BUILDS[0], {"name": "cache", "format": "token_cache"}],
    )
    compare_with_fresh(recipe, EDITS[name])


def test_a_run_that_is_edited_back_is_the_run_that_it_was(tmp_path: Path) -> None:
    make_corpus(tmp_path)
    recipe = make_recipe(tmp_path, dedup={"exact": True}, builds=[{"name": "cache", "format": "token_cache"}])
    out = mill.run(recipe, workers=1).out
    before = shutil.copytree(out, tmp_path / "before")
    content = recipe.read_text()
    edited(recipe, EDITS["eos"])
    mill.run(recipe, workers=1)
    recipe.write_text(content)
    mill.run(recipe, workers=1)
    assert differences(steps_of(before), steps_of(out)) == []

"""The recipe that a run wrote down, with every default, is read as the recipe that it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.test_recipe import EOS, SMALL, parse, section_places
from tokmill import Recipe, load_recipe
from tokmill.recipe.file import parse_recorded, read_recipe

RECIPES = sorted((Path(__file__).parents[2] / "recipes").rglob("*.yaml"))


def recorded(recipe: Recipe) -> Any:
    """As the manifest has it."""
    return json.loads(json.dumps(recipe.model_dump(mode="json")))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_shipped_recipes_are_read_again(path: Path) -> None:
    recipe = load_recipe(path)
    assert parse_recorded(recorded(recipe)) == recipe.model_copy(update={"review": None})


@pytest.mark.parametrize(
    "text",
    [
        *(text.replace(", KEY", "").replace("KEY", "") for text, _ in section_places()),
        f"{SMALL}language: {{recall: 0.95}}",
        "name: x\nsources: [{name: a, files: b, clean: {language: {recall: 0.95}}}]",
        f"{SMALL}domains: {{default: {{language: {{recall: 0.95}}, filters: [c4]}}}}",
        f"{SMALL}dedup: {{against: {{files: a, fields: [b], ngram: 5}}, url: true, templates: true}}",
        f"{SMALL}tokenizer: {{path: t, {EOS}}}\nbuilds: [{{name: b, format: npy, pack: {{length: 9}}}}]",
        f"{SMALL}builds: [{{name: b, format: jsonl, content: text}}]",
        "name: x\nsources: [{name: a, files: b, webdataset: {meta: null}}]",
    ],
)
def test_every_section_is_read_again(text: str) -> None:
    recipe = parse(text)
    assert parse_recorded(recorded(recipe)) == recipe.model_copy(update={"review": None})


def test_a_recipe_of_another_version_is_none() -> None:
    assert parse_recorded({**recorded(parse(SMALL)), "mill": {"stones": 2}}) is None


# all that is text for YAML somewhere else: line ends, byte order marks, what it calls control characters
ODD = st.sampled_from("\x00\x1b\x7f\x85\xa0\u2028\u2029\ufeff\ufffe\uffff \n\t")
TEXTS = st.text(st.one_of(ODD, st.characters(codec="utf-8")))


@given(TEXTS)
def test_text_of_a_recipe_made_in_python_is_what_was_given(text: str) -> None:
    template = text.replace("{", "{{").replace("}", "}}") + "{text}"
    source = {"name": "a", "files": "a.jsonl", "template": template, "options": {}}
    made = read_recipe({"name": "t", "sources": [source]}).recipe
    assert made.sources[0].template == template
    again = parse_recorded(recorded(made))
    assert again is not None
    assert again.sources[0].template == template

"""`tokmill help`: whatever people meet is one command away."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import tokmill as mill
from docs.verbs import walk_verbs
from mill import tokmill
from tokmill import errors, loader
from tokmill.clean.measures import MEASURES
from tokmill.recipe import Recipe

SOURCE = Path(mill.__file__).parent


def kinds_of(topic: str) -> dict[str, str]:
    return {entry.kind: entry.text for entry in mill.help(topic).entries}


def paths_of(schema: dict[str, Any], part: dict[str, Any], path: str, depth: int = 0) -> list[str]:
    """Every key of the published schema, by its path; sections within themselves end after some steps."""
    found = []
    for key, value in part.get("properties", {}).items():
        own = f"{path}.{key}" if path else key
        found.append(own)
        text = json.dumps(value)
        below = dict.fromkeys(re.findall(r'"#/\$defs/(\w+)"', text))
        middle = ".name" if "patternProperties" in value or "patternProperties" in text else ""
        for model in below if depth < 4 else ():
            found += paths_of(schema, schema["$defs"][model], own + middle, depth + 1)
    return found


def test_every_key_of_a_recipe_is_explained_by_its_path_and_by_its_name() -> None:
    schema = Recipe.model_json_schema()
    paths = paths_of(schema, schema, "")
    assert len(paths) > 150
    for path in paths:
        entries = [entry for entry in mill.help(path).entries if entry.kind == "recipe key"]
        assert [entry.name for entry in entries] == [path]
        assert len(entries[0].text) > 5, path
        assert "`" not in entries[0].text.split("\n")[0], path
    for name in {path.rpartition(".")[2] for path in paths}:
        assert "recipe key" in kinds_of(name), name


@pytest.mark.parametrize(
    ("topic", "told"),
    [
        ("dedup.near.threshold", r"number, default 0\.8\n"),
        ("domains.web.filters[2].min", r"the least that is kept"),
        ("sources[0].hub", r"  revision +text"),
        ("pack.layout", r"concat \| "),
        ("name", r"text, required"),
    ],
)
def test_a_key_says_what_it_takes_its_default_and_what_it_is_for(topic: str, told: str) -> None:
    assert re.search(told, kinds_of(topic)["recipe key"])


def test_every_verb_is_explained_as_its_help_is() -> None:
    for path, command in walk_verbs():
        entry = mill.help(" ".join(path)).entries[0]
        assert (entry.kind, entry.name) == ("command", f"tokmill {' '.join(path)}")
        for option in command.params:
            assert all(spelled in entry.text for spelled in option.opts if spelled.startswith("--"))
    shown = tokmill("help", "recipe", "check").stdout
    assert shown.split()[2:] == tokmill("recipe", "check", "--help").stdout.split()[2:]
    assert "Run a recipe:" in tokmill("help").stdout


def test_every_error_reason_measure_pack_and_python_name_is_explained() -> None:
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, errors.TokmillError):
            assert len(kinds_of(name)["error"]) > 20
            assert kinds_of(name.lower())["error"] == kinds_of(name)["error"]
    page = (Path(__file__).parents[2] / "docs/measures.md").read_text(encoding="utf-8")
    every = page.partition("## Every measure")[2].partition("\n## ")[0]
    names = re.findall(r"^\| `(\w+)` \|", every, re.M)
    assert set(MEASURES) < set(names)
    for name in names:
        assert kinds_of(name)["measure"]
    for reason in ("robots_noai", "robots_noindex", "redacted_email", "other_year", "redacted_<kind>"):
        assert kinds_of(reason)["reason"]
    for path in (SOURCE / "clean/packs").glob("*.yaml"):
        rules = yaml.safe_load(path.read_text()).get("rules", [])
        assert all(rule["name"] in kinds_of(path.stem)["filter pack"] for rule in rules)
        assert all("reason" in kinds_of(rule["reason"]) for rule in rules)
    for reason in ("near_dup", "exact_dup", "bad_encoding"):
        assert kinds_of(reason)["reason"]
    for name in {*mill.__all__, *loader.__all__} - {"__version__"}:
        assert "Python" in kinds_of(name), name
    assert "def near_duplicates(" in kinds_of("tokmill.near_duplicates")["Python"]
    assert "class Batches" in kinds_of("Batches")["Python"]


def test_a_word_that_is_nothing_brings_those_that_were_probably_meant() -> None:
    done = tokmill("help", "dedup.near.treshold")
    assert done.returncode == 1
    assert "nothing is called dedup.near.treshold" in done.stderr
    assert "`dedup.near.threshold`" in done.stderr
    said = tokmill("help", "xyzzy").stderr
    assert "`tokmill recipe schema --markdown` has every key" in said
    for kind in ("command", "recipe key", "error", "reason", "measure", "pack", "variable", "Python name"):
        assert kind in said
    assert "nothing is called robots_" in tokmill("help", "robots_").stderr


def test_the_schema_as_markdown_has_every_key_in_a_table_and_no_marks_of_the_site() -> None:
    shown = tokmill("recipe", "schema", "--markdown")
    assert shown.returncode == 0
    schema = Recipe.model_json_schema()
    for part in (schema, *schema["$defs"].values()):
        for key in part.get("properties", {}):
            assert re.search(rf"^\| `{key}` \|", shown.stdout, re.M), key
    assert "{ #" not in shown.stdout
    assert "<!--" not in shown.stdout
    assert "](" not in shown.stdout
    assert json.loads(tokmill("recipe", "schema").stdout) == json.loads(json.dumps(schema))

"""`--set KEY=VALUE`: a key of a recipe for this run, recorded, and held to what keys can be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tokmill as mill
from mill import small_corpus, tokmill
from tokmill.errors import RecipeError
from written import load_manifest


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return small_corpus(
        tmp_path,
        filters=["gopher-quality", {"measure": "chars", "min": 5, "reason": "too_short"}],
        domains={"math": {"filters": [{"measure": "chars", "min": 20}, {"measure": "words", "min": 2}]}},
    )


def test_a_run_has_what_was_set_and_says_so_in_its_manifest(tmp_path: Path) -> None:
    recipe = small_corpus(tmp_path)
    done = tokmill("run", recipe, "--out", tmp_path / "out", "--set", "pack.length=32", "--set", "seed=11")
    assert done.returncode == 0, done.stderr
    build = load_manifest(tmp_path / "out/build/rows")
    written = sum(path.stat().st_size for path in (tmp_path / "out/build/rows").glob("*/input_ids.mmap"))
    assert written == build.counts["rows"] * 32 * 4  # int32
    manifest = load_manifest(tmp_path / "out")
    assert (manifest.config["pack"]["length"], manifest.config["seed"]) == (32, 11)
    assert manifest.environment["set"] == {"pack.length": "32", "seed": "11"}


def test_a_plain_run_afterwards_says_which_key_goes_back(tmp_path: Path) -> None:
    recipe = small_corpus(tmp_path)
    assert tokmill("run", recipe, "--set", "pack.length=32").returncode == 0
    told = tokmill("plan", recipe).stdout
    assert "`pack.length` changed 32 → 64" in told, told
    same = tokmill("plan", recipe, "--set", "pack.length=32").stdout
    assert "run " not in same, same
    assert tokmill("run", recipe).returncode == 0
    assert "set" not in load_manifest(tmp_path / "out/small").environment


def test_what_is_set_gives_what_a_file_with_it_gives(tmp_path: Path) -> None:
    made = []
    for name, length, words in (("file", 32, ()), ("set", 64, ("--set", "pack.length=32"))):
        recipe = small_corpus(tmp_path / name, pack={"length": length})
        assert tokmill("run", recipe, "--out", tmp_path / name / "out", *words).returncode == 0
        made.append(mill.verify(tmp_path / name / "out").digest)
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("setting", "key", "value"),
    [
        ("dedup.near.threshold=0.7", "dedup.near.threshold", "0.7"),
        ("domains.math.filters[1].min=3", "domains.math.filters[1].min", "3"),
        ("filters[0].set.min_words=30", "filters[0].set", '{"min_words": 30}'),
        ("sources[1].unit=line", "sources[1].unit", "line"),
        ("builds[0].name=other", "builds[0].name", "other"),
        ("redact=[email, ip]", "redact", '["email", "ip"]'),
        ("split={method: hash, valid_fraction: 0.2}", "split.valid_fraction", "0.2"),
        ("dedup.max_source_loss=null", "dedup.max_source_loss", "null"),
    ],
)
def test_any_key_can_be_set_and_explain_says_where_it_comes_from(
    recipe: Path, setting: str, key: str, value: str
) -> None:
    done = tokmill("recipe", "check", recipe, "--set", setting, "--explain", "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    rows = {row["key"]: row for row in json.loads(done.stdout)["explained"]}
    found = rows[key]
    shown = found["value"] if isinstance(found["value"], str) else json.dumps(found["value"])
    assert shown == value
    assert found["origin"] == "--set"
    assert rows["name"]["origin"].startswith("line ")


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("pack.lenght=32", "--set pack.lenght: unknown key; did you mean `length`?"),
        ("dedpu.near.threshold=0.7", "--set dedpu: unknown key; did you mean `dedup`?"),
        ("domains.math.filters[2].min=3", "`domains.math.filters` has 2 items, counted from [0]"),
        ("pack[0]=3", "the recipe has no list at `pack`; set it whole: `pack=[…]`"),
        ("sources.notes.unit=line", "`sources` is a list; write `sources[1]`"),
        ("sources.other.unit=line", "`sources` is a list; write an item of it, such as `sources[0]`"),
        ("seed.value=3", "`seed` is no section of the recipe but 7; set it whole: `seed=…`"),
        ("pack.length=many", "--set pack.length: "),
        ("pack.length", "--set pack.length: has no value; write `pack.length=VALUE`, and null for none"),
        ("pack..length=3", "--set pack..length: is no key; for example `pack.length=4096`"),
        ("redact=[email", "--set redact: cannot be read as YAML"),
        ("redact=[email, fax]", "--set redact[1]: "),
        ("sources[0].files=nothing/*.jsonl", "--set sources[0].files"),
    ],
)
@pytest.mark.parametrize("verb", [("recipe", "check"), ("plan",), ("run",)])
def test_a_wrong_setting_is_told_by_its_key_before_any_work(
    recipe: Path, setting: str, told: str, verb: tuple[str, ...]
) -> None:
    done = tokmill(*verb, recipe, "--set", setting)
    assert done.returncode == 1
    assert told in done.stderr
    assert "line 0" not in done.stderr
    assert not (recipe.parent / "out").exists()


def test_mistakes_of_the_file_and_of_settings_are_told_together(tmp_path: Path) -> None:
    recipe = small_corpus(tmp_path, sead=1)
    done = tokmill("recipe", "check", recipe, "--set", "pack.lenght=3", "--set", "nonsense")
    assert "3 mistakes" in done.stderr
    assert "sead: unknown key; did you mean `seed`?" in done.stderr


def test_python_sets_keys_of_every_kind_of_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small_corpus(tmp_path)
    monkeypatch.chdir(tmp_path)
    sections = json.loads(path.read_text())
    records = [{"text": "one two three"}, {"text": "four five six"}]
    for recipe in (path, path.read_text(), {**sections, "sources": [{"name": "m", "data": records}]}):
        checked = mill.recipe_check(recipe, tmp_path / "out", set={"split.valid_fraction": 0.25, "seed": 3})
        assert (str(checked.recipe.split.valid_fraction), checked.recipe.seed) == ("0.25", 3)
    made = mill.Recipe(name="made", sources=[mill.Source(name="m", data=records)])
    ran = mill.run(
        made, tmp_path / "ran", set=["filters=[{measure: words, min: 3}]"], until="clean", workers=1
    )
    assert ran.artifacts["clean/m"].manifest.counts["kept"] == 2
    with pytest.raises(RecipeError, match=r"--set pack\.size"):
        mill.plan(made, tmp_path / "ran", set={"pack.size": 3})

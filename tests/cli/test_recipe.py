"""`tokmill recipe check | schema | init`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tokmill import Recipe, load_recipe
from tokmill.cli import main


def tokmill(*arguments: str | Path) -> Result:
    """A command that ends by itself: an exception that escapes is a bug, and is raised here."""
    result = CliRunner().invoke(main, ["recipe", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.yaml"
    path.write_text("name: x\nsources: [{name: a, files: b.jsonl}]\n")
    (tmp_path / "b.jsonl").write_text('{"text": "hello"}\n')
    return path


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.yaml"
    path.write_text("name: x\nsources: [{name: a, files: b.jsonl, licence: MIT}]\nseed: -1\n")
    (tmp_path / "b.jsonl").write_text('{"text": "hello"}\n')
    return path


def test_a_good_recipe_is_called_good(good: Path) -> None:
    shown = tokmill("check", good)
    assert shown.exit_code == 0
    assert shown.stdout == f"✓ {good}: 1 source, 0 builds\n"
    assert shown.stderr == ""


def test_a_good_recipe_is_printed_whole_as_json_with_its_defaults(good: Path) -> None:
    shown = tokmill("check", good, "--json")
    assert shown.exit_code == 0
    report = json.loads(shown.stdout)
    assert report["ok"] is True
    assert Recipe.model_validate(report["recipe"]) == load_recipe(good)


def test_all_mistakes_are_told_on_stderr_with_what_to_do_next(bad: Path) -> None:
    shown = tokmill("check", bad)
    assert shown.exit_code == 1
    assert shown.stdout == ""
    assert shown.stderr.splitlines() == [
        f"RecipeError {bad}: 2 mistakes",
        "  line 2: sources[0].licence: unknown key; did you mean `license`?",
        "  line 3: seed: input should be greater than or equal to 0 (got -1)",
        "  next: fix them and run `tokmill recipe check`; `tokmill help KEY` explains a key",
    ]


def test_all_mistakes_are_one_json_object_on_stdout(bad: Path) -> None:
    shown = tokmill("check", bad, "--json")
    assert shown.exit_code == 1
    report = json.loads(shown.stdout)
    assert report["ok"] is False
    assert report["error"]["kind"] == "RecipeError"
    assert report["error"]["where"] == str(bad)
    assert report["error"]["what"].splitlines()[0] == "2 mistakes"
    assert "tokmill help KEY" in report["error"]["next"]


def test_a_message_is_shown_to_the_letter_whatever_a_terminal_library_reads_into_it(tmp_path: Path) -> None:
    """Brackets are no markup and :key: is no picture."""
    path = tmp_path / "[bold]:key:.yaml"
    path.write_text("name: x\nsources: [{name: ':smile: [red]', files: b}]\n")
    shown = tokmill("check", path)
    assert f"RecipeError {path}: 1 mistake" in shown.stderr
    assert '(got ":smile: [red]")' in shown.stderr


def test_a_recipe_that_is_not_there_is_a_wrong_argument(tmp_path: Path) -> None:
    shown = tokmill("check", tmp_path / "none.yaml")
    assert shown.exit_code == 2
    assert "none.yaml' does not exist" in shown.stderr


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_the_schema_is_json_on_stdout(options: list[str]) -> None:
    shown = tokmill("schema", *options)
    assert shown.exit_code == 0
    assert json.loads(shown.stdout) == Recipe.model_json_schema()


def test_a_started_recipe_is_a_good_recipe(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "recipe.yaml"
    shown = tokmill("init", path, "--files", "data/*.jsonl.zst", "--name", "mine")
    assert shown.exit_code == 0
    assert shown.stdout == f"wrote {path}; edit it, then: tokmill run {path}\n"
    recipe = load_recipe(path)
    assert recipe.name == "mine"
    assert recipe.sources[0].files == ["data/*.jsonl.zst"]
    assert [build.format for build in recipe.builds] == ["memmap", "megatron"]
    assert "sources[0].files: data/*.jsonl.zst: the pattern matches no file" in tokmill("check", path).stderr
    (path.parent / "data").mkdir()
    (path.parent / "data" / "a.jsonl").write_text('{"text": "hello"}\n')
    path.write_text(path.read_text().replace(".zst", ""))
    assert tokmill("check", path).exit_code == 0


def test_a_started_recipe_says_where_it_is_as_json(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    shown = tokmill("init", path, "--json")
    assert json.loads(shown.stdout) == {"ok": True, "path": str(path)}
    assert load_recipe(path).name == "corpus"


@pytest.mark.parametrize(
    "files",
    [
        "plain.txt",
        "no",
        "123",
        "a b/#c: d.txt",
        'quo"ted.txt',
        "back\\slash.txt",
        "*.jsonl",
        "{x}.txt",
        "é日.txt",
    ],
)
def test_any_glob_survives_being_written_into_the_recipe(tmp_path: Path, files: str) -> None:
    path = tmp_path / "recipe.yaml"
    assert tokmill("init", path, "--files", files).exit_code == 0
    assert load_recipe(path).sources[0].files == [files]


@pytest.mark.parametrize("name", ["true", "2024", "1e3", "a-b.c_d"])
def test_any_name_that_is_a_name_survives_too(tmp_path: Path, name: str) -> None:
    path = tmp_path / "recipe.yaml"
    assert tokmill("init", path, "--name", name).exit_code == 0
    assert load_recipe(path).name == name


@pytest.mark.parametrize("name", ["a b", "../up", "", "é", "x\ny: z"])
def test_a_name_that_is_no_name_is_refused_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / "recipe.yaml"
    shown = tokmill("init", path, "--name", name)
    assert shown.exit_code == 1
    assert "name: " in shown.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_an_existing_file_is_never_overwritten(tmp_path: Path, options: list[str]) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("precious")
    shown = tokmill("init", path, *options)
    assert shown.exit_code == 1
    assert path.read_text() == "precious"
    if options:
        error: dict[str, Any] = json.loads(shown.stdout)["error"]
        assert (error["kind"], error["what"], error["where"]) == ("RecipeError", "exists already", str(path))
    else:
        assert f"RecipeError {path}: exists already\n  next: choose another path" in shown.stderr


def test_a_directory_is_no_place_for_a_recipe(tmp_path: Path) -> None:
    assert tokmill("init", tmp_path).exit_code == 2

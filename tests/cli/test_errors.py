"""Errors on the command line: exit status 1, words on stderr, or one JSON object on stdout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tokmill.cli import main
from written import MANIFEST

RECIPE = "name: x\nsources: [{name: a, files: 'nothing/*.jsonl'}]\n"


def tokmill(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    return path


@pytest.mark.parametrize("verb", ["run", "plan"])
def test_an_error_says_what_where_and_what_next_on_stderr(recipe: Path, verb: str) -> None:
    shown = tokmill(verb, recipe)
    assert shown.exit_code == 1
    assert shown.stdout == ""
    place = f"{recipe}, line 2: sources[0].files: nothing/*.jsonl"
    assert f"EmptyGlob {place}: the pattern matches no file" in shown.stderr
    assert "next: there is no directory nothing/; paths are relative to the recipe" in shown.stderr


@pytest.mark.parametrize("verb", ["run", "plan"])
def test_an_error_is_one_json_object_on_stdout_when_json_is_asked_for(recipe: Path, verb: str) -> None:
    shown = tokmill(verb, recipe, "--json")
    assert shown.exit_code == 1
    assert json.loads(shown.stdout) == {
        "ok": False,
        "error": {
            "kind": "EmptyGlob",
            "what": "the pattern matches no file",
            "where": f"{recipe}, line 2: sources[0].files: nothing/*.jsonl",
            "next": "there is no directory nothing/; paths are relative to the recipe",
        },
    }


def test_a_step_that_is_not_in_the_plan_brings_those_that_are(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing" / "a.jsonl").write_text('{"text": "hello"}\n')
    shown = tokmill("plan", recipe, "--until", "tokns", "--json")
    assert shown.exit_code == 1
    error = json.loads(shown.stdout)["error"]
    assert error["what"] == "no step is called tokns"
    assert error["next"] == "one of: ingest, ingest/a, clean, clean/a, dedup, split"


def test_the_plan_of_a_recipe_that_was_never_run(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing" / "a.jsonl").write_text('{"text": "hello"}\n')
    shown = tokmill("plan", recipe, "--json")
    assert shown.exit_code == 0
    report = json.loads(shown.stdout)
    assert report["ok"] is True
    assert [row["step"] for row in report["steps"]] == ["ingest/a", "clean/a", "dedup", "split"]
    assert all(row == {**row, "current": False, "reasons": ["not built yet"]} for row in report["steps"])
    assert not (tmp_path / "out").exists(), "a plan writes nothing"
    lines = tokmill("plan", recipe).stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [["run", row["step"]] for row in report["steps"]]


def test_verifying_a_directory_that_is_not_there(tmp_path: Path) -> None:
    shown = tokmill("verify", tmp_path / "none")
    assert shown.exit_code == 1
    assert f"StorageError {tmp_path / 'none'}: no such file or directory" in shown.stderr
    assert "next: give what a command wrote: a run" in shown.stderr


def test_verifying_what_was_never_a_run_fails_with_its_problems(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text("{}")
    shown = tokmill("verify", tmp_path, "--json")
    assert shown.exit_code == 1
    report = json.loads(shown.stdout)
    assert report["ok"] is False
    assert [problem["where"] for problem in report["problems"]] == [MANIFEST]
    assert MANIFEST in tokmill("verify", tmp_path).stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["run", "recipe.yaml", "--workers", "0"],
        ["verify"],
        ["demo", "--speed", "9"],
        ["doctor", "x"],
    ],
)
def test_wrong_arguments_are_exit_status_2_and_show_the_usage(arguments: list[str]) -> None:
    shown = tokmill(*arguments)
    assert shown.exit_code == 2
    assert shown.stderr.startswith("Usage: ")
    assert shown.stdout == ""

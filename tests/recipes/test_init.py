"""`tokmill recipe init --like NAME`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from recipes.shelved import NAMES
from tokmill import load_recipe
from tokmill.cli import main

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


def init(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(main, ["recipe", "init", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_is_the_recipe_under_what_the_readme_says_of_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / "mine.yaml"
    assert init(path, "--like", name).exit_code == 0
    ours = RECIPES / f"{name}.yaml"
    assert load_recipe(path) == load_recipe(ours)
    text = path.read_text(encoding="utf-8")
    section = (RECIPES / "README.md").read_text(encoding="utf-8").partition(f"\n## {name}\n")[2]
    assert text.startswith(f"# {section.strip().splitlines()[0]}\n")
    assert text.endswith(ours.read_text(encoding="utf-8"))
    assert [file.name for file in tmp_path.iterdir()] == ["mine.yaml"]


def test_the_copy_is_called_like_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = init("--like", "stage-a")
    assert shown.stdout == "wrote stage-a.yaml; edit it, then: tokmill run stage-a.yaml\n"


def test_an_offline_copy_has_all_that_it_reads_beside_it(tmp_path: Path) -> None:
    for name in NAMES:
        assert init(tmp_path / f"{name}.yaml", "--like", name, "--offline").exit_code == 0
        for source in load_recipe(tmp_path / f"{name}.yaml").sources:
            for pattern in source.files or []:
                assert list(tmp_path.glob(pattern)), f"{name}: {pattern}"


def test_files_that_are_there_are_left_as_they_are(tmp_path: Path) -> None:
    mine = tmp_path / "stand-in" / "pairs.jsonl"
    mine.parent.mkdir()
    mine.write_text("mine")
    assert init(tmp_path / "a.yaml", "--like", "healing", "--offline").exit_code == 0
    assert mine.read_text() == "mine"


def test_a_name_that_is_not_there_lists_those_that_are(tmp_path: Path) -> None:
    shown = init(tmp_path / "a.yaml", "--like", "stage-b")
    assert shown.exit_code == 1
    assert "did you mean `stage-a`?" in shown.stderr
    assert all(name in shown.stderr for name in NAMES)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--offline"], "`--offline` is for `--like`"),
        (["--like", "healing", "--name", "x"], "has its own files and name"),
        (["--like", "healing", "--files", "x"], "has its own files and name"),
    ],
)
def test_options_that_cannot_go_together_are_refused(tmp_path: Path, options: list[str], told: str) -> None:
    shown = init(tmp_path / "a.yaml", *options)
    assert shown.exit_code == 1
    assert told in shown.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_never_overwritten_by_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("precious")
    assert init(path, "--like", "healing", "--offline").exit_code == 1
    assert path.read_text() == "precious"
    assert [file.name for file in tmp_path.iterdir()] == ["a.yaml"]

"""What a manifest says about where it was made."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest

import tokmill
from written import load_manifest


def git(directory: Path, *arguments: str) -> str:
    who = ("-c", "user.name=Miller", "-c", "user.email=miller@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *who, *arguments], cwd=directory, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


RECIPE = "name: a\nsources: [{name: s, files: a.txt}]\n"


def told(directory: Path) -> tuple[str | None, bool | None]:
    """By the manifest of a run of the recipe that lies there."""
    (directory / "a.txt").write_text("text\n")
    with tempfile.TemporaryDirectory() as place:
        out = tokmill.run(directory / "recipe.yaml", Path(place) / "out", workers=1, until="ingest").out
        found = load_manifest(out / "ingest/s").environment
    return found["git_sha"], found["git_dirty"]


@pytest.mark.parametrize("change", ["none", "edited", "staged", "untracked"])
def test_the_commit_is_told_with_whether_tracked_files_differ_from_it(tmp_path: Path, change: str) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    if change != "none":
        (tmp_path / ("other" if change == "untracked" else "recipe.yaml")).write_text(f"seed: 1\n{RECIPE}")
    if change == "staged":
        git(tmp_path, "add", ".")
    assert told(tmp_path) == (git(tmp_path, "rev-parse", "HEAD"), change in ("edited", "staged"))


def test_where_there_is_no_repository_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    assert told(tmp_path) == (None, None)

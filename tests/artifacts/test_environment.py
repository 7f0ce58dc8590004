"""What a manifest says about where it was made."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tokmill.artifacts.manifest import describe_environment


def git(directory: Path, *arguments: str) -> str:
    who = ("-c", "user.name=Miller", "-c", "user.email=miller@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *who, *arguments], cwd=directory, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def told(directory: Path) -> tuple[str | None, bool | None]:
    found = describe_environment(workers=1, engine="local", recipe_directory=directory)
    return found["git_sha"], found["git_dirty"]


@pytest.mark.parametrize("change", ["none", "edited", "staged", "untracked"])
def test_the_commit_is_told_with_whether_tracked_files_differ_from_it(tmp_path: Path, change: str) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "recipe.yaml").write_text("name: a\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    if change != "none":
        (tmp_path / ("out" if change == "untracked" else "recipe.yaml")).write_text("name: b\n")
    if change == "staged":
        git(tmp_path, "add", ".")
    assert told(tmp_path) == (git(tmp_path, "rev-parse", "HEAD"), change in ("edited", "staged"))


def test_where_there_is_no_repository_nothing_is_said(tmp_path: Path) -> None:
    assert told(tmp_path) == (None, None)

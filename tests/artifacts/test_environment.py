"""What a manifest says about where it was made."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import tokmill
from written import load_manifest


def git(directory: Path, *arguments: str) -> str:
    who = ("-c", "user.name=Miller", "-c", "user.email=miller@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *who, *arguments], cwd=directory, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


RECIPE = "name: a\nsources: [{name: s, files: a.txt}]\n"


def told(directory: Path) -> str | None:
    """By the manifest of a run of the recipe that lies there."""
    (directory / "a.txt").write_text("text\n")
    with tempfile.TemporaryDirectory() as place:
        out = tokmill.run(directory / "recipe.yaml", Path(place) / "out", workers=1, until="ingest").out
        found = load_manifest(out / "ingest/s").environment
    assert [name for name in found if name.startswith("git")] == ["git_sha"]
    sha: str | None = found["git_sha"]
    return sha


def test_the_commit_of_the_recipe_is_told(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "below").mkdir()
    (tmp_path / "below/recipe.yaml").write_text(RECIPE)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    assert told(tmp_path / "below") == git(tmp_path, "rev-parse", "HEAD")


def test_where_there_is_no_repository_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    assert told(tmp_path) is None

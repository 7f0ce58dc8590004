"""Mistakes beside the recipe: places that cannot be read or written, disks that are too small, arguments,
and steps that are not there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import tokmill
from pipeline.mistaken import NOTES, Workspace, command, contents, made_workspace


@pytest.fixture(scope="module")
def workspace() -> Iterator[Workspace]:
    with made_workspace() as made:
        yield made


def test_out_that_is_a_file_is_told(workspace: Workspace) -> None:
    recipe, file = workspace.directory / "recipe.yaml", workspace.directory / "notes.txt"
    for out in (file, file / "below"):
        shown = command("run", recipe, "--out", out)
        assert shown.exit_code == 1
        assert (
            f"--out: {file}: cannot write here (it is a file, and results need a directory)" in shown.stderr
        )
        assert "next: choose another directory with `--out`" in shown.stderr


@pytest.mark.parametrize("what", ["the recipe", "a file"])
def test_what_may_not_be_written_or_read_is_told(workspace: Workspace, what: str) -> None:
    """As somebody who is not root, whom nothing is forbidden."""
    directory = workspace.directory
    command("recipe", "check", directory / "recipe.yaml")  # loads what it needs
    locked = directory / "locked"
    locked.mkdir()
    (directory / "secret.txt").write_text("hush")
    (directory / "secret.txt").chmod(0)
    (directory / "secret.yaml").write_text(workspace.text.replace(NOTES, "files: secret.txt"))
    locked.chmod(0o555)
    was = os.geteuid()
    os.seteuid(was or 65534)
    try:
        if what == "a file":
            shown = command("recipe", "check", directory / "secret.yaml", "--out", Path("/tmp/never"))
            told = ["line 10: sources[1].files: ", "secret.txt: cannot be read (Permission denied)"]
        else:
            shown = command("run", directory / "recipe.yaml", "--out", locked / "out")
            told = [
                f"--out: {locked}: cannot write here (no permission)",
                "next: choose another directory with `--out`",
            ]
    finally:
        os.seteuid(was)
        for path in (locked, directory / "secret.txt"):
            path.chmod(0o755)
        locked.rmdir()
        (directory / "secret.txt").unlink()
        (directory / "secret.yaml").unlink()
    assert shown.exit_code == 1
    for part in told:
        assert part in shown.stderr


def test_an_input_that_no_disk_here_can_hold_again_is_told_before_it_is_read(workspace: Workspace) -> None:
    file, path = workspace.directory / "huge.txt", workspace.directory / "huge.yaml"
    size = 9 * shutil.disk_usage(workspace.directory).free
    with file.open("wb") as opened:
        opened.write(b"a" * 70_000)
        opened.truncate(size)  # a hole: it takes no room
    path.write_text(workspace.text.replace(NOTES, "files: huge.txt"))
    try:
        shown = command("run", path, "--out", workspace.directory / "never")
    finally:
        file.unlink()
        path.unlink()
    assert shown.exit_code == 1
    assert f"the input has {size / 1e9:,.1f} GB, a run needs roughly as much, and " in shown.stderr
    assert "next: choose another disk with `--out`, or `limit` the sources" in shown.stderr
    assert not (workspace.directory / "never").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "{}/none.yaml"], "none.yaml' does not exist"),
        (["run", "{}"], "is a directory"),
        (["run", "{}/recipe.yaml", "--engine", "spark"], "'spark' is not one of"),
        (["run", "{}/recipe.yaml", "--wokers", "2"], "--wokers"),
        (["rnu", "{}/recipe.yaml"], "rnu"),
        (["recipe", "check"], "Missing argument 'RECIPE'"),
    ],
)
def test_a_wrong_argument_is_told_with_how_to_ask_for_help(
    workspace: Workspace, arguments: list[str], message: str
) -> None:
    before = contents(workspace.directory)
    shown = command(*(argument.format(workspace.directory) for argument in arguments))
    assert shown.exit_code == 2
    assert message in shown.stderr
    assert "--help" in shown.stderr
    assert contents(workspace.directory) == before


def test_a_step_that_is_not_there_is_told_and_the_finished_run_stays_finished(workspace: Workspace) -> None:
    recipe, before = workspace.directory / "recipe.yaml", contents(workspace.directory)
    shown = command("run", recipe, "--until", "tokns")
    assert shown.exit_code == 1
    steps = (
        "ingest, ingest/web, clean, clean/web, ingest/notes, clean/notes, dedup, split, tokenizer, tokens, "
        "mixture, build"
    )
    assert shown.stderr.splitlines() == [
        f"RecipeError {recipe}, --until: no step is called tokns",
        f"  next: one of: {steps}, build/rows, build/mega",
    ]
    assert contents(workspace.directory) == before
    for step in tokmill.plan(recipe).steps:
        assert command("plan", recipe, "--until", step).exit_code == 0

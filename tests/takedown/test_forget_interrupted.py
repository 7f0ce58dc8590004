"""A takedown that is killed, cut short, or beside another command: it goes on, and never looks done."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from forked import run_forked
from takedown.marked import BUILDS, files_with, ids, make_corpus, make_recipe, small_run, tree
from tokmill.errors import InputError, RunLocked
from tokmill.storage.lease import open_lease
from tokmill.takedown.forgetting import Forgetting
from written import load_manifest


def test_what_is_meant_is_chosen_while_nobody_else_works_in_the_run(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(run)
    with open_lease(run):
        held = tree(run)
        with pytest.raises(RunLocked):
            mill.forget(
                run, **ids("w3"), workers=1, tell=lambda affected: pytest.fail("chosen without the lock")
            )
        assert tree(run) == held
        mill.forget(run, **ids("w3"), dry_run=True)  # reads only, beside anybody
    assert tree(run) == before

    def others_are_refused(affected: dict[str, Any]) -> None:
        with pytest.raises(RunLocked), open_lease(run):
            pass
        heard.append(affected)

    heard: list[dict[str, Any]] = []
    done = mill.forget(run, **ids("w3"), workers=1, tell=others_are_refused)
    assert heard == [done.affected]
    assert files_with(run, "w3") == set()


def test_a_takedown_that_another_command_ended_in_between_is_not_begun_again(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the choice, which is on disk, and the work somebody else may work here, and ends it."""
    import tokmill.takedown.forgetting as forgetting

    whole, ended = forgetting._rebuild, []

    def late(out: Path, pending: Any, *rest: Any) -> Forgetting:
        if not ended:
            ended.append(whole(out, pending, *rest))
            ended.append(mill.verify(out).digest)
        return whole(out, pending, *rest)

    monkeypatch.setattr(forgetting, "_rebuild", late)
    with pytest.raises(InputError, match="another command ended the takedown"):
        mill.forget(run, **ids("w3"), workers=1)
    assert mill.verify(run).digest == ended[1]
    again = mill.forget(run, **ids("w3"), workers=1)
    assert (again.is_done, again.ran) == (True, ())


# Ends as if by SIGKILL, at once and wherever it is: nobody handles this signal.
FOR_A_TIME = """
import signal, sys
signal.setitimer(signal.ITIMER_REAL, float(sys.argv.pop(1)))
from tokmill.cli import main
main()
"""

KILLS = 4


def forget_for(seconds: float, run: Path) -> int:
    arguments = [str(seconds), "forget", str(run), "--source", "web", "--workers", "1", "--json"]
    return run_forked(arguments, os.environ, code=FOR_A_TIME).returncode


def test_a_takedown_killed_at_any_moment_goes_on_and_never_looks_done(run: Path, tmp_path: Path) -> None:
    quiet = shutil.copytree(run, tmp_path / "quiet")
    assert run_forked(["verify", str(quiet)], os.environ).returncode == 0
    began = time.monotonic()
    assert forget_for(600, quiet) == 0
    seconds = time.monotonic() - began
    expected = mill.verify(quiet).digest
    chance, kills, whole = random.Random(3), 0, 0
    rough = shutil.copytree(run, tmp_path / "rough-0")
    while kills < KILLS:
        status = forget_for(chance.uniform(0.01, seconds), rough)
        if status == 0:
            assert mill.verify(rough).digest == expected
            whole += 1
            rough = shutil.copytree(run, tmp_path / f"rough-{whole}")
            continue
        assert status == -signal.SIGALRM
        kills += 1
        if (rough / "manifest.json").is_file() and mill.verify(rough).ok:
            has_begun = (rough / "forgotten.parquet").is_file()
            assert files_with(rough, "w3") == set() if has_begun else files_with(rough, "w3")
    mill.forget(rough, source="web", workers=1)
    assert mill.verify(rough).problems == []
    assert mill.verify(rough).digest == expected
    assert files_with(rough, "w3") == set()
    assert not (rough / "forgetting.json").exists()


def test_a_takedown_cut_short_is_ended_before_another_and_by_the_recipe_too(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_corpus(tmp_path)
    recipe = make_recipe(tmp_path)
    for name in ("forget", "recipe"):
        out = shutil.copytree(pristine, tmp_path / "out" / name)
        with monkeypatch.context() as patch:
            patch.setattr("tokmill.stages.registry.FUNCTIONS", _failing_at("dedup.verdicts"))
            with pytest.raises(RuntimeError, match="pulled the plug"):
                mill.forget(out, **ids("w3"), workers=1)
        problems = {problem.what for problem in mill.verify(out).problems}
        assert any("takedown was cut short" in what for what in problems)
        if name == "forget":
            mill.forget(out, **ids("w4"), workers=1)
            assert files_with(out, "w4") == set()
        else:
            mill.run(recipe, out, workers=1)
        assert files_with(out, "w3") == set()
        assert mill.verify(out).problems == []


def _failing_at(function: str) -> dict[str, Any]:
    from tokmill.stages.registry import FUNCTIONS

    def fail(task: Any) -> Any:
        raise RuntimeError("pulled the plug")

    return {**FUNCTIONS, function: replace(FUNCTIONS[function], perform=fail)}


def test_a_dry_run_beside_another_takedown_that_is_not_done_tells_of_that_one(tmp_path: Path) -> None:
    out, recipe = small_run(tmp_path)
    kept = load_manifest(out / "dedup").counts["kept"]
    make_recipe(
        tmp_path,
        dedup={"exact": True},
        builds=BUILDS[:1],
        split={"method": "counts", "counts": {"train": kept - 6, "valid": 6}},
    )
    mill.run(recipe, workers=1)
    with pytest.raises(InputError):
        mill.forget(out, **ids("w3"), workers=1)
    same = mill.forget(out, **ids("w3"), dry_run=True, batch_size=4)
    assert (same.affected["documents"], list(same.affected["sources"])) == (1, ["web"])
    before = tree(out)
    for name in ("b1", "nobody"):
        with pytest.raises(InputError, match="another takedown is not done") as raised:
            mill.forget(out, **ids(name), dry_run=True)
        assert "1 document of web" in raised.value.what
    assert tree(out) == before

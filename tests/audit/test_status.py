"""How far a run is: finished, at work, failed, killed; and asking changes nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from forked import run_forked
from mill import tokmill
from reports.reported import write_corpus
from tokmill import plan, run, status
from tokmill.artifacts.progress import Silence, load_journal, open_journal
from tokmill.errors import StorageError, TokmillError
from tokmill.storage.lease import open_lease
from written import LOCK

JOURNAL = "journal.json"

# A run that tells when some of its tasks are done, and then waits for a word or kills itself.
CHILD = """
import os, signal, sys
from pathlib import Path
from tokmill.artifacts.progress import Silence, open_journal
from tokmill.pipeline.plan import plan_steps
from tokmill.pipeline.run import run
from tokmill.recipe.file import load_recipe

recipe, out, act, after = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])

class Stopping(Silence):
    done = 0
    def finish_task(self, name):
        Stopping.done += 1
        if Stopping.done == after:
            if act == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            print("waiting", flush=True)
            sys.stdin.readline()

out.mkdir(parents=True, exist_ok=True)
with open_journal(out, "small", Stopping()) as journal:
    journal.plan([step.name for step in plan_steps(load_recipe(recipe), recipe.parent, out)])
    run(recipe, out, workers=1, progress=journal)
"""


def start(recipe: Path, out: Path, act: str, after: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, str(recipe), str(out), act, str(after)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def kill_after(recipe: Path, out: Path, tasks: int) -> None:
    killed = run_forked([str(recipe), str(out), "kill", str(tasks)], os.environ, code=CHILD)
    assert killed.returncode == -9


def states(found: Any) -> dict[str, str]:
    return {step.step: step.state for step in found.steps}


def test_a_finished_run(tmp_path: Path) -> None:
    out = run(write_corpus(tmp_path), tmp_path / "out", workers=1).out
    found = status(out)
    assert (found.state, found.recipe, found.error, found.holder) == ("finished", "small", None, None)
    assert set(states(found).values()) == {"done"}
    for step in found.steps:
        tasks = json.loads((out / step.step / "manifest.json").read_text())["tasks"]
        assert step.shards_done == step.shards == len(tasks)
    told = tokmill("status", out, "--json")
    assert told.returncode == 0
    assert json.loads(told.stdout)["steps_done"] == len(found.steps)


def test_a_run_at_work_and_then_done(tmp_path: Path) -> None:
    recipe, out = write_corpus(tmp_path), tmp_path / "out"
    with start(recipe, out, "wait", 1) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == "waiting\n"
        found = status(out)
        assert found.state == "running"
        assert f"pid {child.pid} " in str(found.holder)
        assert states(found)["ingest/problems"] == "running"
        assert states(found)["build/rows"] == "waiting"
        first = [step for step in found.steps if step.state == "running"]
        assert sum(step.shards or 0 for step in first) >= 3
        told = tokmill("status", out)
        assert told.returncode == 0
        assert "running" in told.stdout
        child.stdin.write("\n")
        child.stdin.flush()
        child.communicate()
    assert child.returncode == 0
    assert not (out / JOURNAL).exists()
    assert status(out).state == "finished"


def test_a_killed_run_says_how_far_it_got_and_that_nobody_works_there(tmp_path: Path) -> None:
    recipe, out = write_corpus(tmp_path), tmp_path / "out"
    planned = [step["step"] for step in plan(recipe, out).as_json()["steps"]]
    kill_after(recipe, out, 12)
    assert (out / LOCK).exists()
    found = status(out)
    assert (found.state, found.holder, found.error) == ("stopped", None, None)
    assert [step.step for step in found.steps] == planned
    assert states(found)["ingest/problems"] == "done"
    assert states(found)["build/rows"] == "waiting"
    assert "begun" in states(found).values()
    told = tokmill("status", out)
    assert told.returncode == 1
    assert "run the recipe again to resume" in told.stdout
    run(recipe, out, workers=1)
    (out / JOURNAL).unlink(missing_ok=True)
    assert status(out).state == "finished"


def test_without_a_journal_directories_and_receipts_say_it(tmp_path: Path) -> None:
    recipe, out = write_corpus(tmp_path), tmp_path / "out"
    kill_after(recipe, out, 12)
    (out / JOURNAL).unlink()
    found = status(out)
    assert found.state == "stopped"
    assert states(found)["ingest/problems"] == "done"
    begun = [step for step in found.steps if step.state == "begun"]
    assert begun
    for step in begun:
        assert step.shards is None
        assert step.shards_done == len(list((out / step.step / "receipts").glob("*.json")))


def test_a_step_that_was_made_from_something_else_is_not_called_done(tmp_path: Path) -> None:
    out = run(write_corpus(tmp_path), tmp_path / "out", workers=1).out
    (out / "manifest.json").unlink()
    (out / "tokenizer" / "manifest.json").unlink()
    found = status(out)
    assert found.state == "stopped"
    assert states(found)["split"] == "done"
    assert states(found)["tokenizer"] == "begun"
    assert states(found)["tokens"] == "not usable"
    assert tokmill("status", out).returncode == 1


def test_a_run_that_has_only_just_begun(tmp_path: Path) -> None:
    with open_lease(tmp_path):
        found = status(tmp_path)
    assert (found.state, found.steps) == ("running", [])
    assert f"pid {os.getpid()} " in str(found.holder)


def test_a_failed_run_tells_its_error(tmp_path: Path) -> None:
    recipe, out = write_corpus(tmp_path), tmp_path / "out"
    with (tmp_path / "wild.jsonl").open("a") as file:
        file.write('{"id": "broken", \n')
    out.mkdir()
    with pytest.raises(TokmillError) as raised, open_journal(out, "small", Silence()) as journal:
        run(recipe, out, workers=1, progress=journal)
    found = status(out)
    assert found.state == "failed"
    assert found.error is not None
    assert found.error["kind"] == type(raised.value).__name__ == "TooManyBadRecords"
    assert found.error["what"] == raised.value.what
    told = tokmill("status", out)
    assert told.returncode == 1
    assert "TooManyBadRecords" in told.stdout
    assert raised.value.next in told.stdout


def test_asking_changes_nothing_and_works_where_nothing_can_be_written(tmp_path: Path) -> None:
    recipe, out = write_corpus(tmp_path), tmp_path / "out"
    kill_after(recipe, out, 12)
    copy = tmp_path / "copied" / "elsewhere"
    shutil.copytree(out, copy)
    for path in [*copy.rglob("*"), copy]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = {path: path.stat().st_mtime_ns for path in sorted(copy.rglob("*"))}
    try:
        assert states(status(copy)) == states(status(out))
        assert tokmill("status", copy, "--json").returncode == 1
        assert {path: path.stat().st_mtime_ns for path in sorted(copy.rglob("*"))} == before
    finally:
        for path in [copy, *copy.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)


def test_the_rate_counts_what_was_done_and_not_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten of thirty tasks were there before; ten more took fifty seconds; the last ten will take fifty."""
    with open_lease(tmp_path), open_journal(tmp_path, "small", Silence()) as journal:
        journal.plan(["ingest/a", "clean/a"])
        journal.begin_step("ingest/a", [])
        journal.expect_tasks("ingest/a", 30, 10)
        for _ in range(10):
            journal.finish_task("ingest/a")
        journal.write()
        written = load_journal(tmp_path)
        assert written is not None
        assert (written.notes["ingest/a"].done, written.notes["ingest/a"].tasks) == (20, 30)
        begun = written.notes["ingest/a"].begun_at
        assert begun is not None
        monkeypatch.setattr(time, "time", lambda: begun + 50)
        found = status(tmp_path)
    assert found.state == "running"
    assert (found.shards_per_second, found.seconds_left) == (0.2, 50.0)
    assert not (tmp_path / JOURNAL).exists()


def test_kernels_that_are_compiled_first_are_counted_and_are_no_step(tmp_path: Path) -> None:
    with open_lease(tmp_path), open_journal(tmp_path, "small", Silence()) as journal:
        journal.plan(["ingest/a"])
        journal.begin_step("compiling kernels", [])
        journal.count("compiling kernels", 12, 56, "kernels")
        journal.write()
        found = status(tmp_path)
        assert states(found) == {"compiling kernels": "running", "ingest/a": "waiting"}
        assert (found.steps[0].detail, found.steps[0].shards) == ("12 of 56 kernels", None)
        assert (found.shards_per_second, found.seconds_left) == (None, None)
        told = tokmill("status", tmp_path).stdout
        assert re.search(r"▸ compiling kernels +running +[\d.]+ s  12 of 56 kernels\n", told)
        journal.finish_step("compiling kernels", 20.0, {})
        assert states(status(tmp_path)) == {"ingest/a": "waiting"}


class Counting(Silence):
    """Asks for the status whenever a task says how far it is."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.counts: list[tuple[str, int, int, str]] = []
        self.details: list[str] = []

    def count(self, name: str, done: int, total: int, unit: str) -> None:
        self.counts.append((name, done, total, unit))
        self.details += [step.detail for step in status(self.out).steps if step.step == name]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.usefixtures("forked_workers")
def test_how_much_a_tokenizer_has_read_of_its_sample_is_known_while_it_is_trained(
    tmp_path: Path, workers: int
) -> None:
    out = tmp_path / "out"
    progress = Counting(out)
    run(write_corpus(tmp_path), out, workers=workers, progress=progress)
    log = json.loads((out / "tokenizer/tokenizer.log.json").read_text())
    characters = sum(dataset["characters"] for dataset in log["datasets"])
    told = [count for count in progress.counts if count[0] == "tokenizer"]
    assert told[-1] == ("tokenizer", characters, characters, "characters read")
    assert [count[1] for count in told] == sorted(count[1] for count in told)
    assert len(progress.details) == len(told)


def test_a_run_that_was_interrupted_by_hand_says_so(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), open_journal(tmp_path, "small", Silence()):
        raise KeyboardInterrupt
    told = {"kind": "KeyboardInterrupt", "what": "interrupted", "where": "", "next": ""}
    assert status(tmp_path).error == told


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="not the directory of a run"):
        status(tmp_path)

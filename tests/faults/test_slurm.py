"""One digest on Slurm too, and when a job of it is killed. Worse is in test_slurm_long."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

import tokmill as mill
from faults.at_task import AtTask
from faults.disk import checked_digest
from mill import small_corpus
from slurm_nodes import SlurmNodes, slurm_nodes, until
from tokmill.cli import main
from written import LOCK, MANIFEST


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmNodes]:
    with slurm_nodes(2) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def expected(slurm: SlurmNodes, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    directory = tmp_path_factory.mktemp("slurm")
    dedup = {"near": {}, "window": {"policy": "trim"}, "partitions": 2}
    recipe = small_corpus(directory, problems=2000, shards={"megabytes": 1}, dedup=dedup)
    mill.run(recipe, directory / "one", workers=1)
    return recipe, checked_digest(directory / "one")


def test_content_does_not_depend_on_who_runs_the_tasks(
    slurm: SlurmNodes, expected: tuple[Path, str], tmp_path: Path
) -> None:
    recipe, digest = expected
    out = Path(os.path.relpath(tmp_path / "out"))  # as a user writes it; a job has another current directory
    result = mill.run(recipe, out, engine="slurm", workers=2, slurm=["time=30"])
    assert result.ran
    assert checked_digest(out) == digest
    environment = json.loads((out / MANIFEST).read_bytes())["environment"]
    assert environment["engine"].split()[0] == "slurm"
    assert environment["workers"] == 2
    assert not (out / LOCK).exists()
    until(lambda: slurm.pids() == [], "processes of jobs outlive the run")
    assert mill.run(recipe, out, engine="slurm", workers=2).ran == []
    assert mill.run(recipe, out, workers=1).ran == [], "what an engine made is up to date for another"
    assert mill.status(out).slurm is None


def test_a_job_that_is_killed_in_the_middle_of_a_run_costs_only_time(
    slurm: SlurmNodes, expected: tuple[Path, str], tmp_path: Path
) -> None:
    recipe, digest = expected
    killed: list[int] = []
    told: list[str] = []

    def kill() -> None:
        told.append(CliRunner().invoke(main, ["status", str(tmp_path / "out")]).stdout)
        for pid in slurm.pids():
            with contextlib.suppress(psutil.NoSuchProcess):  # processes of jobs come and go meanwhile
                process = psutil.Process(pid)
                job = int(process.environ()["SLURM_JOB_ID"])
                if job in (killed or [job]):
                    process.kill()
                    killed[:] = [job]

    progress = AtTask(4, kill)
    mill.run(recipe, tmp_path / "out", engine="slurm", workers=2, progress=progress)
    assert killed
    assert re.search(
        r"^Slurm: jobs [0-9]+ \w+.*; tasks [0-9]+ waiting, [0-9]+ running, [0-9]+ done$", told[0], re.M
    )
    assert "/out/.slurm/logs" in told[0].replace("\n", "")
    logs = sorted((tmp_path / "out/.slurm/logs").iterdir())
    assert any("begin ingest" in log.read_text() for log in logs), "what went wrong cannot be looked up"
    assert mill.verify(tmp_path / "out").ok, "logs are no part of a run, and not strangers in it"
    shutil.rmtree(tmp_path / "out/.slurm")
    assert checked_digest(tmp_path / "out") == digest


# A measure that keeps the jobs of Slurm at work until they are told to go on, and nobody else.
PATIENT = """
import os, pathlib, time

def chars(columns):
    place = pathlib.Path({place!r})
    if "SLURM_JOB_ID" in os.environ:
        (place / f"at-work-{{os.getpid()}}").touch()
        while not (place / "go").exists():
            time.sleep(0.05)
    return [len(text) for text in columns["text"]]
"""


@contextlib.contextmanager
def killed_driver(slurm: SlurmNodes, directory: Path, recipe: Path, out: Path) -> Iterator[list[int]]:
    """One that was killed while its jobs are at work. Afterwards they go on, as far as they still are."""
    command = [sys.executable, "-c", "from tokmill.cli import main; main()", "run", recipe, "--out", out]
    with subprocess.Popen(
        [*command, "--engine", "slurm", "--workers", "2"], start_new_session=True
    ) as driver:
        try:
            until(lambda: len(list(directory.glob("at-work-*"))) == 2, "the tasks do not begin")
        finally:
            driver.kill()
    at_work = [int(path.name.rpartition("-")[2]) for path in directory.glob("at-work-*")]
    assert set(at_work) <= set(slurm.pids())
    try:
        yield at_work
    finally:
        (directory / "go").touch()
        until(lambda: slurm.jobs() == [] and slurm.pids() == [], "jobs are left", 120)


def patient_recipe(directory: Path, min_chars: int) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "hooks.py").write_text(PATIENT.format(place=str(directory)))
    filters = [{"measure": "hooks.py:chars", "min": min_chars, "reason": "too_short"}]
    return small_corpus(directory, filters=filters)


def test_jobs_of_a_killed_driver_write_nothing_into_a_run_that_another_engine_finishes(
    slurm: SlurmNodes, tmp_path: Path
) -> None:
    directory, out = tmp_path / "corpus", tmp_path / "out"
    with killed_driver(slurm, directory, patient_recipe(directory, 5), out) as at_work:
        recipe = patient_recipe(directory, 150)
        fresh = mill.run(recipe, tmp_path / "fresh", workers=1)
        progress = AtTask(0, lambda: None)
        mill.run(recipe, out, workers=1, progress=progress)
        left = [pid for pid in at_work if psutil.pid_exists(pid)], slurm.jobs()
    # by now whatever was at work has written all that it had to write
    verified = mill.verify(out)
    assert verified.problems == []
    assert verified.digest == mill.verify(fresh.out).digest
    assert mill.run(recipe, out, workers=1).ran == []
    assert left == ([], []), "two runs were at work"
    assert "ending the jobs of an earlier run in this directory" in progress.said


@pytest.mark.slow_faults
@pytest.mark.parametrize("is_another_users", [False, True])
def test_jobs_that_slurm_cannot_be_asked_for_are_waited_for(
    slurm: SlurmNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_another_users: bool
) -> None:
    directory, out = tmp_path / "corpus", tmp_path / "out"
    recipe = patient_recipe(directory, 5)
    with killed_driver(slurm, directory, recipe, out) as at_work:
        (spool,) = {path.parent for path in out.glob(".slurm/*/pulse")}
        if is_another_users:
            os.chown(spool, os.getuid() + 1, -1)
        else:
            monkeypatch.setenv("PATH", str(tmp_path))  # as on a machine that is not of the cluster
        progress = AtTask(0, lambda: None)
        mill.run(recipe, out, workers=1, progress=progress)
        left = [pid for pid in at_work if psutil.pid_exists(pid)]
    assert left == [], "two runs were at work"
    (waited,) = (said for said in progress.said if "earlier run" in said)
    assert waited.startswith("waiting 75 s: ")
    assert not spool.exists()
    assert mill.verify(out).problems == []
    again = AtTask(0, lambda: None)
    assert mill.run(recipe, out, workers=1, progress=again).ran == []
    assert again.said == [], "it was waited for nobody"

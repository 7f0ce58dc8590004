"""One digest on Slurm too, and when a job of it is killed. Worse is in test_slurm_long."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
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

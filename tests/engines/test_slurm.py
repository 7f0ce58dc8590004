"""Slurm as it is, a controller and nodes on loopback: when workers, tasks, jobs or wishes come to grief."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from engines.tasks import errors, perform, run_all, task
from slurm_nodes import SlurmNodes, slurm_nodes, until
from tokmill.artifacts.manifest import Receipt
from tokmill.artifacts.progress import warnings_to
from tokmill.artifacts.step import Task
from tokmill.engines.local import Resources, check_resources, open_engine
from tokmill.engines.orders import own_code
from tokmill.engines.slurm_options import parse_slurm
from tokmill.engines.slurm_state import load_state
from tokmill.errors import DiskFull, EngineError, RecipeError, TaskFailed

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmNodes]:
    with slurm_nodes(2, max_array_size=3) as nodes, pytest.MonkeyPatch.context() as patch:
        path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        patch.setenv("PYTHONPATH", path)
        yield nodes


class Driven:
    """An engine and what it said."""

    def __init__(self, directory: Path, workers: int | None = 2, **asked: object) -> None:
        self.said: list[str] = []
        self.directory = directory
        resources = Resources(workers, "slurm", slurm=asked)
        check_resources(resources)
        self.engine = open_engine(resources, 1 << 20, self.said.append, directory=directory)

    def run(self, tasks: list[Task]) -> dict[str, Receipt]:
        done: dict[str, Receipt] = {}
        for finished, receipt in run_all(self.engine, perform, tasks):
            assert finished.key not in done, "a task was handed in twice"
            done[finished.key] = receipt
        return done


@pytest.fixture(scope="module")
def opened(slurm: SlurmNodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driven]:
    before = signal.getsignal(signal.SIGTERM)  # another test may have left a handler of Ray's
    driven = Driven(tmp_path_factory.mktemp("run"))
    yield driven
    driven.engine.close()
    driven.engine.close()
    until(lambda: slurm.pids() == [], "processes of jobs outlive the engine")
    assert sorted(path.name for path in (driven.directory / ".slurm").iterdir()) == ["logs"], "of what failed"
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.fixture
def driven(opened: Driven) -> Driven:
    opened.said.clear()
    return opened


def test_every_task_is_handed_in_once_by_two_processes_of_jobs(driven: Driven, slurm: SlurmNodes) -> None:
    tasks = [task(str(number)) for number in range(20)]
    done = driven.run(tasks)
    assert {key: receipt.fingerprint for key, receipt in done.items()} == {
        t.key: t.fingerprint for t in tasks
    }
    pids = {int(receipt.counts["pid"]) for receipt in done.values()}
    assert len(pids) <= 2
    assert pids <= set(slurm.pids())
    assert driven.engine.workers == 2
    assert driven.engine.name.startswith("slurm ")
    assert driven.said == []
    assert driven.run([]) == {}


def test_the_log_of_a_job_has_every_task_that_it_did(driven: Driven) -> None:
    driven.run([task("to-be-found")])
    logs = list((driven.directory / ".slurm/logs").glob("*.log"))
    (log,) = (log for log in logs if "begin test to-be-found" in log.read_text())
    assert "end   test to-be-found" in log.read_text()


def test_a_task_whose_process_is_killed_runs_again_in_the_same_job(driven: Driven, tmp_path: Path) -> None:
    tasks = [task(str(number)) for number in range(8)]
    tasks[3] = task("3", dies_once=str(tmp_path / "died"))
    assert set(driven.run(tasks)) == {t.key for t in tasks}
    lost, again = driven.said
    assert lost.startswith("test 3 was lost with job ")
    log = Path(lost.rpartition("its log: ")[2])
    assert "died  test 3" in log.read_text()
    assert again == "a worker died; its tasks run again"


def test_a_task_that_always_kills_its_process_is_named_with_the_place_of_the_logs(driven: Driven) -> None:
    with pytest.raises(TaskFailed) as caught:
        driven.run([task("first"), task("killer", dies=True), task("third")])
    assert caught.value.where == "test killer"
    assert "a worker died 3 times" in caught.value.what
    assert str(driven.directory / ".slurm") in caught.value.next
    assert set(driven.run([task("after")])) == {"after"}


@pytest.mark.parametrize("which", ["ours", "ours, in few words"])
def test_an_error_in_a_job_arrives_as_it_was_raised_and_its_log_is_told(driven: Driven, which: str) -> None:
    raised: Any = errors()[which]
    with pytest.raises(type(raised)) as caught:
        driven.run([task("a", raises=which), *(task(str(number)) for number in range(8))])
    assert type(caught.value) is type(raised)
    assert str(caught.value) == str(raised)
    (told,) = driven.said
    assert told.startswith("test a failed in job ")
    assert Path(told.rpartition("its log: ")[2]).is_file()


def test_a_bug_in_a_job_arrives_with_its_traceback(driven: Driven) -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError: division by zero") as caught:
        driven.run([task("a", raises="a bug")])
    assert "engines/tasks.py" in str(caught.value.__cause__)


def test_what_a_task_warns_of_is_said_by_the_driver(driven: Driven) -> None:
    said: list[str] = []
    with warnings_to(said.append):
        driven.run([task("a", warns="a shard"), task("b")])
    assert said == ["! a shard is odd"]


def test_nodes_refuse_a_driver_of_another_version(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = msgspec.structs.replace(own_code(), tokmill="9.9")
    monkeypatch.setattr("tokmill.engines.orders.own_code", lambda: theirs)
    with pytest.raises(EngineError, match=r"the driver 9\.9"):
        driven.run([task("a")])


def test_a_failed_run_leaves_no_task_at_work(driven: Driven, tmp_path: Path) -> None:
    with pytest.raises(DiskFull):
        driven.run([task("slow", announces=str(tmp_path), sleeps=600), task("bad", sleeps=5, raises="ours")])
    at_work = [int(path.name) for path in tmp_path.iterdir()]
    assert [pid for pid in at_work if psutil.pid_exists(pid)] == [], "it went on behind the back of its run"


def test_what_slurm_refuses_is_said_in_its_own_words(slurm: SlurmNodes, tmp_path: Path) -> None:
    driven = Driven(tmp_path, 2, partition="nowhere")
    try:
        with pytest.raises(EngineError, match="Invalid partition name"):
            driven.run([task("a")])
    finally:
        driven.engine.close()


def test_a_driver_that_is_told_to_end_cancels_its_jobs_first(slurm: SlurmNodes, tmp_path: Path) -> None:
    """The same command as a driver; an interrupt is tried in tests/faults."""
    (tmp_path / "pids").mkdir()
    driver = subprocess.Popen(
        [sys.executable, "-m", "engines.tasks", "slurm", str(tmp_path / "pids")],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
    )
    try:
        until(lambda: len(list((tmp_path / "pids").iterdir())) == 2, "the tasks do not begin")
        until(lambda: bool((state := load_state(tmp_path)) and len(state.at_work) == 2), "no state is told")
        state = load_state(tmp_path)
        driver.terminate()
        assert driver.wait(60) == 128 + signal.SIGTERM
    finally:
        driver.kill()
        driver.wait()
    at_work = [int(path.name) for path in (tmp_path / "pids").iterdir()]
    assert [pid for pid in at_work if psutil.pid_exists(pid)] == [], "a job outlives its run"
    assert state is not None
    assert {found.task for found in state.at_work} == {"test a", "test b"}
    assert all(Path(found.log).is_file() for found in state.at_work)
    assert state.jobs == {"running": 2}


@pytest.mark.parametrize(
    "resources",
    [
        Resources(2, "slurm", "auto"),
        Resources(2, "slurm", memory=4_000_000_000),
        Resources(2, "ray", slurm=["time=10"]),
        Resources(2, "slurm", slurm=["partition"]),
        Resources(2, "slurm", slurm=["partitoin=long"]),
        Resources(2, "slurm", slurm=["cpus=many"]),
        Resources(2, "slurm", slurm={"tokens.cpus": 0}),
    ],
)
def test_what_cannot_be_meant_is_refused(resources: Resources) -> None:
    with pytest.raises(RecipeError) as caught:
        check_resources(resources)
    assert caught.value.next


def test_a_stage_has_what_all_have_and_its_own() -> None:
    pools = parse_slurm(
        ["time=10", "tokens.mem=8G", "partition=long", "dedup.verify.cpus=4", "tokens.time=20"]
    )
    assert pools.of("clean").arguments(1 << 30) == [
        *("--time=10", "--partition=long", "--cpus-per-task=1", "--mem=1263M")
    ]
    assert pools.of("tokens").arguments(1 << 30) == [
        *("--partition=long", "--time=20", "--cpus-per-task=1", "--mem=8G")
    ]
    assert "--cpus-per-task=4" in pools.of("dedup.verify").arguments(1 << 30)
    assert pools.of("dedup.match") == pools.common

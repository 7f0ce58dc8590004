"""Slurm as it is, a controller and nodes on loopback: when workers, tasks, jobs or wishes come to grief."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

import tokmill as mill
from engines.tasks import errors, perform, run_all, task
from mill import small_corpus
from slurm_nodes import SlurmNodes, slurm_nodes, until
from tokmill.artifacts.manifest import Json, Receipt
from tokmill.artifacts.progress import Silence, warnings_to
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
    assert driven.engine.workers in (1, 2), "the first job may have been quicker than the second was there"
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


def ever(slurm: SlurmNodes) -> set[str]:
    """All jobs that Slurm has taken, and remembers."""
    listed = slurm.run("squeue", "--noheader", "--array", "--states=all", "--format=%i %r").splitlines()
    return {line.split()[0] for line in listed if "BadConstraints" not in line and "_" in line.split()[0]}


def test_tasks_that_wait_for_slurm_are_not_late(
    slurm: SlurmNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight jobs are asked for. Slurm starts one, when all have waited for longer than a task may take."""
    monkeypatch.setattr("tokmill.engines.stragglers.LATE_SECONDS", 6.0)
    monkeypatch.setattr("tokmill.engines.cluster._LOOK_SECONDS", 0.1)
    before = ever(slurm)
    driven = Driven(tmp_path, 8, extra="--hold")

    def release() -> None:
        until(lambda: len(ever(slurm) - before) == 8, "the jobs are not asked for")
        time.sleep(8)
        subprocess.run(["scontrol", "release", min(ever(slurm) - before)], check=True)

    thread = threading.Thread(target=release)
    thread.start()
    try:
        tasks = [*(task(str(number)) for number in range(6)), *(task(key, sleeps=1.5) for key in "ab")]
        assert len(driven.run(tasks)) == 8
    finally:
        thread.join()
        driven.engine.close()
    assert driven.said == []


@pytest.mark.parametrize("asked", [{"nodelist": "n1"}, {"exclude": "n2"}], ids=str)
def test_a_late_task_that_can_go_nowhere_else_is_waited_for(
    slurm: SlurmNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, str]
) -> None:
    monkeypatch.setattr("tokmill.engines.stragglers.LATE_SECONDS", 1.0)
    monkeypatch.setattr("tokmill.engines.cluster._LOOK_SECONDS", 0.1)
    before = ever(slurm)
    driven = Driven(tmp_path, 8, **asked)
    try:
        for number in range(5):
            driven.run([task(str(number))])
        late = task("late", slow_once=str(tmp_path / "begun"), slow_seconds=8.0)
        assert set(driven.run([late])) == {"late"}
        assert len(ever(slurm) - before) == 1, "jobs were asked for that can do nothing"
    finally:
        driven.engine.close()
    begun, dropped = driven.said
    assert "begun a second time" in begun
    assert "no second attempt on another node than n1" in dropped


def test_the_workers_of_a_run_are_the_processes_that_there_were_and_not_those_that_were_wished_for(
    slurm: SlurmNodes, tmp_path: Path
) -> None:
    before = ever(slurm)
    driven = Driven(tmp_path, 12, mem="9G", cpus=2)  # a node has 16 GB: one job there
    try:
        assert len(driven.run([task(str(number), sleeps=2.0) for number in range(20)])) == 20
        assert driven.engine.workers == 2 * len(set(slurm.running()) - before) == 4
    finally:
        driven.engine.close()


class LogsKept(Silence):
    """Those of a run that goes well are removed at its end."""

    def __init__(self, logs: Path, kept: Path) -> None:
        self._logs, self._kept = logs, kept

    def finish_step(self, name: str, seconds: float, counts: Json) -> None:
        shutil.copytree(self._logs, self._kept, dirs_exist_ok=True)


@pytest.mark.parametrize("ingest", [["ingest.mem=1700M"], []], ids=str)
def test_what_is_asked_for_a_stage_is_asked_for_all_its_tasks_and_for_no_other(
    slurm: SlurmNodes, tmp_path: Path, ingest: list[str]
) -> None:
    """Whatever their functions are called. Documents are cleaned in the pass that writes them."""
    notes = {"name": "notes", "domain": "prose", "files": "notes.txt", "unit": "paragraph"}
    sampled = {"name": "some", "domain": "prose", "files": "problems.jsonl", "fields": {"text": "question"}}
    sampled["sample"] = {"method": "reservoir", "k": 20}
    recipe = small_corpus(tmp_path, sources=[notes, sampled], dedup={"near": {}, "partitions": 2})
    progress = LogsKept(tmp_path / "out/.slurm/logs", tmp_path / "logs")
    asked = [*ingest, "clean.mem=1600M", "dedup.mem=1800M"]
    mill.run(recipe, tmp_path / "out", engine="slurm", workers=2, slurm=asked, progress=progress)
    listed = slurm.run("squeue", "--noheader", "--array", "--states=all", "--format=%i %m").splitlines()
    memory = dict(line.split() for line in listed)
    found: dict[str, set[str]] = {}
    for log in (tmp_path / "logs").glob("*.log"):
        for function in re.findall(r" begin (\S+) ", log.read_text()):
            found.setdefault(memory[log.stem], set()).add(function)
    sampling = {"sample.candidates", "sample.select", "sample.pick"}
    if ingest:
        assert found.pop("1700M") == {"ingest", *sampling}
    else:
        assert found.pop("1600M") == {"ingest", "sample.pick"}
    assert {name.partition(".")[0] for name in found.pop("1800M")} == {"dedup"}
    ((_, others),) = found.items()
    assert {"split", "tokens"} <= others
    assert sampling & others == (set() if ingest else {"sample.candidates", "sample.select"})


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
    assert pools.of("dedup.match", "dedup") == pools.common
    assert pools.of("posts", "tokens", "dedup.verify") == pools.of("tokens")

"""Slurm through worse: jobs, nodes, controllers and drivers that die, limits that are reached."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

import tokmill as mill
from engines.tasks import perform, run_all, task
from faults.at_task import AtTask
from faults.disk import checked_digest
from mill import small_corpus
from slurm_nodes import SlurmNodes, slurm_nodes, until
from tokmill.artifacts.manifest import Receipt
from tokmill.artifacts.step import Task
from tokmill.engines.local import Resources, open_engine
from tokmill.errors import EngineError, TaskFailed

pytestmark = pytest.mark.slow_faults

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmNodes]:
    with slurm_nodes(3, max_array_size=3) as nodes, pytest.MonkeyPatch.context() as patch:
        path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        patch.setenv("PYTHONPATH", path)
        yield nodes


@pytest.fixture(scope="module")
def expected(slurm: SlurmNodes, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    directory = tmp_path_factory.mktemp("slurm")
    dedup = {"near": {}, "window": {"policy": "trim"}, "partitions": 2}
    recipe = small_corpus(directory, problems=12000, shards={"megabytes": 1}, dedup=dedup)
    mill.run(recipe, directory / "one", workers=1)
    return recipe, checked_digest(directory / "one")


def digest_without_logs(out: Path) -> str:
    """What went wrong has left logs: they are no part of the run."""
    assert mill.verify(out).ok
    shutil.rmtree(out / ".slurm", ignore_errors=True)
    return checked_digest(out)


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_every_number_of_workers_has_the_same_digest(
    expected: tuple[Path, str], tmp_path: Path, workers: int
) -> None:
    recipe, digest = expected
    mill.run(recipe, tmp_path / "out", engine="slurm", workers=workers)
    assert checked_digest(tmp_path / "out") == digest


def test_stages_with_jobs_of_their_own_and_jobs_of_several_processes_have_the_same_digest(
    expected: tuple[Path, str], tmp_path: Path
) -> None:
    recipe, digest = expected
    asked = {"cpus": 2, "time": 30, "tokens.cpus": 1, "tokens.mem": "1200M"}
    mill.run(recipe, tmp_path / "out", engine="slurm", workers=4, slurm=asked)
    assert checked_digest(tmp_path / "out") == digest


@pytest.mark.parametrize("kill_at", [3, 12])
def test_a_node_that_is_lost_in_the_middle_of_a_run_costs_only_time(
    slurm: SlurmNodes, expected: tuple[Path, str], tmp_path: Path, kill_at: int
) -> None:
    recipe, digest = expected
    killed: list[str] = []

    def kill() -> None:
        killed.append(next(name for name in slurm.names if slurm.pids(name)))
        slurm.kill_node(killed[0])

    try:
        progress = AtTask(kill_at, kill)
        mill.run(recipe, tmp_path / "out", engine="slurm", workers=5, progress=progress)
    finally:
        for name in killed:
            slurm.start_node(name)
        slurm.wait_until_up()
    assert killed
    assert digest_without_logs(tmp_path / "out") == digest


def test_a_controller_that_is_killed_and_comes_back_costs_only_time(
    slurm: SlurmNodes, expected: tuple[Path, str], tmp_path: Path
) -> None:
    recipe, digest = expected
    timers: list[threading.Timer] = []

    def kill() -> None:
        slurm.kill_controller()
        timers.append(threading.Timer(15, slurm.start_controller))
        timers[0].start()

    try:
        mill.run(recipe, tmp_path / "out", engine="slurm", workers=2, progress=AtTask(3, kill))
    finally:
        timers[0].join()
        slurm.wait_until_up()
    assert digest_without_logs(tmp_path / "out") == digest


class Driven:
    def __init__(self, directory: Path, workers: int | None = 2, **asked: object) -> None:
        self.said: list[str] = []
        resources = Resources(workers, "slurm", slurm=asked)
        self.engine = open_engine(resources, 1 << 20, self.said.append, directory=directory)

    def run(self, tasks: list[Task]) -> dict[str, Receipt]:
        done: dict[str, Receipt] = {}
        for finished, receipt in run_all(self.engine, perform, tasks):
            assert finished.key not in done, "a task was handed in twice"
            done[finished.key] = receipt
        return done


@contextlib.contextmanager
def driving(directory: Path, workers: int | None = 2, **asked: object) -> Iterator[Driven]:
    driven = Driven(directory, workers, **asked)
    try:
        yield driven
    finally:
        driven.engine.close()


def test_tasks_are_submitted_while_the_controller_is_away(slurm: SlurmNodes, tmp_path: Path) -> None:
    timer = threading.Timer(10, slurm.start_controller)
    try:
        with driving(tmp_path) as driven:
            slurm.kill_controller()
            timer.start()
            assert len(driven.run([task(str(number)) for number in range(8)])) == 8
    finally:
        timer.join()
        slurm.wait_until_up()


def test_more_tasks_than_jobs_have_time_for_are_done_by_several_jobs(
    slurm: SlurmNodes, tmp_path: Path
) -> None:
    """A minute is Slurm's least limit. Each job does what fits, and leaves the rest to the next."""
    with driving(tmp_path, 1, time=1) as driven:
        assert len(driven.run([task(str(number), sleeps=15.0) for number in range(8)])) == 8
        assert not [said for said in driven.said if "ran out of time" in said], "a task was begun too late"
        logs = list((tmp_path / ".slurm/logs").glob("*.log"))
        assert len(logs) >= 3


def test_a_task_that_no_job_has_time_for_is_named(slurm: SlurmNodes, tmp_path: Path) -> None:
    told = pytest.raises(TaskFailed, match="a job ran out of time 3 times")
    with driving(tmp_path, 1, time=1) as driven, told as caught:
        driven.run([task("short"), task("long", sleeps=600.0)])
    assert caught.value.where == "test long"
    assert "--slurm time" in caught.value.next
    assert "test long was lost with job" in driven.said[0]


def test_jobs_that_are_told_to_end_give_their_tasks_back_and_no_task_is_blamed(
    slurm: SlurmNodes, tmp_path: Path
) -> None:
    """As where jobs are preempted: SIGTERM, and later SIGKILL."""
    (tmp_path / "pids").mkdir()
    with driving(tmp_path / "run", 2) as driven:

        def cancel() -> None:
            for _ in range(4):
                until(lambda: len(slurm.running()) == 2, "no jobs")
                time.sleep(4)
                subprocess.run(["scancel", slurm.running()[0]], check=True)

        thread = threading.Thread(target=cancel)
        thread.start()
        tasks = [task(str(number), sleeps=3.0) for number in range(16)]
        assert len(driven.run(tasks)) == 16
        thread.join()
    assert driven.said == [], "what was given back was not lost"


def test_a_task_whose_jobs_are_preempted_again_and_again_is_named(
    slurm: SlurmNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("slurm", "cluster"):
        monkeypatch.setattr(f"tokmill.engines.{module}.MAX_PREEMPTIONS", 3)
    (tmp_path / "pids").mkdir()
    told = pytest.raises(TaskFailed, match="jobs were told to end 3 times while they worked on this task")
    over = threading.Event()

    def cancel() -> None:
        seen: set[str] = set()
        while not over.wait(0.2):
            begun = len(list((tmp_path / "pids").iterdir()))
            if begun > len(seen):  # another attempt is at work
                subprocess.run(["scancel", *slurm.running()], check=True)
                seen.add(str(begun))

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        with driving(tmp_path / "run", 1) as driven, told as caught:
            driven.run([task("long", sleeps=600.0, announces=str(tmp_path / "pids"))])
    finally:
        over.set()
        thread.join()
    assert caught.value.where == "test long"
    assert "--slurm partition" in caught.value.next
    assert len(list((tmp_path / "pids").iterdir())) == 3


def test_more_jobs_than_an_array_may_have_are_several_arrays_and_stages_have_jobs_of_their_own(
    slurm: SlurmNodes, tmp_path: Path
) -> None:
    with driving(tmp_path, 5, **{"idle": 30, "tokens.cpus": 2, "tokens.mem": "500M"}) as driven:
        kinds = [("test", "tokens")[number % 2] for number in range(12)]
        tasks = [
            msgspec.structs.replace(task(str(number), sleeps=3.0), function=kind)
            for number, kind in enumerate(kinds)
        ]
        before = set(slurm.run("squeue", "--noheader", "--array", "--states=all", "--format=%i").split())
        assert len(driven.run(tasks)) == 12
    listed = slurm.run("squeue", "--noheader", "--array", "--states=all", "--format=%i %C %m")
    jobs = [line.split() for line in listed.splitlines() if line.split()[0] not in before]
    sizes: dict[str, int] = {}
    for number, _, _ in jobs:
        array = number.partition("_")[0]
        sizes[array] = sizes.get(array, 0) + 1
    assert max(sizes.values()) <= 3, "an array is larger than this Slurm allows"
    assert len(sizes) > 1
    assert {(cpus, mem) for _, cpus, mem in jobs} >= {("2", "500M")}


def test_jobs_that_cannot_begin_are_told_with_their_log_after_some_tries(
    slurm: SlurmNodes, tmp_path: Path
) -> None:
    with driving(tmp_path, 2, python="/no/such/python") as driven, pytest.raises(EngineError) as caught:
        driven.run([task("a")])
    assert "/no/such/python" in caught.value.what
    assert Path(caught.value.where).read_text()
    assert len(driven.said) == 4, "it was not tried again"


def test_jobs_that_stay_in_the_queue_are_told_with_slurms_reason(slurm: SlurmNodes, tmp_path: Path) -> None:
    with driving(tmp_path, 2, extra="--hold") as driven:

        def release() -> None:
            until(lambda: bool(driven.said), "nothing was said", 150)
            subprocess.run(["scontrol", "release", *{n.partition("_")[0] for n in slurm.jobs()}], check=True)

        thread = threading.Thread(target=release)
        thread.start()
        assert len(driven.run([task("a"), task("b")])) == 2
        thread.join()
    assert driven.said == ["2 jobs waiting for Slurm (JobHeldUser)"]


@contextlib.contextmanager
def driver_at_work(directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """With two tasks that never end, and the processes that have them."""
    (directory / "pids").mkdir()
    driver = subprocess.Popen(
        [sys.executable, "-m", "engines.tasks", "slurm", str(directory / "pids")],
        cwd=directory,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until(lambda: len(list((directory / "pids").iterdir())) == 2, "the tasks do not begin")
        yield driver, [int(path.name) for path in (directory / "pids").iterdir()]
    finally:
        driver.kill()
        driver.wait()


def test_a_driver_that_is_interrupted_cancels_its_jobs_first(slurm: SlurmNodes, tmp_path: Path) -> None:
    with driver_at_work(tmp_path) as (driver, at_work):
        os.killpg(driver.pid, signal.SIGINT)  # as a terminal does
        assert driver.wait(60) == 130
        assert [pid for pid in at_work if psutil.pid_exists(pid)] == []


def test_jobs_end_by_themselves_when_their_driver_is_killed(slurm: SlurmNodes, tmp_path: Path) -> None:
    with driver_at_work(tmp_path) as (driver, at_work):
        driver.kill()
        _, alive = psutil.wait_procs([psutil.Process(pid) for pid in at_work], timeout=100)
        assert alive == []
        until(lambda: slurm.jobs() == [], "jobs are left", 30)


def test_the_next_run_ends_the_jobs_of_a_driver_that_was_killed_before_it_begins(
    slurm: SlurmNodes, tmp_path: Path
) -> None:
    with driver_at_work(tmp_path) as (driver, at_work):
        driver.kill()
        with driving(tmp_path) as driven:
            assert [pid for pid in at_work if psutil.pid_exists(pid)] == [], "two runs are at work"
            assert driven.said == ["ending the jobs of an earlier run in this directory"]
            assert set(driven.run([task("a")])) == {"a"}


def test_a_run_whose_driver_is_killed_again_and_again_ends_with_the_same_digest(
    slurm: SlurmNodes, expected: tuple[Path, str], tmp_path: Path
) -> None:
    recipe, digest = expected
    command = "from tokmill.cli import main; main()"
    arguments = ["run", str(recipe), "--out", str(tmp_path / "out"), "--engine", "slurm", "--workers", "3"]
    chance = random.Random(3)
    for _ in range(4):
        driver = subprocess.Popen([sys.executable, "-c", command, *arguments], stderr=subprocess.DEVNULL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.wait(chance.uniform(4, 15))
        driver.kill()
        driver.wait()
    mill.run(recipe, tmp_path / "out", engine="slurm", workers=3)
    until(lambda: slurm.pids() == [], "processes of jobs outlive the run")
    assert digest_without_logs(tmp_path / "out") == digest


def kill_job(slurm: SlurmNodes, chance: random.Random) -> bool:
    pids = slurm.pids()
    killed = False
    with contextlib.suppress(psutil.Error, ProcessLookupError, IndexError):
        number = psutil.Process(chance.choice(pids)).environ()["SLURM_JOB_ID"]
        for pid in pids:
            if psutil.Process(pid).environ()["SLURM_JOB_ID"] == number:
                os.kill(pid, signal.SIGKILL)
                killed = True
    return killed


def kill_process(slurm: SlurmNodes, chance: random.Random) -> bool:
    with contextlib.suppress(ProcessLookupError, IndexError):
        os.kill(chance.choice(slurm.pids()), signal.SIGKILL)
        return True
    return False


def cancel_job(slurm: SlurmNodes, chance: random.Random) -> bool:
    running = slurm.running()
    if running:
        subprocess.run(["scancel", "--quiet", chance.choice(running)], check=False)
    return bool(running)


def lose_node(slurm: SlurmNodes, chance: random.Random) -> bool:
    busy = [name for name in slurm.names if slurm.pids(name)]
    if busy:
        name = chance.choice(busy)
        slurm.kill_node(name)
        time.sleep(chance.choice([0.5, 12.0]))  # back before it was missed, or after
        slurm.start_node(name)
    return bool(busy)


def test_twenty_kills_of_jobs_and_nodes_at_random_lose_nothing_and_double_nothing(
    slurm: SlurmNodes, expected: tuple[Path, str], tmp_path: Path
) -> None:
    recipe, digest = expected
    chance = random.Random(20)
    acts = [kill_job, kill_process, cancel_job, lose_node]
    done: list[str] = []
    stopped: list[str] = []
    over = threading.Event()

    def kill_on() -> None:
        while len(done) < 20 and not over.wait(chance.uniform(0.5, 6)):
            act = chance.choice(acts)
            if act(slurm, chance):  # some had nothing to kill
                done.append(act.__name__)

    thread = threading.Thread(target=kill_on)
    thread.start()
    runs = 0
    try:
        while len(done) < 20:  # another run where one is over before all kills are
            out = tmp_path / f"out{runs}"
            runs += 1
            while True:
                try:
                    mill.run(recipe, out, engine="slurm", workers=5)
                    break
                except (TaskFailed, EngineError) as error:  # too often in one place: the same again resumes
                    stopped.append(str(error))
            assert digest_without_logs(out) == digest
    finally:
        over.set()
        thread.join()
        slurm.wait_until_up()
    print(f"{runs} runs, {done}, stopped by {stopped}")

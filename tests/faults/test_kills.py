"""SIGKILL at any moment, to the driver with all its processes or to a worker, again and again:
the result is the same.

    driver   the whole process group, at a random moment of a run, then the same command again, and again
    worker   one process of the pool, while the driver goes on

A few runs are commands of their own, and some of the kills fall on a Python that is loading. The others are
forked from a process that has loaded the mill (forked.py): a run costs two CPU seconds instead of twelve, so
that hundreds of kills fall on work and not on imports.

Nothing is lost, nothing is there twice, and the last run leaves no temp file, lock,
journal or process behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

import psutil
import pyarrow.parquet as pq
import pytest

import tokmill as mill
from faults.disk import checked_digest, open_scratch, whole_recipe
from faults.groups import kill_group
from forked import IS_LINUX, MAIN, start_forked, workers_of
from tokmill.storage.lease import LOCK

COMMANDS, QUICK, WHOLE, ROUNDS = 2, 4, 200, 20
# A task that was in flight at five deaths is given up, as it should be:
# so no run loses more workers than this.
KILLS_PER_RUN = 4


class Driver(Protocol):
    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def workers(self) -> list[int]: ...


class Command(subprocess.Popen[bytes]):
    """`tokmill run`, a process of its own from the first import on."""

    def __init__(self, arguments: list[str], err: BinaryIO) -> None:
        command = [sys.executable, "-c", MAIN, *arguments]
        super().__init__(command, stdout=subprocess.DEVNULL, stderr=err, start_new_session=True)

    def workers(self) -> list[int]:
        return workers_of(self.pid)


def fork_driver(arguments: list[str], err: BinaryIO) -> Driver:
    with Path(os.devnull).open("wb") as nowhere:
        return start_forked([MAIN, *arguments], os.environ, Path.cwd(), nowhere.fileno(), err.fileno())


class Expected(NamedTuple):
    recipe: Path
    scratch: Path
    begin: Callable[[list[str], BinaryIO], Driver]
    digest: str
    seconds: float  # that an undisturbed run works

    def start(self, out: Path) -> Driver:
        with errors_of(out).open("wb") as err:
            return self.begin(["run", str(self.recipe), "--out", str(out), "--workers", "2"], err)


def undisturbed(recipe: Path, scratch: Path, begin: Callable[[list[str], BinaryIO], Driver]) -> Expected:
    out = scratch / "quiet"
    found = Expected(recipe, scratch, begin, "", 0)
    driver, began = found.start(out), time.monotonic()
    assert await_work(driver, out), errors_of(out).read_text()
    before = time.monotonic() - began
    assert driver.wait() == 0, errors_of(out).read_text()
    seconds = time.monotonic() - began - before
    return found._replace(digest=checked_digest(out), seconds=seconds)


@pytest.fixture(scope="module")
def recipe() -> Iterator[Path]:
    with open_scratch() as scratch:
        yield whole_recipe(scratch, problems=2000, shards={"megabytes": 1})


@pytest.fixture(scope="module")
def commands(recipe: Path) -> Iterator[Expected]:
    with open_scratch() as scratch:
        yield undisturbed(recipe, scratch, Command)


@pytest.fixture(scope="module")
def forked(recipe: Path) -> Iterator[Expected]:
    if not IS_LINUX:
        pytest.skip("passes descriptors as Linux does")
    with open_scratch() as scratch:
        yield undisturbed(recipe, scratch, fork_driver)


def errors_of(out: Path) -> Path:
    """What the last run into `out` said of itself: asked for only where it failed."""
    return out.with_name(f"{out.name}.err")


def await_work(driver: Driver, out: Path) -> bool:
    """Until the run has its lock (a note may be there, of one that was killed);
    false where it was over before."""
    while True:
        with contextlib.suppress(OSError, ValueError):
            if json.loads((out / LOCK).read_bytes())["pid"] == driver.pid:
                return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.wait(0.02)
            return False


def is_over(driver: Driver, seconds: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        driver.wait(seconds)
    return driver.returncode is not None


def check_end(expected: Expected, driver: Driver, out: Path) -> None:
    assert driver.wait() == 0, errors_of(out).read_text()
    assert checked_digest(out) == expected.digest


def kill_drivers(expected: Expected, kills: int, seed: int) -> None:
    chance, killed, number = random.Random(seed), 0, 0
    out = expected.scratch / f"drivers-{seed}-{number}"
    while killed < kills:
        driver = expected.start(out)
        if chance.random() < 0.1:  # now and then before it has begun
            is_over(driver, chance.uniform(0, 1))
        elif await_work(driver, out):
            is_over(driver, chance.uniform(0, expected.seconds))
        if driver.poll() is None:
            kill_group(driver)
            killed += driver.returncode == -signal.SIGKILL
        else:
            check_end(expected, driver, out)
            number += 1
            out = expected.scratch / f"drivers-{seed}-{number}"
    check_end(expected, expected.start(out), out)


def kill_workers(expected: Expected, kills: int, seed: int) -> None:
    chance, killed, number = random.Random(seed), 0, 0
    while killed < kills:
        out = expected.scratch / f"workers-{seed}-{number}"
        number += 1
        driver, victims = expected.start(out), set[int]()
        while driver.poll() is None and len(victims) < KILLS_PER_RUN and killed < kills:
            # most die at work; some, with a short wait, while they are loading
            if is_over(driver, chance.uniform(0, expected.seconds / 2)):
                break
            alive = [worker for worker in driver.workers() if worker not in victims]
            if alive:
                victim = chance.choice(alive)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    killed += 1
                victims.add(victim)
        check_end(expected, driver, out)  # it goes on without them


def test_a_run_whose_driver_is_killed_again_and_again_ends_with_the_same_content(forked: Expected) -> None:
    kill_drivers(forked, QUICK, seed=1)


def test_a_run_whose_workers_are_killed_again_and_again_ends_with_the_same_content(forked: Expected) -> None:
    kill_workers(forked, QUICK, seed=1)


def test_a_command_that_is_killed_while_it_loads_or_works_ends_with_the_same_content(
    commands: Expected,
) -> None:
    kill_drivers(commands, COMMANDS, seed=2)


def test_a_command_whose_workers_are_killed_while_they_load_or_work_ends_with_the_same_content(
    commands: Expected,
) -> None:
    kill_workers(commands, COMMANDS, seed=2)


@pytest.mark.slow_faults
@pytest.mark.parametrize("seed", range(100, 100 + ROUNDS))
def test_two_hundred_kills_of_drivers(forked: Expected, seed: int) -> None:
    kill_drivers(forked, WHOLE // ROUNDS, seed)


@pytest.mark.slow_faults
@pytest.mark.parametrize("seed", range(200, 200 + ROUNDS))
def test_two_hundred_kills_of_workers(forked: Expected, seed: int) -> None:
    kill_workers(forked, WHOLE // ROUNDS, seed)


def test_workers_do_not_outlive_their_driver(commands: Expected) -> None:
    """The driver alone is killed; nobody tells its workers."""
    driver, workers = commands.start(commands.scratch / "orphans"), list[psutil.Process]()
    while not workers and driver.poll() is None:
        is_over(driver, 0.05)
        workers = [psutil.Process(worker) for worker in driver.workers()]
    assert workers
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive


def test_a_killed_run_has_nothing_half_written_under_a_final_name(forked: Expected) -> None:
    out = forked.scratch / "killed"
    driver = forked.start(out)
    while not list(out.glob("clean/*/documents-*.parquet")) and not list(out.glob("ingest/*/documents-*")):
        assert not is_over(driver, 0.02), "the run was over before it could be interrupted"
    kill_group(driver)
    for path in out.rglob("*.parquet"):
        if not path.name.startswith(".tmp-"):
            pq.read_table(path)
    report = mill.verify(out)
    assert any("not finished" in problem.what for problem in report.problems)

"""SIGKILL at any moment, to the driver with all its processes or to a worker, again and again: the result is the same.

    driver   the whole process group, at a random moment of a run, then the same command again, and again
    worker   one process of the pool, while the driver goes on

Nothing is lost, nothing is there twice, and the last run leaves no temp file, lock, journal or process behind.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pyarrow.parquet as pq
import pytest

import tokmill as mill
from faults.disk import checked_digest, open_scratch, whole_recipe

QUICK, WHOLE, ROUNDS = 10, 200, 20
# A task that was in flight at five deaths is given up, as it should be: so no run loses more workers than this.
KILLS_PER_RUN = 4
_SEMAPHORE = re.compile(r"/dev/shm/sem\.\S+")


class Expected(NamedTuple):
    recipe: Path
    scratch: Path
    digest: str
    seconds: float  # that an undisturbed run works


@pytest.fixture(scope="module")
def expected() -> Iterator[Expected]:
    with open_scratch() as scratch:
        recipe = whole_recipe(scratch / "corpus", problems=2000, shards={"megabytes": 1})
        driver, began = start(recipe, scratch / "quiet"), time.monotonic()
        assert await_work(driver, scratch / "quiet")
        before = time.monotonic() - began
        assert driver.wait() == 0
        seconds = time.monotonic() - began - before
        yield Expected(recipe, scratch, checked_digest(scratch / "quiet"), seconds)


def start(recipe: Path, out: Path) -> subprocess.Popen[bytes]:
    main = "from tokmill.cli import main; main()"
    command = [sys.executable, "-c", main, "run", str(recipe), "--out", str(out), "--workers", "2"]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def await_work(driver: subprocess.Popen[bytes], out: Path) -> bool:
    """Until the run has its lock; false where it was over before."""
    while not (out / ".lock").exists():
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.wait(0.02)
            return False
    return True


def is_over(driver: subprocess.Popen[bytes], seconds: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        driver.wait(seconds)
    return driver.returncode is not None


def workers_of(driver: subprocess.Popen[bytes]) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        children = psutil.Process(driver.pid).children()
        return [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    return []


def kill_group(driver: subprocess.Popen[bytes]) -> None:
    """The driver and all that belongs to it at once, and no one of them is left.

    Python's own resource tracker dies with them, so its named semaphores are removed here: by name, those that this
    driver had mapped.
    """
    maps = Path(f"/proc/{driver.pid}/maps")
    mapped = _SEMAPHORE.findall(maps.read_text()) if maps.exists() else []
    try:
        members = psutil.Process(driver.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        members = []
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    _, alive = psutil.wait_procs(members, timeout=60)
    assert not alive, "a process has outlived its group"
    for name in mapped:
        Path(name).unlink(missing_ok=True)


def finish(expected: Expected, out: Path) -> None:
    driver = start(expected.recipe, out)
    assert driver.wait() == 0
    assert checked_digest(out) == expected.digest


def kill_drivers(expected: Expected, kills: int, seed: int) -> None:
    chance, killed, number = random.Random(seed), 0, 0
    out = expected.scratch / f"drivers-{seed}-{number}"
    while killed < kills:
        driver = start(expected.recipe, out)
        if chance.random() < 0.1:  # now and then before it has begun
            is_over(driver, chance.uniform(0, 1))
        elif await_work(driver, out):
            is_over(driver, chance.uniform(0, expected.seconds))
        if driver.poll() is None:
            kill_group(driver)
            killed += 1
        else:
            assert driver.returncode == 0
            assert checked_digest(out) == expected.digest
            number += 1
            out = expected.scratch / f"drivers-{seed}-{number}"
    finish(expected, out)


def kill_workers(expected: Expected, kills: int, seed: int) -> None:
    chance, killed, number = random.Random(seed), 0, 0
    while killed < kills:
        out = expected.scratch / f"workers-{seed}-{number}"
        number += 1
        driver, victims = start(expected.recipe, out), set[int]()
        while driver.poll() is None and len(victims) < KILLS_PER_RUN and killed < kills:
            # most die at work; some, with a short wait, while they are loading
            if is_over(driver, chance.uniform(0, expected.seconds / 2)):
                break
            alive = [worker for worker in workers_of(driver) if worker.pid not in victims]
            if alive:
                victim = chance.choice(alive)
                with contextlib.suppress(psutil.NoSuchProcess):
                    victim.send_signal(signal.SIGKILL)
                victims.add(victim.pid)
                killed += 1
        assert driver.wait() == 0, "the run must go on without them"
        assert checked_digest(out) == expected.digest


def test_a_run_whose_driver_is_killed_again_and_again_ends_with_the_same_content(expected: Expected) -> None:
    kill_drivers(expected, QUICK, seed=1)


def test_a_run_whose_workers_are_killed_again_and_again_ends_with_the_same_content(
    expected: Expected,
) -> None:
    kill_workers(expected, QUICK, seed=1)


@pytest.mark.slow_faults
@pytest.mark.parametrize("seed", range(100, 100 + ROUNDS))
def test_two_hundred_kills_of_drivers(expected: Expected, seed: int) -> None:
    kill_drivers(expected, WHOLE // ROUNDS, seed)


@pytest.mark.slow_faults
@pytest.mark.parametrize("seed", range(200, 200 + ROUNDS))
def test_two_hundred_kills_of_workers(expected: Expected, seed: int) -> None:
    kill_workers(expected, WHOLE // ROUNDS, seed)


def test_workers_do_not_outlive_their_driver(expected: Expected) -> None:
    """The driver alone is killed; nobody tells its workers."""
    out = expected.scratch / "orphans"
    driver, workers = start(expected.recipe, out), list[psutil.Process]()
    while not workers and driver.poll() is None:
        is_over(driver, 0.05)
        workers = workers_of(driver)
    assert workers
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive


def test_a_killed_run_has_nothing_half_written_under_a_final_name(expected: Expected) -> None:
    out = expected.scratch / "killed"
    driver = start(expected.recipe, out)
    while not list(out.glob("clean/*/documents-*.parquet")) and not list(out.glob("ingest/*/documents-*")):
        assert not is_over(driver, 0.02), "the run was over before it could be interrupted"
    kill_group(driver)
    for path in out.rglob("*.parquet"):
        if not path.name.startswith(".tmp-"):
            pq.read_table(path)
    report = mill.verify(out)
    assert any("not finished" in problem.what for problem in report.problems)

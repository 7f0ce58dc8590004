"""The local engine when workers, tasks or the driver itself come to grief."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engines.tasks import announce_and_wait, errors, perform, task
from tokmill.artifacts.manifest import Receipt
from tokmill.artifacts.step import Task
from tokmill.engines.local import LocalEngine
from tokmill.errors import TaskFailed

TESTS = Path(__file__).resolve().parents[1]


class Driven:
    """An engine and what it said about restarts."""

    def __init__(self, workers: int) -> None:
        self.restarts: list[str] = []
        self.engine = LocalEngine(workers, self.restarts.append)

    def run(self, tasks: list[Task]) -> dict[str, Receipt]:
        done: dict[str, Receipt] = {}
        for finished, receipt in self.engine.run(perform, tasks):
            assert finished.key not in done, "a task was handed in twice"
            done[finished.key] = receipt
        return done


@pytest.fixture(scope="module")
def opened() -> Iterator[Driven]:
    """One pool for all: to start its workers takes longer than any test, and each must leave it in order."""
    made = Driven(workers=2)
    yield made
    made.engine.close()


@pytest.fixture
def driven(opened: Driven) -> Driven:
    opened.restarts.clear()
    return opened


def test_every_task_is_handed_in_once_from_the_number_of_workers_asked_for(driven: Driven) -> None:
    tasks = [task(str(number)) for number in range(20)]
    done = driven.run(tasks)
    assert {key: receipt.fingerprint for key, receipt in done.items()} == {
        t.key: t.fingerprint for t in tasks
    }
    workers = {receipt.counts["pid"] for receipt in done.values()}
    assert len(workers) <= 2
    assert os.getpid() not in workers
    assert driven.restarts == []
    assert driven.run([]) == {}


def test_an_interrupt_is_the_drivers_business_and_ends_no_worker(driven: Driven) -> None:
    try:
        done = driven.run([task("a", is_interrupted=True), task("b")])
    except KeyboardInterrupt:  # would end the whole test run
        pytest.fail("the interrupt ended the task")
    assert set(done) == {"a", "b"}
    assert driven.restarts == []


def test_a_task_whose_worker_is_killed_runs_again_and_the_run_goes_on(driven: Driven, tmp_path: Path) -> None:
    tasks = [task(str(number)) for number in range(8)]
    tasks[3] = task("3", dies_once=str(tmp_path / "died"))
    done = driven.run(tasks)
    assert set(done) == {t.key for t in tasks}
    assert driven.restarts == ["a worker died; its tasks run again"]
    assert set(driven.run([task("after")])) == {"after"}


def test_a_task_that_always_kills_its_worker_is_named_and_no_other_is_blamed(driven: Driven) -> None:
    tasks = [task("first"), task("second"), task("killer", dies=True), task("fourth"), task("fifth")]
    done: list[str] = []

    def run() -> None:
        for finished, _ in driven.engine.run(perform, tasks):
            done.append(finished.key)

    with pytest.raises(TaskFailed) as caught:
        run()
    assert caught.value.where == "test killer"
    assert "5 times" in caught.value.what
    assert caught.value.next
    assert {"first", "second"} <= set(done), "those before it had their turn"
    assert len(driven.restarts) == 4
    assert set(driven.run([task("after")])) == {"after"}


@pytest.mark.parametrize("which", ["ours", "ours, in few words"])
def test_an_error_in_a_worker_arrives_as_it_was_raised(driven: Driven, which: str) -> None:
    raised: Any = errors()[which]
    with pytest.raises(type(raised)) as caught:
        driven.run([task("a", raises=which)])
    assert type(caught.value) is type(raised)
    assert (caught.value.what, caught.value.where, caught.value.next) == (
        raised.what,
        raised.where,
        raised.next,
    )
    assert str(caught.value) == str(raised)
    assert driven.restarts == []


def test_a_bug_in_a_worker_arrives_with_the_workers_traceback(driven: Driven) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        driven.run([task("a", raises="a bug")])
    assert "engines/tasks.py" in str(caught.value.__cause__)


def test_closing_ends_the_workers_and_the_engine_can_be_opened_again(driven: Driven) -> None:
    done = driven.run([task("a"), task("b")])
    driven.engine.close()
    assert not any(psutil.pid_exists(receipt.counts["pid"]) for receipt in done.values())
    driven.engine.close()
    assert set(driven.run([task("c")])) == {"c"}


def read_pids(driver: subprocess.Popen[bytes], count: int) -> list[int]:
    """The first lines that the workers write; a driver that says nothing for a minute is an error."""
    assert driver.stdout is not None
    said = b""
    with selectors.DefaultSelector() as waiting:
        waiting.register(driver.stdout, selectors.EVENT_READ)
        while said.count(b"\n") < count:
            assert waiting.select(timeout=60), f"the workers did not start: {said!r}"
            piece = os.read(driver.stdout.fileno(), 1000)
            assert piece, f"the driver ended: {said!r}"
            said += piece
    return [int(line) for line in said.split()]


def test_workers_end_when_their_driver_is_killed() -> None:
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    driver = subprocess.Popen(
        [sys.executable, "-m", announce_and_wait.__module__, "local"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        bufsize=0,
    )
    workers: list[psutil.Process] = []
    try:
        workers = [psutil.Process(pid) for pid in read_pids(driver, count=2)]
        assert {worker.ppid() for worker in workers} == {driver.pid}
        driver.kill()
        driver.wait(60)
        _, alive = psutil.wait_procs(workers, timeout=60)
        assert alive == []
    finally:
        for worker in workers:
            if worker.is_running():
                worker.kill()
        driver.kill()
        driver.communicate()

"""The local engine when workers, tasks or the driver itself come to grief."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engines.tasks import announce_and_wait, errors, load, perform, run_all, task, tell_loaded
from tokmill.artifacts.manifest import Receipt
from tokmill.artifacts.step import Input, Task
from tokmill.engines.forking import can_fork
from tokmill.engines.local import LocalEngine
from tokmill.engines.processes import Load, Prepare
from tokmill.errors import TaskFailed

TESTS = Path(__file__).resolve().parents[1]


class Driven:
    """An engine and what it said about restarts."""

    def __init__(self, workers: int) -> None:
        self.restarts: list[str] = []
        self.engine = LocalEngine(workers, self.restarts.append, paying_bytes=0)

    def run(self, tasks: list[Task]) -> dict[str, Receipt]:
        done: dict[str, Receipt] = {}
        for finished, receipt in run_all(self.engine, perform, tasks):
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
        for finished, _ in run_all(driven.engine, perform, tasks):
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
    with pytest.raises(RuntimeError, match="ZeroDivisionError: division by zero") as caught:
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


class Family:
    """A driver with two workers that never end by themselves, and what is between them."""

    def __init__(self, *at: str) -> None:
        path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.driver = subprocess.Popen(
            [sys.executable, "-m", announce_and_wait.__module__, "local", *at],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            bufsize=0,
        )
        self.workers = [psutil.Process(pid) for pid in read_pids(self.driver, count=2)]
        self.others = psutil.Process(self.driver.pid).children(recursive=True)

    def wait(self) -> list[psutil.Process]:
        """Who is still there a minute after the driver has ended."""
        self.driver.wait(60)
        return psutil.wait_procs(self.others, timeout=60)[1]

    def end(self) -> None:
        for process in self.others:
            if process.is_running():
                process.kill()
        self.driver.kill()
        self.driver.communicate()


@pytest.fixture
def family() -> Iterator[Family]:
    made = Family()
    yield made
    made.end()


def test_nobody_is_left_when_the_driver_is_killed(family: Family) -> None:
    assert set(family.workers) <= set(family.others)
    family.driver.kill()
    assert family.wait() == []


def test_nobody_is_left_when_the_driver_is_interrupted_though_workers_are_at_work(family: Family) -> None:
    family.driver.send_signal(signal.SIGINT)
    assert family.driver.wait(60) == 130
    assert family.wait() == []


def test_nobody_is_left_when_workers_hold_pythons_lock_for_ever() -> None:
    """A hook whose pattern goes back again and again, and a loop in C: no thread of a worker can answer."""
    family = Family("hold_the_lock")
    try:
        family.driver.send_signal(signal.SIGINT)
        assert family.driver.wait(60) == 130
        assert family.wait() == []
    finally:
        family.end()


@pytest.mark.skipif(not can_fork(), reason="workers are forked on Linux")
def test_workers_have_one_parent_which_has_nothing_open_but_its_socket(family: Family) -> None:
    (server,) = {worker.ppid() for worker in family.workers}
    assert psutil.Process(server).ppid() == family.driver.pid
    for pid, sockets in [(server, 1), *((worker.pid, 1) for worker in family.workers)]:
        opened = [path.readlink().name for path in Path(f"/proc/{pid}/fd").iterdir() if int(path.name) > 2]
        assert len([name for name in opened if name.startswith("socket:")]) == sockets, opened
        assert not [name for name in opened if name.startswith("pipe:")], opened


@pytest.mark.skipif(not can_fork(), reason="workers are forked on Linux")
def test_a_server_that_is_killed_is_replaced_when_a_worker_is_needed(driven: Driven, tmp_path: Path) -> None:
    done = driven.run([task("a"), task("b")])
    (server,) = {psutil.Process(receipt.counts["pid"]).ppid() for receipt in done.values()}
    os.kill(server, signal.SIGKILL)
    done = driven.run([task("c", dies_once=str(tmp_path / "c")), task("d", dies_once=str(tmp_path / "d"))])
    assert set(done) == {"c", "d"}


@pytest.mark.skipif(not can_fork(), reason="workers are Pythons of their own")
def test_workers_are_begun_with_what_comes_first_and_replaced_by_those_that_have_the_rest() -> None:
    named = f"{load.__module__}:{load.__qualname__}"
    prepare = Prepare([Load(named, ["first"])], [Load(named, ["rest"])])
    engine = LocalEngine(2, print, prepare, paying_bytes=0)
    try:
        early = run_all(engine, tell_loaded, [task("a"), task("b", takes=1.5)])
        before = {one.key: receipt for one, receipt in early}
        late = [task("c", takes=0.3), task("d", takes=0.3)]
        after = {one.key: receipt for one, receipt in run_all(engine, tell_loaded, late)}
    finally:
        engine.close()
    assert [receipt.facts["loaded"] for receipt in before.values()] == [["first"]] * 2
    assert [receipt.facts["loaded"] for receipt in after.values()] == [["first", "rest"]] * 2
    pids = {receipt.counts["pid"] for receipt in [*before.values(), *after.values()]}
    assert len(pids) == 4, "each of the first two has been replaced"


def test_a_python_of_its_own_is_a_worker_where_nothing_can_be_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokmill.engines.processes.can_fork", lambda: False)
    made = Driven(workers=2)
    try:
        done = made.run([task(str(number)) for number in range(6)])
        assert len(done) == 6
        assert os.getpid() not in {receipt.counts["pid"] for receipt in done.values()}
    finally:
        made.engine.close()
    assert not any(psutil.pid_exists(receipt.counts["pid"]) for receipt in done.values())


@pytest.mark.parametrize(
    ("sizes", "workers"), [([10], 1), ([900, 900], 1), ([1000, 1000], 2), ([3000, 10], 2), ([1500] * 9, 4)]
)
def test_as_many_workers_as_there_is_input_for(tmp_path: Path, sizes: list[int], workers: int) -> None:
    """A kilobyte for each, and four at most."""
    said: list[str] = []
    engine = LocalEngine(4, said.append, paying_bytes=1000, is_asked=True)
    tasks = []
    for number, size in enumerate(sizes):
        (tmp_path / str(number)).write_bytes(bytes(size))
        read = Input("texts", str(tmp_path / str(number)), str(number))
        tasks.append(Task(function="test", key=str(number), options={}, inputs=[read], directory=""))
    try:
        done = {finished.key: receipt for finished, receipt in run_all(engine, perform, tasks)}
        assert len(done) == len(tasks)
        assert engine.workers == workers
    finally:
        engine.close()
    here = {receipt.counts["pid"] for receipt in done.values()} == {os.getpid()}
    assert here == (workers == 1)
    assert len(said) == (workers < 4)
    assert all(line.startswith(f"{workers} of 4 workers used") for line in said)


def test_the_longest_task_is_begun_first(tmp_path: Path) -> None:
    tasks = []
    for number, size in enumerate([5, 900, 20, 900, 1]):
        (tmp_path / str(number)).write_bytes(bytes(size))
        read = Input("texts", str(tmp_path / str(number)), str(number))
        tasks.append(Task(function="test", key=str(number), options={}, inputs=[read], directory=""))
    engine = LocalEngine(1, print)
    engine.submit(perform, tasks[:3])
    order = [engine.collect().task.key]
    engine.submit(perform, tasks[3:])
    order += [engine.collect().task.key for _ in range(4)]
    assert order == ["1", "3", "2", "0", "4"]

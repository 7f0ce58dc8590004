"""What a job does, as a process of this machine: it needs a mailbox, and no Slurm."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import psutil
import pytest

from engines.tasks import perform, task
from slurm_nodes import until
from tokmill.artifacts.step import Task
from tokmill.engines.mailbox import (
    Answer,
    Beat,
    Bye,
    End,
    FromJob,
    Hello,
    Leaving,
    Lost,
    Mailbox,
    Order,
    Reader,
    Returned,
    append,
)
from tokmill.engines.orders import encode_order, read_reply
from tokmill.engines.pilot import PREPARE

TESTS = Path(__file__).resolve().parents[1]
IN_SLURM = {"SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "0", "SLURMD_NODENAME": "n1"}


class Flown:
    """A pilot at work, and what it has said."""

    def __init__(self, spool: Path, processes: int = 1, idle_seconds: float = 60) -> None:
        self.spool = spool
        spool.mkdir()
        (spool / PREPARE).write_bytes(b"[[],[]]")
        self.mailbox = Mailbox(spool, 0, 0)
        self.mailbox.make()
        self.said: list[FromJob] = []
        self._reader: Reader[FromJob] = Reader(self.mailbox.replies, FromJob)
        self._arguments = [str(spool), "0", str(processes), str(idle_seconds)]
        self.start()

    def start(self) -> None:
        path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tokmill.engines.pilot", *self._arguments],
            env={**os.environ, **IN_SLURM, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
        )

    def order(self, *tasks: Task) -> None:
        orders = [(number, encode_order(perform, given)) for number, given in enumerate(tasks, 1)]
        append(self.mailbox.orders, [Order(number, msgspec.Raw(order)) for number, order in orders])

    def hears(self, kind: type, times: int = 1) -> bool:
        self.said += [message for message in self._reader.read() if not isinstance(message, Beat)]
        return sum(isinstance(message, kind) for message in self.said) >= times

    def kinds(self) -> list[str]:
        return [type(message).__name__ for message in self.said]

    def ends(self) -> int:
        status = self.process.wait(60)
        if self.mailbox.replies.exists():
            self.hears(Bye)
        return status


@pytest.fixture
def flown(tmp_path: Path) -> Iterator[list[Flown]]:
    started: list[Flown] = []
    yield started
    for pilot in started:
        pilot.process.kill()
        pilot.process.communicate()


def fly(flown: list[Flown], tmp_path: Path, **options: float) -> Flown:
    flown.append(Flown(tmp_path / "spool", **options))  # type: ignore[arg-type]
    return flown[-1]


def announced(directory: Path, count: int) -> list[int]:
    until(lambda: len(list(directory.iterdir())) >= count, "the task does not begin")
    return [int(path.name) for path in directory.iterdir()]


def alive(pids: Sequence[int]) -> list[int]:
    return [pid for pid in pids if psutil.pid_exists(pid)]


def test_orders_are_carried_out_and_a_pilot_without_any_ends_by_itself(
    flown: list[Flown], tmp_path: Path
) -> None:
    pilot = fly(flown, tmp_path, idle_seconds=2)
    pilot.order(task("a"), task("b"))
    assert pilot.ends() == 0
    assert pilot.kinds() == ["Hello", "Answer", "Answer", "Bye"]
    hello, first, second, bye = pilot.said
    assert isinstance(hello, Hello)
    assert (hello.job, hello.node) == ("9_0", "n1")
    for message, key in ((first, "a"), (second, "b")):
        assert isinstance(message, Answer)
        receipt = read_reply(bytes(message.reply)).receipt
        assert receipt is not None
        assert receipt.fingerprint == task(key).fingerprint
    assert bye == Bye(2, "nothing to do")
    assert pilot.process.stdout is not None
    log = pilot.process.stdout.read().decode()
    assert "begin test a" in log
    assert "end   test b" in log


def test_a_process_that_dies_is_told_with_its_order_and_the_pilot_goes_on(
    flown: list[Flown], tmp_path: Path
) -> None:
    pilot = fly(flown, tmp_path, idle_seconds=2)
    pilot.order(task("a", dies=True), task("b"))
    assert pilot.ends() == 0
    assert pilot.kinds() == ["Hello", "Lost", "Answer", "Bye"]
    assert pilot.said[1] == Lost(1)


@pytest.mark.parametrize("how", ["End", "SIGTERM", "no spool"])
def test_what_is_at_work_is_broken_off_before_a_pilot_says_bye(
    flown: list[Flown], tmp_path: Path, how: str
) -> None:
    (tmp_path / "pids").mkdir()
    pilot = fly(flown, tmp_path)
    pilot.order(task("a", announces=str(tmp_path / "pids"), sleeps=600), task("b"))
    at_work = announced(tmp_path / "pids", 1)
    if how == "End":
        append(pilot.mailbox.orders, [End()])
    elif how == "SIGTERM":
        pilot.process.send_signal(signal.SIGTERM)
    else:
        shutil.rmtree(pilot.spool)
    pilot.ends()
    assert alive(at_work) == []
    if how != "no spool":
        assert pilot.kinds() == ["Hello", "Returned", "Bye"]
        assert pilot.said[1] == Returned([1, 2])


@pytest.mark.parametrize("swallows", [False, True])
def test_a_signal_to_all_processes_of_a_job_counts_against_no_task(
    flown: list[Flown], tmp_path: Path, swallows: bool
) -> None:
    """As Slurm sends it: the process that has the task may be the first to die of it."""
    (tmp_path / "pids").mkdir()
    pilot = fly(flown, tmp_path)
    pilot.order(task("a", announces=str(tmp_path / "pids"), sleeps=600, swallows=swallows))
    for pid in [*announced(tmp_path / "pids", 1), pilot.process.pid]:
        os.kill(pid, signal.SIGTERM)
    assert pilot.ends() == 0
    assert pilot.kinds() == ["Hello", "Returned", "Bye"]


def test_a_warning_signal_lets_work_end_and_nothing_else_begin(flown: list[Flown], tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    pilot = fly(flown, tmp_path)
    pilot.order(task("a", announces=str(tmp_path / "pids"), sleeps=3), task("b"))
    announced(tmp_path / "pids", 1)
    pilot.process.send_signal(signal.SIGUSR1)
    assert pilot.ends() == 0
    assert sorted(pilot.kinds()) == sorted(["Hello", "Leaving", "Answer", "Returned", "Bye"])
    assert Returned([2]) in pilot.said
    assert Leaving() in pilot.said


def test_a_pilot_whose_mailbox_was_used_does_nothing(flown: list[Flown], tmp_path: Path) -> None:
    """Somebody requeued the job: its orders are with others by now."""
    (tmp_path / "pids").mkdir()
    pilot = fly(flown, tmp_path)
    until(lambda: pilot.hears(Hello), "no hello")
    pilot.process.kill()
    pilot.process.communicate()
    pilot.order(task("a", announces=str(tmp_path / "pids")))
    pilot.start()
    assert pilot.ends() == 0
    assert pilot.kinds() == ["Hello", "Bye"]
    assert list((tmp_path / "pids").iterdir()) == []

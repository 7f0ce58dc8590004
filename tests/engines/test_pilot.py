"""What a job does, as a process of this machine: it needs a mailbox, on a disk or in a store; no Slurm."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import psutil
import pytest

from engines.tasks import perform, task
from object_servers import Bucket, environment, make_bucket, open_moto, open_proxy
from slurm_nodes import until
from tokmill.artifacts.step import Task
from tokmill.engines.disk_spool import DiskSpool
from tokmill.engines.mailbox import (
    Answer,
    Beat,
    Bye,
    End,
    FromJob,
    Gone,
    Hello,
    Leaving,
    Logged,
    Lost,
    Order,
    Returned,
)
from tokmill.engines.orders import encode_order, read_reply
from tokmill.engines.pilot import open_spool

TESTS = Path(__file__).resolve().parents[1]
IN_SLURM = {"SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "0", "SLURMD_NODENAME": "n1"}


# A job looks for its driver every ten seconds, or every twenty where the spool is in a store.
PATIENT_FOR = """
import sys
from tokmill.engines import disk_spool, pilot, store_spool
disk_spool.DiskSpool.beat_seconds = store_spool.StoreSpool.beat_seconds = {}
sys.exit(pilot.main(sys.argv[1:]))
"""


class Flown:
    """A pilot at work, and what it has said."""

    def __init__(
        self,
        address: str,
        processes: int = 1,
        idle_seconds: float = 60,
        beat_seconds: float | None = None,
        endpoint: str | None = None,
    ) -> None:
        self.requests = 0  # of the store, as it tells them
        self._endpoint = {} if endpoint is None else {"AWS_ENDPOINT_URL": endpoint}
        self.spool = open_spool(address)
        if isinstance(self.spool, DiskSpool):
            self.spool.open()
        self.spool.write_prepare(b"[[],[]]")
        self.spool.write_pulse(1)
        self.mailbox = self.spool.make(0, 0)
        self.said: list[FromJob] = []
        self.logged = ""
        self._arguments = [address, "0", str(processes), str(idle_seconds)]
        if beat_seconds is None:
            self._begins = ["-m", "tokmill.engines.pilot"]
        else:
            self._begins = ["-c", PATIENT_FOR.format(beat_seconds)]
        self.start()

    def start(self) -> None:
        path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, *self._begins, *self._arguments],
            env={**os.environ, **IN_SLURM, **self._endpoint, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
        )

    def order(self, *tasks: Task) -> None:
        orders = [(number, encode_order(perform, given)) for number, given in enumerate(tasks, 1)]
        self.mailbox.orders.append([Order(number, msgspec.Raw(order)) for number, order in orders])

    def hears(self, kind: type, times: int = 1) -> bool:
        for message in self.mailbox.replies.read():
            if isinstance(message, Answer | Beat | Bye):
                self.requests += sum(message.traffic.get("requests", {}).values())
            if isinstance(message, Logged):
                self.logged += message.text
            elif not isinstance(message, Beat):
                self.said.append(message)
        return sum(isinstance(message, kind) for message in self.said) >= times

    def kinds(self) -> list[str]:
        return [type(message).__name__ for message in self.said]

    def ends(self) -> int:
        status = self.process.wait(60)
        with contextlib.suppress(Gone):
            self.hears(Bye)
        return status


@pytest.fixture
def flown(tmp_path: Path) -> Iterator[list[Flown]]:
    started: list[Flown] = []
    yield started
    for pilot in started:
        pilot.process.kill()
        pilot.process.communicate()


@pytest.fixture(scope="module")
def server() -> Iterator[Bucket]:
    with open_moto() as endpoint, pytest.MonkeyPatch.context() as patch:
        for name, value in environment(endpoint).items():
            patch.setenv(name, value)
        make_bucket(endpoint, "spools")
        yield Bucket(endpoint, "spools")


@pytest.fixture(params=["disk", "store"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "disk":
        return str(tmp_path / "spool")
    return f"s3://{request.getfixturevalue('server').name}/{uuid.uuid4().hex}"


def fly(flown: list[Flown], address: str, **options: float | str) -> Flown:
    flown.append(Flown(address, **options))  # type: ignore[arg-type]
    return flown[-1]


def announced(directory: Path, count: int) -> list[int]:
    until(lambda: len(list(directory.iterdir())) >= count, "the task does not begin")
    return [int(path.name) for path in directory.iterdir()]


def alive(pids: Sequence[int]) -> list[int]:
    return [pid for pid in pids if psutil.pid_exists(pid)]


def test_orders_are_carried_out_and_a_pilot_without_any_ends_by_itself(
    flown: list[Flown], address: str, tmp_path: Path
) -> None:
    pilot = fly(flown, address, idle_seconds=2)
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
    assert isinstance(bye, Bye)
    assert bye.why == "nothing to do"
    assert pilot.process.stdout is not None
    logs = [pilot.process.stdout.read().decode()]
    if address.startswith("s3"):  # the driver cannot read what a job prints
        logs.append(pilot.logged)
        assert first.traffic["requests"]["get"] > 1
    for log in logs:
        assert "begin test a" in log
        assert "end   test b" in log


def test_a_pilot_tells_all_that_it_asked_of_a_store_but_for_its_last_word(
    flown: list[Flown], server: Bucket
) -> None:
    with open_proxy(server.endpoint) as proxy:
        address = f"s3://{server.name}/{uuid.uuid4().hex}"
        pilot = fly(flown, address, idle_seconds=4, beat_seconds=1, endpoint=proxy.endpoint)
        pilot.order(task("a"))
        assert pilot.ends() == 0
        asked = [request for request in proxy.seen if "/orders/" in request.path]
        assert len(asked) > 5, "it has been idle for a while"
        assert pilot.requests == len(proxy.seen) - 1


def test_a_process_that_dies_is_told_with_its_order_and_the_pilot_goes_on(
    flown: list[Flown], address: str, tmp_path: Path
) -> None:
    pilot = fly(flown, address, idle_seconds=2)
    pilot.order(task("a", dies=True), task("b"))
    assert pilot.ends() == 0
    assert pilot.kinds() == ["Hello", "Lost", "Answer", "Bye"]
    assert pilot.said[1] == Lost(1)


@pytest.mark.parametrize("how", ["End", "SIGTERM", "no spool"])
def test_what_is_at_work_is_broken_off_before_a_pilot_says_bye(
    flown: list[Flown], address: str, tmp_path: Path, how: str
) -> None:
    (tmp_path / "pids").mkdir()
    pilot = fly(flown, address, beat_seconds=2)
    pilot.order(task("a", announces=str(tmp_path / "pids"), sleeps=600), task("b"))
    at_work = announced(tmp_path / "pids", 1)
    if how == "End":
        pilot.mailbox.orders.append([End()])
    elif how == "SIGTERM":
        pilot.process.send_signal(signal.SIGTERM)
    else:
        pilot.spool.remove()
    pilot.ends()
    assert alive(at_work) == []
    if how != "no spool":
        assert pilot.kinds() == ["Hello", "Returned", "Bye"]
        assert pilot.said[1] == Returned([1, 2])


@pytest.mark.parametrize("swallows", [False, True])
def test_a_signal_to_all_processes_of_a_job_counts_against_no_task(
    flown: list[Flown], address: str, tmp_path: Path, swallows: bool
) -> None:
    """As Slurm sends it: the process that has the task may be the first to die of it."""
    (tmp_path / "pids").mkdir()
    pilot = fly(flown, address)
    pilot.order(task("a", announces=str(tmp_path / "pids"), sleeps=600, swallows=swallows))
    for pid in [*announced(tmp_path / "pids", 1), pilot.process.pid]:
        os.kill(pid, signal.SIGTERM)
    assert pilot.ends() == 0
    assert pilot.kinds() == ["Hello", "Returned", "Bye"]


def test_a_warning_signal_lets_work_end_and_nothing_else_begin(
    flown: list[Flown], address: str, tmp_path: Path
) -> None:
    (tmp_path / "pids").mkdir()
    pilot = fly(flown, address)
    pilot.order(task("a", announces=str(tmp_path / "pids"), sleeps=3), task("b"))
    announced(tmp_path / "pids", 1)
    pilot.process.send_signal(signal.SIGUSR1)
    assert pilot.ends() == 0
    assert sorted(pilot.kinds()) == sorted(["Hello", "Leaving", "Answer", "Returned", "Bye"])
    assert Returned([2]) in pilot.said
    assert Leaving() in pilot.said


def test_a_pilot_whose_mailbox_was_used_does_nothing(
    flown: list[Flown], address: str, tmp_path: Path
) -> None:
    """Somebody requeued the job: its orders are with others by now."""
    (tmp_path / "pids").mkdir()
    pilot = fly(flown, address)
    until(lambda: pilot.hears(Hello), "no hello")
    pilot.process.kill()
    pilot.process.communicate()
    pilot.order(task("a", announces=str(tmp_path / "pids")))
    pilot.start()
    assert pilot.ends() == 0
    assert pilot.kinds() == ["Hello", "Bye"]
    assert list((tmp_path / "pids").iterdir()) == []

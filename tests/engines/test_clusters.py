"""Ray and Dask as they are, on loopback: when workers, tasks, versions or addresses come to grief."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from engines.tasks import errors, perform, run_all, task
from slurm_nodes import until
from tokmill.artifacts.manifest import Receipt
from tokmill.artifacts.progress import warnings_to
from tokmill.artifacts.step import Task
from tokmill.engines.cluster import Engine, WorkerLost
from tokmill.engines.dask import DaskCluster, _hand_over
from tokmill.engines.local import Resources, check_resources, open_engine
from tokmill.engines.orders import carry_out, encode_order, own_code
from tokmill.errors import EngineError, MissingExtra, RecipeError, TaskFailed

TESTS = Path(__file__).resolve().parents[1]
PACKAGES = {"ray": "ray", "dask": "distributed"}


def left_behind() -> list[str]:
    return sorted(str(path) for path in Path(tempfile.gettempdir()).glob("t*m*-*") if is_ours(path))


def is_ours(path: Path) -> bool:
    return path.name.startswith(("tm-ray-", "tokmill-dask-")) and f"-{os.getpid()}-" in path.name


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


class Driven:
    """An engine and what it said about restarts."""

    def __init__(self, engine: str) -> None:
        self.restarts: list[str] = []
        self.engine: Engine = open_engine(Resources(2, engine), 1 << 20, self.restarts.append)  # type: ignore[arg-type]

    def run(self, tasks: list[Task]) -> dict[str, Receipt]:
        done: dict[str, Receipt] = {}
        for finished, receipt in run_all(self.engine, perform, tasks):
            assert finished.key not in done, "a task was handed in twice"
            done[finished.key] = receipt
        return done


@pytest.fixture(scope="module", params=["ray", "dask"])
def opened(request: pytest.FixtureRequest) -> Iterator[Driven]:
    pytest.importorskip(PACKAGES[request.param])
    before = environment()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), *filter(None, [before.get("PYTHONPATH")])]))
        here = psutil.Process()
        children = {child.pid for child in here.children(recursive=True)}
        driven = Driven(request.param)
        yield driven
        driven.engine.close()
        driven.engine.close()
        started = [child for child in here.children(recursive=True) if child.pid not in children]
        _, alive = psutil.wait_procs([c for c in started if "resource_tracker" not in str(c.cmdline())], 30)
        assert alive == []
        assert left_behind() == []
    assert environment() == before


@pytest.fixture
def driven(opened: Driven) -> Driven:
    opened.restarts.clear()
    return opened


def test_every_task_is_handed_in_once_by_two_workers(driven: Driven) -> None:
    tasks = [task(str(number)) for number in range(20)]
    done = driven.run(tasks)
    assert {key: receipt.fingerprint for key, receipt in done.items()} == {
        t.key: t.fingerprint for t in tasks
    }
    pids = {receipt.counts["pid"] for receipt in done.values()}
    assert len(pids) <= 2
    assert os.getpid() not in pids
    assert driven.engine.workers == 2
    assert driven.engine.name.split()[0] in PACKAGES
    assert driven.restarts == []
    assert driven.run([]) == {}


def test_a_task_whose_worker_is_killed_runs_again_and_the_run_goes_on(driven: Driven, tmp_path: Path) -> None:
    tasks = [task(str(number)) for number in range(8)]
    tasks[3] = task("3", dies_once=str(tmp_path / "died"))
    done = driven.run(tasks)
    assert set(done) == {t.key for t in tasks}
    assert driven.restarts == ["a worker died; its tasks run again"]
    assert set(driven.run([task("after")])) == {"after"}


def test_a_task_that_always_kills_its_worker_is_named_and_no_other_is_blamed(driven: Driven) -> None:
    tasks = [task("first"), task("second"), task("killer", dies=True), task("fourth"), task("fifth")]
    with pytest.raises(TaskFailed) as caught:
        driven.run(tasks)
    assert caught.value.where == "test killer"
    assert "a worker died 3 times" in caught.value.what
    assert len(driven.restarts) == 2
    assert set(driven.run([task("after")])) == {"after"}


def test_a_worker_that_dies_before_its_reply_is_fetched_is_heard_of(tmp_path: Path) -> None:
    """The scheduler runs the task again to fetch it, and loses the next worker."""
    cluster = DaskCluster(None, 1)
    try:
        order = encode_order(perform, task("a", dies_again=str(tmp_path / "done")))
        told = cluster._client.submit(carry_out, order, pure=False, retries=0)
        handle: Future[bytes] = Future()
        until(lambda: told.status == "finished", "the task is not done")
        (nanny,) = cluster._local.workers.values()

        async def fetch() -> None:
            os.kill(nanny.pid, signal.SIGKILL)
            await _hand_over(told, handle)

        cluster._client.sync(fetch)
        with pytest.raises(WorkerLost):
            cluster.reply(handle)
    finally:
        cluster.close()


def test_a_run_whose_workers_and_their_nannies_are_all_gone_starts_others(driven: Driven) -> None:
    """What is left when workers die before they have said that they are up, as they may on a busy machine."""
    cluster: Any = driven.engine._cluster  # type: ignore[attr-defined]
    if driven.engine.name.split()[0] != "dask":
        pytest.skip("only Dask has nannies")
    for nanny in list(cluster._local.workers.values()):
        cluster._local.sync(nanny.close)
    assert set(driven.run([task("after"), task("that")])) == {"after", "that"}


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Of Dask, with two workers, that was there before."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None, memory_limit=0
    ) as made:
        yield made


def begin(cluster: DaskCluster, given: Task) -> Any:
    """A task that is at work."""
    before = worker_of(cluster)
    handle = cluster.submit(encode_order(perform, given))
    until(lambda: len(worker_of(cluster)) > len(before), "it is not at work")
    return handle


def worker_of(cluster: DaskCluster) -> dict[str, str]:
    """Of each task that one has."""
    processing = cluster._client.processing()
    return {str(key): address for address, keys in processing.items() for key in keys}


def test_a_run_that_ends_waits_for_its_own_tasks_and_not_for_those_of_another_one(
    scheduler: Any, tmp_path: Path
) -> None:
    ours, theirs = (DaskCluster(scheduler.scheduler_address, None) for _ in range(2))
    try:
        other = begin(theirs, task("theirs", sleeps=30.0))
        (tmp_path / "pids").mkdir()
        late = task("ours", announces=str(tmp_path / "pids"), writes_late=str(tmp_path / "written"))
        own = begin(ours, late)
        until(lambda: any((tmp_path / "pids").iterdir()), "it is not at work")
        ours.cancel([own])
        assert (tmp_path / "written").exists(), "it would be written behind the back of the next run"
        assert not other.done(), "the other run was waited for"
    finally:
        ours.close()
        theirs.close()


def test_a_second_attempt_is_begun_though_the_workers_that_it_was_meant_for_are_gone(scheduler: Any) -> None:
    cluster = DaskCluster(scheduler.scheduler_address, None)
    try:
        late = task("late", sleeps=30.0)
        first = begin(cluster, late)
        (busy,) = worker_of(cluster).values()
        second = cluster.submit_elsewhere(encode_order(perform, late), first)
        assert second is not None
        key = cluster._sent[second].key
        until(lambda: key in worker_of(cluster), "it is not at work")
        there = worker_of(cluster)[key]
        assert there != busy
        scheduler.scale(3)
        until(lambda: cluster.workers() == 3, "there is no third worker")
        cluster._client.retire_workers([there])
        until(lambda: worker_of(cluster).get(key, there) != there, "it waits for a worker that is gone")
    finally:
        cluster.close()


@pytest.mark.parametrize("which", ["ours", "ours, in few words"])
def test_an_error_in_a_worker_arrives_as_it_was_raised(driven: Driven, which: str) -> None:
    raised: Any = errors()[which]
    with pytest.raises(type(raised)) as caught:
        driven.run([task("a", raises=which), *(task(str(number)) for number in range(8))])
    assert type(caught.value) is type(raised)
    assert str(caught.value) == str(raised)
    assert driven.restarts == []


def test_a_bug_in_a_worker_arrives_with_the_workers_traceback(driven: Driven) -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError: division by zero") as caught:
        driven.run([task("a", raises="a bug")])
    assert "engines/tasks.py" in str(caught.value.__cause__)


def test_what_a_worker_warns_of_is_said_by_the_driver(driven: Driven) -> None:
    said: list[str] = []
    with warnings_to(said.append):
        driven.run([task("a", warns="a shard"), task("b")])
    assert said == ["! a shard is odd"]
    assert logging.getLogger("tokmill").propagate


def test_a_private_dask_listens_to_nobody_else_and_on_no_port_that_another_run_may_have(
    driven: Driven,
) -> None:
    if driven.engine.name.split()[0] != "dask":
        pytest.skip("Ray listens on the network, for those who have its token")
    here = psutil.Process()
    family = [here, *here.children(recursive=True)]
    listening = [
        connection.laddr
        for process in family
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) > 2
    assert {address.ip for address in listening} == {"127.0.0.1"}
    assert 8787 not in {address.port for address in listening}


def test_workers_refuse_a_driver_of_another_version(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = msgspec.structs.replace(own_code(), tokmill="9.9")
    monkeypatch.setattr("tokmill.engines.orders.own_code", lambda: theirs)
    with pytest.raises(EngineError, match=r"the driver 9\.9"):
        driven.run([task("a")])


@pytest.mark.parametrize(
    ("engine", "address"),
    [("ray", "127.0.0.1:1"), ("ray", "ray://127.0.0.1:1"), ("dask", "tcp://127.0.0.1:1")],
)
def test_an_address_where_nobody_answers_is_an_error_that_names_it(engine: Any, address: str) -> None:
    pytest.importorskip(PACKAGES[engine])
    with pytest.raises(EngineError) as caught:
        open_engine(Resources(None, engine, address), 1 << 20, print)
    assert caught.value.where == address
    assert "answers at this address" in caught.value.what
    assert caught.value.next


@pytest.mark.parametrize("engine", ["ray", "dask"])
def test_an_engine_that_is_not_installed_says_which_extra_to_install(engine: str) -> None:
    program = (
        f"import sys; sys.modules[{PACKAGES[engine]!r}] = None\n"
        "from tokmill.engines.local import Resources, open_engine\n"
        "from tokmill.errors import MissingExtra\n"
        f"try: open_engine(Resources(2, {engine!r}), 1, print)\n"
        "except MissingExtra as error: print(error)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert f"next: pip install '.[{engine}]'" in ran.stdout
    assert MissingExtra.__name__ not in ran.stderr


@pytest.mark.parametrize(
    "resources", [Resources(2, "local", "auto"), Resources(2, "ray", "auto", memory=4_000_000_000)]
)
def test_what_cannot_be_meant_is_refused(resources: Resources) -> None:
    with pytest.raises(RecipeError) as caught:
        check_resources(resources)
    assert caught.value.next

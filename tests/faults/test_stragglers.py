"""A task that hangs on its node is done by another one: real clusters of Ray, Dask and Slurm.

a task that hangs      the others are done, and so is it
a node that stops      (SIGSTOP to all that it runs) a whole run goes on without it, and has its digest
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import tokmill as mill
from engines.tasks import perform, run_all, task
from faults.at_task import AtTask
from faults.disk import checked_digest
from mill import small_corpus
from nodes import CACHE, open_dask_nodes, open_ray_nodes
from object_servers import environment, make_bucket, open_moto
from slurm_nodes import slurm_nodes
from tokmill.engines.local import EngineName, Resources, open_engine

pytestmark = pytest.mark.slow_faults

TESTS = Path(__file__).resolve().parents[1]
HANGS_SECONDS = 60.0
STOPS_SECONDS = 45.0


@contextlib.contextmanager
def open_nodes(engine: EngineName, shared: Path) -> Iterator[Resources]:
    """Two, with one worker each."""
    if engine == "dask":
        with open_dask_nodes(2, {}, shared=shared) as cluster:
            yield Resources(None, engine, cluster.address)
    elif engine == "ray":
        with (
            tempfile.TemporaryDirectory(prefix="tmt-", dir="/tmp", ignore_cleanup_errors=True) as short,
            open_ray_nodes(2, {}, Path(short), shared=shared) as cluster,
        ):
            yield Resources(None, engine, cluster.address)
    else:
        with slurm_nodes(2):
            yield Resources(2, engine, slurm=["mem=9G"])  # of 16 that each node has: one job there


@pytest.mark.parametrize("engine", ["ray", "dask", "slurm"])
def test_a_task_that_hangs_is_done_on_another_node_and_nothing_of_it_is_left(
    engine: EngineName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokmill.engines.stragglers.LATE_SECONDS", 2.0)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    )
    said: list[str] = []
    tasks = [
        task("hangs", slow_once=str(tmp_path / "begun"), slow_seconds=HANGS_SECONDS),
        *(task(str(number)) for number in range(8)),
    ]
    with open_nodes(engine, tmp_path) as resources:
        driver = open_engine(resources, 1 << 20, said.append, directory=tmp_path / "out")
        try:
            begun = time.monotonic()
            done = [finished.key for finished, _ in run_all(driver, perform, tasks)]
            took = time.monotonic() - begun
            assert sorted(done) == sorted(one.key for one in tasks)
            assert took < HANGS_SECONDS - 5, "it was waited for"
            assert [line for line in said if "begun a second time on another node" in line] == said[:1]
            assert [one.key for one, _ in run_all(driver, perform, [task("after")])] == ["after"]
            driver.settle()
            assert driver.unsettled() == set()
        finally:
            driver.close()
    print(f"{engine}: {took:.1f} s, {said}")


# A whole run
# --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    directory = tmp_path_factory.mktemp("stragglers")
    dedup = {"near": {}, "window": {"policy": "trim"}, "partitions": 4}
    recipe = small_corpus(directory, problems=6000, shards={"megabytes": 1}, dedup=dedup)
    mill.run(recipe, directory / "one", workers=1)
    return recipe, checked_digest(directory / "one")


class Stopping(AtTask):
    """Stops processes in the middle of a run, and lets them go on when the others have long been done."""

    def __init__(self, number: int, find: Callable[[], list[int]]) -> None:
        self.stopped: list[int] = []
        self._find = find
        self._timer = threading.Timer(STOPS_SECONDS, self._send, [signal.SIGCONT])
        super().__init__(number, self._stop)

    def _stop(self) -> None:
        self.stopped = self._find()
        self._send(signal.SIGSTOP)
        self._timer.start()

    def _send(self, what: signal.Signals) -> None:
        for pid in self.stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, what)

    def go_on(self) -> None:
        self._timer.cancel()
        self._send(signal.SIGCONT)


def tree(pid: int) -> list[int]:
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


@pytest.mark.parametrize(
    ("engine", "shares_disk"), [("dask", True), ("dask", False), ("slurm", True), ("slurm", False)]
)
def test_a_run_goes_on_without_a_node_that_stops_and_has_the_same_digest(
    expected: tuple[Path, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: EngineName,
    shares_disk: bool,
) -> None:
    recipe, digest = expected
    monkeypatch.setattr("tokmill.engines.stragglers.LATE_SECONDS", 3.0)
    monkeypatch.setattr("tokmill.engines.stragglers.LIKES", 1)
    out, options = str(tmp_path / "out"), dict[str, Any]()
    with contextlib.ExitStack() as stack:
        settings = {"TOKMILL_NODE_CACHE": str(CACHE), "TMPDIR": "/tmp"}
        if not shares_disk:
            endpoint = stack.enter_context(open_moto())
            bucket = uuid.uuid4().hex  # a process keeps the client of a bucket
            make_bucket(endpoint, bucket)
            out, settings = f"s3://{bucket}/runs/x", {**settings, **environment(endpoint)}
            options["work"] = tmp_path / "work"
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        if engine == "dask":
            shared = recipe.parents[1] if shares_disk else None
            cluster = stack.enter_context(open_dask_nodes(3, settings, shared=shared))
            options["address"] = cluster.address

            def find() -> list[int]:
                return tree(cluster.nodes[0].process.pid)
        else:
            slurm = stack.enter_context(slurm_nodes(3, shares_disk=shares_disk))
            options |= {"workers": 3, "slurm": ["mem=9G"]}

            def find() -> list[int]:
                return slurm.pids(next(name for name in slurm.names if slurm.pids(name)))

        # all tasks of the first step are done, and of the second one of four: there are likes, and it is busy
        progress = Stopping(5, find)
        stack.callback(progress.go_on)
        mill.run(recipe, out, engine=engine, progress=progress, **options)
        assert progress.stopped
        assert [said for said in progress.said if "begun a second time on another node" in said]
        report = mill.verify(out)
        assert (report.problems, report.digest) == ([], digest)
        if shares_disk:
            shutil.rmtree(Path(out) / ".slurm", ignore_errors=True)
            assert checked_digest(Path(out)) == digest, "an attempt that came too late has left something"

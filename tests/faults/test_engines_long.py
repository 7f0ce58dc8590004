"""Engines through worse: every number of workers, nodes that die, drivers that are interrupted, tokens."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import tokmill as mill
from engines.tasks import perform, run_all, task
from faults.at_task import AtTask
from faults.disk import checked_digest
from mill import small_corpus
from tokmill.engines.local import Resources, open_engine
from tokmill.errors import DiskFull, EngineError

pytestmark = pytest.mark.slow_faults

TESTS = Path(__file__).resolve().parents[1]
PACKAGES = {"local": "tokmill", "ray": "ray", "dask": "distributed"}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    directory = tmp_path_factory.mktemp("engines")
    dedup = {"near": {}, "window": {"policy": "trim"}, "partitions": 2}
    recipe = small_corpus(directory, problems=12000, shards={"megabytes": 1}, dedup=dedup)
    mill.run(recipe, directory / "one", workers=1)
    return recipe, checked_digest(directory / "one")


@pytest.mark.parametrize("workers", [1, 2, 7])
@pytest.mark.parametrize("engine", ["local", "ray", "dask"])
def test_every_engine_and_number_of_workers_has_the_same_digest(
    expected: tuple[Path, str], tmp_path: Path, engine: Any, workers: int
) -> None:
    pytest.importorskip(PACKAGES[engine])
    recipe, digest = expected
    mill.run(recipe, tmp_path / "out", engine=engine, workers=workers)
    assert checked_digest(tmp_path / "out") == digest


@contextlib.contextmanager
def ray_nodes(count: int, directory: Path) -> Iterator[Any]:
    """A head without CPUs and nodes with two each, on loopback."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(directory))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
        cluster = cluster_utils.Cluster()
        try:
            cluster.add_node(num_cpus=0, include_dashboard=False, object_store_memory=80 << 20)
            for _ in range(count):
                cluster.add_node(num_cpus=2, object_store_memory=80 << 20)
            yield cluster
        finally:
            cluster.shutdown()


@pytest.fixture
def short_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tmt-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.mark.parametrize("kill_at", [3, 12, 25])
def test_a_node_that_is_killed_in_the_middle_of_a_run_costs_only_time(
    expected: tuple[Path, str], tmp_path: Path, short_directory: Path, kill_at: int
) -> None:
    recipe, digest = expected
    with ray_nodes(2, short_directory) as cluster:
        victim = sorted(cluster.worker_nodes, key=lambda node: node.node_id)[0]
        progress = AtTask(kill_at, lambda: cluster.remove_node(victim, allow_graceful=False))
        mill.run(recipe, tmp_path / "out", engine="ray", address=cluster.address, progress=progress)
        assert len(cluster.list_all_nodes()) == 2, (
            "the node was not killed, or the cluster was stopped with the run"
        )
    assert checked_digest(tmp_path / "out") == digest


def test_a_cluster_is_left_as_it_was_found(tmp_path: Path, short_directory: Path) -> None:
    ray = pytest.importorskip("ray")
    with ray_nodes(1, short_directory) as cluster:
        for _ in range(2):
            engine = open_engine(Resources(None, "ray", cluster.address), 1 << 20, print)
            assert engine.workers == 2
            engine.close()
            assert not ray.is_initialized()


@contextlib.contextmanager
def dask_cluster() -> Iterator[str]:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address=None,
        scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},  # else 8787, which another may have
        silence_logs=50,
    ) as cluster:
        yield cluster.scheduler_address


def test_dask_at_an_address_has_the_same_digest_and_outlives_the_run(
    expected: tuple[Path, str], tmp_path: Path
) -> None:
    recipe, digest = expected
    with dask_cluster() as address:
        for workers in (None, 1):
            out = tmp_path / f"out-{workers}"
            mill.run(recipe, out, engine="dask", address=address, workers=workers)
            assert checked_digest(out) == digest


def test_a_failed_run_leaves_no_task_at_work_on_a_cluster(tmp_path: Path) -> None:
    with dask_cluster() as address:
        engine = open_engine(Resources(None, "dask", address), 1 << 20, print)
        marker = tmp_path / "written"
        tasks = [task("slow", writes_late=str(marker)), task("bad", raises="ours")]
        with pytest.raises(DiskFull):
            list(run_all(engine, perform, tasks))
        assert marker.exists(), "the run was over before its task was"
        engine.close()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("engine", ["ray", "dask"])
def test_nothing_outlives_a_driver_that_is_interrupted_or_killed(
    engine: str, how: signal.Signals, tmp_path: Path
) -> None:
    pytest.importorskip(PACKAGES[engine])
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    driver = subprocess.Popen(
        [sys.executable, "-m", "engines.tasks", engine, str(tmp_path)],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    )
    family: list[psutil.Process] = []
    try:
        until = time.monotonic() + 120
        while len(list(tmp_path.iterdir())) < 2:
            assert driver.poll() is None, "the driver ended"
            assert time.monotonic() < until, "the workers did not start"
            time.sleep(0.2)
        family = psutil.Process(driver.pid).children(recursive=True)
        pids = {int(found.name) for found in tmp_path.iterdir()}
        workers = [process for process in family if process.pid in pids]
        assert len(workers) == 2
        if how == signal.SIGINT:
            os.killpg(driver.pid, how)  # as a terminal does
        else:
            driver.send_signal(how)
        assert driver.wait(120) == (130 if how == signal.SIGINT else -signal.SIGKILL)
        _, at_work = psutil.wait_procs(workers, timeout=60)
        assert at_work == []
        # Ray's two agents notice within a minute that the raylet is gone.
        _, alive = psutil.wait_procs(family, timeout=240)
        assert alive == []
        left = sorted(Path(tempfile.gettempdir()).glob(f"t*-{engine}-*-{driver.pid}-*"))
        assert how == signal.SIGKILL or left == []
        for directory in left:  # the next run that starts Ray here would
            shutil.rmtree(directory)
    finally:
        for process in family:
            if process.is_running():
                process.kill()
        driver.kill()
        driver.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


CONNECT = """
import sys
from tokmill.engines.local import Resources, open_engine
from tokmill.errors import TokmillError
try:
    engine = open_engine(Resources(None, "ray", sys.argv[1]), 1 << 20, print)
    print("workers", engine.workers)
    engine.close()
except TokmillError as error:
    print(type(error).__name__, error)
"""


def connect(address: str, **variables: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", CONNECT, address],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_head_with_a_token_serves_who_has_it_and_tells_the_others(short_directory: Path) -> None:
    pytest.importorskip("ray")
    port = free_port()
    address, secret = f"127.0.0.1:{port}", "0123456789abcdef" * 4
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secret}
    command = (
        f"start --head --block --port {port} --num-cpus 1 --include-dashboard false --temp-dir "
        f"{short_directory}"
    )
    head = subprocess.Popen(
        [str(Path(sys.executable).with_name("ray")), *command.split()],
        env={**os.environ, **token},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 120
        while "workers 1" not in (said := connect(address, **token)):
            assert head.poll() is None
            assert time.monotonic() < until, said
        for variables in (
            {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "wrong" * 8},
            {"RAY_AUTH_MODE": "disabled"},
        ):
            refused = connect(address, **variables)
            assert "EngineError" in refused
            assert secret not in refused
            assert "RAY_AUTH_MODE=token" in refused
    finally:
        family = [head.pid, *(child.pid for child in psutil.Process(head.pid).children(recursive=True))]
        head.terminate()
        head.wait(120)
    assert not [pid for pid in family if psutil.pid_exists(pid)]
    with pytest.raises(EngineError, match="answers at this address"):
        open_engine(Resources(None, "ray", address), 1 << 20, print)

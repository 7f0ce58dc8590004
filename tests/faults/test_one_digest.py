"""One digest for every engine, with a disk that nodes share and with none.

    local  Ray  Dask  Slurm     x     a shared disk, an object store alone

Each is a driver that is killed in the middle, and one that resumes on three nodes of which one dies meanwhile
(of the local engine: one of three workers). What comes of it is compared with a run of one process.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

import tokmill as mill
from faults.disk import checked_digest
from mill import small_corpus
from nodes import CACHE, Cluster, open_dask_nodes, open_ray_nodes
from object_servers import Bucket, environment, make_bucket, open_moto
from slurm_nodes import SlurmNodes, slurm_nodes
from written import CLAIM, MANIFEST

pytestmark = pytest.mark.slow_faults

DRIVER = """
import json, os, signal, sys
import tokmill
from tokmill.artifacts.progress import Silence

class Telling(Silence):
    done = 0

    def finish_task(self, name):
        self.done += 1
        print(name, flush=True)
        if self.done == int(sys.argv[4]):
            os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    tokmill.run(sys.argv[1], sys.argv[2], progress=Telling(), **json.loads(sys.argv[3]))
"""
NODES = 3
KILLED_AT, NODE_DIES_AT = 6, 4


class Expected(NamedTuple):
    recipe: Path
    digest: str


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    directory = tmp_path_factory.mktemp("matrix")
    dedup = {"near": {}, "window": {"policy": "trim"}, "partitions": 2}
    recipe = small_corpus(directory, problems=6000, shards={"megabytes": 1}, dedup=dedup)
    mill.run(recipe, directory / "one", workers=1)
    return Expected(recipe, checked_digest(directory / "one"))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with open_moto() as endpoint:
        yield endpoint


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    settings = {**environment(server), "TOKMILL_NODE_CACHE": str(CACHE), "TMPDIR": "/tmp"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    name = uuid.uuid4().hex
    make_bucket(server, name)
    return Bucket(server, name)


class Nodes(NamedTuple):
    options: dict[str, Any]  # of a run on them
    kill_one: Callable[[subprocess.Popen[str]], None]  # while this driver is at work


@contextlib.contextmanager
def open_nodes(engine: str, endpoint: str, shared: Path | None) -> Iterator[Nodes]:
    if engine == "local":
        yield Nodes({"workers": NODES}, kill_worker)
    elif engine == "slurm":
        with slurm_nodes(NODES, shares_disk=shared is not None) as slurm:
            asked = {"workers": NODES, "slurm": ["mem=9G"]}  # of 16 that each node has: one job there
            yield Nodes(asked, lambda driver: kill_busy(slurm))
    elif engine == "dask":
        with open_dask_nodes(NODES, environment(endpoint), shared=shared) as cluster:
            yield Nodes({"address": cluster.address}, lambda driver: kill_first(cluster))
    else:
        with (
            tempfile.TemporaryDirectory(prefix="tmt-", dir="/tmp", ignore_cleanup_errors=True) as short,
            open_ray_nodes(NODES, environment(endpoint), Path(short), shared=shared) as cluster,
        ):
            yield Nodes({"address": cluster.address}, lambda driver: kill_first(cluster))


def kill_first(cluster: Cluster) -> None:
    cluster.nodes[0].kill()


def kill_busy(slurm: SlurmNodes) -> None:
    slurm.kill_node(next(name for name in slurm.names if slurm.pids(name)))


def kill_worker(driver: subprocess.Popen[str]) -> None:
    """A child of the server that forks them."""
    server = psutil.Process(driver.pid).children()
    workers = [worker for process in server for worker in process.children()]
    workers[0].kill()


def drive(expected: Expected, out: str, options: dict[str, Any], dies_at: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(expected.recipe), out, json.dumps(options), str(dies_at)],
        env={**os.environ, "TOKMILL_WORKER_MEGABYTES": "0", "RAY_AUTH_MODE": "disabled"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("shares_disk", [True, False], ids=["disk", "store"])
@pytest.mark.parametrize("engine", ["local", "ray", "dask", "slurm"])
def test_a_run_that_is_killed_and_resumed_while_a_node_dies_has_the_digest_of_one_process(
    expected: Expected, server: str, bucket: Bucket, tmp_path: Path, engine: str, shares_disk: bool
) -> None:
    out = str(tmp_path / "out") if shares_disk else f"s3://{bucket.name}/runs/x"
    with open_nodes(engine, server, expected.recipe.parents[1] if shares_disk else None) as nodes:
        options = {"engine": engine, **nodes.options}
        if not shares_disk:
            options["work"] = str(tmp_path / "work")
        with drive(expected, out, options, KILLED_AT) as driver:
            told, said = driver.communicate(timeout=300)
        assert driver.returncode == -signal.SIGKILL, said
        assert len(told.splitlines()) == KILLED_AT
        with drive(expected, out, options, 0) as driver:
            assert driver.stdout is not None
            done = [driver.stdout.readline() for _ in range(NODE_DIES_AT)]
            nodes.kill_one(driver)
            told, said = driver.communicate(timeout=300)
        assert driver.returncode == 0, said
        assert len(done) + len(told.splitlines()) > NODE_DIES_AT, "it was over when the node died"
    if shares_disk:
        assert mill.verify(out).ok
        shutil.rmtree(Path(out) / ".slurm", ignore_errors=True)  # logs of what was lost
        assert checked_digest(Path(out)) == expected.digest
    else:
        report = mill.verify(out)
        assert (report.problems, report.digest) == ([], expected.digest)
        manifest = json.loads(bucket.load(f"runs/x/{MANIFEST}") or b"")
        beside = {key for key in bucket.sizes() if not key.startswith(f"runs/x/{manifest['digest'][:32]}/")}
        assert beside == {f"runs/x/{MANIFEST}", f"runs/x/{CLAIM}"}

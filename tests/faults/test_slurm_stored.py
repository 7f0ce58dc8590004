"""Mailboxes in an object store while the store throttles and loses answers, and while jobs die: a real Slurm
whose nodes share nothing else."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

import tokmill as mill
from faults.at_task import AtTask
from mill import small_corpus
from nodes import CACHE
from object_servers import Bucket, Proxy, Request, environment, make_bucket, open_moto, open_proxy
from slurm_nodes import SlurmNodes, slurm_nodes

pytestmark = pytest.mark.slow_faults


class Server(NamedTuple):
    endpoint: str
    proxy: Proxy


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with open_moto() as endpoint, open_proxy(endpoint) as proxy:
        yield Server(endpoint, proxy)


@pytest.fixture(scope="module")
def slurm(server: Server) -> Iterator[SlurmNodes]:
    with slurm_nodes(2, shares_disk=False) as nodes:
        yield nodes


@pytest.fixture
def bucket(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    settings = {**environment(server.proxy.endpoint), "TOKMILL_NODE_CACHE": str(CACHE), "TMPDIR": "/tmp"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    name = uuid.uuid4().hex
    make_bucket(server.endpoint, name)
    yield Bucket(server.endpoint, name)
    server.proxy.before = lambda request: None


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    directory = tmp_path_factory.mktemp("stored")
    recipe = small_corpus(
        directory, problems=1500, shards={"megabytes": 1}, dedup={"near": {}, "partitions": 2}
    )
    return recipe, mill.verify(mill.run(recipe, directory / "out", workers=1).out).digest


def test_throttling_and_lost_answers_cost_only_time(
    expected: tuple[Path, str], server: Server, slurm: SlurmNodes, bucket: Bucket, tmp_path: Path
) -> None:
    recipe, digest = expected
    lock, seen, lost = threading.Lock(), [0], [0]

    def before(request: Request) -> int | str | None:
        with lock:
            seen[0] += 1
            if seen[0] % 3 == 0:
                return 503
            # every tenth reply of a job arrives, and is not answered
            if "/replies/" in request.path and request.method == "PUT":
                lost[0] += 1
                return "lose" if lost[0] % 10 == 1 else None
            return "lose" if seen[0] % 20 == 1 else None

    server.proxy.before = before
    url = f"s3://{bucket.name}/runs/x"
    mill.run(recipe, url, engine="slurm", workers=2, slurm=["mem=9G"], work=tmp_path / "work")
    server.proxy.before = lambda request: None
    report = mill.verify(url)
    assert (report.problems, report.digest) == ([], digest)
    assert lost[0] > 10
    assert not [key for key in bucket.sizes() if "/work/" in key]


def test_a_job_that_dies_is_told_with_a_log_on_the_machine_of_the_driver(
    expected: tuple[Path, str], slurm: SlurmNodes, bucket: Bucket, tmp_path: Path
) -> None:
    recipe, digest = expected
    killed: list[int] = []

    def kill() -> None:
        node = next(name for name in slurm.names if slurm.pids(name))
        for pid in slurm.pids(node):
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
                killed.append(pid)

    url, work = f"s3://{bucket.name}/runs/x", tmp_path / "work"
    progress = AtTask(4, kill)
    mill.run(recipe, url, engine="slurm", workers=2, slurm=["mem=9G"], work=work, progress=progress)
    assert killed
    report = mill.verify(url)
    assert (report.problems, report.digest) == ([], digest)
    lost = [said for said in progress.said if "was lost with job" in said]
    assert all(Path(said.rpartition("its log: ")[2]).is_file() for said in lost)
    logs = list((work / "run/.slurm/logs").glob("*.log")) if lost else []
    assert not lost or any("begin " in log.read_text() for log in logs)

"""Jobs of a real Slurm whose nodes share nothing with the driver but an object store: mount namespaces of
their own, and moto's server for S3."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import tokmill as mill
from faults.at_task import AtTask
from mill import small_corpus
from nodes import CACHE
from object_servers import Bucket, Proxy, environment, make_bucket, open_moto, open_proxy
from slurm_nodes import SlurmNodes, slurm_nodes, until
from written import CLAIM, MANIFEST


class Expected(NamedTuple):
    recipe: Path
    digest: str


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    directory = tmp_path_factory.mktemp("stored")
    dedup = {"near": {}, "window": {"policy": "trim"}, "partitions": 2}
    recipe = small_corpus(directory, problems=1500, shards={"megabytes": 1}, dedup=dedup)
    return Expected(recipe, mill.verify(mill.run(recipe, directory / "out", workers=1).out).digest)


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
def bucket(server: Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """Jobs have the driver's environment, and a cache where it says."""
    settings = {**environment(server.proxy.endpoint), "TOKMILL_NODE_CACHE": str(CACHE), "TMPDIR": "/tmp"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    name = uuid.uuid4().hex
    make_bucket(server.endpoint, name)
    server.proxy.seen.clear()
    return Bucket(server.endpoint, name)


ONE_PER_NODE = ["mem=9G"]  # of the 16 GB that each says it has


def is_of_spool(path: str) -> bool:
    return "/work/orders/" in path


@pytest.mark.slow_faults
def test_jobs_that_share_nothing_but_a_store_make_the_same_run(
    expected: Expected, server: Server, slurm: SlurmNodes, bucket: Bucket, tmp_path: Path
) -> None:
    url, work = f"s3://{bucket.name}/runs/x", tmp_path / "work"
    done: list[str] = []
    seen_at_work: list[str] = []

    class Watching(AtTask):
        def finish_task(self, name: str) -> None:
            done.append(name)
            super().finish_task(name)

    def look() -> None:
        state = mill.status(work / "run").slurm
        assert state is not None
        seen_at_work.extend(state.jobs)

    progress = Watching(6, look)
    result = mill.run(
        expected.recipe, url, engine="slurm", workers=2, slurm=ONE_PER_NODE, work=work, progress=progress
    )
    assert result.ran
    assert "running" in seen_at_work, "it cannot be looked at from the machine of the driver"
    report = mill.verify(url)
    assert (report.problems, report.digest) == ([], expected.digest)
    manifest = json.loads(bucket.load(f"runs/x/{MANIFEST}") or b"")
    prefix = f"runs/x/{manifest['digest'][:32]}/"
    beside = {key for key in bucket.sizes() if not key.startswith(prefix)}
    assert beside == {f"runs/x/{MANIFEST}", f"runs/x/{CLAIM}"}, "mailboxes are left"

    # nobody saw a file of another
    until(lambda: slurm.pids() == [], "processes of jobs outlive the run")
    for node in map(slurm.node, slurm.names):
        assert node.sees(Path(mill.__file__)), "it can be looked into"
        for path in (expected.recipe, work):
            assert path.exists()
            assert not node.sees(path)
        assert node.files(CACHE / "files"), "it did nothing"
        assert node.files(CACHE / "tasks") == [], "a task left something behind"
        assert [
            path for path in node.files(Path("/tmp")) if path.suffix == ".log" and "tokmill" in path.name
        ] == []

    # requests for orders and replies: bounded, and told
    asked = [request for request in server.proxy.seen if is_of_spool(request.path)]
    listed = [request for request in asked if "list-type=" in request.path]
    assert len(listed) <= 2, "a listing is for removing, and for nothing else"
    written = [request for request in asked if request.method == "PUT"]
    boxes = Counter(request.path for request in written if "/orders/0" in request.path)
    assert set(boxes.values()) == {1}, "an object of a box was written twice"
    assert all("if-none-match" in request.headers for request in written if request.path in boxes)
    per_task = len(asked) / len(done)
    print(f"{len(done)} tasks, {len(asked)} requests for orders and replies, {per_task:.1f} per task")
    assert per_task < 60
    told = manifest["environment"]["traffic"]["mailboxes of jobs"]["requests"]
    assert sum(told.values()) > len(done)

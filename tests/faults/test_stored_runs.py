"""Runs on nodes that share nothing but an object store, while everything goes wrong.

kill        a task dies at any request that it makes, which arrives or does not: what is in the store
            afterwards is what it would have been
node        one of three goes for good
driver      it is killed, and started again on a machine that knows nothing of the run
two         a second driver is refused by the name of the first; one that was silent for too long gives up
throttling  503 to every third request, and answers that are lost
damage      an object that a node wrote with other bytes is named, and so is the node
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

import tokmill as mill
from faults.at_task import AtTask
from forked import Forked, start_forked
from mill import small_corpus
from nodes import Cluster, open_dask_nodes, open_ray_nodes
from object_servers import Bucket, Proxy, Request, environment, make_bucket, open_moto, open_proxy
from tokmill.artifacts.manifest import Receipt
from tokmill.artifacts.step import Task
from tokmill.engines.orders import encode_order, read_reply
from tokmill.errors import CorruptFile, DiskFull, RunLocked
from tokmill.pipeline.plan import plan_steps
from tokmill.publish.stored_run import StoredRun
from tokmill.stages.ingest.stage import conduct
from tokmill.stages.registry import perform
from tokmill.storage.lease import open_lease
from tokmill.storage.location import parse_url
from written import CLAIM, MANIFEST

pytestmark = pytest.mark.slow_faults

WORKER = """
import sys
from pathlib import Path
from tokmill.engines.orders import carry_out
Path(sys.argv[2]).write_bytes(carry_out(Path(sys.argv[1]).read_bytes()))
"""
# On a node whose disk has no room for a file of more than this.
LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))" + WORKER
DRIVER = """
import sys, tokmill
from tokmill.errors import TokmillError
recipe, url, address, work = sys.argv[1:]
try:
    tokmill.run(recipe, url, engine="dask", address=address, work=work)
except TokmillError as error:
    sys.exit(f"{type(error).__name__} {error}")
"""


class Server(NamedTuple):
    endpoint: str
    proxy: Proxy


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with open_moto() as endpoint, open_proxy(endpoint) as proxy:
        yield Server(endpoint, proxy)


@pytest.fixture
def server(running: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    for name, value in environment(running.endpoint).items():
        monkeypatch.setenv(name, value)
    running.proxy.before, running.proxy.edit = lambda request: None, lambda request, body: body
    running.proxy.seen.clear()
    return running


def new_bucket(server: Server) -> Bucket:
    name = uuid.uuid4().hex
    make_bucket(server.endpoint, name)
    return Bucket(server.endpoint, name)


@pytest.fixture
def bucket(server: Server) -> Bucket:
    return new_bucket(server)


class Expected(NamedTuple):
    recipe: Path
    digest: str


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    directory = tmp_path_factory.mktemp("stored")
    dedup = {"near": {}, "window": {"policy": "trim"}, "partitions": 2}
    recipe = small_corpus(directory, problems=3000, shards={"megabytes": 1}, dedup=dedup)
    return Expected(recipe, mill.verify(mill.run(recipe, directory / "out", workers=1).out).digest)


def check_published(bucket: Bucket, digest: str) -> None:
    report = mill.verify(f"s3://{bucket.name}/runs/x")
    assert report.problems == []
    assert report.digest == digest
    prefix = f"runs/x/{msgspec.json.decode(bucket.load(f'runs/x/{MANIFEST}') or b'')['digest'][:32]}/"
    beside = {key for key in bucket.sizes() if not key.startswith(prefix)}
    assert beside == {f"runs/x/{MANIFEST}", f"runs/x/{CLAIM}"}


# Tasks that are killed
# --------------------------------------------------------------------------------------------------


class Work(NamedTuple):
    """A task of a run below a URL of its own, for a worker that is a process."""

    server: Server
    bucket: Bucket
    order: Path
    scratch: Path
    cache: str = "cache"  # of the node that it is on

    def start(self, code: str = WORKER) -> Forked:
        settings = {
            **os.environ,
            **environment(self.server.proxy.endpoint),
            "TOKMILL_NODE_CACHE": str(self.scratch / self.cache),
        }
        quiet = os.open(os.devnull, os.O_WRONLY)
        try:
            return start_forked(
                [code, str(self.order), str(self._reply)], settings, self.scratch, quiet, quiet
            )
        finally:
            os.close(quiet)

    @property
    def _reply(self) -> Path:
        return self.scratch / "reply"

    def perform(self, code: str = WORKER) -> Receipt:
        assert self.start(code).wait() == 0
        receipt = read_reply(self._reply.read_bytes()).receipt
        assert receipt is not None
        return receipt

    def objects(self) -> dict[str, bytes]:
        """Below the work area, by their names there. Who was first stands in a receipt: the same node."""
        found = self.bucket.sizes("runs/x/work/")
        return {key.removeprefix("runs/x/work/"): self.bucket.load(key) or b"" for key in found}

    def left_here(self) -> list[str]:
        """In the node's cache, of tasks."""
        return [path.name for path in (self.scratch / self.cache / "tasks").iterdir()]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_corpus(tmp_path_factory.mktemp("source"), problems=40)


SOURCES = ("problems", "notes")


def new_work(server: Server, recipe: Path, base: Path, source: str = "problems") -> Work:
    """Its first task: documents are read and cleaned in one pass, so that it has files of two steps."""
    bucket = new_bucket(server)
    scratch = base / bucket.name
    run = scratch / "run"
    run.mkdir(parents=True)
    step = next(
        one
        for one in plan_steps(mill.load_recipe(recipe), recipe.parent, run)
        if one.name == f"ingest/{source}"
    )
    tasks: list[Task] = next(conduct(step, {}))
    assert tasks[0].followers
    url = parse_url(f"s3://{bucket.name}/runs/x")
    with open_lease(url, "small") as lease:
        (task,) = StoredRun(url, run, lease, lambda said: None).prepare(tasks[:1])
    order = scratch / "order"
    order.write_bytes(encode_order(perform, task))
    return Work(server, bucket, order, scratch)


def test_a_task_that_is_killed_between_any_two_requests_loses_nothing_and_doubles_nothing(
    server: Server, source: Path, tmp_path: Path
) -> None:
    assert sum(kill_everywhere(server, source, tmp_path, name) for name in SOURCES) >= 50


def kill_everywhere(server: Server, recipe: Path, base: Path, name: str) -> int:
    """At each request of a task, which arrives or does not; it runs again on the same node, or on another.
    How often that is."""
    whole = new_work(server, recipe, base, name)
    server.proxy.seen.clear()
    receipt = whole.perform()
    requests = len(server.proxy.seen)
    made = whole.objects()
    assert sum(name.startswith("receipts/") for name in made) == 2
    every = range(1, requests + 1)
    kills = [
        (number, arrives, again) for number in every for arrives in (1, 0) for again in ("here", "there")
    ]
    for number, arrives, again in kills:
        work = new_work(server, recipe, base, name)
        _kill_at(work, number, bool(arrives))
        # what is there is a part of what would be there, and whole: a receipt is never before its files
        there = work.objects()
        assert there.items() <= made.items()
        for key, data in there.items():
            if key.startswith("receipts/"):
                files = msgspec.json.decode(data)["receipt"]["files"]
                assert {f"objects/{file['sha256']}" for file in files} <= set(there)
        if again == "there":
            work = work._replace(cache="other")
        assert work.perform() == receipt
        assert work.objects() == made
        if f"receipts/{receipt.fingerprint}.json" not in there:  # else there was nothing to do
            assert work.left_here() == [], "what the killed one left is gone"
        shutil.rmtree(work.scratch)
    return len(kills)


def _kill_at(work: Work, number: int, arrives: bool) -> None:
    lock, seen = threading.Lock(), [0]
    started: list[Forked] = []
    ready = threading.Event()

    def before(request: Request) -> str | None:
        ready.wait()
        with lock:
            seen[0] += 1
            if seen[0] < number:
                return None
            with contextlib.suppress(ProcessLookupError):
                os.kill(started[0].pid, signal.SIGKILL)
            return "lose" if seen[0] == number and arrives else "reset"

    work.server.proxy.before = before
    started.append(work.start())
    ready.set()
    assert started[0].wait(120) != 0, "it was over before it could be killed"
    work.server.proxy.await_quiet()
    work.server.proxy.before = lambda request: None


@pytest.mark.parametrize("has_inputs", [False, True])
def test_a_node_whose_disk_is_full_is_told_by_its_own_words(
    server: Server, source: Path, tmp_path: Path, has_inputs: bool
) -> None:
    work = new_work(server, source, tmp_path)
    if has_inputs:  # then it is what the task writes that has no room
        work.perform()
        for name in work.objects():
            if name.startswith("receipts/"):
                work.bucket.delete(f"runs/x/work/{name}")
    with pytest.raises(DiskFull) as caught:
        work.perform(LIMITED)
    assert caught.value.where == str(work.scratch / work.cache)
    assert caught.value.next.startswith("name a larger disk of this node in TOKMILL_NODE_CACHE")
    assert work.left_here() == []
    assert work.perform().files


def test_two_attempts_at_once_make_one_result(server: Server, source: Path, tmp_path: Path) -> None:
    work = new_work(server, source, tmp_path)
    other = work._replace(scratch=tmp_path / "other")
    other.scratch.mkdir()
    both = [work.start(), other.start()]
    assert [one.wait(120) for one in both] == [0, 0]
    replies = [read_reply((one.scratch / "reply").read_bytes()).receipt for one in (work, other)]
    assert replies[0] == replies[1]
    assert sum(name.startswith("receipts/") for name in work.objects()) == 2


# Nodes and drivers
# --------------------------------------------------------------------------------------------------


def test_one_of_three_nodes_that_dies_costs_only_time(
    expected: Expected, server: Server, bucket: Bucket, tmp_path: Path
) -> None:
    with open_dask_nodes(3, environment(server.endpoint)) as cluster:
        progress = AtTask(5, cluster.nodes[1].kill)
        url = f"s3://{bucket.name}/runs/x"
        mill.run(
            expected.recipe, url, engine="dask", address=cluster.address, work=tmp_path, progress=progress
        )
        assert cluster.nodes[1].process.returncode is not None
    check_published(bucket, expected.digest)


def test_a_ray_cluster_without_a_shared_disk_makes_the_same_run(
    expected: Expected, server: Server, bucket: Bucket, tmp_path: Path
) -> None:
    url = f"s3://{bucket.name}/runs/x"
    with (
        tempfile.TemporaryDirectory(prefix="tmt-", dir="/tmp", ignore_cleanup_errors=True) as short,
        open_ray_nodes(2, environment(server.endpoint), Path(short)) as cluster,
    ):
        progress = AtTask(12, cluster.nodes[0].kill)
        mill.run(
            expected.recipe, url, engine="ray", address=cluster.address, work=tmp_path, progress=progress
        )
        assert cluster.nodes[0].process.returncode is not None
        assert not cluster.nodes[1].sees(tmp_path)
        assert not cluster.nodes[1].sees(expected.recipe)
    check_published(bucket, expected.digest)


@pytest.fixture(scope="module")
def dask(running: Server) -> Iterator[Cluster]:
    """Its workers go through the proxy."""
    with open_dask_nodes(2, environment(running.proxy.endpoint)) as cluster:
        yield cluster


def start_driver(
    expected: Expected, server: Server, bucket: Bucket, dask: Cluster, work: Path, *prefix: str
) -> subprocess.Popen[str]:
    arguments = [str(expected.recipe), f"s3://{bucket.name}/runs/x", dask.address, str(work)]
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", DRIVER, *arguments],
        env={**os.environ, **environment(server.proxy.endpoint)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


MOMENTS: dict[str, Callable[[Request], bool]] = {
    "source": lambda request: request.method == "PUT" and "/work/objects/" in request.path,
    "receipt": lambda request: request.method == "PUT" and "/work/receipts/" in request.path,
    "copy": lambda request: "x-amz-copy-source" in request.headers,
    "manifest": lambda request: request.method == "PUT" and request.path.endswith(f"/runs/x/{MANIFEST}"),
    "sweep": lambda request: request.method == "POST" and request.path.endswith("?delete"),
}


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("source", 1),
        ("receipt", 2),
        ("receipt", 30),
        ("copy", 20),
        ("manifest", 1),
        ("sweep", 1),
        ("sweep", 2),
    ],
)
def test_a_driver_that_is_killed_goes_on_from_the_store_on_another_machine(
    expected: Expected,
    server: Server,
    bucket: Bucket,
    dask: Cluster,
    tmp_path: Path,
    moment: str,
    number: int,
) -> None:
    """At a request of anybody, which arrives."""
    lock, seen = threading.Lock(), [0]
    is_dead = threading.Event()

    def before(request: Request) -> None:
        with lock:
            seen[0] += MOMENTS[moment](request)
            if seen[0] == number and not is_dead.is_set():
                driver.kill()
                is_dead.set()

    server.proxy.before = before
    with start_driver(expected, server, bucket, dask, tmp_path / "one") as driver:
        driver.communicate(timeout=300)
    assert is_dead.is_set(), "it was over before it could be killed"
    server.proxy.before = lambda request: None
    server.proxy.await_quiet()
    assert (bucket.load(f"runs/x/{MANIFEST}") is not None) == (moment in ("manifest", "sweep"))
    before_receipts = {key for key in bucket.sizes() if "/work/receipts/" in key}
    server.proxy.seen.clear()
    with start_driver(expected, server, bucket, dask, tmp_path / "two") as driver:
        _, said = driver.communicate(timeout=300)
    assert driver.returncode == 0, said
    # nothing that has its receipt is made again
    made = {request.path for request in server.proxy.seen if request.method == "PUT"}
    assert not any(path.endswith(key) for key in before_receipts for path in made)
    check_published(bucket, expected.digest)


def test_a_second_driver_is_refused_and_one_that_was_silent_gives_up(
    expected: Expected, server: Server, bucket: Bucket, dask: Cluster, tmp_path: Path
) -> None:
    stopped = threading.Event()

    def before(request: Request) -> None:
        if "/work/receipts/" in request.path and request.method == "PUT" and not stopped.is_set():
            stopped.set()
            driver.send_signal(signal.SIGSTOP)

    server.proxy.before = before
    with start_driver(expected, server, bucket, dask, tmp_path / "one") as driver:
        try:
            assert stopped.wait(120)
            # the same machine: its process is there, however silent it is
            with pytest.raises(RunLocked, match=f"pid {driver.pid}"):
                mill.run(
                    expected.recipe,
                    f"s3://{bucket.name}/runs/x",
                    engine="dask",
                    address=dask.address,
                    work=tmp_path / "two",
                )
            # another machine cannot ask for a process of this one: it watches the heartbeat
            apart = ("unshare", "--pid", "--fork", "--mount-proc")
            with start_driver(expected, server, bucket, dask, tmp_path / "three", *apart) as other:
                _, said = other.communicate(timeout=300)
            assert other.returncode == 0, said
            check_published(bucket, expected.digest)
        finally:
            driver.send_signal(signal.SIGCONT)
        _, said = driver.communicate(timeout=300)
    assert driver.returncode == 1
    assert "RunLocked" in said
    assert "another run has taken this place over" in said
    report = mill.verify(f"s3://{bucket.name}/runs/x")
    assert (report.problems, report.digest) == ([], expected.digest)


def test_throttling_and_lost_answers_cost_only_time(
    expected: Expected, server: Server, bucket: Bucket, dask: Cluster, tmp_path: Path
) -> None:
    lock, seen = threading.Lock(), [0]

    def before(request: Request) -> int | str | None:
        with lock:
            seen[0] += 1
            return 503 if seen[0] % 3 == 0 else "lose" if seen[0] % 20 == 1 else None

    server.proxy.before = before
    with start_driver(expected, server, bucket, dask, tmp_path / "work") as driver:
        _, said = driver.communicate(timeout=600)
    assert driver.returncode == 0, said
    assert seen[0] > 300
    server.proxy.before = lambda request: None
    check_published(bucket, expected.digest)


CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(id, now);
    if (id == CLOCK_REALTIME) now->tv_sec += SKEW;
    return status;
}
time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *into, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    into->tv_sec = now.tv_sec;
    into->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


def skewed_clock(directory: Path, seconds: int) -> Path:
    """A library for a process whose clock is so many seconds ahead."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    code, built = directory / "clock.c", directory / f"clock{seconds}.so"
    code.write_text(CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", f"-DSKEW=({seconds})", "-o", built, code, "-ldl"], check=True)
    return built


def test_clocks_that_differ_by_hours_change_nothing(
    expected: Expected, server: Server, bucket: Bucket, tmp_path: Path
) -> None:
    clocks = [skewed_clock(tmp_path, 3 * 3600), skewed_clock(tmp_path, -3 * 3600)]
    told = [
        subprocess.run(["date", "+%s"], env={**os.environ, "LD_PRELOAD": str(clock)}, capture_output=True)
        for clock in clocks
    ]
    assert 6 * 3600 - 60 < int(told[0].stdout) - int(told[1].stdout) < 6 * 3600 + 60
    with open_dask_nodes(2, environment(server.endpoint), clocks) as cluster:
        url = f"s3://{bucket.name}/runs/x"
        mill.run(expected.recipe, url, engine="dask", address=cluster.address, work=tmp_path / "work")
    check_published(bucket, expected.digest)


def test_an_object_with_other_bytes_is_named_and_so_is_the_node_that_wrote_it(
    expected: Expected, server: Server, bucket: Bucket, dask: Cluster, tmp_path: Path
) -> None:
    damaged: list[str] = []
    sources = {  # those are the driver's
        hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (expected.recipe.with_name("problems.jsonl"), expected.recipe.with_name("notes.txt"))
    }

    def edit(request: Request, body: bytes) -> bytes:
        """The first object of more than a page that is read back is wrong from then on, for everybody."""
        is_object = "/work/objects/" in request.path and request.method == "GET" and len(body) >= 4096
        if not is_object or request.path.rpartition("/")[2] in sources:
            return body
        if not damaged:
            damaged.append(request.path)
        return body[:-1] + bytes([body[-1] ^ 1]) if request.path == damaged[0] else body

    # files of a node are read by the other one, or after its cache is gone
    for node in dask.nodes:
        for path in node.files(Path("/tmp/node-cache/files")):
            path.unlink()
    server.proxy.edit = edit
    with start_driver(expected, server, bucket, dask, tmp_path / "work") as driver:
        _, said = driver.communicate(timeout=300)
    server.proxy.edit = lambda request, body: body
    assert driver.returncode == 1
    assert damaged
    assert CorruptFile.__name__ in said
    assert damaged[0].rpartition("/")[2] in said
    assert re.search(r"other bytes than were written by the node node-\d", said)
    # what it says next: without the object, what made it runs once more
    bucket.delete(damaged[0].removeprefix(f"/{bucket.name}/"))
    with start_driver(expected, server, bucket, dask, tmp_path / "work") as driver:
        _, said = driver.communicate(timeout=300)
    assert driver.returncode == 0, said
    check_published(bucket, expected.digest)

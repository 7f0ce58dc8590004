"""Tasks that take much longer than their likes, on a cluster of threads of which each is a node."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import psutil
import pytest

from engines.tasks import perform, run_all, task, write_slowly
from slurm_nodes import until
from tokmill.artifacts.directory import finish
from tokmill.artifacts.manifest import FileEntry, Receipt, build_manifest, load_receipts
from tokmill.artifacts.step import Task
from tokmill.engines.cluster import ClusterEngine, _check_files, _Late
from tokmill.engines.orders import carry_out
from tokmill.engines.stragglers import Paces, check_equal
from tokmill.errors import CorruptFile


def paces(seconds: Sequence[float], size: int = 100) -> Paces:
    found = Paces()
    for one in seconds:
        found.add("clean", one, size)
    return found


def test_a_task_is_late_after_three_times_what_its_likes_took_and_half_a_minute() -> None:
    known = paces([10, 11, 12, 13, 200])
    assert known.expected("clean", 100) == 12
    assert not known.is_late("clean", 100, 35)
    assert known.is_late("clean", 100, 37)
    assert not paces([1] * 5).is_late("clean", 100, 29), "nobody is doubled for seconds"
    assert paces([1] * 5).is_late("clean", 100, 31)


def test_one_that_reads_more_may_take_longer() -> None:
    known = paces([10] * 9)
    assert known.expected("clean", 1000) == 100
    assert not known.is_late("clean", 1000, 290)
    assert known.expected("clean", 1) == 10, "what every task costs is not saved by a small one"


def test_of_what_has_no_likes_nothing_is_expected() -> None:
    assert paces([10] * 4).expected("clean", 100) is None
    assert not paces([10] * 4).is_late("clean", 100, 10_000)
    assert paces([10] * 9).expected("tokens", 100) is None
    assert paces([10] * 9, size=0).expected("clean", 100) == 10


def receipt(digest: str, rows: int = 3, sha256: str = "0") -> Receipt:
    entry = FileEntry(path="a.parquet", table="t", bytes=1, rows=rows, sha256=sha256, content_sha256=digest)
    return Receipt(key="k", fingerprint="f", files=[entry], counts={"in": rows})


def test_two_receipts_are_equal_by_content_and_else_both_nodes_are_named() -> None:
    check_equal(task("k"), receipt("a", sha256="1"), "n1", receipt("a", sha256="2"), "n2")
    for other in (receipt("b"), receipt("a", rows=4)):
        with pytest.raises(CorruptFile, match="two nodes, n1 and n2, made different bytes") as caught:
            check_equal(task("k"), receipt("a"), "n1", other, "n2")
        assert caught.value.where.startswith("test k")


class NodesOfThreads:
    """One worker on each of three nodes. What is discarded goes on, as with Dask."""

    name = "threads"
    is_blame_shared = False
    max_deaths = 3
    killer = ""
    has_nodes = True

    def __init__(self) -> None:
        self._nodes = [ThreadPoolExecutor(1) for _ in range(3)]
        self._at: dict[Future[bytes], int] = {}
        self.elsewhere: list[int] = []
        self.discarded: list[Future[bytes]] = []
        self.cancelled: list[Future[bytes]] = []
        self._next = 0

    def submit(self, order: bytes, needed_bytes: int = 0) -> Future[bytes]:
        busy = {node for future, node in self._at.items() if not future.done()}
        return self._begin(order, next((node for node in range(3) if node not in busy), 0))

    def _begin(self, order: bytes, node: int) -> Future[bytes]:
        future = self._nodes[node].submit(carry_out, order)
        self._at[future] = node
        return future

    def submit_elsewhere(self, order: bytes, handle: Future[bytes]) -> Future[bytes] | None:
        node = (self._at[handle] + 1) % 3
        self.elsewhere.append(node)
        return self._begin(order, node)

    def begun_at(self, handle: Future[bytes], submitted_at: float) -> float | None:
        return submitted_at

    def discard(self, handle: Future[bytes]) -> None:
        self.discarded.append(handle)

    def wait(self, handles: Sequence[Future[bytes]], seconds: float | None = None) -> Sequence[Future[bytes]]:
        done, _ = wait(handles, seconds, FIRST_COMPLETED)
        return [handle for handle in handles if handle in done]

    def reply(self, handle: Future[bytes]) -> bytes:
        return handle.result()

    def cancel(self, handles: Sequence[Future[bytes]]) -> None:
        self.cancelled += handles
        wait(handles)

    def workers(self) -> int:
        return 3

    def traffic(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        for node in self._nodes:
            node.shutdown()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokmill.engines.stragglers.LATE_SECONDS", 0.3)
    monkeypatch.setattr("tokmill.engines.cluster._LOOK_SECONDS", 0.05)


class Driven:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.cluster = NodesOfThreads()
        self.engine = ClusterEngine(self.cluster, 3, self.said.append)


@pytest.fixture
def driven(soon: None) -> Iterator[Driven]:
    made = Driven()
    yield made
    made.engine.close()


def likes(count: int = 8) -> list[Any]:
    return [task(str(number)) for number in range(count)]


def slow(tmp_path: Path, seconds: float, **config: object) -> Any:
    return task("slow", slow_once=str(tmp_path / "begun"), slow_seconds=seconds, **config)


def test_a_task_that_is_late_is_begun_elsewhere_and_the_first_receipt_counts(
    driven: Driven, tmp_path: Path
) -> None:
    begun = time.monotonic()
    done = list(run_all(driven.engine, perform, [slow(tmp_path, 3.0), *likes()]))
    assert time.monotonic() - begun < 2.9, "it was waited for"
    assert sorted(finished.key for finished, _ in done) == sorted(["slow", *(t.key for t in likes())])
    (told,) = driven.said
    assert told.startswith("test slow takes")
    assert "a second time on another node" in told
    assert len(driven.cluster.elsewhere) == len(driven.cluster.discarded) == 1
    assert driven.engine.unsettled() == {""}
    driven.engine.settle()
    assert driven.cluster.discarded[0].done(), "it may still write"
    assert driven.engine.unsettled() == set()


def test_nobody_is_doubled_while_others_wait_or_are_as_slow(driven: Driven, tmp_path: Path) -> None:
    # when a worker is idle first, four long ones are done, and the median of seven is theirs
    tasks = [*likes(3), *(task(f"long{number}", sleeps=0.5) for number in range(6))]
    assert len(list(run_all(driven.engine, perform, tasks))) == 9
    waiting = [slow(tmp_path, 1.0), *(task(f"later{number}", sleeps=0.25) for number in range(4))]
    assert len(list(run_all(driven.engine, perform, waiting))) == 5
    assert [said for said in driven.said if "long" in said or "later" in said] == []


def test_attempts_that_differ_stop_the_run_and_name_both_nodes(driven: Driven, tmp_path: Path) -> None:
    assert len(list(run_all(driven.engine, perform, [slow(tmp_path, 1.0, first=2), *likes()]))) == 9
    with pytest.raises(CorruptFile, match="made different bytes of one task") as caught:
        driven.engine.settle()
    assert caught.value.where.startswith("test slow")


def test_an_attempt_that_comes_too_late_is_looked_at_while_others_run(driven: Driven, tmp_path: Path) -> None:
    list(run_all(driven.engine, perform, [slow(tmp_path, 1.0, first=2), *likes()]))
    until(lambda: driven.cluster.discarded[0].done(), "it does not end")
    with pytest.raises(CorruptFile):
        list(run_all(driven.engine, perform, [task("next")]))


def test_an_engine_that_ends_early_waits_for_second_attempts_too(driven: Driven, tmp_path: Path) -> None:
    list(run_all(driven.engine, perform, [slow(tmp_path, 1.0), *likes()]))
    driven.engine.close()
    assert driven.cluster.cancelled == driven.cluster.discarded


def test_a_file_that_a_broken_off_attempt_wrote_otherwise_is_found(driven: Driven, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"as the first one said")
    good = Receipt(key="k", fingerprint="f", files=[_entry(path)], counts={})
    there: Task = Task(function="test", key="k", options={}, inputs=[], directory=str(tmp_path))
    _check_files(_Late(there, good, "n1"))
    path.write_bytes(b"and now it is another")
    with pytest.raises(CorruptFile, match="the node n1"):
        _check_files(_Late(there, good, "n1"))
    path.unlink()
    _check_files(_Late(there, good, "n1"))  # swept by now


def write_twice(driven: Driven, directory: Path, *otherwise: str) -> Receipt:
    """With a step that follows; each is concluded before the first attempt is over, which was slow."""
    for name in ("ingest", "clean"):
        (directory / name).mkdir()
    follows: Task = Task(function="clean", key="", options={}, inputs=[], directory=str(directory / "clean"))
    late: Task = Task(
        function="test",
        key="late",
        options={
            "slow_once": str(directory / "begun"),
            "slow_seconds": 1.5,
            "otherwise": list(otherwise),
        },
        inputs=[],
        directory=str(directory / "ingest"),
        followers=[follows],
    )
    list(run_all(driven.engine, perform, likes()))
    ((_, receipt),) = run_all(driven.engine, write_slowly, [late])
    assert not driven.cluster.discarded[0].done(), "it is not late"
    for name, receipts in (("ingest", [receipt]), ("clean", load_receipts(directory / "clean"))):
        told = {"kind": name, "step": name, "config": {}, "inputs": {}, "counts": {}, "facts": {}}
        made = build_manifest(**told, receipts=receipts, experiment_id="", environment={})  # type: ignore[arg-type]
        finish(directory / name, made)
    return receipt


@pytest.mark.parametrize("otherwise", ["documents", "kept"])
def test_an_attempt_that_ends_later_may_leave_no_other_bytes_though_their_content_is_equal(
    driven: Driven, tmp_path: Path, otherwise: str
) -> None:
    """Nor may what it writes for the step that follows."""
    write_twice(driven, tmp_path, otherwise)
    with pytest.raises(CorruptFile, match="has written other bytes") as caught:
        driven.engine.settle()
    (path,) = tmp_path.glob(f"*/{otherwise}-*")
    assert path.read_bytes() == b"squeezed", "the one that was later"
    assert caught.value.where == str(path)


def test_two_attempts_that_leave_the_bytes_of_the_manifests_are_as_good_as_one(
    driven: Driven, tmp_path: Path
) -> None:
    write_twice(driven, tmp_path)
    driven.engine.settle()
    assert driven.engine.unsettled() == set()


def _entry(path: Path) -> FileEntry:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return FileEntry(path=path.name, table="t", bytes=1, rows=1, sha256=digest, content_sha256=digest)


def test_what_tasks_took_of_memory_is_asked_for_when_five_of_a_kind_are_done(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    submit = driven.cluster.submit

    def seen(order: bytes, needed_bytes: int = 0) -> Future[bytes]:
        asked.append(needed_bytes)
        return submit(order, needed_bytes)

    monkeypatch.setattr(driven.cluster, "submit", seen)
    done = list(run_all(driven.engine, perform, likes(5)))
    assert asked == [0] * 5
    driven.engine.submit(perform, [task("next")])
    peak = driven.engine.collect().peak_bytes
    assert len(done) == 5
    own = psutil.Process().memory_info().rss
    assert peak > own / 4, "threads of this process: it is its own memory"
    assert asked[-1] > peak, "and a quarter more than the largest"

"""What Ray and Dask have in common, on a cluster of threads whose machines can be made to fail."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import msgspec
import pytest

from engines.tasks import perform, run_all, task
from tokmill.artifacts.step import Task
from tokmill.engines.cluster import ClusterEngine, Loss, WorkerLost
from tokmill.engines.orders import Order, carry_out
from tokmill.errors import DiskFull, TaskFailed


class ThreadCluster:
    """Carries out orders as they are, in threads. `losses` says what is lost, in turn,
    by the key of a task."""

    name = "threads"
    max_deaths = 3
    killer = "look for who kills threads"
    has_nodes = False

    def __init__(self, workers: int, losses: dict[str, list[Loss]], *, is_blame_shared: bool = False) -> None:
        self.is_blame_shared = is_blame_shared
        self.cancelled: list[str] = []
        self.in_flight: list[int] = []
        self._workers = workers
        self._losses = {key: list(found) for key, found in losses.items()}
        self._threads = ThreadPoolExecutor(workers)
        self._keys: dict[Future[bytes], str] = {}
        self._open = 0

    def submit_elsewhere(self, order: bytes, handle: Future[bytes]) -> Future[bytes] | None:
        return None

    def begun_at(self, handle: Future[bytes], submitted_at: float) -> float | None:
        return submitted_at

    def discard(self, handle: Future[bytes]) -> None:
        pass

    def submit(self, order: bytes, needed_bytes: int = 0) -> Future[bytes]:
        given = msgspec.json.decode(order, type=Order).task
        assert given is not None
        future = self._threads.submit(carry_out, order)
        self._keys[future] = given.key
        self._open += 1
        self.in_flight.append(self._open)
        return future

    def wait(self, handles: Sequence[Future[bytes]], seconds: float | None = None) -> Sequence[Future[bytes]]:
        done, _ = wait(handles, seconds, FIRST_COMPLETED)
        return [handle for handle in handles if handle in done]

    def reply(self, handle: Future[bytes]) -> bytes:
        self._open -= 1
        losses = self._losses.get(self._keys[handle])
        if losses:
            raise WorkerLost(losses.pop(0))
        return handle.result()

    def cancel(self, handles: Sequence[Future[bytes]]) -> None:
        self.cancelled += [self._keys[handle] for handle in handles]

    def workers(self) -> int:
        return self._workers

    def traffic(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self._threads.shutdown()


def run(
    tasks: list[Task], losses: dict[str, list[Loss]], workers: int | None = None, **options: Any
) -> tuple[list[str], list[str], ThreadCluster]:
    said: list[str] = []
    cluster = ThreadCluster(2, losses, **options)
    engine = ClusterEngine(cluster, workers, said.append)
    try:
        return [finished.key for finished, _ in run_all(engine, perform, tasks)], said, cluster
    finally:
        engine.close()


TASKS = [task(str(number)) for number in range(12)]


def test_no_more_is_in_flight_than_each_worker_can_find_waiting() -> None:
    done, said, cluster = run(TASKS, {})
    assert sorted(done) == sorted(t.key for t in TASKS)
    assert max(cluster.in_flight) == 4
    assert said == []
    _, _, bounded = run(TASKS, {}, workers=1)
    assert max(bounded.in_flight) == 1


def test_a_task_outlives_two_workers_and_many_nodes() -> None:
    done, said, _ = run(TASKS, {"3": [Loss.WORKER] * 2, "5": [Loss.NODE] * 9})
    assert sorted(done) == sorted(t.key for t in TASKS)
    assert said.count("a worker died; its tasks run again") == 2
    assert said.count("a node was lost; its tasks run again") == 9


@pytest.mark.parametrize(("loss", "times"), [(Loss.WORKER, 3), (Loss.NODE, 10)])
def test_a_task_that_takes_one_after_the_other_along_is_named(loss: Loss, times: int) -> None:
    with pytest.raises(TaskFailed) as caught:
        run(TASKS, {"3": [loss] * times})
    assert caught.value.where == "test 3"
    assert caught.value.what == f"{loss.value} {times} times while it worked on this task"


def test_where_blame_is_shared_suspects_run_alone() -> None:
    losses = {"0": [Loss.WORKER] * 2, "1": [Loss.WORKER] * 2}
    done, _, cluster = run(TASKS[:6], losses, is_blame_shared=True)
    assert sorted(done) == [str(number) for number in range(6)]
    assert 1 in cluster.in_flight[4:], "none ran alone"


def test_the_first_error_cancels_what_is_running() -> None:
    cluster = ThreadCluster(2, {})
    engine = ClusterEngine(cluster, None, print)
    tasks = [task("bad", raises="ours"), *TASKS]
    with pytest.raises(DiskFull):
        list(run_all(engine, perform, tasks))
    assert cluster.cancelled
    assert len(cluster.in_flight) <= 4, "work was handed out after the error"
    engine.close()


def test_a_consumer_that_goes_away_cancels_what_is_running() -> None:
    cluster = ThreadCluster(2, {})
    engine = ClusterEngine(cluster, None, print)
    results = run_all(engine, perform, TASKS)
    next(results)
    engine.close()  # an interrupt in the consumer: the generator is still held by the traceback
    assert cluster.cancelled
    del results

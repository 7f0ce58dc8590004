"""Tasks on a cluster that somebody else schedules: what Ray and Dask have in common.

    waiting ──submit, at most `room` at once──> running ──reply──> (task, receipt)
       ^                                           │
       └────── its worker or its node died ────────┘   three deaths of its worker: given up, and named

Whatever ends the run (an error, Ctrl-C, a consumer that goes away) cancels what is running, and waits until
nothing of it can write any more.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from tokmill.engines.local import Perform
from tokmill.engines.orders import encode_order, read_reply
from tokmill.errors import TaskFailed
from tokmill.manifest import Receipt
from tokmill.task import Task

_ALONE_AFTER = 2
_GIVE_UP_AFTER = 3
# Nodes that are rented by the minute go away for no fault of a task.
_GIVE_UP_AFTER_NODES = 10


class Loss(enum.Enum):
    WORKER = "a worker died"
    NODE = "a node was lost"


class WorkerLost(Exception):
    def __init__(self, loss: Loss) -> None:
        super().__init__(loss.value)
        self.loss = loss


class Cluster(Protocol):
    """A handle is whatever `submit` returns, if it can be a key."""

    name: str  # for the manifest
    is_blame_shared: bool  # a worker that dies takes tasks along that only waited for it

    def submit(self, order: bytes) -> Any: ...
    def wait(self, handles: Sequence[Any]) -> Sequence[Any]: ...  # those that are done, at least one
    def reply(self, handle: Any) -> bytes: ...  # raises WorkerLost
    def cancel(self, handles: Sequence[Any]) -> None: ...
    def workers(self) -> int: ...
    def close(self) -> None: ...


class ClusterEngine:
    def __init__(
        self, cluster: Cluster, workers: int | None, on_restart: Callable[[str], None], *, device: str = "cpu"
    ) -> None:
        self._cluster = cluster
        self._wanted = workers
        self._on_restart = on_restart
        self._device = device
        self._running: dict[Any, Task] = {}
        self.name = cluster.name

    @property
    def workers(self) -> int:
        found = max(self._cluster.workers(), 1)
        return found if self._wanted is None else min(found, self._wanted)

    def run(self, perform: Perform, tasks: Sequence[Task]) -> Iterator[tuple[Task, Receipt]]:
        waiting = deque(tasks)
        deaths: dict[str, int] = {}
        lost_nodes: dict[str, int] = {}
        try:
            while waiting or self._running:
                room = self._room(deaths)
                while waiting and len(self._running) < room:
                    handle = self._cluster.submit(encode_order(perform, self._device, waiting[0]))
                    self._running[handle] = waiting.popleft()
                losses: set[Loss] = set()
                for handle in self._cluster.wait(list(self._running)):
                    task = self._running.pop(handle)
                    try:
                        reply = self._cluster.reply(handle)
                    except WorkerLost as lost:
                        _count(lost.loss, task, deaths, lost_nodes)
                        losses.add(lost.loss)
                        waiting.appendleft(task)
                        continue
                    deaths.pop(task.fingerprint, None)
                    receipt = read_reply(reply)
                    assert receipt is not None
                    assert receipt.fingerprint == task.fingerprint
                    yield task, receipt
                for loss in sorted(losses, key=lambda loss: loss.value):
                    self._on_restart(f"{loss.value}; its tasks run again")
        finally:
            self._stop()

    def close(self) -> None:
        self._stop()
        self._cluster.close()

    def _room(self, deaths: dict[str, int]) -> int:
        if self._cluster.is_blame_shared and any(count >= _ALONE_AFTER for count in deaths.values()):
            return 1  # the one that kills its worker is to be found
        # Twice the workers: each finds its next task waiting. A cluster may grow and shrink.
        return 2 * self.workers if self._wanted is None else self.workers

    def _stop(self) -> None:
        running = list(self._running)
        self._running.clear()
        if running:
            self._cluster.cancel(running)


def _count(loss: Loss, task: Task, deaths: dict[str, int], lost_nodes: dict[str, int]) -> None:
    counts, limit = (deaths, _GIVE_UP_AFTER) if loss is Loss.WORKER else (lost_nodes, _GIVE_UP_AFTER_NODES)
    counts[task.fingerprint] = counts.get(task.fingerprint, 0) + 1
    if counts[task.fingerprint] >= limit:
        raise TaskFailed(
            f"{loss.value} {limit} times while it worked on this task",
            where=f"{task.function} {task.key}",
            next="look for the kernel's (or Ray's) out-of-memory killer; try fewer workers on a node "
            "or a smaller `shards.megabytes`",
        )

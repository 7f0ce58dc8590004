"""Tasks for workers that are other processes: what this machine, Ray, Dask and Slurm have in common.

    submit ──> waiting ──the longest first, at most `room` at once──> running ──reply──> collect: Done
                  ^                                                      │
                  └───────────── its worker or its node died ────────────┘   too often: given up, and named

Tasks are submitted while others run. Whatever ends the run (an error, Ctrl-C, a consumer that goes away)
cancels what is running, and waits until nothing of it can write any more.
"""

from __future__ import annotations

import contextlib
import enum
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tokmill.artifacts.manifest import Json, Receipt
from tokmill.artifacts.step import Task
from tokmill.engines.orders import Perform, encode_order, read_reply
from tokmill.errors import TaskFailed


class Done(NamedTuple):
    """A task, what it made, and what that took where it was made."""

    task: Task
    receipt: Receipt
    seconds: float
    cpu_seconds: float
    node: str = ""
    traffic: Json = {}  # noqa: RUF012 (never changed) with object stores


class Engine(Protocol):
    @property
    def name(self) -> str: ...  # for the manifest
    @property
    def workers(self) -> int: ...
    def submit(self, perform: Perform, tasks: Iterable[Task]) -> None: ...
    def collect(self) -> Done: ...  # the next that is done, in any order; waits for it
    def traffic(self) -> Json: ...  # of workers with object stores, beside their tasks
    def close(self) -> None: ...


class Queue:
    """Tasks that wait, the longest first: one that is begun last keeps the others waiting for it. How long a
    task takes is not known, but it reads its inputs; of two that read the same the first comes first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Perform, Task]] = []
        self._count = 0
        self._sizes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, perform: Perform, task: Task) -> int:
        """Its bytes."""
        if task.stored is not None:
            size = sum(file.bytes for file in task.stored.files.values())
        else:
            size = sum(self._size(item.path) for item in task.inputs)
        heapq.heappush(self._heap, (-size, self._count, perform, task))
        self._count += 1
        return size

    def put_back(self, perform: Perform, task: Task) -> None:
        """Before all others: it was begun already."""
        heapq.heappush(self._heap, (-(1 << 62), self._count, perform, task))
        self._count += 1

    def get(self) -> tuple[Perform, Task]:
        _, _, perform, task = heapq.heappop(self._heap)
        return perform, task

    def clear(self) -> None:
        self._heap.clear()

    def _size(self, path: str) -> int:
        """Of a file of this machine; tasks of a step name the same ones again and again."""
        if path not in self._sizes:
            try:
                self._sizes[path] = Path(path).stat().st_size
            except (OSError, ValueError):  # in an object store
                self._sizes[path] = UNKNOWN_BYTES
        return self._sizes[path]


# A file that is not here counts as a shard does.
UNKNOWN_BYTES = 64 << 20


# --- a cluster and its engine ---

_ALONE_AFTER = 2
# Nodes that are rented by the minute go away for no fault of a task.
_GIVE_UP_AFTER_NODES = 10


class Loss(enum.Enum):
    WORKER = "a worker died"
    NODE = "a node was lost"
    TIME = "a job ran out of time"


class WorkerLost(Exception):
    def __init__(self, loss: Loss) -> None:
        super().__init__(loss.value)
        self.loss = loss


class Cluster(Protocol):
    """A handle is whatever `submit` returns, if it can be a key."""

    name: str  # for the manifest
    is_blame_shared: bool  # a worker that dies takes tasks along that only waited for it
    max_deaths: int  # of workers that have one task: then it is given up
    killer: str  # what may have killed them, and what to do

    def submit(self, order: bytes) -> Any: ...
    def wait(self, handles: Sequence[Any]) -> Sequence[Any]: ...  # those that are done, at least one
    def reply(self, handle: Any) -> bytes: ...  # raises WorkerLost
    def cancel(self, handles: Sequence[Any]) -> None: ...
    def workers(self) -> int: ...
    def traffic(self) -> Json: ...
    def close(self) -> None: ...


class ClusterEngine:
    def __init__(self, cluster: Cluster, workers: int | None, on_restart: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._wanted = workers
        self._on_restart = on_restart
        self._waiting = Queue()
        self._running: dict[Any, tuple[Perform, Task]] = {}
        self._done: deque[Done] = deque()
        self._losses: dict[Loss, dict[str, int]] = {loss: {} for loss in Loss}  # by fingerprint
        self.name = cluster.name

    @property
    def workers(self) -> int:
        found = max(self._cluster.workers(), 1)
        return found if self._wanted is None else min(found, self._wanted)

    def submit(self, perform: Perform, tasks: Iterable[Task]) -> None:
        for task in tasks:
            self._waiting.put(perform, task)
        with self._stopping():
            self._hand_out()

    def collect(self) -> Done:
        with self._stopping():
            while not self._done:
                self._hand_out()
                assert self._running, "nothing was submitted"
                losses: set[Loss] = set()
                for handle in self._cluster.wait(list(self._running)):
                    self._take(handle, losses)
                for loss in sorted(losses, key=lambda loss: loss.value):
                    self._on_restart(f"{loss.value}; its tasks run again")
            self._hand_out()  # who asked for this one may take its time before it asks for the next
            return self._done.popleft()

    def traffic(self) -> Json:
        return self._cluster.traffic()

    def close(self) -> None:
        self._stop()
        self._cluster.close()

    def _hand_out(self) -> None:
        room = self._room() if self._waiting else 0
        while self._waiting and len(self._running) < room:
            perform, task = self._waiting.get()
            self._running[self._cluster.submit(encode_order(perform, task))] = perform, task

    def _take(self, handle: Any, losses: set[Loss]) -> None:
        perform, task = self._running.pop(handle)
        try:
            reply = self._cluster.reply(handle)
        except WorkerLost as lost:
            self._count(lost.loss, task)
            losses.add(lost.loss)
            self._waiting.put_back(perform, task)
            return
        found = read_reply(reply)
        assert found.receipt is not None
        if self._losses[Loss.WORKER]:
            self._losses[Loss.WORKER].pop(task.fingerprint, None)
        self._done.append(
            Done(task, found.receipt, found.seconds, found.cpu_seconds, found.node, found.traffic)
        )

    def _count(self, loss: Loss, task: Task) -> None:
        """One more of them while a worker had the task; so many are too many."""
        limit = _GIVE_UP_AFTER_NODES if loss is Loss.NODE else self._cluster.max_deaths
        counts, fingerprint = self._losses[loss], task.fingerprint
        counts[fingerprint] = counts.get(fingerprint, 0) + 1
        if counts[fingerprint] >= limit:
            raise TaskFailed(
                f"{loss.value} {limit} times while it worked on this task",
                where=f"{task.function} {task.key}",
                next=f"{_MORE_TIME if loss is Loss.TIME else self._cluster.killer} or a smaller "
                "`shards.megabytes`",
            ) from None

    def _room(self) -> int:
        deaths = self._losses[Loss.WORKER].values()
        if self._cluster.is_blame_shared and any(count >= _ALONE_AFTER for count in deaths):
            return 1  # the one that kills its worker is to be found
        # Twice the workers: each finds its next task waiting. A cluster may grow and shrink.
        return 2 * self.workers if self._wanted is None else self.workers

    @contextlib.contextmanager
    def _stopping(self) -> Iterator[None]:
        """Nothing goes on behind an error."""
        try:
            yield
        except BaseException:
            self._stop()
            raise

    def _stop(self) -> None:
        running = list(self._running)
        self._running.clear()
        self._waiting.clear()
        self._done.clear()
        for counts in self._losses.values():
            counts.clear()
        if running:
            self._cluster.cancel(running)


_MORE_TIME = "give jobs more time (`--slurm time=…`)"
CLUSTER_KILLER = "look for the kernel's (or Ray's) out-of-memory killer; try fewer workers on a node"

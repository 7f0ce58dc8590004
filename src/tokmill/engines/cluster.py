"""Tasks for workers that are other processes: what this machine, Ray, Dask and Slurm have in common.

    submit ──> waiting ──the longest first, at most `room` at once──> running ──reply──> collect: Done
                  ^                                                      │
                  └───────────── its worker or its node died ────────────┘   too often: given up, and named
                                    nobody waits, workers are idle, it is late ─> a second time elsewhere

A task that runs twice (`stragglers`) is done with the first receipt. The other attempt is stopped where it
can be; whatever it has written are the same bytes, which is proven at the end (`settle`).

Tasks are submitted while others run. Whatever ends the run (an error, Ctrl-C, a consumer that goes away)
cancels what is running, and waits until nothing of it can write any more.
"""

from __future__ import annotations

import contextlib
import enum
import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tokmill.artifacts.directory import open_artifact
from tokmill.artifacts.manifest import Json, Receipt
from tokmill.artifacts.step import Task
from tokmill.artifacts.upstream import shard_key
from tokmill.engines.orders import Perform, Reply, decode_reply, encode_order, read_reply
from tokmill.engines.stragglers import LIKES, Paces, check_equal
from tokmill.errors import CorruptFile, EngineError, TaskFailed
from tokmill.storage.location import file_sha256


class Done(NamedTuple):
    """A task, what it made, and what that took where it was made."""

    task: Task
    receipt: Receipt
    seconds: float
    cpu_seconds: float
    node: str = ""
    traffic: Json = {}  # noqa: RUF012 (never changed) with object stores
    peak_bytes: int = 0  # of its worker; 0: not known


class Engine(Protocol):
    @property
    def name(self) -> str: ...  # for the manifest
    @property
    def workers(self) -> int: ...
    def submit(self, perform: Perform, tasks: Iterable[Task]) -> None: ...
    def collect(self) -> Done: ...  # the next that is done, in any order; waits for it
    def traffic(self) -> Json: ...  # of workers with object stores, beside their tasks
    def unsettled(self) -> set[str]: ...  # directories in which a second attempt may still write
    def settle(self) -> None: ...  # until there are none
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
        size = self.size(task)
        heapq.heappush(self._heap, (-size, self._count, perform, task))
        self._count += 1
        return size

    def size(self, task: Task) -> int:
        if task.stored is not None:
            return sum(file.bytes for file in task.stored.files.values())
        return sum(self._size(item.path) for item in task.inputs)

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
_LOOK_SECONDS = 2.0  # between looks for tasks that are late
_SETTLE_SECONDS = 600.0


class Loss(enum.Enum):
    WORKER = "a worker died"
    NODE = "a node was lost"
    TIME = "a job ran out of time"
    PREEMPTED = "jobs were told to end"  # as often as an engine puts up with
    NOWHERE = "a second attempt has no place"  # it has not begun: nothing is lost


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
    has_nodes: bool  # of which one may be slow

    def submit(self, order: bytes, needed_bytes: int = 0) -> Any: ...  # of memory; 0: not known
    def submit_elsewhere(
        self, order: bytes, handle: Any
    ) -> Any | None: ...  # on another node, if there is one
    def begun_at(self, handle: Any, submitted_at: float) -> float | None: ...  # None: it waits
    def wait(self, handles: Sequence[Any], seconds: float | None = None) -> Sequence[Any]: ...
    # those that are done, at least one; none after so many seconds
    def reply(self, handle: Any) -> bytes: ...  # raises WorkerLost
    def discard(self, handle: Any) -> None: ...  # it is not needed any more; who can stop it does
    def cancel(self, handles: Sequence[Any]) -> None: ...  # nothing of them can write any more afterwards
    def workers(self) -> int: ...
    def traffic(self) -> Json: ...
    def close(self) -> None: ...


class _Begun(NamedTuple):
    perform: Perform
    task: Task
    at: float
    size: int


class _Late(NamedTuple):
    """The other attempt of a task that is done."""

    task: Task
    receipt: Receipt
    node: str  # that made it


class ClusterEngine:
    def __init__(self, cluster: Cluster, workers: int | None, on_restart: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._wanted = workers
        self._on_restart = on_restart
        self._waiting = Queue()
        self._running: dict[Any, _Begun] = {}
        self._twins: dict[Any, Any] = {}  # of two that run one task, each by the other
        self._late: dict[Any, _Late] = {}
        self._overtaken: list[_Late] = []  # whose other attempt is over, or broken off
        self._paces = Paces()
        self._peaks: dict[str, tuple[int, int]] = {}  # by function: tasks that told their memory, the most
        self._done: deque[Done] = deque()
        self._losses: dict[Loss, dict[str, int]] = {loss: {} for loss in Loss}  # by fingerprint
        self.name = cluster.name

    @property
    def workers(self) -> int:
        return self._slots()

    def _slots(self) -> int:
        """Tasks at once."""
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
                self._double()
                looks = self._cluster.has_nodes and (self._has_idle() or bool(self._late))
                over = self._cluster.wait([*self._running, *self._late], _LOOK_SECONDS if looks else None)
                for handle in over:
                    if handle in self._late:
                        self._take_late(handle)
                    elif handle in self._running:  # else its twin came with it, and was first
                        self._take(handle, losses, over)
                for loss in sorted(losses, key=lambda loss: loss.value):
                    self._on_restart(f"{loss.value}; its tasks run again")
            self._hand_out()  # who asked for this one may take its time before it asks for the next
            return self._done.popleft()

    def traffic(self) -> Json:
        return self._cluster.traffic()

    def unsettled(self) -> set[str]:
        tasks = [late.task for late in (*self._late.values(), *self._overtaken)]
        return {one.directory for task in tasks for one in (task, *task.followers)}

    def settle(self) -> None:
        """Second attempts are over, and have made the same bytes or none."""
        until = time.monotonic() + _SETTLE_SECONDS
        while self._late and (left := until - time.monotonic()) > 0:
            for handle in self._cluster.wait(list(self._late), left):
                self._take_late(handle)
        if self._late:
            self._cluster.cancel(list(self._late))
            self._overtaken += self._late.values()
            self._late.clear()
        for late in self._overtaken:
            _check_files(late)
        self._overtaken.clear()

    def close(self) -> None:
        self._stop()
        self._cluster.close()

    def _hand_out(self) -> None:
        room = self._room() if self._waiting else 0
        while self._waiting and len(self._running) < room:
            perform, task = self._waiting.get()
            handle = self._cluster.submit(encode_order(perform, task), self._needed(task.function))
            self._running[handle] = _Begun(perform, task, time.monotonic(), self._waiting.size(task))

    def _needed(self, function: str) -> int:
        """Memory of a task as its likes took it, and a quarter more."""
        told, most = self._peaks.get(function, (0, 0))
        return most * 5 // 4 if told >= LIKES else 0

    def _take(self, handle: Any, losses: set[Loss], over: Sequence[Any]) -> None:
        begun = self._running.pop(handle)
        task = begun.task
        twin = self._twins.pop(handle, None)
        if twin is not None:
            del self._twins[twin]
        try:
            reply = self._cluster.reply(handle)
        except WorkerLost as lost:
            if lost.loss is not Loss.NOWHERE:
                self._count(lost.loss, task)
                losses.add(lost.loss)
            if twin is None:
                self._waiting.put_back(begun.perform, task)
            return
        found = read_reply(reply)
        assert found.receipt is not None
        if self._losses[Loss.WORKER]:
            self._losses[Loss.WORKER].pop(task.fingerprint, None)
        self._paces.add(task.function, found.seconds, begun.size)
        if found.peak_bytes:
            told, most = self._peaks.get(task.function, (0, 0))
            self._peaks[task.function] = told + 1, max(most, found.peak_bytes)
        if twin is not None:
            del self._running[twin]
            self._late[twin] = _Late(task, found.receipt, found.node)
            if twin in over:
                self._take_late(twin)
            else:
                self._cluster.discard(twin)
        self._done.append(_done(task, found))

    # --- second attempts ---

    def _has_idle(self) -> bool:
        return bool(self._running) and not self._waiting and len(self._running) < self._slots()

    def _double(self) -> None:
        """Those that are late, while workers have nothing else to do."""
        if not (self._cluster.has_nodes and self._has_idle()):
            return
        now = time.monotonic()
        room = self._slots() - len(self._running)
        for handle, begun in list(self._running.items()):
            begun_at = self._cluster.begun_at(handle, begun.at)
            if handle in self._twins or begun_at is None:
                continue
            task, seconds = begun.task, now - begun_at
            if not self._paces.is_late(task.function, begun.size, seconds):
                continue
            if room <= 0:
                return
            twin = self._cluster.submit_elsewhere(encode_order(begun.perform, task), handle)
            if twin is None:
                continue
            room -= 1
            self._running[twin] = begun._replace(at=now)
            self._twins[handle], self._twins[twin] = twin, handle
            expected = self._paces.expected(task.function, begun.size) or 0.0
            self._on_restart(
                f"{task.function} {task.key} takes {seconds:.0f} s where {expected:.0f} were expected: begun "
                "a second time on another node"
            )

    def _take_late(self, handle: Any) -> None:
        """It is over: was it the same? One that has failed says nothing: what it read may be gone by now."""
        late = self._late.pop(handle)
        self._overtaken.append(late)
        with contextlib.suppress(WorkerLost, EngineError):
            found = decode_reply(self._cluster.reply(handle))
            if found.receipt is not None:
                check_equal(late.task, late.receipt, late.node, found.receipt, found.node)

    def _count(self, loss: Loss, task: Task) -> None:
        """One more of them while a worker had the task; so many are too many."""
        limit = {Loss.NODE: _GIVE_UP_AFTER_NODES, Loss.PREEMPTED: 1}.get(loss, self._cluster.max_deaths)
        counts, fingerprint = self._losses[loss], task.fingerprint
        counts[fingerprint] = counts.get(fingerprint, 0) + 1
        if counts[fingerprint] >= limit:
            times, who = (MAX_PREEMPTIONS, "they") if loss is Loss.PREEMPTED else (limit, "it")
            raise TaskFailed(
                f"{loss.value} {times} times while {who} worked on this task",
                where=f"{task.function} {task.key}",
                next=f"{_ADVICE.get(loss, self._cluster.killer)} or a smaller `shards.megabytes`",
            ) from None

    def _room(self) -> int:
        deaths = self._losses[Loss.WORKER].values()
        if self._cluster.is_blame_shared and any(count >= _ALONE_AFTER for count in deaths):
            return 1  # the one that kills its worker is to be found
        # Twice the workers: each finds its next task waiting. A cluster may grow and shrink.
        return 2 * self._slots() if self._wanted is None else self._slots()

    @contextlib.contextmanager
    def _stopping(self) -> Iterator[None]:
        """Nothing goes on behind an error."""
        try:
            yield
        except BaseException:
            self._stop()
            raise

    def _stop(self) -> None:
        running = [*self._running, *self._late]
        self._running.clear()
        self._twins.clear()
        self._late.clear()
        self._overtaken.clear()
        self._waiting.clear()
        self._done.clear()
        for counts in self._losses.values():
            counts.clear()
        if running:
            self._cluster.cancel(running)


def _done(task: Task, found: Reply) -> Done:
    assert found.receipt is not None
    return Done(
        task,
        found.receipt,
        found.seconds,
        found.cpu_seconds,
        found.node,
        found.traffic,
        found.peak_bytes,
    )


def _check_files(late: _Late) -> None:
    """On a disk that all share the other attempt may have been the last to write them: equal content, but in
    other bytes where its node has another library."""
    if late.task.stored is not None:
        return  # in a store they are named by their bytes
    directory = Path(late.task.directory)
    wanted = [(directory / entry.path, entry.sha256) for entry in late.receipt.files]
    shards = {shard_key(entry) for entry in late.receipt.files if entry.table == "documents"}
    for path, sha256 in [*wanted, *_followed(late.task, shards)]:
        if path.exists() and file_sha256(path) != sha256:
            raise CorruptFile(
                f"a second attempt of {late.task.function} {late.task.key} has written other bytes than the "
                f"node {late.node}, which was first",
                where=str(path),
                next="install the same packages on the nodes, or look at their memory and disks; run the "
                "same command with `--verify`",
            )


def _followed(task: Task, shards: Set[str]) -> Iterator[tuple[Path, str]]:
    """What steps have that were done in the same pass, as their manifests tell it of these shards."""
    for follower in task.followers:
        artifact = open_artifact(Path(follower.directory))
        if artifact is None:
            continue
        paths = {path for told in artifact.manifest.tasks if told["key"] in shards for path in told["files"]}
        for entry in artifact.manifest.files:
            if entry.path in paths:
                yield artifact.path(entry), entry.sha256


# A job that is preempted gives its tasks back, and none of them is to blame; but some queues would go on so.
MAX_PREEMPTIONS = 20
_ADVICE = {
    Loss.TIME: "give jobs more time (`--slurm time=…`)",
    Loss.PREEMPTED: "choose a partition or a QOS whose jobs are left to end (`--slurm partition=…`)",
}
CLUSTER_KILLER = "look for the kernel's (or Ray's) out-of-memory killer; try fewer workers on a node"

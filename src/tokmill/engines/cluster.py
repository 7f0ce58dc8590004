"""Tasks on a cluster that somebody else schedules: what Ray and Dask have in common.

    waiting ──submit, at most `room` at once──> running ──reply──> (task, receipt)
       ^                                           │
       └────── its worker or its node died ────────┘   three deaths of its worker: given up, and named

    driver   Order(perform, device, code, task)   ──bytes──>  carry_out(order)    in a worker
             Reply(receipt | fault | bug, logged) <──bytes──  what was logged meanwhile comes along

Whatever ends the run (an error, Ctrl-C, a consumer that goes away) cancels what is running,
and waits until nothing of it can write any more.

What travels is JSON and the name of a function, never code. A worker whose tokmill or Python is not the
driver's refuses each order by name, so that a node which joins late is found out too. An error of ours
arrives as it was raised; anything else arrives with the worker's traceback. Before connecting, an address
must have a listener (`require_listener`), and what killed drivers left behind is removed
(`remove_abandoned`).
"""

from __future__ import annotations

import contextlib
import enum
import functools
import importlib
import logging
import os
import platform
import shutil
import socket
import tempfile
import threading
import traceback
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tokmill.artifacts.manifest import FORMAT_VERSION, Receipt, package_version
from tokmill.artifacts.progress import LOGGER
from tokmill.artifacts.step import Task
from tokmill.engines.local import Perform, count_loss
from tokmill.errors import EngineError, TokmillError
from tokmill.storage.lease import pid_space, process_began

# --- orders and replies ---


class Code(msgspec.Struct, frozen=True):
    """What a worker runs. Two of them must be equal, or a run would be made of two kinds of bytes."""

    python: str  # major.minor
    tokmill: str
    format_version: int


class Order(msgspec.Struct, frozen=True, kw_only=True):
    perform: str  # module:function; none in an order that only asks who is there
    code: Code
    task: Task | None


class Fault(msgspec.Struct, frozen=True):
    kind: str
    what: str
    where: str
    next: str


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    receipt: Receipt | None = None
    fault: Fault | None = None
    bug: tuple[str, str] | None = None  # one line, and the traceback
    words: list[tuple[str, int, str]] = []  # logger, level, message


class WorkerTraceback(Exception):
    """Where it happened, in a process that is out of reach."""


def encode_order(perform: Perform, task: Task) -> bytes:
    name = f"{perform.__module__}:{perform.__qualname__}"
    return msgspec.json.encode(Order(perform=name, code=own_code(), task=task))


def encode_question() -> bytes:
    return msgspec.json.encode(Order(perform="", code=own_code(), task=None))


def carry_out(order: bytes) -> bytes:
    """Runs in a worker. It never raises: what an engine makes of an exception is not ours to rely on."""
    words = _listen()
    try:
        reply = Reply(receipt=_obey(order), words=words)
    except TokmillError as error:
        fault = Fault(type(error).__name__, error.what, error.where, error.next)
        reply = Reply(fault=fault, words=words)
    except Exception as error:  # noqa: BLE001 (a bug: it is told to the driver, which raises it)
        line = "".join(traceback.format_exception_only(error)).strip()
        reply = Reply(bug=(line, traceback.format_exc()), words=words)
    return msgspec.json.encode(reply)


def read_reply(reply: bytes) -> Receipt | None:
    """The receipt (none for a question), after the worker's words were logged here; or the worker's error."""
    found = msgspec.json.decode(reply, type=Reply)
    for name, level, message in found.words:
        logging.getLogger(name).log(level, "%s", message)
    if found.fault is not None:
        kind = _kinds().get(found.fault.kind, TokmillError)
        raise kind(found.fault.what, where=found.fault.where, next=found.fault.next)
    if found.bug is not None:
        line, trace = found.bug
        raise RuntimeError(f"a task failed in its worker: {line}") from WorkerTraceback(f"\n{trace}")
    return found.receipt


_at_work: dict[int, str] = {}  # thread -> task, of this worker


def tasks_at_work() -> list[str]:
    """Fingerprints of what this worker is doing now, which an engine cannot always stop."""
    return sorted(_at_work.values())


def _obey(order: bytes) -> Receipt | None:
    # First without the task: an order of another tokmill may not even be readable.
    wanted = msgspec.json.decode(order, type=_OrderHead)
    _check_code(wanted.code)
    parsed = msgspec.json.decode(order, type=Order)
    if parsed.task is None:
        return None
    module, _, name = parsed.perform.partition(":")
    perform: Perform = getattr(importlib.import_module(module), name)
    _at_work[threading.get_ident()] = parsed.task.fingerprint
    try:
        return perform(parsed.task)
    finally:
        del _at_work[threading.get_ident()]


class _OrderHead(msgspec.Struct, frozen=True):
    code: Code


def _check_code(wanted: Code) -> None:
    here = own_code()
    if here == wanted:
        return
    if here.python != wanted.python:
        difference = f"this worker has Python {here.python}, the driver {wanted.python}"
    else:
        difference = (
            f"this worker has tokmill {here.tokmill} (format {here.format_version}), "
            f"the driver {wanted.tokmill} (format {wanted.format_version})"
        )
    raise EngineError(
        difference,
        where=socket.gethostname(),
        next="install the same Python and tokmill on the driver and on every node",
    )


@functools.cache
def own_code() -> Code:
    python = ".".join(platform.python_version_tuple()[:2])
    return Code(python, package_version("tokmill") or "unknown", FORMAT_VERSION)


class _Listening(logging.Handler):
    """Keeps what is logged by the thread that carries out an order, for its reply."""

    def __init__(self) -> None:
        super().__init__()
        self.here: Any = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        words = getattr(self.here, "words", None)
        if words is not None and not hasattr(
            record, "counted"
        ):  # how far a task is comes too late in its reply
            words.append((record.name, record.levelno, record.getMessage()))


@functools.cache
def _listening() -> _Listening:
    handler = _Listening()
    logging.getLogger(LOGGER).addHandler(handler)
    return handler


def _listen() -> list[tuple[str, int, str]]:
    words: list[tuple[str, int, str]] = []
    _listening().here.words = words
    return words


def _kinds() -> dict[str, type[TokmillError]]:
    found: dict[str, type[TokmillError]] = {}
    waiting: list[type[TokmillError]] = [TokmillError]
    while waiting:
        kind = waiting.pop()
        found[kind.__name__] = kind
        waiting += kind.__subclasses__()
    return found


# --- the engine ---

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
    def __init__(self, cluster: Cluster, workers: int | None, on_restart: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._wanted = workers
        self._on_restart = on_restart
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
                    handle = self._cluster.submit(encode_order(perform, waiting[0]))
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
    killer = "look for the kernel's (or Ray's) out-of-memory killer; try fewer workers on a node"
    count_loss(task, counts, limit, loss.value, next=killer)


# --- around a driver ---

_CONNECT_SECONDS = 5.0


def require_listener(address: str, default_port: int, what: str, given: str) -> None:
    """Ask before the library does: Ray and Dask wait for minutes, or end the process,
    where nobody answers."""
    host, colon, port = address.rpartition(":")
    if not colon:
        host, port = address, str(default_port)
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS):
            return
    except (OSError, ValueError, OverflowError) as error:
        raise EngineError(
            f"no {what} answers at this address ({error})",
            where=given,
            next="give the host and port of one that runs; see docs/clusters.md",
        ) from error


@contextlib.contextmanager
def restored_environment(names: Iterable[str]) -> Iterator[None]:
    """These variables are afterwards what they were before, whatever is set meanwhile."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def temp_directory(name: str, parent: Path) -> Iterator[Path]:
    """For a cluster of our own. One of a driver that was killed is removed by the next."""
    remove_abandoned(parent, name)
    directory = Path(tempfile.mkdtemp(prefix=temp_prefix(name), dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def temp_prefix(name: str) -> str:
    return f"{name}-{_host()}-{os.getpid()}-{process_began(os.getpid())}-"


def remove_abandoned(parent: Path, name: str) -> None:
    """Directories of processes that were killed before they could tidy up."""
    for path in sorted(parent.glob(f"{name}-{_host()}-*-*-*")):
        pid, began = path.name.removeprefix(f"{name}-{_host()}-").split("-")[:2]
        if pid.isdecimal() and began.isdecimal() and process_began(int(pid)) != int(began):
            shutil.rmtree(path, ignore_errors=True)


def _host() -> str:
    """Short, for sockets lie below. Containers may share a directory and a name,
    and know nothing of each other's pids."""
    return f"{zlib.crc32(f'{socket.gethostname()} {pid_space()}'.encode()):08x}"

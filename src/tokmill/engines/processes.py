"""Processes of this machine as a cluster: each worker has one task, and a socket to the driver.

    submit ─ one that is idle, or another one ─> handle ─ wait: words are logged, replies kept ─> reply
                                                     └─ the socket ends: WorkerLost, and its task is known

A worker is forked by a server that is ready (`forking`), or is a Python of its own where nothing can be
forked. It is begun when there is a task for it.

    server   ─ load: what the first tasks use ─┬─ load: what only later ones do ─┬─
                                               └─ worker ─ its task ─ ends       └─ worker, in its place

No worker waits for what its task does not need, and none loads what the server has by then.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from tokmill.artifacts.manifest import Json
from tokmill.engines.cluster import Loss, WorkerLost
from tokmill.engines.forking import (
    GRACE_SECONDS,
    Server,
    Started,
    can_fork,
    start_python,
    start_server,
    take_server,
)
from tokmill.engines.worker import LENGTH, PID, REPLY, WORD

_HEAD = 1 + LENGTH.size
_WORKER = "tokmill.engines.worker:work_at"


class Load(NamedTuple):
    """A function that loads things that tasks use."""

    function: str  # module:name
    arguments: Sequence[object] = ()  # as JSON has them


class Prepare(NamedTuple):
    first: Sequence[Load]  # before any worker is forked
    later: Sequence[Load]  # while the first ones work


class _Worker:
    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.pid: int | None = None  # none before it has said so
        self.is_gone = False
        self.is_old = False  # one that is forked now has more
        self.task: Handle | None = None
        self._heard = bytearray()

    def send(self, order: bytes) -> None:
        self.channel.sendall(LENGTH.pack(len(order)) + order)

    def kill(self, how: signal.Signals) -> None:
        """As soon as it is known which process it is. A message would be read by a thread of it, which does
        not have its turn while another one holds Python's lock."""
        while self.pid is None and not self.is_gone:
            self.hear()
        self.hear(0)  # a process that has ended may have left its number to another one
        if self.pid is not None and not self.is_gone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, how)

    def hear(self, seconds: float | None = None) -> None:
        """What can be read by then; the end of the socket is the end of the worker."""
        self.channel.settimeout(seconds)
        try:
            piece = self.channel.recv(1 << 20)
        except (BlockingIOError, TimeoutError):
            return
        except OSError:
            piece = b""
        finally:
            self.channel.settimeout(None)
        self.is_gone = not piece
        self._heard += piece
        while len(self._heard) >= _HEAD:
            end = _HEAD + LENGTH.unpack_from(self._heard, 1)[0]
            if len(self._heard) < end:
                break
            self._obey(bytes(self._heard[:1]), bytes(self._heard[_HEAD:end]))
            del self._heard[:end]

    def _obey(self, kind: bytes, content: bytes) -> None:
        if kind == PID:
            self.pid = int(content)
        elif kind == WORD:
            name, level, message, counted = msgspec.json.decode(content)
            extra = {} if counted is None else {"counted": tuple(counted)}
            logging.getLogger(name).log(level, "%s", message, extra=extra)
        elif kind == REPLY and self.task is not None:
            self.task.reply, self.task = content, None


class Handle:
    """A task that a worker has, and its reply when it is there."""

    def __init__(self, worker: _Worker) -> None:
        self.worker = worker
        self.reply: bytes | None = None

    @property
    def is_over(self) -> bool:
        return self.reply is not None or self.worker.is_gone


class Processes:
    name = "local"
    is_blame_shared = False
    has_nodes = False  # all are of this machine
    max_deaths = 5
    killer = "look for the kernel's out-of-memory killer; try fewer `--workers`"

    def __init__(self, most: int, prepare: Prepare | None = None) -> None:
        self._most = most
        self._prepare = prepare
        self._server: Server | None = None
        self._later: Sequence[Load] = ()  # not asked for yet
        self._pythons: list[Started] = []
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()

    def workers(self) -> int:
        return self._most

    def traffic(self) -> Json:
        return {}

    def submit_elsewhere(self, order: bytes, handle: Handle) -> None:
        return None

    def begun_at(self, handle: Handle, submitted_at: float) -> float | None:
        return submitted_at

    def submit(self, order: bytes, needed_bytes: int = 0) -> Handle:
        while True:
            idle = [worker for worker in self._workers if worker.task is None and not worker.is_gone]
            if idle and idle[0].is_old:
                self._forget(idle[0])  # it ends when it sees that the socket does
                continue
            worker = idle[0] if idle else self._begin()
            worker.task = handle = Handle(worker)
            try:
                worker.send(order)
            except OSError:
                if idle:  # killed while it had nothing to do
                    self._forget(worker)
                    continue
                worker.is_gone = True  # when it was asked for: this is a loss like any other
            return handle

    def wait(self, handles: Sequence[Handle], seconds: float | None = None) -> Sequence[Handle]:
        self._load_later()
        while not (over := [handle for handle in handles if handle.is_over]):
            self.hear(seconds)
            if seconds is not None:
                return [handle for handle in handles if handle.is_over]
        return over

    def hear(self, seconds: float | None = None) -> None:
        """What workers say next, or have said; nothing after so many seconds."""
        self._load_later()
        for key, _ in self._selector.select(seconds):
            worker: _Worker | None = key.data
            if worker is None:
                self._hear_server()
                continue
            worker.hear()
            if worker.is_gone:
                self._forget(worker)

    def reply(self, handle: Handle) -> bytes:
        if handle.reply is None:
            raise WorkerLost(Loss.WORKER)
        return handle.reply

    def discard(self, handle: Handle) -> None:
        self.cancel([handle])

    def cancel(self, handles: Sequence[Handle]) -> None:
        self._end([handle.worker for handle in handles])

    def close(self) -> None:
        self._end(self._workers)
        self._close_server()
        while self._pythons:
            self._pythons.pop().wait()

    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers if worker.pid is not None]

    def _begin(self) -> _Worker:
        ours, theirs = socket.socketpair()
        worker = _Worker(ours)
        self._workers.append(worker)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        with theirs:
            if not can_fork():
                self._pythons.append(start_python(_WORKER, theirs.fileno()))
                return worker
            try:
                self._open_server(take_server).fork(theirs)
            except OSError:  # it was killed
                self._close_server()
                self._open_server(start_server).fork(theirs)
        return worker

    def _open_server(self, get: Callable[[], Server]) -> Server:
        if self._server is None:
            self._server = get()
            first, self._later = self._prepare or Prepare((), ())
            for load in first:
                self._server.load(load.function, *load.arguments)
        return self._server

    def _load_later(self) -> None:
        """All workers are begun for which there are tasks; another one would have to wait for this."""
        if self._server is not None and self._later:
            for load in self._later:
                self._server.load(load.function, *load.arguments)
            self._later = ()
            self._selector.register(self._server, selectors.EVENT_READ, None)

    def _hear_server(self) -> None:
        assert self._server is not None
        try:
            is_loaded = self._server.hear()
        except EOFError:  # it was killed, which is seen where a worker is to be forked
            is_loaded = False
            self._selector.unregister(self._server)
        if is_loaded:
            self._selector.unregister(self._server)
            for worker in self._workers:
                worker.is_old = True

    def _close_server(self) -> None:
        if self._server is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._server)
            self._server.close()
            self._server = None

    def _end(self, workers: Sequence[_Worker]) -> None:
        """Nothing of them can write any more afterwards."""
        ending = [worker for worker in workers if not worker.is_gone]
        for worker in ending:
            worker.task = None
            worker.kill(signal.SIGTERM)
        until = time.monotonic() + GRACE_SECONDS
        for worker in ending:
            while not worker.is_gone and (left := until - time.monotonic()) > 0:
                worker.hear(left)
        for worker in ending:
            worker.kill(signal.SIGKILL)
            while not worker.is_gone:
                worker.hear()
            self._forget(worker)

    def _forget(self, worker: _Worker) -> None:
        worker.is_gone = True
        if worker in self._workers:
            self._workers.remove(worker)
            self._selector.unregister(worker.channel)
            worker.channel.close()

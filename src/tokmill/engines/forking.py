"""Workers that are ready when they are begun: a process that has loaded what tasks use forks them.

    driver ─ forked, while it has one thread ──┐
           └ else a Python of its own ─────────┴─> server ─ load ─ kernels, tables, libraries
           ──  {"load": "module:function", …}      ──>  │    <── a byte, when it is loaded
           ──  {}, the worker's end of a socket pair ──>├─ fork ─> worker <── orders, replies ──> driver
           ──  {"call": "module:function", …}, an end ─>└─ fork ─> what it returns, as JSON ──> driver

A Python that loads all this takes 3.2 CPU seconds; a worker that is forked from one 0.1
(docs/decisions/0017).

A fork copies one thread, and locks as the others held them. So it is made by a process that has one thread:
a command before it reads its recipe, or a Python that was started for it. Libraries that start a thread
when they are loaded are told not to (`own_process`).

The server has no descriptors but its own: no lock, no socket, no pipe of the driver's stays open in it. It
ends with the driver, and waits for the workers first: their CPU time is that of the driver's children. It has
no path and no port, and needs no semaphores.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, Protocol

from tokmill.engines.own_process import ONE_THREAD, collector_at_rest, has_one_thread, spare_collector

# How long a worker may take to break off what it does: a kernel hears nothing before it returns.
GRACE_SECONDS = 3.0
_MESSAGE_BYTES = 1 << 16
_GLANCE_SECONDS = 0.002
_WORK, _WORK_AT = "tokmill.engines.worker:work", "tokmill.engines.worker:work_at"


def can_fork() -> bool:
    """On macOS the system's own libraries do not survive it."""
    return sys.platform.startswith("linux")


# --- the driver's side ---


class Started(Protocol):
    """A process that the driver waits for, as subprocess.Popen is."""

    @property
    def pid(self) -> int: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...  # if it has not ended


class Server:
    def __init__(self, control: socket.socket, started: Started) -> None:
        self._control = control
        self._started = started
        self._has_forked = False
        self._loads = 0  # asked for, and not known to be done

    def fileno(self) -> int:
        """Of what can be read: that something is loaded."""
        return self._control.fileno()

    def load(self, what: str, *arguments: object) -> None:
        """Call a function there, by its name, before anything else is forked."""
        with contextlib.suppress(OSError):  # it is gone: who forks will see that
            self._control.send(json.dumps({"load": what, "arguments": arguments}).encode())
            self._loads += 1

    def hear(self) -> bool:
        """After something can be read: whether all is loaded that was asked for. Raises EOFError where the
        server is gone."""
        try:
            heard = len(self._control.recv(1))
        except OSError:
            heard = 0
        if not heard:
            raise EOFError
        self._loads -= heard
        return not self._loads

    def fork(self, theirs: socket.socket) -> None:
        """Raises OSError where the server is gone."""
        socket.send_fds(self._control, [b"{}"], [theirs.fileno()])
        self._has_forked = True

    def call(self, what: str, *arguments: object) -> Answer | None:
        """Call a function in a process of its own, by its name; None where the server is gone."""
        ours, theirs = socket.socketpair()
        with theirs:
            asked = json.dumps({"call": what, "arguments": arguments}).encode()
            try:
                socket.send_fds(self._control, [asked], [theirs.fileno()])
            except OSError:  # also where it is too much for one message
                ours.close()
                return None
        self._has_forked = True
        return Answer(ours)

    def close(self) -> None:
        self._control.close()
        if not self._has_forked:  # it may be loading what nobody needs
            self._started.kill()
        self._started.wait()


class Answer:
    """What a function returns that another process calls."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def wait(self) -> Any:
        """None where that process has come to an end without one."""
        told = bytearray()
        with self._channel, contextlib.suppress(OSError):
            while piece := self._channel.recv(_MESSAGE_BYTES):
                told += piece
        return json.loads(told) if told.endswith(b"\n") else None


def start_server() -> Server:
    """A Python of its own: who calls us may have threads, and much in memory."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        return Server(ours, start_python(f"{__name__}:serve_at", theirs.fileno()))


def start_python(function: str, descriptor: int) -> Started:
    """Calls a function with a descriptor, which it has."""
    module, _, name = function.partition(":")
    code = f"import sys; sys.path[:] = {sys.path!r}; from {module} import {name}; {name}({descriptor})"
    started = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        pass_fds=[descriptor],
        env={**os.environ, **ONE_THREAD},
    )
    assert started.stdin is not None
    started.stdin.close()  # nothing can be read from it; a machine may have no /dev/null
    return started


class _Forked:
    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self, timeout: float | None = None) -> int:
        with contextlib.suppress(ChildProcessError):  # somebody else has waited for all children
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return 0

    def kill(self) -> None:
        with contextlib.suppress(ChildProcessError):
            if not os.waitpid(self.pid, os.WNOHANG)[0]:
                os.kill(self.pid, signal.SIGKILL)


_ready: list[Server] = []  # forked by this process while it could, for the first engine that it opens
_helpers: list[Server] = []  # likewise, for what it has to ask meanwhile: they load nothing


@contextlib.contextmanager
def forked_server() -> Iterator[None]:
    """Around what may need workers, while this process has one thread: later it has several. One that is not
    used costs a hundredth of a second."""
    with _forked_into(_ready):
        yield


@contextlib.contextmanager
def forked_helper() -> Iterator[None]:
    """Around what may `ask_ahead`: of a process that has all that this one has imported by now."""
    with _forked_into(_helpers):
        yield


@contextlib.contextmanager
def _forked_into(servers: list[Server]) -> Iterator[None]:
    if not (can_fork() and has_one_thread()):
        yield
        return
    servers.append(_fork_server())
    try:
        yield
    finally:
        while servers:
            servers.pop().close()


def load_ahead(what: str) -> None:
    """In the server that waits for its engine, if there is one: while this process finds out what to do."""
    for server in _ready:
        server.load(what)


def ask_ahead(what: str, *arguments: object) -> Answer | None:
    """Of a process that is forked for it; None: nobody is there to be asked."""
    for server in _helpers:
        return server.call(what, *arguments)
    return None


def take_server() -> Server:
    return _ready.pop() if _ready else start_server()


def _fork_server() -> Server:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if not pid:
        try:
            atexit._clear()  # what the driver has to do at its end
            _close_others(theirs.fileno())
            serve(theirs)
        finally:
            os._exit(1)
    theirs.close()
    return Server(ours, _Forked(pid))


def _close_others(kept: int) -> None:
    """A lock or a pipe is open for as long as anybody has it open."""
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if descriptor > 2 and descriptor != kept:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(descriptor)
    ended, end = os.pipe()
    os.close(end)
    os.dup2(ended, 0)  # nothing can be read from it
    if ended:
        os.close(ended)


# --- the server's side ---


def serve_at(descriptor: int) -> NoReturn:
    spare_collector()
    with collector_at_rest():
        _named(_WORK)
    serve(socket.socket(fileno=descriptor))


def serve(control: socket.socket) -> NoReturn:
    """Until the driver closes its end, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children: set[int] = set()
    while True:
        try:
            message, descriptors, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, 1)
        except OSError:
            message, descriptors = b"", []
        _reap(children)
        if not message:
            break
        wanted = json.loads(message)
        if "load" in wanted:
            # what was loaded is not looked through again, and so not copied, in each worker
            with contextlib.suppress(BaseException), collector_at_rest():  # the task says what is missing
                _named(wanted["load"])(*wanted["arguments"])
            with contextlib.suppress(OSError):  # the driver is gone, and the next message says so
                control.send(b"l")
        for descriptor in descriptors:
            if "call" not in wanted:
                children.add(_fork_worker(descriptor, control))
            elif has_one_thread():  # else the driver sees that nothing comes
                children.add(_fork_call(wanted, descriptor, control))
            os.close(descriptor)
    _end(children)
    os._exit(0)


def _fork_worker(descriptor: int, control: socket.socket) -> int:
    if not has_one_thread():  # a library of another version than ours starts some: then as without a server
        return start_python(_WORK_AT, descriptor).pid
    child = os.fork()
    if not child:
        try:
            control.close()
            _named(_WORK)(socket.socket(fileno=descriptor))
        finally:
            os._exit(1)
    return child


def _fork_call(wanted: dict[str, Any], descriptor: int, control: socket.socket) -> int:
    child = os.fork()
    if not child:
        try:
            control.close()
            told = json.dumps(_named(wanted["call"])(*wanted["arguments"])) + "\n"
            socket.socket(fileno=descriptor).sendall(told.encode())
            os._exit(0)
        finally:
            os._exit(1)
    return child


def _named(function: str) -> Callable[..., object]:
    """By its name: a command that only forks this process has loaded it, or will not need it."""
    module, _, name = function.partition(":")
    found: Callable[..., object] = getattr(importlib.import_module(module), name)
    return found


def _reap(children: set[int]) -> None:
    for child in list(children):
        if os.waitpid(child, os.WNOHANG)[0]:
            children.discard(child)


def _end(children: set[int]) -> None:
    """They have been told to end, or have seen that the driver is gone."""
    until = time.monotonic() + GRACE_SECONDS
    while children and time.monotonic() < until:
        _reap(children)
        time.sleep(_GLANCE_SECONDS)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

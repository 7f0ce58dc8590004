"""A process that has loaded the mill and forks drivers, and for each driver the workers that it asks for.

    test    ── {"start": arguments} ──>                nursery ── fork ──> driver, in a process group of its own
    driver  ── {"spawn": command, "as": fds}, fds ──>  nursery ── fork ──> worker, in the driver's group

A driver starts workers as it always does, by multiprocessing's spawn. Only the last call beneath that, which executes
another Python, is answered by a fork: a worker then costs 0.1 CPU seconds where loading costs it 4.5, and a run two
instead of twelve, so that hundreds of kills fall on work and not on imports. Some kills of Pythons that load remain
beside them (test_kills.py).

One request a connection, in one packet; the answer in another. The nursery ends with its stdin.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import util
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).resolve().parent
PACKET_BYTES = 1 << 16
# Descriptors of a worker are small numbers; received ones wait above them.
ABOVE = 512


class Nursery:
    """The other side, for a test."""

    def __init__(self, recipe: Path, scratch: Path, path: list[Path]) -> None:
        self._socket = scratch / "nursery"
        self._process = subprocess.Popen(
            [sys.executable, HERE / "nursery.py", recipe, self._socket],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", "the mill could not be loaded"

    def start(self, *arguments: str) -> Nursed:
        return Nursed(ask(self._socket, {"start": arguments})["pid"], self._socket)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class Nursed:
    """A driver, as subprocess.Popen would show it."""

    def __init__(self, pid: int, nursery: Path) -> None:
        self.pid, self.returncode, self._nursery = pid, None, nursery

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = ask(self._nursery, {"status": self.pid})["status"]
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = time.monotonic() + (timeout or 0)
        while self.poll() is None:
            if timeout is not None and time.monotonic() >= until:
                raise subprocess.TimeoutExpired("a nursed driver", timeout)
            time.sleep(0.005)
        assert self.returncode is not None
        return self.returncode

    def workers(self) -> list[int]:
        found: list[int] = ask(self._nursery, {"workers": self.pid})["pids"]
        return found


def ask(nursery: Path, request: dict[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(nursery))
        socket.send_fds(connection, [json.dumps(request).encode()], descriptors)
        answer: dict[str, Any] = json.loads(connection.recv(PACKET_BYTES))
        return answer


class _Serving:
    def __init__(self, address: Path) -> None:
        self._address = address
        self._workers: dict[int, int] = {}  # pid -> the driver's
        self._ended: dict[int, int] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(address))
        self._listener.listen(64)
        signal.signal(signal.SIGCHLD, self._reap)

    def serve(self) -> None:
        while True:
            readable, _, _ = select.select([self._listener, 0], [], [])
            if 0 in readable:  # nothing is ever said there: its end is ours
                return
            connection, _ = self._listener.accept()
            with connection:
                message, received, _, _ = socket.recv_fds(connection, PACKET_BYTES, 16)
                if not message:  # a driver that was killed before it could say what it wants
                    continue
                try:
                    answer = self._obey(json.loads(message), received)
                finally:
                    for descriptor in received:
                        os.close(descriptor)
                with contextlib.suppress(OSError):  # who asked may have been killed since
                    connection.send(json.dumps(answer).encode())

    def _obey(self, asked: dict[str, Any], received: list[int]) -> dict[str, Any]:
        if "status" in asked:
            return {"status": self._ended.get(asked["status"])}
        if "workers" in asked:
            alive = [pid for pid, driver in self._workers.items() if pid not in self._ended]
            return {"pids": [pid for pid in alive if self._workers[pid] == asked["workers"]]}
        if "start" in asked:
            return {"pid": self._fork(0, lambda: become_driver(asked["start"], self._address))}
        if asked["driver"] in self._ended:
            return {"pid": 0}
        pid = self._fork(asked["driver"], lambda: become_worker(asked["spawn"], asked["as"], received))
        self._workers[pid] = asked["driver"]
        return {"pid": pid}

    def _fork(self, group: int, become: Callable[[], NoReturn]) -> int:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        child = os.fork()
        if not child:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            try:
                os.setpgid(0, group)  # an error where the driver was killed meanwhile
                become()
            finally:
                os._exit(1)
        self._ended.pop(child, None)  # pids come back
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        with contextlib.suppress(OSError):  # both do it, so that it is done when either goes on
            os.setpgid(child, group)
        return child

    def _reap(self, *_: object) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._ended[ended[0]] = os.waitstatus_to_exitcode(ended[1])


def become_driver(arguments: list[str], nursery: Path) -> NoReturn:
    quiet = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(quiet, number)
    os.closerange(3, ABOVE)
    execute = util.spawnv_passfds

    def spawn(path: bytes, command: list[str | bytes], descriptors: Sequence[int]) -> int:
        words = [os.fsdecode(word) for word in command]
        if not any("spawn_main" in word for word in words):
            return execute(path, command, descriptors)  # the resource tracker
        request = {"spawn": words, "as": list(descriptors), "driver": os.getpid()}
        return int(ask(nursery, request, list(descriptors))["pid"])

    util.spawnv_passfds = spawn
    sys.argv = ["tokmill", *arguments]
    from tokmill.cli import main

    _end(main)


def become_worker(command: list[str], numbers: list[int], received: list[int]) -> NoReturn:
    """With the descriptors that the driver has passed on, under the numbers that the command names, and no others."""
    above = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, ABOVE) for descriptor in received]
    quiet = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(quiet, number)
    os.closerange(3, ABOVE)
    for descriptor, number in zip(above, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    place = command.index("-c")
    sys.argv = ["-c", *command[place + 2 :]]
    _end(lambda: exec(command[place + 1], {"__name__": "__main__"}))


def _end(run: Callable[[], object]) -> NoReturn:
    """As a process of Python ends, but for the half second that it takes itself apart."""
    status = 0
    try:
        run()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    os._exit(status)


if __name__ == "__main__":
    from faults.forking import load

    load(Path(sys.argv[1]))
    gc.collect()
    gc.freeze()
    serving = _Serving(Path(sys.argv[2]))
    print("ready", flush=True)
    serving.serve()

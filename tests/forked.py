"""Commands, and servers that fork workers, in processes that were forked from one that has loaded all.

    {"python": [code, *arguments], …}, descriptors ──>   ready process ── fork ──> command, in a new group
        <── pid · status, when it has ended

One request a connection. SIGKILL to a group reaches a command and all its workers: a command that was forked
has one thread, so it forks the server of its workers, and that forks them.

A `tokmill run` of sixty documents takes 2.5 CPU seconds, of which loading Python, libraries and compiled
kernels takes two: forked, it takes 0.5, and `verify` 0.05 where it took 0.9. They are processes all the same:
arguments, environment, directory, output and exit status are their own, and nothing of them is left. That a
Python can load all this from nothing is seen by those tests that start one: cli/test_start.py,
engines/test_local.py, faults/test_kills.py and the pages of the documentation.

The ready process belongs to the process that tests, is started by what needs it first, and ends with it.
No tokenizer is used in it: its threads would be lost in a fork.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import importlib.metadata
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any, NoReturn

import psutil

TESTS = Path(__file__).resolve().parent
# Has SOCK_SEQPACKET. Elsewhere every command is a Python that loads.
IS_LINUX = sys.platform.startswith("linux")
VERBS = ("run", "verify", "encode", "materialize_files", "recipe_check", "normalize", "forget")
LIBRARIES = ("tokenizers", "gigatoken", "pyarrow.parquet")
# What `datasets` loads in 0.7 s of each command that reads the hub; itself, it looks at the environment.
FOR_HUB = ("pandas", "scipy.io", "httpx2", "fsspec", "multiprocess", "dill", "filelock")
PACKET_BYTES = 1 << 17
# Descriptors have small numbers; received ones wait above them.
ABOVE = 512
# A command takes a second. One that takes this long hangs, and its status says SIGALRM.
HANGS_AFTER_SECONDS = 600
MAIN = "from tokmill.cli import main; main()"


class Forked:
    """A command that was started, as subprocess.Popen would show it."""

    def __init__(self, asking: socket.socket) -> None:
        self._asking = asking
        self.pid = int(_hear(asking))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not connection.wait([self._asking], timeout):
                raise subprocess.TimeoutExpired("a forked command", timeout or 0)
            with self._asking:
                self.returncode = int(_hear(self._asking))
        return self.returncode

    def workers(self) -> list[int]:
        return workers_of(self.pid)


def workers_of(driver: int) -> list[int]:
    """Children of its server, which is its child."""
    found: list[int] = []
    with contextlib.suppress(psutil.Error):
        for server in psutil.Process(driver).children():
            with contextlib.suppress(psutil.Error):
                found += [worker.pid for worker in server.children()]
    return found


def start_forked(
    python: Sequence[str], environment: Mapping[str, str], directory: Path, out: int, err: int
) -> Forked:
    """As `python -c …`, in a process group of its own."""
    return _start(python, environment, directory, {1: out, 2: err})


def _start(
    python: Sequence[str], environment: Mapping[str, str], directory: Path, descriptors: Mapping[int, int]
) -> Forked:
    wanted = {"python": list(python), "environment": dict(environment), "directory": str(directory)}
    return Forked(_ask(_ready(), wanted, descriptors))


def run_forked(
    arguments: Sequence[str], environment: Mapping[str, str], directory: Path | None = None, code: str = MAIN
) -> subprocess.CompletedProcess[str]:
    """As `python -c CODE ARGUMENTS…`, by default `tokmill ARGUMENTS…`."""
    python = [code, *arguments]
    if not IS_LINUX:
        command = [sys.executable, "-c", *python]
        return subprocess.run(
            command, env=environment, cwd=directory, capture_output=True, text=True, check=False
        )
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = start_forked(python, environment, directory or Path.cwd(), out.fileno(), err.fileno())
        status, said = started.wait(), []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess(list(arguments), status, *said)


@contextlib.contextmanager
def fork_workers() -> Iterator[None]:
    """Engines that are opened in this process have servers that were forked; at the end all are gone."""
    if not IS_LINUX:
        yield
        return
    from tokmill.engines import forking

    started: list[Forked] = []

    def start(function: str, descriptor: int) -> Forked:
        module, _, name = function.partition(":")
        code = f"import sys; sys.path[:] = {sys.path!r}; from {module} import {name}; {name}({descriptor})"
        started.append(
            _start([code], os.environ, Path.cwd(), {number: number for number in (1, 2, descriptor)})
        )
        return started[-1]

    execute = forking.start_python
    forking.start_python = start
    try:
        yield
    finally:
        forking.start_python = execute
        for server in started:
            server.wait(60)


def _ask(address: str, wanted: dict[str, Any], descriptors: Mapping[int, int] | None = None) -> socket.socket:
    """With the descriptors that it shall have, by the numbers under which it shall have them."""
    passed = descriptors or {}
    asking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asking.connect(address)
    socket.send_fds(asking, [json.dumps({**wanted, "as": list(passed)}).encode()], list(passed.values()))
    return asking


def _hear(asking: socket.socket) -> Any:
    answer = asking.recv(PACKET_BYTES)
    assert answer, "the process that forks is gone"
    return json.loads(answer)


@functools.cache
def _ready() -> str:
    """The address of a process that has loaded all; it is told to end by the end of its stdin."""
    directory = Path(tempfile.mkdtemp(prefix="tokmill-forked-"))
    address = str(directory / "ready")
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    # With -c it has no main module that a spawned worker would load.
    started = subprocess.Popen(
        [sys.executable, "-c", "from forked import Ready; Ready().serve()", address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert started.stdin is not None
    assert started.stdout is not None
    assert started.stdout.readline() == b"ready\n", "the mill could not be loaded"
    started.stdout.close()

    def end() -> None:
        started.stdin.close()  # type: ignore[union-attr]
        started.wait()
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(end)
    return address


class Ready:
    def __init__(self) -> None:
        _load()
        gc.collect()
        gc.freeze()  # what was loaded is not looked through again, and so not copied, in each child
        self._commands: dict[int, socket.socket] = {}  # those that live, by pid: who asked
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(sys.argv[1])
        self._listener.listen(64)

    def serve(self) -> None:
        ended, end = os.pipe()
        os.set_blocking(end, False)
        signal.set_wakeup_fd(end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        print("ready", flush=True)
        heard: list[Any] = [self._listener, ended, 0]
        readable: list[Any] = []
        try:
            while 0 not in readable:  # nothing is ever said there: its end is ours
                readable, _, _ = select.select(heard, [], [])
                if ended in readable:
                    os.read(ended, 1 << 10)
                    self._tell_who_ended()
                if self._listener in readable:
                    self._obey()
        finally:
            for group in self._commands:  # of tests that were interrupted
                os.killpg(group, signal.SIGKILL)

    def _obey(self) -> None:
        asking, _ = self._listener.accept()
        with asking, contextlib.suppress(OSError):  # who asked may have been killed since
            message, received, _, _ = socket.recv_fds(asking, PACKET_BYTES, 64)
            if not message:  # killed before it could say what it wants
                return
            answer = self._answer(json.loads(message), received, asking)
            for descriptor in received:
                os.close(descriptor)
            asking.send(json.dumps(answer).encode())

    def _answer(self, wanted: dict[str, Any], received: list[int], asking: socket.socket) -> int:
        child = os.fork()
        with contextlib.suppress(OSError):  # it has ended already
            os.setpgid(child, 0)  # by both, so that it is done when either goes on
        if not child:
            _end(lambda: _become(wanted, received))
        self._commands[child] = asking.dup()
        return child

    def _tell_who_ended(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                asking = self._commands.pop(ended[0], None)
                if asking is not None:
                    with asking, contextlib.suppress(OSError):
                        asking.send(json.dumps(os.waitstatus_to_exitcode(ended[1])).encode())


def _load() -> None:
    """Modules, compiled kernels and tables, by a run that ends before anything is tokenized."""
    import tokmill
    from mill import small_corpus
    from tokmill.kernels.warm import load_kernels

    # 0.4 s of each run are spent to look up the versions of packages, which do not change here
    importlib.metadata.version = functools.cache(importlib.metadata.version)
    for name in (
        *LIBRARIES,
        "tokmill.cli.verify",
        "tokmill.cli.status",
        "tokmill.cli.upkeep",
        "tokmill.cli.tokens",
        "tokmill.cli.steps",
        "tokmill.cli.recipe",
    ):
        importlib.import_module(name)
    for name in FOR_HUB:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for verb in VERBS:
        getattr(tokmill, verb)
    load_kernels()
    with tempfile.TemporaryDirectory() as scratch:
        # 0.6 s of a process that is the first to look for copies are tables of Unicode
        recipe = small_corpus(Path(scratch), dedup={"near": {}, "window": {"policy": "trim", "words": 12}})
        tokmill.verify(tokmill.run(recipe, Path(scratch) / "out", workers=1, until="split").out)


def _become(wanted: dict[str, Any], received: list[int]) -> None:
    """With the descriptors that were passed on, under the numbers that were asked for, and no others."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    above = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, ABOVE) for descriptor in received]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.closerange(3, ABOVE)
    for descriptor, number in zip(above, wanted["as"], strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(wanted["environment"])
    os.chdir(wanted["directory"])
    signal.alarm(HANGS_AFTER_SECONDS)
    code, *arguments = wanted["python"]
    sys.argv = ["-c", *arguments]
    exec(code, {"__name__": "__main__"})


def _end(run: Callable[[], object]) -> NoReturn:
    """As a process of Python ends, but for the half second that it takes itself apart."""
    status = 0
    try:
        run()
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)

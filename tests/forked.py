"""Commands, and workers of pools, in processes that were forked from one that has loaded what they need.

    test or command ── {"become": …, "environment", "directory"}, descriptors ──> ready process ── fork ──> it
                    <── {"pid"} of a worker at once · {"status"} of a command when it has ended ──

A `tokmill run` of sixty documents takes 2.5 CPU seconds, of which loading Python, libraries and compiled kernels takes
two: forked, it takes 0.5, and `verify` 0.05 where it took 0.9. They are processes all the same: arguments, environment,
directory, output and exit status are their own, and nothing of them is left. That a Python can load all this from nothing
is seen by those tests that start one: cli/test_start.py, engines/test_local.py, faults/test_kills.py and the pages of the
documentation.

The ready process belongs to the process that tests, is started by what needs it first, and ends with it. No tokenizer is
used in it: its threads would be lost in a fork.
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
from multiprocessing import connection, process, util
from pathlib import Path
from typing import Any, NoReturn

TESTS = Path(__file__).resolve().parent
IS_LINUX = sys.platform.startswith(
    "linux"
)  # has SOCK_SEQPACKET; elsewhere every command is a Python that loads
COMMANDS = ("run", "verify", "tokens", "container", "recipe", "status", "clean", "doctor", "forget")
LIBRARIES = ("tokenizers", "gigatoken", "pyarrow.parquet")
PACKET_BYTES = 1 << 17
# Descriptors have small numbers; received ones wait above them.
ABOVE = 512
# A command takes a second. One that takes this long hangs, and its status says SIGALRM.
HANGS_AFTER_SECONDS = 600
MAIN = "from tokmill.cli import main; main()"


def run_forked(
    arguments: Sequence[str], environment: Mapping[str, str], directory: Path | None = None, code: str = MAIN
) -> subprocess.CompletedProcess[str]:
    """As `python -c CODE ARGUMENTS…`, by default `tokmill ARGUMENTS…`."""
    if not IS_LINUX:
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(
            command, env=environment, cwd=directory, capture_output=True, text=True, check=False
        )
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        wanted = {
            "become": "command",
            "code": code,
            "arguments": list(arguments),
            "as": [1, 2],
            "environment": dict(environment),
            "directory": str(directory or Path.cwd()),
        }
        status = _ask(_ready(), wanted, [out.fileno(), err.fileno()])["status"]
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess(list(arguments), status, *said)


@contextlib.contextmanager
def fork_workers() -> Iterator[None]:
    """Pools that are opened in this process fork their workers; at the end all of them are gone."""
    if not IS_LINUX:
        yield
        return
    execute = util.spawnv_passfds
    _spawn_from(_ready())
    try:
        yield
    finally:
        util.spawnv_passfds = execute
        # They are no children of ours: join() does not wait for them, and they would stay in this set.
        for worker in list(process._children):  # type: ignore[attr-defined]
            if worker.name.startswith("SpawnProcess"):
                assert connection.wait([worker.sentinel], 60), "a worker has outlived its pool"
                process._children.discard(worker)  # type: ignore[attr-defined]


def _spawn_from(address: str) -> None:
    """What multiprocessing's spawn calls to execute a Python, answered by a fork."""
    execute = util.spawnv_passfds

    def spawn(path: bytes, command: list[str | bytes], descriptors: Sequence[int]) -> int:
        words = [os.fsdecode(word) for word in command]
        if not any("spawn_main" in word for word in words):
            return execute(path, command, descriptors)  # the resource tracker
        place = words.index("-c")
        wanted = {
            "become": "worker",
            "code": words[place + 1],
            "arguments": words[place + 2 :],
            "as": [1, 2, *descriptors],
            "environment": dict(os.environ),
            "directory": str(Path.cwd()),
        }
        return int(_ask(address, wanted, [1, 2, *descriptors])["pid"])

    util.spawnv_passfds = spawn  # type: ignore[assignment]


def _ask(address: str, wanted: dict[str, Any], descriptors: Sequence[int]) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(address)
        socket.send_fds(asking, [json.dumps(wanted).encode()], descriptors)
        answer = asking.recv(PACKET_BYTES)
        assert answer, "the process that forks is gone"
        found: dict[str, Any] = json.loads(answer)
        return found


@functools.cache
def _ready() -> str:
    """The address of a process that has loaded all; it is told to end by the end of its stdin."""
    directory = Path(tempfile.mkdtemp(prefix="tokmill-forked-"))
    address = str(directory / "ready")
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    # With -c it has no main module that a spawned worker would load.
    started = subprocess.Popen(
        [sys.executable, "-c", "from forked import serve; serve()", address],
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


def serve() -> None:
    _load()
    gc.collect()
    gc.freeze()  # what was loaded is not looked through again, and so not copied, in each child
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(sys.argv[1])
        listener.listen(64)
        ended, end = os.pipe()
        os.set_blocking(end, False)
        signal.set_wakeup_fd(end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        print("ready", flush=True)
        waiting: dict[int, socket.socket] = {}  # by the pid of a command, who asked for it
        heard: list[Any] = [listener, ended, 0]
        while True:
            readable, _, _ = select.select(heard, [], [])
            if 0 in readable:  # nothing is ever said there: its end is ours
                return
            if ended in readable:
                os.read(ended, 1 << 10)
                _tell_who_ended(waiting)
            if listener in readable:
                _obey(listener, waiting)


def _obey(listener: socket.socket, waiting: dict[int, socket.socket]) -> None:
    asking, _ = listener.accept()
    message, received, _, _ = socket.recv_fds(asking, PACKET_BYTES, 64)
    if not message:  # killed before it could say what it wants
        asking.close()
        return
    wanted = json.loads(message)
    child = os.fork()
    if not child:
        _become(wanted, received)
    for descriptor in received:
        os.close(descriptor)
    if wanted["become"] == "command":
        waiting[child] = asking
        return
    with asking, contextlib.suppress(OSError):  # who asked may have been killed since
        asking.send(json.dumps({"pid": child}).encode())


def _tell_who_ended(waiting: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            asking = waiting.pop(ended[0], None)
            if asking is not None:
                with asking, contextlib.suppress(OSError):
                    asking.send(json.dumps({"status": os.waitstatus_to_exitcode(ended[1])}).encode())


def _load() -> None:
    """Modules, compiled kernels and tables, by a run that ends before anything is tokenized."""
    import tokmill
    from mill import small_corpus
    from tokmill.kernels.warm import compile_kernels

    # 0.4 s of each run are spent to look up the versions of packages, which do not change here
    importlib.metadata.version = functools.cache(importlib.metadata.version)
    for name in (*LIBRARIES, *(f"tokmill.cli.{command}" for command in COMMANDS)):
        importlib.import_module(name)
    compile_kernels(lambda message: None)
    with tempfile.TemporaryDirectory() as scratch:
        recipe = small_corpus(Path(scratch))
        tokmill.verify(tokmill.run(recipe, Path(scratch) / "out", workers=1, until="split").out)


def _become(wanted: dict[str, Any], received: list[int]) -> NoReturn:
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
    if wanted["become"] == "command":
        signal.alarm(HANGS_AFTER_SECONDS)
        _spawn_from(sys.argv[1])
    sys.argv = ["-c", *wanted["arguments"]]
    _end(lambda: exec(wanted["code"], {"__name__": "__main__"}))


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

"""Task functions that fare badly, importable by the workers of an engine."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import itertools
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokmill.artifacts.manifest import FileEntry, Receipt, write_receipt
from tokmill.artifacts.step import Task
from tokmill.engines.cluster import Engine
from tokmill.engines.local import EngineName, LocalEngine, Resources, open_engine
from tokmill.engines.orders import Perform
from tokmill.errors import DiskFull, TokmillError


def task(key: str, **config: object) -> Task:
    return Task(function="test", key=key, options=dict(config), inputs=[], directory="")


def perform(task: Task) -> Receipt:
    """Do to this worker what the task's config says, and hand in a receipt if it lives."""
    marker = Path(task.config["dies_once"]) if "dies_once" in task.config else None
    if marker is not None and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if task.config.get("dies"):
        os.kill(os.getpid(), signal.SIGKILL)
    if "dies_again" in task.config:
        marker = Path(task.config["dies_again"])
        if marker.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        marker.touch()
    if task.config.get("is_interrupted"):
        os.kill(os.getpid(), signal.SIGINT)
    if "slow_once" in task.config:  # the first attempt, wherever that is
        marker = Path(task.config["slow_once"])
        with contextlib.suppress(FileExistsError):
            marker.touch(exist_ok=False)
            time.sleep(task.config["slow_seconds"])
            return task.receipt([], {"done": task.config.get("first", 1)}, None)
        return task.receipt([], {"done": 1}, None)
    if "warns" in task.config:
        logging.getLogger("tokmill.test").warning("%s is odd", task.config["warns"])
    if "announces" in task.config:
        (Path(task.config["announces"]) / str(os.getpid())).touch()
    if "sleeps" in task.config:
        try:
            time.sleep(task.config["sleeps"])
        except BaseException as error:
            if task.config.get("swallows"):  # as some libraries do with what a signal raises in them
                raise ValueError("something else") from error
            raise
    if "writes_late" in task.config:
        time.sleep(3)  # long enough for the other task to fail
        Path(task.config["writes_late"]).touch()
    if "raises" in task.config:
        raise errors()[task.config["raises"]]
    return task.receipt([], {"pid": os.getpid()}, None)


def write_slowly(task: Task) -> Receipt:
    """A shard of documents, and what a follower makes of it. The first attempt is slow, and its library
    compresses otherwise: equal content in other bytes."""
    is_first, config = True, task.config
    try:
        Path(config["slow_once"]).touch(exist_ok=False)
    except FileExistsError:
        is_first = False
    if is_first:
        time.sleep(config["slow_seconds"])

    def write(directory: str, name: str, table: str) -> FileEntry:
        data = b"squeezed" if is_first and table in config["otherwise"] else b"pressed"
        (Path(directory) / name).write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        return FileEntry(path=name, table=table, bytes=1, rows=1, sha256=digest, content_sha256="equal")

    for follower in task.followers:
        own = write(follower.directory, "kept-00000-000.parquet", "kept")
        receipt = Receipt(key="00000-000", fingerprint="f", files=[own], counts={})
        write_receipt(Path(follower.directory), receipt)
    return task.receipt([write(task.directory, "documents-00000-000.parquet", "documents")], {}, None)


LOADED: list[str] = []  # by the server that forked this worker


def load(what: str) -> None:
    LOADED.append(what)


def tell_loaded(task: Task) -> Receipt:
    time.sleep(task.config.get("takes", 0.0))
    return task.receipt([], {"pid": os.getpid()}, {"loaded": list(LOADED)})


def errors() -> dict[str, Exception]:
    return {
        "ours": DiskFull("no space left", where="out/x.parquet", next="free some space"),
        "ours, in few words": TokmillError("only what"),
        "a bug": ZeroDivisionError("division by zero"),
    }


def announce_and_wait(task: Task) -> Receipt:
    """Say which process this is (on stdout, or by a file of that name), then never return."""
    for directory in task.config.get("to", []):
        (Path(directory) / str(os.getpid())).touch()
    os.write(1, f"{os.getpid()}\n".encode())
    threading.Event().wait()
    raise AssertionError


def hold_the_lock(task: Task) -> Receipt:
    """Say which process this is, then never return, nor let another thread of Python have its turn."""
    os.write(1, f"{os.getpid()}\n".encode())
    if task.key == "a":
        re.match("(a|b|ab)*c", "ab" * 500)  # one way after the other, for longer than anybody waits
    collections.deque(itertools.repeat(None), maxlen=0)  # in C: not even signals are looked at
    raise AssertionError


def open_on(engine: EngineName) -> Engine:
    if engine == "local":
        return LocalEngine(2, print, paying_bytes=0)
    return open_engine(Resources(2, engine), 1 << 20, print)


def run_all(engine: Engine, perform: Perform, tasks: Sequence[Task]) -> Iterator[tuple[Task, Receipt]]:
    """As they are done."""
    engine.submit(perform, tasks)
    for _ in tasks:
        done = engine.collect()
        yield done.task, done.receipt


if __name__ == "__main__":  # a driver that is to be killed or interrupted
    from engines import tasks  # by the name that a worker knows

    # As at a terminal: whoever runs the tests in the background has interrupts ignored,
    # and children inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    wanted = tasks.hold_the_lock if sys.argv[2:] == ["hold_the_lock"] else tasks.announce_and_wait
    engine = open_on(sys.argv[1])  # type: ignore[arg-type]
    try:
        list(run_all(engine, wanted, [task("a", to=sys.argv[2:]), task("b", to=sys.argv[2:])]))
    except KeyboardInterrupt:
        engine.close()
        raise SystemExit(130) from None

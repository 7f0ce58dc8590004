"""Task functions that fare badly, importable by the workers of an engine."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tokmill.engines.local import LocalEngine
from tokmill.errors import DiskFull, TokmillError
from tokmill.manifest import Receipt
from tokmill.task import Task


def task(key: str, **config: object) -> Task:
    return Task(function="test", key=key, config=dict(config), inputs=[], directory="")


def perform(task: Task) -> Receipt:
    """Do to this worker what the task's config says, and hand in a receipt if it lives."""
    marker = Path(task.config["dies_once"]) if "dies_once" in task.config else None
    if marker is not None and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if task.config.get("dies"):
        os.kill(os.getpid(), signal.SIGKILL)
    if task.config.get("is_interrupted"):
        os.kill(os.getpid(), signal.SIGINT)
    if "raises" in task.config:
        raise errors()[task.config["raises"]]
    return task.receipt([], {"pid": os.getpid()}, None)


def errors() -> dict[str, Exception]:
    return {
        "ours": DiskFull("no space left", where="out/x.parquet", next="free some space"),
        "ours, in few words": TokmillError("only what"),
        "a bug": ZeroDivisionError("division by zero"),
    }


def announce_and_wait(task: Task) -> Receipt:
    """Say which process this is, then never return."""
    os.write(1, f"{os.getpid()}\n".encode())
    while True:
        signal.pause()


if __name__ == "__main__":  # a driver that is to be killed
    engine = LocalEngine(2, print)
    list(engine.run(announce_and_wait, [task("a"), task("b")]))

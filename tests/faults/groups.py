"""A process group, killed at once."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from pathlib import Path
from typing import Protocol

import psutil

_SEMAPHORE = re.compile(r" (\d+) +/dev/shm/sem\.")


class Leader(Protocol):
    """The process that the group is named after, as subprocess.Popen shows it."""

    @property
    def pid(self) -> int: ...
    def wait(self, timeout: float | None = None) -> int: ...


def members_of(group: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            if os.getpgid(process.pid) == group:
                found.append(process)
    return found


def kill_group(driver: Leader) -> None:
    """The driver and all that belongs to it at once, and no one of them is left.

    Python's own resource tracker dies with them, so its named semaphores are removed here: those that this
    driver had mapped, by their inodes, since the map has the name that each had when it was made and not the
    one it was given.
    """
    mapped = set[str]()
    with contextlib.suppress(OSError):
        mapped = set(_SEMAPHORE.findall(Path(f"/proc/{driver.pid}/maps").read_text()))
    members = members_of(driver.pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    _, alive = psutil.wait_procs([m for m in members if m.pid != driver.pid], timeout=60)
    assert not alive, "a process has outlived its group"
    for path in Path("/dev/shm").glob("sem.mp-*") if mapped else ():
        with contextlib.suppress(FileNotFoundError):
            if str(path.stat().st_ino) in mapped:
                path.unlink()

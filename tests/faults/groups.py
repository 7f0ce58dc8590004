"""A process group, killed at once."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Protocol

import psutil


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
    """The driver and all that belongs to it at once, and no one of them is left."""
    members = members_of(driver.pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    _, alive = psutil.wait_procs([m for m in members if m.pid != driver.pid], timeout=60)
    assert not alive, "a process has outlived its group"

"""A run that is killed at an exact moment: it kills itself, with all its processes, when that is reported.

A test that watches from outside and then kills comes too late whenever the machine is busy, or the rest of
the run short.

    die_in_run(recipe, out, after="step", name="ingest/", count=2)     when the second of these steps is done
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import psutil

import tokmill
from faults.groups import members_of
from forked import start_forked
from tokmill.artifacts.progress import Silence

After = Literal["plan", "task", "step"]


class Dying(Silence):
    def __init__(self, after: After, name: str, count: int) -> None:
        self._after, self._name, self._left = after, name, count

    def plan(self, steps: object) -> None:
        self._reach("plan", "")

    def finish_task(self, name: str) -> None:
        self._reach("task", name)

    def finish_step(self, name: str, seconds: float, counts: dict[str, object]) -> None:
        self._reach("step", name)

    def _reach(self, what: After, name: str) -> None:
        if what == self._after and name.startswith(self._name):
            self._left -= 1
            if not self._left:
                os.killpg(0, signal.SIGKILL)


def main() -> None:
    recipe, out, workers, after, name, count = sys.argv[1:]
    assert os.getpgid(0) == os.getpid(), "it would kill who started it"
    dying = Dying(after, name, int(count))  # type: ignore[arg-type]
    tokmill.run(recipe, out, workers=int(workers), progress=dying)


def die_in_run(
    recipe: Path,
    out: Path,
    *,
    after: After,
    name: str = "",
    count: int = 1,
    workers: int = 1,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Comes back when no process of it is left."""
    arguments = [str(recipe), str(out), str(workers), after, name, str(count)]
    with tempfile.TemporaryFile() as said:
        code = "from faults.dying import main; main()"
        variables = {**os.environ, **(environment or {})}
        driver = start_forked([code, *arguments], variables, Path.cwd(), said.fileno(), said.fileno())
        status = driver.wait()
        said.seek(0)
        assert status == -signal.SIGKILL, (status, said.read().decode())
    _, alive = psutil.wait_procs(members_of(driver.pid), timeout=60)
    assert not alive, "a process has outlived its group"

"""The engine for one worker: tasks run in the driver itself, one after the other.

A process of its own takes two seconds to start, which is longer than a small recipe. What is lost is the second life
of a killed worker; a killed driver resumes from its receipts all the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from tokmill.engines.local import Perform
from tokmill.environment import DEVICE
from tokmill.manifest import Receipt
from tokmill.task import Task


class InlineEngine:
    name = "local"
    workers = 1

    def __init__(self, *, device: str = "cpu") -> None:
        self._before = os.environ.get(DEVICE)
        os.environ[DEVICE] = device

    def run(self, perform: Perform, tasks: Sequence[Task]) -> Iterator[tuple[Task, Receipt]]:
        for task in tasks:
            yield task, perform(task)

    def close(self) -> None:
        if self._before is None:
            os.environ.pop(DEVICE, None)
        else:
            os.environ[DEVICE] = self._before

"""What a run says while it works. The library is silent; the command line draws bars.

Code that works deep down, in a worker too, warns through `logging.getLogger("tokmill.…")`; engines carry such
messages to the driver, and `told_to` hands them to whoever runs it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Protocol

LOGGER = "tokmill"


class Progress(Protocol):
    def say(self, message: str) -> None: ...
    def begin_step(self, name: str, reasons: list[str]) -> None: ...
    def expect_tasks(self, name: str, total: int, reused: int) -> None: ...
    def finish_task(self, name: str) -> None: ...
    def finish_step(self, name: str, seconds: float, counts: dict[str, object]) -> None: ...
    def skip_step(self, name: str) -> None: ...


class Silence:
    """No output at all."""

    def say(self, message: str) -> None:
        pass

    def begin_step(self, name: str, reasons: list[str]) -> None:
        pass

    def expect_tasks(self, name: str, total: int, reused: int) -> None:
        pass

    def finish_task(self, name: str) -> None:
        pass

    def finish_step(self, name: str, seconds: float, counts: dict[str, object]) -> None:
        pass

    def skip_step(self, name: str) -> None:
        pass


@contextlib.contextmanager
def told_to(say: Callable[[str], None]) -> Iterator[None]:
    """What is logged meanwhile is said, and nowhere else."""
    logger, handler = logging.getLogger(LOGGER), _Saying(say)
    was_passed_on, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = was_passed_on


class _Saying(logging.Handler):
    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(record.getMessage())

"""Something that happens in the middle of a run."""

from __future__ import annotations

from collections.abc import Callable

from tokmill.artifacts.progress import Silence


class AtTask(Silence):
    """Does something once, when so many tasks are done, and keeps what was said."""

    def __init__(self, number: int, act: Callable[[], None]) -> None:
        self._left, self._act = number, act
        self.said: list[str] = []

    def say(self, message: str) -> None:
        self.said.append(message)

    def finish_task(self, name: str) -> None:
        self._left -= 1
        if self._left == 0:
            self._act()

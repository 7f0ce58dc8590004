"""What a run says while it works. The library is silent; the command line draws bars."""

from __future__ import annotations

from typing import Protocol


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

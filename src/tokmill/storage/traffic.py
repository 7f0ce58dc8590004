"""What was asked of object stores, and how many bytes went up and down: what a bill is made of.

    with counting() as traffic:     what this thread asks meanwhile, and threads that run `in_context`
    traffic.as_json()               {"requests": {"get": 3, "put": 1}, "bytes_down": 20480, "bytes_up": 912}

Requests are those of the mill: what a client repeats after a 503 is told by the store's own log alone. An
upload in parts is as many as it has parts, and two.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class Traffic:
    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()  # get, head, put, copy, list, delete
        self.bytes_up = 0
        self.bytes_down = 0
        self._adding = threading.Lock()

    def add(self, kind: str, *, requests: int = 1, up: int = 0, down: int = 0) -> None:
        with self._adding:
            self.requests[kind] += requests
            self.bytes_up += up
            self.bytes_down += down

    def merge(self, told: Mapping[str, Any]) -> None:
        """What another process has counted, as JSON."""
        with self._adding:
            self.requests.update(told.get("requests", {}))
            self.bytes_up += told.get("bytes_up", 0)
            self.bytes_down += told.get("bytes_down", 0)

    def as_json(self) -> dict[str, Any]:
        """Empty where nothing was asked."""
        with self._adding:
            if not self.requests:
                return {}
            return {
                "requests": dict(sorted(self.requests.items())),
                "bytes_up": self.bytes_up,
                "bytes_down": self.bytes_down,
            }


_counting: contextvars.ContextVar[tuple[Traffic, ...]] = contextvars.ContextVar("traffic", default=())


@contextlib.contextmanager
def counting(into: Traffic | None = None) -> Iterator[Traffic]:
    """Counters nest: who counts around this one counts it too."""
    traffic = into if into is not None else Traffic()
    token = _counting.set((*_counting.get(), traffic))
    try:
        yield traffic
    finally:
        _counting.reset(token)


def count(kind: str, *, requests: int = 1, up: int = 0, down: int = 0) -> None:
    for traffic in _counting.get():
        traffic.add(kind, requests=requests, up=up, down=down)


def in_context(act: Callable[..., T]) -> Callable[..., T]:
    """For another thread: what it asks is counted by who counts here."""
    counters = _counting.get()

    def run(*arguments: Any) -> T:
        token = _counting.set(counters)
        try:
            return act(*arguments)
        finally:
            _counting.reset(token)

    return run


def sum_traffic(told: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    total = Traffic()
    for one in told:
        total.merge(one)
    return total.as_json()

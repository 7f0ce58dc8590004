"""Who worked when, for the report of a run: in the environment of its manifest, in no digest.

    worker   ingest/web  ├───────────┤              a task, as long as it took where it was done
    worker   ingest/code ├────┤
    driver   dedup                   ├─┤            what the driver does for a step: plans, manifests
             ·····┊·····┊·····┊·····┊·····          spans of equal length, SPANS at most

    {"seconds": 21.3, "workers": 16, "spans": [{"workers": {"ingest/web": 2.9}, "driver": {"dedup": 0.1}}, …]}

A span has the seconds that each step had of workers, and of the driver. While a worker has nothing to do no
task waits: what is not begun needs what is at work, so that is what it waits for.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from tokmill.artifacts.manifest import Json

TIMELINE = "timeline"  # its key in the environment
SPANS = 120
_LEAST_SECONDS = 0.01  # of a span


class Timeline:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun: float | None = None
        self._ended = 0.0
        self._noted: list[tuple[str, str, float, float]] = []  # whose time, step, from, to

    @contextlib.contextmanager
    def driver(self, step: str) -> Iterator[None]:
        begun = self._clock()
        try:
            yield
        finally:
            self._note("driver", step, begun)

    def task(self, step: str, seconds: float) -> None:
        """One that is done just now."""
        self._note("workers", step, self._clock() - seconds)

    def as_json(self, workers: int) -> Json | None:
        """None where nothing was done."""
        if self._begun is None:
            return None
        seconds = self._ended - self._begun
        count = max(min(SPANS, int(seconds / _LEAST_SECONDS)), 1)
        width = seconds / count
        spans: list[dict[str, dict[str, float]]] = [{"workers": {}, "driver": {}} for _ in range(count)]
        for whose, step, begun, ended in self._noted:
            first = min(int((begun - self._begun) / width), count - 1) if width else 0
            last = min(int((ended - self._begun) / width), count - 1) if width else 0
            for number in range(first, last + 1):
                left, right = self._begun + number * width, self._begun + (number + 1) * width
                there = spans[number][whose]
                there[step] = there.get(step, 0.0) + max(min(ended, right) - max(begun, left), 0.0)
        return {
            "seconds": round(seconds, 3),
            "workers": workers,
            "spans": [
                {
                    whose: {step: round(spent, 4) for step, spent in there.items() if spent >= 0.0001}
                    for whose, there in span.items()
                }
                for span in spans
            ],
        }

    def _note(self, whose: str, step: str, begun: float) -> None:
        now = self._clock()
        self._begun = begun if self._begun is None else min(self._begun, begun)
        self._ended = max(self._ended, now)
        self._noted.append((whose, step, begun, now))

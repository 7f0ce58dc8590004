"""Who worked when, for the report of a run: in the environment of its manifest, in no digest.

    worker   ingest/web  ├───────────┤              a task, as long as it took where it was done
    worker   ingest/code ├────┤
    driver   dedup                   ├─┤            what the driver does for a step: plans, manifests
             ·····┊·····┊·····┊·····┊·····          spans of equal length, SPANS at most

    {"seconds": 21.3, "workers": 16, "spans": [{"workers": {"ingest/web": 2.9}, "driver": {"dedup": 0.1}}, …]}

A span has the seconds that each step had of workers, and of the driver. While a worker has nothing to do no
task waits: what is not begun needs what is at work, so that is what it waits for.

A step is at work while one of its tasks is, or the driver is at the step. Its seconds are the sum of those
spells: a step whose one task waits a minute for a worker, then loads a file, has the seconds of that file.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from tokmill.artifacts.manifest import Json

TIMELINE = "timeline"  # its key in the environment
SPANS = 120
WORKED, PART = "worked", "part"  # keys of the environment of a step: spells of work, and what they are of
_SPELLS = 64  # that are written down: the shortest pauses count as work
_LEAST_SECONDS = 0.01  # of a span

Spell = tuple[float, float]  # from, to


def merge_spells(spells: Iterable[Spell]) -> list[Spell]:
    """The time that any of them covers, in order, no two of which meet."""
    merged: list[Spell] = []
    for begun, ended in sorted(spells):
        if merged and begun <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(ended, merged[-1][1])
        else:
            merged.append((begun, ended))
    return merged


def few_spells(spells: Sequence[Spell]) -> list[Spell]:
    """At most _SPELLS: the shortest pauses are closed."""
    pauses = sorted(range(1, len(spells)), key=lambda at: spells[at][0] - spells[at - 1][1])
    closed = set(pauses[: max(len(spells) - _SPELLS, 0)])
    begins = [at for at in range(len(spells)) if at not in closed]
    ends = [at - 1 for at in begins[1:]] + [len(spells) - 1]
    return [(spells[first][0], spells[last][1]) for first, last in zip(begins, ends, strict=True)]


def sum_spells(spells: Iterable[Spell]) -> float:
    return sum(ended - begun for begun, ended in merge_spells(spells))


class Timeline:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun: float | None = None
        self._ended = 0.0
        self._noted: dict[str, list[tuple[str, float, float]]] = {}  # by step: whose time, from, to
        self._driving: tuple[str, float] | None = None  # the step that the driver is at, and since when
        self._to_epoch = time.time() - clock()

    @contextlib.contextmanager
    def driver(self, step: str) -> Iterator[None]:
        begun = self._clock()
        self._driving = step, begun
        try:
            yield
        finally:
            self._driving = None
            self._note("driver", step, begun)

    def task(self, step: str, seconds: float) -> None:
        """One that is done just now."""
        self._note("workers", step, self._clock() - seconds)

    def worked(self, step: str) -> list[Spell]:
        """When the step was at work, up to now, in seconds since the epoch."""
        spells = [(begun, ended) for _, begun, ended in self._noted.get(step, ())]
        if self._driving is not None and self._driving[0] == step:
            spells.append((self._driving[1], self._clock()))
        return [(begun + self._to_epoch, ended + self._to_epoch) for begun, ended in merge_spells(spells)]

    def as_json(self, workers: int) -> Json | None:
        """None where nothing was done."""
        if self._begun is None:
            return None
        seconds = self._ended - self._begun
        count = max(min(SPANS, int(seconds / _LEAST_SECONDS)), 1)
        width = seconds / count
        spans: list[dict[str, dict[str, float]]] = [{"workers": {}, "driver": {}} for _ in range(count)]
        for step, (whose, begun, ended) in (
            (step, note) for step, notes in self._noted.items() for note in notes
        ):
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
        self._noted.setdefault(step, []).append((whose, begun, now))

"""What is estimated of a run before it is there, and its file beside the run.

    estimate.estimate_run ─> Estimate ─ write_estimate ─> <out>/estimate.json
    run ─ load_estimate ─ warn_of_disk ─ summary ─> environment of the run's manifest

An interval is 95 % of what another draw would have given; for time, what machines vary by.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import math
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tokmill.artifacts.manifest import Json, available_cores, fingerprint_of
from tokmill.artifacts.progress import ESTIMATE
from tokmill.storage.disk import commit_bytes, read_regular

_LOG = logging.getLogger("tokmill.pipeline")

# Of the same run on the same machine, idle: 0.9 to 1.1; beside other work more.
_TIME_VARIES = 0.2
# Until the workers are at work, in seconds of waiting.
_POOL_SECONDS = 0.5


class Interval(msgspec.Struct, frozen=True, array_like=True):
    value: float
    low: float
    high: float

    def contains(self, actual: float) -> bool:
        return self.low <= actual <= self.high

    def __add__(self, other: Interval) -> Interval:
        """Of two that vary apart from each other."""
        value = self.value + other.value
        low = math.hypot(self.value - self.low, other.value - other.low)
        high = math.hypot(self.high - self.value, other.high - other.value)
        return Interval(value, max(value - low, 0), value + high)


NOTHING = Interval(0, 0, 0)


class SourceEstimate(msgspec.Struct, frozen=True):
    documents: float  # in the files, as far as limits and samples let them in
    kept: Interval
    dropped: dict[str, float]  # by step and reason
    tokens: Interval
    text_bytes: float


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    recipe: str  # fingerprint of the recipe that it is of
    share: float
    sampled_bytes: int
    took_seconds: float
    sources: dict[str, SourceEstimate]
    tokens: dict[str, Interval]  # by split
    builds: dict[str, float]  # tokens written
    disk: dict[str, float]  # bytes of each step, when it is done
    scratch: float  # bytes besides, at the worst moment
    cpu_seconds: dict[str, float]  # of each step
    start_seconds: float
    tasks: dict[str, list[float]]  # seconds of what can be done side by side
    memory: int  # bytes of a worker
    paying_workers: int  # more of them are not used
    notes: list[str] = []  # what it leaves out, and what it is less certain of

    def seconds(self, workers: int) -> Interval:
        """From the first to the last moment, with so many workers."""
        used = min(workers, self.paying_workers)
        value = self.start_seconds + (_POOL_SECONDS if used > 1 else 0)
        value += sum(_makespan(sizes, used) for sizes in self.tasks.values())
        return Interval(value, value * (1 - _TIME_VARIES), value * (1 + _TIME_VARIES))

    @property
    def disk_bytes(self) -> float:
        """When all is done."""
        return sum(self.disk.values())

    @property
    def kept(self) -> Interval:
        return sum((one.kept for one in self.sources.values()), NOTHING)

    def summary(self, workers: int) -> Json:
        """What a run is compared with when it is done."""
        return {
            "documents": list(msgspec.to_builtins(self.kept)),
            "tokens": list(msgspec.to_builtins(sum(self.tokens.values(), NOTHING))),
            "bytes": [self.disk_bytes],
            "seconds": list(msgspec.to_builtins(self.seconds(workers))),
        }

    def as_json(self) -> Json:
        told: Json = msgspec.to_builtins(self)
        counts = sorted({1, 2, 4, 8, 16, available_cores()})
        return {**told, "seconds": {str(n): list(msgspec.to_builtins(self.seconds(n))) for n in counts}}


def _makespan(sizes: Iterable[float], workers: int) -> float:
    """Of tasks that are done longest first, each by whoever is free (Graham 1969)."""
    free = [0.0] * workers
    for size in sorted(sizes, reverse=True):
        heapq.heapreplace(free, free[0] + size)
    return max(free)


def write_estimate(out: Path, estimate: Estimate) -> None:
    commit_bytes(out / ESTIMATE, msgspec.json.format(msgspec.json.encode(estimate.as_json()), indent=2))


def load_estimate(out: Path, recipe: Json) -> Estimate | None:
    """Of this recipe; None: there is none, or it is of another."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        known = msgspec.json.decode(read_regular(out / ESTIMATE), type=Estimate)
        return known if known.recipe == fingerprint_of(recipe) else None
    return None


def free_bytes(out: Path) -> int:
    """Of the disk that `out` is on, or will be."""
    nearest = next(path for path in (out, *out.absolute().parents) if path.exists())
    return shutil.disk_usage(nearest).free


def warn_of_disk(estimate: Estimate, out: Path) -> None:
    needed, free = estimate.disk_bytes + estimate.scratch, free_bytes(out)
    if needed > free:
        _LOG.warning(
            "%s: the run will take about %.1f GB, and %.1f are free: it will stop when the disk is full",
            out,
            needed / 1e9,
            free / 1e9,
        )

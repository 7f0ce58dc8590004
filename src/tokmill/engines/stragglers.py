"""Which tasks take much longer than their likes: those are begun a second time, on another node.

    likes      tasks of the same function that are done in this run, LIKES of them at least
    expected   their median time, or where a task reads more than they did: its bytes at their median pace
    late       after LATE_FACTOR times what was expected, and LATE_SECONDS at least

A slow node, a disk that fails, a neighbour that takes all there is: the second attempt has another one. Both
make the same bytes, or one of the nodes is broken (`check_equal`).
"""

from __future__ import annotations

import bisect

from tokmill.artifacts.manifest import Receipt
from tokmill.artifacts.step import Task
from tokmill.errors import CorruptFile

LIKES = 5
LATE_FACTOR = 3.0
LATE_SECONDS = 30.0


class Paces:
    """How long tasks took, by their function."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {}  # in order
        self._bytes_per_second: dict[str, list[float]] = {}

    def add(self, function: str, seconds: float, size: int) -> None:
        bisect.insort(self._seconds.setdefault(function, []), seconds)
        bisect.insort(self._bytes_per_second.setdefault(function, []), size / max(seconds, 1e-3))

    def expected(self, function: str, size: int) -> float | None:
        """Seconds of a task that reads so many bytes; None: too few are known."""
        seconds = self._seconds.get(function, [])
        if len(seconds) < LIKES:
            return None
        pace = _median(self._bytes_per_second[function])
        return max(_median(seconds), size / pace if pace else 0.0)

    def is_late(self, function: str, size: int, seconds: float) -> bool:
        expected = self.expected(function, size)
        return expected is not None and seconds > max(LATE_FACTOR * expected, LATE_SECONDS)


def _median(ordered: list[float]) -> float:
    return ordered[len(ordered) // 2]


def is_equal(one: Receipt, other: Receipt) -> bool:
    """By what is in their files: compressed bytes may differ between versions of a library."""
    return _content(one) == _content(other)


def check_equal(task: Task, first: Receipt, node: str, second: Receipt, other: str) -> None:
    if is_equal(first, second):
        return
    differing = sorted(dict(set(_content(first)[0]) ^ set(_content(second)[0])))
    raise CorruptFile(
        f"two nodes, {node or 'one'} and {other or 'another'}, made different bytes of one task",
        where=f"{task.function} {task.key}{f': {differing[0]}' if differing else ''}",
        next="look at the memory and the disks of both; run without the one that is broken, with `--verify`",
    )


def _content(receipt: Receipt) -> tuple[list[tuple[str, str]], object, object]:
    return [(file.path, file.content_sha256) for file in receipt.files], receipt.counts, receipt.facts

"""Draws from an identity: the same numbers for the same key on every Python and every machine.

    draw k of Draw("problem", 42, 7)  =  first 8 bytes of sha256("problem:42:7#k") as a big-endian integer

`random.Random` promises its sequence only for `random()`; the methods on top of it have changed between
Python versions, and the demo's bytes must not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    def __init__(self, *identity: str | int) -> None:
        self._key = ":".join(str(part) for part in identity)
        self._count = 0

    def below(self, bound: int) -> int:
        """0 <= result < bound. The bias of the modulo is below bound / 2**64."""
        digest = hashlib.sha256(f"{self._key}#{self._count}".encode()).digest()
        self._count += 1
        return int.from_bytes(digest[:8], "big") % bound

    def between(self, low: int, high: int) -> int:
        """low <= result <= high."""
        return low + self.below(high - low + 1)

    def pick(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def either(self, one: str, other: str) -> str:
        """One of two wordings."""
        return other if self.below(2) else one

    def pick_two(self, items: Sequence[T]) -> tuple[T, T]:
        """Two different positions."""
        first = self.below(len(items))
        second = self.below(len(items) - 1)
        return items[first], items[second + (second >= first)]

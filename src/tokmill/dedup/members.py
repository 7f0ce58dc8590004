"""The documents that have edges, where a corpus has more documents than fit in memory as numbers.

    edges ─ add ─> a bit per document ─ seal ─> place of a member: the bits that are set before its own
    edges ─ join ─> the first member, in keep order, of each component

What it takes, with n documents of which m have an edge: n / 8 bytes for the bits and n / 64 to count them, 4 m for
the components, and 8 m for ranks, if they are not all the same. `dedup.components` does it for documents in memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import DedupLimit
from tokmill.kernels.survivors import (
    count_before,
    join_members,
    list_roots,
    no_bits,
    numbers_at,
    places_of,
    set_bits,
)

Numbers = NDArray[np.int64]

# A member is known by 4 bytes.
_MOST = (1 << 32) - 1
_COUNTED = 1 << 20


class Members:
    def __init__(self, documents: int) -> None:
        self.count = 0
        self._bits = no_bits(documents)
        self._before = np.zeros(1, np.int64)

    def add(self, numbers: Numbers) -> None:
        set_bits(self._bits, numbers)

    def seal(self) -> None:
        """All have been added: from here on they have places."""
        self._before = count_before(self._bits)
        self.count = int(self._before[-1])
        if self.count > _MOST:
            raise DedupLimit(
                f"{self.count:,} documents are like another one, more than {_MOST:,}",
                where="dedup.near",
                next="raise `near.threshold`, or deduplicate sources by themselves with `scope: per-source`",
            )

    def places(self, numbers: Numbers) -> Numbers:
        return places_of(self._bits, self._before, numbers)

    def numbers(self, places: Numbers) -> Numbers:
        """The other way."""
        return numbers_at(self._bits, self._before, places)

    def between(self, start: int, stop: int) -> Numbers:
        """Members from number `start` to before `stop`, ascending."""
        words = self._bits[start >> 6 : (stop + 63) >> 6]
        bits = np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little")
        found = np.flatnonzero(bits) + (start >> 6 << 6)
        return found[(found >= start) & (found < stop)]


class Components:
    """`ranks` are those of all members, by place; none where all have the same."""

    def __init__(self, members: int, ranks: Numbers | None) -> None:
        self.roots = np.arange(members, dtype=np.uint32)
        self._ranks = np.empty(0, np.int64) if ranks is None else ranks

    def join(self, one: Numbers, other: Numbers) -> None:
        """Members by their places, either first."""
        join_members(self.roots, self._ranks, one, other)

    def seal(self) -> None:
        list_roots(self.roots)
        self._ranks = np.empty(0, np.int64)

    def count(self) -> int:
        places = np.arange(0, len(self.roots), _COUNTED)
        return sum(
            int(np.count_nonzero(part == np.arange(start, start + len(part), dtype=np.uint32)))
            for start, part in ((at, self.roots[at : at + _COUNTED]) for at in places.tolist())
        )

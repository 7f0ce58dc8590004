"""Turns of many sources, a window of each at a time: memory is bounded by the windows, not by the sources.

    source a   … taken │▇▇▇ ▇ ▇▇ window │ still to be read …        a window that is used up is filled from its source
    source b   … taken │▇▇ ▇▇▇▇ window │ …
                          └─ go_on ─> turns: (source, position in the source), a batch at a time

A source that is next and has shown all it has read waits for more; then the turns go on where they were. So turns do not
depend on the size of the windows, nor on how a source cuts its documents into batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.mixing import DRY, FULL, WAITING, Windows, go_on, open_account

# Documents in the windows of all sources together: 16 MB of lengths and costs, and what the caller keeps for them.
_WINDOW_DOCUMENTS = 1 << 20

# Turns of a batch, at most.
_BATCH_TURNS = 1 << 18

# Documents that may be passed over at the end of a source's part: the shortest of a thousand leaves next to nothing.
PATIENCE = 1000


class Offered(NamedTuple):
    """Documents of a source, in the order in which it offers them; costs are in the unit of the target."""

    lengths: NDArray[np.int64]
    costs: NDArray[np.int64] | None = None  # None: the tokens


class TurnBatch(NamedTuple):
    """Document `position[k]` of what source `source[k]` offers is the k-th of the batch; positions of a source ascend."""

    source: NDArray[np.int32]
    position: NDArray[np.int64]


class Turning:
    """Iterate for the turns. Where the source that is next has nothing left and that is strict, `dry` is that source;
    it may be given `more`, and the turns go on."""

    def __init__(
        self,
        streams: Sequence[Iterator[Offered]],
        quotas: NDArray[np.int64],
        shares: NDArray[np.int64],
        limit: int,
        *,
        has_costs: bool,
        is_strict: bool,
    ) -> None:
        self.account = open_account(quotas, shares)
        self.documents = np.zeros(len(streams), np.int64)
        self.dry: int | None = None
        self._limit, self._is_strict = limit, is_strict
        size = PATIENCE + max(_WINDOW_DOCUMENTS // max(len(streams), 1), 1)
        begins = size * np.arange(len(streams), dtype=np.int64)
        lengths = np.zeros(size * len(streams), np.int64)
        costs = np.zeros(size * len(streams), np.int64) if has_costs else lengths
        self._windows = Windows(
            lengths, costs, begins.copy(), begins.copy(), np.zeros(len(streams), np.bool_)
        )
        self._size, self._begins = size, begins
        self._origins = np.zeros(len(streams), np.int64)  # position of the first place of each window
        self._streams = list(streams)
        self._unread: list[Offered | None] = [None] * len(streams)

    @property
    def spent(self) -> int:
        return int(self.account.spent[0])

    def more(self, source: int, stream: Iterator[Offered], tokens: int) -> None:
        """The source that ran dry offers these as well, and may give so many tokens more."""
        self._streams[source], self._windows.is_last[source] = stream, False
        self.account.quotas[source] += tokens
        self.dry = None

    def __iter__(self) -> Iterator[TurnBatch]:
        sources, places = np.empty(_BATCH_TURNS, np.int32), np.empty(_BATCH_TURNS, np.int64)
        why = WAITING
        while why in (WAITING, FULL):
            stop = go_on(self._windows, self.account, self._limit, PATIENCE, self._is_strict, sources, places)
            why = stop.why
            if stop.turns:
                source = sources[: stop.turns].copy()
                position = places[: stop.turns] - self._begins[source] + self._origins[source]
                self.documents += np.bincount(source, minlength=len(self._begins))
                yield TurnBatch(source, position)
            if why == WAITING:
                self._fill(stop.source)
        if why == DRY:
            self.dry = stop.source

    def _fill(self, source: int) -> None:
        """What is left of the window moves to its beginning; behind it, as much of the source as there is room for."""
        windows, begin = self._windows, int(self._begins[source])
        first, end = int(windows.nexts[source]), int(windows.ends[source])
        columns = {id(column): column for column in (windows.lengths, windows.costs)}.values()
        for column in columns:
            column[begin : begin + end - first] = column[first:end].copy()
        self._origins[source] += first - begin
        end -= first - begin
        windows.nexts[source] = begin
        while end < begin + self._size:
            offered = self._unread[source] or next(self._streams[source], None)
            if offered is None:
                windows.is_last[source] = True
                break
            count = min(len(offered.lengths), begin + self._size - end)
            windows.lengths[end : end + count] = offered.lengths[:count]
            if offered.costs is not None:
                windows.costs[end : end + count] = offered.costs[:count]
            end += count
            self._unread[source] = _after(offered, count)
        windows.ends[source] = end


def _after(offered: Offered, count: int) -> Offered | None:
    if count == len(offered.lengths):
        return None
    costs = offered.costs
    return Offered(offered.lengths[count:], None if costs is None else costs[count:])

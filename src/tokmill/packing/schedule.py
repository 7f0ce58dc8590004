"""Documents of many sources in one order in which every stretch has the mixture's shares.

    source a  ▇▇▇ ▇ ▇▇ …     weight 0.6         largest deficit first:   a a b a c a b a a b …
    source b  ▇▇ ▇▇▇▇ …      weight 0.3         counted in tokens, not in documents
    source c  ▇▇▇▇▇▇▇ …      weight 0.1

    Source        totals, and its documents epoch by epoch, in batches    ┐
    Scheduling    ─ quotas ─ turns, in batches ─ summary                  ┴ bounded, whatever the sources hold
    Turning       … taken │▇▇▇ ▇ ▇▇ window │ still to be read …           a window that is used up is refilled
    schedule      the same for documents whose lengths are in memory: whole columns in, whole columns out

Nothing is drawn. Documents of a source come in the order of a keyed hash of their identity (a shuffle that no
other document, worker or cut can change), another one in each epoch; or in corpus order.

A budget in tokens is met from below, source by source: a document that would take its source over its part is
passed over for one of the next that fits. So shares are met to a fraction of a document, and the budget too;
what is missing is recorded. A budget in documents or megabytes ends the schedule before the first document
that exceeds it. One in blocks is met from above, so that every row is full: rows are counted, and cut off,
where they are built.

Memory is bounded by the windows, not by the sources. A source that is next and has used up what it has read
waits for more; then the turns go on where they were. So turns do not depend on the size of the windows, nor
on how a source cuts its documents into batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import InputError, RecipeError
from tokmill.kernels.mixing import DRY, FULL, SHARE_BITS, WAITING, Windows, go_on, open_account
from tokmill.packing.mixture import Mixture
from tokmill.packing.quotas import (
    Exhausted,
    Holding,
    Target,
    exhausted_error,
    largest_budget,
    refuse_empty_domains,
    shares_of,
    source_quotas,
)

# --- turns ---

# Documents in the windows of all sources together:
# 16 MB of lengths and costs, and what the caller keeps for them.
_WINDOW_DOCUMENTS = 1 << 20

# Turns of a batch, at most.
_BATCH_TURNS = 1 << 18

# Documents that may be passed over at the end of a source's part:
# the shortest of a thousand leaves next to nothing.
PATIENCE = 1000


class Offered(NamedTuple):
    """Documents of a source, in the order in which it offers them; costs are in the unit of the target."""

    lengths: NDArray[np.int64]
    costs: NDArray[np.int64] | None = None  # None: the tokens


class TurnBatch(NamedTuple):
    """Document `position[k]` of what source `source[k]` offers is the k-th of the batch;
    positions of a source ascend."""

    source: NDArray[np.int32]
    position: NDArray[np.int64]


class Turning:
    """Iterate for the turns. Where the source that is next has nothing left and that is strict,
    `dry` is that source; it may be given `more`, and the turns go on."""

    def __init__(
        self,
        streams: Sequence[Iterator[Offered]],
        quotas: NDArray[np.int64],
        shares: NDArray[np.int64],
        limit: int,
        *,
        has_costs: bool,
        is_strict: bool,
        enough: int | None = None,
    ) -> None:
        """`enough`: the turn that brings the tokens there is the last."""
        self._enough = enough
        self.account = open_account(quotas, shares)
        self.documents = np.zeros(len(streams), np.int64)
        self._offered = np.zeros(len(streams), np.int64)  # up to the last turn
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

    @property
    def passed_over(self) -> NDArray[np.int64]:
        """Of each source. Turns that are given back passed over nobody."""
        return self.account.passed_over if self._enough is None else self._offered - self.documents

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
            turns = self._until_enough(sources[: stop.turns], places[: stop.turns])
            if turns:
                source = sources[:turns].copy()
                position = places[:turns] - self._begins[source] + self._origins[source]
                self.documents += np.bincount(source, minlength=len(self._begins))
                np.maximum.at(self._offered, source, position + 1)
                yield TurnBatch(source, position)
            if self._enough is not None and self.spent >= self._enough:
                return
            if why == WAITING:
                self._fill(stop.source)
        if why == DRY:
            self.dry = stop.source

    def _until_enough(self, sources: NDArray[np.int32], places: NDArray[np.int64]) -> int:
        """How many of these turns are wanted; the others are given back."""
        if self._enough is None:
            return len(sources)
        lengths = self._windows.lengths[places]
        sums = self.spent - int(lengths.sum()) + np.cumsum(lengths)
        wanted = min(int(np.searchsorted(sums, self._enough)) + 1, len(sources))
        np.subtract.at(self.account.taken, sources[wanted:], lengths[wanted:])
        self.account.spent[0] -= int(lengths[wanted:].sum())
        return wanted

    def _fill(self, source: int) -> None:
        """What is left of the window moves to its beginning;
        behind it, as much of the source as there is room for."""
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


# --- sources of any size ---

# Muennighoff et al. 2023 (Scaling Data-Constrained Language Models):
# up to four epochs are nearly as good as new data.
MAX_EPOCHS = 4

_MAX_LENGTH = (1 << 31) - 1


class Source(Protocol):
    """What a schedule has to know of a source: its totals, and its documents in the order of each epoch.

    Where some had passes before, epoch n is the n-th pass of each: those that had it are not in it.
    """

    @property
    def holding(self) -> Holding: ...
    def read_epoch(self, epoch: int) -> Iterator[Offered]: ...


@dataclass(frozen=True, eq=False)
class Summary:
    """What a schedule came to."""

    names: list[str]
    wanted: list[Fraction]  # share of each source
    tokens: list[int]  # taken from each source
    available: list[int]  # tokens of each source, once
    documents: list[int]
    passed_over: list[int]  # documents that would have exceeded the part of their source
    reached: int  # in the unit of the target
    left_over: int  # what the target has and the schedule has not
    capacities: list[int]  # tokens that each source could give, in all of its passes that were left

    @property
    def total_tokens(self) -> int:
        return sum(self.tokens)

    @property
    def shares(self) -> list[float]:
        return [count / self.total_tokens if self.total_tokens else 0.0 for count in self.tokens]

    @property
    def epochs(self) -> list[float]:
        return [
            taken / there if there else 0.0 for taken, there in zip(self.tokens, self.available, strict=True)
        ]

    @property
    def exhausted(self) -> list[str]:
        """Sources that gave all they have and should have given more."""
        facts = zip(self.names, self.tokens, self.capacities, self.shares, self.wanted, strict=True)
        return [
            name
            for name, taken, there, built, wanted in facts
            if taken >= there and built < float(wanted) and self.total_tokens
        ]

    @property
    def max_error(self) -> float:
        """The largest difference between a built and a wanted share."""
        pairs = zip(self.shares, self.wanted, strict=True)
        return max((abs(built - float(wanted)) for built, wanted in pairs), default=0.0)


class Scheduling:
    """Iterate once for the turns; then there is a summary.
    Without a target, as much as the weights allow before the first source is exhausted."""

    def __init__(
        self,
        sources: Sequence[Source],
        mixture: Mixture,
        target: Target | None,
        *,
        exhausted: Exhausted = "stop",
        max_epochs: int = MAX_EPOCHS,
        seq_len: int | None = None,
        ends_at_target: bool = False,
    ) -> None:
        """`ends_at_target`: of blocks, the document that fills the last one is the last."""
        if max_epochs < 1:
            raise RecipeError(f"{max_epochs} epochs", where="mixture.max_epochs", next="set 1 or more")
        self._sources, self._mixture = sources, mixture
        self._holdings = [source.holding for source in sources]
        if target is None:
            if exhausted != "stop":
                raise RecipeError(
                    f"without a target, `exhausted: {exhausted}` has no end",
                    where="mixture",
                    next="set tokens, blocks, documents or megabytes, or `exhausted: stop`",
                )
            target = Target("tokens", max(largest_budget(self._holdings, mixture), 1))
        self._target, self._exhausted, self._max_epochs = target, exhausted, max_epochs
        self._ends_at_target = ends_at_target
        self._budget = target.in_tokens(seq_len)
        self._shares = shares_of(self._holdings, mixture)
        self._turning = self._counted() if self._budget is None else self._budgeted(self._budget)

    def __iter__(self) -> Iterator[TurnBatch]:
        epochs = [1] * len(self._sources)
        while True:
            yield from self._turning
            dry = self._turning.dry
            if dry is None:
                return
            if self._exhausted == "stop" or epochs[dry] >= self._max_epochs:
                raise self._exhausted_error(dry, epochs[dry])
            again = self._sources[dry].read_epoch(epochs[dry])
            holding = self._holdings[dry]
            more = holding.capacity(epochs[dry] + 1) - holding.capacity(epochs[dry])
            self._turning.more(dry, again, more)
            epochs[dry] += 1

    @property
    def summary(self) -> Summary:
        taken = self._turning.account.taken
        if self._budget is None:
            reached = self._turning.spent // (1_000_000 if self._target.unit == "megabytes" else 1)
        else:
            reached = min(int(taken.sum()) // (self._budget // self._target.amount), self._target.amount)
        return Summary(
            [holding.name for holding in self._holdings],
            self._shares,
            taken.tolist(),
            [holding.tokens for holding in self._holdings],
            self._turning.documents.tolist(),
            self._turning.passed_over.tolist(),
            reached,
            self._target.amount - reached,
            [holding.capacity(self._epochs) for holding in self._holdings],
        )

    def _budgeted(self, budget: int) -> Turning:
        """Every source has its part, and as many epochs as that takes."""
        is_met_from_above = self._target.unit == "blocks"
        enough = budget if is_met_from_above and self._ends_at_target else None
        if is_met_from_above and enough is None:
            budget = self._with_tails(budget)
        quotas = source_quotas(self._holdings, self._mixture, budget, self._exhausted, self._max_epochs)
        total, limit = max(sum(quotas), 1), budget
        parts = [Fraction(quota, total) for quota in quotas]
        if is_met_from_above:
            parts = [
                part or Fraction(bool(share), total) for part, share in zip(parts, self._shares, strict=True)
            ]
            quotas = self._with_a_document_more(quotas)
            limit += max((holding.longest for holding in self._holdings), default=1) - 1
        streams = [
            _epochs(source, _passes(source.holding, quota))
            for source, quota in zip(self._sources, quotas, strict=True)
        ]
        return Turning(
            streams,
            np.array(quotas, np.int64),
            _in_bits(parts),
            limit,
            has_costs=False,
            is_strict=False,
            enough=enough,
        )

    def _with_tails(self, budget: int) -> int:
        """Rows that keep domains apart lose the tail of each:
        a row more for all but one, as far as the sources reach."""
        weighted = zip(self._holdings, self._shares, strict=True)
        domains = {holding.domain for holding, share in weighted if share and holding.tokens}
        more = budget + max(len(domains) - 1, 0) * (budget // self._target.amount)
        if self._exhausted == "renormalize":
            return more
        return max(budget, min(more, largest_budget(self._holdings, self._mixture, self._epochs)))

    def _with_a_document_more(self, quotas: list[int]) -> list[int]:
        """So no source gives less than its part, unless it has no more."""
        return [
            min(quota + holding.longest, holding.capacity(self._epochs)) if share else 0
            for quota, holding, share in zip(quotas, self._holdings, self._shares, strict=True)
        ]

    @property
    def _epochs(self) -> int:
        return self._max_epochs if self._exhausted == "repeat" else 1

    def _counted(self) -> Turning:
        """To a number of documents or of megabytes: how many tokens that is shows on the way."""
        if self._exhausted != "renormalize":
            total = sum(holding.tokens for holding in self._holdings) or 1
            refuse_empty_domains(self._holdings, self._mixture, total, self._exhausted, self._max_epochs)
        quotas = [
            holding.capacity(1) if share else 0
            for holding, share in zip(self._holdings, self._shares, strict=True)
        ]
        return Turning(
            [_epochs(source, 1) for source in self._sources],
            np.array(quotas, np.int64),
            _in_bits(self._shares),
            self._limit,
            has_costs=True,
            is_strict=self._exhausted != "renormalize",
        )

    @property
    def _limit(self) -> int:
        return self._target.amount * (1_000_000 if self._target.unit == "megabytes" else 1)

    def _exhausted_error(self, dry: int, epochs: int) -> InputError:
        """As a share of the way: how many tokens the whole would have been is not known."""
        account, holding = self._turning.account, self._holdings[dry]
        reach = int(account.taken.sum())
        budget = max(reach * self._limit // max(self._turning.spent, 1), reach, 1)
        asked = int(budget * self._shares[dry])
        return exhausted_error(
            holding.name, int(account.quotas[dry]), asked, reach, budget, self._exhausted, epochs
        )


def shuffle_key(seed: int, epoch: int, name: str) -> int:
    """What the identities of a source are hashed with: another order for each seed and in each epoch."""
    purpose = f"tokmill.mixture.1 {seed} {epoch} {name}"
    return int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "big")


def refuse_long_documents(lengths: NDArray[np.integer], where: str) -> None:
    if lengths.size and int(lengths.max()) > _MAX_LENGTH:
        raise InputError(
            f"a document has more than {_MAX_LENGTH:,} tokens",
            where=where,
            next="split it, or set a maximum document size in filters",
        )


def _passes(holding: Holding, quota: int) -> int:
    """As few as have so many tokens."""
    for passes in range(len(holding.left)):
        if holding.capacity(passes) >= quota:
            return passes
    rest = quota - holding.capacity(len(holding.left))
    return len(holding.left) + max(-(-rest // max(holding.tokens, 1)), 0)


def _epochs(source: Source, count: int) -> Iterator[Offered]:
    for epoch in range(count):
        yield from source.read_epoch(epoch)


def _in_bits(parts: Sequence[Fraction]) -> NDArray[np.int64]:
    """Whole numbers in proportion, 2^31 in all; a part that is there at all is at least 1,
    the largest gives for it."""
    whole = 1 << SHARE_BITS
    total = sum(parts, Fraction(0))
    shares = np.array([max(int(whole * part / total), 1) if part else 0 for part in parts], np.int64)
    if shares.any():
        shares[int(shares.argmax())] += whole - int(shares.sum())
    return shares

"""Documents of many sources in one order in which every stretch has the mixture's shares.

    source a  ▇▇▇ ▇ ▇▇ …     weight 0.6         largest deficit first:   a a b a c a b a a b …
    source b  ▇▇ ▇▇▇▇ …      weight 0.3         counted in tokens, not in documents
    source c  ▇▇▇▇▇▇▇ …      weight 0.1

Nothing is drawn. Documents of a source come in the order of a keyed hash of their identity (a shuffle that no other
document, worker or cut can change), another one in each epoch; or in corpus order.

A budget in tokens is met from below, source by source: a document that would take its source over its part is passed
over for one of the next that fits. So shares are met to a fraction of a document, and the budget too; what is missing
is recorded. A budget in documents or megabytes ends the schedule before the first document that exceeds it.

    Source        totals, and its documents epoch by epoch, in batches    ┐
    Scheduling    ─ quotas ─ turns, in batches ─ summary                  ┴ bounded, whatever the sources hold
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import InputError, RecipeError
from tokmill.kernels.mixing import SHARE_BITS
from tokmill.pack.budget import (
    Exhausted,
    Holding,
    Target,
    exhausted_error,
    largest_budget,
    refuse_empty_domains,
    shares_of,
    source_quotas,
)
from tokmill.pack.mixture import Mixture
from tokmill.pack.turning import Offered, TurnBatch, Turning

# Muennighoff et al. 2023 (Scaling Data-Constrained Language Models): up to four epochs are nearly as good as new data.
MAX_EPOCHS = 4

_MAX_LENGTH = (1 << 31) - 1


class Source(Protocol):
    """What a schedule has to know of a source: its totals, and its documents in the order of each epoch."""

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
        facts = zip(self.names, self.tokens, self.available, self.shares, self.wanted, strict=True)
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
    """Iterate once for the turns; then there is a summary. Without a target, as much as the weights allow before the
    first source is exhausted."""

    def __init__(
        self,
        sources: Sequence[Source],
        mixture: Mixture,
        target: Target | None,
        *,
        exhausted: Exhausted = "stop",
        max_epochs: int = MAX_EPOCHS,
        seq_len: int | None = None,
    ) -> None:
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
            self._turning.more(dry, again, self._holdings[dry].tokens)
            epochs[dry] += 1

    @property
    def summary(self) -> Summary:
        taken = self._turning.account.taken
        if self._budget is None:
            reached = self._turning.spent // (1_000_000 if self._target.unit == "megabytes" else 1)
        else:
            reached = int(taken.sum()) // (self._budget // self._target.amount)
        return Summary(
            [holding.name for holding in self._holdings],
            self._shares,
            taken.tolist(),
            [holding.tokens for holding in self._holdings],
            self._turning.documents.tolist(),
            self._turning.account.passed_over.tolist(),
            reached,
            self._target.amount - reached,
        )

    def _budgeted(self, budget: int) -> Turning:
        """Every source has its part, and as many epochs as that takes."""
        quotas = source_quotas(self._holdings, self._mixture, budget, self._exhausted, self._max_epochs)
        total = max(sum(quotas), 1)
        streams = [
            _epochs(source, -(-quota // max(source.holding.tokens, 1)))
            for source, quota in zip(self._sources, quotas, strict=True)
        ]
        parts = [Fraction(quota, total) for quota in quotas]
        return Turning(
            streams, np.array(quotas, np.int64), _in_bits(parts), budget, has_costs=False, is_strict=False
        )

    def _counted(self) -> Turning:
        """To a number of documents or of megabytes: how many tokens that is shows on the way."""
        if self._exhausted != "renormalize":
            total = sum(holding.tokens for holding in self._holdings) or 1
            refuse_empty_domains(self._holdings, self._mixture, total, self._exhausted, self._max_epochs)
        quotas = [
            holding.tokens if share else 0
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


def _epochs(source: Source, count: int) -> Iterator[Offered]:
    for epoch in range(count):
        yield from source.read_epoch(epoch)


def _in_bits(parts: Sequence[Fraction]) -> NDArray[np.int64]:
    """Whole numbers in proportion, 2^31 in all; a part that is there at all is at least 1, the largest gives for it."""
    whole = 1 << SHARE_BITS
    total = sum(parts, Fraction(0))
    shares = np.array([max(int(whole * part / total), 1) if part else 0 for part in parts], np.int64)
    if shares.any():
        shares[int(shares.argmax())] += whole - int(shares.sum())
    return shares

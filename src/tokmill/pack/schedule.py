"""Documents of many sources in one order in which every stretch has the mixture's shares.

    source a  ▇▇▇ ▇ ▇▇ …     weight 0.6         largest deficit first:   a a b a c a b a a b …
    source b  ▇▇ ▇▇▇▇ …      weight 0.3         counted in tokens, not in documents
    source c  ▇▇▇▇▇▇▇ …      weight 0.1

Nothing is drawn. Documents of a source come in the order of a keyed hash of their identity (a shuffle that no other
document, worker or cut can change), another one in each epoch; or in corpus order.

A budget in tokens is met from below, source by source: a document that would take its source over its part is passed
over for one of the next that fits. So shares are met to a fraction of a document, and the budget too; what is missing
is recorded. A budget in documents or megabytes ends the schedule before the first document that exceeds it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import InputError, RecipeError
from tokmill.kernels.mixing import SHARE_BITS, Turns, mark_shuffle, row_bits, take_turns
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

N = TypeVar("N", bound=np.generic)
Order = Literal["shuffle", "corpus"]

# Documents that may be passed over at the end of a source's part: the shortest of a thousand leaves next to nothing.
_PATIENCE = 1000

# Muennighoff et al. 2023 (Scaling Data-Constrained Language Models): up to four epochs are nearly as good as new data.
MAX_EPOCHS = 4

_MAX_LENGTH = (1 << 31) - 1


class Corpus(NamedTuple):
    """The documents of a source: tokens of each and, if asked for, what identifies it and its bytes of text."""

    name: str
    domain: str
    lengths: NDArray[np.integer]
    identities: NDArray[np.uint64] | None = None  # None: the number of the document
    text_bytes: NDArray[np.integer] | None = None  # for targets in megabytes


@dataclass(frozen=True, eq=False)
class Schedule:
    """Document `document[k]` of corpus `source[k]` is the k-th. Where sources repeat, so do documents."""

    source: NDArray[np.int32]
    document: NDArray[np.int32]
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


def schedule(
    corpora: Sequence[Corpus],
    mixture: Mixture,
    target: Target | None,
    *,
    exhausted: Exhausted = "stop",
    max_epochs: int = MAX_EPOCHS,
    order: Order = "shuffle",
    seed: int = 0,
    seq_len: int | None = None,
) -> Schedule:
    """Without a target, as much as the weights allow before the first source is exhausted."""
    if max_epochs < 1:
        raise RecipeError(f"{max_epochs} epochs", where="mixture.max_epochs", next="set 1 or more")
    holdings = [Holding(c.name, c.domain, int(c.lengths.sum(dtype=np.int64))) for c in corpora]
    for corpus in corpora:
        if corpus.lengths.size and int(corpus.lengths.max()) > _MAX_LENGTH:
            raise InputError(
                f"a document has more than {_MAX_LENGTH:,} tokens",
                where=corpus.name,
                next="split it, or set a maximum document size in filters",
            )
    if target is None:
        if exhausted != "stop":
            raise RecipeError(
                f"without a target, `exhausted: {exhausted}` has no end",
                where="mixture",
                next="set tokens, blocks, documents or megabytes, or exhausted: stop",
            )
        target = Target("tokens", max(largest_budget(holdings, mixture), 1))
    budget = target.in_tokens(seq_len)
    if budget is None:
        turns, reached = _count_up(corpora, holdings, mixture, target, exhausted, max_epochs, order, seed)
    else:
        quotas = source_quotas(holdings, mixture, budget, exhausted, max_epochs)
        repeats = [-(-quota // max(h.tokens, 1)) for quota, h in zip(quotas, holdings, strict=True)]
        total = sum(quotas)
        parts = [Fraction(quota, max(total, 1)) for quota in quotas]
        turns = _turns(corpora, parts, quotas, repeats, None, budget, order, seed)
        reached = int(turns.taken.sum()) // (budget // target.amount)
    return Schedule(
        turns.source,
        turns.document,
        [corpus.name for corpus in corpora],
        shares_of(holdings, mixture),
        turns.taken.tolist(),
        [holding.tokens for holding in holdings],
        np.bincount(turns.source, minlength=len(corpora)).tolist(),
        turns.passed_over.tolist(),
        reached,
        target.amount - reached,
    )


def in_order(found: Schedule, columns: Sequence[NDArray[N]]) -> NDArray[N]:
    """A column of each corpus (lengths, places of their ids) as one column of the scheduled documents."""
    assert len(columns) == len(found.names), f"{len(found.names)} corpora, but {len(columns)} columns"
    bases = np.cumsum([0, *(len(column) for column in columns)])[:-1]
    return np.concatenate(columns)[bases[found.source] + found.document]


def _count_up(
    corpora: Sequence[Corpus],
    holdings: Sequence[Holding],
    mixture: Mixture,
    target: Target,
    exhausted: Exhausted,
    max_epochs: int,
    order: Order,
    seed: int,
) -> tuple[Turns, int]:
    """To a number of documents or of megabytes: how many tokens that is shows on the way."""
    if exhausted != "renormalize":
        refuse_empty_domains(holdings, mixture, sum(h.tokens for h in holdings) or 1, exhausted, max_epochs)
    costs = [_costs(corpus, target) for corpus in corpora]
    limit = target.amount * (1_000_000 if target.unit == "megabytes" else 1)
    shares = shares_of(holdings, mixture)
    epochs = [1 if share else 0 for share in shares]
    while True:
        quotas = [h.tokens * count for h, count in zip(holdings, epochs, strict=True)]
        turns = _turns(
            corpora, shares, quotas, epochs, costs, limit, order, seed, is_strict=exhausted != "renormalize"
        )
        if turns.dry < 0:
            break
        if exhausted == "stop" or epochs[turns.dry] >= max_epochs:
            # as a share of the way: how many tokens the whole would have been is not known
            dry, reach = holdings[turns.dry], int(turns.taken.sum())
            spent = sum(
                int(costs[at][turns.document[turns.source == at]].sum()) for at in range(len(corpora))
            )
            budget = max(reach * limit // max(spent, 1), reach, 1)
            asked = int(budget * shares[turns.dry])
            raise exhausted_error(
                dry.name, quotas[turns.dry], asked, reach, budget, exhausted, epochs[turns.dry]
            )
        epochs[turns.dry] = min(2 * epochs[turns.dry], max_epochs)
    spent = sum(int(costs[at][turns.document[turns.source == at]].sum()) for at in range(len(corpora)))
    return turns, spent // (1_000_000 if target.unit == "megabytes" else 1)


def _costs(corpus: Corpus, target: Target) -> NDArray[np.int64]:
    if target.unit == "documents":
        return np.ones(len(corpus.lengths), np.int64)
    assert corpus.text_bytes is not None, f"{corpus.name}: a target in megabytes needs text_bytes"
    return corpus.text_bytes.astype(np.int64)


def _turns(
    corpora: Sequence[Corpus],
    parts: Sequence[Fraction],
    quotas: Sequence[int],
    epochs: Sequence[int],
    costs: Sequence[NDArray[np.int64]] | None,
    limit: int,
    order: Order,
    seed: int,
    *,
    is_strict: bool = False,
) -> Turns:
    orders = [
        _order(corpus, epoch, order, seed)
        for corpus, count in zip(corpora, epochs, strict=True)
        for epoch in range(count)
    ]
    offered = [count * len(corpus.lengths) for corpus, count in zip(corpora, epochs, strict=True)]
    sizes = [len(corpus.lengths) for corpus in corpora]
    lengths = _joined([corpus.lengths.astype(np.int64, copy=False) for corpus in corpora], np.int64)
    return take_turns(
        lengths,
        lengths if costs is None else _joined(list(costs), np.int64),
        _joined(orders, np.int32),
        np.cumsum([0, *offered], dtype=np.int64),
        np.cumsum([0, *sizes], dtype=np.int64)[:-1],
        np.array(quotas, np.int64),
        _in_bits(parts),
        limit,
        _PATIENCE,
        is_strict,
    )


def _joined(arrays: Sequence[NDArray[N]], dtype: type[N]) -> NDArray[N]:
    return arrays[0] if len(arrays) == 1 else np.concatenate([*arrays, np.empty(0, dtype)])


def _order(corpus: Corpus, epoch: int, order: Order, seed: int) -> NDArray[np.int32]:
    count = len(corpus.lengths)
    if order == "corpus":
        return np.arange(count, dtype=np.int32)
    identities = np.arange(count, dtype=np.uint64) if corpus.identities is None else corpus.identities
    assert identities.shape == (count,), (
        f"{corpus.name}: {count} documents, but identities {identities.shape}"
    )
    purpose = f"tokmill.mixture.1 {seed} {epoch} {corpus.name}"
    key = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "big")
    marks = mark_shuffle(identities, key)
    marks.sort()
    marks &= np.uint64((1 << row_bits(count)) - 1)
    return marks.astype(np.int32)


def _in_bits(parts: Sequence[Fraction]) -> NDArray[np.int64]:
    """Whole numbers in proportion, 2^31 in all; a part that is there at all is at least 1, the largest gives for it."""
    whole = 1 << SHARE_BITS
    total = sum(parts, Fraction(0))
    shares = np.array([max(int(whole * part / total), 1) if part else 0 for part in parts], np.int64)
    if shares.any():
        shares[int(shares.argmax())] += whole - int(shares.sum())
    return shares

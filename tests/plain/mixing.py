"""Which documents a build takes, and in which order (docs/mixtures.md).

    weights, tokens of each source ─ shares ─ quotas ─ turns ─> (source, document), …

Weights are fractions of the decimals that were written; everything after them is done in whole numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from plain.hashing import shuffled

_BITS = 31
_FACTORS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}


class Exhausted(Exception):
    """A source, or a domain, has less than its weight asks for."""


@dataclass(frozen=True)
class Source:
    """The documents of a source in one split: tokens, characters of text in bytes, and identities."""

    name: str
    domain: str
    lengths: list[int]
    sizes: list[int]
    identities: list[int]

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


@dataclass(frozen=True)
class Asked:
    """The section `mixture` of a recipe, and the part of its target that a split has."""

    weights: Mapping[str, Fraction] | None
    sources: Mapping[str, Mapping[str, Fraction]] = field(default_factory=dict)
    unit: str = "tokens"
    amount: int | None = None
    exhausted: str = "stop"
    max_epochs: int = 4
    order: str = "shuffle"
    seed: int = 0
    row_length: int = 2048
    patience: int = 1000  # documents that may be passed over at the end of a source's part


def amount_of(written: object) -> int:
    """`200M` as a number."""
    text = str(written).replace("_", "").replace(",", "").strip()
    return int(Fraction(text.rstrip("kKMGBT").strip()) * _FACTORS[text[-1] if text[-1] in _FACTORS else ""])


def as_shares(weights: Mapping[str, object]) -> dict[str, Fraction]:
    """Weights as shares of their sum."""
    exact = {name: Fraction(str(weight)) for name, weight in weights.items()}
    total = sum(exact.values())
    return {name: weight / total if total else weight for name, weight in exact.items()}


def shares_of(sources: Sequence[Source], asked: Asked) -> list[Fraction]:
    """What each source should be of the whole. What nobody gave a weight goes by its tokens."""
    unweighted = {
        s.name for s in sources if s.domain in asked.sources and not asked.sources[s.domain].get(s.name)
    }
    found = []
    for source in sources:
        mine = [other for other in sources if other.domain == source.domain]
        of_domain, whole = (
            sum(other.tokens for other in mine),
            sum(other.tokens for other in sources if other.name not in unweighted),
        )
        if source.domain in asked.sources:
            within = asked.sources[source.domain].get(source.name, Fraction(0))
        else:
            within = Fraction(source.tokens, of_domain) if of_domain else Fraction(0)
        if asked.weights is None:
            natural = sum(other.tokens for other in mine if other.name not in unweighted)
            found.append((Fraction(natural, whole) if whole else Fraction(0)) * within)
        else:
            found.append(asked.weights[source.domain] * within)
    return found


def schedule(sources: Sequence[Source], asked: Asked) -> list[tuple[int, int]]:
    """(number of the source, number of its document) of every turn."""
    shares = shares_of(sources, asked)
    repeats = asked.max_epochs if asked.exhausted == "repeat" else 1
    if asked.unit in ("documents", "megabytes") and asked.amount is not None:
        return _counted(sources, asked, shares, repeats)
    if asked.amount is None:
        budget = max(
            min(
                (int(s.tokens / share) for s, share in zip(sources, shares, strict=True) if share), default=0
            ),
            1,
        )
    else:
        budget = asked.amount * (asked.row_length if asked.unit == "blocks" else 1)
    limit = budget
    if asked.unit == "blocks" and asked.amount is not None:
        budget = _with_tails(sources, asked, shares, budget, repeats)
        limit = budget
    quotas = _quotas(sources, asked, shares, budget, repeats)
    total = max(sum(quotas), 1)
    parts = [Fraction(quota, total) for quota in quotas]
    if asked.unit == "blocks" and asked.amount is not None:  # met from above: a document more of each source
        parts = [part or Fraction(bool(share), total) for part, share in zip(parts, shares, strict=True)]
        longest = [max(source.lengths, default=0) for source in sources]
        quotas = [
            min(quota + length, source.tokens * repeats) if share else 0
            for quota, length, source, share in zip(quotas, longest, sources, shares, strict=True)
        ]
        limit += max(longest, default=1) - 1
    epochs = [
        -(-quota // source.tokens) if source.tokens else 0
        for quota, source in zip(quotas, sources, strict=True)
    ]
    orders = [_in_epochs(source, asked, count) for source, count in zip(sources, epochs, strict=True)]
    lengths = [[source.lengths[d] for d in order] for source, order in zip(sources, orders, strict=True)]
    turns, _ = take_turns(lengths, quotas, in_bits(parts), limit, asked.patience, False)
    return [(source, orders[source][place]) for source, place in turns]


def _counted(
    sources: Sequence[Source], asked: Asked, shares: list[Fraction], repeats: int
) -> list[tuple[int, int]]:
    """To so many documents, or megabytes of text: how many tokens that is shows on the way."""
    assert asked.amount is not None
    is_strict = asked.exhausted != "renormalize"
    if is_strict:
        _refuse_empty_domains(sources, asked)
    limit = asked.amount * (10**6 if asked.unit == "megabytes" else 1)
    epochs = [int(bool(share)) for share in shares]
    while True:
        orders = [_in_epochs(source, asked, count) for source, count in zip(sources, epochs, strict=True)]
        lengths = [[source.lengths[d] for d in order] for source, order in zip(sources, orders, strict=True)]
        costs = [
            [1 if asked.unit == "documents" else source.sizes[d] for d in order]
            for source, order in zip(sources, orders, strict=True)
        ]
        quotas = [source.tokens * count for source, count in zip(sources, epochs, strict=True)]
        turns, dry = take_turns(lengths, quotas, in_bits(shares), limit, asked.patience, is_strict, costs)
        if dry < 0:
            return [(source, orders[source][place]) for source, place in turns]
        if asked.exhausted == "stop" or epochs[dry] >= repeats:
            raise Exhausted(sources[dry].name)
        epochs[dry] += 1


def _in_epochs(source: Source, asked: Asked, epochs: int) -> list[int]:
    """The documents of each epoch in their order: by a keyed hash of their ids, another one in each."""
    if asked.order == "corpus":
        return list(range(len(source.lengths))) * epochs
    return [
        document
        for epoch in range(epochs)
        for document in shuffled(source.identities, f"tokmill.mixture.1 {asked.seed} {epoch} {source.name}")
    ]


def _with_tails(
    sources: Sequence[Source], asked: Asked, shares: list[Fraction], budget: int, repeats: int
) -> int:
    """Rows that keep domains apart lose the tail of each: a row more for all but one, if there is text."""
    domains = {s.domain for s, share in zip(sources, shares, strict=True) if share and s.tokens}
    more = budget + max(len(domains) - 1, 0) * asked.row_length
    if asked.exhausted == "renormalize":
        return more
    reach = min(
        (repeats * int(s.tokens / share) for s, share in zip(sources, shares, strict=True) if share),
        default=0,
    )
    return max(budget, min(more, reach))


def _quotas(
    sources: Sequence[Source], asked: Asked, shares: list[Fraction], budget: int, repeats: int
) -> list[int]:
    """Tokens that each source is to give."""
    capacities = [source.tokens * repeats for source in sources]
    if asked.exhausted != "renormalize":
        _refuse_empty_domains(sources, asked)
        quotas = [int(budget * share) for share in shares]
        for source, quota, capacity in zip(sources, quotas, capacities, strict=True):
            if quota > capacity:
                raise Exhausted(source.name)
        return quotas
    found = [0] * len(sources)
    domains = list(dict.fromkeys(source.domain for source in sources))
    weights = asked.weights or {
        name: sum((share for s, share in zip(sources, shares, strict=True) if s.domain == name), Fraction(0))
        for name in domains
    }
    members = {
        name: [
            at
            for at, s in enumerate(sources)
            if s.domain == name and (name not in asked.sources or asked.sources[name].get(s.name))
        ]
        for name in weights
    }
    sizes = [sum(capacities[at] for at in members[name]) for name in weights]
    for name, amount in zip(weights, fill_evenly(budget, list(weights.values()), sizes), strict=True):
        own = members[name]
        whole = sum(sources[at].tokens for at in own) or 1
        within = [
            asked.sources[name][sources[at].name]
            if name in asked.sources
            else Fraction(sources[at].tokens, whole)
            for at in own
        ]
        for at, quota in zip(own, fill_evenly(amount, within, [capacities[at] for at in own]), strict=True):
            found[at] = quota
    return found


def _refuse_empty_domains(sources: Sequence[Source], asked: Asked) -> None:
    for name, weight in (asked.weights or {}).items():
        mine = [
            s
            for s in sources
            if s.domain == name and (name not in asked.sources or asked.sources[name].get(s.name))
        ]
        if weight and not any(source.tokens for source in mine):
            raise Exhausted(f"domain {name}")


def fill_evenly(amount: int, weights: list[Fraction], capacities: list[int]) -> list[int]:
    """`amount` in proportion to the weights; what one cannot hold goes to the others, in proportion again."""
    filled, waiting = [0] * len(weights), [at for at, weight in enumerate(weights) if weight]
    while waiting:
        total = sum(weights[at] for at in waiting)
        full = [at for at in waiting if amount * weights[at] >= capacities[at] * total]
        if not full:
            for at in waiting:
                filled[at] = int(amount * weights[at] / total)
            break
        for at in full:
            filled[at] = capacities[at]
        amount -= sum(capacities[at] for at in full)
        waiting = [at for at in waiting if at not in full]
    return filled


def in_bits(shares: Sequence[Fraction]) -> list[int]:
    """Shares as whole numbers that add up to 2^31: above zero at least 1, and the largest has the rest."""
    total = sum(shares)
    found = [max(int(share / total * (1 << _BITS)), 1) if share else 0 for share in shares]
    if any(found):
        found[found.index(max(found))] += (1 << _BITS) - sum(found)
    return found


def take_turns(
    lengths: list[list[int]],
    quotas: list[int],
    shares: list[int],
    limit: int,
    patience: int,
    strict: bool,
    costs: list[list[int]] | None = None,
) -> tuple[list[tuple[int, int]], int]:
    """Turns (source, place), and the source that ran dry, or -1. Next is who is furthest behind its share."""
    costs = lengths if costs is None else costs
    waiting = [list(enumerate(zip(*parts, strict=True))) for parts in zip(lengths, costs, strict=True)]
    taken, exact, total = [0] * len(lengths), [0] * len(lengths), 0
    turns: list[tuple[int, int]] = []
    shares = list(shares)
    while any(shares) and total < limit:
        active = [at for at, share in enumerate(shares) if share]
        source = max(active, key=lambda at: (exact[at], -at))
        room = quotas[source] - taken[source]
        fitting = [at for at, (_, (length, _)) in enumerate(waiting[source][:patience]) if length <= room]
        if not fitting or not room:
            if strict and len(waiting[source]) <= patience and not fitting:
                return turns, source
            shares[source] = 0
            whole = sum(shares)
            if whole:
                shares = [(share << _BITS) // whole for share in shares]
                first = next(at for at, share in enumerate(shares) if share)
                shares[first] += (1 << _BITS) - sum(shares)
            continue
        document, (length, cost) = waiting[source][fitting[0]]
        del waiting[source][: fitting[0] + 1]
        if total + cost > limit:
            break
        total += cost
        taken[source] += length
        turns.append((source, document))
        exact = [deficit + share * length for deficit, share in zip(exact, shares, strict=True)]
        exact[source] -= length << _BITS
    return turns, -1

"""How much is built: a target in tokens, blocks, documents or megabytes, and its parts.

    target    tokens 200M   blocks 97,656 (of seq_len tokens)   documents 50k   megabytes 800 (of text, 10^6 bytes)
    split     valid = floor(target * its fraction), train = the rest
    quotas    tokens of each source: what its weight asks for, as far as it has them

A source that has too little
    stop          is an error that says how far the mixture would get
    renormalize   gives all it has; what is missing comes from its domain, then from the other domains, by weight
    repeat        gives its documents again, up to max_epochs times; beyond that, an error
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from tokmill.errors import InputError, RecipeError
from tokmill.pack.mixture import Mixture

Unit = Literal["tokens", "blocks", "documents", "megabytes"]
Exhausted = Literal["stop", "renormalize", "repeat"]


@dataclass(frozen=True)
class Target:
    unit: Unit
    amount: int

    def __post_init__(self) -> None:
        if self.amount < 1:
            raise RecipeError(
                f"a target of {self.amount} {self.unit}", where="mixture", next="ask for one or more"
            )

    def in_tokens(self, seq_len: int | None) -> int | None:
        """None where documents have to be counted for it."""
        if self.unit == "blocks":
            assert seq_len, "blocks are as long as a row"
            return self.amount * seq_len
        return self.amount if self.unit == "tokens" else None


@dataclass(frozen=True)
class Holding:
    """What a source has."""

    name: str
    domain: str
    tokens: int


def split_budget(amount: int, splits: Sequence[str], held_out: Mapping[str, Fraction]) -> dict[str, int]:
    """Every split gets its part of one budget, so that together they never exceed it: the first has the rest."""
    parts = {name: int(amount * held_out.get(name, 0)) for name in splits[1:]}
    return {splits[0]: amount - sum(parts.values()), **parts}


def largest_budget(holdings: Sequence[Holding], mixture: Mixture) -> int:
    """The tokens that can be mixed before the first source is exhausted."""
    shares = shares_of(holdings, mixture)
    return min(
        (int(holding.tokens / share) for holding, share in zip(holdings, shares, strict=True) if share),
        default=0,
    )


def shares_of(holdings: Sequence[Holding], mixture: Mixture) -> list[Fraction]:
    """What each source should be of the whole; 1 in total, unless a domain with a weight has no source with one."""
    return [
        mixture.domains[holding.domain] * _within(holdings, mixture, holding.domain)[holding.name]
        for holding in holdings
    ]


def source_quotas(
    holdings: Sequence[Holding], mixture: Mixture, budget: int, exhausted: Exhausted, max_epochs: int
) -> list[int]:
    """Tokens that each source is to give, `budget` at most in all."""
    epochs = max_epochs if exhausted == "repeat" else 1
    capacities = [holding.tokens * epochs for holding in holdings]
    if exhausted != "renormalize":
        refuse_empty_domains(holdings, mixture, budget, exhausted, epochs)
        quotas = [int(budget * share) for share in shares_of(holdings, mixture)]
        for holding, quota, capacity in zip(holdings, quotas, capacities, strict=True):
            if quota > capacity:
                reach = largest_budget(holdings, mixture) * epochs
                raise exhausted_error(holding.name, capacity, quota, reach, budget, exhausted, epochs)
        return quotas
    members = {
        name: [at for at, holding in enumerate(holdings) if holding.domain == name]
        for name in mixture.domains
    }
    sizes = [sum(capacities[at] for at in members[name]) for name in mixture.domains]
    of_domains = fill_evenly(budget, list(mixture.domains.values()), sizes)
    found = [0] * len(holdings)
    for (name, inside), amount in zip(members.items(), of_domains, strict=True):
        weights = _within(holdings, mixture, name)
        own = [weights[holdings[at].name] for at in inside]
        for at, quota in zip(
            inside, fill_evenly(amount, own, [capacities[at] for at in inside]), strict=True
        ):
            found[at] = quota
    return found


def refuse_empty_domains(
    holdings: Sequence[Holding], mixture: Mixture, budget: int, exhausted: Exhausted, epochs: int
) -> None:
    present = {holding.domain for holding in holdings if holding.tokens}
    for name, weight in mixture.domains.items():
        if weight and name not in present:
            raise exhausted_error(f"domain {name}", 0, int(budget * weight), 0, budget, exhausted, epochs)


def fill_evenly(amount: int, weights: Sequence[Fraction], capacities: Sequence[int]) -> list[int]:
    """`amount` in proportion to the weights; what one cannot hold goes to the others, in proportion again."""
    filled = [0] * len(weights)
    waiting = [at for at, weight in enumerate(weights) if weight]
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


def exhausted_error(
    name: str, has: int, wants: int, reach: int, budget: int, exhausted: Exhausted, epochs: int
) -> InputError:
    times = f" in {epochs} epochs" if exhausted == "repeat" else ""
    other = (
        "raise `max_epochs`"
        if exhausted == "repeat"
        else "set `exhausted: renormalize` or `exhausted: repeat`"
    )
    if not has:  # no epoch of nothing is more than nothing
        other = "give it documents, set its weight to 0 (with `mixture: {normalize: true}`), or set a target and `exhausted: renormalize`"
    lower = f", or lower the budget to {reach:,} tokens" if reach else ""
    return InputError(
        f"{name} is exhausted: it has {has:,} tokens{times}, and its weight asks for {wants:,}; "
        f"the mixture reaches {reach:,} of {budget:,} tokens ({100 * reach / budget:.1f} %)",
        where="mixture",
        next=f"{other}{lower}",
    )


def _within(holdings: Sequence[Holding], mixture: Mixture, domain: str) -> dict[str, Fraction]:
    return mixture.within_domain(domain, {h.name: h.tokens for h in holdings if h.domain == domain})

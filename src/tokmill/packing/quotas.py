"""How many tokens of each source: a target, and the quotas that follow from it and the weights.

target    tokens 200M   blocks 97,656 (of seq_len tokens)   documents 50k
          megabytes 800 (of text, 10^6 bytes)
split     valid = floor(target * its fraction), train = the rest
quotas    tokens of each source: its share of the target, as far as it has them

exhausted     a source that has too little
  stop          is an error that says how far the mixture would get
  renormalize   gives all it has; what is missing comes from its domain, then from the other domains, by
                weight
  repeat        gives its documents again, up to max_epochs times; beyond that, an error
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

from tokmill.errors import InputError, RecipeError, plural
from tokmill.packing.mixture import Mixture, has_no_weight

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
    longest: int = 0  # tokens of its longest document
    left: tuple[int, ...] = ()  # tokens of its first passes, where some documents had theirs before

    def capacity(self, passes: int) -> int:
        """Tokens that it can give until each of its documents had so many passes."""
        return sum(self.left[:passes]) + self.tokens * max(passes - len(self.left), 0)


def split_budget(amount: int, splits: Sequence[str], held_out: Mapping[str, Fraction]) -> dict[str, int]:
    """Every split gets its part of one budget, so that together they never exceed it:
    the first has the rest."""
    parts = {name: int(amount * held_out.get(name, 0)) for name in splits[1:]}
    return {splits[0]: amount - sum(parts.values()), **parts}


def largest_budget(holdings: Sequence[Holding], mixture: Mixture, epochs: int = 1) -> int:
    """The tokens that can be mixed before the first source is exhausted."""
    shares = shares_of(holdings, mixture)
    return min(
        (_reach(holding, share, epochs) for holding, share in zip(holdings, shares, strict=True) if share),
        default=0,
    )


def _reach(holding: Holding, share: Fraction, epochs: int) -> int:
    """Each pass by itself: so many passes are as many times one."""
    first = sum(int(tokens / share) for tokens in holding.left[:epochs])
    return first + int(holding.tokens / share) * max(epochs - len(holding.left), 0)


def shares_of(holdings: Sequence[Holding], mixture: Mixture) -> list[Fraction]:
    """What each source should be of the whole; 1 in total,
    unless a domain with a weight has no source with one."""
    return [
        mixture.domains[holding.domain] * _within(holdings, mixture, holding.domain)[holding.name]
        for holding in holdings
    ]


def source_quotas(
    holdings: Sequence[Holding], mixture: Mixture, budget: int, exhausted: Exhausted, max_epochs: int
) -> list[int]:
    """Tokens that each source is to give, `budget` at most in all."""
    epochs = max_epochs if exhausted == "repeat" else 1
    capacities = [holding.capacity(epochs) for holding in holdings]
    if exhausted != "renormalize":
        refuse_empty_domains(holdings, mixture, budget, exhausted, epochs)
        quotas = [int(budget * share) for share in shares_of(holdings, mixture)]
        for holding, quota, capacity in zip(holdings, quotas, capacities, strict=True):
            if quota > capacity:
                reach = largest_budget(holdings, mixture, epochs)
                raise exhausted_error(holding.name, capacity, quota, reach, budget, exhausted, epochs)
        return quotas
    members = {
        name: [
            at
            for at, holding in enumerate(holdings)
            if holding.domain == name and not has_no_weight(mixture.sources, name, holding.name)
        ]
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
    present = {
        holding.domain
        for holding in holdings
        if holding.capacity(epochs) and not has_no_weight(mixture.sources, holding.domain, holding.name)
    }
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


class Exhaustion(NamedTuple):
    """A source that has too little, or a domain that has none, and how far the others would get."""

    name: str
    has: int  # tokens, and so on
    wants: int
    reach: int
    budget: int
    exhausted: Exhausted
    epochs: int

    def error(self, lower: str, *, is_rest: bool = False) -> SourceExhausted:
        """`lower`: the budget that would be met, in words; none would: nothing."""
        left = " left" if is_rest else ""
        times = f" in {self.epochs} epochs" if self.exhausted == "repeat" else ""
        other = (
            "raise `max_epochs`"
            if self.exhausted == "repeat"
            else "set `exhausted: renormalize` or `exhausted: repeat`"
        )
        if not self.has:  # no epoch of nothing is more than nothing
            other = (
                "give it documents, set its weight to 0 (with `mixture: {normalize: true}`), or set a target "
                "and `exhausted: renormalize`"
            )
        return SourceExhausted(
            f"{self.name} is exhausted: it has {plural(self.has, 'token')}{left}{times}, and its weight asks "
            f"for {self.wants:,}; the mixture reaches {self.reach:,} of {plural(self.budget, 'token')} "
            f"({100 * self.reach / self.budget:.1f} %)",
            where="mixture",
            next=f"{other}, or lower the budget to {lower}" if lower else other,
            found=self,
        )

    def met(self, unit: Unit, whole: int, part: int, seq_len: int | None, seen: int) -> int:
        """The largest target of a recipe, in its unit, that would be met; 0: none. `whole` is the one that it
        has, `part` what of it is trained on and was not `seen` before."""
        if unit == "tokens":
            more = self.reach
        elif unit == "blocks":
            assert seq_len, "blocks are as long as a row"
            more = self.reach // seq_len
        else:
            more = part * self.reach // self.budget
        if part + seen == whole:
            return seen + more if more else 0
        # what is held out is rounded down, of two splits at most
        return (seen + more) * whole // (part + seen) - 2 if more > 2 else 0


class SourceExhausted(InputError):
    """Known where it was asked for: to whoever else sees it, it is an `InputError`."""

    def __init__(
        self, what: str, *, where: str = "", next: str = "", found: Exhaustion | None = None
    ) -> None:
        super().__init__(what, where=where, next=next)
        self.found = found


def exhausted_error(
    name: str, has: int, wants: int, reach: int, budget: int, exhausted: Exhausted, epochs: int
) -> SourceExhausted:
    found = Exhaustion(name, has, wants, reach, budget, exhausted, epochs)
    return found.error(plural(reach, "token") if reach else "")


def _within(holdings: Sequence[Holding], mixture: Mixture, domain: str) -> dict[str, Fraction]:
    return mixture.within_domain(domain, {h.name: h.tokens for h in holdings if h.domain == domain})

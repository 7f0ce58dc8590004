"""Weights: how much of the built tokens each domain, and within it each source, should be.

    domains   web 0.7            math 0.3                   add up to 1, or are made to, and that is said
    sources   mdn 0.2  wiki 0.8  gsm8k, proofs: no weights  add up to 1 in each domain; none: by the tokens they have
    shares    0.14     0.56      0.3 * tokens of each / tokens of both

Weights are exact fractions of the decimals that were written: 0.1 is a tenth.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import NamedTuple

from tokmill.errors import RecipeError

LOG = logging.getLogger("tokmill.mixture")

Number = int | float | str | Decimal | Fraction

# Seven places of a weight are enough; what is further off than this is a mistake, not rounding.
_TOLERANCE = Fraction(1, 10**6)

# A build that one domain keeps from using half of what there is deserves one too: more is thrown away than kept.
MIN_USED = Fraction(1, 2)

# A domain with so many times the tokens of another deserves a word.
MAX_IMBALANCE = Fraction(3, 2)


@dataclass(frozen=True)
class Mixture:
    """Checked: weights of domains, and of the sources of those domains that have such weights."""

    domains: Mapping[str, Fraction]
    sources: Mapping[str, Mapping[str, Fraction]] = field(default_factory=dict)

    def within_domain(self, domain: str, tokens: Mapping[str, int]) -> dict[str, Fraction]:
        """The weights of the domain's sources, which have so many tokens each."""
        if domain in self.sources:
            return {name: self.sources[domain].get(name, Fraction(0)) for name in tokens}
        total = sum(tokens.values())
        return {name: Fraction(count, total) if total else Fraction(0) for name, count in tokens.items()}


def natural_mixture(tokens: Mapping[str, int]) -> Mixture:
    """Every domain by the tokens it has: no weights were given, and a budget has to come from somewhere."""
    total = sum(tokens.values())
    return Mixture({name: Fraction(count, total) if total else Fraction(0) for name, count in tokens.items()})


def check_mixture(
    domains: Mapping[str, Number],
    sources: Mapping[str, Mapping[str, Number]],
    known: Mapping[str, Sequence[str]],
    *,
    normalize: bool,
) -> Mixture:
    """`known` are the domains that there are, and the names of their sources."""
    checked = check_weights(domains, list(known), where="mixture.weights", normalize=normalize)
    for domain in sources:
        _refuse_unknown(domain, list(known), "domain", "mixture.sources")
    within = {
        domain: check_weights(
            weights, known[domain], where=f"mixture.sources.{domain}", normalize=normalize, kind="source"
        )
        for domain, weights in sources.items()
    }
    return Mixture(checked, within)


def check_weights(
    weights: Mapping[str, Number],
    known: Sequence[str],
    *,
    where: str,
    normalize: bool = False,
    kind: str = "domain",
) -> dict[str, Fraction]:
    """The weights of the `known` names, in their order, adding up to exactly 1.

    A name that is not known may have the weight 0: what is left out needs no files. Weights with another sum are
    shares of it; a line says so, unless `normalize` says that this is meant.
    """
    exact = {name: _exact(weight, name, where) for name, weight in weights.items()}
    for name, weight in exact.items():
        if weight:
            _refuse_unknown(name, known, kind, where)
    missing = [name for name in known if name not in exact]
    if missing:
        raise RecipeError(
            f"no weight for the {kind} {missing[0]}",
            where=where,
            next=f"give every {kind} a weight; 0 leaves it out",
        )
    total = sum(exact.values(), Fraction(0))
    if total == 0:
        raise RecipeError("all weights are 0", where=where, next=f"give at least one {kind} a weight")
    if not normalize and abs(total - 1) > _TOLERANCE:
        shares = ", ".join(f"{name} {float(exact[name] / total):.7g}" for name in known)
        LOG.warning(
            f"{where}: weights add up to {float(total):.7g}, not to 1; taken as shares of it: {shares}"
        )
    return {name: exact[name] / total for name in known}


def imbalance_warning(tokens: Mapping[str, int]) -> str | None:
    """Two domains of which one has more than 1.5 times the tokens of the other, in words."""
    present = {name: count for name, count in tokens.items() if count}
    if len(present) < 2:
        return None
    largest = max(present, key=lambda name: present[name])
    smallest = min(present, key=lambda name: present[name])
    if present[largest] <= MAX_IMBALANCE * present[smallest]:
        return None
    return (
        f"domain {largest} has {present[largest] / present[smallest]:.1f} times the tokens of {smallest} "
        f"({present[largest]:,} and {present[smallest]:,})"
    )


class Limit(NamedTuple):
    """What ends a build: a domain, or a source of one, that has too little for its part."""

    name: str  # "web", "source mdn"
    has: int  # tokens
    used: int  # tokens of all domains that are built
    at_hand: int

    @property
    def is_starved(self) -> bool:
        return self.used < MIN_USED * self.at_hand

    def __str__(self) -> str:
        return (
            f"{self.name} limits the build to {spelled_share(self.used, self.at_hand)} of the tokens at hand "
            f"({self.used:,} of {self.at_hand:,}): it has {self.has:,}"
        )


def limit_of_weights(sources: Mapping[str, Part], is_weighted: Collection[str]) -> Limit | None:
    """Without a target a mixture ends when one has given all that it has; `is_weighted` are domains whose sources have
    weights of their own, and end one by one."""
    parts: dict[str, list[Part]] = {}
    for source, part in sources.items():
        if part.wanted:
            name = f"source {source}" if part.domain in is_weighted else part.domain
            parts.setdefault(name, []).append(part)
    if not parts:
        return None
    has = {name: sum(part.available for part in own) for name, own in parts.items()}
    wants = {name: sum(part.wanted for part in own) for name, own in parts.items()}
    first = min(parts, key=lambda name: (has[name] / wants[name], name))
    used = sum(part.taken for own in parts.values() for part in own)
    return Limit(first, has[first], used, sum(has.values()))


class Part(NamedTuple):
    """A source in a mixture."""

    domain: str
    wanted: float  # share of the build
    available: int  # tokens
    taken: int


def spelled_share(part: int, whole: int) -> str:
    """Enough places to be told from nothing: 0.04 %, 12 %."""
    return f"{100 * part / whole if whole else 0:.2g} %"


def _exact(weight: Number, name: str, where: str) -> Fraction:
    try:
        # through its decimal: 0.1 in binary is not a tenth
        exact = weight if isinstance(weight, Fraction) else Fraction(Decimal(str(weight)))
    except (InvalidOperation, ValueError, OverflowError):
        exact = Fraction(-1)
    if exact < 0:
        raise RecipeError(
            f"the weight of {name} is {weight}", where=where, next="a weight is a number from 0 up"
        )
    return exact


def _refuse_unknown(name: str, known: Sequence[str], kind: str, where: str) -> None:
    if name not in known:
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)
        raise RecipeError(
            f"no {kind} is called {name}",
            where=where,
            next=f"did you mean {nearest[0]}?" if nearest else f"there is no {kind} at all",
        )

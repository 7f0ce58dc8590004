"""Who ends a build without a target: the domain, or source, that has too little for its part."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fractions import Fraction
from typing import NamedTuple

from tokmill.errors import spelled_share

# A build that one domain keeps from using half of what there is deserves one too:
# more is thrown away than kept.
MIN_USED = Fraction(1, 2)

# A domain with so many times the tokens of another deserves a word.
MAX_IMBALANCE = Fraction(3, 2)


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


STARVED = (
    "find more of it, lower its weight, or set a target with `exhausted: renormalize` or `exhausted: repeat`"
)
UNBALANCED = "find more of it, or give weights instead of `balance: smallest`"

# What there is to build from: once, as often as a score asks for, or what was not trained on before.
AT_HAND, OFFERED, LEFT = "tokens at hand", "tokens at hand, repeats counted", "tokens left"


class Limit(NamedTuple):
    """What ends a build: a domain, or a source of one, that has too little for its part."""

    name: str  # "web", "source mdn"
    has: int  # tokens
    used: int  # tokens of all domains that are built
    at_hand: int
    what: str = AT_HAND

    @property
    def is_starved(self) -> bool:
        return self.used < MIN_USED * self.at_hand

    def __str__(self) -> str:
        return (
            f"{self.name} limits the build to {spelled_share(self.used, self.at_hand)} of the {self.what} "
            f"({self.used:,} of {self.at_hand:,}): it has {self.has:,}"
        )


def limit_of_weights(sources: Mapping[str, Part], is_weighted: Collection[str]) -> Limit | None:
    """Without a target a mixture ends when one has given all that it has;
    `is_weighted` are domains whose sources have weights of their own, and end one by one."""
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

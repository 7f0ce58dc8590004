"""How much of what is built: weights of domains, and of the sources in each.

    domains   web 0.7            math 0.3                   add up to 1, or are made to, with a warning
    sources   mdn 0.2  wiki 0.8  gsm8k, proofs: no weights  add up to 1 in each domain; none: by the tokens
              they have
    shares    0.14     0.56      0.3 * tokens of each / tokens of both

Weights are exact fractions of the decimals that were written: 0.1 is a tenth.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from tokmill.errors import RecipeError

LOG = logging.getLogger("tokmill.mixture")

Number = int | float | str | Decimal | Fraction

# Seven places of a weight are enough; what is further off than this is a mistake, not rounding.
_TOLERANCE = Fraction(1, 10**6)


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


def has_no_weight(sources: Mapping[str, Mapping[str, Fraction]], domain: str, source: str) -> bool:
    """Within a domain whose sources have weights: it may be read for others, and gives nothing."""
    return domain in sources and not sources[domain].get(source)


def natural_mixture(tokens: Mapping[str, int]) -> Mixture:
    """Every domain by the tokens it has: no weights were given, and a budget has to come from somewhere."""
    total = sum(tokens.values())
    return Mixture({name: Fraction(count, total) if total else Fraction(0) for name, count in tokens.items()})


def check_weights(
    weights: Mapping[str, Number],
    known: Sequence[str],
    *,
    where: str,
    normalize: bool = False,
    kind: str = "domain",
) -> dict[str, Fraction]:
    """The weights of the `known` names, in their order, adding up to exactly 1.

    A name that is not known may have the weight 0: what is left out needs no files.
    Weights with another sum are shares of it; a line says so, unless `normalize` says that this is meant.
    """
    exact = {name: _exact(weight, name, where) for name, weight in weights.items()}
    for name, weight in exact.items():
        if weight:
            refuse_unknown(name, known, kind, where)
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


def refuse_unknown(name: str, known: Sequence[str], kind: str, where: str) -> None:
    if name not in known:
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)
        raise RecipeError(
            f"no {kind} is called {name}",
            where=where,
            next=f"did you mean {nearest[0]}?" if nearest else f"there is no {kind} at all",
        )

"""How much of what is built: weights of domains and sources, a target, the quotas that follow,
and equal domains.

    domains   web 0.7            math 0.3                   add up to 1, or are made to, with a warning
    sources   mdn 0.2  wiki 0.8  gsm8k, proofs: no weights  add up to 1 in each domain; none: by the tokens
              they have
    shares    0.14     0.56      0.3 * tokens of each / tokens of both

    target    tokens 200M   blocks 97,656 (of seq_len tokens)   documents 50k
              megabytes 800 (of text, 10^6 bytes)
    split     valid = floor(target * its fraction), train = the rest
    quotas    tokens of each source: its share of the target, as far as it has them

    exhausted     a source that has too little
      stop          is an error that says how far the mixture would get
      renormalize   gives all it has; what is missing comes from its domain, then from the other domains, by
                    weight
      repeat        gives its documents again, up to max_epochs times; beyond that, an error

    balance       the larger domains lose rows, chosen by a keyed hash, until all have as many as the smallest
      row of the domain ─ keyed hash, its number in the low bits ─> mark
                                                                    kept: the rows with the smallest marks
      marks ─ counted by their leading bits, then by the next, … ─> the largest mark that is kept

Weights are exact fractions of the decimals that were written: 0.1 is a tenth. A mark follows from the number
of a row alone, so nothing is stored: one number for each domain decides, and finding it takes a table of 512
KB, whatever the number of rows.
"""

from __future__ import annotations

import difflib
import hashlib
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import InputError, RecipeError, plural
from tokmill.kernels.mixing import mark_shuffle
from tokmill.packing.plan import Plan, pieces_of

# --- weights ---

LOG = logging.getLogger("tokmill.mixture")

Number = int | float | str | Decimal | Fraction

# Seven places of a weight are enough; what is further off than this is a mistake, not rounding.
_TOLERANCE = Fraction(1, 10**6)

# A build that one domain keeps from using half of what there is deserves one too:
# more is thrown away than kept.
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


def spelled_share(part: int, whole: int) -> str:
    """Enough places to be told from nothing: 0.04 %, 12 %."""
    percent = 100 * part / whole if whole else 0
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"


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


# --- target and quotas ---

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


# --- equal domains ---

# Marks are made so many at a time, and narrowed down by so many bits in each look.
_BATCH_ROWS = 1 << 20
_LOOK_BITS = 16


class Balance:
    """As many rows of every group as the smallest has, of groups of so many `rows`.
    One without a row does not count."""

    def __init__(self, rows: Sequence[int], seed: int) -> None:
        self._rows = list(rows)
        fewest = min((count for count in rows if count), default=0)
        self._keys = [_key(seed, group) for group in range(len(rows))]
        self._bounds = [
            _largest_kept(count, fewest, key) for count, key in zip(rows, self._keys, strict=True)
        ]

    def kept_rows(self, groups: NDArray[np.integer], before: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of rows of these groups, `before` each group's first of which there were so many of it:
        those that stay."""
        is_kept = np.zeros(len(groups), np.bool_)
        for group in np.unique(groups).tolist():
            mine = np.flatnonzero(groups == group)
            first = int(before[group])
            marks = _marks(first, first + len(mine), self._rows[group], self._keys[group])
            is_kept[mine] = marks <= np.uint64(self._bounds[group])
        return np.flatnonzero(is_kept)


def row_groups(plan: Plan, groups: NDArray[np.integer]) -> NDArray[np.int32]:
    """The group of each row; a row of two groups is our bug."""
    pieces = pieces_of(plan)
    counts = np.diff(pieces.row_begins)
    assert (counts > 0).all(), f"{plan.layout}: a row holds nothing"
    of_pieces = np.asarray(groups, np.int32)[pieces.document]
    of_rows = of_pieces[pieces.row_begins[:-1]]
    assert np.array_equal(of_pieces, np.repeat(of_rows, counts)), f"{plan.layout}: a row mixes groups"
    return of_rows


def _largest_kept(rows: int, kept: int, key: int) -> int:
    """The `kept`-th smallest mark of all rows: no two are equal."""
    if not rows:
        return 0
    assert 0 < kept <= rows, f"{kept} of {rows} rows"
    prefix, fixed_bits, rank = 0, 0, kept
    while fixed_bits < 64:
        shift = 64 - fixed_bits - _LOOK_BITS
        counts = np.zeros(1 << _LOOK_BITS, np.int64)
        for marks in _all_marks(rows, key):
            if fixed_bits:
                marks = marks[marks >> np.uint64(64 - fixed_bits) == np.uint64(prefix)]
            digits = (marks >> np.uint64(shift)) & np.uint64((1 << _LOOK_BITS) - 1)
            counts += np.bincount(digits.astype(np.int64), minlength=len(counts))
        ends = np.cumsum(counts)
        digit = int(np.searchsorted(ends, rank, "left"))
        rank -= int(ends[digit] - counts[digit])
        prefix, fixed_bits = prefix << _LOOK_BITS | digit, fixed_bits + _LOOK_BITS
    return prefix


def _all_marks(rows: int, key: int) -> Iterator[NDArray[np.uint64]]:
    for first in range(0, rows, _BATCH_ROWS):
        yield _marks(first, min(first + _BATCH_ROWS, rows), rows, key)


def _marks(first: int, stop: int, rows: int, key: int) -> NDArray[np.uint64]:
    return mark_shuffle(np.arange(first, stop, dtype=np.uint64), key, first, rows)


def _key(seed: int, group: int) -> int:
    purpose = f"tokmill.balance.1 {seed} {group}"
    return int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "big")

"""What is asked of a mixture, and what that comes to for one split: its part of the target, the share of each
source, and which budget an error advises.

A target is for all splits together: each has its part. Held-out splits take the same weights as far as they
go: what they lack is renormalized, never repeated, and never stops a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Literal

import msgspec

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.history import Continues
from tokmill.artifacts.manifest import Json
from tokmill.errors import plural
from tokmill.packing.limits import AT_HAND, LEFT, OFFERED, Limit, Part, limit_of_weights
from tokmill.packing.mixture import Mixture, has_no_weight, natural_mixture
from tokmill.packing.quotas import Exhausted, Holding, SourceExhausted, Target, Unit, split_budget
from tokmill.stages.build.continued import seen_of_target, what_is_left
from tokmill.stages.build.scored import ByScore
from tokmill.stages.build.staged import StageOptions
from tokmill.stages.split.options import HashSplit, SplitOptions


class MixtureOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`mixture` of a recipe. Weights are exact fractions, as text: "1/4"."""

    domains: dict[str, str] | None  # None: by what they have
    sources: dict[str, dict[str, str]]  # within a domain
    domain_of: dict[str, str]
    target: tuple[Unit, int] | None
    exhausted: Exhausted
    max_epochs: int
    order: Literal["shuffle", "corpus"]
    held_out: Literal["mixed", "whole"] = "mixed"
    seed: int
    seq_len: int | msgspec.UnsetType = msgspec.UNSET  # of a target in blocks
    # of a target in blocks, told so that mixtures of before, which came short of them, are made again
    met: Literal["from above"] | msgspec.UnsetType = msgspec.UNSET
    chosen: ByScore | msgspec.UnsetType = msgspec.UNSET  # of training, where a score says how often
    continues: Continues | msgspec.UnsetType = msgspec.UNSET  # of training, what was seen before
    stage: StageOptions | msgspec.UnsetType = msgspec.UNSET  # one of several, which go through the sources

    @property
    def passes(self) -> int:
        """That a document may have, in all."""
        return self.max_epochs if self.exhausted == "repeat" else 1


class SplitMixtureOptions(MixtureOptions, frozen=True, kw_only=True):
    """The same for one split."""

    is_held_out: bool
    amount: int | None  # its part of the target
    shards: tuple[tuple[int, str], ...]  # number and source
    least: int | msgspec.UnsetType | None = msgspec.UNSET  # of a selection: the smallest key that is in it


def targets_of_splits(
    options: MixtureOptions, splits: list[str], upstream: Mapping[str, Artifact]
) -> dict[str, int]:
    """The part of the target that each split has: by the fractions of the split,
    or by the tokens that there are."""
    if options.target is None:
        return {}
    unit, amount = options.target
    rule: SplitOptions = upstream["split"].manifest.options(SplitOptions)
    if isinstance(rule, HashSplit):
        shares = {"valid": rule.valid_fraction, "test": rule.test_fraction}
        held_out = {name: Fraction(shares[name]) for name in splits[1:]}
    else:
        tokens = upstream["tokens"].manifest.counts["tokens"]
        total = sum(tokens.get(name, 0) for name in splits) or 1
        held_out = {name: Fraction(tokens.get(name, 0), total) for name in splits[1:]}
    parts = split_budget(amount, splits, held_out)
    if options.continues:
        seq_len = None if options.seq_len is msgspec.UNSET else options.seq_len
        parts[splits[0]] = what_is_left(parts[splits[0]], unit, seq_len, options.continues)
    return parts


def mixture_for(options: SplitMixtureOptions, holdings: list[Holding]) -> Mixture:
    """Shares of domains, and of sources within them. Where nobody asked for any they are natural."""
    within = {
        domain: {name: Fraction(weight) for name, weight in weights.items()}
        for domain, weights in options.sources.items()
    }
    wanted = _wanted(options)
    tokens = dict.fromkeys((holding.domain for holding in holdings), 0)
    weighted = [one for one in holdings if not has_no_weight(within, one.domain, one.name)]
    for holding, count in zip(weighted, _natural(options, weighted, wanted), strict=True):
        tokens[holding.domain] += count
    natural = natural_mixture(tokens)
    if options.continues:  # sources go by what they have left, as domains do
        asked = natural.domains if options.domains is None else options.domains
        for domain in [name for name in tokens if name not in within]:
            own = [holding for holding in holdings if holding.domain == domain]
            has = _natural(options, own, int(wanted * Fraction(asked.get(domain, 0))))
            whole = sum(has) or 1
            within[domain] = {one.name: Fraction(count, whole) for one, count in zip(own, has, strict=True)}
    if options.domains is None:
        return replace(natural, sources=within)
    domains = {name: Fraction(weight) for name, weight in options.domains.items()}
    if options.is_held_out:
        present = {name: weight for name, weight in domains.items() if name in tokens}
        total = sum(present.values())
        domains = {name: weight / total for name, weight in present.items()} if total else present
    return Mixture(domains, within)


def _natural(options: SplitMixtureOptions, holdings: list[Holding], wanted: int) -> list[int]:
    """What each has, for shares that nobody asked for. In the rest of a run, what it has left: until each
    document had as many passes as so many tokens take of all, so that the whole run has natural shares."""
    if options.continues:
        for passes in range(1, options.passes + 1):
            left = [holding.capacity(passes) for holding in holdings]
            if sum(left) >= max(wanted, 1):
                return left
    return [holding.tokens for holding in holdings]


def _wanted(options: SplitMixtureOptions) -> int:
    """Tokens, where the target says so."""
    if options.target is None or options.amount is None:
        return 0
    seq_len = None if options.seq_len is msgspec.UNSET else options.seq_len
    return Target(options.target[0], options.amount).in_tokens(seq_len) or 0


def of_whole_target(error: SourceExhausted, options: SplitMixtureOptions) -> SourceExhausted:
    """The budget that it advises is the target of the recipe: of all splits, and of the whole run."""
    found = error.found
    if found is None or options.target is None or options.amount is None:
        return error
    unit, whole = options.target
    seq_len = None if options.seq_len is msgspec.UNSET else options.seq_len
    continues = options.continues or None
    seen = seen_of_target(unit, seq_len, continues) if continues is not None else 0
    met = found.met(unit, whole, options.amount, seq_len, seen)
    return found.error(plural(met, unit.removesuffix("s")) if met > 0 else "", is_rest=continues is not None)


def limit_of_mixture(options: MixtureOptions, facts: Json | None) -> Limit | None:
    """Who ended the mixture of a split, as its manifest tells it; None where a target did."""
    if options.target is not None or not facts:
        return None
    sources: Json = facts["sources"]
    at_hand = "left" if options.continues else "available"
    if not all(at_hand in told for told in sources.values()):
        return None  # an earlier version did not write it down
    parts = {
        name: Part(options.domain_of[name], told["wanted"], told[at_hand], told["tokens"])
        for name, told in sources.items()
    }
    limit = limit_of_weights(parts, options.sources)
    if limit is None:
        return None
    return limit._replace(what=LEFT if options.continues else OFFERED if options.chosen else AT_HAND)

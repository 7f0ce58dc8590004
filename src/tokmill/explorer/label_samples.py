"""Which documents to look at next: drawn at random, nearest to a threshold, or in dispute between rules.

    random         in an order that the seed and the position give; with a rule, among those that it drops
    border         half on each side of the rule's threshold, nearest first
    disagreement   one rule drops it and all others are far from it, and those with the worst margins of the
                   documents that all rules keep, by turns

Margins of different measures are compared by their ranks among CONSIDERED documents: characters and shares
have no common unit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Json
from tokmill.errors import InputError
from tokmill.explorer.described import list_rules
from tokmill.explorer.site import Site

CONSIDERED = 200_000  # of documents whose margins are ranked: a sort of as many takes 20 ms for each rule
_STEP = 0x9E3779B97F4A7C15

Margins = NDArray[np.float64]


class Bound(NamedTuple):
    source: str
    measure: str
    keep: str
    threshold: float


class Rule(NamedTuple):
    """All that is called so: each source may have another threshold, of another measure, or several."""

    name: str
    bounds: list[Bound]


def rules_of(site: Site) -> dict[str, Rule]:
    found: dict[str, Rule] = {}
    for told in list_rules(site):
        if told["step"] == "dedup":  # a document alone does not say whether it goes
            continue
        bound = Bound(told["source"], told["measure"], told["keep"], float(told["threshold"]))
        found.setdefault(told["name"], Rule(told["name"], [])).bounds.append(bound)
    return found


def find_rule(site: Site, name: str | None) -> Rule:
    rules = rules_of(site)
    if name not in rules:
        raise InputError(
            f"no rule is called {(name or '')[:80]}",
            where=site.location,
            next=f"one of: {', '.join(rules) or 'the recipe has none'}",
        )
    return rules[name]


def margins_of(site: Site, rule: Rule) -> Margins:
    """Of every document, by the bound that it is nearest to breaking, or farthest beyond: below zero, the
    rule drops it; NaN where it was not measured, or has no such rule."""
    columns = site.columns
    margins = np.full(columns.documents, np.nan)
    for measure in dict.fromkeys(bound.measure for bound in rule.bounds):
        numbers: Margins = columns.whole(measure).values.to_numpy(zero_copy_only=False).astype(np.float64)
        for number, shard in enumerate(site.run.shards):
            own = slice(int(columns.starts[number]), int(columns.starts[number + 1]))
            for bound in rule.bounds:
                if (bound.source, bound.measure) == (shard.source, measure):
                    away = numbers[own] - bound.threshold
                    margins[own] = np.fmin(margins[own], -away if bound.keep == "max" else away)
    return margins


def draw_sample(
    site: Site, kind: str, rule: str | None, count: int, seed: int, labelled: Callable[[Json], bool]
) -> list[Json]:
    """Documents without a label, by name and place."""
    kinds = {"random": _random, "border": _border, "disagreement": _disagreement}
    if kind not in kinds:
        raise InputError(f"no sample is called {kind[:40]}", where="kind", next=f"one of: {', '.join(kinds)}")
    drawn: list[Json] = []
    order = kinds[kind](site, rule, seed)
    for first in itertools.count(0, 4 * count):
        piece = order[first : first + 4 * count].tolist()
        if not piece or len(drawn) >= count:
            return drawn[:count]
        drawn += [told for one in site.named(piece) if not labelled(told := one.as_json())]
    raise AssertionError("a piece is empty at some time")


def _random(site: Site, rule: str | None, seed: int) -> NDArray[np.int64]:
    positions = np.arange(site.columns.documents, dtype=np.int64)
    if rule:
        positions = positions[margins_of(site, find_rule(site, rule)) < 0]
    mixed = _mix(positions.astype(np.uint64) + np.uint64(seed * _STEP % (1 << 64)))
    return positions[np.argsort(mixed, kind="stable")]


def _border(site: Site, rule: str | None, seed: int) -> NDArray[np.int64]:
    margins = margins_of(site, find_rule(site, rule))
    dropped, kept = np.flatnonzero(margins < 0), np.flatnonzero(margins >= 0)
    return _by_turns(
        [
            dropped[np.argsort(-margins[dropped], kind="stable")],
            kept[np.argsort(margins[kept], kind="stable")],
        ]
    )


def _disagreement(site: Site, rule: str | None, seed: int) -> NDArray[np.int64]:
    rules = rules_of(site)
    if len(rules) < 2:
        raise InputError(
            "only rules that are several can disagree", where=site.location, next="draw a random sample"
        )
    considered = _random(site, None, seed)[:CONSIDERED]
    margins = np.stack([margins_of(site, one)[considered] for one in rules.values()])
    fails = margins < 0
    ranks = np.stack([_ranks(own) for own in margins])
    others = np.where(fails | np.isnan(margins), np.nan, ranks)
    measured = np.isfinite(others).sum(axis=0)
    mean = np.nansum(others, axis=0) / np.maximum(measured, 1)
    alone = np.flatnonzero((fails.sum(axis=0) == 1) & (measured > 0))
    passed = np.flatnonzero(~fails.any(axis=0) & (measured > 0))
    return _by_turns(
        [
            considered[alone[np.argsort(-mean[alone], kind="stable")]],
            considered[passed[np.argsort(mean[passed], kind="stable")]],
        ]
    )


def _ranks(values: Margins) -> Margins:
    """From 0, the smallest, to 1; NaN where there is none."""
    measured = np.flatnonzero(np.isfinite(values))
    ranks = np.full(len(values), np.nan)
    ranks[measured[np.argsort(values[measured], kind="stable")]] = np.linspace(0, 1, max(len(measured), 1))[
        : len(measured)
    ]
    return ranks


def _by_turns(lists: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """First of the one, first of the other, …; what is left of the longer at the end."""
    turns = np.concatenate([np.arange(len(own)) * len(lists) + at for at, own in enumerate(lists)])
    return np.concatenate(list(lists))[np.argsort(turns, kind="stable")].astype(np.int64)


def _mix(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64: neighbours get numbers that have nothing to do with each other."""
    mixed = numbers + np.uint64(_STEP)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def labels_of_dropped(site: Site, rule: Rule, labelled: Iterable[tuple[str, int]]) -> list[str]:
    """Of documents with a label, given with their positions, the labels of those that the rule drops."""
    pairs: list[tuple[str, int]] = list(labelled)
    margins: Any = margins_of(site, rule)[[position for _, position in pairs]]
    return [label for (label, _), margin in zip(pairs, margins.tolist(), strict=True) if margin < 0]

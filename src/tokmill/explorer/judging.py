"""What the rules of a step decide about every document: out for good, breaks no rule, or just one.

    clean    measures, marks, ledgers             rules of the sources
    scores   percentiles, marks                   rules on percentiles, of who was cleaned
      ─ judged once ─> a byte for each document
    name of a rule ─ values of who breaks no other rule, in order, by source ─> Side

Who breaks another rule stays out wherever this one is put, so the answer is that of `tokmill whatif`: about
one step alone. A source may have several rules of one name, of the text before and after line edits: they
move together, and the value of a document is the one that is the first to break its rule.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.audit.bounds import claimed_otherwise, columns_by_label, judged_marks, rules_of
from tokmill.audit.opened import ShardTables
from tokmill.clean.rules import BOUNDS, Rule, columns_of
from tokmill.explorer.columns import THREADS
from tokmill.explorer.site import Site
from tokmill.stages.ranking import RankOptions

# what a document is to the rules of its source: the number of the only name whose rules it breaks, or one of
# these
_NONE, _OUT = np.uint8(254), np.uint8(255)
MAX_RULES = 254
_JUDGED_AT_ONCE = 100  # shards


class Side(NamedTuple):
    """The documents of one source that only rules of this name decide about, in the order of their values."""

    rules: list[Rule]
    values: NDArray[Any]
    positions: NDArray[np.uint32]
    kept_before: NDArray[np.uint32]  # of each place in that order: how many before it are kept now

    @property
    def bound(self) -> str:
        return self.rules[0].bound

    def place(self, threshold: float) -> int:
        """Of a `min`, how many are below it; of a `max`, how many are not above it."""
        side: Literal["left", "right"] = "left" if self.bound == "min" else "right"
        return int(np.searchsorted(self.values, threshold, side=side))

    def moved(self, threshold: float) -> tuple[int, int]:
        """How many would come back, and how many would leave."""
        at = self.place(threshold)
        below, kept_below = at, int(self.kept_before[at])
        above, kept_above = len(self.values) - at, int(self.kept_before[-1]) - kept_below
        if self.bound == "min":
            return above - kept_above, kept_below
        return below - kept_below, kept_above

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes + self.positions.nbytes + self.kept_before.nbytes)


class Judging:
    """Of one step, by the rules of each source."""

    step = "clean"
    _table = "measures"

    def __init__(self, site: Site, rules: Mapping[str, Sequence[Rule]]) -> None:
        self._site = site
        self.rules = {source: list(own) for source, own in rules.items()}
        self._only: NDArray[np.uint8] | None = None
        self._kept: dict[str, int] = {}

    def column_name(self, rule: Rule) -> str:
        """Of the column that the explorer has."""
        return self._site.columns.measured_name(rule.column)

    def find(self, name: str) -> dict[str, list[Rule]]:
        """By source that has such rules. `words.max` of a measure without one: all keep to it."""
        found = {source: self._find(source, own, name) for source, own in self.rules.items()}
        return {source: rules for source, rules in found.items() if rules}

    def _find(self, source: str, rules: list[Rule], name: str) -> list[Rule]:
        known = [rule for rule in rules if rule.name == name]
        label, _, bound = name.rpartition(".")
        column = self._measured(source).get(label)
        if known or column is None or bound not in BOUNDS:
            return known
        return [Rule(name, column, bound, -np.inf if bound == "min" else np.inf, name)]

    def _measured(self, source: str) -> dict[str, str]:
        return columns_by_label(self._site.columns.measured_of(source))

    @property
    def kept(self) -> int:
        """Documents that the step keeps now."""
        self._judged()
        return sum(self._kept.values())

    def side(self, source: str, rules: list[Rule]) -> Side:
        """Of rules of one name."""
        columns, only = self._site.columns, self._judged()
        numbers = [at for at, shard in enumerate(columns.shards) if shard.source == source]
        if not numbers:
            return Side(rules, np.zeros(0), np.zeros(0, np.uint32), np.zeros(1, np.uint32))
        first, stop = int(columns.starts[numbers[0]]), int(columns.starts[numbers[-1] + 1])
        own = only[first:stop]
        number = _numbers(self.rules[source]).get(rules[0].name, _NONE)
        chosen = np.flatnonzero((own == _NONE) | (own == number))
        values = self._values_of(rules, first, stop)[chosen]
        order = stable_order(values)
        chosen = chosen[order]
        kept_before = np.zeros(len(chosen) + 1, np.uint32)
        np.cumsum(own[chosen] == _NONE, out=kept_before[1:])
        return Side(rules, values[order], (chosen + first).astype(np.uint32), kept_before)

    def _values_of(self, rules: list[Rule], first: int, stop: int) -> NDArray[Any]:
        """Of several measures the one that is the first to break its rule."""
        names = dict.fromkeys(self.column_name(rule) for rule in rules)
        wholes = [self._site.columns.whole(name).values for name in names]
        values = [np.asarray(whole.slice(first, stop - first).fill_null(0)) for whole in wholes]
        worst = np.minimum if rules[0].bound == "min" else np.maximum
        return functools.reduce(worst, values)

    def _judged(self) -> NDArray[np.uint8]:
        """Of each document, by all rules of its source; read once."""
        if self._only is None:
            groups = [
                (source, some[first : first + _JUDGED_AT_ONCE])
                for source, own in itertools.groupby(self._site.columns.shards, lambda shard: shard.source)
                for some in [list(own)]
                for first in range(0, len(some), _JUDGED_AT_ONCE)
            ]
            with ThreadPoolExecutor(THREADS) as pool:
                found = list(pool.map(lambda group: self._judge(*group), groups))
            kept = dict.fromkeys(self.rules, 0)
            for (source, _), (_, some_kept) in zip(groups, found, strict=True):
                if source in kept:
                    kept[source] += some_kept
            parts = [own for own, _ in found]
            self._kept, self._only = kept, np.concatenate(parts) if parts else np.zeros(0, np.uint8)
        return self._only

    def _judge(self, source: str, shards: Sequence[ShardTables]) -> tuple[NDArray[np.uint8], int]:
        """Some shards of one source, and how many the step kept."""
        of = self._site.columns
        if source not in self.rules:  # not cleaned yet
            return np.full(sum(shard.documents.rows for shard in shards), _OUT, np.uint8), 0
        cleaned = self._site.run.artifacts[f"clean/{source}"]
        marks = of.table("marks", shards, judged_marks(cleaned))
        only = self._broken(source, shards)
        only[claimed_otherwise(cleaned, marks, *of.left_clean(shards))] = _OUT
        return only, int(np.count_nonzero(np.asarray(marks.column("kept"))))

    def _broken(self, source: str, shards: Sequence[ShardTables]) -> NDArray[np.uint8]:
        """By the rules alone."""
        rules = self.rules[source]
        assert len(rules) < MAX_RULES, "a byte says which"
        only = np.full(sum(shard.documents.rows for shard in shards), _NONE, np.uint8)
        columns = self._values(shards, {rule.column: self.column_name(rule) for rule in rules})
        numbers = _numbers(rules)
        for rule in rules:
            broken, number = rule.breaks(columns[rule.column]), numbers[rule.name]
            before = only[broken]
            only[broken] = np.where((before == _NONE) | (before == number), number, _OUT)
        return only

    def _values(self, shards: Sequence[ShardTables], names: Mapping[str, str]) -> dict[str, NDArray[Any]]:
        """Of some shards; what is in memory is not read again."""
        of = self._site.columns
        first = of.position_of(shards[0].name, 0)
        rows = sum(shard.documents.rows for shard in shards)
        found: dict[str, NDArray[Any]] = {}
        for raw, name in names.items():
            whole = of.loaded(name)
            if whole is not None:
                found[raw] = np.asarray(whole.values.slice(first, rows).fill_null(0))
        others = [raw for raw in names if raw not in found]
        return found | (columns_of(of.table(self._table, shards, others)) if others else {})


class RankJudging(Judging):
    """Percentiles are of what cleaning kept: a bound on one of them changes no other."""

    step = "scores"
    _table = "percentiles"

    def column_name(self, rule: Rule) -> str:
        return rule.column

    def _measured(self, source: str) -> dict[str, str]:
        return {name: name for name, column in self._site.columns.known.items() if column.step == "scores"}

    def _judge(self, source: str, shards: Sequence[ShardTables]) -> tuple[NDArray[np.uint8], int]:
        only = self._broken(source, shards)
        came = np.asarray(self._site.columns.table("marks", shards, ["kept"]).column("kept"))
        only[~came] = _OUT
        return only, int(np.count_nonzero(only == _NONE))


def _numbers(rules: Sequence[Rule]) -> dict[str, np.uint8]:
    """By name: rules of one name have one number."""
    return {name: np.uint8(at) for at, name in enumerate(dict.fromkeys(rule.name for rule in rules))}


def make_judgings(site: Site) -> list[Judging]:
    """Of every step that has rules with a threshold for each document."""
    rules = {
        step.removeprefix("clean/"): rules_of(cleaned) for step, cleaned in site.run.of_kind("clean").items()
    }
    found = [Judging(site, rules)]
    scores = site.run.artifacts.get("scores")
    if scores is not None and scores.manifest.entries("percentiles"):
        options: RankOptions = scores.manifest.options(RankOptions)
        found.append(RankJudging(site, {source: options.rules.get(source, ()) for source in rules}))
    return found


_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


def stable_order(values: NDArray[Any]) -> NDArray[np.int64]:
    """As `np.argsort(values, kind="stable")`, in a fifth of the time for whole numbers of four bytes and half
    of it for others: keys with the place in their low half are sorted, and not places by keys."""
    places = np.arange(len(values), dtype=np.uint64)
    if values.dtype == np.int32:
        keys = (values.astype(np.int64) + (1 << 31)).astype(np.uint64)
        order: NDArray[np.int64] = (np.sort(keys << _HALF | places) & _LOW).astype(np.int64)
        return order
    sign = np.uint64(1 << 63)
    if np.issubdtype(values.dtype, np.integer):
        keys = values.astype(np.int64).view(np.uint64) ^ sign
    else:
        numbers = values.astype(np.float64) + 0.0  # -0.0 is 0.0
        numbers[np.isnan(numbers)] = np.nan  # of either sign
        bits = numbers.view(np.uint64)
        keys = np.where(bits >= sign, ~bits, bits | sign)
    by_low = np.sort(keys << _HALF | places) & _LOW
    by_high = np.sort((keys[by_low] & ~_LOW) | places) & _LOW
    return np.asarray(by_low[by_high], np.int64)

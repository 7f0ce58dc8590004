"""Sources that lose most of their documents to one rule of cleaning, or to one kind of copy, are told while a run works.

counts of clean, or of dedup by shard ─ by source and reason ─> losses over `dedup.warn_source_loss`
                                        ledgers ─> one id of each, to look up
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import pyarrow.compute as pc

from tokmill.artifacts.manifest import Json
from tokmill.clean.examine import CleanOptions
from tokmill.packing.mixture import spelled_share
from tokmill.storage.tables import load_table

Counts = Mapping[
    str, tuple[int, Mapping[str, int]]
]  # source -> documents that came, and of them dropped by reason


class Loss(NamedTuple):
    """To one reason; or to several together, where none of them is enough to be told by itself."""

    source: str
    reasons: tuple[str, ...]  # the one that took most first
    rules: tuple[str, ...]  # that drop for the first
    lost: int
    came: int
    example: str  # the first document that went for the first reason

    @property
    def to(self) -> str:
        first = self.reasons[0] + (f" ({', '.join(self.rules)})" if self.rules else "")
        return first if len(self.reasons) == 1 else f"{len(self.reasons)} reasons, {first} first of them"

    def __str__(self) -> str:
        return (
            f"{self.source} loses {spelled_share(self.lost, self.came)} of its documents ({self.lost:,} of "
            f"{self.came:,}) to {self.to}; one of them is {self.example}"
        )


def find_losses(
    counts: Counts,
    limit: Decimal | None,
    ledgers: Iterable[Path],
    rules: Mapping[str, tuple[str, ...]] | None = None,
) -> list[Loss]:
    """Of more than this share of a source; in the order of the sources, the largest first."""
    over: list[Loss] = []
    for source, (came, dropped) in counts.items() if limit is not None else ():
        ranked = sorted(dropped, key=lambda reason: (-dropped[reason], reason))
        most = Fraction(limit) * came  # type: ignore[arg-type]
        alone: list[tuple[str, ...]] = [(reason,) for reason in ranked if dropped[reason] > most]
        for reasons in alone or ([tuple(ranked)] if sum(dropped.values()) > most else []):
            lost = sum(dropped[reason] for reason in reasons)
            over.append(Loss(source, reasons, (rules or {}).get(reasons[0], ()), lost, came, ""))
    examples = _examples([(loss.source, loss.reasons[0]) for loss in over], ledgers)
    return [loss._replace(example=examples.get((loss.source, loss.reasons[0]), "")) for loss in over]


def cleaning_losses(
    options: CleanOptions, counts: Json, limit: Decimal | None, ledgers: Iterable[Path]
) -> list[Loss]:
    """Of one source."""
    rules: dict[str, tuple[str, ...]] = {}
    for rule in options.sieve.rules:
        rules[rule.reason] = (*rules.get(rule.reason, ()), rule.name)
    return find_losses({options.source: (counts["in"], counts["dropped"])}, limit, ledgers, rules)


def by_source(counted: Iterable[tuple[str, Json]]) -> Counts:
    """Of shards: the source of each, and its counts."""
    found: dict[str, tuple[int, dict[str, int]]] = {}
    for source, counts in counted:
        came, dropped = found.get(source, (0, {}))
        added = {
            reason: dropped.get(reason, 0) + counts["dropped"].get(reason, 0)
            for reason in {**dropped, **counts["dropped"]}
        }
        found[source] = came + counts["in"], added
    return found


def _examples(wanted: list[tuple[str, str]], ledgers: Iterable[Path]) -> dict[tuple[str, str], str]:
    """The first id of each source and reason; no more ledgers are read than that takes."""
    found: dict[tuple[str, str], str] = {}
    paths: Iterator[Path] = iter(ledgers)
    while len(found) < len(wanted) and (path := next(paths, None)) is not None:
        table = load_table(path, ["source", "reason", "doc_id", "verdict"])
        for source, reason in wanted:
            if (source, reason) not in found:
                is_it = pc.and_(
                    pc.equal(table.column("source"), source), pc.equal(table.column("reason"), reason)
                )
                at = pc.index(pc.and_(is_it, pc.equal(table.column("verdict"), "drop")), True).as_py()
                if at >= 0:
                    found[source, reason] = table.column("doc_id")[at].as_py()
    return found

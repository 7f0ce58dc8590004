"""What would change if a threshold were another: of a rule of cleaning, or of near duplicates.

    rules of cleaning      measures of every shard that is cleaned                     tokmill.audit.bounds
    score.edu.percentile   percentiles of every shard                                  tokmill.audit.ranks
    dedup.near.threshold   members of every cluster of a run that was deduplicated     tokmill.audit.likeness

A run need not be finished. The answer is about that step alone: what comes after it may decide otherwise.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.manifest import Json
from tokmill.audit.bounds import NEAR_THRESHOLD, Mover, move_bounds
from tokmill.audit.likeness import move_threshold
from tokmill.audit.opened import find_artifacts
from tokmill.audit.ranks import is_of_percentile, move_percentiles
from tokmill.errors import InputError, RecipeError


@short_repr
class WhatIf(NamedTuple):
    step: str  # "clean", "scores", "dedup": after it
    kept_now: int
    kept_then: int
    chars_now: int
    chars_then: int
    movers: list[Mover]
    examples: int
    missing: tuple[str, ...] = ()  # sources that are not cleaned yet: nothing is known of them

    def as_json(self) -> Json:
        return {
            "step": self.step,
            "kept": {"now": self.kept_now, "then": self.kept_then},
            "chars": {"now": self.chars_now, "then": self.chars_then},
            "changes": self.changes(),
            "examples": [mover._asdict() for mover in self.nearest()],
            "missing": list(self.missing),
        }

    def changes(self) -> list[Json]:
        """By source, direction and reason."""
        docs: Counter[tuple[str, str, str]] = Counter()
        chars: Counter[tuple[str, str, str]] = Counter()
        for mover in self.movers:
            key = (mover.source, mover.becomes, mover.reason)
            docs[key] += 1
            chars[key] += mover.chars
        return [
            {"source": s, "becomes": b, "reason": r, "docs": docs[s, b, r], "chars": chars[s, b, r]}
            for s, b, r in sorted(docs)
        ]

    def nearest(self) -> list[Mover]:
        by_distance = sorted(self.movers, key=lambda mover: (mover.distance, mover.source, mover.doc_id))
        return by_distance[: self.examples]


def whatif(directory: str | Path, set: Mapping[str, float] | Sequence[str], examples: int = 8) -> WhatIf:
    """Which documents would change sides with other thresholds. Of rules, from the measures alone:
    no text is read.

    Thresholds by rule: {"gopher-quality.min_words": 30}, or ["gopher-quality.min_words=30"]; of one domain or
    source, "domains.web.gopher-quality.min_words"; of near duplicates, "dedup.near.threshold" by itself.
    """
    asked = set if isinstance(set, Mapping) else dict(map(_threshold, set))
    found = find_artifacts(directory)
    if not found.of_kind("clean"):
        raise InputError(
            "no source of this run is cleaned yet", where=str(directory), next="run the recipe: it resumes"
        )
    ranked = [name for name in asked if is_of_percentile(name)]
    if ranked and len(ranked) < len(asked):
        raise InputError(
            f"{ranked[0]} beside another rule: percentiles are of what cleaning keeps, and would be others",
            where="--set",
            next="ask for one, then for the other",
        )
    if ranked:
        step, sides = "scores", move_percentiles(found, asked)
    elif NEAR_THRESHOLD not in asked:
        step, sides = "clean", move_bounds(found, asked)
    elif len(asked) == 1:
        step, sides = "dedup", move_threshold(found, asked[NEAR_THRESHOLD])
    else:
        raise InputError(
            f"{NEAR_THRESHOLD} beside a rule of cleaning: documents that the rule would let in were never "
            "compared",
            where="--set",
            next="ask for one, then for the other",
        )
    kept_now = kept_then = chars_now = chars_then = 0
    movers: list[Mover] = []
    for one in sides:
        kept_now, kept_then = kept_now + int(one.is_kept.sum()), kept_then + int(one.stays.sum())
        chars_now += int(one.chars[one.is_kept].sum())
        chars_then += int(one.chars[one.stays].sum())
        movers += one.movers
    return WhatIf(step, kept_now, kept_then, chars_now, chars_then, movers, examples, found.not_cleaned)


def _threshold(change: str) -> tuple[str, float]:
    name, _, value = change.partition("=")
    with contextlib.suppress(ValueError):
        if math.isfinite(float(value)):
            return name, float(value)
    raise RecipeError(
        f"{change} is not RULE=NUMBER", where="--set", next="for example `gopher-quality.min_words=30`"
    )

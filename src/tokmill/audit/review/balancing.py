"""Domains of equal size, and what that costs: three ways to have them, and what each of them leaves out.

cut       of each domain what the smallest has                   `balance: smallest` (rows), or equal weights (tokens)
repeat    equal weights, the smallest seen up to four times       leaves out what the largest have beyond that
as is     nothing is left out; shares are those of the sources    (a loader may draw domains alike, one build for each)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tokmill.audit.review.evidence import Evidence
from tokmill.audit.review.lengths import TRAIN
from tokmill.audit.review.subject import Build
from tokmill.audit.review.thresholds import EPOCHS_HIGH
from tokmill.manifest import Json


class Way(NamedTuple):
    """To have domains of equal size out of these tokens."""

    each: int  # tokens of each domain, repeats counted again
    left_out: int
    epochs: float  # of the smallest domain

    def recipe(self, domains: list[str]) -> str:
        """The section that asks for it."""
        weights = ", ".join(f"{name}: 1" for name in domains)
        return (
            f"mixture: {{weights: {{{weights}}}, normalize: true, tokens: {self.each * len(domains)}, "
            f"exhausted: repeat, max_epochs: {EPOCHS_HIGH:g}, held_out: whole}}"
        )


def cut_to_smallest(available: Mapping[str, int]) -> Way:
    least = min(available.values())
    return Way(least, sum(available.values()) - least * len(available), 1.0)


def repeat_smallest(available: Mapping[str, int]) -> Way:
    """As large as the largest domain, or as four times the smallest."""
    least = min(available.values())
    each = min(max(available.values()), int(EPOCHS_HIGH) * least)
    return Way(each, sum(max(count - each, 0) for count in available.values()), each / least)


class Balanced(NamedTuple):
    """Of the training rows of a build that was balanced."""

    tokens_in: int
    left_out: int
    rows: int


def balanced(build: Build) -> Balanced | None:
    if build.artifact.manifest.config.get("balance", "none") == "none":
        return None
    counts: Json = build.artifact.manifest.counts
    for receipt in build.artifact.manifest.receipts():
        if receipt.key == TRAIN:
            counts = receipt.counts
    return Balanced(counts["tokens"]["in"], counts["tokens"]["left_out"], counts["rows"])


def available_by_domain(evidence: Evidence) -> dict[str, int]:
    """Training tokens that there are, of domains that have some."""
    return {name: count for name, count in evidence.lengths.tokens_by("domain", TRAIN).items() if count}

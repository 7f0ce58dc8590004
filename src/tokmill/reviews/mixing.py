"""What packing costs: tokens that no row holds, columns that hold nothing, documents that do not end.

How much of what: balance, shares that were asked for, repeats, budgets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction

from tokmill.artifacts.manifest import Json
from tokmill.packing.mixture import MIN_USED, Limit
from tokmill.reviews.evidence import Evidence, manifest_of, named, together
from tokmill.reviews.finding import (
    EPOCHS_HIGH,
    EPOCHS_MEDIUM,
    MAX_IMBALANCE,
    MAX_MIX_POINTS,
    MAX_PADDING,
    MAX_TAIL,
    PADDING_MEDIUM,
    TRUNCATION_HIGH,
    Assumption,
    Finding,
    Found,
    Measure,
    NotMeasured,
    percent,
    share,
    spelled,
)
from tokmill.reviews.subject import TRAIN, Build
from tokmill.stages.build.mixture import limit_of_mixture
from tokmill.stages.build.stage import limit_of_balance


def domain_tokens(build: Build) -> dict[str, int]:
    """Training tokens of each domain; of a published build, of all its splits together."""
    counts = build.artifact.manifest.counts
    for receipt in build.artifact.manifest.receipts():
        if receipt.key == TRAIN:
            counts = receipt.counts
    return {name: total["tokens"] for name, total in counts.get("domains", {}).items()}


def domain_weights(evidence: Evidence) -> dict[str, Fraction] | None:
    """Of domains, as the mixture was asked for."""
    if evidence.has("mixture"):
        asked = evidence.artifact("mixture").manifest.config["domains"]
        return {name: Fraction(weight) for name, weight in asked.items()} if asked else None
    recipe = evidence.subject.recipe
    if recipe is not None and recipe.mixture is not None and recipe.mixture.weights:
        total = sum(Fraction(weight) for weight in recipe.mixture.weights.values())
        return (
            {name: Fraction(weight) / total for name, weight in recipe.mixture.weights.items()}
            if total
            else None
        )
    return None


def domain_imbalance(evidence: Evidence) -> Found:
    weights = domain_weights(evidence)
    if evidence.subject.kind == "recipe":
        if weights is None:
            raise NotMeasured("a recipe without weights has no tokens to compare")
        amounts = {name: float(100 * weight) for name, weight in weights.items()}
        read_from = f"{evidence.subject.recipe_file}: mixture.weights"
        yield from _imbalance(amounts, weights, "weights", "%", read_from)
        return
    if not evidence.subject.builds:
        tokens = evidence.lengths.tokens_by("domain", TRAIN)
        yield from _imbalance(tokens, None, "training data", "tokens", "tokens/train/*/lengths-*.parquet")
    for builds, built in together(evidence.subject.builds, domain_tokens):
        yield from _imbalance(built, weights, named(builds), "tokens", manifest_of(builds[0]))


def _imbalance(
    amounts: Mapping[str, float],
    weights: Mapping[str, Fraction] | None,
    about: str,
    unit: str,
    read_from: str,
) -> Iterator[Finding]:
    present = {name: amount for name, amount in amounts.items() if amount}
    if len(present) < 2:
        return
    largest = max(present, key=lambda name: (present[name], name))
    smallest = min(present, key=lambda name: (present[name], name))
    ratio = present[largest] / present[smallest]
    if ratio > MAX_IMBALANCE:
        is_asked = weights is not None and weights[largest] > MAX_IMBALANCE * weights[smallest]
        asked = ", as its weights ask" if is_asked else ""
        yield Finding(
            "domain_imbalance",
            "low" if is_asked else "medium",
            about,
            f"domain {largest} has {spelled(ratio)} times the tokens of {smallest}{asked}",
            (
                Measure(f"{largest} to {smallest}", ratio, "times", read_from),
                *(Measure(f"domain {name}", amount, unit, read_from) for name, amount in present.items()),
            ),
            Measure("the largest domain", MAX_IMBALANCE, "times the tokens of the smallest", ""),
        )


def built_mix(evidence: Evidence) -> Found:
    weights = domain_weights(evidence)
    if weights is None:
        raise NotMeasured("no shares were asked for (`mixture.weights`), or none are written down here")
    for builds, tokens in together(evidence.builds(), domain_tokens):
        total = sum(tokens.values())
        if not total or builds[0].artifact.manifest.config.get("sources"):
            continue
        points = {
            name: percent(tokens.get(name, 0), total) - float(100 * weight)
            for name, weight in weights.items()
        }
        worst = max(points, key=lambda name: (abs(points[name]), name))
        if abs(points[worst]) > MAX_MIX_POINTS:
            yield Finding(
                "built_mix",
                "medium",
                named(builds),
                f"domain {worst} is {spelled(percent(tokens.get(worst, 0), total))} % of the tokens, "
                f"{spelled(float(100 * weights[worst]))} % were asked for",
                tuple(
                    Measure(
                        f"domain {name}: built less asked for", points[name], "points", manifest_of(builds[0])
                    )
                    for name in weights
                ),
                Measure(
                    "between built and asked for",
                    MAX_MIX_POINTS,
                    "percentage points",
                    "mixture/manifest.json",
                ),
            )


# --- what is thrown away ---


def starved_build(evidence: Evidence) -> Found:
    """One domain, or one source, has so little that most of the others is left out for it."""
    if evidence.has("mixture"):
        mixture = evidence.artifact("mixture").manifest
        limit = limit_of_mixture(mixture.config, mixture.facts["splits"].get(TRAIN))
        if limit is not None and limit.is_starved:
            yield _starved("mixture", limit, "mixture/manifest.json")
    elif evidence.has("tokens"):
        raise NotMeasured("there is no mixture: every document is built once")
    if evidence.subject.found is None:
        raise NotMeasured("a published build does not say what it was made from")
    for builds, limit in together(evidence.builds(), lambda build: _balance_limit(evidence, build)):
        if limit.is_starved:
            yield _starved(named(builds), limit, manifest_of(builds[0]))


def _balance_limit(evidence: Evidence, build: Build) -> Limit | None:
    manifest = build.artifact.manifest
    counts = next((receipt.counts for receipt in manifest.receipts() if receipt.key == TRAIN), None)
    return limit_of_balance(manifest.config, evidence.subject.artifacts, counts) if counts else None


def _starved(about: str, limit: Limit, read_from: str) -> Finding:
    return Finding(
        "starved_build",
        "high",
        about,
        str(limit),
        (
            Measure("built", limit.used, "tokens", read_from),
            Measure("at hand", limit.at_hand, "tokens", read_from),
            Measure("of the tokens at hand", percent(limit.used, limit.at_hand), "%", read_from),
            Measure(f"{limit.name} has", limit.has, "tokens", read_from),
        ),
        Measure("built of the training tokens at hand", float(100 * MIN_USED), "%", "without a target"),
        "less than",
    )


# --- repeats and budgets ---


def mixed_facts(evidence: Evidence) -> Json:
    """Facts of the training split, by source."""
    if not evidence.has("mixture") and evidence.has("tokens"):
        raise NotMeasured("there is no mixture: every document is built once")
    facts: Json = evidence.artifact("mixture").manifest.facts["splits"].get(TRAIN, {})
    return facts


def source_repeats(evidence: Evidence) -> Found:
    read_from = "mixture/manifest.json"
    for source, told in mixed_facts(evidence).get("sources", {}).items():
        epochs = float(told["epochs"])
        if epochs > EPOCHS_MEDIUM:
            is_high = epochs > EPOCHS_HIGH
            yield Finding(
                "source_repeats",
                "high" if is_high else "medium",
                f"source {source}",
                f"its documents are built {spelled(epochs)} times over",
                (
                    Measure("epochs", epochs, "", read_from),
                    Measure("built", told["tokens"], "tokens", read_from),
                    Measure("there are", told["available"], "tokens", read_from),
                ),
                Measure(
                    "epochs of a source", EPOCHS_HIGH if is_high else EPOCHS_MEDIUM, "", "docs/mixtures.md"
                ),
            )


def budget_epochs(evidence: Evidence) -> Found:
    """What the budget would take if it were met by repeating; what was repeated, `source_repeats` tells."""
    read_from = "mixture/manifest.json"
    facts, config = mixed_facts(evidence), evidence.artifact("mixture").manifest.config
    if config["target"] is None:
        raise NotMeasured("the mixture has no target")
    unit, amount = config["target"]
    if unit not in ("tokens", "blocks"):
        raise NotMeasured(f"a target in {unit} is not compared with tokens")
    asked = amount * (config["seq_len"] if unit == "blocks" else 1)
    asked = int(asked * train_share(evidence, config))
    for source, told in facts.get("sources", {}).items():
        if not told["available"] or float(told["epochs"]) > EPOCHS_MEDIUM:
            continue
        implied = asked * float(told["wanted"]) / told["available"]
        if implied > EPOCHS_MEDIUM and not math.isclose(implied, 1.0, rel_tol=1e-3):
            is_high = implied > EPOCHS_HIGH
            yield Finding(
                "budget_epochs",
                "high" if is_high else "medium",
                f"source {source}",
                f"the budget asks for {spelled(implied)} times what it has; {spelled(float(told['epochs']))} were built",
                (
                    Measure("epochs that the budget implies", implied, "", read_from),
                    Measure(
                        "its part of the budget", round(asked * float(told["wanted"])), "tokens", read_from
                    ),
                    Measure("there are", told["available"], "tokens", read_from),
                ),
                Measure(
                    "epochs of a source", EPOCHS_HIGH if is_high else EPOCHS_MEDIUM, "", "docs/mixtures.md"
                ),
            )


def train_share(evidence: Evidence, config: Json) -> Fraction:
    """The part of the target that is for training."""
    if config.get("held_out") == "whole":
        return Fraction(1)
    rule = evidence.artifact("split").manifest.config
    if rule["method"] == "hash":
        return 1 - Fraction(rule["valid_fraction"]) - Fraction(rule["test_fraction"])
    tokens = evidence.artifact("tokens").manifest.counts["tokens"]
    return Fraction(tokens.get(TRAIN, 0), sum(tokens.values()) or 1)


def _counted(amount: str) -> Callable[[Build], tuple[int, int] | None]:
    """(tokens that came in, this amount); for padding the columns that were written instead."""

    def figures(build: Build) -> tuple[int, int] | None:
        tokens = build.artifact.manifest.counts.get("tokens", {})
        if amount not in tokens:
            return None
        whole = tokens["written"] + tokens["padding"] if amount == "padding" else tokens["in"]
        return (whole, tokens[amount])

    return figures


def tail_drop(evidence: Evidence) -> Found:
    for builds, (whole, lost) in together(evidence.builds(), _counted("tail_dropped")):
        if lost > MAX_TAIL * whole:
            yield Finding(
                "tail_drop",
                "medium",
                named(builds),
                f"{lost:,} of {whole:,} tokens ({share(lost, whole)}) follow the last whole row, and are in none",
                (
                    Measure("tail dropped", lost, "tokens", manifest_of(builds[0])),
                    Measure("of the tokens", percent(lost, whole), "%", manifest_of(builds[0])),
                ),
                Measure("tail dropped", 100 * MAX_TAIL, "% of the tokens", "all splits together"),
            )


def padding(evidence: Evidence) -> Found:
    for builds, (whole, empty) in together(evidence.builds(), _counted("padding")):
        if empty > MAX_PADDING * whole:
            yield Finding(
                "padding",
                "medium" if empty > PADDING_MEDIUM * whole else "low",
                named(builds),
                f"{empty:,} of {whole:,} columns ({share(empty, whole)}) hold nothing",
                (
                    Measure("padding", empty, "columns", manifest_of(builds[0])),
                    Measure("of the columns", percent(empty, whole), "%", manifest_of(builds[0])),
                ),
                Measure("padding", 100 * MAX_PADDING, "% of the columns", "all splits together"),
            )


def truncation(evidence: Evidence) -> Found:
    for builds, (whole, lost) in together(evidence.builds(), _counted("truncated")):
        if lost:
            yield Finding(
                "truncation",
                "high" if lost > TRUNCATION_HIGH * whole else "medium",
                named(builds),
                f"{lost:,} of {whole:,} tokens ({share(lost, whole)}) were cut off documents longer than a row",
                (
                    Measure("truncated", lost, "tokens", manifest_of(builds[0])),
                    Measure("of the tokens", percent(lost, whole), "%", manifest_of(builds[0])),
                ),
                Measure("truncated", 0, "tokens", "any"),
            )


def missing_eos(evidence: Evidence) -> Found:
    made = 0
    for build in evidence.builds():
        try:
            rows = evidence.rows(build)
        except NotMeasured as reason:
            yield Assumption("missing_eos", str(reason))
            continue
        made += 1
        ends = sum(split.ends for split in rows.splits)
        missing = sum(split.ends_without_eos for split in rows.splits)
        if missing:
            read_from = f"{manifest_of(build).removesuffix('manifest.json')}*/index.jsonl.zst and the rows"
            first = next(split.first_without for split in rows.splits if split.first_without)
            yield Finding(
                "missing_eos",
                "high",
                named([build]),
                f"{missing:,} of {ends:,} documents do not end in id {rows.eos_id}",
                (
                    Measure(f"ends without id {rows.eos_id}", missing, "documents", read_from),
                    Measure("of the ends that the index tells", percent(missing, ends), "%", read_from),
                    Measure("the first of them", first, "", read_from),
                ),
                Measure("documents without their end", 0, "documents", "any"),
            )

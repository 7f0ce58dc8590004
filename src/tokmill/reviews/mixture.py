"""How much of what: balance of domains, shares that were asked for, what one domain keeps out,
repeats and budgets.

counts of builds, turns in rows ─┐
the mixture's config and facts ──┼─ checks: domain_imbalance, built_mix, starved_build, source_repeats,
                                 │          budget_epochs
lengths of all documents ────────┘  answer: three ways to domains of equal size, and what each leaves out

cut       of each domain what the smallest has                    `balance: smallest` (rows),
                                                                  or equal weights (tokens)
repeat    equal weights, the smallest seen up to four times       leaves out what the largest have beyond that
as is     nothing is left out; shares are those of the sources    (a loader may draw domains alike,
                                                                  one build for each)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

import msgspec

from tokmill.artifacts.manifest import Json
from tokmill.audit.places import entry_of
from tokmill.loader.dataset import INDEX_NAME
from tokmill.packing.limits import MIN_USED, STARVED, UNBALANCED, Limit
from tokmill.reviews.evidence import Answering, Evidence, check, manifest_of, named, place_of, together
from tokmill.reviews.finding import Finding, Found, Measure, NotMeasured, percent, share, spelled
from tokmill.reviews.subject import TRAIN, Build
from tokmill.stages.build.mixture import MixtureOptions, limit_of_mixture
from tokmill.stages.build.options import BuildOptions
from tokmill.stages.build.stage import limit_of_balance
from tokmill.stages.split.options import HashSplit, SplitOptions

MAX_IMBALANCE = 1.5  # tokens of the largest domain, in those of the smallest
MAX_MIX_POINTS = 2.0  # percentage points between a share that was asked for and the built one
EPOCHS_MEDIUM, EPOCHS_HIGH = 1.0, 4.0  # four repetitions are nearly as good as new text (docs/mixtures.md)


def domain_weights(evidence: Evidence) -> dict[str, Fraction] | None:
    """Of domains, as the mixture was asked for."""
    if evidence.has_stages:
        raise NotMeasured(STAGED)
    if evidence.has("mixture"):
        asked = evidence.artifact("mixture").manifest.options(MixtureOptions).domains
        return {name: Fraction(weight) for name, weight in asked.items()} if asked else None
    recipe = evidence.subject.recipe
    if recipe is None or recipe.mixture is None or not recipe.mixture.weights:
        return None
    return _of_whole(recipe.mixture.weights) or None


def source_weights(evidence: Evidence) -> dict[str, dict[str, Fraction]]:
    """Of the sources of domains that give them weights of their own."""
    recipe = evidence.subject.recipe
    asked: Mapping[str, Mapping[str, str | Decimal]] = {}
    if evidence.has("mixture"):
        asked = evidence.artifact("mixture").manifest.options(MixtureOptions).sources
    elif recipe is not None and recipe.mixture is not None:
        asked = recipe.mixture.sources
    return {domain: _of_whole(weights) for domain, weights in asked.items()}


def _of_whole(asked: Mapping[str, str | Decimal]) -> dict[str, Fraction]:
    """Nothing where nothing has a weight."""
    weights = {name: Fraction(weight) for name, weight in asked.items()}
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()} if total else {}


@check(
    "Set `mixture.weights`, or `mixture: {balance: smallest}`; where the imbalance is meant, say why beside "
    "it."
)
def domain_imbalance(evidence: Evidence) -> Found:
    """Do domains have about as many tokens?"""
    weights = domain_weights(evidence)
    if evidence.subject.kind == "recipe":
        if weights is None:
            raise NotMeasured("a recipe without weights has no tokens to compare")
        amounts = {name: float(100 * weight) for name, weight in weights.items()}
        read_from = f"{evidence.subject.recipe_file}: mixture.weights"
        yield from _imbalance(amounts, weights, "weights", "%", read_from)
        return
    if not evidence.subject.builds:
        tokens = evidence.lengths.sums("tokens", "domain", TRAIN)
        yield from _imbalance(tokens, None, "training data", "tokens", "tokens/train/*/lengths-*.parquet")
    for builds, built in together(evidence.subject.builds, lambda build: build.train_tokens("domains")):
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
    ranked = sorted(present, key=lambda name: (present[name], name))
    largest, smallest = ranked[-1], ranked[0]
    ratio = present[largest] / present[smallest]
    if ratio > MAX_IMBALANCE:
        is_asked = weights is not None and weights[largest] > MAX_IMBALANCE * weights[smallest]
        asked = ", as its weights ask" if is_asked else ""
        yield Finding(
            "low" if is_asked else "medium",
            about,
            f"domain {largest} has {spelled(ratio)} times the tokens of {smallest}{asked}",
            (
                Measure(f"{largest} to {smallest}", ratio, "times", read_from),
                *(Measure(f"domain {name}", amount, unit, read_from) for name, amount in present.items()),
            ),
            Measure("the largest domain", MAX_IMBALANCE, "times the tokens of the smallest", ""),
        )


@check("Lower the budget to what the smallest domain reaches, find more of it, or change the weights.")
def built_mix(evidence: Evidence) -> Found:
    """Is the built mix the one that was asked for?"""
    weights = domain_weights(evidence)
    if weights is None:
        raise NotMeasured("no shares were asked for (`mixture.weights`), or none are written down here")
    for builds, tokens in together(evidence.builds(), lambda build: build.train_tokens("domains")):
        total = sum(tokens.values())
        if not total or builds[0].artifact.manifest.config.get("sources"):
            continue
        built = {name: percent(tokens.get(name, 0), total) for name in weights}
        points = {name: built[name] - float(100 * weight) for name, weight in weights.items()}
        worst = max(points, key=lambda name: (abs(points[name]), name))
        if abs(points[worst]) > MAX_MIX_POINTS:
            read_from = manifest_of(builds[0])
            bound = "between built and asked for"
            yield Finding(
                "medium",
                named(builds),
                f"domain {worst} is {spelled(built[worst])} % of the tokens, "
                f"{spelled(float(100 * weights[worst]))} % were asked for",
                tuple(
                    Measure(f"domain {name}: built less asked for", points[name], "points", read_from)
                    for name in weights
                ),
                Measure(bound, MAX_MIX_POINTS, "percentage points", "mixture/manifest.json"),
            )


@check(f"{STARVED.capitalize()}; {UNBALANCED}.")
def starved_build(evidence: Evidence) -> Found:
    """Does one domain keep most of the others out of the build? So may a source with a weight of its own."""
    if evidence.has("mixture"):
        mixture = evidence.artifact("mixture").manifest
        limit = limit_of_mixture(mixture.options(MixtureOptions), mixture.facts["splits"].get(TRAIN))
        if limit is not None and limit.is_starved:
            yield _starved("mixture", limit, "mixture/manifest.json", "scheduled")
    elif evidence.has("tokens"):
        raise NotMeasured(STAGED if evidence.has_stages else NO_MIXTURE)
    if evidence.subject.found is None:
        raise NotMeasured("a published build does not say what it was made from")
    for builds, limit in together(evidence.builds(), lambda build: _balance_limit(evidence, build)):
        if limit.is_starved:
            yield _starved(named(builds), limit, manifest_of(builds[0]), "of documents in rows")


def _balance_limit(evidence: Evidence, build: Build) -> Limit | None:
    manifest = build.artifact.manifest
    counts = next((receipt.counts for receipt in manifest.receipts() if receipt.key == TRAIN), None)
    return (
        limit_of_balance(manifest.options(BuildOptions), evidence.subject.artifacts, counts)
        if counts
        else None
    )


def _starved(about: str, limit: Limit, read_from: str, used: str) -> Finding:
    """`used`: what the tokens are. A mixture gives turns; what of them stands in rows, builds tell."""
    return Finding(
        "high",
        about,
        str(limit),
        (
            Measure(used, limit.used, "tokens", read_from),
            Measure(limit.what.removeprefix("tokens "), limit.at_hand, "tokens", read_from),
            Measure(f"of the {limit.what}", percent(limit.used, limit.at_hand), "%", read_from),
            Measure(f"{limit.name} has", limit.has, "tokens", read_from),
        ),
        Measure(f"{used}, of the training {limit.what}", float(100 * MIN_USED), "%", "without a target"),
        "less than",
    )


# --- repeats and budgets ---

FACTS = "mixture/manifest.json"
NO_MIXTURE = "there is no mixture: every document is built once"
STAGED = "the mixture has stages, each with weights and a target of its own; the report has their shares"


def mixed_facts(evidence: Evidence) -> Json:
    """Facts of the training split, by source."""
    if not evidence.has("mixture") and evidence.has("tokens"):
        raise NotMeasured(STAGED if evidence.has_stages else NO_MIXTURE)
    facts: Json = evidence.artifact("mixture").manifest.facts["splits"].get(TRAIN, {})
    return facts


@check("Lower its weight or the budget: beyond four epochs repeated text is worth little.")
def source_repeats(evidence: Evidence) -> Found:
    """Is a source built more than once?"""
    facts = mixed_facts(evidence)
    repeated = {
        source: told for source, told in facts.get("sources", {}).items() if epochs_of(told) > EPOCHS_MEDIUM
    }
    builds = [build for build in evidence.subject.builds if TRAIN in build.splits]
    if not repeated or "continued" in facts:  # epochs of the whole, of which the rows here are the rest
        builds = []
    built = [(build, _in_rows(evidence, build, facts)) for build in builds]
    for source, told in repeated.items():
        most = max((tokens.get(source, 0) for _, tokens in built), default=0)
        if not most:
            epochs = epochs_of(told)
            says = f"its documents are scheduled {spelled(epochs)} times over"
            amount = Measure("scheduled", told["tokens"], "tokens", FACTS)
        else:
            epochs = most / once_of(told)
            own = [build for build, tokens in built if tokens.get(source, 0) == most]
            says = f"its documents are built {spelled(epochs)} times over in {named(own)}"
            amount = Measure("built", most, "tokens", f"{place_of(own[0])}{TRAIN}/{INDEX_NAME}")
        yield from _epochs(source, epochs, says, "epochs", amount, once_of(told))


def epochs_of(told: Json) -> float:
    """What a mixture says of a source; where a score repeats documents, of those that it has at all."""
    return float(told["seen"] if "seen" in told else told["epochs"])


def once_of(told: Json) -> int:
    """Tokens of a source, each of its documents once."""
    return int(told["tokens_once"] if "tokens_once" in told else told["available"])


def _in_rows(evidence: Evidence, build: Build, facts: Json) -> dict[str, int]:
    """By source, of the turns that stand in a row of the build: of sequences, all."""
    if entry_of(build.artifact, TRAIN, "places") is not None:
        in_rows = evidence.tokens_in_rows(build.name, [build])
        return {source: one.tokens for source, one in in_rows.items()}
    wanted = build.artifact.manifest.config["sources"]
    return {
        source: told["tokens"] for source, told in facts["sources"].items() if not wanted or source in wanted
    }


@check("Lower the budget, or find more text for the source.")
def budget_epochs(evidence: Evidence) -> Found:
    """Does the budget ask for more than there is? If it were met by repeating:
    what was, `source_repeats` tells."""
    facts, options = mixed_facts(evidence), evidence.artifact("mixture").manifest.options(MixtureOptions)
    if options.target is None:
        raise NotMeasured("the mixture has no target")
    unit, amount = options.target
    if unit not in ("tokens", "blocks"):
        raise NotMeasured(f"a target in {unit} is not compared with tokens")
    asked = amount * (1 if options.seq_len is msgspec.UNSET else options.seq_len)  # of a block
    asked = int(asked * train_share(evidence, options))
    if options.continues:  # the target is of the whole training, the weights are of the rest
        asked = max(asked - options.continues.tokens, 0)
    for source, told in facts.get("sources", {}).items():
        there, epochs = once_of(told), epochs_of(told)
        if not there or epochs > EPOCHS_MEDIUM:
            continue
        wanted = asked * float(told["wanted"])
        implied = wanted / there
        if options.continues:
            implied += max(epochs - told["tokens"] / there, 0.0)  # by what was trained on before
        if not math.isclose(implied, 1.0, rel_tol=1e-3):
            says = (
                f"the budget asks for {spelled(implied)} times what it has; {spelled(epochs)} were scheduled"
            )
            budget = Measure("its part of the budget", round(wanted), "tokens", FACTS)
            yield from _epochs(source, implied, says, "epochs that the budget implies", budget, there)


def _epochs(
    source: str, epochs: float, says: str, name: str, amount: Measure, available: int
) -> Iterator[Finding]:
    if epochs > EPOCHS_MEDIUM:
        is_high = epochs > EPOCHS_HIGH
        bound = EPOCHS_HIGH if is_high else EPOCHS_MEDIUM
        yield Finding(
            "high" if is_high else "medium",
            f"source {source}",
            says,
            (
                Measure(name, epochs, "", FACTS),
                amount,
                Measure("there are", available, "tokens", FACTS),
            ),
            Measure("epochs of a source", bound, "", "docs/mixtures.md"),
        )


def train_share(evidence: Evidence, options: MixtureOptions) -> Fraction:
    """The part of the target that is for training."""
    if options.held_out == "whole":
        return Fraction(1)
    rule: SplitOptions = evidence.artifact("split").manifest.options(SplitOptions)
    if isinstance(rule, HashSplit):
        return 1 - Fraction(rule.valid_fraction) - Fraction(rule.test_fraction)
    tokens = evidence.artifact("tokens").manifest.counts["tokens"]
    return Fraction(tokens.get(TRAIN, 0), sum(tokens.values()) or 1)


# --- the answer ---


def balance(evidence: Evidence, found: Answering) -> None:
    """Are the domains in balance, and what does that cost?"""
    weights = domain_weights(evidence)
    recipe = evidence.subject.recipe
    is_cut = recipe is not None and recipe.mixture is not None and recipe.mixture.balance == "smallest"
    if weights:
        asked = ", ".join(f"{name} {spelled(float(100 * weight))} %" for name, weight in weights.items())
        found.say(f"Asked for: {asked}.")
        found.figures["weights"] = {name: float(weight) for name, weight in weights.items()}
        found.base("mixture.weights")
    if evidence.subject.kind == "recipe":
        if is_cut:
            found.say(
                "`balance: smallest` asks for domains of equal size: of each as many rows (blocks) as the "
                "smallest has, and the rest of the larger ones is left out."
            )
        elif not weights:
            found.say("No weights are asked for: domains are as large as their sources.")
        found.figures["balance"] = recipe.mixture.balance if recipe is not None and recipe.mixture else "none"
        found.lack("tokens of each domain, and how many are left out: a recipe alone has none").base(
            "the recipe"
        )
        return
    groups = together(evidence.subject.builds, lambda build: build.train_tokens("domains"))
    for builds, tokens in groups:
        _shares(found, named(builds).capitalize(), tokens)
        found.base(
            "build/*/manifest.json: counts.domains"
            if evidence.subject.found
            else "manifest.json: counts.domains"
        )
    if not groups:
        lengths = found.attempt(lambda: evidence.lengths)
        if lengths is not None:
            _shares(found, "Training tokens", lengths.sums("tokens", "domain", TRAIN))
            found.base("tokens/train/*/lengths-*.parquet")
    _cost_of_balance(evidence, found)


def _shares(found: Answering, what: str, tokens: dict[str, int]) -> None:
    total = sum(tokens.values())
    listed = ", ".join(f"{name} {count:,} ({share(count, total)})" for name, count in tokens.items())
    present = [count for count in tokens.values() if count]
    ratio = ""
    if len(present) > 1:
        times = max(present) / min(present)
        ratio = "; all are equal" if times == 1 else f"; the largest has {spelled(times)} times the smallest"
    found.say(f"{what}: {listed}{ratio}.")
    found.figures[what.lower()] = dict(tokens)


def _cost_of_balance(evidence: Evidence, found: Answering) -> None:
    for builds, (tokens_in, left_out, rows_built) in together(evidence.subject.builds, _balanced):
        boundaries = found.attempt(lambda builds=builds: evidence.boundaries(builds[0]))  # type: ignore[misc]
        has_rows = boundaries is not None and boundaries.classes.word == "domain"
        rows = boundaries.rows_by_class if boundaries is not None and has_rows else {}
        listed = ", ".join(f"{name} {count:,}" for name, count in rows.items())
        found.say(
            f"{named(builds).capitalize()} is balanced in rows ({listed or f'{rows_built:,} in all'}): "
            f"{left_out:,} of {tokens_in:,} training tokens ({share(left_out, tokens_in)}) are left out for "
            "it."
        )
        told: Json = {"tokens": left_out, "of_tokens": tokens_in, "rows": rows}
        found.figures.setdefault("left_out", {})[named(builds)] = told
    if not evidence.has("tokens"):
        return
    available = {
        name: count for name, count in evidence.lengths.sums("tokens", "domain", TRAIN).items() if count
    }
    total = sum(available.values())
    if len(available) < 2 or max(available.values()) == min(available.values()):
        return
    least = min(available, key=lambda name: (available[name], name))
    # as large as the smallest domain; as the largest, or as four times the smallest
    cut = _equal_domains(available, available[least])
    most = min(max(available.values()), int(EPOCHS_HIGH) * available[least])
    repeat = _equal_domains(available, most)
    found.say(
        f"Of {total:,} training tokens, domains of equal size leave out {share(cut.left_out, total)} if all "
        f"are cut to {least} ({cut.each:,} tokens), {share(repeat.left_out, total)} if {least} is seen "
        f"{spelled(repeat.epochs)} times (up to {EPOCHS_HIGH:g} cost next to nothing), and nothing if "
        "domains keep their sizes and the loader draws them alike."
    )
    found.say(f"Least is left out, and all are in one build, with `{repeat.recipe(list(available))}`.")
    found.base("tokens/train/*/lengths-*.parquet")
    found.figures["ways"] = {
        "cut": {"left_out": cut.left_out, "tokens": cut.each * len(available)},
        "repeat": {
            "left_out": repeat.left_out,
            "tokens": repeat.each * len(available),
            "epochs_of_smallest": round(repeat.epochs, 6),
        },
        "as_is": {"left_out": 0, "tokens": total},
    }


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


def _equal_domains(available: Mapping[str, int], each: int) -> Way:
    left_out = sum(max(count - each, 0) for count in available.values())
    return Way(each, left_out, each / min(available.values()))


def _balanced(build: Build) -> tuple[int, int, int] | None:
    """Of the training rows of a build that was balanced: tokens that came, those left out, rows."""
    if build.artifact.manifest.config.get("balance", "none") == "none":
        return None
    counts = build.counts(TRAIN)
    return counts["tokens"]["in"], counts["tokens"]["left_out"], counts["rows"]

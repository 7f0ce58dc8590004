"""Answers about amounts: is it large enough for the model, are the domains in balance, and what does that cost.

Domains of equal size, and what that costs: three ways to have them, and what each of them leaves out.

cut       of each domain what the smallest has                   `balance: smallest` (rows), or equal weights (tokens)
repeat    equal weights, the smallest seen up to four times       leaves out what the largest have beyond that
as is     nothing is left out; shares are those of the sources    (a loader may draw domains alike, one build for each)
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

from tokmill.artifacts.manifest import Json
from tokmill.packing.mixture import Holding, Mixture, largest_budget
from tokmill.reviews.evidence import Answering, Evidence, named, together
from tokmill.reviews.finding import EPOCHS_HIGH, TOKENS_PER_PARAMETER, share, spelled
from tokmill.reviews.mixing import domain_tokens, domain_weights, mixed_facts, train_share
from tokmill.reviews.sizing import (
    BYTES_PER_TOKEN,
    HOFFMANN,
    NO_MODEL,
    NO_TOKENS,
    bounded_tokens,
    passes_of,
    size_sentences,
    spelled_limit,
    spelled_tokens,
)
from tokmill.reviews.subject import TRAIN, Build


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


def size_target(evidence: Evidence, found: Answering) -> None:
    """Is it large enough: how large can the build be, how large is it, and how large should it be?"""
    if evidence.subject.kind == "recipe":
        _asked_size(evidence, found)
        return
    lengths = found.attempt(lambda: evidence.lengths)
    if lengths is not None:
        tokens = lengths.tokens_by("source", TRAIN)
        available = sum(tokens.values())
        found.say(
            f"There are {available:,} training tokens in {sum(lengths.docs_by('source', TRAIN).values()):,} documents."
        )
        found.figures["available_tokens"] = available
        weights = domain_weights(evidence)
        if weights:
            domains = {part.source: part.domain for part in lengths.parts}
            holdings = [Holding(name, domains[name], count) for name, count in tokens.items()]
            reach = largest_budget(
                holdings, Mixture({name: weights.get(name, Fraction(0)) for name in domains.values()})
            )
            found.say(f"With the weights asked for, {reach:,} can be built before a source is exhausted.")
            found.figures["reach_without_repeats"] = reach
        found.base("tokens/train/*/lengths-*.parquet")
    if evidence.has("mixture"):
        facts, config = mixed_facts(evidence), evidence.artifact("mixture").manifest.config
        found.say(f"The schedule has {facts.get('tokens', 0):,} training tokens.")
        if config["target"]:
            part = float(train_share(evidence, config))
            found.say(
                f"The target is {config['target'][1]:,} {config['target'][0]}, of which {share(part, 1)} is for training."
            )
        found.figures |= {"target": config["target"], "scheduled_tokens": facts.get("tokens")}
        found.base("mixture/manifest.json")
    for builds, written in together(
        evidence.subject.builds, lambda build: build.artifact.manifest.counts.get("tokens", {}).get("written")
    ):
        found.say(f"{named(builds).capitalize()}: {written:,} tokens written, all splits together.")
        found.figures.setdefault("written_tokens", {})[named(builds)] = written
        found.base("build/*/manifest.json" if evidence.subject.found else "manifest.json")
    _for_the_model(evidence, found)


def _for_the_model(evidence: Evidence, found: Answering) -> None:
    training = evidence.subject.training
    for lacks, reason in ((training.model_params, NO_MODEL), (training.train_tokens, NO_TOKENS)):
        if lacks is None:
            found.lack(reason)
    groups = (
        found.attempt(lambda: together(evidence.subject.builds, lambda build: passes_of(evidence, build)))
        or []
    )
    for builds, passes in groups[1:]:
        found.say(
            f"{named(builds).capitalize()}: {spelled(passes.number)} passes over {passes.built:,} training tokens."
        )
    for _, passes in groups[:1]:
        for sentence in size_sentences(evidence, passes):
            found.say(sentence)
        found.figures["training"] = {
            "model_params": training.model_params,
            "train_tokens": passes.train_tokens,
            "tokens_per_parameter": training.model_params
            and round(passes.train_tokens / training.model_params, 6),
            "built_tokens": passes.built,
            "passes": round(passes.number, 6),
            "worth_tokens": round(passes.worth),
            "first_to_repeat": passes.first.source,
            "sources": {
                one.source: {
                    "built": one.built,
                    "available": one.available,
                    "epochs": round(passes.epochs(one), 6),
                    "lasts_tokens": round(one.lasts(passes.built)),
                }
                for one in passes.supplies
            },
        }


def _asked_size(evidence: Evidence, found: Answering) -> None:
    """What a recipe alone bounds: its target, and the limits of its sources."""
    recipe, training = evidence.recipe, evidence.subject.training
    target = recipe.mixture.target if recipe.mixture is not None else None
    limited = {source.name: source.limit for source in recipe.sources if source.limit is not None}
    if target:
        found.say(f"The recipe asks for {target[1]:,} {target[0]}.")
    else:
        found.say(
            "The recipe sets no target for the whole: "
            + ("its limits bound what is read." if limited else "all that there is is built.")
        )
    for name, limit in limited.items():
        found.say(f"{name}: at most {spelled_limit(limit)} are read.")
    for source in recipe.sources:
        if source.fallback:
            found.say(
                f"{source.fallback} is read for what {source.name} lacks of its limit, and for no more."
            )
    bounds = bounded_tokens(recipe)
    if bounds is not None:
        total = sum(bounds.values())
        listed = ", ".join(f"{name} {spelled_tokens(count)}" for name, count in bounds.items())
        found.say(
            f"That is at most about {spelled_tokens(total)} tokens ({listed}), at {BYTES_PER_TOKEN} bytes each."
        )
        found.figures["tokens_at_most"] = bounds
    if recipe.mixture is not None and recipe.mixture.balance == "smallest":
        found.say("`balance: smallest` then leaves of each domain as many rows as the smallest has.")
    if training.model_params is not None and training.train_tokens is not None:
        found.say(
            f"{training.model_params:,} parameters on {training.train_tokens:,} tokens: "
            f"{spelled(training.train_tokens / training.model_params)} per parameter (about {TOKENS_PER_PARAMETER} are "
            f"compute-optimal, {HOFFMANN})."
        )
    for lacks, reason in ((training.model_params, NO_MODEL), (training.train_tokens, NO_TOKENS)):
        if lacks is None:
            found.lack(reason)
    found.figures["target"] = list(target) if target else None
    found.figures["limits"] = {name: limit.model_dump(exclude_none=True) for name, limit in limited.items()}
    found.base("the recipe: mixture, sources[].limit").lack("what there is: a recipe alone has no tokens")


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
                "`balance: smallest` asks for domains of equal size: of each as many rows (blocks) as the smallest has, and "
                "the rest of the larger ones is left out."
            )
        elif not weights:
            found.say("No weights are asked for: domains are as large as their sources.")
        found.figures["balance"] = recipe.mixture.balance if recipe is not None and recipe.mixture else "none"
        found.lack("tokens of each domain, and how many are left out: a recipe alone has none").base(
            "the recipe"
        )
        return
    groups = together(evidence.subject.builds, domain_tokens)
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
            _shares(found, "Training tokens", lengths.tokens_by("domain", TRAIN))
            found.base("tokens/train/*/lengths-*.parquet")
    _cost_of_balance(evidence, found)


def _cost_of_balance(evidence: Evidence, found: Answering) -> None:
    for builds, cost in together(evidence.subject.builds, balanced):
        boundaries = found.attempt(lambda builds=builds: evidence.boundaries(builds[0]))  # type: ignore[misc]
        has_rows = boundaries is not None and boundaries.classes.word == "domain"
        rows = boundaries.rows_by_class if boundaries is not None and has_rows else {}
        listed = ", ".join(f"{name} {count:,}" for name, count in rows.items())
        found.say(
            f"{named(builds).capitalize()} is balanced in rows ({listed or f'{cost.rows:,} in all'}): {cost.left_out:,} of "
            f"{cost.tokens_in:,} training tokens ({share(cost.left_out, cost.tokens_in)}) are left out for it."
        )
        found.figures["left_out"] = {"tokens": cost.left_out, "of_tokens": cost.tokens_in, "rows": rows}
    if not evidence.has("tokens"):
        return
    available = available_by_domain(evidence)
    total = sum(available.values())
    if len(available) < 2 or max(available.values()) == min(available.values()):
        return
    cut, repeat = cut_to_smallest(available), repeat_smallest(available)
    least = min(available, key=lambda name: (available[name], name))
    found.say(
        f"Of {total:,} training tokens, domains of equal size leave out {share(cut.left_out, total)} if all are cut to {least} "
        f"({cut.each:,} tokens), {share(repeat.left_out, total)} if {least} is seen {spelled(repeat.epochs)} times "
        f"(up to {EPOCHS_HIGH:g} cost next to nothing), and nothing if domains keep their sizes and the loader draws them alike."
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

"""Is it enough for the model: tokens per parameter, how often each source is seen,
and which one is seen again first.

    tokens per parameter    train_tokens / model_params             about 20 are compute-optimal
                                                                    (Hoffmann et al. 2022)
    passes                  train_tokens / tokens of the build      up to 4 cost next to nothing
                                                                    (Muennighoff et al. 2023)
    worth                   U (1 + R (1 - exp(-(passes - 1) / R)))  new tokens that U, so often repeated,
                                                                    stand for; R = 15.4
    a source lasts          what there is of it / its share of the build

Without `train_tokens` the build is passed once.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import msgspec

from tokmill.artifacts.upstream import mixture_of
from tokmill.packing.mixture import Mixture
from tokmill.packing.quotas import Holding, largest_budget
from tokmill.recipe import Limit, Recipe, TrainingPlan
from tokmill.reviews.evidence import Answering, Evidence, check, manifest_of, named, together
from tokmill.reviews.finding import Finding, Found, Measure, NotMeasured, percent, share, spelled
from tokmill.reviews.mixture import (
    EPOCHS_HIGH,
    EPOCHS_MEDIUM,
    domain_weights,
    epochs_of,
    mixed_facts,
    source_weights,
    train_share,
)
from tokmill.reviews.subject import TRAIN, Trained
from tokmill.stages.build.continued import seen_of_target
from tokmill.stages.build.mixture import MixtureOptions

TOKENS_PER_PARAMETER = 20  # compute-optimal (Hoffmann et al. 2022)


HOFFMANN, MUENNIGHOFF = "Hoffmann et al. 2022", "Muennighoff et al. 2023"


_REPEATS_DECAY = 15.39  # R_D* there: repeats beyond so many are worth little, whatever their number


BYTES_PER_TOKEN = 4  # of a recipe, which has neither: as `limit.tokens` is reckoned


NO_MODEL = "how large the model is was not said (`--model-params`, or `review.model_params` in the recipe)"


NO_TOKENS = "how long is trained was not said (`--train-tokens`, or `review.train_tokens` in the recipe)"


class Supply(NamedTuple):
    """A source in the training rows of a build."""

    source: str
    built: int  # tokens, repeats in the build counted again
    epochs: float  # of it in the build: 1, or more where the mixture repeats it
    available: int  # tokens that there are, each once

    def lasts(self, total: int) -> float:
        """Tokens trained on at the shares of the build before it is seen again,
        if all there is of it is used."""
        return self.available * total / self.built


class Passes(NamedTuple):
    built: int
    train_tokens: int
    supplies: tuple[Supply, ...]

    @property
    def number(self) -> float:
        return self.train_tokens / self.built

    def epochs(self, supply: Supply) -> float:
        return self.number * supply.epochs

    @property
    def in_order(self) -> list[Supply]:
        """The source that is seen again first comes first."""
        return sorted(self.supplies, key=lambda one: (one.lasts(self.built), one.source))

    @property
    def worth(self) -> float:
        """New tokens that so many passes stand for."""
        unique = sum(one.built / one.epochs for one in self.supplies)
        repeats = max(self.train_tokens / unique - 1, 0.0)
        return min(
            float(self.train_tokens),
            unique * (1 + _REPEATS_DECAY * (1 - math.exp(-repeats / _REPEATS_DECAY))),
        )


def passes_of(evidence: Evidence, trained: Trained) -> Passes:
    built = evidence.train_tokens(trained)
    total = sum(built.values())
    if not total:
        raise NotMeasured(f"{named([trained])} has no training tokens")
    available = evidence.lengths.sums("tokens", "source", TRAIN) if evidence.has("tokens") else {}
    epochs = _epochs_in(evidence, trained)
    supplies = tuple(
        Supply(name, count, max(epochs.get(name, 1.0), 1.0), available.get(name, count))
        for name, count in built.items()
        if count
    )
    return Passes(total, evidence.subject.training.train_tokens or total, supplies)


def _epochs_in(evidence: Evidence, trained: Trained) -> dict[str, float]:
    """How often each source is seen where all is trained on once."""
    if len(trained.builds) > 1:  # each stage tells its own
        in_rows = evidence.tokens_in_rows(trained.name, trained.builds)
        return {name: one.tokens / one.once for name, one in in_rows.items() if one.once}
    mixture = mixture_of(evidence.subject.artifacts, trained.first.artifact)
    mixed = mixture.manifest.facts["splits"] if mixture is not None else {}
    return {name: epochs_of(told) for name, told in mixed.get(TRAIN, {}).get("sources", {}).items()}


# --- a recipe, which has only its limits ---


def bounded_tokens(recipe: Recipe) -> dict[str, int] | None:
    """At most so many tokens of each domain, as the limits of its sources say;
    None where one has no such limit.

    A fallback is read for what its first source lacks: it brings nothing beyond that limit.
    """
    fallbacks = {source.fallback for source in recipe.sources if source.fallback}
    found: dict[str, int] = {}
    for source in recipe.sources:
        if source.name in fallbacks:
            continue
        bound = _bounded(source.limit)
        if bound is None:
            return None
        found[source.domain] = found.get(source.domain, 0) + bound
    return found


def _bounded(limit: Limit | None) -> int | None:
    if limit is None:
        return None
    bounds = [
        limit.megabytes and limit.megabytes * 1_000_000 // BYTES_PER_TOKEN,
        limit.tokens,
        limit.chars and limit.chars // BYTES_PER_TOKEN,
    ]
    return min((bound for bound in bounds if bound), default=None)


def spelled_limit(limit: Limit) -> str:
    """ "10 MB of text", "500 documents"."""
    told = [
        limit.docs and f"{limit.docs:,} documents",
        limit.chars and f"{limit.chars:,} characters",
        limit.megabytes and f"{limit.megabytes:,} MB of text",
        limit.tokens and f"{limit.tokens:,} tokens (estimated)",
    ]
    return " and ".join(one for one in told if one)


# --- checks ---


@check("Train a smaller model, or on more tokens: about 20 per parameter are compute-optimal.")
def tokens_per_parameter(evidence: Evidence) -> Found:
    """Is the model trained on enough tokens?"""
    params, train_tokens = evidence.subject.training.model_params, evidence.subject.training.train_tokens
    if params is None:
        raise NotMeasured(NO_MODEL)
    if train_tokens is not None:
        trained = [("training", train_tokens, "review.train_tokens, or --train-tokens")]
    else:
        trained = [
            (evidence.named_whole(builds), built, manifest_of(builds[0]))
            for builds, built in together(
                evidence.trained(), lambda build: sum(evidence.train_tokens(build).values())
            )
        ]
        yield f"the build is passed once: {NO_TOKENS}"
    for about, tokens, read_from in trained:
        each = tokens / params
        if each < TOKENS_PER_PARAMETER:
            yield Finding(
                "medium",
                about,
                f"{spelled(each)} tokens per parameter: a smaller model, or more tokens, would have a lower "
                "loss",
                (
                    Measure("trained on", tokens, "tokens", read_from),
                    Measure("model", params, "parameters", "review.model_params, or --model-params"),
                    Measure("tokens per parameter", each, "", read_from),
                ),
                Measure("tokens per parameter", TOKENS_PER_PARAMETER, "", f"compute-optimal, {HOFFMANN}"),
                "less than",
            )


@check(
    "Find more text, or train on less: up to four epochs repeats are nearly as good as new text, beyond that "
    "they are worth less and less."
)
def plan_epochs(evidence: Evidence) -> Found:
    """Does training see its tokens too often?"""
    train_tokens = evidence.subject.training.train_tokens
    if train_tokens is None:
        raise NotMeasured(NO_TOKENS)
    if evidence.subject.kind == "recipe":
        yield from _bounded_epochs(evidence, train_tokens)
        return
    for builds, passes in together(evidence.trained(), lambda build: passes_of(evidence, build)):
        most = max(passes.epochs(one) for one in passes.supplies)
        if most <= EPOCHS_MEDIUM or passes.train_tokens <= passes.built:
            continue
        read_from = manifest_of(builds[0])
        new = percent(passes.built, passes.train_tokens)
        yield _seen_again(
            most,
            evidence.named_whole(builds),
            f"{passes.train_tokens:,} tokens are {spelled(passes.number)} passes over its {passes.built:,}; "
            f"worth about {spelled_tokens(passes.worth)} new ones",
            (
                Measure("passes", passes.number, "", read_from),
                *(
                    Measure(f"source {one.source} is seen", passes.epochs(one), "times", read_from)
                    for one in passes.supplies
                ),
                Measure("of the tokens trained on are new", new, "%", read_from),
            ),
        )


def _seen_again(epochs: float, about: str, says: str, evidence: tuple[Measure, ...]) -> Finding:
    is_high = epochs > EPOCHS_HIGH
    bound = Measure("epochs", EPOCHS_HIGH if is_high else EPOCHS_MEDIUM, "", MUENNIGHOFF)
    return Finding("high" if is_high else "low", about, says, evidence, bound)


def _bounded_epochs(evidence: Evidence, train_tokens: int) -> Found:
    bounds = bounded_tokens(evidence.recipe)
    if bounds is None:
        raise NotMeasured("a recipe alone has no tokens, and not every source has a `limit` that bounds them")
    most = sum(bounds.values())
    at_least = train_tokens / most
    yield f"limits were taken as tokens of {BYTES_PER_TOKEN} bytes each, of which nothing is dropped"
    if at_least > EPOCHS_MEDIUM:
        read_from = f"{evidence.subject.recipe_file}: limit"
        yield _seen_again(
            at_least,
            "sources",
            f"their limits allow about {most:,} tokens: {train_tokens:,} are {spelled(at_least)} passes at "
            "least",
            (
                Measure("passes, at least", at_least, "", read_from),
                *(
                    Measure(f"domain {name}, at most", count, "tokens", read_from)
                    for name, count in bounds.items()
                ),
            ),
        )


# --- the answer ---


def size_target(evidence: Evidence, found: Answering) -> None:
    """Is it large enough: how large can the build be, how large is it, and how large should it be?"""
    if evidence.subject.kind == "recipe":
        _asked_size(evidence, found)
        return
    lengths = found.attempt(lambda: evidence.lengths)
    if lengths is not None:
        tokens = lengths.sums("tokens", "source", TRAIN)
        available = sum(tokens.values())
        found.say(
            f"There are {available:,} training tokens in "
            f"{sum(lengths.sums('docs', 'source', TRAIN).values()):,} documents."
        )
        found.figures["available_tokens"] = available
        weights = None if evidence.has_stages or not _is_plain(evidence) else domain_weights(evidence)
        if weights:
            domains = {part.source: part.domain for part in lengths.parts}
            holdings = [Holding(name, domains[name], count) for name, count in tokens.items()]
            of_domains = {name: weights.get(name, Fraction(0)) for name in domains.values()}
            reach = largest_budget(holdings, Mixture(of_domains, source_weights(evidence)))
            found.say(f"With the weights asked for, {reach:,} can be built before a source is exhausted.")
            found.figures["reach_without_repeats"] = reach
        found.base("tokens/train/*/lengths-*.parquet")
    if evidence.has("mixture"):
        facts, options = mixed_facts(evidence), evidence.artifact("mixture").manifest.options(MixtureOptions)
        found.say(f"The schedule has {facts.get('tokens', 0):,} training tokens.")
        if options.target is not None:
            unit, amount = options.target
            part = float(train_share(evidence, options))
            told = f"The target is {amount:,} {unit}, of which {share(part, 1)} is for training"
            if options.continues:
                seq_len = None if options.seq_len is msgspec.UNSET else options.seq_len
                told += f"; {seen_of_target(unit, seq_len, options.continues):,} were trained on before"
            found.say(f"{told}.")
        found.figures |= {
            "target": options.target and list(options.target),
            "scheduled_tokens": facts.get("tokens"),
        }
        found.base("mixture/manifest.json")
    for builds, written in together(
        evidence.subject.builds, lambda build: build.artifact.manifest.counts.get("tokens", {}).get("written")
    ):
        found.say(f"{named(builds).capitalize()}: {written:,} tokens written, all splits together.")
        found.figures.setdefault("written_tokens", {})[named(builds)] = written
        found.base("build/*/manifest.json" if evidence.subject.found else "manifest.json")
    _for_the_model(evidence, found)


def _is_plain(evidence: Evidence) -> bool:
    """Every document is offered once: none was seen before, and no score says how often."""
    if evidence.has("mixture"):
        options = evidence.artifact("mixture").manifest.options(MixtureOptions)
        return not (options.chosen or options.continues)
    recipe = evidence.subject.recipe
    asked = recipe.mixture if recipe is not None else None
    return asked is None or (asked.repeat is None and asked.select is None)


def _lack_of_plan(training: TrainingPlan, found: Answering) -> None:
    for planned, reason in ((training.model_params, NO_MODEL), (training.train_tokens, NO_TOKENS)):
        if planned is None:
            found.lack(reason)


def _for_the_model(evidence: Evidence, found: Answering) -> None:
    training = evidence.subject.training
    _lack_of_plan(training, found)
    trained = evidence.trained() if evidence.subject.builds else []
    groups = found.attempt(lambda: together(trained, lambda build: passes_of(evidence, build))) or []
    for builds, passes in groups[1:]:
        found.say(
            f"{evidence.named_whole(builds).capitalize()}: {spelled(passes.number)} passes over "
            f"{passes.built:,} training tokens."
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
            "first_to_repeat": passes.in_order[0].source,
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


def size_sentences(evidence: Evidence, passes: Passes) -> list[str]:
    """What an answer says of one build."""
    params, asked = evidence.subject.training.model_params, evidence.subject.training.train_tokens
    said = []
    if params is not None:
        said.append(
            f"{params:,} parameters on {passes.train_tokens:,} tokens: "
            f"{spelled(passes.train_tokens / params)} per parameter (about {TOKENS_PER_PARAMETER} are "
            f"compute-optimal, {HOFFMANN}: {TOKENS_PER_PARAMETER * params:,})."
        )
    if asked is not None:
        said.append(
            f"That is {spelled(passes.number)} passes over {passes.built:,} training tokens, worth about "
            f"{spelled_tokens(passes.worth)} new ones (up to {EPOCHS_HIGH:g} passes cost next to nothing, "
            f"{MUENNIGHOFF})."
        )
    first, *others = passes.in_order
    if others and evidence.has("tokens"):  # a build by itself has no more than was built
        later = ", ".join(
            f"{one.source} after {spelled_tokens(one.lasts(passes.built))}" for one in others[:3]
        )
        said.append(
            f"{first.source} repeats first: at the built shares all there is of it has been seen after "
            f"{spelled_tokens(first.lasts(passes.built))} tokens; {later}."
        )
    enough = EPOCHS_HIGH * passes.built / TOKENS_PER_PARAMETER
    said.append(
        f"{EPOCHS_HIGH:g} passes over the build, at {TOKENS_PER_PARAMETER} tokens per parameter, are enough "
        f"for a model of {spelled_tokens(enough)} parameters."
    )
    return said


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
            f"That is at most about {spelled_tokens(total)} tokens ({listed}), at {BYTES_PER_TOKEN} bytes "
            "each."
        )
        found.figures["tokens_at_most"] = bounds
    if recipe.mixture is not None and recipe.mixture.balance == "smallest":
        found.say("`balance: smallest` then leaves of each domain as many rows as the smallest has.")
    if training.model_params is not None and training.train_tokens is not None:
        found.say(
            f"{training.model_params:,} parameters on {training.train_tokens:,} tokens: "
            f"{spelled(training.train_tokens / training.model_params)} per parameter (about "
            f"{TOKENS_PER_PARAMETER} are compute-optimal, {HOFFMANN})."
        )
    _lack_of_plan(training, found)
    found.figures["target"] = list(target) if target else None
    found.figures["limits"] = {name: limit.model_dump(exclude_none=True) for name, limit in limited.items()}
    found.base("the recipe: mixture, sources[].limit").lack("what there is: a recipe alone has no tokens")


def spelled_tokens(count: float) -> str:
    """12,345 · 1.23 M · 4.5 B: of estimates three places are enough."""
    for factor, sign in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if count >= factor:
            return f"{count / factor:.3g} {sign}"
    return f"{round(count):,}"

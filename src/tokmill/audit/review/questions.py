"""Eight questions that a project of code, mathematics and prose asks before it trains, answered with figures.

An answer is put together from what was measured, and names it; what was not measured it says too. In a recipe alone
nothing is measured, so the answers are what it asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from tokmill.audit.review.answering import Answering, answering
from tokmill.audit.review.checks.mixing import domain_tokens, domain_weights, mixed_facts, train_share
from tokmill.audit.review.evidence import Evidence, named, together
from tokmill.audit.review.finding import Answer, plural, share, spelled
from tokmill.audit.review.lengths import TRAIN
from tokmill.audit.review.packed import built_sources, packing_cost
from tokmill.audit.review.reading_answers import (
    code_languages,
    evaluation_risks,
    held_out_set,
    math_styles,
)
from tokmill.pack.budget import Holding, largest_budget
from tokmill.pack.mixture import Mixture


def answer_questions(evidence: Evidence) -> list[Answer]:
    return [answering(question, answer, evidence) for question, answer in QUESTIONS]


def source_choice(evidence: Evidence, found: Answering) -> None:
    """Which sources, and what does each give?"""
    ingested = evidence.subject.of_kind("ingest")
    if not ingested and evidence.subject.kind == "build":
        for build in found.attempt(evidence.builds) or []:
            counts = build.artifact.manifest.counts.get("sources", {})
            total = sum(told["tokens"] for told in counts.values())
            for name, told in counts.items():
                found.say(
                    f"{name}: {plural(told['docs'], 'document')}, {share(told['tokens'], total)} of the tokens."
                )
                found.figures[name] = dict(told)
            found.base("manifest.json: counts.sources")
        return
    if not ingested:
        for source in evidence.recipe.sources:
            place = (
                source.hub.dataset
                if source.hub is not None
                else ", ".join(source.files or ["a corpus manifest"])
            )
            found.say(f"{source.name} ({source.domain}): {place}, licence {source.license or 'not stated'}.")
            found.figures[source.name] = {"domain": source.domain, "license": source.license}
        found.base("the recipe").lack("documents, tokens and what each source loses: a recipe alone has none")
        return
    lengths = found.attempt(lambda: evidence.lengths)
    tokens = lengths.tokens_by("source") if lengths is not None else {}
    docs = lengths.docs_by("source") if lengths is not None else {}
    total = sum(tokens.values())
    built = (found.attempt(lambda: built_sources(evidence, evidence.builds()[0])) if lengths else None) or {}
    for name, artifact in ingested.items():
        counts = artifact.manifest.counts
        figures = {"records": counts["in"], "ingested": counts["kept"], "text_bytes": counts["text_bytes"]}
        told = f"{name} ({artifact.manifest.config['reading']['domain']}): {plural(counts['in'], 'record')}"
        if name in tokens:
            figures |= {"documents": docs[name], "tokens": tokens[name]}
            told += f", {docs[name]:,} of them kept, {tokens[name]:,} tokens ({share(tokens[name], total)})"
        if name in built:
            figures |= {"built_documents": built[name].docs, "built_tokens": built[name].tokens}
            told += f", {built[name].docs:,} of them built ({share(built[name].docs, counts['in'])})"
            told += f" with {built[name].tokens:,} tokens"
        scanned = artifact.manifest.facts.get("scanned", {})
        if not scanned.get("is_complete", True):
            told += f", {share(scanned['fraction'], 1)} of the source read"
        found.say(f"{told}, licence {artifact.manifest.config['reading'].get('license') or 'by document'}.")
        found.figures[name] = figures
    found.base("ingest/*/manifest.json", "tokens/*/lengths-*.parquet" if tokens else "")


def size_target(evidence: Evidence, found: Answering) -> None:
    """How large can the build be, and how large is it?"""
    recipe = evidence.subject.recipe
    target = recipe.mixture.target if recipe is not None and recipe.mixture is not None else None
    if evidence.subject.kind == "recipe":
        found.say(
            f"The recipe asks for {target[1]:,} {target[0]}."
            if target
            else "The recipe sets no target: all that there is is built."
        )
        found.figures["target"] = list(target) if target else None
        found.base("the recipe: mixture").lack("what there is: a recipe alone has no tokens")
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


def balance(evidence: Evidence, found: Answering) -> None:
    """Are the domains in balance?"""
    weights = domain_weights(evidence)
    if weights:
        asked = ", ".join(f"{name} {spelled(float(100 * weight))} %" for name, weight in weights.items())
        found.say(f"Asked for: {asked}.")
        found.figures["weights"] = {name: float(weight) for name, weight in weights.items()}
        found.base("mixture.weights")
    elif evidence.subject.kind == "recipe":
        found.say("No weights are asked for: domains are as large as they are.")
    if evidence.subject.kind == "recipe":
        found.lack("tokens of each domain: a recipe alone has none").base("the recipe")
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


def _shares(found: Answering, what: str, tokens: dict[str, int]) -> None:
    total = sum(tokens.values())
    listed = ", ".join(f"{name} {count:,} ({share(count, total)})" for name, count in tokens.items())
    present = [count for count in tokens.values() if count]
    ratio = (
        f"; the largest has {spelled(max(present) / min(present))} times the smallest"
        if len(present) > 1
        else ""
    )
    found.say(f"{what}: {listed}{ratio}.")
    found.figures[what.lower()] = dict(tokens)


def packing_pitfalls(evidence: Evidence, found: Answering) -> None:
    """What does packing cost?"""
    if evidence.subject.kind == "recipe":
        pack = evidence.recipe.pack
        found.say(f"The recipe asks for layout {pack.layout}, rows of {pack.length:,}, tail {pack.tail}.")
        found.base("the recipe: pack").lack("what that costs: it depends on the lengths of the documents")
        return
    for build in found.attempt(evidence.builds) or []:
        pack, tokens = build.artifact.manifest.config["pack"], build.artifact.manifest.counts["tokens"]
        told = f"{named([build]).capitalize()} ({pack['layout']}"
        told += f", rows of {pack['length']:,})" if "length" in pack else ")"
        columns = tokens["written"] + tokens["padding"]
        told += f": padding {share(tokens['padding'], columns)} of the columns, tail dropped {share(tokens['tail_dropped'], tokens['in'])}"
        told += f", truncated {share(tokens['truncated'], tokens['in'])}, left out {share(tokens['left_out'], tokens['in'])} of the tokens"
        cost = found.attempt(lambda build=build: packing_cost(evidence, build))  # type: ignore[misc]
        figures = dict(tokens)
        if cost is not None:
            told += f"; {cost.without_beginning:,} of {cost.documents:,} documents lack their beginning, {cost.without_end:,} their end"
            told += f"; {share(cost.fragmented, cost.documents)} of the documents on more than one row"
            told += f", {share(cost.cross_document, cost.tokens_kept)} of the tokens after another document in their row"
            told += f", {share(cost.rows_of_several, cost.rows)} of the rows hold more than one document"
            figures |= cost.as_json()
        found.say(f"{told}.")
        found.figures[build.name] = figures
        found.base(
            "build/*/manifest.json" if evidence.subject.found else "manifest.json",
            "train/index.jsonl.zst, places.npy and ids of the build" if cost else "",
        )


QUESTIONS: tuple[tuple[str, Callable[[Evidence, Answering], None]], ...] = (
    ("Which sources, and what does each give?", source_choice),
    ("How large can the build be?", size_target),
    ("Are the domains in balance?", balance),
    ("Which programming languages is the code in?", code_languages),
    ("Do two styles of mathematics mix?", math_styles),
    ("What is held out, and is it clean?", held_out_set),
    ("What does packing cost?", packing_pitfalls),
    ("What would make an evaluation look better than it is?", evaluation_risks),
)

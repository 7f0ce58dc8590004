"""Ten questions that a project of code, mathematics and prose asks before it trains, answered with figures.

An answer is put together from what was measured, and names it; what was not measured it says too. In a recipe alone
nothing is measured, so the answers are what it asks for.
"""

from __future__ import annotations

from collections.abc import Callable

from tokmill.audit.review.answering import Answering, answering
from tokmill.audit.review.boundaries import boundary_figures, boundary_sentences
from tokmill.audit.review.evidence import Evidence, manifest_of, named
from tokmill.audit.review.finding import Answer, plural, share
from tokmill.audit.review.packed import built_sources, packing_cost
from tokmill.audit.review.reading_answers import (
    code_languages,
    evaluation_risks,
    held_out_set,
    leftovers,
    math_styles,
)
from tokmill.audit.review.separability import separability
from tokmill.audit.review.size_answers import balance, size_target


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


def packing(evidence: Evidence, found: Answering) -> None:
    """What does packing cost, and what does a row lack?"""
    packing_pitfalls(evidence, found)
    for build in evidence.subject.builds:
        if "length" not in build.artifact.manifest.config["pack"]:
            continue  # every document is whole
        boundaries = found.attempt(lambda build=build: evidence.boundaries(build))  # type: ignore[misc]
        if boundaries is not None and boundaries.pieces:
            for sentence in boundary_sentences(build, boundaries):
                found.say(sentence)
            found.figures.setdefault("boundaries", {})[build.name] = boundary_figures(boundaries)
            found.base(
                f"{manifest_of(build).removesuffix('manifest.json')}train/index.jsonl.zst and the rows"
            )


QUESTIONS: tuple[tuple[str, Callable[[Evidence, Answering], None]], ...] = (
    ("Which sources, and what does each give?", source_choice),
    ("Is it large enough?", size_target),
    ("Are the domains in balance, and what does that cost?", balance),
    ("Which programming languages is the code in?", code_languages),
    ("Do two styles of mathematics mix?", math_styles),
    ("What have the datasets left in their texts?", leftovers),
    ("What is held out, is it clean, and is it enough to measure?", held_out_set),
    ("What does packing cost, and what does a row lack?", packing),
    ("How well are domains told apart by surface tokens alone?", separability),
    ("What would make an evaluation look better than it is?", evaluation_risks),
)

"""What a build is made of: languages, drift from its first half to its last,
one document that outweighs the others, bytes.

lengths of documents ─ language_mixture      turns of the mixture ─ drift, giant_document
texts.py ─ labels of code                    tokmill verify ─ counts_and_hashes
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from tokmill.artifacts.upstream import UNKNOWN
from tokmill.audit.proofs import Problem
from tokmill.errors import plural
from tokmill.reviews.evidence import RECIPE_ALONE, Evidence, check, named
from tokmill.reviews.finding import (
    Finding,
    Found,
    Measure,
    NotMeasured,
    Severity,
    part,
    percent,
    share,
    spelled,
)
from tokmill.reviews.subject import Turns

MIN_DOMINANT = 0.95  # of the tokens of a domain, in one language
MAX_DRIFT = 0.03  # between the first and the last half of the build
# and more than chance gives documents of such lengths: 300 short ones differ by 3 % for no reason
SIGMAS = 3.0
MAX_DOCUMENT = 0.01  # of the tokens of a build


CODE = "code"


@check(
    "Set `language: {method: detect, keep: […]}`, or name the field that holds it; give code a language "
    "label."
)
def language_mixture(evidence: Evidence) -> Found:
    """Is the language of each domain known, and one?
    Of code they are labels, and many of them are no fault."""
    if evidence.subject.kind == "recipe":
        yield from _no_language_asked(evidence)
        return
    by_domain: dict[str, Counter[str]] = {}
    for row in evidence.lengths.parts:
        sums = by_domain.setdefault(row.domain, Counter())
        sums.update({name: total["tokens"] for name, total in row.languages.items()})
    read_from = "tokens/*/lengths-*.parquet: language"
    for domain, tokens in by_domain.items():
        if CODE in domain.lower():
            yield from _code_labels(evidence, domain)
            continue
        total = tokens.total()
        ranked = sorted(tokens.items(), key=lambda item: (-item[1], item[0]))
        figures = tuple(
            Measure(name, percent(count, total), "% of the tokens", read_from) for name, count in ranked[:5]
        )
        known = [(name, count) for name, count in ranked if name != UNKNOWN]
        if total and not known:
            says = "no document has a language: there is no field, and none was detected"
            yield _language("low", f"domain {domain}", says, figures)
        elif total and known[0][1] < MIN_DOMINANT * total:
            says = f"{known[0][0]}, the most common language, is {share(known[0][1], total)} of the tokens"
            yield _language("medium", f"domain {domain}", says, figures)


def _language(severity: Severity, about: str, says: str, evidence: tuple[Measure, ...]) -> Finding:
    least = 100 * MIN_DOMINANT
    bound = Measure("the dominant language", least, "% of the tokens of a domain", "or a field at all")
    return Finding(severity, about, says, evidence, bound, "less than")


def _code_labels(evidence: Evidence, domain: str) -> Iterator[Finding]:
    tallies = [tally for tally in evidence.texts.sources.values() if tally.domain == domain]
    docs = sum(tally.docs for tally in tallies)
    if docs and not any(tally.told_by for tally in tallies):
        read_from = "ingest/*/documents-*.parquet: meta, doc_id"
        says = f"none of {plural(docs, 'document')} says which programming language it is in"
        none = Measure("with a label or a file ending", 0, "documents", read_from)
        yield _language("low", f"domain {domain}", says, (none,))


def _no_language_asked(evidence: Evidence) -> Iterator[Finding]:
    recipe = evidence.recipe
    for source in recipe.sources:
        sections = (source.clean, recipe.domains.get(source.domain), recipe)
        if CODE in source.domain.lower() or any(getattr(section, "language", None) for section in sections):
            continue
        read_from = f"{evidence.subject.recipe_file}: {source.name}"
        none = Measure("sections that look at languages", 0, "", read_from)
        says = "no `language` section looks at its documents"
        yield _language("low", f"source {source.name}", says, (none,))


# --- drift ---


@check("Give the run a `mixture` (its schedule keeps every stretch alike) with `order: shuffle`.")
def drift(evidence: Evidence) -> Found:
    """Is the first half of the build like the last, beyond what chance gives?"""
    if evidence.subject.found is None:
        yield from _drift_of_rows(evidence)
        return
    order = "mixture/order-train.parquet" if evidence.has("mixture") else "in the order of the corpus"
    halves_of = named([evidence.main]) if evidence.main is not None else "the training data"
    for stage, turns in zip(evidence.stages_of_turns, evidence.turns_of_stages, strict=True):
        if stage:  # each has weights of its own: from one to the next is no drift
            order, halves_of = f"stage/{stage}/order-train.parquet", f"the stage {stage}"
        if len(turns.lengths) > 1:
            yield from _drift_of(turns, halves_of, f"tokens/train/*/lengths-*.parquet, {order}")


def _drift_of(turns: Turns, halves_of: str, read_from: str) -> Iterator[Finding]:
    first, last = turns.halves()
    for source in dict.fromkeys(shard.source for shard in first.shards):
        (before, variance), (after, variance_after) = first.share(source), last.share(source)
        error = 100 * math.sqrt(variance + variance_after)
        halves, change = (100 * before, 100 * after), 100 * (after - before)
        about, what = f"source {source}", "% of the tokens"
        yield from _drifted(about, what, halves_of, halves, change, "points", error, read_from)
    for what, of in (("tokens a document", "mean_length"), ("bytes of text a token", "bytes_per_token")):
        (before, variance), (after, variance_after) = getattr(first, of)(), getattr(last, of)()
        middle = (before + after) / 2
        error = 100 * math.sqrt(variance + variance_after) / middle
        halves, change = (before, after), 100 * (after - before) / middle
        yield from _drifted("training data", what, halves_of, halves, change, "%", error, read_from)


def _drifted(
    about: str,
    what: str,
    halves_of: str,
    halves: tuple[float, float],
    change: float,
    unit: str,
    error: float,
    read_from: str,
) -> Iterator[Finding]:
    if abs(change) > 100 * MAX_DRIFT and abs(change) > SIGMAS * error:
        before, after = halves
        yield Finding(
            "medium",
            about,
            f"{spelled(before)} {what} in the first half of {halves_of}, {spelled(after)} in the last",
            (
                Measure("first half", before, what, read_from),
                Measure("last half", after, what, read_from),
                Measure("change", change, unit, read_from),
                Measure("one standard error of that", error, unit, read_from),
            ),
            Measure("between the halves", 100 * MAX_DRIFT, unit, f"and {SIGMAS:g} standard errors"),
        )


def _drift_of_rows(evidence: Evidence) -> Found:
    if evidence.subject.kind == "recipe":
        raise NotMeasured(RECIPE_ALONE)
    rows = evidence.rows(evidence.builds()[0]).splits[0]
    halves = [sum(half) for half in zip(*rows.by_source.values(), strict=True)] or [0, 0]
    for source, tokens in rows.by_source.items():
        before, after = (percent(half, whole) for half, whole in zip(tokens, halves, strict=True))
        if all(halves) and abs(after - before) > 100 * MAX_DRIFT:
            yield Finding(
                "medium",
                f"source {source}",
                f"share of the tokens: {spelled(before)} % in the first half of the rows, {spelled(after)} % "
                "in the last",
                (
                    Measure("first half", before, "% of the tokens", "index.jsonl.zst"),
                    Measure("last half", after, "% of the tokens", "index.jsonl.zst"),
                ),
                Measure("between the halves", 100 * MAX_DRIFT, "points", ""),
            )
    yield "lengths and bytes a token were not compared: a published build holds neither"


@check("Cut it into parts before ingest, or bound it with a filter on `chars`.")
def giant_document(evidence: Evidence) -> Found:
    """Is one document a large part of the build?"""
    if evidence.has("tokens"):
        tokens, doc_id, source, total = evidence.turns.longest()
        read_from = "tokens/train/*/lengths-*.parquet"
        within = f" in {named([evidence.main])}" if evidence.main is not None else ""
    else:
        rows = evidence.rows(evidence.builds()[0]).splits[0]
        (tokens, doc_id, source), total, read_from = rows.longest, rows.tokens, "index.jsonl.zst"
        within = ""
    if tokens > MAX_DOCUMENT * total:
        yield Finding(
            "medium",
            f"document {source}/{doc_id}",
            f"{tokens:,} of {total:,} training tokens ({share(tokens, total)}){within} are one document",
            part("its tokens", tokens, "tokens", "of the training tokens", total, read_from),
            Measure("one document", 100 * MAX_DOCUMENT, "% of the tokens of a build", "training split"),
        )


# --- counts and hashes ---

# What a run that was cut short leaves, and files that people put beside it: no mismatch, but worth a word.
_UNFINISHED = ("the run is not finished", "left over from", "is not part of this run")
_EXTRA = "extra file"

_SHOWN = 5


@check(
    "Run the recipe again: what is damaged is made anew, the rest is kept. `tokmill verify` lists every file."
)
def counts_and_hashes(evidence: Evidence) -> Found:
    """Do counts and hashes match?"""
    proven = evidence.verification
    unfinished = [problem for problem in proven.problems if problem.what.startswith(_UNFINISHED)]
    extra = [problem for problem in proven.problems if problem.what.startswith(_EXTRA)]
    wrong = [problem for problem in proven.problems if problem not in unfinished and problem not in extra]
    if unfinished:
        yield f"the run is not finished: {_listed(unfinished)}"
    if extra:
        yield f"{plural(len(extra), 'file')} that no manifest lists were not read: {_listed(extra)}"
    if wrong:
        yield Finding(
            "high",
            wrong[0].where,
            f"{len(wrong):,} files or counts of {plural(proven.files, 'file')} do not match: {wrong[0].what}",
            (
                Measure("that do not match", len(wrong), "files or counts", "tokmill verify"),
                *(Measure(problem.where, problem.what, "", problem.where) for problem in wrong[:_SHOWN]),
            ),
            Measure("that do not match", 0, "files or counts", "every manifest"),
        )


def _listed(problems: list[Problem]) -> str:
    shown = ", ".join(problem.where for problem in problems[:_SHOWN])
    return shown + (f" and {len(problems) - _SHOWN:,} more" if len(problems) > _SHOWN else "")

"""Counts and hashes, as `tokmill verify` proves them.

What the documents are, in the order of the build: languages, drift, and one that outweighs the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tokmill.artifacts.step import UNKNOWN
from tokmill.audit.proofs import Problem
from tokmill.reviews.evidence import RECIPE_ALONE, Evidence
from tokmill.reviews.finding import (
    MAX_DOCUMENT,
    MAX_DRIFT,
    MIN_DOMINANT,
    SIGMAS,
    Assumption,
    Finding,
    Found,
    Measure,
    NotMeasured,
    percent,
    plural,
    share,
    spelled,
)
from tokmill.reviews.subject import Half

CODE = "code"


def language_mixture(evidence: Evidence) -> Found:
    """Of each domain in tokens; the languages of code are labels of its documents, and many of them are no fault."""
    bound = Measure(
        "the dominant language", 100 * MIN_DOMINANT, "% of the tokens of a domain", "or a field at all"
    )
    if evidence.subject.kind == "recipe":
        yield from _no_language_asked(evidence, bound)
        return
    by_domain: dict[str, dict[str, int]] = {}
    for part in evidence.lengths.parts:
        sums = by_domain.setdefault(part.domain, {})
        for name, total in part.languages.items():
            sums[name] = sums.get(name, 0) + total["tokens"]
    read_from = "tokens/*/lengths-*.parquet: language"
    for domain, tokens in by_domain.items():
        if CODE in domain.lower():
            yield from _code_labels(evidence, domain, bound)
            continue
        total = sum(tokens.values())
        ranked = sorted(tokens.items(), key=lambda item: (-item[1], item[0]))
        figures = tuple(
            Measure(name, percent(count, total), "% of the tokens", read_from) for name, count in ranked[:5]
        )
        known = [(name, count) for name, count in ranked if name != UNKNOWN]
        if total and not known:
            says = "no document has a language: there is no field, and none was detected"
            yield Finding("language_mixture", "low", f"domain {domain}", says, figures, bound, "less than")
        elif total and known[0][1] < MIN_DOMINANT * total:
            says = f"{known[0][0]}, the most common language, is {share(known[0][1], total)} of the tokens"
            yield Finding("language_mixture", "medium", f"domain {domain}", says, figures, bound, "less than")


def _code_labels(evidence: Evidence, domain: str, bound: Measure) -> Iterator[Finding]:
    tallies = [tally for tally in evidence.texts.sources.values() if tally.domain == domain]
    docs = sum(tally.docs for tally in tallies)
    labelled = sum(sum(tally.code_labels.values()) for tally in tallies)
    ended = sum(sum(tally.endings.values()) for tally in tallies)
    if docs and not labelled and not ended:
        yield Finding(
            "language_mixture",
            "low",
            f"domain {domain}",
            f"none of {plural(docs, 'document')} says which programming language it is in",
            (
                Measure(
                    "with a label or a file ending",
                    0,
                    "documents",
                    "ingest/*/documents-*.parquet: meta, doc_id",
                ),
            ),
            bound,
            "less than",
        )


def _no_language_asked(evidence: Evidence, bound: Measure) -> Iterator[Finding]:
    recipe = evidence.recipe
    for source in recipe.sources:
        domain = recipe.domains.get(source.domain)
        sections = (source.clean, domain, recipe)
        if CODE in source.domain.lower() or any(getattr(section, "language", None) for section in sections):
            continue
        yield Finding(
            "language_mixture",
            "low",
            f"source {source.name}",
            "no `language` section looks at its documents",
            (
                Measure(
                    "sections that look at languages", 0, "", f"{evidence.subject.recipe_file}: {source.name}"
                ),
            ),
            bound,
            "less than",
        )


# --- drift ---


def drift(evidence: Evidence) -> Found:
    """Between the halves of the training data, in the order of the build, and beyond what chance gives."""
    if evidence.subject.found is None:
        yield from _drift_of_rows(evidence)
        return
    first, last = evidence.turns.halves()
    read_from = "tokens/train/*/lengths-*.parquet, " + (
        "mixture/order-train.parquet" if evidence.has("mixture") else "in the order of the corpus"
    )
    for source in first.by_source:
        (before, error_before), (after, error_after) = first.share(source), last.share(source)
        yield from _drifted(
            f"source {source}", "% of the tokens", 100 * before, 100 * after, 100 * (after - before), "points",
            100 * math.sqrt(error_before + error_after), read_from,
        )  # fmt: skip
    for what, of in (("tokens a document", "mean_length"), ("bytes of text a token", "bytes_per_token")):
        yield from _relative(what, first, last, of, read_from)


def _relative(what: str, first: Half, last: Half, of: str, read_from: str) -> Iterator[Finding]:
    (before, error_before), (after, error_after) = getattr(first, of), getattr(last, of)
    middle = (before + after) / 2
    error = 100 * math.sqrt(error_before + error_after) / middle
    yield from _drifted(
        "training data", what, before, after, 100 * (after - before) / middle, "%", error, read_from
    )


def _drifted(
    about: str, what: str, before: float, after: float, change: float, unit: str, error: float, read_from: str
) -> Iterator[Finding]:
    if abs(change) > 100 * MAX_DRIFT and abs(change) > SIGMAS * error:
        yield Finding(
            "drift",
            "medium",
            about,
            f"{spelled(before)} {what} in the first half of the build, {spelled(after)} in the last",
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
    build = evidence.builds()[0]
    rows = evidence.rows(build).splits[0]
    halves = [sum(half) for half in zip(*rows.by_source.values(), strict=True)] or [0, 0]
    for source, (before, after) in rows.by_source.items():
        shares = percent(before, halves[0]), percent(after, halves[1])
        if all(halves) and abs(shares[1] - shares[0]) > 100 * MAX_DRIFT:
            yield Finding(
                "drift",
                "medium",
                f"source {source}",
                f"share of the tokens: {spelled(shares[0])} % in the first half of the rows, {spelled(shares[1])} % in the last",
                (
                    Measure("first half", shares[0], "% of the tokens", "index.jsonl.zst"),
                    Measure("last half", shares[1], "% of the tokens", "index.jsonl.zst"),
                ),
                Measure("between the halves", 100 * MAX_DRIFT, "points", ""),
            )
    yield Assumption("drift", "lengths and bytes a token were not compared: a published build holds neither")


def giant_document(evidence: Evidence) -> Found:
    bound = Measure("one document", 100 * MAX_DOCUMENT, "% of the tokens of a build", "training split")
    if evidence.has("tokens"):
        found, doc_id, source, total = evidence.turns.longest()
        read_from = "tokens/train/*/lengths-*.parquet"
    else:
        rows = evidence.rows(evidence.builds()[0]).splits[0]
        (found, doc_id, source), total, read_from = rows.longest, rows.tokens, "index.jsonl.zst"
    if found > MAX_DOCUMENT * total:
        yield Finding(
            "giant_document",
            "medium",
            f"document {source}/{doc_id}",
            f"{found:,} of {total:,} training tokens ({share(found, total)}) are one document",
            (
                Measure("its tokens", found, "tokens", read_from),
                Measure("of the training tokens", percent(found, total), "%", read_from),
            ),
            bound,
        )


# What a run that was cut short leaves, and files that people put beside it: no mismatch, but worth a word.
_UNFINISHED = ("the run is not finished", "left over from", "is not part of this run")
_EXTRA = "extra file"

_SHOWN = 5


def counts_and_hashes(evidence: Evidence) -> Found:
    proven = evidence.verification
    unfinished = [problem for problem in proven.problems if problem.what.startswith(_UNFINISHED)]
    extra = [problem for problem in proven.problems if problem.what.startswith(_EXTRA)]
    wrong = [problem for problem in proven.problems if problem not in unfinished and problem not in extra]
    if unfinished:
        yield Assumption("counts_and_hashes", f"the run is not finished: {_listed(unfinished)}")
    if extra:
        yield Assumption(
            "counts_and_hashes",
            f"{plural(len(extra), 'file')} that no manifest lists were not read: {_listed(extra)}",
        )
    if wrong:
        yield Finding(
            "counts_and_hashes",
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

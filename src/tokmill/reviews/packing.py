"""What packing costs: tokens that no row holds, columns that hold nothing,
documents that are cut or do not end.

counts of builds ─ tail_drop, padding, truncation
rows.py ─ index and ids ─ missing_eos, and the answer: what the pieces of documents in a row lack
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tokmill.artifacts.manifest import Json
from tokmill.reviews.evidence import (
    Answering,
    Evidence,
    check,
    manifest_of,
    named,
    place_of,
    together,
)
from tokmill.reviews.finding import Finding, Found, Measure, NotMeasured, Severity, part, share
from tokmill.reviews.rows import Boundaries, SplitRows
from tokmill.reviews.subject import TRAIN, Build

MAX_TAIL, MAX_PADDING = 0.005, 0.02  # of the tokens, of the columns
PADDING_MEDIUM = 0.20  # a fifth of the compute
TRUNCATION_HIGH = 0.01  # of the tokens; one truncated token is told


Lost = tuple[int, int]  # tokens that came in, and those of them that were lost


@check("Use `tail: pad`, a shorter `length`, or `layout: best_fit`.")
def tail_drop(evidence: Evidence) -> Found:
    """How much is lost after the last whole row?"""
    for builds, (whole, lost) in together(evidence.builds(), _counted("tail_dropped")):
        if lost > MAX_TAIL * whole:
            says = "tokens ({}) follow the last whole row, and are in none"
            bound = Measure("tail dropped", 100 * MAX_TAIL, "% of the tokens", "all splits together")
            yield _lost("medium", builds, says, "tail dropped", lost, "tokens", whole, bound)


@check("Use `layout: best_fit` (`tokmill layouts` says what each costs).")
def padding(evidence: Evidence) -> Found:
    """How many columns hold nothing?"""
    for builds, (whole, empty) in together(evidence.builds(), _counted("padding")):
        if empty > MAX_PADDING * whole:
            severity: Severity = "medium" if empty > PADDING_MEDIUM * whole else "low"
            bound = Measure("padding", 100 * MAX_PADDING, "% of the columns", "all splits together")
            yield _lost(
                severity, builds, "columns ({}) hold nothing", "padding", empty, "columns", whole, bound
            )


@check("Use another layout than `pad`, or a `length` that holds the longest document.")
def truncation(evidence: Evidence) -> Found:
    """Were documents cut to the length of a row?"""
    for builds, (whole, lost) in together(evidence.builds(), _counted("truncated")):
        if lost:
            severity: Severity = "high" if lost > TRUNCATION_HIGH * whole else "medium"
            says = "tokens ({}) were cut off documents longer than a row"
            bound = Measure("truncated", 0, "tokens", "any")
            yield _lost(severity, builds, says, "truncated", lost, "tokens", whole, bound)


def _counted(amount: str) -> Callable[[Build], Lost | None]:
    """For padding the columns that were written, not the tokens that came in."""

    def figures(build: Build) -> Lost | None:
        tokens = build.artifact.manifest.counts.get("tokens", {})
        if amount not in tokens:
            return None
        whole = tokens["written"] + tokens["padding"] if amount == "padding" else tokens["in"]
        return whole, tokens[amount]

    return figures


def _lost(
    severity: Severity,
    builds: list[Build],
    says: str,
    name: str,
    lost: int,
    unit: str,
    whole: int,
    bound: Measure,
) -> Finding:
    evidence = part(name, lost, unit, f"of the {unit}", whole, manifest_of(builds[0]))
    return Finding(
        severity, named(builds), f"{lost:,} of {whole:,} {says.format(share(lost, whole))}", evidence, bound
    )


@check("Build again: without EOS documents run into each other, in training and in masks.")
def missing_eos(evidence: Evidence) -> Found:
    """Does every document end in EOS?"""
    for build in evidence.builds():
        try:
            rows = evidence.rows(build)
        except NotMeasured as reason:
            yield str(reason)
            continue
        ends = sum(split.ends for split in rows.splits)
        missing = sum(split.ends_without_eos for split in rows.splits)
        if missing:
            read_from = f"{place_of(build)}*/index.jsonl.zst and the rows"
            first = next(split.first_without for split in rows.splits if split.first_without)
            name, of = f"ends without id {rows.eos_id}", "of the ends that the index tells"
            yield Finding(
                "high",
                named([build]),
                f"{missing:,} of {ends:,} documents do not end in id {rows.eos_id}",
                (
                    *part(name, missing, "documents", of, ends, read_from),
                    Measure("the first of them", first, "", read_from),
                ),
                Measure("documents without their end", 0, "documents", "any"),
            )


# --- the answer ---


def packing(evidence: Evidence, found: Answering) -> None:
    """What does packing cost, and what does a row lack?"""
    if evidence.subject.kind == "recipe":
        pack = evidence.recipe.pack
        found.say(f"The recipe asks for layout {pack.layout}, rows of {pack.length:,}, tail {pack.tail}.")
        found.base("the recipe: pack").lack("what that costs: it depends on the lengths of the documents")
        return
    for build in found.attempt(evidence.builds) or []:
        _cost(evidence, build, found)
    for build in evidence.subject.builds:
        if "length" not in build.artifact.manifest.config["pack"]:
            continue  # every document is whole
        boundaries = found.attempt(lambda build=build: evidence.boundaries(build))  # type: ignore[misc]
        if boundaries is not None and boundaries.pieces:
            for sentence in _boundary_sentences(build, boundaries):
                found.say(sentence)
            found.figures.setdefault("boundaries", {})[build.name] = _boundary_figures(boundaries)
            found.base(f"{place_of(build)}train/index.jsonl.zst and the rows")


def _cost(evidence: Evidence, build: Build, found: Answering) -> None:
    """Of the layout to the training documents, counted in the rows that were built."""
    pack, tokens = build.artifact.manifest.config["pack"], build.artifact.manifest.counts["tokens"]
    told = f"{named([build]).capitalize()} ({pack['layout']}"
    told += f", rows of {pack['length']:,})" if "length" in pack else ")"
    columns = tokens["written"] + tokens["padding"]
    told += (
        f": padding {share(tokens['padding'], columns)} of the columns, tail dropped "
        f"{share(tokens['tail_dropped'], tokens['in'])}"
    )
    told += (
        f", truncated {share(tokens['truncated'], tokens['in'])}, left out "
        f"{share(tokens['left_out'], tokens['in'])} of the tokens"
    )
    rows = found.attempt(lambda: evidence.rows(build).splits[0])
    incomplete = found.attempt(lambda: _incomplete(evidence, build, rows)) if rows is not None else None
    figures = dict(tokens)
    if rows is not None:
        told += (
            f"; {rows.without_beginning:,} of {rows.documents:,} documents lack their beginning, "
            f"{rows.without_end:,} their end"
        )
        told += f"; {share(rows.fragmented, rows.documents)} of the documents on more than one row"
        told += (
            f", {share(rows.after_another, rows.tokens)} of the tokens after another document in their row"
        )
        told += f", {share(rows.several, rows.rows)} of the rows hold more than one document"
        figures |= {
            "rows": rows.rows,
            "documents": rows.documents,
            "fragmented_documents": rows.fragmented,
            "without_beginning": rows.without_beginning,
            "without_end": rows.without_end,
            "incomplete_documents": incomplete,
            "rows_of_several": rows.several,
            "cross_document_tokens": rows.after_another,
        }
    found.say(f"{told}.")
    found.figures[build.name] = figures
    found.base(
        "build/*/manifest.json" if evidence.subject.found else "manifest.json",
        "train/index.jsonl.zst, places.npy and ids of the build" if rows is not None else "",
    )


def _incomplete(evidence: Evidence, build: Build, rows: SplitRows) -> int | None:
    """Documents of which a token is in no row; None: a build by itself does not say."""
    if not evidence.has("tokens") or rows.split != TRAIN:
        return None
    built = evidence.built(build, TRAIN)
    return int(np.count_nonzero((built.written > 0) & (built.written < built.turns.column("tokens"))))


def _boundary_sentences(build: Build, found: Boundaries) -> list[str]:
    rows = f"{found.taken.rows:,} training rows"
    if found.taken.rows < found.taken.of_rows:
        rows += f" (of {found.taken.of_rows:,}, chosen by the hash of their numbers)"
    about = f"Build {build.name}" if build.name != "." else "This build"
    mixed = share(found.several_classes, found.taken.rows)
    ends = (
        f", {share(found.without_end, found.pieces)} without their end"
        if found.without_end is not None
        else ""
    )
    headless = share(found.without_beginning, found.pieces)
    lacking = share(found.tokens_without_beginning, found.tokens)
    return [
        f"{about}, {rows}: {mixed} hold more than one {found.classes.word}.",
        f"Of {found.pieces:,} pieces of documents {headless} stand in a row without their beginning{ends}.",
        f"{lacking} of the tokens are in such a piece without its beginning.",
    ]


def _boundary_figures(found: Boundaries) -> Json:
    return {
        "rows": found.taken.rows,
        "of_rows": found.taken.of_rows,
        f"rows_of_several_{found.classes.word}s": found.several_classes,
        f"rows_by_{found.classes.word}": found.rows_by_class,
        "pieces": found.pieces,
        "pieces_without_beginning": found.without_beginning,
        "pieces_without_end": found.without_end,
        "pieces_with_neither": found.neither,
        "tokens": found.tokens,
        "tokens_without_beginning": found.tokens_without_beginning,
    }

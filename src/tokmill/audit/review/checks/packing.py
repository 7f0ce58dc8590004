"""What packing costs: tokens that no row holds, columns that hold nothing, documents that do not end."""

from __future__ import annotations

from collections.abc import Callable

from tokmill.audit.review.evidence import Evidence, manifest_of, named, together
from tokmill.audit.review.finding import Assumption, Finding, Found, Measure, NotMeasured, percent, share
from tokmill.audit.review.subject import Build
from tokmill.audit.review.thresholds import MAX_PADDING, MAX_TAIL, PADDING_MEDIUM, TRUNCATION_HIGH


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

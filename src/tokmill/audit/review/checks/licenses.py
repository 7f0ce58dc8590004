"""Licences of what is kept: there at all, and within the policy of the whole recipe."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from tokmill.audit.review.evidence import Evidence
from tokmill.audit.review.finding import Finding, Found, Measure, NotMeasured, percent, plural, share
from tokmill.clean.license_policy import KEEP, LicensePolicy, judge_licenses, make_policy
from tokmill.manifest import Json
from tokmill.stages.step import UNKNOWN


def _licenses(evidence: Evidence) -> Iterator[tuple[str, Json, str]]:
    """Source, documents by licence, and where that was read: of what is trained on, as far as the run got."""
    if evidence.has("tokens"):
        counted: Json = evidence.artifact("tokens").manifest.counts.get("licenses", {})
        for source, totals in counted.items():
            yield source, totals, "tokens/manifest.json"
    elif evidence.subject.of_kind("clean"):
        for source, artifact in evidence.subject.of_kind("clean").items():
            yield source, artifact.manifest.counts.get("licenses", {}), f"clean/{source}/manifest.json"
    elif evidence.subject.kind == "build":
        for build in evidence.builds():
            yield "all sources", build.artifact.manifest.counts.get("licenses", {}), "manifest.json"


def license_missing(evidence: Evidence) -> Found:
    bound = Measure(
        "documents without a licence", 0, "documents", "SPDX expression, or one that can be read as one"
    )
    counted = list(_licenses(evidence))
    for source, totals, read_from in counted:
        unknown = totals.get(UNKNOWN, {}).get("docs", 0)
        docs = sum(total["docs"] for total in totals.values())
        if unknown:
            figures = [Measure("without a licence", unknown, "documents", read_from)]
            if "tokens" in totals[UNKNOWN]:
                figures.append(Measure("of them", totals[UNKNOWN]["tokens"], "tokens", read_from))
            figures.append(Measure("of the source", percent(unknown, docs), "%", read_from))
            yield Finding(
                "license_missing",
                "medium",
                f"source {source}",
                f"{unknown:,} of {plural(docs, 'document')} ({share(unknown, docs)}) have no known licence",
                tuple(figures),
                bound,
            )
    if counted or evidence.subject.recipe is None:
        return
    for source_ in evidence.recipe.sources:
        if source_.license is None and source_.fields.license is None:
            yield Finding(
                "license_missing",
                "medium",
                f"source {source_.name}",
                "neither `license` nor `fields.license` says what its documents may be used for",
                (
                    Measure(
                        "keys that name a licence", 0, "", f"{evidence.subject.recipe_file}: {source_.name}"
                    ),
                ),
                Measure(
                    "keys that name a licence", 1, "", "or documents with a field `license` of their own"
                ),
                "less than",
            )


def license_outside_policy(evidence: Evidence) -> Found:
    """By the policy of the whole recipe: a source or a domain may have a looser one of its own."""
    if evidence.recipe.license is None:
        raise NotMeasured("the recipe has no `license` policy, so nothing can be outside of it")
    asked = evidence.recipe.license
    policy = make_policy(asked.allow, asked.deny, "drop")
    bound = Measure(
        "documents outside the policy",
        0,
        "documents",
        f"license: allow {_listed(policy.allow)}, deny {_listed(policy.deny)}",
    )
    counted = list(_licenses(evidence))
    for source, totals, read_from in counted:
        docs = sum(total["docs"] for total in totals.values())
        for name, total in totals.items():
            if name != UNKNOWN and not _passes(name, policy):  # without one: `license_missing`
                yield Finding(
                    "license_outside_policy",
                    "high",
                    f"source {source}",
                    f"{plural(total['docs'], 'document')} of licence {name}, which the recipe's policy refuses",
                    (
                        Measure(f"kept with licence {name}", total["docs"], "documents", read_from),
                        Measure("of the source", percent(total["docs"], docs), "%", read_from),
                    ),
                    bound,
                )
    if counted:
        return
    for source_ in evidence.recipe.sources:
        if source_.license is not None and not _passes(source_.license, policy):
            yield Finding(
                "license_outside_policy",
                "high",
                f"source {source_.name}",
                f"declares {source_.license}, which the recipe's policy refuses",
                (
                    Measure(
                        "declared licence",
                        source_.license,
                        "",
                        f"{evidence.subject.recipe_file}: {source_.name}",
                    ),
                ),
                bound,
            )


def _passes(license: str | None, policy: LicensePolicy) -> bool:
    judged = judge_licenses(pa.array([license], pa.string()), None, policy)
    return bool(judged.verdict[0] == KEEP)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "(none)"

"""Licences of what is kept: there at all, and within the policy of the whole recipe.

Where documents come from: pins, code, how they were drawn, labels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa

from tokmill.artifacts.manifest import Json
from tokmill.artifacts.step import UNKNOWN
from tokmill.audit.whatif import loss_limit, losses_of_run
from tokmill.clean.license_policy import KEEP, LicensePolicy, judge_licenses, make_policy
from tokmill.recipe import Source
from tokmill.reviews.evidence import Evidence
from tokmill.reviews.finding import (
    LITTLE_SCANNED,
    MAX_UNLABELLED,
    Assumption,
    Finding,
    Found,
    Measure,
    NotMeasured,
    percent,
    plural,
    share,
)
from tokmill.reviews.subject import remote_code_keys

_COMMIT = re.compile(r"[0-9a-f]{40}")


def unpinned_revision(evidence: Evidence) -> Found:
    """A branch or tag means other bytes tomorrow; so does a tokenizer file without its sha256."""
    pinned = Measure("a commit", 40, "hex digits", "hub.revision")
    asked = dict(_asked_of_hub(evidence))
    for source, (hub, resolved, read_from) in asked.items():
        revision = hub.get("revision")
        if revision is not None and _COMMIT.fullmatch(str(revision)):
            continue
        evidence_of = [Measure("revision asked for", str(revision or "the default branch"), "", read_from)]
        if resolved is not None:
            evidence_of.append(Measure("commit that was read", resolved, "", read_from))
        yield Finding(
            "unpinned_revision",
            "medium" if resolved is not None else "high",
            f"source {source}",
            f"{hub.get('dataset')} at {revision or 'its default branch'}, not at a commit",
            tuple(evidence_of),
            pinned,
            "other than",
        )
    tokenizer = evidence.recipe.tokenizer
    if tokenizer is not None and tokenizer.path is not None and tokenizer.sha256 is None:
        yield Finding(
            "unpinned_revision",
            "low",
            "tokenizer",
            f"{tokenizer.path} is not pinned by its sha256",
            (Measure("sha256 in the recipe", 0, "hex digits", "tokenizer.sha256"),),
            Measure("a pinned file", 64, "hex digits", "tokenizer.sha256"),
            "other than",
        )


def _asked_of_hub(evidence: Evidence) -> Iterator[tuple[str, tuple[Json, str | None, str]]]:
    ingested = evidence.subject.of_kind("ingest")
    for name, artifact in ingested.items():
        hub = artifact.manifest.config.get("hub")
        if hub:
            yield name, (hub["asked"], hub["revision"], f"ingest/{name}/manifest.json")
    if evidence.subject.recipe is not None:
        for source in evidence.subject.recipe.sources:
            if source.hub is not None and source.name not in ingested:
                yield source.name, (source.hub.model_dump(mode="json"), None, evidence.subject.recipe_file)
    elif not ingested:
        evidence.ingested()


def remote_code(evidence: Evidence) -> Found:
    subject = evidence.subject
    places = remote_code_keys(subject.asked)
    for name, artifact in subject.artifacts.items():
        if artifact.manifest.kind == "ingest":
            places += [(f"{name}: {key}", v) for key, v in remote_code_keys(artifact.manifest.config)]
    if not subject.asked and not subject.artifacts:
        raise NotMeasured("a published build does not say what was asked of its sources")
    for place, value in places:
        yield Finding(
            "remote_code",
            "high",
            place,
            "asks for code that comes with the data to be run",
            (Measure(place, value, "", subject.recipe_file or "manifest.json"),),
            Measure("keys that ask for remote code", 0, "", "recipe"),
        )
    hooks = sorted({str(hook) for hook in _hooks(subject.asked)})
    if hooks:
        says = f"{', '.join(hooks)}: code beside the recipe, which runs with it and is part of its identity; not reviewed here"
        yield Assumption("remote_code", says)


def _hooks(asked: object) -> Iterator[object]:
    if isinstance(asked, dict):
        if asked.get("hook"):
            yield asked["hook"]
        for value in asked.values():
            yield from _hooks(value)
    elif isinstance(asked, list):
        for value in asked:
            yield from _hooks(value)


# --- sampling ---


def head_sampling(evidence: Evidence) -> Found:
    """A limit, or `sample: head`, takes what comes first; a crawl or a dump is ordered by something."""
    bound = Measure("of the source unread by a head", 0, "%", "or a sample that looks at all of it")
    ingested = evidence.subject.of_kind("ingest")
    for name, artifact in ingested.items():
        sample: Json = artifact.manifest.config.get("sample") or {}
        scanned: Json = artifact.manifest.facts.get("scanned", {})
        if sample.get("method") not in (None, "head", "hash") or scanned.get("is_complete", True):
            continue
        read_from = f"ingest/{name}/manifest.json"
        part = float(scanned["fraction"])
        figures = [
            Measure("scanned", 100 * part, "% of the bytes", read_from),
            Measure("records read", scanned["records"], "records", read_from),
        ]
        told = f"reading stopped early, after {share(part, 1)} of its bytes at most, in their order"
        try:
            tally = evidence.texts.sources.get(name)
            if tally is not None and tally.docs and evidence.texts.is_complete:
                figures.append(
                    Measure(
                        f"longest run of one origin ({tally.longest_origin})",
                        tally.longest_run,
                        f"of {plural(tally.docs, 'document')}",
                        f"ingest/{name}/documents-*.parquet",
                    )
                )
                told += (
                    f"; {tally.longest_run:,} of {plural(tally.docs, 'document')} in one run of one origin"
                )
        except NotMeasured as reason:
            yield Assumption(
                "head_sampling", f"source {name}: longest run of one origin not measured: {reason}"
            )
        severity = "high" if part < LITTLE_SCANNED else "medium"
        yield Finding("head_sampling", severity, f"source {name}", told, tuple(figures), bound)  # type: ignore[arg-type]
    if evidence.subject.recipe is None:
        if not ingested:
            evidence.ingested()
        return
    for source in evidence.recipe.sources:
        if source.name not in ingested and _takes_head(source):
            key = "sample.method: head" if source.sample is not None else "limit without sample"
            yield Finding(
                "head_sampling",
                "medium",
                f"source {source.name}",
                f"{key} takes what comes first; the share that is read is not known before a run",
                (Measure("how it is drawn", key, "", f"{evidence.subject.recipe_file}: {source.name}"),),
                bound,
            )


def _takes_head(source: Source) -> bool:
    if source.sample is None:
        return source.limit is not None
    return source.sample.method == "head" or (source.sample.method == "hash" and source.limit is not None)


# --- losses ---


def source_loss(evidence: Evidence) -> Found:
    """To one rule, or as copies of one kind: what is left is hardly the source that was chosen."""
    if not evidence.subject.artifacts:
        evidence.artifact("clean")
    limit = loss_limit(evidence.subject.asked)
    for step, loss in losses_of_run(evidence.subject.artifacts, limit):
        read_from = f"{step}/manifest.json"
        yield Finding(
            "source_loss",
            "high",
            f"source {loss.source}",
            str(loss),
            (
                Measure(f"lost to {loss.to}", loss.lost, "documents", read_from),
                Measure("came to it", loss.came, "documents", read_from),
                Measure("of the source", percent(loss.lost, loss.came), "%", read_from),
                Measure("one of them", loss.example, "", f"{step}/ledger-*.parquet"),
            ),
            Measure("lost to one rule", float(100 * limit), "% of a source", "dedup.warn_source_loss"),
        )


# --- labels ---


def subsource_labels(evidence: Evidence) -> Found:
    """Without a label of its own a document says only which source it is of, and no share within it can be checked."""
    bound = Measure("documents without a label", 100 * MAX_UNLABELLED, "% of a source", "a string in `meta`")
    if evidence.subject.kind == "recipe":
        for source in evidence.recipe.sources:
            if not source.fields.meta and source.format == "records":
                yield Finding(
                    "subsource_labels",
                    "low",
                    f"source {source.name}",
                    "carries no field along that says where in the source a document is from",
                    (
                        Measure(
                            "fields carried along", 0, "", f"{evidence.subject.recipe_file}: {source.name}"
                        ),
                    ),
                    bound,
                )
        return
    for name, tally in evidence.texts.sources.items():
        missing = tally.docs - tally.labelled
        if tally.docs and missing > MAX_UNLABELLED * tally.docs:
            yield Finding(
                "subsource_labels",
                "low",
                f"source {name}",
                f"{missing:,} of {plural(tally.docs, 'document')} ({share(missing, tally.docs)}) have no label within the source",
                (
                    Measure(
                        "without a label", missing, "documents", f"ingest/{name}/documents-*.parquet: meta"
                    ),
                    Measure(
                        "of the source",
                        percent(missing, tally.docs),
                        "%",
                        f"ingest/{name}/documents-*.parquet: meta",
                    ),
                ),
                bound,
            )


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

"""All that the report says, as one plain structure: report.json is this, and the page shows nothing else.

    here ──────── totals, sources, recipe                                            ┐
    builds.py ─── tokenizer, mixture, builds, texts: what they hold, what was lost   │
    drops.py ──── who left and why, clusters, which source repeats which             ├─ gather_facts
    edits.py ──── what was redacted, what benchmarks have in common with documents   │
    scores.py ─── how scores are spread, and the bounds on them                      │
    tally.py ──── shares of what was encoded, fertility, lengths                     │
    flow.py ───── Sankey diagrams, documents to look up                              │
    pace.py ───── what each step was made from, where, and how fast                  │
    concerns.py ─ warnings and notes                                                 ┘

What a manifest does not say is None.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from tokmill.artifacts.manifest import Json
from tokmill.audit.opened import Found, find_artifacts
from tokmill.pipeline.timeline import TIMELINE
from tokmill.recipe.file import parse_recorded
from tokmill.reports.builds import (
    describe_builds,
    describe_left_out,
    describe_mixture,
    describe_texts,
    describe_tokenizer,
)
from tokmill.reports.concerns import list_notes, list_warnings
from tokmill.reports.drops import describe_clusters, describe_drops, describe_duplicates, find_drops
from tokmill.reports.edits import describe_decontamination, describe_earlier, describe_redactions
from tokmill.reports.flow import flow_of_documents, flow_of_tokens, list_outcomes
from tokmill.reports.idleness import describe_idleness
from tokmill.reports.pace import describe_chain, describe_environment_of, describe_estimate, describe_pace
from tokmill.reports.scores import describe_scores
from tokmill.reports.tally import tally_chars, tally_tokens, word_column
from tokmill.stages.build.contents import Contents, load_contents

REPORT_VERSION = 1


def gather_facts(directory: str | Path) -> Json:
    """Of a run that is finished, or of as much of it as there is."""
    found = find_artifacts(directory)
    drops = find_drops(found)
    tally = tally_tokens(found)
    contents = load_contents(found.artifacts)
    builds, mixture = describe_builds(found, contents), describe_mixture(found, contents)
    shown = [mark.place for drop in drops for mark in (*drop.out, *drop.kept)]
    return {
        "report_version": REPORT_VERSION,
        "run": describe_run(found),
        "recipe": describe_recipe(found),
        "totals": _totals(found, contents),
        "sources": _sources(found, contents),
        "flow": {
            "documents": flow_of_documents(found, drops, contents),
            "tokens": flow_of_tokens(found, tally, contents),
        },
        "drops": describe_drops(found, drops),
        "left_out": describe_left_out(found),
        "redactions": describe_redactions(found, contents),
        "decontamination": describe_decontamination(found, contents),
        "earlier": describe_earlier(found),
        "scores": describe_scores(found),
        "lengths": {"chars": tally_chars(found), "tokens": tally.tokens_histogram if tally else None},
        "shares": tally.shares if tally else None,
        "tokenizer": describe_tokenizer(found),
        "fertility": tally.fertility if tally else None,
        "words_measured_by": {source: word_column(found, source) for source in found.of_kind("clean")},
        "duplicates": describe_duplicates(drops),
        "clusters": describe_clusters(found),
        "mixture": mixture,
        "builds": builds,
        "texts": describe_texts(found),
        "pace": describe_pace(found),
        "estimate": describe_estimate(found),
        "idleness": describe_idleness(found.root.environment.get(TIMELINE) if found.root else None),
        "chain": describe_chain(found),
        "environment": describe_environment_of(found),
        "warnings": [
            {"where": where, "what": what} for where, what in list_warnings(found, tally, builds, mixture)
        ],
        "notes": [{"where": where, "what": what} for where, what in list_notes(found, builds, mixture)],
        "documents": list_outcomes(found, shown, contents),
    }


def describe_run(found: Found) -> Json:
    return {
        "name": found.name,
        "digest": found.digest,
        "experiment_id": found.root.experiment_id if found.root is not None else None,
        "seed": found.root.config.get("seed") if found.root is not None else None,
        "is_finished": found.is_finished,
        "steps": list(found.artifacts),
        "missing": found.missing,
        "set_aside": found.set_aside,
    }


def describe_recipe(found: Found) -> str | None:
    """As YAML, without what it leaves to the defaults; None: the run did not get to write it down."""
    if found.root is None:
        return None
    recipe = parse_recorded(found.root.config)
    asked = recipe.model_dump(mode="json", exclude_defaults=True) if recipe else found.root.config
    return yaml.safe_dump(asked, sort_keys=False, allow_unicode=True, width=100)


def _totals(found: Found, contents: Contents) -> Json:
    """None: the run did not get there."""
    ingested, cleaned = found.of_kind("ingest"), found.of_kind("clean")
    split, tokens = found.artifacts.get("split"), found.artifacts.get("tokens")
    last = split or found.artifacts.get("dedup") or found.artifacts.get("scores")
    if last is not None:
        kept = last.manifest.counts["kept"]
    else:
        kept = sum(a.manifest.counts["kept"] for a in (cleaned or ingested).values())
    builds = found.of_kind("build")
    written = {name: a.manifest.counts.get("tokens", {}).get("written") for name, a in builds.items()}
    built = contents.totals("build")
    return {
        "records": sum(a.manifest.counts["in"] for a in ingested.values()),
        "kept": kept,
        "text_bytes": sum(a.manifest.counts.get("text_bytes", 0) for a in ingested.values()),
        "kept_bytes": sum(a.manifest.counts.get("kept_bytes", 0) for a in cleaned.values())
        if cleaned
        else None,
        "tokens": sum(tokens.manifest.counts["tokens"].values()) if tokens is not None else None,
        "tokens_by_split": tokens.manifest.counts["tokens"] if tokens is not None else None,
        "tokens_written": written or None,
        "documents_built": {name: built[name].docs if name in built else 0 for name in builds} or None,
        "documents_in_builds": sum(held.new_docs for held in contents.held) if builds else None,
    }


def _sources(found: Found, contents: Contents) -> list[Json]:
    """`licenses` and `languages` are of what cleaning kept;
    of what was built, documents by licence, and tokens by build."""
    cleaned = found.of_kind("clean")
    builds = list(found.of_kind("build"))
    tokens = {build: contents.totals("source", build=build) for build in builds}
    licenses = contents.totals("source", "license")
    rows = []
    for name, artifact in found.of_kind("ingest").items():
        reading: Json = artifact.manifest.config.get("reading", {})
        counts = artifact.manifest.counts
        own = cleaned[name].manifest if name in cleaned else None
        hub: Json = artifact.manifest.config.get("hub") or {}
        rows.append(
            {
                "name": name,
                "domain": reading.get("domain"),
                "declared_license": reading.get("license"),
                "dataset": (hub.get("asked") or {}).get("dataset"),
                "revision": hub.get("revision"),
                "records": counts["in"],
                "ingested": counts["kept"],
                "text_bytes": counts.get("text_bytes"),
                "kept_by_clean": own.counts["kept"] if own else None,
                "edited": own.counts.get("edited", {}) if own else None,
                "licenses": own.counts.get("licenses", {}) if own else None,
                "languages": own.counts.get("languages", {}) if own else None,
                "scanned": artifact.manifest.facts.get("scanned"),
                "built": {
                    "licenses": {
                        license: held.new_docs
                        for (source, license), held in sorted(licenses.items())
                        if source == name and held.new_docs
                    },
                    "tokens": {
                        build: own[name].tokens if name in own else 0 for build, own in tokens.items()
                    },
                }
                if builds
                else None,
            }
        )
    return rows

"""All that the report says, as one plain structure: report.json is this, and the page shows nothing else."""

from __future__ import annotations

from pathlib import Path

from tokmill.audit.built import Builds, load_builds
from tokmill.audit.places import RunPlaces
from tokmill.audit.report.alike import describe_clusters
from tokmill.audit.report.building import describe_builds, describe_mixture, describe_tokenizer
from tokmill.audit.report.chain import describe_chain, describe_environment_of, describe_pace, list_warnings
from tokmill.audit.report.drops import describe_drops, find_drops
from tokmill.audit.report.fates import describe_fates
from tokmill.audit.report.flow import flow_of_documents, flow_of_tokens
from tokmill.audit.report.found import Found, find_artifacts
from tokmill.audit.report.tally import tally_chars, tally_tokens, word_column
from tokmill.manifest import Json

REPORT_VERSION = 1


def gather_facts(directory: str | Path) -> Json:
    """Of a run that is finished, or of as much of it as there is."""
    found = find_artifacts(directory)
    drops = find_drops(found)
    tally = tally_tokens(found)
    built = load_builds(RunPlaces(found.directory, found.artifacts, found.missing))
    shown = [mark.place for drop in drops for mark in (*drop.out, *drop.kept)]
    return {
        "report_version": REPORT_VERSION,
        "run": describe_run(found),
        "totals": _totals(found, built),
        "sources": _sources(found),
        "flow": {"documents": flow_of_documents(found, drops), "tokens": flow_of_tokens(found, tally, built)},
        "drops": describe_drops(found, drops),
        "lengths": {"chars": tally_chars(found), "tokens": tally.tokens_histogram if tally else None},
        "shares": tally.shares if tally else None,
        "tokenizer": describe_tokenizer(found),
        "fertility": tally.fertility if tally else None,
        "words_measured_by": {source: word_column(found, source) for source in found.of_kind("clean")},
        "clusters": describe_clusters(found),
        "mixture": describe_mixture(found),
        "builds": describe_builds(found),
        "pace": describe_pace(found),
        "chain": describe_chain(found),
        "environment": describe_environment_of(found),
        "warnings": list_warnings(found, tally),
        "documents": describe_fates(found, shown, built),
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


def _totals(found: Found, built: Builds) -> Json:
    """None: the run did not get there."""
    ingested, cleaned = found.of_kind("ingest"), found.of_kind("clean")
    split, tokens = found.artifacts.get("split"), found.artifacts.get("tokens")
    last = split or found.artifacts.get("dedup")
    if last is not None:
        kept = last.manifest.counts["kept"]
    else:
        kept = sum(a.manifest.counts["kept"] for a in (cleaned or ingested).values())
    builds = found.of_kind("build")
    written = {name: a.manifest.counts.get("tokens", {}).get("written") for name, a in builds.items()}
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
        "documents_built": {
            name: sum(one.documents() for one in splits.values()) for name, splits in built.items()
        }
        or None,
    }


def _sources(found: Found) -> list[Json]:
    cleaned = found.of_kind("clean")
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
            }
        )
    return rows

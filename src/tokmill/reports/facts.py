"""All that the report says, as one plain structure: report.json is this, and the page shows nothing else.

    manifests ─── totals, sources, tokenizer, mixture, builds, chain, pace, warnings ┐
    drops.py ──── who left and why, clusters                                         ├─ gather_facts
    tally.py ──── shares, fertility, lengths                                         │
    flow.py ───── Sankey diagrams, documents to look up                              ┘

What a manifest does not say is None.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokmill.artifacts.manifest import Json
from tokmill.artifacts.step import UNKNOWN, Artifact
from tokmill.audit.opened import KINDS, Found, find_artifacts
from tokmill.audit.places import Builds, RunPlaces, load_builds
from tokmill.audit.whatif import loss_limit, losses_of_run
from tokmill.reports.charts import percent
from tokmill.reports.drops import describe_clusters, describe_drops, find_drops
from tokmill.reports.flow import flow_of_documents, flow_of_tokens, list_outcomes
from tokmill.reports.tally import Tally, rank_shares, tally_chars, tally_tokens, word_column

REPORT_VERSION = 1
_TOKENIZER = ("kind", "file", "vocab_size", "padded_vocab_size", "eos_id", "encoding", "sha256", "engine")
_LOST = ("tail_dropped", "truncated", "left_out")
_NAMED = {"source": "sources", "domain": "domains", "language": "languages", "license": "licenses"}
_HIGH_LOSS = 0.5  # of the documents of one source
_ENVIRONMENT = (
    "created_at",
    "engine",
    "workers",
    "cores",
    "machine",
    "system",
    "python",
    "packages",
    "git_sha",
    "git_dirty",
)


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
        "warnings": [{"where": where, "what": what} for where, what in _warnings(found, tally)],
        "documents": list_outcomes(found, shown, built),
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


# --- tokens: tokenizer, mixture, builds ---


def describe_tokenizer(found: Found) -> Json | None:
    artifact = found.artifacts.get("tokenizer")
    if artifact is None:
        return None
    facts = artifact.manifest.facts
    tokens = found.artifacts.get("tokens")
    counts: Json = tokens.manifest.counts if tokens is not None else {}
    return {
        **{key: facts.get(key) for key in _TOKENIZER},
        "eos": artifact.manifest.config.get("eos"),
        "trained": artifact.manifest.config.get("train") is not None,
        "training": artifact.manifest.config.get("train"),
        "coverage": facts.get("coverage"),
        "checked_docs": counts.get("checked"),
        "tokens": counts.get("tokens"),
    }


def describe_mixture(found: Found) -> Json | None:
    artifact = found.artifacts.get("mixture")
    if artifact is None:
        return None
    config = artifact.manifest.config
    by_split: Json = artifact.manifest.facts.get("splits", {})
    named: list[str] = found.artifacts["tokens"].manifest.facts["splits"]
    splits = {split: by_split[split] for split in named if split in by_split}  # a manifest sorts its keys
    return {
        "target": config.get("target"),
        "exhausted": config.get("exhausted"),
        "weights": config.get("domains"),
        "repeats": artifact.manifest.counts.get("repeats"),
        "splits": [
            {
                "split": split,
                "tokens": told.get("tokens"),
                "reached": told.get("reached"),
                "left_over": told.get("left_over"),
                "ran_out": told.get("exhausted"),
                "max_error": told.get("max_error"),
                "sources": [{"name": name, **source} for name, source in told.get("sources", {}).items()],
            }
            for split, told in splits.items()
        ],
    }


def describe_builds(found: Found) -> list[Json]:
    return [describe_build(name, artifact) for name, artifact in found.of_kind("build").items()]


def describe_build(name: str, artifact: Artifact) -> Json:
    manifest = artifact.manifest
    pack: Json = manifest.config.get("pack") or {}
    return {
        "name": name,
        "format": manifest.config.get("format"),
        "dtype": manifest.config.get("dtype"),
        "layout": pack.get("layout"),
        "length": pack.get("length"),
        "files": len(manifest.files),
        "bytes": sum(entry.bytes for entry in manifest.files),
        "identity": manifest.identity,
        "docs": manifest.counts["kept"],
        "rows": manifest.counts["rows"],
        "packing": _packing(manifest.counts["tokens"]),
        "splits": [
            {
                "split": task["key"],
                "docs": task["counts"]["kept"],
                "rows": task["counts"]["rows"],
                "packing": _packing(task["counts"]["tokens"]),
            }
            for task in manifest.tasks
        ],
        "shares": {key: rank_shares(manifest.counts[of]) for key, of in _NAMED.items()},
        "warnings": [str(warning) for warning in manifest.facts.get("warnings", [])],
    }


def _packing(tokens: Json) -> Json:
    """Where the tokens went, and how much of what was written is padding."""
    padding, written = tokens["padding"], tokens["written"]
    lost = {key: tokens[key] for key in _LOST}
    return {
        "in": tokens["in"],
        "written": written,
        **lost,
        "padding": padding,
        "padding_share": _share(padding, written + padding),
        "lost_share": _share(sum(lost.values()), tokens["in"]),
    }


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


# --- provenance and pace ---


def describe_chain(found: Found) -> list[Json]:
    return [
        {
            "step": name,
            "kind": artifact.manifest.kind,
            "identity": artifact.manifest.identity,
            "digest": artifact.manifest.digest,
            "experiment_id": artifact.manifest.experiment_id,
            "from": [
                label.removeprefix("step ") for label in artifact.manifest.inputs if label.startswith("step ")
            ],
            "files": {
                label.removeprefix("file "): sha256
                for label, sha256 in artifact.manifest.inputs.items()
                if label.startswith("file ")
            },
            "revision": (artifact.manifest.config.get("hub") or {}).get("revision"),
            "made": len(artifact.manifest.files),
            "bytes": sum(entry.bytes for entry in artifact.manifest.files),
        }
        for name, artifact in found.artifacts.items()
    ]


def describe_environment_of(found: Found) -> Json:
    """Of the last thing that was written."""
    manifest = found.root or next((a.manifest for a in reversed(found.artifacts.values())), None)
    environment: Json = manifest.environment if manifest is not None else {}
    return {key: environment.get(key) for key in _ENVIRONMENT}


def describe_pace(found: Found) -> list[Json]:
    """Steps of a kind work side by side and each counts its time from their common start: the longest is the
    time of all. Ingest and clean are one pass over the text."""
    rows = []
    for kinds in (("ingest", "clean"), *((kind,) for kind in KINDS[2:])):
        groups = [list(found.of_kind(kind).values()) for kind in kinds]
        groups = [group for group in groups if group]
        if not groups:
            continue
        spans: list[list[Any]] = [[a.manifest.environment.get("seconds") for a in group] for group in groups]
        known = [max(span) for span in spans if None not in span]
        seconds = round(sum(known), 3) if len(known) == len(spans) else None
        size = _bytes_through(found, kinds[0])
        rows.append(
            {
                "kind": " + ".join(kinds[: len(groups)]),
                "steps": sum(map(len, groups)),
                "seconds": seconds,
                "docs": _docs_through(groups[0]),
                "text_bytes": size,
                "megabytes_per_second": round(size / seconds / 1e6, 3) if size and seconds else None,
                "written_bytes": sum(e.bytes for group in groups for a in group for e in a.manifest.files),
            }
        )
    return rows


def _docs_through(group: list[Artifact]) -> int | None:
    counted: list[Any] = [artifact.manifest.counts.get("in") for artifact in group]
    return None if None in counted else sum(counted)


def _bytes_through(found: Found, kind: str) -> int | None:
    """Of text; those after cleaning read what it kept. Builds read ids."""
    if kind in ("tokenizer", "mixture", "build", "split"):
        return None
    source, key = ("ingest", "text_bytes") if kind == "ingest" else ("clean", "kept_bytes")
    counted: list[Any] = [artifact.manifest.counts.get(key) for artifact in found.of_kind(source).values()]
    return None if None in counted or not counted else sum(counted)


# --- warnings ---


def _warnings(found: Found, tally: Tally | None) -> Iterator[tuple[str, str]]:
    """Each with what was measured. Whether it matters is for the reader, or for `tokmill review`."""
    if found.root is None:
        yield (
            "run",
            "not finished: it has no manifest of its own; the figures are of the steps that are there",
        )
    for step in found.missing:
        yield step, "has no artifact: the run did not get there"
    for step, why in found.set_aside.items():
        yield step, f"not read: {why}"
    for name, artifact in found.artifacts.items():
        yield from ((name, told) for told in _told_by(artifact))
    limit = loss_limit(found.root.config if found.root is not None else {})
    for step, loss in losses_of_run(found.artifacts, limit):
        yield step, str(loss)
    for row in tally.shares["license"] if tally is not None else []:
        if row["name"] == UNKNOWN:
            tokens = f"{row['tokens']:,} tokens ({percent(row['share'], 2)})"
            yield "tokens", f"{tokens} are of documents without a known licence"
    for build in describe_builds(found):
        truncated = build["packing"]["truncated"]
        if truncated:
            yield f"build/{build['name']}", f"{truncated:,} tokens were cut off documents longer than a row"
    mixture = describe_mixture(found)
    for split in mixture["splits"] if mixture else []:
        for source in split["sources"]:
            if source["name"] in (split["ran_out"] or []):
                shares = f"{percent(source['wanted'])} wanted, {percent(source['built'])} built"
                yield "mixture", f"{split['split']}: {source['name']} had too little for its share ({shares})"
        for source in split["sources"]:
            if (source.get("epochs") or 0) > 1:
                yield "mixture", f"{source['name']} is read {source['epochs']:.2f} times in {split['split']}"


def _told_by(artifact: Artifact) -> Iterator[str]:
    counts, facts = artifact.manifest.counts, artifact.manifest.facts
    yield from map(str, facts.get("warnings", []))
    quarantined = sum(counts.get("quarantined", {}).values())
    if quarantined:
        yield f"{quarantined:,} of {counts['in']:,} records are quarantined"
    scanned: Json = facts.get("scanned", {})
    if scanned.get("is_complete") is False and scanned.get("fraction") is not None:
        yield f"{percent(scanned['fraction'], 2)} of its bytes were read: what is here is not drawn from the whole"
    if artifact.manifest.kind in ("clean", "dedup") and counts.get("in"):
        lost = 1 - counts["kept"] / counts["in"]
        if lost > _HIGH_LOSS:
            yield f"{percent(lost)} of {counts['in']:,} documents were dropped"

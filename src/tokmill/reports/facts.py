"""All that the report says, as one plain structure: report.json is this, and the page shows nothing else.

    manifests ─── totals, sources, recipe, tokenizer, packing, chain, pace, warnings ┐
    contents ──── what the builds hold: shares, mixture as it was built              │
    drops.py ──── who left and why, clusters, which source repeats which             ├─ gather_facts
    edits.py ──── what was redacted, what benchmarks have in common with documents   │
    scores.py ─── how scores are spread, and the bounds on them                      │
    tally.py ──── shares of what was encoded, fertility, lengths                     │
    flow.py ───── Sankey diagrams, documents to look up                              ┘

What a manifest does not say is None.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from tokmill.artifacts.manifest import Json, Manifest
from tokmill.artifacts.step import UNKNOWN, Artifact, mixture_of
from tokmill.audit.opened import KINDS, Found, find_artifacts
from tokmill.errors import plural
from tokmill.formats import all_formats
from tokmill.pipeline.timeline import TIMELINE
from tokmill.recipe.file import parse_recorded
from tokmill.reports.charts import percent
from tokmill.reports.drops import describe_clusters, describe_drops, describe_duplicates, find_drops
from tokmill.reports.edits import describe_decontamination, describe_earlier, describe_redactions
from tokmill.reports.flow import flow_of_documents, flow_of_tokens, list_outcomes
from tokmill.reports.idleness import describe_idleness
from tokmill.reports.scores import describe_scores
from tokmill.reports.tally import Tally, rank_shares, tally_chars, tally_tokens, word_column
from tokmill.stages.build.contents import Contents, Held, load_contents
from tokmill.stages.warnings import told_by_run
from tokmill.storage.textfiles import find_text_format

REPORT_VERSION = 1
_TOKENIZER = ("kind", "file", "vocab_size", "padded_vocab_size", "eos_id", "encoding", "sha256", "engine")
_MIXED = ("wanted", "tokens", "read", "available", "documents")  # of a domain, the sum of its sources
_LOST = ("tail_dropped", "truncated", "left_out")
_NAMED = {"source": "sources", "domain": "domains", "language": "languages", "license": "licenses"}
_FEW_EPOCHS = 4  # as good as new text (docs/mixtures.md); more needs a decision
_LITTLE = 0.01  # of the tokens of a build, or percentage points of a share: nothing to decide about
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
            {"where": where, "what": what} for where, what in _warnings(found, tally, builds, mixture)
        ],
        "notes": [{"where": where, "what": what} for where, what in _notes(found, builds, mixture)],
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


# --- tokens: tokenizer, mixture, builds ---


def describe_tokenizer(found: Found) -> Json | None:
    artifact = found.artifacts.get("tokenizer")
    if artifact is None:
        return None
    facts = artifact.manifest.facts
    tokens = found.artifacts.get("tokens")
    counts: Json = tokens.manifest.counts if tokens is not None else {}
    config = artifact.manifest.config
    return {
        **{key: facts.get(key) for key in _TOKENIZER},
        "eos": config.get("eos"),
        **({"bos": config.get("bos"), "bos_id": facts["bos_id"]} if "bos_id" in facts else {}),
        "trained": artifact.manifest.config.get("train") is not None,
        "training": artifact.manifest.config.get("train"),
        "coverage": facts.get("coverage"),
        "checked_docs": counts.get("checked"),
        "tokens": counts.get("tokens"),
    }


def describe_mixture(found: Found, contents: Contents) -> Json | None:
    """Wanted, and what came of it in the rows of the first build of all sources;
    without one, as it was scheduled. Of stages, each by itself."""
    stages = {name: one for name, one in found.artifacts.items() if one.manifest.kind == "mixture"}
    told = [(name, _describe_mixture(found, contents, one)) for name, one in stages.items()]
    if not told or "mixture" in stages:
        return told[0][1] if told else None
    named = [
        {**split, "split": f"{split['split']}, {name.removeprefix('stage/')}"}
        for name, one in told
        for split in one["splits"]
    ]
    # turns beyond the first of a document: within a stage, and the first one of a later stage
    repeats = sum(one["repeats"] or 0 for _, one in told) + sum(
        source.get("again", 0)
        for one in stages.values()
        for split in one.manifest.facts.get("splits", {}).values()
        for source in split.get("sources", {}).values()
    )
    return {**told[0][1], "target": None, "repeats": repeats, "build": None, "splits": named}


def _describe_mixture(found: Found, contents: Contents, artifact: Artifact) -> Json:
    config = artifact.manifest.config
    by_split: Json = artifact.manifest.facts.get("splits", {})
    named: list[str] = found.artifacts["tokens"].manifest.facts["splits"]
    splits = {split: by_split[split] for split in named if split in by_split}  # a manifest sorts its keys
    builds = found.of_kind("build").items()
    build = next(
        (
            name
            for name, made in builds
            if not made.manifest.config["sources"] and mixture_of(found.artifacts, made) is artifact
        ),
        None,
    )
    return {
        "target": config.get("target"),
        "exhausted": config.get("exhausted"),
        "weights": config.get("domains"),
        "repeats": artifact.manifest.counts.get("repeats"),
        "build": build,
        "splits": [
            {
                **_mixed(
                    split,
                    told,
                    config,
                    contents.totals("source", split=split, build=build) if build else None,
                ),
                "build": build,
            }
            for split, told in splits.items()
        ],
    }


def _mixed(split: str, told: Json, config: Json, held: Mapping[str, Held] | None) -> Json:
    """One split; by domain as well where the recipe weighs them. Shares are of tokens in rows. Epochs are of
    documents, whole ones: a row that is too short for a document reads it all the same."""
    sources = {name: {**source, "read": source["tokens"]} for name, source in told.get("sources", {}).items()}
    if held is not None:
        for name, source in sources.items():
            own = held.get(name)
            source |= {
                "tokens": own.tokens if own else 0,
                "read": own.read if own else 0,
                "documents": own.docs if own else 0,
            }
    whole = sum(source["tokens"] for source in sources.values())
    domains: dict[str, Json] = {}
    for name, source in sources.items():
        domain = domains.setdefault(config["domain_of"][name], dict.fromkeys(_MIXED, 0))
        domain |= {key: domain[key] + source[key] for key in _MIXED}
    for one in (*sources.values(), *domains.values()):
        one["built"] = round(one["tokens"] / whole, 9) if whole else 0.0
        one["epochs"] = round(one["read"] / one["available"], 6) if one["available"] else 0.0
        one["wanted"] = round(one["wanted"], 9)
    return {
        "split": split,
        "tokens": whole,
        "reached": told.get("reached"),
        "left_over": told.get("left_over"),
        "ran_out": told.get("exhausted"),
        "max_error": told.get("max_error"),
        "domains": [{"name": name, **domain} for name, domain in domains.items()]
        if config.get("domains") is not None
        else None,
        "sources": [
            {"name": name, "domain": config["domain_of"][name], **source} for name, source in sources.items()
        ],
    }


def describe_builds(found: Found, contents: Contents) -> list[Json]:
    """Documents of their shares are counted once, whatever repeats."""
    rows = []
    for name, artifact in found.of_kind("build").items():
        shares = {key: _held_shares(contents.totals(key, build=name)) for key in (*_NAMED, "split")}
        rows.append({**describe_build(name, artifact), "shares": shares})
    return rows


def describe_texts(found: Found) -> list[Json]:
    """Builds of texts; a document that a mixture repeats counts each time."""
    return [
        {
            "name": name,
            "format": artifact.manifest.config["format"],
            "files": len(artifact.manifest.entries("texts")),
            "bytes": sum(entry.bytes for entry in artifact.manifest.files),
            "docs": artifact.manifest.counts["kept"],
            "splits": artifact.manifest.counts["splits"],
            "hub_files": {
                split: pattern
                for split, total in artifact.manifest.counts["splits"].items()
                if total["docs"]
                and (pattern := _pattern_of(artifact.manifest, split, f"*{_suffix_of(artifact)}")) is not None
            },
            "corpus_digest": artifact.manifest.facts["corpus_digest"],
        }
        for name, artifact in found.of_kind("texts").items()
    ]


def _suffix_of(texts: Artifact) -> str:
    return find_text_format(texts.manifest.config["format"]).suffix


def _pattern_of(manifest: Manifest, split: str, files: str | None) -> str | None:
    """What `datasets` loads a split by; None where no file of the manifest fits."""
    pattern = f"{split}/{files}"
    is_there = files is not None and any(fnmatchcase(entry.path, pattern) for entry in manifest.files)
    return pattern if is_there else None


def _held_shares(totals: Mapping[str, Held]) -> list[Json]:
    return rank_shares(
        {name: {"docs": held.docs, "tokens": held.tokens} for name, held in totals.items() if held.tokens}
    )


def describe_build(name: str, artifact: Artifact) -> Json:
    manifest = artifact.manifest
    pack: Json = manifest.config.get("pack") or {}
    hub_files = next(
        (one.hub_files for one in all_formats() if one.name == manifest.config.get("format")), None
    )
    return {
        "name": name,
        "sources": manifest.config.get("sources") or [],
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
                "hub_files": _pattern_of(manifest, task["key"], hub_files)
                if task["counts"]["tokens"]["written"]
                else None,
            }
            for task in manifest.tasks
        ],
        "shares": {key: rank_shares(manifest.counts[of]) for key, of in _NAMED.items()},
        "warnings": [str(warning) for warning in manifest.facts.get("warnings", [])],
    }


def describe_left_out(found: Found) -> list[Json]:
    """Documents that every filter kept, and that a mixture gave no turn or a build no row.
    Of stages and builds each by itself: one may have what another leaves out."""
    steps = {name: one for name, one in found.artifacts.items() if one.manifest.kind in ("mixture", "build")}
    return [
        {"step": name, "split": task["key"], "reason": reason, "docs": docs}
        for name, artifact in steps.items()
        for task in artifact.manifest.tasks
        for reason, docs in sorted(task["counts"].get("dropped", {}).items())
    ]


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
    """Steps of a kind work side by side: the longest is the time of all, or nearly, for each counts its time
    from when it was begun. Ingest and clean are one pass over the text."""
    rows = []
    others = [(kind,) for kind in KINDS if kind not in ("ingest", "clean")]
    for kinds in (("ingest", "clean"), *others):
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


def describe_estimate(found: Found) -> list[Json]:
    """What was estimated before the run, and what it was; none where nothing was, or it was done in parts."""
    environment: Json = found.root.environment if found.root is not None else {}
    estimate: Json = environment.get("estimate", {})
    split, tokens = found.artifacts.get("split"), found.artifacts.get("tokens")
    actual = {
        "documents": split.manifest.counts["kept"] if split is not None else None,
        "tokens": sum(tokens.manifest.counts["tokens"].values()) if tokens is not None else None,
        "bytes": sum(e.bytes for artifact in found.artifacts.values() for e in artifact.manifest.files),
        "seconds": environment.get("seconds"),
    }
    return [
        {"what": what, "estimated": estimate[what], "actual": actual[what]}
        for what in actual
        if what in estimate and actual[what] is not None
    ]


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


def _warnings(
    found: Found, tally: Tally | None, builds: list[Json], mixture: Json | None
) -> Iterator[tuple[str, str]]:
    """What somebody has to decide about, each with what was measured; `tokmill review` looks further."""
    if found.root is None:
        yield (
            "run",
            "not finished: it has no manifest of its own; the figures are of the steps that are there",
        )
    for step in found.missing:
        yield step, "has no artifact: the run did not get there"
    for step, why in found.set_aside.items():
        yield step, f"not read: {why}"
    yield from told_by_run(found.artifacts, found.root.config if found.root is not None else {})
    held = [(f"build/{build['name']}", build["shares"]["license"]) for build in builds]
    encoded = [("tokens", tally.shares["license"])] if tally is not None else []
    unlicensed = [(row, where) for where, rows in held or encoded for row in rows if row["name"] == UNKNOWN]
    if unlicensed:
        row, where = max(unlicensed, key=lambda one: one[0]["tokens"])
        tokens = f"{row['tokens']:,} tokens ({percent(row['share'], 2)})"
        yield where, f"{tokens} are of documents without a known licence"
    yield from (told[1:] for told in _amounts(builds, mixture) if told[0])


def _notes(found: Found, builds: list[Json], mixture: Json | None) -> Iterator[tuple[str, str]]:
    """What is as it is meant to be, or nearly."""
    for name, artifact in found.artifacts.items():
        counts, facts = artifact.manifest.counts, artifact.manifest.facts
        quarantined = sum(counts.get("quarantined", {}).values())
        if quarantined:
            yield name, f"{quarantined:,} of {counts['in']:,} records are quarantined"
        scanned: Json = facts.get("scanned", {})
        if scanned.get("is_complete") is False and scanned.get("fraction") is not None:
            read = f"{plural(scanned['records'], 'record')} in at most {percent(scanned['fraction'], 2)}"
            yield name, f"reading stopped after {read} of its bytes: what is here is not drawn from the whole"
        yield from ((name, str(note)) for note in facts.get("notes", []))
    yield from (told[1:] for told in _amounts(builds, mixture) if not told[0])


def _amounts(builds: list[Json], mixture: Json | None) -> Iterator[tuple[bool, str, str]]:
    """Cut off, run out, repeated: whether it is much, where, and what."""
    for build in builds:
        truncated, came = build["packing"]["truncated"], build["packing"]["in"]
        if truncated:
            what = f"{truncated:,} tokens were cut off documents longer than a row"
            yield truncated > _LITTLE * came, f"build/{build['name']}", what
    for split in mixture["splits"] if mixture else []:
        for source in split["sources"]:
            wanted, built, epochs = source["wanted"], source["built"], source.get("epochs") or 0
            has_less = built < wanted and percent(wanted) != percent(built)
            if source["name"] in (split["ran_out"] or []) and has_less:
                shares = f"{percent(wanted)} wanted, {percent(built)} built"
                what = f"{split['split']}: {source['name']} had too little for its share ({shares})"
                yield wanted - built > _LITTLE, "mixture", what
            if epochs > 1:
                what = f"{source['name']} is read {epochs:.2f} times in {split['split']}"
                yield epochs > _FEW_EPOCHS, "mixture", what

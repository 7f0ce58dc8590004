"""What the page has to know of a run before anything else: manifests are read, and no table."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import Json, fingerprint_of, package_version
from tokmill.audit.places import splits_of, text_index_path
from tokmill.explorer.shared_passages import has_passages
from tokmill.explorer.site import Site
from tokmill.explorer.text_index import most_bytes

NEAR_RULE = "dedup.near.threshold"
LANGUAGE_RULE, LANGUAGE_COLUMN = "language.min_score", "language_score"


def describe_site(site: Site) -> Json:
    run = site.run
    return {
        "name": site.name,
        "path": site.location,
        "version": package_version("tokmill"),
        "digest": digest_of(run.artifacts),
        "documents": site.columns.documents,
        "sources": list_sources(site),
        "columns": [column.as_json() for column in site.columns.known.values()],
        "steps": list(run.artifacts),
        "missing": run.missing,
        "passages": has_passages(site),
        "builds": [_build(step, build) for step, build in run.of_kind("build").items()],
        "rules": list_rules(site),
        "compare": site.compare,
        "writable": site.writable,
        "index": None if site.url is not None else _index(site),
        "labels": None if site.labels is None else {"path": str(site.labels), "count": None},
    }


def _index(site: Site) -> Json:
    """Where the index of texts is, or would be, and how large it gets."""
    return {"path": str(text_index_path(site.run)), "bytes": most_bytes(site.run)}


def digest_of(artifacts: dict[str, Artifact]) -> str:
    """As `tokmill verify` says it."""
    return fingerprint_of(sorted([name, artifact.manifest.identity] for name, artifact in artifacts.items()))


def list_sources(site: Site) -> list[Json]:
    """Documents of each; and how many are in a split, where the run has got there."""
    split = site.run.artifacts.get("split")
    kept = {
        task["key"]: task["counts"].get("kept")
        for task in (split.manifest.tasks if split is not None else ())
    }
    told = []
    for source, shards in itertools.groupby(site.run.shards, lambda shard: shard.source):
        own = list(shards)
        counts = [kept.get(f"{shard.number:05d}") for shard in own]
        told.append(
            {
                "name": source,
                "documents": sum(shard.documents.rows for shard in own),
                "kept": None if None in counts else sum(count for count in counts if count is not None),
            }
        )
    return told


def _build(step: str, build: Artifact) -> Json:
    manifest = build.manifest
    pack: Json = manifest.config.get("pack") or {}
    tasks = {task["key"]: task["counts"] for task in manifest.tasks}
    return {
        "name": step.removeprefix("build/"),
        "format": manifest.config["format"],
        "splits": [
            {
                "name": split,
                "rows": next(
                    (e.rows for e in manifest.entries("index") if e.path.rpartition("/")[0] in (split, "")), 0
                ),
                "tokens": tasks.get(split, {}).get("tokens", {}).get("written"),
                "seq_len": pack.get("length"),
            }
            for split in splits_of(build)
        ],
    }


class Bound(msgspec.Struct):
    """A rule as the manifest has it. `tokmill.clean.rules` takes half a second to load."""

    name: str
    column: str
    bound: str
    threshold: int | float
    reason: str


def bounds_of(cleaned: Artifact) -> list[Bound]:
    """As `tokmill.audit.bounds.rules_of` has them; the least score of a language is one of them."""
    config = cleaned.manifest.config
    rules = msgspec.convert(config["sieve"]["rules"], list[Bound])
    language = config.get("language")
    if language and language["applied"] == "detect" and language["asked"].get("keep"):
        least = float(language["asked"]["min_score"])
        rules.insert(0, Bound(LANGUAGE_RULE, LANGUAGE_COLUMN, "min", least, "unsure_language"))
    return rules


def list_rules(site: Site) -> list[Json]:
    """Of every source, in order: of cleaning, then of percentiles; and of near duplicates, which has none."""
    return list(_rules(site))


def _rules(site: Site) -> Iterator[Json]:
    cleaned = site.run.of_kind("clean")
    for step, artifact in cleaned.items():
        for rule in bounds_of(artifact):
            yield _told(rule, site.columns.measured_name(rule.column), step.removeprefix("clean/"), "clean")
    scores = site.run.artifacts.get("scores")
    ranked = scores.manifest.config.get("rules", {}) if scores is not None else {}
    for step in cleaned:
        source = step.removeprefix("clean/")
        for rule in msgspec.convert(ranked.get(source, []), list[Bound]):
            yield _told(rule, rule.column, source, "scores")
    dedup = site.run.artifacts.get("dedup")
    near = dedup.manifest.config.get("near") if dedup is not None else None
    if near:
        # who is as alike as the threshold goes
        rule = Bound(NEAR_RULE, "similarity", "max", float(near["threshold"]), "near_dup")
        yield _told(rule, rule.column, "", "dedup")


def _told(rule: Bound, measure: str, source: str, step: str) -> Json:
    return {
        "name": rule.name,
        "measure": measure,
        "source": source,
        "keep": rule.bound,
        "threshold": rule.threshold,
        "reason": rule.reason,
        "step": step,
    }

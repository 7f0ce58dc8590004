"""Where it all comes from, how long it took, and what a reader should know before using it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tokmill.artifact import Artifact
from tokmill.audit.losses import loss_limit, losses_of_run
from tokmill.audit.report.building import describe_builds, describe_mixture
from tokmill.audit.report.found import KINDS, Found
from tokmill.audit.report.markup import percent
from tokmill.audit.report.tally import UNKNOWN, Tally
from tokmill.manifest import Json

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


def list_warnings(found: Found, tally: Tally | None) -> list[Json]:
    """Each with what was measured. Whether it matters is for the reader, or for `tokmill review`."""
    return [{"where": where, "what": what} for where, what in _warnings(found, tally)]


def _warnings(found: Found, tally: Tally | None) -> Iterator[tuple[str, str]]:
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
            yield (
                "tokens",
                f"{row['tokens']:,} tokens ({percent(row['share'], 2)}) are of documents without a known licence",
            )
    for build in describe_builds(found):
        packing = build["packing"]
        if packing and packing.get("truncated"):
            yield (
                f"build/{build['name']}",
                f"{packing['truncated']:,} tokens were cut off documents longer than a row",
            )
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
    yield from _texts(facts.get("warnings"))
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


def _texts(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []

"""What a report says of the steps themselves: what each was made from, on which machine, how fast, and what
was estimated before.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import Json
from tokmill.audit.opened import KINDS, Found

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
    """Ingest and clean are one pass over the text."""
    rows = []
    others = [(kind,) for kind in KINDS if kind not in ("ingest", "clean")]
    for kinds in (("ingest", "clean"), *others):
        groups = [list(found.of_kind(kind).values()) for kind in kinds]
        groups = [group for group in groups if group]
        if not groups:
            continue
        times = [_seconds_of(group) for group in groups]
        known = [time for time in times if time is not None]
        seconds = round(sum(known), 3) if len(known) == len(times) else None
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


def _seconds_of(group: Iterable[Artifact]) -> float | None:
    """Of steps that were at work side by side the longest is the time of all, or nearly, for each counts its
    time from when it was begun. What was made before or after them, as in another run, took its own."""
    spans = []
    for artifact in group:
        environment = artifact.manifest.environment
        if environment.get("seconds") is None or "created_at" not in environment:
            return None
        ended = datetime.fromisoformat(environment["created_at"]).timestamp()  # in whole seconds
        spans.append((ended - environment["seconds"], ended + 1, environment["seconds"]))
    total = longest = latest = 0.0
    for begun, ended, seconds in sorted(spans):
        if begun > latest:
            total, longest = total + longest, 0.0
        longest, latest = max(longest, seconds), max(latest, ended)
    return total + longest


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

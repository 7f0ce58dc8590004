"""What a report says of the steps themselves: what each was made from, on which machine, how fast, and what
was estimated before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import TOMBSTONES, Json
from tokmill.audit.opened import KINDS, Found
from tokmill.pipeline.timeline import PART, WORKED, Spell, sum_spells

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
    """Seconds, documents and bytes of each kind of step, all three of the same tasks: where a run did some of
    them again, as after a takedown, they are of those. Ingest and clean are one pass over the text."""
    rows = []
    others = [(kind,) for kind in KINDS if kind not in ("ingest", "clean")]
    for kinds in (("ingest", "clean"), *others):
        groups = [list(found.of_kind(kind).values()) for kind in kinds]
        groups = [group for group in groups if group]
        if not groups:
            continue
        seconds = _seconds_of([artifact for group in groups for artifact in group])
        timed = [sum(map(_timed_tasks, group)) for group in groups]
        size = _bytes_through(found, kinds[0], groups[0])
        rate = size / seconds / 1e6 if size and seconds and len(set(timed)) == 1 else None
        rows.append(
            {
                "kind": " + ".join(kinds[: len(groups)]),
                "steps": sum(map(len, groups)),
                "tasks": sum(map(_tasks, groups[0])),
                "timed_tasks": timed[0],
                "seconds": seconds,
                "docs": _sum_timed(groups[0], "in"),
                "text_bytes": size,
                "megabytes_per_second": round(rate, 3) if rate is not None else None,
                "written_bytes": sum(e.bytes for group in groups for a in group for e in a.manifest.files),
            }
        )
    return rows


def _seconds_of(group: Iterable[Artifact]) -> float | None:
    """The time in which any of these steps was at work."""
    spells, most = list[Spell](), 0.0
    for artifact in group:
        environment = artifact.manifest.environment
        if WORKED not in environment:  # an earlier version wrote down when a step began and ended
            return None
        spells += [(begun, ended) for begun, ended in environment[WORKED]]
        most += environment["seconds"]
    return round(min(sum_spells(spells), most), 3)


def _tasks(artifact: Artifact) -> int:
    """Number of tasks that read something: not the one that keeps the list of takedowns."""
    return sum(task["key"] != TOMBSTONES for task in artifact.manifest.tasks)


def _timed_tasks(artifact: Artifact) -> int:
    part = artifact.manifest.environment.get(PART)
    return int(part["tasks"]) if part is not None else _tasks(artifact)


def _sum_timed(group: Iterable[Artifact], key: str) -> int | None:
    """A count of the tasks whose seconds are known."""
    counted: list[Any] = [
        artifact.manifest.environment.get(PART, artifact.manifest.counts).get(key) for artifact in group
    ]
    return None if None in counted or not counted else sum(counted)


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


def _bytes_through(found: Found, kind: str, group: list[Artifact]) -> int | None:
    """Of text; steps after cleaning read what it kept, all of it or an unknown part. Builds read ids."""
    if kind in ("tokenizer", "mixture", "build", "split"):
        return None
    if kind == "ingest":
        return _sum_timed(group, "text_bytes")
    if any(PART in artifact.manifest.environment for artifact in group):
        return None
    counted: list[Any] = [a.manifest.counts.get("kept_bytes") for a in found.of_kind("clean").values()]
    return None if None in counted or not counted else sum(counted)

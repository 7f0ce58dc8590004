"""The run's own manifest, and what goes with it.

    artifacts ─┬─ ATTRIBUTION.md          by licence and source: what the builds hold
               └─ <out>/manifest.json     names every artifact with its digests; written last

Artifacts of sources and builds that the recipe no longer names are set aside first
(`tokmill.artifacts.previous`), or removed in a takedown.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from tokmill.artifacts.cache import discard_cache
from tokmill.artifacts.directory import Artifact, discard, has_all_files, is_ours, open_artifact
from tokmill.artifacts.history import history_entry, load_continues
from tokmill.artifacts.manifest import (
    MANIFEST,
    FileEntry,
    Json,
    Manifest,
    Receipt,
    build_manifest,
    fingerprint_of,
    write_manifest,
)
from tokmill.artifacts.previous import previous_directory, set_aside
from tokmill.artifacts.runs import remove_derived
from tokmill.artifacts.step import Step
from tokmill.artifacts.tombstones import FORGOTTEN_FILE, PENDING_FILE, forgotten_facts
from tokmill.errors import TokmillError
from tokmill.pipeline.attribution import write_attribution
from tokmill.pipeline.freshness import NAMED, SINGLE, assess
from tokmill.pipeline.origins import as_read, stale_origins
from tokmill.storage.disk import remove_file
from tokmill.storage.location import file_sha256

REVIEW = "review"  # in `environment`: the section of the recipe
SET = "set"  # likewise: keys that the recipe's file has otherwise


class Asked(NamedTuple):
    """What a run is of: its name, its recipe as the manifest has it, how large its shards are,
    and what it is for."""

    name: str
    recipe: Json
    shard_bytes: int
    review: Json | None = None  # beside the digests: no byte hangs on it
    settings: Json | None = None  # keys that its file has otherwise, likewise


def write_run_manifest(
    out: Path,
    asked: Asked,
    steps: Sequence[Step],
    artifacts: dict[str, Artifact],
    environment: Json,
    *,
    has_changed: bool,
    sets_aside: bool = True,
    say: Callable[[str], None] = lambda line: None,
    settle: Callable[[], None] = lambda: None,
) -> None:
    """`sets_aside`: steps that the recipe no longer names are kept beside the run, and not removed. `settle`
    waits until nobody else works in the directories of steps: their manifests may be written again."""
    for step in steps[len(artifacts) :]:  # later steps, if they still hold
        if all(name in artifacts for name in step.needs):
            freshness = assess(step, artifacts)
            if freshness.is_current and freshness.artifact is not None:
                artifacts[step.name] = freshness.artifact
    stamped = stale_origins(artifacts)
    pending = out / PENDING_FILE  # what a takedown left to do is done with the last step
    environment = {**environment, REVIEW: asked.review} if asked.review else environment
    former = _whole_manifest(out)
    if not has_changed and former is not None and former.inputs == _identities(artifacts):
        # who made it, and how long that took; beside that what is asked for now
        asked_for = {key: environment[key] for key in (SET, REVIEW) if key in environment}
        made = {key: value for key, value in former.environment.items() if key not in (SET, REVIEW)}
        environment = {**made, **asked_for}
        said = (former.step, former.config, former.environment)
        if not stamped and said == (asked.name, as_read(asked.recipe), as_read(environment)):
            settle()
            remove_file(pending)
            return
    if stamped:
        remove_file(out / MANIFEST)  # it lists the manifests that are written next
    _remove_former(out, steps, sets_aside=sets_aside and not pending.is_file(), say=say)
    attributed = write_attribution(out, artifacts)
    settle()
    for name, artifact in stamped.items():
        write_manifest(artifact.directory, artifact.manifest)
        artifacts[name] = artifact
    files = [_manifest_entry(out, artifact) for artifact in artifacts.values()]
    files += attributed
    lineage, forgotten = forgotten_facts(out) if (out / FORGOTTEN_FILE).is_file() else ({}, [])
    files += forgotten
    continues, history = load_continues(out), history_entry(out)
    if continues is not None and history is not None:
        lineage |= {"continues": msgspec.to_builtins(continues)}
        files.append(history)
    manifest = build_manifest(
        kind="run",
        step=asked.name,
        config=asked.recipe,
        inputs=_identities(artifacts),
        receipts=[Receipt(key="run", fingerprint="", files=files, counts={})],
        counts={name: artifact.manifest.counts for name, artifact in artifacts.items()},
        facts=lineage,
        experiment_id=fingerprint_of([a.manifest.experiment_id for a in artifacts.values()])[:16],
        environment=environment,
    )
    if pending.is_file():
        remove_derived(out)  # of a command that began before the takedown did, and wrote beside it
    write_manifest(out, manifest)
    remove_file(pending)


def former_steps(out: Path, steps: Sequence[Step]) -> dict[str, Path]:
    """Artifacts that no step of the run is for, by name: of sources and builds that the recipe no longer has,
    and of steps after the last one that the run has."""
    planned = {step.directory for step in steps}
    below = [path for parent in NAMED for path in sorted((out / parent).glob("*/"))]
    return {
        path.relative_to(out).as_posix(): path
        for path in (*below, *(out / name for name in SINGLE))
        if path not in planned and is_ours(path)
    }


def former_sizes(out: Path, steps: Sequence[Step]) -> dict[str, int]:
    """Bytes of the former steps that are finished."""
    sizes: dict[str, int] = {}
    for name, directory in former_steps(out, steps).items():
        with contextlib.suppress(TokmillError):
            artifact = open_artifact(directory)
            sizes |= {} if artifact is None else {name: artifact.bytes}
    return sizes


def _remove_former(out: Path, steps: Sequence[Step], *, sets_aside: bool, say: Callable[[str], None]) -> None:
    kept: dict[str, int] = {}
    for name, directory in former_steps(out, steps).items():
        if sets_aside and (size := set_aside(out, directory)) is not None:
            kept[name] = size
        discard(directory)
        if name in SINGLE:
            discard_cache(out, name)
    if kept:
        say(told_removed(kept, out))


def told_removed(sizes: Mapping[str, int], out: Path) -> str:
    return (
        f"the recipe no longer names {name_sizes(sizes)}: kept in {previous_directory(out)} until "
        f"`tokmill gc {out} --delete`"
    )


def name_sizes(steps: Mapping[str, int]) -> str:
    """Steps, and how large they are together: "build/rows and 2 more (12.4 MB)"."""
    names = list(steps)[:_NAMED_STEPS]
    more = f" and {len(steps) - len(names)} more" if len(steps) > len(names) else ""
    return f"{', '.join(names)}{more} ({sum(steps.values()) / 1e6:,.1f} MB)"


_NAMED_STEPS = 4


def _manifest_entry(out: Path, artifact: Artifact) -> FileEntry:
    path = artifact.directory / MANIFEST
    return FileEntry(
        path=path.relative_to(out).as_posix(),
        table="manifest",
        bytes=path.stat().st_size,
        rows=len(artifact.manifest.files),
        sha256=file_sha256(path),
        content_sha256=artifact.manifest.identity,
    )


def _identities(artifacts: Mapping[str, Artifact]) -> dict[str, str]:
    return {name: artifact.manifest.identity for name, artifact in artifacts.items()}


def _whole_manifest(out: Path) -> Manifest | None:
    """Of the run as it was finished last; None: it was not, or files of it are gone."""
    try:
        found = open_artifact(out)
        return found.manifest if found is not None and has_all_files(found) else None
    except TokmillError:
        return None

"""The run's own manifest: every artifact that belongs to the recipe as it stands, and what is nobody else's.

    artifacts ─┬─ ATTRIBUTION.md          by licence and source, in tokens where there are tokens
               └─ <out>/manifest.json     names every artifact with its digests; written last

Artifacts of sources and builds that the recipe no longer has are removed first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tokmill.artifact import Artifact, discard, has_all_files, open_artifact
from tokmill.clean.attribution import LicenseTotals, attribution
from tokmill.errors import TokmillError
from tokmill.forgotten import PENDING_FILE
from tokmill.forgotten_rows import forgotten_facts
from tokmill.manifest import (
    MANIFEST,
    FileEntry,
    Json,
    Receipt,
    build_manifest,
    file_entry,
    fingerprint_of,
    write_manifest,
)
from tokmill.provenance import stale_origins
from tokmill.stages.step import UNKNOWN, Step
from tokmill.standing import assess
from tokmill.storage.commit import commit_bytes, remove_file
from tokmill.storage.location import file_sha256

ATTRIBUTION = "ATTRIBUTION.md"
REVIEW = "review"  # in `environment`: the section of the recipe


class Asked(NamedTuple):
    """What a run is of: its name, its recipe as the manifest has it, how large its shards are, and what it is for."""

    name: str
    recipe: Json
    shard_bytes: int
    review: Json | None = None  # beside the digests: no byte hangs on it


def write_run_manifest(
    out: Path,
    asked: Asked,
    steps: Sequence[Step],
    artifacts: dict[str, Artifact],
    environment: Json,
    *,
    has_changed: bool,
) -> None:
    for step in steps[len(artifacts) :]:  # later steps, if they still hold
        if all(name in artifacts for name in step.needs):
            standing = assess(step, artifacts)
            if standing.is_current and standing.artifact is not None:
                artifacts[step.name] = standing.artifact
    stamped = stale_origins(artifacts)
    if stamped:
        remove_file(out / MANIFEST)  # it lists the manifests that are written next
        for name, artifact in stamped.items():
            write_manifest(artifact.directory, artifact.manifest)
            artifacts[name] = artifact
    pending = out / PENDING_FILE  # what a takedown left to do is done with the last step
    if not has_changed and _lists_exactly(out, artifacts, asked.review):
        remove_file(pending)
        return
    _remove_former(out, steps)
    files = [_manifest_entry(out, artifact) for artifact in artifacts.values()]
    files += _write_attribution(out, artifacts)
    lineage, forgotten = forgotten_facts(out)
    files += forgotten
    manifest = build_manifest(
        kind="run",
        step=asked.name,
        config=asked.recipe,
        inputs={name: artifact.manifest.identity for name, artifact in artifacts.items()},
        receipts=[Receipt(key="run", fingerprint="", files=files, counts={})],
        counts={name: artifact.manifest.counts for name, artifact in artifacts.items()},
        facts=lineage,
        experiment_id=fingerprint_of([a.manifest.experiment_id for a in artifacts.values()])[:16],
        environment={**environment, REVIEW: asked.review} if asked.review else environment,
    )
    write_manifest(out, manifest)
    remove_file(pending)


def _remove_former(out: Path, steps: Sequence[Step]) -> None:
    """Artifacts of sources and builds that the recipe no longer has."""
    planned = {step.directory for step in steps}
    for parent in ("ingest", "clean", "build"):
        for directory in sorted((out / parent).glob("*/")):
            if directory not in planned and _was_ours(directory):
                discard(directory)
    for name in ("dedup", "tokenizer", "tokens", "mixture"):
        if out / name not in planned and _was_ours(out / name):
            discard(out / name)


def _was_ours(directory: Path) -> bool:
    return (directory / MANIFEST).is_file() or (directory / "receipts").is_dir()


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


def _write_attribution(out: Path, artifacts: Mapping[str, Artifact]) -> list[FileEntry]:
    """ATTRIBUTION.md: by licence and source, in tokens where there are tokens."""
    path = out / ATTRIBUTION
    cleaned = {name.removeprefix("clean/"): a for name, a in artifacts.items() if name.startswith("clean/")}
    if "tokens" in artifacts:
        by_source = artifacts["tokens"].manifest.counts.get("licenses", {})
    else:
        by_source = {source: a.manifest.counts.get("licenses", {}) for source, a in cleaned.items()}
    if not cleaned:
        remove_file(path)
        return []
    text = attribution(
        LicenseTotals(
            source, None if name == UNKNOWN else name, total["docs"], total["chars"], total.get("tokens")
        )
        for source, totals in by_source.items()
        for name, total in totals.items()
    )
    written = commit_bytes(path, text.encode())
    return [file_entry(ATTRIBUTION, "attribution", written, rows=1)]


def _lists_exactly(out: Path, artifacts: Mapping[str, Artifact], review: Json | None) -> bool:
    try:
        found = open_artifact(out)
        if found is None or not has_all_files(found):
            return False
        listed = found.manifest
    except TokmillError:
        return False
    is_said = listed.environment.get(REVIEW) == review
    return is_said and listed.inputs == {
        name: artifact.manifest.identity for name, artifact in artifacts.items()
    }

"""A takedown that is decided and not done, on disk: all that is needed to go on.

forgotten.parquet ─> forgetting.json                     set out: from here on the run is not finished
what quotes documents removed, manifests aside
                  ─> forgetting.json, "is_set_aside"     set aside: none of its artifacts proves itself
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tokmill.artifacts.directory import begin
from tokmill.artifacts.manifest import MANIFEST, Json, Manifest, canonical
from tokmill.artifacts.previous import previous_directory, remove_previous
from tokmill.artifacts.runs import DERIVED, is_own_file
from tokmill.artifacts.step import Step
from tokmill.artifacts.tombstones import PENDING_FILE, write_forgotten
from tokmill.audit.places import RunPlaces, text_index_path
from tokmill.pipeline.run_manifest import REVIEW, SET
from tokmill.stages.ingest.options import IngestOptions
from tokmill.storage.disk import commit_bytes, read_regular


class Pending(msgspec.Struct):
    """All that is needed to go on."""

    selection: str
    name: str
    recipe: Json
    shard_bytes: int
    steps: list[str]
    parent: str
    affected: Json
    removed: list[str]
    is_set_aside: bool = False
    review: Json | None = None  # what the run was said to be for
    settings: Json | None = None  # keys that were set beside its recipe


def set_out(out: Path, run: RunPlaces, root: Manifest, forgotten: Any, affected: Json, asked: str) -> Pending:
    """What is to be done, on disk before anything is."""
    derived = [name for name in DERIVED if (out / name).is_file() and is_own_file(out / name)]
    derived += [f"../{previous_directory(out).name}", str(text_index_path(run).absolute())]
    pending = Pending(
        selection=asked,
        name=root.step,
        recipe=root.config,
        shard_bytes=max(
            a.manifest.options(IngestOptions).shard_bytes for a in run.of_kind("ingest").values()
        ),
        steps=list(run.artifacts),
        parent=root.digest,
        affected=affected,
        removed=[name for name in derived if (out / name).exists()],
        review=root.environment.get(REVIEW),
        settings=root.environment.get(SET),
    )
    # in this order: with the list alone nothing is lost, and the same command begins again
    write_forgotten(out, forgotten)
    _write_pending(out, pending)
    return pending


def set_aside(out: Path, pending: Pending, steps: list[Step]) -> None:
    """No artifact that holds, or may hold, one of the documents stays proven; the last made goes first."""
    if pending.is_set_aside:
        return
    (out / MANIFEST).unlink(missing_ok=True)
    for name in pending.removed:
        if (out / name).is_dir():  # steps as they were before
            remove_previous(out)
        else:
            (out / name).unlink(missing_ok=True)
    # a source that only learns of ids which it does not have keeps its content, and so do the steps after it
    listed = {
        step.name for step in steps if step.kind == "ingest" and step.config != step.extra.before.config
    }
    stale: set[str] = set()
    for step in steps:
        is_taken_from = step.kind == "ingest" and step.options.reading.source in pending.affected["sources"]
        if is_taken_from or not stale.isdisjoint(step.needs):
            stale.add(step.name)
    for step in reversed(steps):
        if step.name in listed | stale:
            begin(step.directory)
    pending.is_set_aside = True
    _write_pending(out, pending)


def _write_pending(out: Path, pending: Pending) -> None:
    commit_bytes(out / PENDING_FILE, canonical(msgspec.to_builtins(pending)) + b"\n")


def load_pending(out: Path) -> Pending | None:
    path = out / PENDING_FILE
    return msgspec.json.decode(read_regular(path), type=Pending) if path.is_file() else None

"""A step over a finished run, made in a directory elsewhere: `export` and `index`.

    run ─ artifacts up to the mixture ─ step ─> <out>/.work/<step> ─ moved ─> <out>/… manifest.json (last)

`.work` makes a killed command resume, and goes when it is done. What is finished in `out` stays, unless it is
of the same run and options, or may be replaced. The run itself is only read.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from tokmill.adhoc.finished import other_options
from tokmill.artifacts.directory import Artifact, has_all_files, open_artifact, remove_leftovers
from tokmill.artifacts.manifest import MANIFEST, Manifest, step_fingerprint, write_manifest
from tokmill.artifacts.progress import Progress, open_journal, warnings_to
from tokmill.artifacts.runs import check_workplace, is_workplace, refuse_taken
from tokmill.artifacts.step import Step
from tokmill.engines.local import Resources
from tokmill.errors import InputError
from tokmill.pipeline.freshness import step_inputs
from tokmill.pipeline.session import Session
from tokmill.storage.disk import move_committed, remove_file
from tokmill.storage.lease import open_lease

_WORK = ".work"


class Elsewhere(NamedTuple):
    """What is made, of which run, and where."""

    run: Path
    target: Path
    title: str  # of the run
    step: Step
    upstream: dict[str, Artifact]
    inputs: dict[str, str]
    fingerprint: str
    noun: str  # "export"


class _Former(NamedTuple):
    """What an earlier command finished in the directory."""

    manifest: Manifest
    is_done: bool  # it is the one that is asked for, and all of it is there


def check_outside(target: Path, run: Path, next: str) -> None:
    if target.resolve().is_relative_to(run.resolve()):
        raise InputError(
            "lies in the run itself, which lists all that belongs to it", where=str(target), next=next
        )


def step_elsewhere(
    run: Path, target: Path, title: str, kind: str, options: object, upstream: dict[str, Artifact], noun: str
) -> Elsewhere:
    step = Step(kind, kind, target / _WORK / kind, options, tuple(upstream))
    inputs = step_inputs(step, upstream)
    fingerprint = step_fingerprint(step.kind, step.config, inputs)
    return Elsewhere(run, target, title, step, upstream, inputs, fingerprint, noun)


def make_elsewhere(
    asked: Elsewhere, shard_bytes: int, resources: Resources, progress: Progress, *, replace: bool
) -> tuple[Manifest, bool]:
    """The manifest, and whether it is new."""
    former = _former(asked, replace=replace)
    if former is not None and former.is_done:
        if is_workplace(asked.target / _WORK):  # a kill came between the manifest and the end of the removal
            shutil.rmtree(asked.target / _WORK, ignore_errors=True)
        return former.manifest, False
    return _make(asked, shard_bytes, former, resources, progress, replace=replace), True


def _former(asked: Elsewhere, *, replace: bool) -> _Former | None:
    target, step = asked.target, asked.step
    artifact = open_artifact(target) if target.is_dir() else None
    if artifact is None:
        return None
    manifest = artifact.manifest
    if manifest.kind != step.kind or manifest.step != step.name:
        raise InputError(
            f"holds {manifest.step}, which is no {asked.noun}: its {MANIFEST} would be lost",
            where=str(target),
            next="give another directory",
        )
    is_same = manifest.fingerprint == asked.fingerprint
    if not is_same and not replace:
        before, now = (
            {**config, "run": inputs}
            for config, inputs in ((manifest.config, manifest.inputs), (step.config, asked.inputs))
        )
        raise other_options(target, before, now)
    return _Former(manifest, is_same and has_all_files(artifact))


def _make(
    asked: Elsewhere,
    shard_bytes: int,
    former: _Former | None,
    resources: Resources,
    progress: Progress,
    *,
    replace: bool,
) -> Manifest:
    step, target = asked.step, asked.target
    work = target / _WORK
    check_workplace(work)
    with (
        open_lease(work, say=progress.say) as lease,
        open_journal(work, asked.title, progress) as journal,
        warnings_to(journal.say, journal.count),
    ):
        journal.plan([step.name])
        session = Session(asked.run, work, resources, shard_bytes, journal, check=lease.check)
        try:
            made, _, _ = session.run_steps([step], asked.upstream)
        finally:
            session.close()
        artifact = made[step.name]
        known = [entry.path for entry in former.manifest.files] if former is not None else []
        refuse_taken(target, [entry.path for entry in artifact.manifest.files], known, work, replace=replace)
        remove_leftovers(target)
        remove_file(target / MANIFEST)  # until all is there, nothing is
        for entry in artifact.manifest.files:
            move_committed(artifact.path(entry), target / entry.path)
        _remove_former(target, artifact.manifest, former)
        write_manifest(target, artifact.manifest)
    shutil.rmtree(work)
    return artifact.manifest


def _remove_former(target: Path, manifest: Manifest, former: _Former | None) -> None:
    """Files that an earlier one has and this one has not; directories that are empty then go too."""
    kept = {entry.path for entry in manifest.files}
    for entry in former.manifest.files if former is not None else ():
        path = target / entry.path
        if entry.path not in kept:
            remove_file(path)
            if path.parent != target and path.parent.is_dir() and not any(path.parent.iterdir()):
                path.parent.rmdir()

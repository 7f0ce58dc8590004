"""The texts of a finished run, for other tools: the step that `content: text` of a recipe makes, elsewhere.

    run ─ documents, edits, trims, labels, order of the mixture ─ stages/texts.py ─> <out>/.work/texts
                                                                  ─ moved ─> <out>/<split>/texts-* README.md
                                                                             manifest.json (last)
    --push OWNER/NAME      the directory as a dataset of the hub

`.work` makes a killed export resume, and goes when it is done. What is finished in `out` stays, unless it is
of the same run and options, or may be replaced. The run itself is only read.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tokmill.adhoc.finished import other_options
from tokmill.adhoc.hub_push import Pushed, check_target, push_dataset
from tokmill.artifacts.manifest import (
    MANIFEST,
    Json,
    Manifest,
    step_fingerprint,
    write_manifest,
)
from tokmill.artifacts.progress import Progress, Silence, open_journal, warnings_to
from tokmill.artifacts.runs import load_finished, open_run
from tokmill.artifacts.step import Artifact, Step, has_all_files, open_artifact
from tokmill.engines.local import Resources, check_resources
from tokmill.errors import InputError, StorageError
from tokmill.pipeline.run_manifest import step_inputs
from tokmill.pipeline.session import Session
from tokmill.recipe import TextFormatName
from tokmill.stages.texts import TextsOptions
from tokmill.storage.disk import move_committed, remove_file
from tokmill.storage.lease import open_lease
from tokmill.storage.textfiles import find_text_format

_WORK = ".work"
_STEP = "texts"  # a build of a recipe has a name besides
_KINDS = ("ingest", "clean", "dedup", "split", "mixture")


@dataclass(frozen=True)
class Exported:
    """A directory of texts, and what is in it."""

    directory: Path
    manifest: Manifest
    is_new: bool  # False: it was there already
    pushed: Pushed | None = None

    @property
    def documents(self) -> int:
        return int(self.manifest.counts["kept"])

    def as_json(self) -> Json:
        manifest = self.manifest
        return {
            "directory": str(self.directory),
            "format": manifest.config["format"],
            "documents": self.documents,
            "splits": {split: total["docs"] for split, total in manifest.counts["splits"].items()},
            "files": len(manifest.entries("texts")),
            "bytes": sum(entry.bytes for entry in manifest.files),
            "corpus_digest": manifest.facts["corpus_digest"],
            "is_new": self.is_new,
            **({"pushed": self.pushed._asdict()} if self.pushed is not None else {}),
        }


def export(
    directory: str | Path,
    *,
    out: str | Path,
    format: TextFormatName = "jsonl",
    measures: bool = False,
    push: str | None = None,
    replace: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Exported:
    """The texts of the finished run in `directory`, with all their fields, as files in `out`.

    They are those of the mixture, in its order, where the run has one; else all that were kept, in the order
    of the corpus. `measures`: with what the rules measured. `push`: then upload the directory to the hub, as
    the dataset OWNER/NAME, with the token in HF_TOKEN.
    """
    run, target = Path(directory), Path(out)
    check_resources(Resources(workers))
    find_text_format(format)
    if push is not None:
        check_target(push)
    root = load_finished(run)
    if target.resolve().is_relative_to(run.resolve()):
        raise InputError(
            "lies in the run itself, which lists all that belongs to it",
            where=str(target),
            next="give a directory elsewhere, or add a build with `content: text` to the recipe",
        )
    asked = _step(
        run,
        root,
        target,
        TextsOptions(
            title=root.step,
            format=format,
            measures=measures,
            shard_bytes=int(root.config["shards"]["megabytes"]) << 20,
        ),
    )
    former = _former(target, asked, replace=replace)
    manifest = former.manifest if former is not None and former.is_done else None
    if manifest is None:
        manifest = _make(run, target, asked, former, Resources(workers), progress or Silence())
    made = Exported(target, manifest, former is None or not former.is_done)
    if push is None:
        return made
    return Exported(target, manifest, made.is_new, push_dataset(target, manifest, push))


class _Asked(NamedTuple):
    step: Step[TextsOptions]
    upstream: dict[str, Artifact]
    inputs: dict[str, str]
    fingerprint: str


class _Former(NamedTuple):
    """What an earlier export finished in the directory."""

    manifest: Manifest
    is_done: bool  # it is the one that is asked for, and all of it is there


def _step(run: Path, root: Manifest, target: Path, options: TextsOptions) -> _Asked:
    upstream = {
        name: artifact for name, artifact in open_run(run).items() if artifact.manifest.kind in _KINDS
    }
    if "split" not in upstream:
        raise StorageError(
            "the run ended before the split: there is nothing to export yet",
            where=str(run),
            next="run the recipe to its end: `tokmill run RECIPE`",
        )
    step = Step(_STEP, "texts", target / _WORK / _STEP, options, tuple(upstream))
    inputs = step_inputs(step, upstream)
    return _Asked(step, upstream, inputs, step_fingerprint(step.kind, step.config, inputs))


def _former(target: Path, asked: _Asked, *, replace: bool) -> _Former | None:
    artifact = open_artifact(target) if target.is_dir() else None
    if artifact is None:
        return None
    manifest = artifact.manifest
    if manifest.kind != "texts" or manifest.step != _STEP:
        raise InputError(
            f"holds {manifest.step}, which is no export: its {MANIFEST} would be lost",
            where=str(target),
            next="give another directory",
        )
    is_same = manifest.fingerprint == asked.fingerprint
    if not is_same and not replace:
        before, now = (
            {**config, "run": inputs}
            for config, inputs in ((manifest.config, manifest.inputs), (asked.step.config, asked.inputs))
        )
        raise other_options(target, before, now)
    return _Former(manifest, is_same and has_all_files(artifact))


def _make(
    run: Path, target: Path, asked: _Asked, former: _Former | None, resources: Resources, progress: Progress
) -> Manifest:
    work = target / _WORK
    with (
        open_lease(work, say=progress.say),
        open_journal(work, asked.step.options.title, progress) as journal,
        warnings_to(journal.say, journal.count),
    ):
        journal.plan([_STEP])
        session = Session(run, work, resources, asked.step.options.shard_bytes, journal)
        try:
            made, _, _ = session.run_steps([asked.step], asked.upstream)
        finally:
            session.close()
        artifact = made[_STEP]
        remove_file(target / MANIFEST)  # until all is there, nothing is
        for entry in artifact.manifest.files:
            move_committed(artifact.path(entry), target / entry.path)
        _remove_former(target, artifact.manifest, former)
        write_manifest(target, artifact.manifest)
    shutil.rmtree(work)
    return artifact.manifest


def _remove_former(target: Path, manifest: Manifest, former: _Former | None) -> None:
    """Files that an earlier export has and this one has not; directories that are empty then go too."""
    kept = {entry.path for entry in manifest.files}
    for entry in former.manifest.files if former is not None else ():
        path = target / entry.path
        if entry.path not in kept:
            remove_file(path)
            if path.parent != target and path.parent.is_dir() and not any(path.parent.iterdir()):
                path.parent.rmdir()

"""A finished run, by its own manifest: it lists that of every step. And a copy of one, to be gone on with."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tokmill.artifacts.directory import Artifact, open_artifact
from tokmill.artifacts.manifest import Manifest
from tokmill.artifacts.tombstones import PENDING_FILE
from tokmill.errors import StorageError
from tokmill.storage.disk import remove_file

# What other commands write into a run: it may quote documents, and is made again from the artifacts.
DERIVED = ("report.html", "report.json", "review.md", "review.json", "DATACARD.md", "croissant.json")


def refuse_pending(directory: Path) -> None:
    """Refuse to read a run while documents are being taken out of it: what is written meanwhile might quote
    them for good."""
    if (directory / PENDING_FILE).is_file():
        raise StorageError(
            "a takedown is not done: documents that are to go are still in the run",
            where=str(directory),
            next="give the same `tokmill forget` again, or run the recipe: either ends it",
        )


def remove_derived(directory: Path) -> None:
    """Remove what other commands wrote into a run of texts that are there no more."""
    for name in DERIVED:
        remove_file(directory / name)


def load_finished(directory: Path) -> Manifest:
    """The manifest of a run that came to its end."""
    refuse_pending(directory)
    root = open_artifact(directory) if directory.is_dir() else None
    if root is None or root.manifest.kind != "run":
        raise StorageError(
            "is not the directory of a finished run",
            where=str(directory),
            next="give the output directory of `tokmill run`; run the recipe again if it was cut short",
        )
    return root.manifest


_OF_DOCUMENTS = ("ingest", "clean", "dedup", "split", "mixture")


def open_documents(directory: Path) -> dict[str, Artifact]:
    """What says which documents a finished run has, and which of them it chose."""
    found = {
        name: artifact
        for name, artifact in open_run(directory).items()
        if artifact.manifest.kind in _OF_DOCUMENTS
    }
    if "split" not in found:
        raise StorageError(
            "the run ended before the split: which documents it has is not decided",
            where=str(directory),
            next="run the recipe to its end: `tokmill run RECIPE`",
        )
    return found


def open_run(directory: Path) -> dict[str, Artifact]:
    """Artifacts by step, in the order of the run."""
    found: dict[str, Artifact] = {}
    for entry in load_finished(directory).entries("manifest"):
        artifact = open_artifact((directory / entry.path).parent)
        if artifact is None:
            raise StorageError("is missing", where=str(directory / entry.path), next="run the recipe again")
        found[artifact.manifest.step] = artifact
    return found


def link_run(source: Path, target: Path) -> None:
    """All steps, without the manifest of the run: it is none until its own steps are done. What is there
    stays, so a copy that was cut short is completed."""
    for directory, _, names in os.walk(source):
        below = target / Path(directory).relative_to(source)
        below.mkdir(parents=True, exist_ok=True)
        for name in sorted(names):
            if Path(directory) == source or (below / name).exists():
                continue
            if name.endswith(".json"):
                shutil.copyfile(Path(directory) / name, below / name)
            else:
                os.link(Path(directory) / name, below / name)

"""The life of an artifact directory.

    begin    manifest.json that no longer fits  ->  manifest.stale.json   (the artifact is gone, its receipts are not)
             leftovers of killed writers        ->  removed
    reuse    a receipt holds when a task has its fingerprint and every file its sha256
    finish   manifest.json written  ->  files of no task removed, for good  ->  receipts and stale manifest removed

Killing the process, or the machine, between any two of these steps loses at most the work of the tasks in flight. A disk
without power keeps removals in any order, so a directory is synced before that goes which says that there is more to do.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tokmill.artifacts.manifest import (
    MANIFEST,
    RECEIPTS,
    STALE_MANIFEST,
    FileEntry,
    Manifest,
    Receipt,
    load_manifest,
    load_receipts,
    write_manifest,
)
from tokmill.errors import TokmillError
from tokmill.storage.commit import TEMP_PREFIX, make_directory, remove_file, storage_error, sync_directory
from tokmill.storage.location import file_sha256
from tokmill.storage.reading import told_as_unreadable


class Artifact(NamedTuple):
    directory: Path
    manifest: Manifest

    def path(self, entry: FileEntry) -> Path:
        return self.directory / entry.path


def open_artifact(directory: Path) -> Artifact | None:
    """The finished artifact, or None where there is none."""
    with told_as_unreadable(directory / MANIFEST):
        is_there = (directory / MANIFEST).is_file()
    if not is_there:
        return None
    return Artifact(directory, load_manifest(directory))


def has_all_files(artifact: Artifact) -> bool:
    """Present and of the recorded size: the quick look before a step is skipped. `verify` reads every byte."""
    for entry in artifact.manifest.files:
        path = artifact.path(entry)
        with told_as_unreadable(path):
            if not path.is_file() or path.stat().st_size != entry.bytes:
                return False
    return True


def begin(directory: Path) -> None:
    """Open the directory for (re)building."""
    try:
        make_directory(directory)
        if (directory / MANIFEST).is_file():
            (directory / MANIFEST).replace(directory / STALE_MANIFEST)
            sync_directory(directory)  # or it might be back, and vouch for files that are others by then
        for path in sorted(directory.rglob(f"{TEMP_PREFIX}*")):
            if path.is_dir():  # scratch of a task, and all that lies in it
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise storage_error(error, directory) from error


def remove_leftovers(directory: Path) -> None:
    """What killed writers left in a run's own directory; those of its steps go when they begin."""
    for path in sorted(directory.glob(f"{TEMP_PREFIX}*")):
        if path.is_file():
            remove_file(path)


def usable_receipts(directory: Path, wanted: Iterable[str]) -> dict[str, Receipt]:
    """By fingerprint: receipts of earlier work, finished or killed, whose files are all intact."""
    candidates = load_receipts(directory)
    if (directory / STALE_MANIFEST).is_file():
        with contextlib.suppress(TokmillError):  # damaged evidence is no evidence: the tasks run again
            candidates += load_manifest(directory, STALE_MANIFEST).receipts()
    fingerprints = set(wanted)
    found: dict[str, Receipt] = {}
    for receipt in candidates:
        if (
            receipt.fingerprint in fingerprints
            and receipt.fingerprint not in found
            and _intact(directory, receipt)
        ):
            found[receipt.fingerprint] = receipt
    return found


def finish(directory: Path, manifest: Manifest) -> Artifact:
    write_manifest(directory, manifest)
    artifact = Artifact(directory, manifest)
    sweep(artifact)
    return artifact


def sweep(artifact: Artifact) -> None:
    """Remove what the manifest does not list; the scaffolding last, because it says that this is still to do."""
    keep = {entry.path for entry in artifact.manifest.files} | {MANIFEST, STALE_MANIFEST}
    scaffolding = artifact.directory / RECEIPTS
    changed = set()
    try:
        for path in sorted(artifact.directory.rglob("*"), reverse=True):  # files before their directories
            if path.is_relative_to(scaffolding):
                continue
            if path.is_dir():
                if any(path.iterdir()):
                    continue
                path.rmdir()
                changed.discard(path)
            elif path.relative_to(artifact.directory).as_posix() in keep:
                continue
            else:
                path.unlink()
            changed.add(path.parent)
        for directory in sorted(changed):
            sync_directory(directory)
        if scaffolding.is_dir():
            shutil.rmtree(scaffolding)
        (artifact.directory / STALE_MANIFEST).unlink(missing_ok=True)
        sync_directory(artifact.directory)
    except OSError as error:
        raise storage_error(error, artifact.directory) from error


def discard(directory: Path) -> None:
    """Remove an artifact, finished or not. Its evidence goes last: an interrupted removal can be resumed."""
    evidence = directory / RECEIPTS
    changed = set()
    try:
        for path in sorted(directory.rglob("*"), reverse=True):  # files before their directories
            if path.is_relative_to(evidence) or path == directory / MANIFEST:
                continue
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
                changed.discard(path)
            else:
                path.unlink()
            changed.add(path.parent)
        for parent in sorted(changed):
            sync_directory(parent)
        if evidence.is_dir():
            shutil.rmtree(evidence)
        (directory / MANIFEST).unlink(missing_ok=True)
        sync_directory(directory)
        directory.rmdir()
        sync_directory(directory.parent)
    except OSError as error:
        raise storage_error(error, directory) from error


def is_unswept(artifact: Artifact) -> bool:
    """A kill came between the manifest and the end of the sweep."""
    return (artifact.directory / RECEIPTS).exists() or (artifact.directory / STALE_MANIFEST).exists()


def _intact(directory: Path, receipt: Receipt) -> bool:
    for entry in receipt.files:
        path = directory / entry.path
        with told_as_unreadable(path):
            if not path.is_file() or path.stat().st_size != entry.bytes:
                return False
        if file_sha256(path) != entry.sha256:
            return False
    return True

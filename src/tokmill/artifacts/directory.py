"""The life of an artifact directory: files, the manifest that lists them, and receipts while it is made.

    begin    manifest.json that no longer fits  ->  manifest.stale.json   (the artifact is gone,
                                                                           its receipts are not)
             leftovers of killed writers        ->  removed
    reuse    a receipt holds when a task has its fingerprint and every file its sha256; of a finished one,
             files that nobody wrote to after its manifest are not read for that
    finish   manifest.json written  ->  files of no task removed, for good  ->  receipts and stale manifest
             removed

Killing the process, or the machine, between any two of these steps loses at most the work of the tasks in
flight. A disk without power keeps removals in any order, so a directory is synced before that goes which says
that there is more to do.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Container, Iterable
from pathlib import Path
from typing import NamedTuple

from tokmill.artifacts.cells import short_repr
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
from tokmill.artifacts.stored import RunFiles
from tokmill.errors import TokmillError
from tokmill.storage.disk import (
    TEMP_PREFIX,
    make_directory,
    remove_file,
    storage_error,
    sync_directory,
    told_as_unreadable,
)
from tokmill.storage.location import file_sha256
from tokmill.storage.on_demand import place_of


@short_repr
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
    """Present and of the recorded size: the quick look before a step is skipped.
    `verify` reads every byte."""
    elsewhere = _elsewhere(artifact.directory)
    if elsewhere is not None:
        return elsewhere.has_all(artifact.directory, artifact.manifest.files)
    for entry in artifact.manifest.files:
        path = artifact.path(entry)
        with told_as_unreadable(path):
            if not path.is_file() or path.stat().st_size != entry.bytes:
                return False
    return True


def damaged_file(artifact: Artifact, max_bytes: int | None = None) -> str | None:
    """A file whose bytes are not those of the manifest, of some that are chosen at random and have so many
    bytes together, on average: one that is larger than what is left is read as often as that is a part of it,
    so that none is never read. None: of all."""
    files = [entry for entry in artifact.manifest.files if entry.table != "manifest"]
    if _elsewhere(artifact.directory) is not None:  # what a task reads there is proven on the way
        files = [entry for entry in files if artifact.path(entry).is_file()]
    left = sum(entry.bytes for entry in files) if max_bytes is None else max_bytes
    for entry in random.sample(files, len(files)):
        if random.random() * entry.bytes > left:
            return None
        left -= entry.bytes
        if file_sha256(artifact.path(entry)) != entry.sha256:
            return entry.path
    return None


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


# When a receipt vouches for its files since, that a task of this very run has written: always.
_ALWAYS = 1 << 63


class Evidence:
    """Receipts of earlier work in a directory, finished or killed, as they are now. `verify`: their files are
    read, all of them. `before`: fingerprints of those that were there when this run began; who wrote the
    others, in the pass of another step, is believed like every task of the run."""

    def __init__(
        self, directory: Path, *, verify: bool = False, before: Container[str] | None = None
    ) -> None:
        self._directory = directory
        self._found: dict[str, list[tuple[Receipt, int]]] = {}  # and since when it vouches for its files
        for receipt in load_receipts(directory):
            is_new = before is not None and receipt.fingerprint not in before
            self.add(receipt, _ALWAYS if is_new else 0)
        stale = directory / STALE_MANIFEST
        if stale.is_file():
            with contextlib.suppress(TokmillError):  # damaged evidence is no evidence: the tasks run again
                since = 0 if verify else stale.stat().st_mtime_ns
                for receipt in load_manifest(directory, stale.name).receipts():
                    self.add(receipt, since)

    def add(self, receipt: Receipt, since: int = 0) -> None:
        self._found.setdefault(receipt.fingerprint, []).append((receipt, since))

    def usable(self, wanted: Iterable[str]) -> dict[str, Receipt]:
        """By fingerprint: those whose files are all intact."""
        found: dict[str, Receipt] = {}
        wanted = list(dict.fromkeys(wanted))
        elsewhere = _elsewhere(self._directory)
        if elsewhere is not None:
            known = {fingerprint: [r for r, _ in self._found.get(fingerprint, ())] for fingerprint in wanted}
            return elsewhere.usable(self._directory, known)
        for fingerprint in wanted:
            for receipt, since in self._found.get(fingerprint, ()):
                if _intact(self._directory, receipt, since):
                    found[fingerprint] = receipt
                    break
        return found


def known_fingerprints(directory: Path) -> set[str]:
    """Of the tasks that earlier runs did in a directory that has begun: receipts, and the manifest before."""
    receipts = [*load_receipts(directory)]
    if (directory / STALE_MANIFEST).is_file():
        with contextlib.suppress(TokmillError):
            receipts += load_manifest(directory, STALE_MANIFEST).receipts()
    return {receipt.fingerprint for receipt in receipts}


def usable_receipts(directory: Path, wanted: Iterable[str], *, verify: bool = False) -> dict[str, Receipt]:
    return Evidence(directory, verify=verify).usable(wanted)


def finish(directory: Path, manifest: Manifest) -> Artifact:
    """What the manifest does not list is still there (`sweep`)."""
    write_manifest(directory, manifest)
    return Artifact(directory, manifest)


def sweep(artifact: Artifact) -> None:
    """Remove what the manifest does not list; the scaffolding last,
    because it says that this is still to do."""
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
    if not directory.exists():
        return
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
    """A kill came between the manifest and the end of the sweep,
    or while the manifest was written once more."""
    return (
        (artifact.directory / RECEIPTS).exists()
        or (artifact.directory / STALE_MANIFEST).exists()
        or any(artifact.directory.glob(f"{TEMP_PREFIX}*"))
    )


def _elsewhere(directory: Path) -> RunFiles | None:
    """The store that has the files of a run, where no disk of this machine has them all."""
    place = place_of(directory)
    return place if isinstance(place, RunFiles) else None


def _intact(directory: Path, receipt: Receipt, since: int) -> bool:
    return all(is_intact(directory / entry.path, entry, since) for entry in receipt.files)


def is_intact(path: Path, entry: FileEntry, since: int) -> bool:
    """Has the file the bytes that it had? It is not read where it was last written to before `since`,
    nanoseconds: the time of what says so. Of the same tick of the clock it is."""
    with told_as_unreadable(path):
        if not path.is_file():
            return False
        there = path.stat()
    if there.st_size != entry.bytes:
        return False
    return there.st_mtime_ns < since or file_sha256(path) == entry.sha256

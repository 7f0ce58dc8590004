"""The life of an artifact directory: files, the manifest that lists them, and receipts while it is made.

    begin    receipts/.begun                    ->  the directory is ours, whatever a kill leaves in it
             manifest.json that no longer fits  ->  manifest.stale.json   (the artifact is gone,
                                                                           its receipts are not)
             leftovers of killed writers        ->  removed
    reuse    a receipt holds when a task has its fingerprint and every file its sha256; of a finished one,
             files that nobody wrote to after its manifest are not read for that
    finish   manifest.json written  ->  files of no task removed, for good  ->  receipts and stale manifest
             removed

Killing the process, or the machine, between any two of these steps loses at most the work of the tasks in
flight. A disk without power keeps removals in any order, so a directory is synced before that goes which says
that there is more to do.

Files that tokmill did not write (`foreign_files`) are never removed. A run refuses to make a step over them;
those that come while a step is made stay where they are.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Container, Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

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
    is_temp,
    make_directory,
    remove_file,
    storage_error,
    sync_directory,
    told_as_unreadable,
    told_as_unwritable,
)
from tokmill.storage.location import file_sha256
from tokmill.storage.on_demand import place_of


@short_repr
class Artifact(NamedTuple):
    directory: Path
    manifest: Manifest

    def path(self, entry: FileEntry) -> Path:
        return self.directory / entry.path

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.manifest.files)


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


_BEGUN = f"{RECEIPTS}/.begun"

# Suffixes of the files of tasks. A step that was killed has files that no receipt lists yet: they are ours if
# they have one of these, or if an earlier manifest lists them.
_MADE = frozenset(
    f".{suffix}"
    for suffix in (
        *("parquet", "arrow", "npy", "npz", "mmap", "bin", "idx", "ds", "index", "metadata", "lengths"),
        *("mds", "json", "jsonl", "zst", "tar", "part", "model", "vocab", "tiktoken"),
    )
)


def is_ours(directory: Path) -> bool:
    """True if an artifact of tokmill was begun or finished in the directory, damaged or not."""
    if (directory / _BEGUN).is_file() or any(_is_manifest(directory / name) for name in _MANIFESTS):
        return True
    return (directory / RECEIPTS).is_dir() and bool(load_receipts(directory))


def is_settled(directory: Path) -> bool:
    """True if the artifact in the directory is finished, and nothing is left of its making."""
    if (directory / RECEIPTS).is_dir() or (directory / STALE_MANIFEST).is_file():
        return False
    try:
        return open_artifact(directory) is not None
    except TokmillError:
        return False


def foreign_files(directory: Path, listed: Container[str] = ()) -> list[Path]:
    """List the files below the directory of an artifact that tokmill did not write: no manifest or receipt of
    ours lists them, and no task that was killed can have left them. `listed`: paths of some that are ours."""
    if not directory.is_dir():
        return []
    ours, settled = is_ours(directory), is_settled(directory)
    unlisted = []
    for folder, folders, names in os.walk(directory):
        folders[:] = sorted(name for name in folders if not is_temp(name))
        below = Path(folder).relative_to(directory).as_posix()
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in sorted(name for name in (*names, *links) if not is_temp(name)):
            place = name if below == "." else f"{below}/{name}"
            _, dot, suffix = name.rpartition(".")
            may_be_left = ours and not settled and (dot + suffix in _MADE or name.isdecimal())
            is_receipt = ours and (place == _BEGUN or (below == RECEIPTS and suffix == "json"))
            if not (may_be_left or is_receipt or (ours and place in _MANIFESTS) or place in listed):
                unlisted.append(place)
    known = _listed_paths(directory) if ours and unlisted else set[str]()
    return [directory / place for place in unlisted if place not in known]


class _Path(msgspec.Struct):
    path: str


class _Listing(msgspec.Struct):
    files: list[_Path]


def _listed_paths(directory: Path) -> set[str]:
    """Files that manifests and receipts list; nothing is proven."""
    listed = {entry.path for receipt in load_receipts(directory) for entry in receipt.files}
    for name in _MANIFESTS:
        with contextlib.suppress(OSError, msgspec.MsgspecError, ValueError):
            manifest = msgspec.json.decode((directory / name).read_bytes(), type=_Listing)
            listed.update(entry.path for entry in manifest.files)
    return listed


def _is_manifest(path: Path) -> bool:
    """True for a manifest that tokmill wrote, cut short, damaged or edited as it may be by now."""
    try:
        data = path.read_bytes()
    except OSError:
        return False
    return not data or data.startswith(_HEAD) or b'"experiment_id"' in data


_MANIFESTS = (MANIFEST, STALE_MANIFEST)
_HEAD = b'{\n "kind": "'


def claim(directory: Path) -> None:
    """Mark the directory as one that tokmill works in."""
    make_directory(directory / RECEIPTS)
    (directory / _BEGUN).touch()


def begin(directory: Path) -> None:
    """Open the directory for (re)building."""
    try:
        claim(directory)
        if (directory / MANIFEST).is_file():
            (directory / MANIFEST).replace(directory / STALE_MANIFEST)
            sync_directory(directory)  # or it might be back, and vouch for files that are others by then
        remove_temps(directory)
    except OSError as error:
        raise storage_error(error, directory) from error


def remove_temps(directory: Path) -> None:
    """Remove what killed writers left, at any depth; a scratch directory of a task goes as a whole."""
    for path in sorted(directory.rglob(f"{TEMP_PREFIX}*")):
        if is_temp(path.name) and path.is_dir():
            shutil.rmtree(path)
        elif is_temp(path.name):
            path.unlink(missing_ok=True)


def remove_leftovers(directory: Path) -> None:
    """What killed writers left in a run's own directory; those of its steps go when they begin."""
    for path in sorted(directory.glob(f"{TEMP_PREFIX}*")):
        if path.is_file() and is_temp(path.name):
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
    """Remove what tasks and receipts left and the manifest does not list; the receipts last,
    because they say that this is still to do."""
    _remove_ours(artifact.directory, {entry.path for entry in artifact.manifest.files} | {MANIFEST})


def discard(directory: Path) -> None:
    """Remove an artifact, finished or not. Its evidence goes last: an interrupted removal can be resumed.
    The directory stays where it has files of others."""
    _remove_ours(directory, set())
    with told_as_unwritable(directory):
        if directory.is_dir() and not any(directory.iterdir()):
            directory.rmdir()
            sync_directory(directory.parent)


def _remove_ours(directory: Path, keep: set[str]) -> None:
    """Remove what tokmill wrote but for the files to keep: receipts and manifests last."""
    if not directory.is_dir():
        return
    stay = keep | {path.relative_to(directory).as_posix() for path in foreign_files(directory)}
    last = [directory / STALE_MANIFEST, *([] if MANIFEST in keep else [directory / MANIFEST])]
    changed = set()
    try:
        for path in sorted(directory.rglob("*"), reverse=True):  # files before their directories
            place = path.relative_to(directory)
            if place.parts[0] == RECEIPTS or path in last or place.as_posix() in stay:
                continue
            if path.is_dir() and not path.is_symlink():
                if any(path.iterdir()):
                    continue
                path.rmdir()
                changed.discard(path)
            else:
                path.unlink()
            changed.add(path.parent)
        for parent in sorted(changed):
            sync_directory(parent)
        receipts = directory / RECEIPTS
        if receipts.is_dir() and not any(place.startswith(f"{RECEIPTS}/") for place in stay):
            shutil.rmtree(receipts)
        for path in last:
            if path.name not in stay:
                path.unlink(missing_ok=True)
        sync_directory(directory)
    except OSError as error:
        raise storage_error(error, directory) from error


def is_unswept(artifact: Artifact) -> bool:
    """A kill came between the manifest and the end of the sweep,
    or while the manifest was written once more."""
    return (
        (artifact.directory / RECEIPTS).exists()
        or (artifact.directory / STALE_MANIFEST).exists()
        or any(is_temp(path.name) for path in artifact.directory.glob(f"{TEMP_PREFIX}*"))
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

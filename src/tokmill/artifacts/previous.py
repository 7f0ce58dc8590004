"""Steps as they were before, kept when the recipe no longer names them or (`--keep-previous`) a run replaces
them, and brought back when a recipe asks for them again.

    <out>.previous/<step>/<fingerprint>/     the files of the artifact, as hard links, and its manifest

A file of ours is never written to once it has its name, so a link costs no bytes until the other name is
gone. Where a file system has no links the artifact is moved: nothing of it is there for the next build to
reuse.

Beside the run and not in it: what lies in a run's directory belongs to the run,
and is proven and published with it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from tokmill.artifacts.directory import Artifact, discard, has_all_files, is_ours, open_artifact, remove_temps
from tokmill.artifacts.manifest import MANIFEST
from tokmill.errors import TokmillError
from tokmill.storage.disk import (
    make_directory,
    place_beside,
    storage_error,
    sync_directory,
    temp_beside,
)

_SUFFIX = ".previous"
_NAME_CHARS = 16  # of a fingerprint: 64 bits
_NAME = re.compile(rf"[0-9a-f]{{{_NAME_CHARS}}}")


class Kept(NamedTuple):
    """A step as it was before. `bytes` are those that only its files hold: what is freed when it goes."""

    step: str
    directory: Path
    bytes: int
    created_at: str


def previous_directory(out: Path) -> Path:
    return place_beside(out, _SUFFIX)


def set_aside(out: Path, directory: Path) -> int | None:
    """Keep the finished artifact in `directory` under its fingerprint, and return its size;
    None where there is none."""
    try:
        artifact = open_artifact(directory)
    except TokmillError:
        return None  # damaged: nothing to come back to
    if artifact is None or not has_all_files(artifact):
        return None
    target = _place(out, artifact.manifest.step, artifact.manifest.fingerprint)
    if (target / MANIFEST).is_file():
        return artifact.bytes
    try:
        make_directory(target.parent)
        scratch = temp_beside(target)
        scratch.mkdir()
        try:
            _link_all(artifact, scratch)
        except OSError:  # no links on this file system, or no more of them
            shutil.rmtree(scratch)
            directory.rename(target)
        else:
            if target.exists():
                shutil.rmtree(target)  # of a removal that was cut short
            scratch.rename(target)
        sync_directory(target.parent)
    except OSError as error:
        raise storage_error(error, target) from error
    return artifact.bytes


def find_previous(out: Path, step: str, fingerprint: str) -> Artifact | None:
    """The step of that fingerprint, whole."""
    with contextlib.suppress(TokmillError):
        kept = open_artifact(_place(out, step, fingerprint))
        if kept is not None and kept.manifest.fingerprint == fingerprint and has_all_files(kept):
            return kept
    return None


def bring_back(kept: Artifact, directory: Path) -> Artifact:
    """In the place of what is there now. Cut short, the step is not built,
    and is brought back the next time."""
    try:
        if directory.exists():
            discard(directory)
        make_directory(directory.parent)
        kept.directory.rename(directory)
        sync_directory(directory.parent)
        sync_directory(kept.directory.parent)
        _remove_empty_parents(kept.directory)
    except OSError as error:
        raise storage_error(error, directory) from error
    return kept._replace(directory=directory)


def list_previous(out: Path) -> list[Kept]:
    """The newest first."""
    found = []
    for path in _kept_directories(out):
        artifact = open_artifact(path)
        if artifact is not None:
            created_at = str(artifact.manifest.environment.get("created_at", ""))
            found.append(Kept(artifact.manifest.step, path, own_bytes(path), created_at))
    return sorted(found, key=lambda kept: (kept.created_at, kept.step, kept.directory), reverse=True)


def remove_previous(out: Path) -> None:
    """Remove all that is kept, and what a killed command left of it; files of others stay."""
    try:
        for path in _kept_directories(out):
            if is_ours(path):
                discard(path)
            else:  # without a manifest: a removal was cut short
                shutil.rmtree(path)
        remove_temps(previous_directory(out))
        for path in sorted(previous_directory(out).rglob("*/"), reverse=True):
            _remove_if_empty(path)
        _remove_if_empty(previous_directory(out))
    except OSError as error:
        raise storage_error(error, previous_directory(out)) from error


def _remove_if_empty(directory: Path) -> None:
    if directory.is_dir() and not directory.is_symlink() and not any(directory.iterdir()):
        directory.rmdir()
        sync_directory(directory.parent)


def _remove_empty_parents(directory: Path) -> None:
    for parent in directory.parents:
        _remove_if_empty(parent)
        if parent.exists() or parent.name.endswith(_SUFFIX):
            return


def own_bytes(directory: Path) -> int:
    """Of files that have no other name."""
    stats = [path.lstat() for path in directory.rglob("*") if path.is_file()]
    return sum(stat.st_size for stat in stats if stat.st_nlink == 1)


def _place(out: Path, step: str, fingerprint: str) -> Path:
    return previous_directory(out) / step / fingerprint[:_NAME_CHARS]


def _kept_directories(out: Path) -> list[Path]:
    """Places of steps, as `_place` names them: what else lies there is of others."""
    kept = previous_directory(out)
    places = (*kept.glob("*/*/"), *kept.glob("*/*/*/"))
    return sorted(path for path in places if _NAME.fullmatch(path.name))


def _link_all(artifact: Artifact, target: Path) -> None:
    """The manifest last. Links are of files that are synced; their names are synced here."""
    folders = {target}
    for name in (*(entry.path for entry in artifact.manifest.files), MANIFEST):
        link = target / name
        link.parent.mkdir(parents=True, exist_ok=True)
        folders.update(parent for parent in link.parents if parent.is_relative_to(target))
        os.link(artifact.directory / name, link)
    for folder in sorted(folders, reverse=True):
        sync_directory(folder)

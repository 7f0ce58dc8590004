"""Bring a published run, or one build of it, to a directory of this machine.

    <url>/manifest.json ─ names ─> <url>/<digest>/… ─ checked on the way ─> DIRECTORY/…     manifests after their files

Nothing has its final name before it is whole. A fetch that was cut short goes on: files that are there and have their
sha256 are not sent again. The directory is a run, or holds a build, when its manifest is there, which comes last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from tokmill.errors import StorageError
from tokmill.manifest import MANIFEST, FileEntry, Json, Manifest, load_manifest
from tokmill.publication import Publication, list_files, open_manifests, open_publication
from tokmill.storage.commit import TEMP_PREFIX, commit_bytes, open_commit, remove_file
from tokmill.storage.location import file_sha256, read_whole

_NOTE = ".fetch"  # the digest of what is being fetched here


@dataclasses.dataclass(frozen=True)
class Fetched:
    url: str
    directory: Path
    digest: str
    files: int
    bytes: int
    reused: int  # files that were there already

    def as_json(self) -> Json:
        return {"ok": True, **dataclasses.asdict(self), "directory": str(self.directory)}


def fetch(
    url: str,
    directory: str | Path,
    *,
    build: str | None = None,
    on_bytes: Callable[[int, int], None] | None = None,
) -> Fetched:
    """`on_bytes(done, total)` is told how far it is."""
    publication = open_publication(url)
    target = Path(directory)
    label = f"{publication.manifest.digest} {build or ''}\n"
    with open_manifests(publication) as mirror:
        names = [name for name in mirror.entries if name != "."]
        if build is not None:
            names = _artifacts_of_build(publication, names, build)
        children = {name: load_manifest(mirror.directory / name) for name in names}
    files = _in_order(publication, children, is_whole=build is None)
    _check_directory(target, label, publication.manifest if build is None else None)
    commit_bytes(target / _NOTE, label.encode())
    for path in sorted(target.rglob(f"{TEMP_PREFIX}*")):  # of a fetch that was killed
        remove_file(path)
    told = on_bytes or (lambda done, total: None)
    total, done, reused = sum(entry.bytes for entry in files), 0, 0
    for entry in files:
        if _is_here(target / entry.path, entry):
            reused += 1
        else:
            with open_commit(target / entry.path) as file:
                for piece in publication.read(entry):
                    file.write(piece)
        done += entry.bytes
        told(done, total)
    if build is None:
        commit_bytes(target / MANIFEST, publication.loaded.data)
    remove_file(target / _NOTE)
    return Fetched(str(publication.url), target, publication.manifest.digest, len(files), total, reused)


def _artifacts_of_build(publication: Publication, names: list[str], build: str) -> list[str]:
    """The build, and the tokenizer that its description points to."""
    wanted = f"build/{build}"
    if wanted not in names:
        builds = [name.removeprefix("build/") for name in names if name.startswith("build/")]
        raise StorageError(
            f"the run has no build {build}",
            where=str(publication.url),
            next=f"it has: {', '.join(builds)}" if builds else "fetch the whole run: it has no build at all",
        )
    return [*(name for name in names if name == "tokenizer"), wanted]


def _in_order(publication: Publication, children: dict[str, Manifest], *, is_whole: bool) -> list[FileEntry]:
    """Data before manifests, and the build's own last: whatever has a manifest is whole."""
    files = list_files(publication.manifest, children)
    if not is_whole:
        files = [entry for entry in files if any(entry.path.startswith(f"{name}/") for name in children)]
    return sorted(files, key=lambda entry: entry.path.rpartition("/")[2] == MANIFEST)


def _is_here(path: Path, entry: FileEntry) -> bool:
    return path.is_file() and path.stat().st_size == entry.bytes and file_sha256(path) == entry.sha256


def _check_directory(target: Path, label: str, whole: Manifest | None) -> None:
    """Empty, or begun by the same fetch, or holding the very same run."""
    if not target.exists():
        return
    if not target.is_dir():
        raise StorageError("is not a directory", where=str(target), next="choose another directory")
    note = target / _NOTE
    if note.is_file():
        if read_whole(note, 1 << 16).decode(errors="replace") == label:
            return
        raise StorageError(
            "holds part of another publication",
            where=str(target),
            next="what is published there has changed since; choose an empty directory",
        )
    if whole is not None and (target / MANIFEST).is_file() and load_manifest(target).digest == whole.digest:
        return
    if any(target.iterdir()):
        raise StorageError("is not empty", where=str(target), next="choose an empty directory, or a new one")

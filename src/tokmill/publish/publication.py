"""A run that was published to an object store, as its readers see it, and how it is fetched.

    <url>/manifest.json                      the run's own manifest: it appears last, in one conditional write
    <url>/<digest>/…                         every file of the run, below the digest of that manifest
    <url>/claim.json                         the lease of who publishes (tokmill.storage.lease)

fetch    <url>/manifest.json ─ names ─> <url>/<digest>/… ─ checked on the way ─> DIRECTORY/…   manifests last

A publication that replaces another has keys of its own, so whoever reads the old one never sees a mixture.
Readers go from the manifest to the files it names and to nothing else: what a listing leaves out or adds
changes nothing.

Nothing has its final name before it is whole. An interrupted fetch resumes: files that are there and have
their sha256 are not sent again. The directory is a run, or holds a build, when its manifest is there, which
comes last.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import MANIFEST, FileEntry, Json, Manifest, load_manifest
from tokmill.errors import CorruptFile, ManifestError, StorageError
from tokmill.publish.prefix import publication_prefix
from tokmill.storage.cloud import Loaded
from tokmill.storage.disk import TEMP_PREFIX, commit_bytes, is_temp, open_commit, remove_file
from tokmill.storage.location import ObjectUrl, file_sha256, parse_url, read_whole
from tokmill.storage.objects import Store, open_store

_PIECE_BYTES = 8 << 20


class Publication(NamedTuple):
    """What the manifest object says, and where its files are."""

    url: ObjectUrl
    store: Store
    loaded: Loaded
    manifest: Manifest

    @property
    def prefix(self) -> ObjectUrl:
        return publication_prefix(self.url, self.manifest)

    def read(self, entry: FileEntry) -> Iterator[bytes]:
        """The object in pieces. An object of another size or content is an error,
        at the latest with its last piece."""
        place = self.prefix.child(entry.path)
        meta = self.store.head(place.key)
        if meta is None:
            raise _damaged("the object is missing", place)
        if meta.size != entry.bytes:
            kind = "truncated" if meta.size < entry.bytes else "too long"
            raise _damaged(f"{kind}: {meta.size:,} bytes, the manifest says {entry.bytes:,}", place)
        digest = hashlib.sha256()
        for start in range(0, entry.bytes, _PIECE_BYTES):
            piece = self.store.read(place.key, start, min(start + _PIECE_BYTES, entry.bytes), meta.etag)
            digest.update(piece)
            yield piece
        if digest.hexdigest() != entry.sha256:
            raise _damaged("damaged: its bytes are not the ones that were written (sha256 differs)", place)


def find_publication(url: ObjectUrl) -> Publication | None:
    """None where nothing is published."""
    store = open_store(url)
    loaded = store.load(url.child(MANIFEST).key)
    if loaded is None:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        commit_bytes(Path(scratch) / MANIFEST, loaded.data)
        manifest = _prove(Path(scratch), url.child(MANIFEST))
    return Publication(url, store, loaded, manifest)


def open_publication(location: str) -> Publication:
    url = parse_url(location)
    found = find_publication(url)
    if found is None:
        raise StorageError(
            "nothing is published here: there is no manifest.json",
            where=str(url),
            next="check the URL; an interrupted run publishes when the same command is run again",
        )
    return found


@contextlib.contextmanager
def open_manifests(publication: Publication) -> Iterator[dict[str, Artifact]]:
    """The artifacts of the run, "." is the run itself;
    of each there is its manifest, proven, until the block ends."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        commit_bytes(root / MANIFEST, publication.loaded.data)
        artifacts = {".": Artifact(root, publication.manifest)}
        for entry in publication.manifest.entries("manifest"):
            commit_bytes(root / entry.path, b"".join(publication.read(entry)))
            name = str(Path(entry.path).parent)
            manifest = _prove(root / name, publication.prefix.child(entry.path))
            artifacts[name] = Artifact(root / name, manifest)
        yield artifacts


def list_files(root: Manifest, children: dict[str, Manifest]) -> list[FileEntry]:
    """Every file of a run with its path below the run, the run's own manifest not among them."""
    files = list(root.files)
    for name, manifest in children.items():
        files += [msgspec.structs.replace(entry, path=f"{name}/{entry.path}") for entry in manifest.files]
    return files


def _prove(directory: Path, url: ObjectUrl) -> Manifest:
    try:
        return load_manifest(directory)
    except ManifestError as error:
        what = error.what
    raise _damaged(what, url)


def _damaged(what: str, url: ObjectUrl) -> CorruptFile:
    return CorruptFile(what, where=str(url), next="publish the run again")


# --- fetch ---

_NOTE = ".fetch"  # the digest of what is being fetched here


@short_repr
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
    """Download the run that is published at `url`, or one `build` of it, every file checked against its
    manifest. `on_bytes(done, total)` is called as it goes."""
    publication = open_publication(url)
    target = Path(directory)
    label = f"{publication.manifest.digest} {build or ''}\n"
    with open_manifests(publication) as artifacts:
        names = [name for name in artifacts if name != "."]
        if build is not None:
            names = _artifacts_of_build(publication, names, build)
        children = {name: artifacts[name].manifest for name in names}
    files = _in_order(publication, children, is_whole=build is None)
    _check_directory(target, label, publication.manifest if build is None else None)
    commit_bytes(target / _NOTE, label.encode())
    for path in sorted(target.rglob(f"{TEMP_PREFIX}*")):  # of a fetch that was killed
        if is_temp(path.name):
            remove_file(path)
    report = on_bytes or (lambda done, total: None)
    total, done, reused = sum(entry.bytes for entry in files), 0, 0
    for entry in files:
        if _is_here(target / entry.path, entry):
            reused += 1
        else:
            with open_commit(target / entry.path) as file:
                for piece in publication.read(entry):
                    file.write(piece)
        done += entry.bytes
        report(done, total)
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

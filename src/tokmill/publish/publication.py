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

A run whose output is an object store: it works in a directory of this machine, then is published from there.

open_target(url, …)  ─ lease ─ is something else published? ─> Target(directory)
    … the run works in `directory`, and resumes there as ever …
    publish()   files ─ parts, hashed on the way ─> <url>/<digest>/…   each checked afterwards (size, etag)
                manifest.json, by one conditional write                until then nothing is published

    <work>/run          the run            <work>/uploads.jsonl    which objects are there, with their etags

A kill costs time: what uploads.jsonl knows and the store still has is not sent again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec

from tokmill.artifacts.manifest import (
    MANIFEST,
    FileEntry,
    Json,
    Manifest,
    file_entry,
    fingerprint_of,
    load_manifest,
)
from tokmill.artifacts.step import Artifact
from tokmill.errors import CorruptFile, ManifestError, RunLocked, StorageError, plural
from tokmill.publish.prefix import publication_prefix
from tokmill.storage.cloud import Loaded
from tokmill.storage.disk import TEMP_PREFIX, Written, commit_bytes, open_commit, remove_file, storage_error
from tokmill.storage.lease import Lease, open_lease
from tokmill.storage.location import ObjectUrl, file_sha256, open_binary, parse_url, read_whole
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
    """`on_bytes(done, total)` is called as it goes."""
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


RUN = "run"
_UPLOADS = "uploads.jsonl"
_UPLOAD_BYTES = 4 << 20
_FILES_AT_A_TIME = 4
_MAX_MANIFEST_BYTES = 1 << 30


class Published(NamedTuple):
    url: str
    digest: str
    files: int
    bytes: int
    sent: int  # files that were not there yet; 0: there was nothing to do

    def as_json(self) -> Json:
        return self._asdict()


class Uploaded(msgspec.Struct, frozen=True, array_like=True):
    key: str
    bytes: int
    etag: str


class Target:
    """Where the run works, and how it gets out."""

    def __init__(
        self, url: ObjectUrl, work: Path, lease: Lease, before: Publication | None, replace: bool
    ) -> None:
        self.directory = work / RUN
        self._url, self._work, self._lease = url, work, lease
        self._before, self._replace = before, replace
        self._store = open_store(url)

    def publish(self, say: Callable[[str], None]) -> Published:
        manifest = load_manifest(self.directory)
        files = _files_of(self.directory, manifest)
        size = sum(entry.bytes for entry in files)
        published = Published(str(self._url), manifest.digest, len(files), size, 0)
        if self._before is not None:
            if self._before.manifest.identity == manifest.identity:
                self._sweep(self._before.manifest, say)
                return published._replace(digest=self._before.manifest.digest)
            if not self._replace:
                raise _other_published(self._before, "its inputs were others")
        prefix = publication_prefix(self._url, manifest)
        self._lease.write_unfinished([*self._lease.unfinished, prefix.key])
        say(f"publishing {plural(len(files), 'file')}, {size / 1e6:,.1f} MB, to {prefix}")
        sent = self._send(files, prefix)
        self._lease.check()
        self._commit(manifest, prefix, files)
        self._sweep(manifest, say)
        return published._replace(sent=sent)

    def _send(self, files: list[FileEntry], prefix: ObjectUrl) -> int:
        """Every file is in the store, whole, when this ends. How many had to be sent."""
        with _Notes(self._work / _UPLOADS) as notes, ThreadPoolExecutor(_FILES_AT_A_TIME) as pool:
            waiting = [pool.submit(self._send_one, entry, prefix, notes) for entry in files]
            try:
                return sum(future.result() for future in waiting)
            finally:
                for future in waiting:
                    future.cancel()

    def _send_one(self, entry: FileEntry, prefix: ObjectUrl, notes: _Notes) -> bool:
        self._lease.check()
        url = prefix.child(entry.path)
        known = notes.known.get(url.key)
        if known is not None and self._is_there(url, known):
            return False
        etag = self._store.upload(url.key, _read_proven(self.directory / entry.path, entry), entry.bytes)
        uploaded = Uploaded(url.key, entry.bytes, etag)
        if not self._is_there(url, uploaded):
            raise StorageError(
                "the object that was just written is not the one that is there",
                where=str(url),
                next=f"`tokmill doctor --storage {self._url}` tells what this store does",
            )
        notes.add(uploaded)
        return True

    def _is_there(self, url: ObjectUrl, uploaded: Uploaded) -> bool:
        meta = self._store.head(url.key)
        return meta is not None and (meta.size, meta.etag) == (uploaded.bytes, uploaded.etag)

    def _commit(self, manifest: Manifest, prefix: ObjectUrl, files: list[FileEntry]) -> None:
        key = self._url.child(MANIFEST).key
        data = read_whole(self.directory / MANIFEST, _MAX_MANIFEST_BYTES)
        if self._before is None:
            etag = self._store.create(key, data)
        else:
            etag = self._store.replace(key, data, self._before.loaded.etag)
        if etag is None:
            winner = find_publication(self._url)
            if winner is None or winner.prefix != prefix:  # what the winner published is not ours to remove
                _remove(self._store, [prefix.child(entry.path).key for entry in files])
            with contextlib.suppress(RunLocked):  # the winner took the lease over: then it is its own to keep
                self._lease.write_unfinished([p for p in self._lease.unfinished if p != prefix.key])
            assert winner is not None, "who refused the write?"
            raise _other_published(winner, "it was published while this run was under way")

    def _sweep(self, published: Manifest, say: Callable[[str], None]) -> None:
        """What killed writers left, but for what was ever published. Nothing depends on it:
        no error ends the run."""
        keep = {publication_prefix(self._url, published).key}
        if self._before is not None:
            keep.add(self._before.prefix.key)
        try:
            for prefix in self._lease.unfinished:
                if prefix not in keep:
                    _remove(self._store, [meta.key for meta in self._store.list(f"{prefix}/")])
            self._lease.write_unfinished([])
        except StorageError as error:
            say(f"published; what an earlier run left half uploaded could not be removed ({error.what})")


@contextlib.contextmanager
def open_target(
    location: str,
    recipe: str,
    config: Json,
    *,
    work: Path | None,
    replace: bool,
    wait: bool,
    say: Callable[[str], None],
) -> Iterator[Target]:
    """Hold the URL for this run. A publication of another recipe is refused before any work is done."""
    url = parse_url(location)
    if not url.key:
        raise StorageError(
            "a run needs a key of its own", where=str(url), next=f"write e.g. {url}runs/{recipe}"
        )
    with open_lease(url, recipe, wait=wait, say=say) as lease:
        before = find_publication(url)
        if before is not None and before.manifest.config != config and not replace:
            raise _other_published(before, "its recipe was another")
        yield Target(url, work if work is not None else default_work(url), lease, before, replace)


def default_work(url: ObjectUrl) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "tokmill" / "runs" / f"{url.key.rpartition('/')[2]}-{fingerprint_of(str(url))[:16]}"


class _Notes:
    """Objects that are in the store, one line each: a truncated line does not count."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._adding = threading.Lock()
        self.known: dict[str, Uploaded] = {}

    def __enter__(self) -> _Notes:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            for line in self._path.read_bytes().split(b"\n") if self._path.exists() else []:
                with contextlib.suppress(msgspec.MsgspecError):
                    note = msgspec.json.decode(line, type=Uploaded)
                    self.known[note.key] = note
            self._file = self._path.open("ab", buffering=0)
            self._file.write(b"\n")  # ends a line that a kill left open
        except OSError as error:
            raise storage_error(error, self._path) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, note: Uploaded) -> None:
        with self._adding:
            try:
                self._file.write(msgspec.json.encode(note) + b"\n")
            except OSError as error:
                raise storage_error(error, self._path) from error


def _files_of(directory: Path, manifest: Manifest) -> list[FileEntry]:
    """All of the run, its own manifest last: what lies below a prefix is a whole run for any tool that copies
    it."""
    names = [str(Path(entry.path).parent) for entry in manifest.entries("manifest")]
    files = list_files(manifest, {name: load_manifest(directory / name) for name in names})
    own = read_whole(directory / MANIFEST, _MAX_MANIFEST_BYTES)
    written = Written(len(own), hashlib.sha256(own).hexdigest())
    return [*files, file_entry(MANIFEST, "manifest", written, rows=len(manifest.files))]


def _read_proven(path: Path, entry: FileEntry) -> Iterator[bytes]:
    """A file of the run. One that is not as its manifest says ends the upload: it never appears."""
    digest, size = hashlib.sha256(), 0
    with open_binary(path) as file:
        while piece := file.read(_UPLOAD_BYTES):
            digest.update(piece)
            size += len(piece)
            yield piece
    if (size, digest.hexdigest()) != (entry.bytes, entry.sha256):
        raise CorruptFile(
            "is not as it was written, and was not published",
            where=str(path),
            next="`tokmill verify` on the directory tells more; delete the file and run again to rebuild it",
        )


def _remove(store: Store, keys: list[str]) -> None:
    for key in keys:
        store.delete(key)


def _other_published(found: Publication, why: str) -> StorageError:
    manifest = found.manifest
    return StorageError(
        f"another run is published here (recipe {manifest.step}, experiment {manifest.experiment_id}): {why}",
        where=str(found.url),
        next="publish elsewhere (`tokmill run --out`), or replace it with `tokmill run --replace`",
    )

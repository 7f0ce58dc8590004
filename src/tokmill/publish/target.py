"""Where a run that goes to an object store works, and how it is published.

open_target(url, …)  ─ lease ─ is something else published? ─> Target(directory)
    … the run works in `directory`, and resumes there as ever …
    publish()   files ─ parts, hashed on the way ─> <url>/<digest>/…   each checked afterwards (size, etag)
                manifest.json, by one conditional write                until then nothing is published

    <work>/run          the run            <work>/uploads.jsonl    which objects are there, with their etags

A kill costs time: what uploads.jsonl knows and the store still has is not sent again.

Of a run on nodes that share no disk (`open_store_run`) the directory has manifests alone. Its files are in
the store, and the store copies them to where they are published: no byte of them passes through here.
"""

from __future__ import annotations

import contextlib
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
from tokmill.artifacts.stored import StoredFile
from tokmill.artifacts.tombstones import load_forgotten, merge_forgotten, write_forgotten
from tokmill.errors import CorruptFile, RunLocked, StorageError, plural
from tokmill.publish.prefix import publication_prefix
from tokmill.publish.publication import Publication, find_publication, list_files
from tokmill.publish.stored_run import StoredRun
from tokmill.publish.work_area import WorkArea
from tokmill.storage.cloud import patiently
from tokmill.storage.disk import Written, commit_bytes, storage_error
from tokmill.storage.lease import Lease, open_lease
from tokmill.storage.location import ObjectUrl, open_binary, parse_url, read_whole
from tokmill.storage.objects import Store, open_store
from tokmill.storage.on_demand import files_on_demand
from tokmill.storage.tables import load_table
from tokmill.storage.traffic import counting, in_context

RUN = "run"
_UPLOADS = "uploads.jsonl"
_UPLOAD_BYTES = 4 << 20
_FILES_AT_A_TIME = 4
_NAMED = 3  # of the steps in which two runs differ
_MAX_MANIFEST_BYTES = 1 << 30
_MAX_COPY_BYTES = 5 << 30  # that S3 copies in one request


class Published(NamedTuple):
    url: str
    digest: str
    files: int
    bytes: int
    sent: int  # files that were not there yet; 0: there was nothing to do
    traffic: Json = {}  # noqa: RUF012 (never changed) of the driver, where the run worked in the store

    def as_json(self) -> Json:
        return {key: value for key, value in self._asdict().items() if key != "traffic" or value}


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
        self._stored: StoredRun | None = None

    @contextlib.contextmanager
    def open_store_run(self, say: Callable[[str], None]) -> Iterator[None]:
        """In the block, the files of the run are in the store and those of this machine are manifests."""
        directory = self.directory.absolute()
        stored = StoredRun(self._url, directory, self._lease, say)
        with counting(stored.traffic), files_on_demand(directory, stored):
            if self._before is not None:
                stored.adopt(self._before)
            self._stored = stored
            yield

    def bring_forgotten(self) -> None:
        """Put what was taken down of the run that is published here on the list of the directory: whoever
        replaces it, from wherever, does not bring it back."""
        before = self._before
        for entry in before.manifest.entries("forgotten") if before is not None else ():
            assert before is not None
            with tempfile.TemporaryDirectory() as scratch:
                commit_bytes(Path(scratch) / entry.path, b"".join(before.read(entry)))
                published = load_table(Path(scratch) / entry.path)
            known = load_forgotten(self.directory)
            whole = merge_forgotten([known, published])
            if not whole.equals(known, check_metadata=True):
                write_forgotten(self.directory, whole)

    def publish(self, say: Callable[[str], None]) -> Published:
        manifest = load_manifest(self.directory)
        files = _files_of(self.directory, manifest)
        size = sum(entry.bytes for entry in files)
        published = Published(str(self._url), manifest.digest, len(files), size, 0)
        if self._before is not None:
            if self._before.manifest.identity == manifest.identity:
                self._sweep(self._before.manifest, say)
                return self._told(published._replace(digest=self._before.manifest.digest))
            if not self._replace and not _goes_on(self._before.manifest, manifest):
                raise _other_published(self._before, _difference(self._before.manifest, manifest))
        prefix = publication_prefix(self._url, manifest)
        self._lease.write_unfinished([*self._lease.unfinished, prefix.key])
        say(f"publishing {plural(len(files), 'file')}, {size / 1e6:,.1f} MB, to {prefix}")
        sent = self._send(files, prefix)
        self._lease.check()
        self._commit(manifest, prefix, files)
        self._sweep(manifest, say)
        return self._told(published._replace(sent=sent))

    def _told(self, published: Published) -> Published:
        return published._replace(traffic=self._stored.traffic.as_json()) if self._stored else published

    def _send(self, files: list[FileEntry], prefix: ObjectUrl) -> int:
        """Every file is in the store, whole, when this ends. How many had to be sent."""
        with _Notes(self._work / _UPLOADS) as notes, ThreadPoolExecutor(_FILES_AT_A_TIME) as pool:
            waiting = [pool.submit(in_context(self._send_one), entry, prefix, notes) for entry in files]
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
        source = self._stored.place(entry) if self._stored is not None else None
        if source is not None:
            notes.add(self._copy(source, url))
            return True
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

    def _copy(self, source: StoredFile, url: ObjectUrl) -> Uploaded:
        """Within the store; what is too large for that goes through this machine, in pieces and proven."""
        area = WorkArea(self._url)
        if source.bytes <= _MAX_COPY_BYTES:
            patiently(lambda: self._store.copy(area.place(source).key, url.key))
        else:
            patiently(lambda: self._store.upload(url.key, area.read(source), source.bytes))
        meta = self._store.head(url.key)
        if meta is None or meta.size != source.bytes:
            raise StorageError(
                "the copy that was just made is not as large as what it is of",
                where=str(url),
                next=f"`tokmill doctor --storage {self._url}` tells what this store does",
            )
        return Uploaded(url.key, source.bytes, meta.etag)

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
            if winner is None:
                raise StorageError(
                    "the store refused the manifest, and nothing is published here: what was there is gone",
                    where=str(self._url),
                    next="see that nobody deletes objects here, then run the same command again",
                )
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
            if self._stored is not None:
                self._stored.sweep()
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


def _goes_on(before: Manifest, manifest: Manifest) -> bool:
    """The run that is published ended at an earlier step, and this one has all of its steps as they are."""
    return before.inputs.items() < manifest.inputs.items()


def _difference(before: Manifest, manifest: Manifest) -> str:
    both = before.inputs.keys() & manifest.inputs.keys()
    others = [name for name in before.inputs if name in both and before.inputs[name] != manifest.inputs[name]]
    gone = [name for name in before.inputs if name not in both]
    if others:
        return f"with other content in {_listed(others)}"
    if gone:
        return f"with {_listed(gone)}, which this one has not"
    return "of the same steps, with other files of its own"


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {plural(more, 'more step')}" if more > 0 else "")


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

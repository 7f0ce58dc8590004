"""A run that was published to an object store, as its readers see it.

    <url>/manifest.json                      the run's own manifest: it appears last, in one conditional write
    <url>/<digest>/…                         every file of the run, below the digest of that manifest
    <url>/claim.json                         who publishes (tokmill.storage.objects.claim)

A publication that replaces another has keys of its own, so whoever reads the old one never sees a mixture. Readers
go from the manifest to the files it names and to nothing else: what a listing leaves out or adds changes nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tokmill.errors import CorruptFile, ManifestError, StorageError
from tokmill.manifest import MANIFEST, FileEntry, Manifest, file_entry, load_manifest
from tokmill.storage.commit import Written, commit_bytes
from tokmill.storage.objects.meta import Loaded
from tokmill.storage.objects.store import Store, open_store
from tokmill.storage.objects.url import ObjectUrl, parse_url

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

    def key(self, path: str) -> str:
        return self.prefix.child(path).key

    def read(self, entry: FileEntry) -> Iterator[bytes]:
        """The object in pieces. An object of another size or content is an error, at the latest with its last piece."""
        where, key = str(self.prefix.child(entry.path)), self.key(entry.path)
        meta = self.store.head(key)
        if meta is None:
            raise CorruptFile("the object is missing", where=where, next="publish the run again")
        if meta.size != entry.bytes:
            kind = "truncated" if meta.size < entry.bytes else "too long"
            raise CorruptFile(
                f"{kind}: {meta.size:,} bytes, the manifest says {entry.bytes:,}",
                where=where,
                next="publish the run again",
            )
        digest = hashlib.sha256()
        for start in range(0, entry.bytes, _PIECE_BYTES):
            piece = self.store.read(key, start, min(start + _PIECE_BYTES, entry.bytes), meta.etag)
            digest.update(piece)
            yield piece
        if digest.hexdigest() != entry.sha256:
            raise CorruptFile(
                "damaged: its bytes are not the ones that were written (sha256 differs)",
                where=where,
                next="publish the run again",
            )


class Artifacts(NamedTuple):
    """The manifests of a publication, proven, as files of a directory of this machine."""

    directory: Path
    entries: dict[
        str, list[FileEntry]
    ]  # by the artifact's path; "." has the manifests and what is the run's own


def publication_prefix(url: ObjectUrl, manifest: Manifest) -> ObjectUrl:
    """All bytes below it follow from the digest: it covers the sha256 of every manifest, and these of every file."""
    return url.child(manifest.digest[:32])


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
            next="check the URL; a run that was cut short publishes when the same command is given again",
        )
    return found


@contextlib.contextmanager
def open_manifests(publication: Publication) -> Iterator[Artifacts]:
    """Every manifest of the run, below a directory that goes with the block."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        commit_bytes(root / MANIFEST, publication.loaded.data)
        entries = {".": publication.manifest.files}
        for entry in publication.manifest.entries("manifest"):
            data = b"".join(publication.read(entry))
            name = str(Path(entry.path).parent)
            commit_bytes(root / entry.path, data)
            made = _prove(root / name, publication.prefix.child(entry.path))
            entries[name] = made.files
        yield Artifacts(root, entries)


def list_files(root: Manifest, children: dict[str, Manifest]) -> list[FileEntry]:
    """Every file of a run with its path below the run, the run's own manifest not among them."""
    files = list(root.files)
    for name, manifest in children.items():
        files += [_below(name, entry) for entry in manifest.files]
    return files


def _below(name: str, entry: FileEntry) -> FileEntry:
    return file_entry(
        f"{name}/{entry.path}", entry.table, Written(entry.bytes, entry.sha256), rows=entry.rows
    )


def _prove(directory: Path, url: ObjectUrl) -> Manifest:
    try:
        return load_manifest(directory)
    except ManifestError as error:
        what = error.what
    raise CorruptFile(what, where=str(url), next="publish the run again")

"""The driver of a run whose nodes share nothing but a store: it has manifests and receipts, and no shard.

    tasks ─ told where their inputs are; what only this machine has goes up once ─> engine ─> receipts
    asked for a file    ─ by `conduct`, for a message or a sum ─> brought, proven, counted
    asked for receipts  ─ those of the manifests here, of the run that is published, of the work area

What is published before the run begins is where an unchanged step is taken from, on whatever machine the
driver is: its manifests are put here, and its objects are read where they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from tokmill.artifacts.manifest import MANIFEST, STALE_MANIFEST, FileEntry, Receipt
from tokmill.artifacts.step import Input, Task, read_with
from tokmill.artifacts.stored import RunFiles, Stored, StoredFile
from tokmill.errors import InputError, StorageError, plural
from tokmill.publish.publication import Publication, open_manifests
from tokmill.publish.work_area import Note, WorkArea, at_once, move_files, stored
from tokmill.storage.disk import commit_bytes, open_commit
from tokmill.storage.lease import Lease
from tokmill.storage.location import InputFile, ObjectUrl, file_sha256, is_url
from tokmill.storage.traffic import Traffic


class StoredRun(RunFiles):
    def __init__(self, url: ObjectUrl, root: Path, lease: Lease, say: Callable[[str], None]) -> None:
        self._url, self._root, self._lease, self._say = url, root, lease, say
        self._area = WorkArea(url)
        self._published: dict[str, StoredFile] = {}  # by sha256
        self._here: dict[tuple[str, str], StoredFile] = {}  # by path and content: where inputs are
        self._latest: dict[str, StoredFile] = {}  # by path
        self._present: set[str] = set()  # sha256 of objects that were seen, or written by a task of ours
        self._sent: dict[tuple[str, int, int], StoredFile] = {}  # by path, size and time
        self._bringing = threading.Lock()
        self.traffic = Traffic()  # of the driver
        self.spool = self._area.spool  # for an engine whose jobs share nothing else
        # who has workers for that: the session, as soon as there is one
        self.hash_objects: Callable[[Path, Sequence[InputFile]], dict[str, str]] = _hash_here

    def adopt(self, publication: Publication) -> None:
        """Steps of the run that is published count as done here, where this machine knows nothing of them."""
        with open_manifests(publication) as artifacts:
            for name, artifact in artifacts.items():
                if name == ".":
                    continue
                for entry in artifact.manifest.files:
                    key = publication.prefix.child(f"{name}/{entry.path}").key
                    self._published[entry.sha256] = replace(stored(entry), key=key)
                own = self._root / name
                if not any((own / manifest).exists() for manifest in (MANIFEST, STALE_MANIFEST)):
                    commit_bytes(own / MANIFEST, (artifact.directory / MANIFEST).read_bytes())

    # --- what the artifacts of the run ask ---

    def bring(self, path: Path) -> None:
        file = self._latest.get(str(path))
        if file is None:
            return
        with self._bringing:
            if not path.exists():
                with open_commit(path) as written:
                    for piece in self._area.read(file):
                        written.write(piece)

    def has_all(self, directory: Path, entries: Sequence[FileEntry]) -> bool:
        if directory.absolute() == self._root:  # the run's own: manifests, and what the driver writes
            return all(_has_size(directory / entry.path, entry) for entry in entries)
        self._look(entries)
        if any(entry.sha256 not in self._present for entry in entries):
            return False
        for entry in entries:
            self._know(directory, entry, self._stored(entry))
        return True

    def usable(self, directory: Path, known: Mapping[str, Sequence[Receipt]]) -> dict[str, Receipt]:
        found: dict[str, Receipt] = {}
        told = [Note(receipt, "") for receipts in known.values() for receipt in receipts]
        self._take(directory, told, found)
        missing = [fingerprint for fingerprint in known if fingerprint not in found]
        notes = at_once(self._area.load_note, missing)
        self._take(directory, [note for note in notes if note is not None], found)
        return found

    def _take(self, directory: Path, notes: Sequence[Note], found: dict[str, Receipt]) -> None:
        """Those whose files are there; of several the first."""
        self._look([entry for note in notes for entry in note.receipt.files])
        for receipt, node in ((note.receipt, note.node) for note in notes):
            is_whole = all(entry.sha256 in self._present for entry in receipt.files)
            if receipt.fingerprint not in found and is_whole:
                self._hold(directory, receipt, node)
                found[receipt.fingerprint] = receipt

    def _look(self, entries: Iterable[FileEntry]) -> None:
        """Which of them are there, all at once; those that were seen are not looked for again."""
        unseen = {entry.sha256: self._stored(entry) for entry in entries if entry.sha256 not in self._present}
        for sha256, is_there in zip(unseen, at_once(self._area.has, list(unseen.values())), strict=True):
            if is_there:
                self._present.add(sha256)
            else:  # what was published may have been deleted; what is made anew is in the work area
                self._published.pop(sha256, None)

    def digests(self, directory: Path, files: Sequence[InputFile]) -> dict[str, str]:
        return self.hash_objects(directory, files)

    # --- what the session asks ---

    def prepare(self, tasks: Iterable[Task]) -> list[Task]:
        """For workers that have no path of this machine."""
        self._lease.check()
        tasks = list(tasks)
        every = [one for task in tasks for one in (task, *task.followers)]
        self._send_own({str(path) for task in every for item in task.inputs for path in self._own(item)})
        return [replace(task, stored=Stored(str(self._url), self._files_of(task))) for task in tasks]

    def hold(self, task: Task, receipt: Receipt, node: str) -> None:
        """A task is done: its files are in the store."""
        self._hold(Path(task.directory), receipt, node)

    def place(self, entry: FileEntry) -> StoredFile | None:
        """Where a file of the run is to be copied from; None: this machine has it."""
        return self._stored(entry) if entry.sha256 in self._present else None

    def sweep(self) -> None:
        """After publication: nothing of the work area is needed any more."""
        self._area.remove(self._lease.check)

    # --- where files are ---

    def _stored(self, entry: FileEntry, node: str = "") -> StoredFile:
        return self._published.get(entry.sha256) or replace(stored(entry), node=node)

    def _hold(self, directory: Path, receipt: Receipt, node: str) -> None:
        for entry in receipt.files:
            self._present.add(entry.sha256)
            self._know(directory, entry, self._stored(entry, node))

    def _know(self, directory: Path, entry: FileEntry, file: StoredFile) -> None:
        path = str(directory.absolute() / entry.path)
        self._here[path, entry.content_sha256] = file
        former = self._latest.get(path)
        if former is not None and former.sha256 != file.sha256:
            Path(path).unlink(missing_ok=True)  # what was brought is another one's
        self._latest[path] = file

    def _files_of(self, task: Task) -> dict[str, StoredFile]:
        found = {}
        for item in (item for one in (task, *task.followers) for item in one.inputs):
            if is_url(item.path):
                continue
            file = self._here.get((item.path, item.content_sha256))
            if file is not None:
                found[item.path] = file
            else:
                found.update((str(path), self._sent[_version(path)]) for path in self._own(item))
        return found

    # --- files of this machine ---

    def _own(self, item: Input) -> list[Path]:
        """What no task has written: sources, a tokenizer, hooks and what they read."""
        if is_url(item.path) or (item.path, item.content_sha256) in self._here:
            return []
        return list(dict.fromkeys([Path(item.path), *read_with(item)]))

    def _send_own(self, paths: set[str]) -> None:
        new = [path for path in map(Path, sorted(paths)) if _version(path) not in self._sent]
        if not new:
            return
        files = [StoredFile(file_sha256(path), path.stat().st_size) for path in new]
        size = sum(file.bytes for file in files)
        self._say(f"sending {plural(len(new), 'file')} of this machine, {size / 1e6:,.1f} MB, to the store")
        move_files(lambda one: self._area.send(*one), list(zip(new, files, strict=True)))
        self._sent.update((_version(path), file) for path, file in zip(new, files, strict=True))


def _version(path: Path) -> tuple[str, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise StorageError(
            f"a task needs this file, and it cannot be read here ({error.strerror or error})",
            where=str(path),
            next="run the same command again: what made it runs once more",
        ) from error
    if path.is_dir():
        raise InputError(
            "is a directory, and nodes that share no disk are given files",
            where=str(path),
            next="name the file in it; or run where the nodes share a disk, with a directory as `--out`",
        )
    return str(path), found.st_size, found.st_mtime_ns


def _hash_here(directory: Path, files: Sequence[InputFile]) -> dict[str, str]:
    return {file.name: file_sha256(file.path) for file in files}


def _has_size(path: Path, entry: FileEntry) -> bool:
    return path.is_file() and path.stat().st_size == entry.bytes

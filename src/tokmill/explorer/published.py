"""A published run, explored where it is: its manifests are here, and a file is brought when it is first read.

    <url>/manifest.json ─ manifests of all steps ─> a temporary directory that looks like the run
    a table is read ─ at_hand ─> the object, proven by its sha256 ─> that directory
                                 the oldest files go when there are more than CACHE_BYTES

Nothing that reads a run knows of it. Rows of a build are read by ranges (`tokmill.loader`), not brought.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from tokmill.artifacts.manifest import MANIFEST, FileEntry
from tokmill.publish.publication import Publication, list_files, open_manifests, open_publication
from tokmill.storage.disk import commit_bytes, open_commit
from tokmill.storage.on_demand import files_on_demand

CACHE_BYTES = 2 << 30
_IN_USE_SECONDS = 60.0  # a file that was just brought is about to be opened


class BroughtFiles:
    """`tokmill.storage.on_demand.Place` of a publication."""

    def __init__(
        self,
        publication: Publication,
        directory: Path,
        files: list[FileEntry],
        cache_bytes: int,
    ) -> None:
        self._publication, self._directory, self._cache_bytes = publication, directory, cache_bytes
        self._entries = {directory / entry.path: entry for entry in files}
        self._lock = threading.Lock()
        self._bringing: dict[Path, threading.Lock] = {}
        self._here: OrderedDict[Path, float] = OrderedDict()  # when they came
        self.bytes = 0  # that were brought in all

    def bring(self, path: Path) -> None:
        entry = self._entries.get(path)
        if entry is None:
            return
        with self._lock:
            own = self._bringing.setdefault(path, threading.Lock())
        with own:
            if path.exists():
                return
            with open_commit(path) as file:
                for piece in self._publication.read(entry):
                    file.write(piece)
        with self._lock:
            self._bringing.pop(path, None)
            self._here[path] = time.monotonic()
            self.bytes += entry.bytes
            self._let_go()

    def _let_go(self) -> None:
        """A file that is open stays readable to who has it."""
        held = sum(self._entries[path].bytes for path in self._here)
        for path, came in list(self._here.items()):
            if held <= self._cache_bytes or time.monotonic() - came < _IN_USE_SECONDS:
                return
            path.unlink(missing_ok=True)
            del self._here[path]
            held -= self._entries[path].bytes


@contextlib.contextmanager
def open_published(url: str) -> Iterator[tuple[Path, BroughtFiles]]:
    """A directory that reads as the run does, until the block ends."""
    publication = open_publication(url)
    directory = Path(tempfile.mkdtemp(prefix="tokmill-explore-")).resolve()
    try:
        with open_manifests(publication) as artifacts:
            for name, artifact in artifacts.items():
                commit_bytes(directory / name / MANIFEST, (artifact.directory / MANIFEST).read_bytes())
            children = {name: one.manifest for name, one in artifacts.items() if name != "."}
        files = list_files(publication.manifest, children)
        brought = BroughtFiles(publication, directory, files, CACHE_BYTES)
        with files_on_demand(directory, brought):
            yield directory, brought
    finally:
        shutil.rmtree(directory, ignore_errors=True)

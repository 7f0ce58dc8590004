"""A run whose files are in an object store: what a task is told of that, and what the driver asks.

Task(…, inputs with the driver's paths, stored=Stored(url, paths -> StoredFile))
    in a worker: each file is brought, proven, and lies below a directory of the task's own under the
    driver's path; what the task writes there goes up, and its receipt last      tokmill.publish.node

RunFiles      the driver's view: which receipts hold, where files are, and one that it reads itself
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tokmill.artifacts.manifest import FileEntry, Receipt
from tokmill.storage.location import InputFile


class StoredFile(msgspec.Struct, frozen=True, omit_defaults=True):
    sha256: str  # of its bytes
    bytes: int
    key: str = ""  # where it is; none: under its sha256 in the work area
    node: str = ""  # who wrote it


class Stored(msgspec.Struct, frozen=True):
    """Of a task: all that it reads of this machine's paths, and the URL that the run is for."""

    url: str
    files: dict[str, StoredFile]  # by the driver's absolute path


class RunFiles(abc.ABC):
    @abc.abstractmethod
    def bring(self, path: Path) -> None:
        """To the driver, under its name."""

    @abc.abstractmethod
    def has_all(self, directory: Path, entries: Sequence[FileEntry]) -> bool:
        """Files of an artifact, by their sizes."""

    @abc.abstractmethod
    def usable(self, directory: Path, known: Mapping[str, Sequence[Receipt]]) -> dict[str, Receipt]:
        """By fingerprint, receipts whose files are there: of those that are known, or that the store has."""

    @abc.abstractmethod
    def digests(self, directory: Path, files: Sequence[InputFile]) -> dict[str, str]:
        """SHA-256 by name of objects that are sources: nodes read them, and not the driver."""

"""Prove a run, or any part of it, from its files alone.

    every manifest.json below DIR   sealed? · every file there, of its size, with its sha256?
                                    any file nobody listed? · inputs the ones its neighbours hold?
                                    in = kept + dropped + quarantined, and out of one step = into the next?
    every build                     lengths, pointers, ids and description agree?
    whatever is not as it should    looked at once more: a disk may err, and only what it says twice is told
    forgotten.parquet               is none of these documents in a shard, and has none of them tokens?

`digest` is one string for the content of all artifacts: two runs are equal when it is. What is published at a URL is
proven object by object (tokmill.audit.verify_published).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from tokmill.artifact import Artifact
from tokmill.audit.forgetting_proof import find_forgotten
from tokmill.audit.verification import Problem as Problem
from tokmill.audit.verification import Verification as Verification
from tokmill.audit.verification import chain_problems, flow_problems, verification_of
from tokmill.audit.verify_published import verify_published
from tokmill.errors import OutOfMemory, StorageError, TokmillError
from tokmill.forgotten import PENDING_FILE
from tokmill.formats.megatron import MegatronFile
from tokmill.formats.memmap import open_memmap
from tokmill.formats.npy import NpyRows
from tokmill.formats.parquet import read_parquet
from tokmill.formats.token_cache import TokenCache
from tokmill.journal import JOURNAL
from tokmill.manifest import (
    MANIFEST,
    RECEIPTS,
    STALE_MANIFEST,
    FileEntry,
    Manifest,
    load_manifest,
)
from tokmill.storage.commit import TEMP_PREFIX
from tokmill.storage.location import file_sha256
from tokmill.storage.lock import LOCK
from tokmill.storage.objects.url import is_url, refuse_squeezed_url
from tokmill.storage.reading import system_error, told_as_unreadable

T = TypeVar("T")

# Made from a run, beside it: no artifact needs them, and each can be made again.
_BESIDE = ("report.html", "report.json", "DATACARD.md", "croissant.json", JOURNAL, LOCK)


def verify(directory: str | Path, on_bytes: Callable[[int, int], None] | None = None) -> Verification:
    """Read every byte below `directory`, or of the run published at a URL. `on_bytes(done, total)`: how far it is."""
    if is_url(directory):
        return verify_published(str(directory), on_bytes)
    refuse_squeezed_url(directory)
    root = Path(directory)
    if not _twice(root, root.is_dir):
        raise StorageError("no such directory", where=str(root), next="give the output directory of a run")
    problems: list[Problem] = []
    unread: list[Path] = []
    artifacts = dict(_open_all(root, problems, unread))
    if not artifacts and not problems:
        problems.append(Problem(".", "no artifact here: no manifest.json in it or below"))
    problems += _twice(root, lambda: list(_unfinished(root, artifacts)))
    problems += _twice(root, lambda: list(_strangers(root, artifacts, unread)))
    problems += _files(root, artifacts, on_bytes or (lambda done, total: None))
    if not unread:  # or what they say would be missed in the sums of the others
        problems += chain_problems(artifacts)
        problems += flow_problems(artifacts)
    if not problems:
        problems += _builds(root, artifacts)
        found = _twice(root, lambda: list(find_forgotten(root, artifacts)))
        problems += [Problem(where, what) for where, what in found]
    return verification_of(root, artifacts, problems)


def _twice(root: Path, look: Callable[[], T]) -> T:
    """What is seen the second time, where the first met a fault; who cannot look twice has not seen."""
    with contextlib.suppress(TokmillError, OSError, MemoryError):
        return look()
    try:
        return look()
    except (OSError, MemoryError) as error:
        raise system_error(error, str(root)) from error


def _open_all(root: Path, problems: list[Problem], unread: list[Path]) -> Iterator[tuple[str, Artifact]]:
    """Directories of those that cannot be read are put down: nothing can be said of what lies there."""
    for path in _twice(root, lambda: sorted(root.rglob(MANIFEST))):
        name, directory = path.parent.relative_to(root).as_posix(), path.parent
        try:
            yield name, Artifact(directory, _twice(root, functools.partial(load_manifest, directory)))
        except TokmillError as error:
            problems.append(Problem(path.relative_to(root).as_posix(), error.what))
            if isinstance(error, StorageError | OutOfMemory):
                unread.append(directory)


def _unfinished(root: Path, artifacts: dict[str, Artifact]) -> Iterator[Problem]:
    """A run directory says itself what belongs to it; without that it was cut short."""
    top = artifacts.get(".")
    if top is None:
        if (root / "ingest").is_dir() and not (root / MANIFEST).exists():
            yield Problem(
                ".", "the run is not finished: it has no manifest.json (run the recipe again to resume)"
            )
    elif top.manifest.kind == "run":
        listed = {str(Path(entry.path).parent) for entry in top.manifest.files}
        for name in artifacts.keys() - listed - {"."}:
            yield Problem(name, "is not part of this run, or was made from other inputs")


def _strangers(root: Path, artifacts: dict[str, Artifact], unread: list[Path]) -> Iterator[Problem]:
    known = {root / MANIFEST}
    for artifact in artifacts.values():
        known.add(artifact.directory / MANIFEST)
        known.update(artifact.path(entry) for entry in artifact.manifest.files)
    for path in sorted(root.rglob("*")):
        if path.is_dir() or path in known or path.name == MANIFEST:
            continue
        if path.parent == root and path.name in _BESIDE:
            continue
        if any(path.is_relative_to(directory) for directory in unread):
            continue
        place = path.relative_to(root)
        leftover = (
            any(part.startswith(TEMP_PREFIX) for part in place.parts)
            or path.name == STALE_MANIFEST
            or path.parent.name == RECEIPTS
        )
        what = "left over from an interrupted run" if leftover else "extra file: no manifest lists it"
        if path == root / PENDING_FILE:
            what = "a takedown was cut short: give the same `tokmill forget` again"
        yield Problem(place.as_posix(), what)


def _files(
    root: Path, artifacts: dict[str, Artifact], on_bytes: Callable[[int, int], None]
) -> Iterator[Problem]:
    listed = [
        (artifact.path(entry), entry) for artifact in artifacts.values() for entry in artifact.manifest.files
    ]
    total, done = sum(entry.bytes for _, entry in listed), 0
    for path, entry in listed:
        fault = _file_fault(path, entry) and _file_fault(path, entry)
        if fault:
            yield Problem(path.relative_to(root).as_posix(), fault)
        done += entry.bytes
        on_bytes(done, total)


def _file_fault(path: Path, entry: FileEntry) -> str | None:
    try:
        with told_as_unreadable(path):
            if not path.is_file():
                return "missing"
            size = path.stat().st_size
        if size != entry.bytes:
            kind = "truncated" if size < entry.bytes else "too long"
            return f"{kind}: {size:,} bytes, the manifest says {entry.bytes:,}"
        sha256 = file_sha256(path)
    except TokmillError as error:
        return error.what
    if sha256 != entry.sha256:
        return "damaged: its bytes are not the ones that were written (sha256 differs)"
    return None


def _builds(root: Path, artifacts: dict[str, Artifact]) -> Iterator[Problem]:
    """What a trainer will map, opened as a trainer would."""
    for artifact in artifacts.values():
        for entry in artifact.manifest.files:
            path = artifact.path(entry)
            try:
                _twice(path, functools.partial(_open_build, artifact.manifest, entry.table, path))
            except TokmillError as error:
                yield Problem(path.relative_to(root).as_posix(), error.what)


def _open_build(manifest: Manifest, table: str, path: Path) -> None:
    if table == "sequences":
        MegatronFile(path.with_suffix("")).check()
    elif table == "rows":
        open_memmap(path.parent)
    elif table == "meta" and manifest.kind == "build":
        _open_shards(manifest.config["format"], path.parent)


def _open_shards(build_format: str, directory: Path) -> None:
    if build_format == "npy":
        for _ in NpyRows(directory).read_shards():
            pass
    elif build_format == "parquet":
        for _ in read_parquet(directory):
            pass
    elif build_format == "token_cache":
        for _ in TokenCache(directory, model_sha256=None).read_parts():
            pass

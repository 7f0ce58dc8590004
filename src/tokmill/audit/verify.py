"""Prove a run, or any part of it, from its files alone.

    every manifest.json below DIR   sealed? · every file there, of its size, with its sha256?
                                    any file nobody listed? · inputs the ones its neighbours hold?
                                    in = kept + dropped + quarantined, and out of one step = into the next?
    every build                     lengths, pointers, ids and description agree?
    forgotten.parquet               is none of these documents in a shard, and has none of them tokens?

`digest` is one string for the content of all artifacts: two runs are equal when it is. What is published at a URL is
proven object by object (tokmill.audit.verify_published).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tokmill.artifact import Artifact
from tokmill.audit.forgetting_proof import find_forgotten
from tokmill.audit.verification import Problem as Problem
from tokmill.audit.verification import Verification as Verification
from tokmill.audit.verification import chain_problems, flow_problems, verification_of
from tokmill.audit.verify_published import verify_published
from tokmill.errors import StorageError, TokmillError
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
    load_manifest,
)
from tokmill.storage.commit import TEMP_PREFIX
from tokmill.storage.location import file_sha256
from tokmill.storage.lock import LOCK
from tokmill.storage.objects.url import is_url, refuse_squeezed_url

# Made from a run, beside it: no artifact needs them, and each can be made again.
_BESIDE = ("report.html", "report.json", "DATACARD.md", "croissant.json", JOURNAL, LOCK)


def verify(directory: str | Path, on_bytes: Callable[[int, int], None] | None = None) -> Verification:
    """Read every byte below `directory`, or of the run published at a URL. `on_bytes(done, total)`: how far it is."""
    if is_url(directory):
        return verify_published(str(directory), on_bytes)
    refuse_squeezed_url(directory)
    root = Path(directory)
    if not root.is_dir():
        raise StorageError("no such directory", where=str(root), next="give the output directory of a run")
    problems: list[Problem] = []
    artifacts = dict(_open_all(root, problems))
    if not artifacts and not problems:
        problems.append(Problem(".", "no artifact here: no manifest.json in it or below"))
    problems += _unfinished(root, artifacts)
    problems += _strangers(root, artifacts)
    problems += _files(root, artifacts, on_bytes or (lambda done, total: None))
    problems += chain_problems(artifacts)
    problems += flow_problems(artifacts)
    if not problems:
        problems += _builds(root, artifacts)
        problems += [Problem(where, what) for where, what in find_forgotten(root, artifacts)]
    return verification_of(root, artifacts, problems)


def _open_all(root: Path, problems: list[Problem]) -> Iterator[tuple[str, Artifact]]:
    for path in sorted(root.rglob(MANIFEST)):
        name = path.parent.relative_to(root).as_posix()
        try:
            yield name, Artifact(path.parent, load_manifest(path.parent))
        except TokmillError as error:
            problems.append(Problem(path.relative_to(root).as_posix(), error.what))


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


def _strangers(root: Path, artifacts: dict[str, Artifact]) -> Iterator[Problem]:
    known = {root / MANIFEST}
    for artifact in artifacts.values():
        known.add(artifact.directory / MANIFEST)
        known.update(artifact.path(entry) for entry in artifact.manifest.files)
    for path in sorted(root.rglob("*")):
        if path.is_dir() or path in known or path.name == MANIFEST:
            continue
        if path.parent == root and path.name in _BESIDE:
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
        fault = _file_fault(path, entry)
        if fault:
            yield Problem(path.relative_to(root).as_posix(), fault)
        done += entry.bytes
        on_bytes(done, total)


def _file_fault(path: Path, entry: FileEntry) -> str | None:
    if not path.is_file():
        return "missing"
    size = path.stat().st_size
    if size != entry.bytes:
        kind = "truncated" if size < entry.bytes else "too long"
        return f"{kind}: {size:,} bytes, the manifest says {entry.bytes:,}"
    if file_sha256(path) != entry.sha256:
        return "damaged: its bytes are not the ones that were written (sha256 differs)"
    return None


def _builds(root: Path, artifacts: dict[str, Artifact]) -> Iterator[Problem]:
    """What a trainer will map, opened as a trainer would."""
    for artifact in artifacts.values():
        for entry in artifact.manifest.files:
            path = artifact.path(entry)
            try:
                if entry.table == "sequences":
                    MegatronFile(path.with_suffix("")).check()
                elif entry.table == "rows":
                    open_memmap(path.parent)
                elif entry.table == "meta" and artifact.manifest.kind == "build":
                    _open_shards(artifact.manifest.config["format"], path.parent)
            except TokmillError as error:
                yield Problem(path.relative_to(root).as_posix(), error.what)


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

"""Prove a run, or any part of it, from its files alone; what is published at a URL, object by object.

    every manifest.json below DIR   sealed? · every file there, of its size, with its sha256?
                                    any file nobody listed? · inputs the ones its neighbours hold?
                                    in = kept + dropped + quarantined, and out of one step = into the next?
    every build                     lengths, pointers, ids and description agree? texts: read again?
    whatever is not as it should    looked at once more: a disk may err, and only what it says twice is told
    forgotten.parquet               is none of these documents in a shard, and has none of them tokens?
    seen.parquet                    does what was seen come after everything else? (continued.py)
    what else lists files           corpora, selections, token caches, samples (proofs.py)
    a URL                           manifests, their files and the flow; builds are not opened and takedowns
                                    not searched for: both need the files, so fetch and verify

`digest` is one string for the content of all artifacts: two runs are equal when it is.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tokmill.adhoc import subset
from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import MANIFEST, RECEIPTS, STALE_MANIFEST, FileEntry, load_manifest
from tokmill.artifacts.progress import ESTIMATE, JOURNAL
from tokmill.artifacts.runs import DERIVED
from tokmill.artifacts.tombstones import PENDING_FILE
from tokmill.audit.continued import continuation_problems
from tokmill.audit.listings import Listing, find_listings, list_snapshot, provable, with_checksums
from tokmill.audit.proofs import Problem, chain_problems, find_forgotten, flow_problems
from tokmill.audit.verification import EXTRA, Verification, verification_of
from tokmill.engines.slurm_state import DIRECTORY as SLURM_DIRECTORY
from tokmill.errors import CorruptFile, InputChanged, OutOfMemory, StorageError, TokmillError
from tokmill.formats import format_of, plugin_of
from tokmill.formats.megatron import MegatronFile
from tokmill.publish.publication import Publication, list_files, open_manifests, open_publication
from tokmill.storage.digests import join_sequences, row_sequence
from tokmill.storage.disk import TEMP_PREFIX, system_error, told_as_unreadable
from tokmill.storage.lease import LOCK
from tokmill.storage.location import file_sha256, is_url, refuse_squeezed_url
from tokmill.storage.textfiles import find_text_format


def verify_published(url: str, on_bytes: Callable[[int, int], None] | None = None) -> Verification:
    """Read every byte of every object that the manifest at `url` names."""
    try:
        publication = open_publication(url)
        with open_manifests(publication) as artifacts:
            problems = list(_objects(publication, artifacts, on_bytes or (lambda done, total: None)))
            problems += chain_problems(artifacts)
            problems += flow_problems(artifacts)
            return verification_of(url, artifacts, problems)
    except CorruptFile as error:  # a manifest: without it nothing else can be named
        problem = Problem(error.where.removeprefix(f"{url.rstrip('/')}/"), error.what)
        return verification_of(url, {}, [problem])


def _objects(
    publication: Publication, artifacts: dict[str, Artifact], on_bytes: Callable[[int, int], None]
) -> Iterator[Problem]:
    children = {name: artifact.manifest for name, artifact in artifacts.items() if name != "."}
    files = [
        entry for entry in list_files(publication.manifest, children) if entry.table != "manifest"
    ]  # those are proven
    total, done = sum(entry.bytes for entry in files), 0
    for entry in files:
        try:
            for piece in publication.read(entry):
                done += len(piece)
                on_bytes(done, total)
        except (CorruptFile, InputChanged) as error:
            yield Problem(entry.path, error.what)


T = TypeVar("T")

# Made from a run, beside it: no artifact needs them, and each can be made again.
_BESIDE = (*DERIVED, ESTIMATE, JOURNAL, LOCK)


def verify(
    directory: str | Path,
    on_bytes: Callable[[int, int], None] | None = None,
    *,
    root: str | Path | None = None,
) -> Verification:
    """Read every byte below `directory`, or of the run published at a URL. `on_bytes(done, total)`:
    how far it is.

    Of the manifest of a corpus, every shard that it lists;
    `root` is where corpora/ lies, if not beside manifests/.
    """
    if is_url(directory):
        return verify_published(str(directory), on_bytes)
    refuse_squeezed_url(directory)
    path, corpora = Path(directory), None if root is None else Path(root)
    on_bytes = on_bytes or (lambda done, total: None)
    around = (MANIFEST, subset.META_NAME, subset.MANIFEST_NAME, *with_checksums())
    if _twice(path, path.is_file) and path.name in around:
        path = path.parent  # what these describe lies around them
    if _twice(path, path.is_file):
        listing = _twice(path, lambda: list_snapshot(path, path.name, corpora))
        problems = [*_files(path.parent, listing.files, on_bytes)]
        problems = problems or [*_listing_problems(path.parent, [listing])]
        return verification_of(path, {}, problems, [listing])
    if not _twice(path, path.is_dir):
        raise StorageError(
            "no such file or directory",
            where=str(path),
            next=(
                "give what a command wrote: a run, a build, a corpus or its manifest, a sample, a token cache"
            ),
        )
    return _verify_below(path, corpora, on_bytes)


def _verify_below(root: Path, corpora: Path | None, on_bytes: Callable[[int, int], None]) -> Verification:
    problems: list[Problem] = []
    unread: list[Path] = []
    artifacts = dict(_open_all(root, problems, unread))
    listed = [
        (artifact.path(entry), entry) for artifact in artifacts.values() for entry in artifact.manifest.files
    ]
    claimed = {path for path, _ in listed} | {
        artifact.directory / MANIFEST for artifact in artifacts.values()
    }
    listings, unlisted = _twice(root, lambda: find_listings(root, corpora, claimed))
    unfinished = _twice(root, lambda: list(_unfinished(root, artifacts)))
    # a directory of artifacts is ours to its last file; one of corpora, caches and samples holds others too
    is_run = unfinished or ((artifacts or problems) and not (listings or unlisted))
    strict = {root} if is_run else set()
    strict |= {artifact.directory for artifact in artifacts.values()}
    strict |= {listing.strict for listing in listings if listing.strict is not None}
    problems += [*unlisted, *unfinished]
    problems += _twice(root, lambda: list(_strangers(root, artifacts, listings, strict, unread)))
    if not artifacts and not listings and not problems:
        problems.append(Problem(".", provable()))
    listed += [file for listing in listings for file in listing.files]
    problems += _files(root, list(dict.fromkeys(listed)), on_bytes)
    if not unread:  # or what they say would be missed in the sums of the others
        problems += chain_problems(artifacts)
        problems += flow_problems(artifacts)
    if not problems:
        problems += _builds(root, artifacts)
        problems += _listing_problems(root, listings)
        problems += _twice(root, lambda: list(find_forgotten(root, artifacts)))
        problems += _twice(root, lambda: list(continuation_problems(root, artifacts)))
    return verification_of(root, artifacts, problems, listings)


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
        if _workplace(path.relative_to(root)) is not None:
            continue
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


def _strangers(
    root: Path,
    artifacts: dict[str, Artifact],
    listings: Sequence[Listing],
    strict: set[Path],
    unread: list[Path],
) -> Iterator[Problem]:
    """Files that nobody listed, below the directories in which nothing else belongs."""
    known = {root / MANIFEST}
    for artifact in artifacts.values():
        known.add(artifact.directory / MANIFEST)
        known.update(artifact.path(entry) for entry in artifact.manifest.files)
    for listing in listings:
        known.update({listing.manifest, *listing.beside, *(path for path, _ in listing.files)})
    seen: set[Path] = set()
    for path in sorted(root.rglob("*")):
        place = path.relative_to(root)
        workplace = _workplace(place)
        if path.is_dir() or path in known or (path.name == MANIFEST and workplace is None):
            continue
        if (path.parent == root and path.name in _BESIDE) or place.parts[0] == SLURM_DIRECTORY:
            continue
        if workplace is not None:
            if workplace not in seen:
                seen.add(workplace)
                yield Problem(workplace.as_posix(), "left over: the command was cut short; give it again")
            continue
        if not any(path.is_relative_to(ours) for ours in strict):
            continue
        if any(path.is_relative_to(directory) for directory in unread):
            continue
        leftover = (
            any(part.startswith(TEMP_PREFIX) for part in place.parts)
            or path.name == STALE_MANIFEST
            or path.parent.name == RECEIPTS
        )
        what = "left over from an interrupted run" if leftover else EXTRA
        if path == root / PENDING_FILE:
            what = "a takedown was cut short: give the same `tokmill forget` again"
        yield Problem(place.as_posix(), what)


def _workplace(place: Path) -> Path | None:
    """The directory in which a command without a recipe works until it is done, if `place` is in one."""
    for depth, part in enumerate(place.parts):
        if part == ".work" or part.startswith(".materialize-"):
            return Path(*place.parts[: depth + 1])
    return None


def _files(
    root: Path, listed: Sequence[tuple[Path, FileEntry]], on_bytes: Callable[[int, int], None]
) -> Iterator[Problem]:
    total, done = sum(entry.bytes for _, entry in listed), 0
    for path, entry in listed:
        fault = _file_fault(path, entry) and _file_fault(path, entry)
        if fault:
            yield Problem(_place(root, path), fault)
        done += entry.bytes
        on_bytes(done, total)


def _listing_problems(root: Path, listings: Sequence[Listing]) -> Iterator[Problem]:
    for listing in listings:
        try:
            yield from (Problem(_place(root, path), what) for path, what in listing.check())
        except TokmillError as error:
            yield Problem(_place(root, Path(error.where)), error.what)


def _place(root: Path, path: Path) -> str:
    """Relative where it is below; shards may be on another volume than their manifest."""
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()


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
    """What a trainer will map, and the tokens it is made of, opened as their readers would."""
    for artifact in artifacts.values():
        for check in _checks(artifact):
            try:
                _twice(artifact.directory, check)
            except TokmillError as error:
                where = Path(error.where)
                yield Problem(_place(root, where if where.exists() else artifact.directory), error.what)


def _checks(artifact: Artifact) -> Iterator[Callable[[], None]]:
    """Each raises what is wrong. A build is a directory of its format for each split,
    beside the index of it."""
    manifest = artifact.manifest
    if manifest.kind == "build":
        plugin = plugin_of(manifest.config)
        if plugin is not None and plugin.is_hook and not plugin.is_shown:
            return  # its bytes are those that were written; nothing runs because it lies beside data
        for entry in manifest.entries("index"):
            yield functools.partial(_check_split, manifest.config, artifact.path(entry).parent)
    elif manifest.kind == "texts":
        for entry in manifest.entries("texts"):
            yield functools.partial(_check_texts, manifest.config["format"], artifact.path(entry), entry)
    else:
        for entry in manifest.entries("sequences"):
            yield functools.partial(_check_pair, artifact.path(entry).with_suffix(""))


def _check_split(config: dict[str, Any], directory: Path) -> None:
    format_of(config).check(directory)


def _check_texts(format: str, path: Path, entry: FileEntry) -> None:
    """Its documents, read again, are those that were written, in their order."""
    tables = find_text_format(format).read(path)
    found = [(row_sequence(table), table.num_rows) for table in tables]
    rows = sum(rows for _, rows in found)
    if rows != entry.rows or join_sequences(found) != entry.sequence:
        raise CorruptFile(
            f"its reader finds {rows:,} documents, the manifest has {entry.rows:,}"
            + (" others" if rows == entry.rows else ""),
            where=str(path),
            next="make it again",
        )


def _check_pair(prefix: Path) -> None:
    MegatronFile(prefix).check()

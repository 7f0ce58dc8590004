"""What lists files and is no run: found below a directory, and proven. `files` have a size and a sha256 each,
`check` reads them as their reader would.

<root>/manifests/*.json          a corpus or a selection  ─ shards below corpora/, of this root or of --root
<cache>/ENCODE.meta.json         a token cache            ─ token_cache/part-*.npz
<out>/MANIFEST.meta.json         a sample                 ─ manifest.jsonl
<out>/<shard>.manifest.json      normalize and filter     ─ <shard>.jsonl.zst
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tokmill.adhoc.subset import MANIFEST_NAME, META_NAME
from tokmill.artifacts.manifest import FileEntry, fingerprint_of
from tokmill.artifacts.side_files import DECISIONS
from tokmill.artifacts.snapshot import CORPORA, MANIFESTS, Snapshot, default_root, load_snapshot
from tokmill.audit.proofs import Problem
from tokmill.errors import CorruptFile, InputError, TokmillError
from tokmill.formats import Format, all_formats
from tokmill.storage.blocks import BLOCK_BYTES, open_stream, plain_sha256, read_exactly
from tokmill.storage.disk import read_regular
from tokmill.storage.location import is_within, read_whole

_MAX_BYTES = 64 << 20
_SHARD_MANIFEST = ".manifest.json"


NOTHING_HERE = "nothing here lists files that could be proven"


def provable() -> str:
    """What a directory is told that holds nothing of all this."""
    formats = (f"{file} ({one.checksums.kind})" for file, one in with_checksums().items() if one.checksums)
    return (
        f"{NOTHING_HERE}: neither a manifest.json (runs, builds, shards), "
        f"manifests/*.json (corpora), {', '.join(formats)}, {META_NAME} (samples) nor *{_SHARD_MANIFEST} "
        "(normalize, filter)"
    )


class Listing(NamedTuple):
    """Of what is not an artifact."""

    name: str  # relative to the verified directory
    identity: str  # one string for its content
    manifest: Path
    files: list[tuple[Path, FileEntry]]
    check: Callable[[], Iterator[tuple[Path, str]]]
    strict: Path | None = None  # below it nothing else belongs
    beside: tuple[Path, ...] = ()  # goes with it, and nobody recorded its digest


def find_listings(top: Path, corpora: Path | None, claimed: set[Path]) -> tuple[list[Listing], list[Problem]]:
    """Every listing below `top` that is not itself a file of a run;
    and what is wrong with those that cannot be read."""
    formats = with_checksums()
    found: list[Listing] = []
    problems: list[Problem] = []
    for path in sorted(_candidates(top, formats)):
        if path in claimed:
            continue
        place = path.relative_to(top).as_posix()
        try:
            if path.name in formats:
                found.append(_listed(path, place, formats[path.name]))
            elif path.name == META_NAME:
                found.append(_sample(path, place))
            elif path.name.endswith(_SHARD_MANIFEST):
                found.append(_cleaned(path, place))
            elif path.parent.name == MANIFESTS or _is_snapshot(path):
                found.append(list_snapshot(path, place, corpora))
        except (TokmillError, OSError) as error:
            problems.append(Problem(place, error.what if isinstance(error, TokmillError) else str(error)))
    return found, problems


def _candidates(top: Path, formats: Iterable[str]) -> set[Path]:
    named = [path for name in (*formats, META_NAME) for path in top.rglob(name)]
    manifests = [path for path in top.rglob(f"{MANIFESTS}/*.json") if (path.parent.parent / CORPORA).is_dir()]
    return {*named, *top.rglob(f"*{_SHARD_MANIFEST}"), *manifests, *top.glob("*.json")}


def _is_snapshot(path: Path) -> bool:
    with contextlib.suppress(TokmillError):
        return _object(path).get("kind") in ("container", "selection")
    return False


# -- corpora and selections ------------------------------------------------------------------------


def list_snapshot(path: Path, name: str, corpora: Path | None) -> Listing:
    snapshot = load_snapshot(path)
    root = corpora or default_root(path)
    if not (root / CORPORA).is_dir():
        raise InputError(f"{CORPORA}/ is not in {root}: say where it is with --root", where=str(path))
    files = [
        (
            root / shard.path,
            FileEntry(
                path=shard.path,
                table="documents",
                bytes=shard.bytes,
                rows=shard.rows,
                sha256=shard.sha256,
                content_sha256=shard.content_sha256,
            ),
        )
        for shard in snapshot.shards
    ]
    return Listing(
        name,
        snapshot.digest,
        path,
        files,
        lambda: _snapshot_faults(path, snapshot, files),
        strict=root / CORPORA,
    )


def _snapshot_faults(
    path: Path, snapshot: Snapshot, files: list[tuple[Path, FileEntry]]
) -> Iterator[tuple[Path, str]]:
    for place, entry in files:
        rows, content_sha256 = _lines(place)
        if (rows, content_sha256) != (entry.rows, entry.content_sha256):
            yield place, f"holds {rows:,} documents and other content than the manifest says ({entry.rows:,})"
    if snapshot.kind == "selection":
        for sibling in sorted(path.parent.glob("*.json")):
            parent = load_snapshot(sibling) if sibling != path and _is_snapshot(sibling) else None
            if parent is None or parent.digest != snapshot.about.get("of", {}).get("digest"):
                continue  # elsewhere, or replaced by now: what is listed here is proven all the same
            strange = [shard.path for shard in snapshot.shards if shard not in parent.shards]
            if strange:
                yield path, f"lists {strange[0]}, which {sibling.name}, of which it is, does not"


def _lines(path: Path) -> tuple[int, str]:
    """How many lines, and the sha256 of the decompressed content."""
    rows, digest = 0, hashlib.sha256()
    with open_stream(path) as stream:
        while piece := read_exactly(stream, BLOCK_BYTES, path):
            rows += piece.count(b"\n")
            digest.update(piece)
    return rows, digest.hexdigest()


# -- formats that list their files (tokmill.formats) -----------------------------------------------


def with_checksums() -> dict[str, Format]:
    """Formats whose directories list their files, by the name of the file that does."""
    return {one.checksums.file: one for one in all_formats() if one.checksums is not None}


def _listed(path: Path, name: str, format: Format) -> Listing:
    checksums, directory = format.checksums, path.parent
    assert checksums is not None, "it was found by them"
    files = [
        (directory / one.path, _entry(directory, one.path, "examples", one.rows, one.sha256))
        for one in checksums.read(directory)
    ]
    return Listing(
        name,
        fingerprint_of(json.loads(read_regular(path))),
        path,
        files,
        lambda: _format_faults(format, directory),
        strict=directory / checksums.parts,
    )


def _format_faults(format: Format, directory: Path) -> Iterator[tuple[Path, str]]:
    format.check(directory)
    yield from ()


# -- samples ---------------------------------------------------------------------------------------


def _sample(path: Path, name: str) -> Listing:
    meta = _object(path)
    lines = path.with_name(MANIFEST_NAME)
    entry = _entry(path.parent, MANIFEST_NAME, "sample", int(meta.get("k") or 0), str(meta.get("sha256")))
    return Listing(
        name,
        fingerprint_of({key: value for key, value in meta.items() if key != "created_at"}),
        path,
        [(lines, entry)],
        lambda: _sample_faults(lines, meta),
    )


def _sample_faults(path: Path, meta: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    try:
        records = [json.loads(line) for line in read_regular(path).splitlines()]
    except ValueError as error:
        yield path, f"is not JSON lines ({error})"
        return
    sizes = Counter(record.get("split") for record in records)
    expected = {split: size for split, size in meta.get("splits", {}).items() if size}
    if dict(sizes) != expected:
        yield path, f"has {dict(sizes)} documents, but {META_NAME} says {expected}"


# -- shards of normalize and filter ----------------------------------------------------------------


def _cleaned(path: Path, name: str) -> Listing:
    meta = _object(path)
    shard, counts = str(meta.get("shard_path")), meta.get("counts")
    if not is_within(shard) or not isinstance(counts, dict):
        raise CorruptFile("not the manifest of a shard", where=str(path))
    place = path.parent / shard
    entry = _entry(path.parent, shard, "documents", int(counts.get("docs", 0)), str(meta.get("sha256")))
    decisions = path.with_name(Path(str(meta.get("decisions", DECISIONS))).name)
    return Listing(
        name,
        fingerprint_of(meta),
        path,
        [(place, entry)],
        lambda: _cleaned_faults(place, entry.rows, decisions),
        beside=(decisions,),
    )


def _cleaned_faults(place: Path, docs: int, decisions: Path) -> Iterator[tuple[Path, str]]:
    rows, _ = _lines(place)
    if rows != docs:
        yield place, f"holds {rows:,} documents, its manifest says {docs:,}"
    if decisions.is_file():
        plain_sha256(decisions)  # that it can be read to its end is all that can be said of it


def _object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_whole(path, _MAX_BYTES))
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"is not JSON ({error})", where=str(path)) from error
    if not isinstance(content, dict):
        raise CorruptFile("is not a JSON object", where=str(path))
    return content


def _entry(directory: Path, path: str, table: str, rows: int, sha256: str) -> FileEntry:
    """Of a file whose size nobody recorded: its sha256 speaks for it."""
    place = directory / path
    size = place.stat().st_size if place.is_file() else 0
    return FileEntry(path=path, table=table, bytes=size, rows=rows, sha256=sha256, content_sha256=sha256)

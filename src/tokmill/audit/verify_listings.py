"""What lies outside of runs and lists files with their digests, and how each is proven.

    <root>/manifests/*.json          a corpus or a selection  ─ shards below corpora/, of this root or of --root
    <cache>/ENCODE.meta.json         a token cache            ─ token_cache/part-*.npz
    <out>/MANIFEST.meta.json         a sample                 ─ manifest.jsonl
    <out>/<shard>.manifest.json      normalize and filter     ─ <shard>.jsonl.zst

`files` have a size and a sha256 each; when those hold, `check` reads them as their reader would and counts again.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tokmill.audit.verification import Problem
from tokmill.container import CORPORA, MANIFESTS, Container, default_root, load_container
from tokmill.errors import CorruptFile, InputError, TokmillError
from tokmill.formats import token_cache
from tokmill.formats.token_cache import TokenCache
from tokmill.manifest import FileEntry, fingerprint_of
from tokmill.standalone import DECISIONS
from tokmill.storage.location import is_within, read_whole
from tokmill.storage.streams import BLOCK_BYTES, open_stream, plain_sha256, read_exactly
from tokmill.subset import MANIFEST_NAME, META_NAME

_MAX_BYTES = 64 << 20
_SHARD_MANIFEST = ".manifest.json"

# What a directory is told that holds nothing of all this.
PROVABLE = (
    "nothing here lists files that could be proven: neither a manifest.json (runs, builds, shards), manifests/*.json "
    f"(corpora), {token_cache.META_NAME} (token caches), {META_NAME} (samples) nor *{_SHARD_MANIFEST} "
    "(normalize, filter)"
)


class Listing(NamedTuple):
    name: str  # relative to the verified directory
    identity: str
    manifest: Path
    files: list[tuple[Path, FileEntry]]
    check: Callable[[], Iterator[tuple[Path, str]]]
    strict: Path | None = None  # below it nothing else belongs
    beside: tuple[Path, ...] = ()  # goes with it, and nobody recorded its digest


def find_listings(
    top: Path, corpora: Path | None, claimed: set[Path], problems: list[Problem]
) -> Iterator[Listing]:
    """Every listing below `top` that is not itself a file of a run."""
    for path in sorted(_candidates(top)):
        if path in claimed:
            continue
        place = path.relative_to(top).as_posix()
        try:
            if path.name == token_cache.META_NAME:
                yield _cache(path, place)
            elif path.name == META_NAME:
                yield _sample(path, place)
            elif path.name.endswith(_SHARD_MANIFEST):
                yield _cleaned(path, place)
            elif path.parent.name == MANIFESTS or _is_container(path):
                yield list_container(path, place, corpora)
        except (TokmillError, OSError) as error:
            problems.append(Problem(place, error.what if isinstance(error, TokmillError) else str(error)))


def _candidates(top: Path) -> set[Path]:
    named = [path for name in (token_cache.META_NAME, META_NAME) for path in top.rglob(name)]
    manifests = [path for path in top.rglob(f"{MANIFESTS}/*.json") if (path.parent.parent / CORPORA).is_dir()]
    return {*named, *top.rglob(f"*{_SHARD_MANIFEST}"), *manifests, *top.glob("*.json")}


def _is_container(path: Path) -> bool:
    try:
        content = json.loads(read_whole(path, _MAX_BYTES))
    except (TokmillError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("kind") in ("container", "selection")


# -- corpora and selections --------------------------------------------------------------------------------------


def list_container(path: Path, name: str, corpora: Path | None) -> Listing:
    container = load_container(path)
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
        for shard in container.shards
    ]
    return Listing(
        name,
        container.digest,
        path,
        files,
        lambda: _container_faults(path, container, files),
        strict=root / CORPORA,
    )


def _container_faults(
    path: Path, container: Container, files: list[tuple[Path, FileEntry]]
) -> Iterator[tuple[Path, str]]:
    for place, entry in files:
        rows, content_sha256 = _lines(place)
        if (rows, content_sha256) != (entry.rows, entry.content_sha256):
            yield place, f"holds {rows:,} documents and other content than the manifest says ({entry.rows:,})"
    if container.kind == "selection":
        for sibling in sorted(path.parent.glob("*.json")):
            parent = load_container(sibling) if sibling != path and _is_container(sibling) else None
            if parent is None or parent.digest != container.about.get("of", {}).get("digest"):
                continue  # elsewhere, or replaced by now: what is listed here is proven all the same
            strange = [shard.path for shard in container.shards if shard not in parent.shards]
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


# -- token caches ------------------------------------------------------------------------------------------------


def _cache(path: Path, name: str) -> Listing:
    cache = TokenCache(path.parent, model_sha256=None)
    files = [
        (path.parent / part.file, _entry(path.parent, part.file, "examples", part.examples, part.sha256))
        for part in cache.meta.parts
    ]
    return Listing(
        name,
        fingerprint_of(json.loads(path.read_bytes())),
        path,
        files,
        lambda: _cache_faults(path, cache),
        strict=path.parent / token_cache.PARTS_NAME,
    )


def _cache_faults(path: Path, cache: TokenCache) -> Iterator[tuple[Path, str]]:
    examples = tokens = 0
    for part in cache.read_parts():
        examples += len(part.lengths)
        tokens += len(part.ids)
        if len(part.ids) and not 0 <= int(part.ids.min()) <= int(part.ids.max()) < cache.meta.vocab_size:
            yield path, f"a part has ids outside of the vocabulary of {cache.meta.vocab_size:,}"
    if (examples, tokens) != (cache.meta.examples, cache.meta.tokens):
        said = f"{cache.meta.examples:,} examples and {cache.meta.tokens:,} tokens"
        yield path, f"says {said}; its parts hold {examples:,} and {tokens:,}"


# -- samples -----------------------------------------------------------------------------------------------------


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
        records = [json.loads(line) for line in path.read_bytes().splitlines()]
    except ValueError as error:
        yield path, f"is not JSON lines ({error})"
        return
    sizes = Counter(record.get("split") for record in records)
    expected = {split: size for split, size in meta.get("splits", {}).items() if size}
    if dict(sizes) != expected:
        yield path, f"has {dict(sizes)} documents, but {META_NAME} says {expected}"


# -- shards of normalize and filter ------------------------------------------------------------------------------


def _cleaned(path: Path, name: str) -> Listing:
    meta = _object(path)
    shard, counts = str(meta.get("shard_path")), meta.get("counts")
    if not is_within(shard) or not isinstance(counts, dict):
        raise CorruptFile("not the manifest of a shard", where=str(path))
    place = path.parent / shard
    entry = _entry(path.parent, shard, "documents", int(counts.get("docs", 0)), str(meta.get("sha256")))
    decisions = path.with_name(DECISIONS)
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

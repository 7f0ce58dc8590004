"""What a proof says, and its parts beyond the bytes of artifacts:
chain and flow, takedowns, and what else lists files.

chain_problems    inputs the ones its neighbours hold?
flow_problems     in = kept + dropped + quarantined, and out of one step = into the next?
find_forgotten    forgotten.parquet ─ ids by source ─ against every doc_id of documents-*, ids-*,
                                                      lengths-*, turns-*
find_listings     outside of runs; `files` have a size and a sha256 each, `check` reads them as their reader
                  would
  <root>/manifests/*.json          a corpus or a selection  ─ shards below corpora/, of this root or of --root
  <cache>/ENCODE.meta.json         a token cache            ─ token_cache/part-*.npz
  <out>/MANIFEST.meta.json         a sample                 ─ manifest.jsonl
  <out>/<shard>.manifest.json      normalize and filter     ─ <shard>.jsonl.zst
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from tokmill.adhoc.single_steps import DECISIONS
from tokmill.adhoc.subset import MANIFEST_NAME, META_NAME
from tokmill.artifacts.cache import cache_directory, unknown_texts
from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.history import HISTORY_FILE
from tokmill.artifacts.manifest import (
    NO_DOCUMENTS,
    FileEntry,
    Json,
    Manifest,
    add_counts,
    check_conservation,
    fingerprint_of,
    sum_counts,
)
from tokmill.artifacts.snapshot import CORPORA, MANIFESTS, Snapshot, default_root, load_snapshot
from tokmill.artifacts.tombstones import Forgotten, digest_of_source, load_forgotten
from tokmill.errors import CorruptFile, InputError, TokmillError
from tokmill.formats import Format, all_formats
from tokmill.formats.index import map_ids
from tokmill.schema import one_piece
from tokmill.stages.ingest.options import IngestOptions
from tokmill.storage.blocks import BLOCK_BYTES, open_stream, plain_sha256, read_exactly
from tokmill.storage.location import is_within, read_whole
from tokmill.storage.tables import load_table
from tokmill.storage.textfiles import find_text_format

_COUNTED = (
    *("ingest", "inference", "clean", "scores", "dedup", "split"),
    *("tokens", "mixture", "build", "texts"),
)


@dataclasses.dataclass(frozen=True)
class Problem:
    where: str  # relative to the verified directory
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclasses.dataclass(frozen=True)
class Verification:
    directory: Path | str  # or the URL of a published run
    digest: str
    artifacts: int
    files: int
    bytes: int
    problems: list[Problem]
    next: str = ""  # what mends it, where anything is wrong
    warnings: list[Problem] = dataclasses.field(default_factory=list)  # of takedowns: nothing is damaged

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_json(self) -> Json:
        return {"ok": self.ok, **dataclasses.asdict(self), "directory": str(self.directory)}


def verification_of(
    directory: Path | str,
    artifacts: Mapping[str, Artifact],
    problems: list[Problem],
    listings: Sequence[Listing] = (),
) -> Verification:
    steps = {name: artifact for name, artifact in artifacts.items() if artifact.manifest.kind != "run"}
    others = dict(file for listing in listings for file in listing.files)  # two may list the same shard
    entries = [*(entry for a in steps.values() for entry in a.manifest.files), *others.values()]
    identities = [[name, artifact.manifest.identity] for name, artifact in steps.items()]
    return Verification(
        directory=directory,
        digest=fingerprint_of(sorted([*identities, *([each.name, each.identity] for each in listings)])),
        artifacts=len(steps) + len(listings),
        files=len(entries),
        bytes=sum(entry.bytes for entry in entries),
        problems=sorted(set(problems), key=lambda problem: (problem.where, problem.what)),
        next=_what_mends(directory, problems, bool(listings)) if problems else "",
        warnings=[
            Problem(name, line)
            for name, artifact in steps.items()
            if artifact.manifest.kind == "ingest"
            for line in artifact.manifest.facts.get("warnings", [])
        ],
    )


EXTRA = "extra file: no manifest lists it"
UNREAD = "cannot be read ("  # by the system: of what was read Arrow speaks, as what Parquet


def _what_mends(directory: Path | str, problems: list[Problem], has_listings: bool) -> str:
    if all(problem.what.startswith(UNREAD) for problem in problems):
        return "look at the disk and its permissions, then verify again: of these files nothing is known"
    if isinstance(directory, str):
        return f"publish it again: `tokmill run RECIPE --out {directory} --replace`"
    if all(problem.what == EXTRA for problem in problems):
        return "move these files elsewhere, or remove them: nothing needs them"
    if any(problem.where == HISTORY_FILE and problem.what != EXTRA for problem in problems):
        return "give the same `tokmill continue` again: the recipe alone does not know what was trained on"
    if (directory / "ingest").is_dir():
        run = f"`tokmill run RECIPE --out {directory} --verify`"
        return f"{run} makes what is damaged again, and nothing else"
    if has_listings:
        return "give the command that wrote it again, with `--replace`; or copy the files again"
    return "copy it again from where it was made, or run its recipe there with `--verify`"


def chain_problems(artifacts: dict[str, Artifact]) -> Iterator[Problem]:
    """An input that lies in the same directory must be the one that the step was made from."""
    by_step = {
        artifact.manifest.step: artifact for artifact in artifacts.values() if artifact.manifest.kind != "run"
    }
    for name, artifact in artifacts.items():
        for label, identity in artifact.manifest.inputs.items():
            neighbour = by_step.get(label.removeprefix("step "))
            if neighbour is not None and neighbour.manifest.identity != identity:
                yield Problem(name, f"was made from another {label.removeprefix('step ')} than the one here")


def flow_problems(artifacts: dict[str, Artifact]) -> Iterator[Problem]:
    counted = {name: _with_counts(artifact.manifest) for name, artifact in artifacts.items()}
    by_step = {manifest.step: manifest for manifest in counted.values()}
    for name, manifest in counted.items():
        if manifest.kind not in _COUNTED:
            continue
        try:
            check_conservation(manifest.counts, where=name)
        except TokmillError as error:
            yield Problem(name, error.what)
        added = add_counts(NO_DOCUMENTS, sum_counts(manifest.receipts()))
        if manifest.tasks and added != manifest.counts:
            yield Problem(name, "the counts of its tasks do not add up to its own")
    judged = "scores" if "scores" in by_step else "clean"  # who says last which documents are compared
    flow = (
        ("clean", "ingest"),
        ("scores", "clean"),
        ("dedup", judged),
        ("split", "dedup"),
        ("tokens", "split"),
    )
    for into, out_of in flow:
        takers = [m for m in by_step.values() if m.kind == into]
        givers = [m for m in by_step.values() if m.kind == out_of]
        if takers and givers:
            taken, given = sum(m.counts["in"] for m in takers), sum(m.counts["kept"] for m in givers)
            if taken != given:
                yield Problem(into, f"{given:,} documents left {out_of} but {taken:,} arrived")
    if "tokens" in by_step:
        yield from _flow_of_tokens(by_step["tokens"], by_step)
    elif "split" in by_step:
        yield from _flow_into(("texts",), by_step["split"].counts["kept"], by_step)


def _with_counts(manifest: Manifest) -> Manifest:
    """A step that had nothing to do counted nothing once."""
    return replace(manifest, counts=add_counts(NO_DOCUMENTS, manifest.counts))


def _flow_of_tokens(tokens: Manifest, by_step: Mapping[str, Manifest]) -> Iterator[Problem]:
    """A build holds every document of every split, or those that the mixture gave a turn, each turn once."""
    documents = dict.fromkeys(tokens.facts["splits"], 0)
    for entry in tokens.entries("lengths"):
        documents[entry.path.partition("/")[0]] += entry.rows
    made: dict[str, Mapping[str, Manifest]] = {}  # by mixture, what was made with it
    for step, mixture in by_step.items():
        if mixture.kind == "mixture":
            made[step] = {name: one for name, one in by_step.items() if f"step {step}" in one.inputs}
    for step, own in made.items():
        mixture, expected = by_step[step], dict(documents)
        turns = {entry.path: entry.rows for entry in mixture.entries("order")}
        mixed = [split for split in documents if f"order-{split}.parquet" in turns]
        offered = sum(documents[split] for split in mixed)
        if mixture.counts["in"] != offered:
            yield Problem(step, f"{offered:,} documents were to be mixed but {mixture.counts['in']:,} were")
        expected |= {split: turns[f"order-{split}.parquet"] for split in mixed}
        yield from _flow_into(("build", "texts"), sum(expected.values()), own)
    with_mixture = {name for own in made.values() for name in own}
    rest = {name: one for name, one in by_step.items() if name not in with_mixture}
    yield from _flow_into(("build", "texts"), sum(documents.values()), rest)


def _flow_into(kinds: Sequence[str], expected: int, by_step: Mapping[str, Manifest]) -> Iterator[Problem]:
    for manifest in by_step.values():
        if manifest.kind not in kinds or manifest.config["sources"]:
            continue
        if manifest.counts["in"] != expected:
            yield Problem(manifest.step, f"was made from {manifest.counts['in']:,} of {expected:,} documents")


_FORGOTTEN = {
    "documents": "{:,} documents that were forgotten are here",
    "ids": "{:,} documents that were forgotten are here",
    "lengths": "has tokens of {:,} documents that were forgotten",
    "turns": "has {:,} turns of documents that were forgotten",
    "texts": "has {:,} texts of documents that were forgotten",
}


def find_forgotten(root: Path, artifacts: Mapping[str, Artifact]) -> Iterator[Problem]:
    """`artifacts` are by their directory below `root`, "." the run itself."""
    table, run = load_forgotten(root), artifacts.get(".")
    if not table.num_rows or run is None:
        return
    gone = {source: Forgotten.of_source(table, source) for source in set(table.column("source").to_pylist())}
    sources: list[str] = []  # by the number of the shard
    for listed in run.manifest.entries("manifest"):
        name, source = str(Path(listed.path).parent), ""
        artifact = artifacts[name]
        if artifact.manifest.kind == "build":
            continue  # its tables are those of its format
        if artifact.manifest.kind == "ingest":
            options = artifact.manifest.options(IngestOptions)
            source = options.reading.source
            sources += [source] * len(artifact.manifest.entries("documents"))
            if options.forgotten != digest_of_source(table, source):
                yield Problem(name, "was made with another list of what is forgotten")
        if artifact.manifest.kind == "texts":
            yield from _forgotten_texts(name, artifact, gone)
            continue
        for entry in artifact.manifest.files:
            found = _count_forgotten(artifact.path(entry), entry, gone, sources, source)
            if found:
                yield Problem(f"{name}/{entry.path}", _FORGOTTEN[entry.table].format(found))
    yield from _forgotten_in_cache(root, artifacts)


def _forgotten_in_cache(root: Path, artifacts: Mapping[str, Artifact]) -> Iterator[Problem]:
    """What is kept beside the run is of shards that it has: those that held the documents are others now."""
    documents = [
        entry.content_sha256
        for artifact in artifacts.values()
        for entry in artifact.manifest.entries("documents")
    ]
    for step in ("dedup", "tokens"):
        for path in unknown_texts(cache_directory(root) / step, documents):
            yield Problem(
                f"{path.parents[1].name}/{step}/{path.name}", "is of a shard that the run no longer has"
            )


def _forgotten_texts(name: str, artifact: Artifact, gone: Mapping[str, Forgotten]) -> Iterator[Problem]:
    """By the source and the id that each record has."""
    read = find_text_format(artifact.manifest.config["format"]).read
    for entry in artifact.manifest.entries("texts"):
        found = 0
        for table in read(artifact.path(entry)):
            sources = np.asarray(table.column("source"))
            doc_ids = one_piece(table.column("doc_id"))
            found += sum(int((sources[own.rows(doc_ids)] == one).sum()) for one, own in gone.items())
        if found:
            yield Problem(f"{name}/{entry.path}", _FORGOTTEN[entry.table].format(found))


def _count_forgotten(
    path: Path, entry: FileEntry, gone: Mapping[str, Forgotten], sources: list[str], source: str
) -> int:
    """In one table: of an ingest step `source` is its own, `sources` are those of all shards."""
    if entry.table == "turns":
        turns = load_table(path, ["shard", "doc_id"])
        shards, doc_ids = np.asarray(turns.column("shard")), one_piece(turns.column("doc_id"))
        return sum(sources[int(shards[row])] == one for one, own in gone.items() for row in own.rows(doc_ids))
    if entry.table == "lengths":
        source = sources[int(entry.path.rpartition("lengths-")[2].removesuffix(".parquet"))]
    if entry.table not in _FORGOTTEN or source not in gone:
        return 0
    if entry.table == "ids":
        return int(gone[source].holds(np.asarray(map_ids(path, entry.rows)[0])).sum())
    return len(gone[source].rows(one_piece(load_table(path, ["doc_id"]).column("doc_id"))))


_MAX_BYTES = 64 << 20
_SHARD_MANIFEST = ".manifest.json"


def provable() -> str:
    """What a directory is told that holds nothing of all this."""
    formats = (f"{file} ({one.checksums.kind})" for file, one in with_checksums().items() if one.checksums)
    return (
        "nothing here lists files that could be proven: neither a manifest.json (runs, builds, shards), "
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
        fingerprint_of(json.loads(path.read_bytes())),
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
        records = [json.loads(line) for line in path.read_bytes().splitlines()]
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

"""The parts of a proof of a run beyond the bytes of its artifacts: chain, flow, and takedowns.

chain_problems    inputs the ones its neighbours hold?
flow_problems     in = kept + dropped + quarantined, and out of one step = into the next?
find_forgotten    forgotten.parquet ─ ids by source ─ against every doc_id of documents-*, ids-*,
                                                      lengths-*, turns-*
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from tokmill.artifacts.cache import cache_directory, unknown_texts
from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import (
    NO_DOCUMENTS,
    FileEntry,
    Json,
    Manifest,
    add_counts,
    check_conservation,
    sum_counts,
)
from tokmill.artifacts.tombstones import Forgotten, digest_of_source, load_forgotten
from tokmill.errors import TokmillError
from tokmill.formats.index import map_ids
from tokmill.schema import one_piece
from tokmill.stages.ingest.options import IngestOptions
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
        if manifest.tasks and _nonzero(sum_counts(manifest.receipts())) != _nonzero(manifest.counts):
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


def _nonzero(counts: Json) -> Json:
    """Leave out what counts nothing: a step may name a split or a reason that none of its tasks met."""
    kept = {key: _nonzero(value) if isinstance(value, dict) else value for key, value in counts.items()}
    return {key: value for key, value in kept.items() if value}


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

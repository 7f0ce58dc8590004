"""That what was taken down is gone: none of it is in a shard of its source, in an index, or has tokens.

forgotten.parquet ─ ids by source ─ against every doc_id of documents-*, ids-*, lengths-*, turns-*
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from tokmill.artifact import Artifact
from tokmill.forgotten import digest_of_source, load_forgotten
from tokmill.forgotten_rows import Forgotten
from tokmill.formats.places import map_ids
from tokmill.schema import one_piece
from tokmill.storage.parquet import load_table


def find_forgotten(root: Path, artifacts: Mapping[str, Artifact]) -> Iterator[tuple[str, str]]:
    """Where, and what is wrong. `artifacts` are by their directory below `root`, "." the run itself."""
    table, run = load_forgotten(root), artifacts.get(".")
    if not table.num_rows or run is None:
        return
    gone = {source: Forgotten.of_source(table, source) for source in set(table.column("source").to_pylist())}
    sources: list[str] = []  # by the number of the shard
    for listed in run.manifest.entries("manifest"):
        name = str(Path(listed.path).parent)
        artifact = artifacts[name]
        if artifact.manifest.kind == "ingest":
            source = artifact.manifest.config["reading"]["source"]
            sources += [source] * len(artifact.manifest.entries("documents"))
            if artifact.manifest.config.get("forgotten") != digest_of_source(table, source):
                yield name, "was made with another list of what is forgotten"
            if source in gone:
                yield from _in_shards(name, artifact, gone[source])
        elif artifact.manifest.kind == "tokens":
            yield from _in_tokens(name, artifact, gone, sources)
        elif artifact.manifest.kind == "mixture":
            yield from _in_turns(name, artifact, gone, sources)


def _in_shards(name: str, artifact: Artifact, gone: Forgotten) -> Iterator[tuple[str, str]]:
    for entry in artifact.manifest.files:
        path = artifact.path(entry)
        if entry.table == "documents":
            found = _count(path, gone)
        elif entry.table == "ids":
            found = int(gone.holds(np.asarray(map_ids(path, entry.rows)[0])).sum())
        else:
            continue
        if found:
            yield f"{name}/{entry.path}", f"{found:,} documents that were forgotten are here"


def _in_tokens(
    name: str, artifact: Artifact, gone: Mapping[str, Forgotten], sources: list[str]
) -> Iterator[tuple[str, str]]:
    for entry in artifact.manifest.entries("lengths"):
        source = sources[int(entry.path.rpartition("lengths-")[2].removesuffix(".parquet"))]
        found = _count(artifact.path(entry), gone[source]) if source in gone else 0
        if found:
            yield f"{name}/{entry.path}", f"has tokens of {found:,} documents that were forgotten"


def _in_turns(
    name: str, artifact: Artifact, gone: Mapping[str, Forgotten], sources: list[str]
) -> Iterator[tuple[str, str]]:
    for entry in artifact.manifest.entries("turns"):
        turns = load_table(artifact.path(entry), ["shard", "doc_id"])
        shards, doc_ids = np.asarray(turns.column("shard")), one_piece(turns.column("doc_id"))
        found = sum(
            sources[int(shards[row])] == source
            for source, forgotten in gone.items()
            for row in forgotten.rows(doc_ids)
        )
        if found:
            yield f"{name}/{entry.path}", f"has {found:,} turns of documents that were forgotten"


def _count(path: Path, gone: Forgotten) -> int:
    return len(gone.rows(one_piece(load_table(path, ["doc_id"]).column("doc_id"))))

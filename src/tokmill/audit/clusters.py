"""The largest clusters of near duplicates: who is in them, and what two of them do not share."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.upstream import list_shards
from tokmill.audit.opened import open_run
from tokmill.audit.texts import Place, load_texts
from tokmill.errors import InputError
from tokmill.stages.tokens.reading import DocIds
from tokmill.storage.on_demand import at_hand

_DIFF_CHARS = 40_000  # of each text: difflib is quadratic at its worst
_CONTEXT_WORDS = 4


class Member(NamedTuple):
    shard: str
    row: int
    doc_id: str
    kept: bool
    similarity: float  # with the document it was dropped for


class Cluster(NamedTuple):
    cluster: int
    size: int
    members: list[Member]  # survivors first, then by likeness

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "members": [member._asdict() for member in self.members]}


@short_repr
class Clusters(NamedTuple):
    """The largest, and with `diff` the differences between the first and the last member shown of each."""

    clusters: list[Cluster]
    differences: dict[int, list[Difference]] | None = None  # by cluster

    def as_json(self) -> Json:
        told = [cluster.as_json() for cluster in self.clusters]
        for one in told if self.differences is not None else ():
            one["differences"] = [d._asdict() for d in (self.differences or {}).get(one["cluster"], [])]
        return {"clusters": told}


def clusters(directory: str | Path, *, count: int = 10, members: int = 5, diff: bool = False) -> Clusters:
    """The `count` largest clusters of near duplicates of a run, each with up to `members` members."""
    run = open_run(Path(directory))
    dedup = run.get("dedup")
    if dedup is None or not dedup.manifest.entries("clusters"):
        raise InputError(
            "this run did not look for near duplicates", where=str(directory), next="set `dedup: {near: {}}`"
        )
    ids = DocIds(list_shards(run))
    found = [
        Cluster(
            cluster.number,
            cluster.size,
            [
                Member(r["shard"], r["row"], ids.of(r["shard"], r["row"]), r["kept"], r["similarity"])
                for r in cluster.rows[:members]
            ],
        )
        for cluster in largest_clusters(dedup, count, members)
    ]
    if not diff:
        return Clusters(found)
    # with `policy: report` the last is kept too
    differences = {
        one.cluster: compare_members(run, one.members[0], one.members[-1])
        for one in found
        if len(one.members) > 1
    }
    return Clusters(found, differences)


class LargeCluster:
    """Its first `most` members and the very last one: survivors first, then by likeness."""

    def __init__(self, number: int, size: int, most: int) -> None:
        self.number, self.size, self.kept = number, size, 0
        self.rows: list[Json] = []
        self._most = most

    def add(self, row: Json) -> None:
        self.kept += row["kept"]
        self.rows.append(row)
        if len(self.rows) > 1_000:  # a cluster may have millions
            self.trim()

    def trim(self) -> None:
        self.rows.sort(key=lambda row: (not row["kept"], -row["similarity"], row["shard"], row["row"]))
        if len(self.rows) > self._most:
            self.rows = [*self.rows[: self._most], self.rows[-1]]


def largest_clusters(dedup: Artifact, count: int, members: int) -> list[LargeCluster]:
    """Largest first; the table is read in batches, twice."""
    sizes: dict[int, int] = {}
    for batch in read_clusters(dedup, ["cluster", "cluster_size"]):
        numbers, first = np.unique(np.asarray(batch.column("cluster")), return_index=True)
        seen = zip(numbers.tolist(), np.asarray(batch.column("cluster_size"))[first].tolist(), strict=True)
        ranked = sorted((sizes | dict(seen)).items(), key=lambda item: (-item[1], item[0]))
        sizes = dict(ranked[:count])
    found = {number: LargeCluster(number, size, members) for number, size in sizes.items()}
    wanted = pa.array(list(sizes), pa.int64())
    columns = ["cluster", "shard", "row", "kept", "survivor_shard", "survivor_row", "similarity"]
    for batch in read_clusters(dedup, columns):
        for row in batch.filter(pc.is_in(batch.column("cluster"), wanted)).to_pylist():
            found[row["cluster"]].add(row)
    for cluster in found.values():
        cluster.trim()
    return list(found.values())


def read_clusters(dedup: Artifact, columns: list[str]) -> Iterator[Any]:
    for entry in dedup.manifest.entries("clusters"):
        with pq.ParquetFile(at_hand(dedup.path(entry))) as file:
            yield from file.iter_batches(columns=columns)


class Difference(NamedTuple):
    """Words that one text has and the other has not, with a few before and after."""

    before: str
    removed: str
    added: str
    after: str


def compare_members(run: Mapping[str, Artifact], one: Member, other: Member) -> list[Difference]:
    """What has to change in the first to get the second, word by word."""
    places = [Place(member.shard, member.row) for member in (one, other)]
    texts = load_texts(run, places, _DIFF_CHARS)
    left, right = (texts[place].text.split() for place in places)
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    return [
        Difference(
            " ".join(left[max(a - _CONTEXT_WORDS, 0) : a]),
            " ".join(left[a:b]),
            " ".join(right[c:d]),
            " ".join(left[b : b + _CONTEXT_WORDS]),
        )
        for kind, a, b, c, d in matcher.get_opcodes()
        if kind != "equal"
    ]

"""Who of near duplicates stays, over all edges, without holding them.

    edges ─ a bit per end ─> members ─ union-find ─> components
    edges in keep order, a piece at a time ─ walk ─> who is dropped for whom ─┐
    members that stay ───────────────────────────────────────────────────────┴─ drawers by component
    drawer ─> clusters.parquet, and drawers by number ─> near.parquet

Memory: dedup.members, a bit per document for who is dropped, one piece of edges, one drawer.
A cluster lies in one drawer, so the largest of them has to fit.

Fingerprints of all shards by number: what near duplicates are found, judged and named by.

fingerprints-<s>.bin    rank 8 │ digest 8 │ row 4 │ values 4 x positions        a run of the shard's documents

A document is known by its number: its place among all that have words, in the order of the corpus.

Texts of some documents by number, apart from their shards:
uncompressed, to be mapped and read here and there.

    shard ─ the numbers asked for ─> texts-<key>.arrow      number, text: ascending
    texts-* of all shards ─ take(numbers) ─> one column

Reading whole shards for a few rows each would read the corpus again and again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifacts.manifest import FileEntry, Json, file_entry
from tokmill.artifacts.step import Input, Made, Task, TaskOptions
from tokmill.duplicates.near import Components, Members, NearOptions
from tokmill.kernels.survivors import get_bits, no_bits, walk_edges
from tokmill.schema import CLUSTERS, DROPS
from tokmill.stages.external.appended import open_table
from tokmill.stages.external.drawers import Drawers, open_scratch
from tokmill.stages.external.runs import (
    Layout,
    Run,
    joined,
    load_between,
    open_runs,
    read_in_order,
    take_numbered,
)
from tokmill.storage.digests import table_sha256
from tokmill.storage.tables import open_arrow, write_arrow

Numbers = NDArray[np.int64]


class NumberedOptions(TaskOptions, frozen=True):
    """Of a task that knows documents by their numbers."""

    near: NearOptions
    starts: tuple[int, ...]  # number of the first document of each shard, and how many there are


class Fingerprints:
    """Only what is asked for is read, shard by shard, and nothing stays mapped. `shard`:
    the only one there is."""

    def __init__(self, inputs: Sequence[Input], options: NumberedOptions, shard: int = 0) -> None:
        self.starts = np.asarray(options.starts, np.int64)
        runs = open_runs(inputs, "fingerprints", fingerprint_layout(options.near))
        self._runs = dict(enumerate(runs, start=shard))

    def load(self, numbers: Numbers, field: str) -> Any:
        """`numbers` ascending."""
        (found,) = self.load_all(numbers, [field])
        return found

    def load_all(self, numbers: Numbers, fields: list[str]) -> list[Any]:
        return take_numbered(self._runs, self.starts, numbers, fields)

    def places(self, numbers: Numbers) -> tuple[Numbers, Any]:
        """Shard and row of each number, ascending."""
        return self.shards(numbers), self.load(numbers, "row")

    def numbers_of(self, shards: Numbers, rows: Any) -> Numbers:
        """The other way round; -1 for what is no document here, and for those of shard -1."""
        numbers = np.full(len(rows), -1, np.int64)
        for shard in np.unique(shards[shards >= 0]).tolist():
            own, run = np.flatnonzero(shards == shard), self._runs[shard]
            if run.rows:
                at = np.minimum(run.search(rows[own], "row"), run.rows - 1)
                order = np.argsort(at, kind="stable")
                (found,) = run.take(at[order], ["row"])
                is_there = found == rows[own[order]]
                numbers[own[order]] = np.where(is_there, self.starts[shard] + at[order], -1)
        return numbers

    def shards(self, numbers: Numbers) -> Numbers:
        return np.searchsorted(self.starts, numbers, side="right") - 1

    def ranges(self) -> Iterator[tuple[int, int]]:
        """First and last number of each shard."""
        yield from itertools.pairwise(self.starts.tolist())


def fingerprint_layout(options: NearOptions) -> Layout:
    return {"rank": "<i8", "digest": "<u8", "row": "<u4", "values": ("<u4", (options.positions,))}


# Pages that were read stay in memory while a file is mapped:
# after so many bytes of texts all files are let go.
_MAPPED_BYTES = 64 << 20


def write_numbered_texts(task: Task, numbers: Any, texts: Any) -> FileEntry:
    name = f"texts-{task.key}.arrow"
    table = pa.table({"number": numbers, "text": texts})
    written = write_arrow(Path(task.directory) / name, table)
    return file_entry(name, "texts", written, rows=len(numbers), content_sha256=table_sha256(table))


NUMBERS: Layout = {"number": "<i8"}  # of documents whose texts are asked for


def wanted_numbers(task: Task, role: str) -> Numbers:
    """Those of the task's own shard that the runs of `role` ask for, ascending."""
    number = task.options.number
    start, end = task.options.starts[number : number + 2]
    (wanted,) = joined(load_between(open_runs(task.inputs, role, NUMBERS), start, end), NUMBERS)
    return np.unique(wanted)


class NumberedTexts:
    """`starts`: the number of the first document of each shard."""

    def __init__(self, task: Task, starts: Sequence[int]) -> None:
        self._starts = np.asarray(starts, np.int64)
        self._paths = task.paths("texts")
        self._open: dict[int, Any] = {}
        self._taken = 0

    def take(self, numbers: Any) -> Any:
        """In one piece; numbers ascend, and every one was asked for when the files were written."""
        cuts = np.searchsorted(numbers, self._starts)
        parts = [pa.array([], pa.large_string())]
        for shard, (start, stop) in enumerate(itertools.pairwise(cuts.tolist())):
            if stop > start:
                parts += self._of_shard(shard, numbers[start:stop])
        texts = pa.concat_arrays(parts)
        self._taken += texts.nbytes
        if self._taken > _MAPPED_BYTES:
            self._open.clear()
            self._taken = 0
        return texts

    def _of_shard(self, shard: int, numbers: Any) -> list[Any]:
        store = self._open.get(shard)
        if store is None:
            store = self._open[shard] = open_arrow(self._paths[shard])
        places = np.searchsorted(np.asarray(store.column("number")), numbers)
        return list(store.column("text").take(pa.array(places)).chunks)


# `a` comes before `b` in keep order; a run is in order of (rank, b).
EDGES: Layout = {"rank": "<i8", "b": "<i8", "first_rank": "<i8", "a": "<i8", "similarity": "<f8"}

MEMBER = [("number", "<i8"), ("cluster", "<i8"), ("survivor", "<i8"), ("similarity", "<f8")]
TOLD = [
    *MEMBER,
    *(("size", "<i8"), ("shard", "<u4"), ("row", "<u4"), ("survivor_shard", "<u4"), ("survivor_row", "<u4")),
]

# Edges or members that are looked at together:
# 40 bytes an edge, 56 a member, and some five times that on the way.
AT_ONCE = 250_000
# Ranges of members that drawers are made of.
_BINS = 1 << 16

Duplicates = Iterator[
    tuple[Numbers, Numbers, NDArray[np.float64]]
]  # document, the kept one that it is like, how much


class ResolveOptions(NumberedOptions, frozen=True):
    shards: tuple[str, ...]
    sources: tuple[str, ...]  # per shard
    reference: tuple[str, ...]


def perform_resolve(task: Task[ResolveOptions]) -> Made:
    edges, fingerprints = open_runs(task.inputs, "edges", EDGES), Fingerprints(task.inputs, task.options)
    members = _find_members(edges, int(fingerprints.starts[-1]))
    components = _join(edges, members, fingerprints)
    dropped = no_bits(int(fingerprints.starts[-1]))
    is_safe = np.array([source in task.options.reference for source in task.options.sources], np.bool_)
    with open_scratch(task) as scratch:
        by_cluster = _ByCluster(scratch, members, components.roots)
        duplicates = 0
        for docs, survivors, similarity in _walk(edges, fingerprints, is_safe, dropped):
            by_cluster.put(docs, survivors, similarity)
            duplicates += len(docs)
        for start, stop in fingerprints.ranges():
            kept = members.between(start, stop)
            kept = kept[~get_bits(dropped, kept)]
            by_cluster.put(kept, kept, np.ones(len(kept)))
        made, largest = _write(task, by_cluster, fingerprints, duplicates, scratch)
    facts: Json = {
        "policy": task.options.near.policy,
        "clusters": components.count(),
        "largest_cluster": largest,
        "edges": sum(run.rows for run in edges),
        "duplicates": duplicates,
    }
    return made._replace(facts=facts)


def _find_members(edges: Sequence[Run], documents: int) -> Members:
    members = Members(documents)
    for a, b in _read(edges, ["a", "b"]):
        members.add(a)
        members.add(b)
    members.seal()
    return members


def _read(edges: Sequence[Run], names: Sequence[str]) -> Iterator[list[Any]]:
    for run in edges:
        for start in range(0, run.rows, AT_ONCE):
            yield run.read(start, min(start + AT_ONCE, run.rows), names)


def _join(edges: Sequence[Run], members: Members, fingerprints: Fingerprints) -> Components:
    """The root of a component is its first document in keep order."""
    components = Components(members.count, _ranks(edges, members, fingerprints))
    for a, b in _read(edges, ["a", "b"]):
        components.join(members.places(a), members.places(b))
    components.seal()
    return components


def _ranks(edges: Sequence[Run], members: Members, fingerprints: Fingerprints) -> Numbers | None:
    """Of all members; None where they are all the same, and a document comes before another by its number."""
    ends = [
        (int(part.min()), int(part.max())) for parts in _read(edges, ["first_rank", "rank"]) for part in parts
    ]
    if not ends or min(low for low, _ in ends) == max(high for _, high in ends):
        return None
    ranks = np.empty(members.count, np.int64)
    at = 0
    for start, stop in fingerprints.ranges():
        own = fingerprints.load(members.between(start, stop), "rank")
        ranks[at : at + len(own)] = own
        at += len(own)
    return ranks


def _walk(
    edges: Sequence[Run], fingerprints: Fingerprints, is_safe: NDArray[np.bool_], dropped: Any
) -> Duplicates:
    """Documents in keep order: gone, if one that they are like is still there."""
    for _, later, first_rank, earlier, similarity in read_in_order(edges, "rank", "b", AT_ONCE):
        safe = is_safe[fingerprints.shards(later)]
        yield walk_edges(earlier, first_rank, later, similarity, safe, dropped)


class _ByCluster:
    """Members, each with whom it is like, in drawers that follow each other in order of the clusters."""

    def __init__(self, scratch: Path, members: Members, roots: NDArray[np.uint32]) -> None:
        self._members = members
        self._roots = roots
        self._shift = max(len(roots).bit_length() - _BINS.bit_length() + 1, 0)
        sizes = np.zeros((len(roots) >> self._shift) + 1, np.int64)
        for start in range(0, len(roots), AT_ONCE):
            part = roots[start : start + AT_ONCE] >> np.uint32(self._shift)
            sizes += np.bincount(part, minlength=len(sizes))
        self._drawer = np.maximum(np.cumsum(sizes) - 1, 0) // AT_ONCE
        self.drawers = int(self._drawer[-1]) + 1
        self._held = Drawers(scratch, "cluster", MEMBER)

    def put(self, docs: Numbers, survivors: Numbers, similarity: Any) -> None:
        roots = self._roots[self._members.places(docs)].astype(np.int64)
        clusters = self._members.numbers(roots)
        self._held.put(self._drawer[roots >> self._shift], docs, clusters, survivors, similarity)

    def load(self, drawer: int, fingerprints: Fingerprints) -> NDArray[Any]:
        """By cluster and number, with all that is told of them."""
        held = self._held.load(drawer)
        held = held[np.argsort(held["number"], kind="stable")]
        told = np.empty(len(held), TOLD)
        for name, _ in MEMBER:
            told[name] = held[name]
        told["shard"], told["row"] = fingerprints.places(held["number"])
        of_survivor = np.searchsorted(held["number"], held["survivor"])  # it is of the same cluster
        told["survivor_shard"], told["survivor_row"] = told["shard"][of_survivor], told["row"][of_survivor]
        told = told[np.argsort(told["cluster"], kind="stable")]
        _, place, sizes = np.unique(told["cluster"], return_inverse=True, return_counts=True)
        told["size"] = sizes[place]
        return told


def _write(
    task: Task[ResolveOptions],
    by_cluster: _ByCluster,
    fingerprints: Fingerprints,
    duplicates: int,
    scratch: Path,
) -> tuple[Made, int]:
    """Both tables, and the size of the largest cluster."""
    names = pa.array(task.options.shards, pa.string())
    drops = task.options.near.policy == "drop"
    by_number, drawers = Drawers(scratch, "number", TOLD), -(-duplicates // AT_ONCE)
    largest = 0
    with open_table(task, "clusters.parquet", "clusters", CLUSTERS, by="cluster") as clusters:
        for drawer in range(by_cluster.drawers):
            told = by_cluster.load(drawer, fingerprints)
            is_like = told["survivor"] != told["number"]
            clusters.append(_clusters(told, ~(is_like & drops), names))
            largest = max(largest, int(told["size"].max(initial=0)))
            if drops:
                gone = told[is_like]
                home = gone["number"] * drawers // fingerprints.starts[-1]
                by_number.put(home, *(gone[name] for name, _ in TOLD))
    with open_table(task, "near.parquet", "near", DROPS, by="shard") as near:
        for drawer in range(drawers if drops else 0):
            near.append(_drops(by_number.load(drawer), names))
    return Made([near.entry, clusters.entry], {}), largest


def _clusters(told: Any, kept: Any, names: Any) -> Any:
    return pa.table(
        [
            told["cluster"],
            told["size"],
            names.take(pa.array(told["shard"])),
            told["row"],
            kept,
            names.take(pa.array(told["survivor_shard"])),
            told["survivor_row"],
            told["similarity"],
        ],
        schema=CLUSTERS,
    )


def _drops(told: Any, names: Any) -> Any:
    told = told[np.argsort(told["number"], kind="stable")]
    return pa.table(
        [
            told["shard"],
            told["row"],
            names.take(pa.array(told["survivor_shard"])),
            told["survivor_row"],
            told["similarity"],
            told["cluster"],
            told["size"],
            pa.nulls(len(told), pa.string()),
        ],
        schema=DROPS,
    )

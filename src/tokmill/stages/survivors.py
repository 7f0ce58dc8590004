"""Who of near duplicates stays, over all edges, without holding them.

    edges ─ a bit per end ─> members ─ union-find ─> components
    edges in keep order, a piece at a time ─ walk ─> who is dropped for whom ─┐
    members that stay ───────────────────────────────────────────────────────┴─ drawers by component
    drawer ─> clusters.parquet, and drawers by number ─> near.parquet

Memory: dedup.members, a bit per document for who is dropped, one piece of edges, one drawer. A cluster lies in one
drawer, so the largest of them has to fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.dedup.members import Components, Members
from tokmill.kernels.survivors import get_bits, no_bits, walk_edges
from tokmill.manifest import Json
from tokmill.schema import CLUSTERS, DROPS
from tokmill.stages.appending import open_table
from tokmill.stages.prints import Prints
from tokmill.stages.runs import Layout, Run, open_runs, read_in_order
from tokmill.stages.scratch import Drawers, open_scratch
from tokmill.stages.step import Made
from tokmill.task import Task

# `a` comes before `b` in keep order; a run is in order of (rank, b).
EDGES: Layout = {"rank": "<i8", "b": "<i8", "first_rank": "<i8", "a": "<i8", "similarity": "<f8"}

MEMBER = [("number", "<i8"), ("cluster", "<i8"), ("survivor", "<i8"), ("similarity", "<f8")]
TOLD = [
    *MEMBER,
    *(("size", "<i8"), ("shard", "<u4"), ("row", "<u4"), ("survivor_shard", "<u4"), ("survivor_row", "<u4")),
]

# Edges or members that are looked at together: 40 bytes an edge, 56 a member, and some five times that on the way.
AT_ONCE = 250_000
# Ranges of members that drawers are made of.
_BINS = 1 << 16

Numbers = NDArray[np.int64]
Fates = Iterator[
    tuple[Numbers, Numbers, NDArray[np.float64]]
]  # document, the kept one that it is like, how much


def perform_resolve(task: Task) -> Made:
    edges, prints = open_runs(task.inputs, "edges", EDGES), Prints(task)
    members = _find_members(edges, int(prints.starts[-1]))
    components = _join(edges, members, prints)
    dropped = no_bits(int(prints.starts[-1]))
    is_safe = np.isin(np.asarray(task.config["sources"], object), task.config["reference"])
    with open_scratch(task) as scratch:
        by_cluster = _ByCluster(scratch, members, components.roots)
        duplicates = 0
        for docs, survivors, similarity in _walk(edges, prints, is_safe, dropped):
            by_cluster.put(docs, survivors, similarity)
            duplicates += len(docs)
        for start, stop in prints.ranges():
            kept = members.between(start, stop)
            kept = kept[~get_bits(dropped, kept)]
            by_cluster.put(kept, kept, np.ones(len(kept)))
        made, largest = _write(task, by_cluster, prints, duplicates, scratch)
    facts: Json = {
        "policy": task.config["near"]["policy"],
        "clusters": components.count(),
        "largest_cluster": largest,
        "edges": sum(run.rows for run in edges),
        "duplicates": duplicates,
    }
    return made._replace(facts=facts)


def _find_members(edges: Sequence[Run], documents: int) -> Members:
    members = Members(documents)
    for a, b in _ends(edges):
        members.add(a)
        members.add(b)
    members.seal()
    return members


def _ends(edges: Sequence[Run]) -> Iterator[list[Any]]:
    for run in edges:
        for start in range(0, run.rows, AT_ONCE):
            yield run.read(start, min(start + AT_ONCE, run.rows), ["a", "b"])


def _join(edges: Sequence[Run], members: Members, prints: Prints) -> Components:
    """The root of a component is its first document in keep order."""
    components = Components(members.count, _ranks(edges, members, prints))
    for a, b in _ends(edges):
        components.join(members.places(a), members.places(b))
    components.seal()
    return components


def _ranks(edges: Sequence[Run], members: Members, prints: Prints) -> Numbers | None:
    """Of all members; None where they are all the same, and a document comes before another by its number."""
    least = most = None
    for run in edges:
        for start in range(0, run.rows, AT_ONCE):
            for column in run.read(start, min(start + AT_ONCE, run.rows), ["first_rank", "rank"]):
                low, high = int(column.min()), int(column.max())
                least = low if least is None else min(least, low)
                most = high if most is None else max(most, high)
    if least == most:
        return None
    ranks = np.empty(members.count, np.int64)
    at = 0
    for start, stop in prints.ranges():
        own = prints.load(members.between(start, stop), "rank")
        ranks[at : at + len(own)] = own
        at += len(own)
    return ranks


def _walk(edges: Sequence[Run], prints: Prints, is_safe: NDArray[np.bool_], dropped: Any) -> Fates:
    """Documents in keep order: gone, if one that they are like is still there."""
    for _, later, first_rank, earlier, similarity in read_in_order(edges, "rank", "b", AT_ONCE):
        safe = is_safe[prints.shards(later)]
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

    def load(self, drawer: int, prints: Prints) -> NDArray[Any]:
        """By cluster and number, with all that is told of them."""
        held = self._held.load(drawer)
        held = held[np.argsort(held["number"], kind="stable")]
        told = np.empty(len(held), TOLD)
        for name, _ in MEMBER:
            told[name] = held[name]
        told["shard"], told["row"] = prints.places(held["number"])
        of_survivor = np.searchsorted(held["number"], held["survivor"])  # it is of the same cluster
        told["survivor_shard"], told["survivor_row"] = told["shard"][of_survivor], told["row"][of_survivor]
        told = told[np.argsort(told["cluster"], kind="stable")]
        _, place, sizes = np.unique(told["cluster"], return_inverse=True, return_counts=True)
        told["size"] = sizes[place]
        return told


def _write(
    task: Task, by_cluster: _ByCluster, prints: Prints, duplicates: int, scratch: Path
) -> tuple[Made, int]:
    """Both tables, and the size of the largest cluster."""
    names = pa.array(task.config["shards"], pa.string())
    drops = task.config["near"]["policy"] == "drop"
    by_number, drawers = Drawers(scratch, "number", TOLD), -(-duplicates // AT_ONCE)
    largest = 0
    with open_table(task, "clusters.parquet", "clusters", CLUSTERS, by="cluster") as clusters:
        for drawer in range(by_cluster.drawers):
            told = by_cluster.load(drawer, prints)
            is_like = told["survivor"] != told["number"]
            clusters.append(_clusters(told, ~(is_like & drops), names))
            largest = max(largest, int(told["size"].max(initial=0)))
            if drops:
                gone = told[is_like]
                home = gone["number"] * drawers // prints.starts[-1]
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

"""The one task of a split that sees all documents: it reads their keys shard by shard, and holds none of them.

    keys-<s> ─ counted by their upper bits, pass by pass ─> the key at which a split is full
    clusters, equal texts ─ edges on disk ─ dedup.members ─> who is held together, at the key of the first of them
    clusters in order of their keys ─ allot ─> selection

Memory: one shard of keys; n / 8 bytes for n documents and some 20 for each that is held together with another.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.dedup.exact import partition_of
from tokmill.dedup.members import Components, Members
from tokmill.schema import NO_SPLIT
from tokmill.split import (
    Bound,
    Clusters,
    Quota,
    Singles,
    allot,
    count_singles,
    find_bounds,
    label_keys,
)
from tokmill.stages.appending import open_table, read_tables
from tokmill.stages.runs import Layout, Run, open_runs
from tokmill.stages.scratch import Drawers, open_scratch
from tokmill.stages.step import Made
from tokmill.task import Task

# In order of rows; `text` is half of the exact hash.
KEYS: Layout = {"key": "<u8", "text": "<u8", "row": "<u4"}
SELECTION = pa.schema(
    [
        pa.field("shard", pa.uint32(), nullable=False),
        pa.field("row", pa.uint32(), nullable=False),
        pa.field("split", pa.uint8(), nullable=False),
    ]
)

LINK = [("one", "<i8"), ("other", "<i8")]
TEXT = [("text", "<u8"), ("number", "<i8")]

# Texts that are compared with each other at a time: 16 bytes each.
TEXTS_AT_ONCE = 1_000_000

Numbers = NDArray[np.int64]


class Held(NamedTuple):
    """Who is held together: members of the corpus, and of each the place of its cluster in order of the keys."""

    members: Members
    places: NDArray[np.uint32]
    clusters: Clusters


class _Keys:
    """The documents of all shards by number: their place among all that are kept."""

    def __init__(self, task: Task) -> None:
        self.runs = open_runs(task.inputs, "keys", KEYS)
        self.starts: list[int] = task.config["starts"]
        self.groups: list[int] = task.config["groups"]
        self.group_count = max(self.groups, default=0) + 1

    def shards(self) -> Iterator[tuple[int, Run, int, int]]:
        """(group, run, first number, number after the last)."""
        for group, run, (start, stop) in zip(
            self.groups, self.runs, itertools.pairwise(self.starts), strict=True
        ):
            yield group, run, start, stop


def perform_select(task: Task) -> Made:
    config, keys = task.config, _Keys(task)
    held = _hold_together(task, keys)
    if config["bounds"] is not None:
        known = [Bound(*bound) for bound in config["bounds"]]
        cluster_keys = held.clusters.keys
        labels = label_keys(cluster_keys, np.zeros(len(cluster_keys), np.int64), known, config["rest"])
        bounds, short = [known] * keys.group_count, []
    else:
        quotas = [Quota(*quota) for quota in config["quotas"]]

        def singles() -> Iterator[Singles]:
            for group, run, start, stop in keys.shards():
                (own,) = run.read(0, run.rows, ["key"])
                numbers = np.arange(start, stop)
                is_single = np.ones(run.rows, np.bool_)
                is_single[held.members.between(start, stop) - start] = False
                yield Singles(group, numbers[is_single], own[is_single])

        counted = count_singles(singles, keys.group_count, held.clusters.keys)
        found = allot(counted, held.clusters, quotas)
        labels, short = found.clusters, found.short
        labels[labels == NO_SPLIT] = config["rest"]
        bounds = find_bounds(singles, counted, found.ends, quotas)
    entry = _write_selection(task, keys, held, labels)
    told = {"clusters": len(held.clusters.keys), "documents": held.members.count}
    facts = {"bounds": [[list(bound) for bound in row] for row in bounds], "short": short, "together": told}
    return Made([entry], {}, facts)


def _write_selection(task: Task, keys: _Keys, held: Held, labels: Any) -> Any:
    with open_table(task, "selection.parquet", "selection", SELECTION, by="shard") as selection:
        at = 0
        for shard, (_, run, start, stop) in enumerate(keys.shards()):
            numbers = held.members.between(start, stop)
            if len(numbers):
                (rows,) = run.take(numbers - start, ["row"])
                own = labels[held.places[at : at + len(numbers)]]
                shards = np.full(len(numbers), shard, np.uint32)
                selection.append(pa.table([shards, rows, own], schema=SELECTION))
                at += len(numbers)
    return selection.entry


# --- held together ---


def _hold_together(task: Task, keys: _Keys) -> Held:
    """The members of a cluster that are still there; and equal texts, for those without a word are in no cluster."""
    members = Members(keys.starts[-1])
    with open_scratch(task) as scratch:
        links = Drawers(scratch, "links", LINK)
        if task.paths("clusters"):
            for one, other in itertools.chain(_cluster_links(task, keys), _text_links(keys, scratch)):
                members.add(one)
                members.add(other)
                links.put(np.zeros(len(one), np.int64), one, other)
        members.seal()
        components = Components(members.count, None)
        for part in links.read(0):
            components.join(members.places(part["one"]), members.places(part["other"]))
    components.seal()
    return _in_order(keys, members, components)


def _cluster_links(task: Task, keys: _Keys) -> Iterator[tuple[Numbers, Numbers]]:
    """Each document with the one before it in its cluster."""
    names = pa.array(task.config["shards"], pa.string())
    last = np.empty(0, np.int64), np.empty(0, np.int64)
    (path,) = task.paths("clusters")
    for table in read_tables(path, ["shard", "row", "cluster"]):
        owners = np.asarray(pc.index_in(table.column("shard"), names))
        rows, clusters = (np.asarray(table.column(name)) for name in ("row", "cluster"))
        numbers = _numbers(keys, owners, rows)
        is_there = numbers >= 0
        numbers = np.concatenate([last[0], numbers[is_there]])
        clusters = np.concatenate([last[1], clusters[is_there]])
        same = clusters[1:] == clusters[:-1]
        yield numbers[:-1][same], numbers[1:][same]
        last = numbers[-1:], clusters[-1:]


def _numbers(keys: _Keys, shards: Any, rows: Any) -> Numbers:
    """Of documents by shard and row; -1 where it was dropped."""
    numbers = np.full(len(rows), -1, np.int64)
    order = np.argsort(shards, kind="stable")
    cuts = np.searchsorted(shards[order], np.arange(len(keys.runs) + 1)).tolist()
    for shard, run in enumerate(keys.runs):
        own = order[cuts[shard] : cuts[shard + 1]]
        if len(own) and run.rows:
            at = np.minimum(run.search(rows[own], "row"), run.rows - 1)
            (found,) = run.take(at, ["row"])
            numbers[own] = np.where(found == rows[own], keys.starts[shard] + at, -1)
    return numbers


def _text_links(keys: _Keys, scratch: Path) -> Iterator[tuple[Numbers, Numbers]]:
    """Each document with the one before it that has the same text."""
    drawers = -(-keys.starts[-1] // TEXTS_AT_ONCE)
    by_text = Drawers(scratch, "texts", TEXT)
    for _, run, start, stop in keys.shards():
        (texts,) = run.read(0, run.rows, ["text"])
        by_text.put(partition_of(texts, drawers), texts, np.arange(start, stop))
    for drawer in range(drawers):
        held = by_text.load(drawer)
        held = held[np.lexsort((held["number"], held["text"]))]
        same = held["text"][1:] == held["text"][:-1]
        yield held["number"][:-1][same], held["number"][1:][same]


def _in_order(keys: _Keys, members: Members, components: Components) -> Held:
    """Clusters, each at the key of its first document; of equal keys the one whose first document comes before."""
    roots = components.roots
    is_root = roots == np.arange(len(roots), dtype=np.uint32)
    cluster_of_root = np.cumsum(is_root, dtype=np.uint32)
    cluster_of_root -= 1
    places = cluster_of_root[roots]  # of each member, by first document for now
    del cluster_of_root
    count = int(np.count_nonzero(is_root))
    cluster_keys = np.empty(count, np.uint64)
    documents = np.zeros((count, keys.group_count), np.uint32)
    at = 0
    for group, run, start, stop in keys.shards():
        numbers = members.between(start, stop)
        if len(numbers):
            own = slice(at, at + len(numbers))
            named, counts = np.unique(places[own], return_counts=True)
            documents[named, group] += counts.astype(np.uint32)
            (found,) = run.take(numbers[is_root[own]] - start, ["key"])
            cluster_keys[places[own][is_root[own]]] = found
            at += len(numbers)
    order = np.argsort(cluster_keys, kind="stable")
    place = np.empty(count, np.uint32)
    place[order] = np.arange(count, dtype=np.uint32)
    return Held(members, place[places], Clusters(cluster_keys[order], documents[order]))

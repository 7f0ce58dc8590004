"""Where each split ends, for methods that have to see all documents first.

    shard s ─ doc_id, marks ─> keys-<s>          row, key, and what makes texts equal
    keys of all shards ─ select ─> bounds        by group: all documents, or those of a domain
    clusters of near duplicates ┘ └> selection   (shard, row, split) of documents that are held together
                                                 tokmill.stages.split.selection

All of it is scaffolding, gone when the step is done.

The one task of a split that sees all documents: it reads their keys shard by shard, and holds none of them.

keys-<s> ─ counted by their upper bits, pass by pass ─> the key at which a split is full
clusters, equal texts ─ edges on disk ─ dedup.members ─> who is held together, at the key of the first of them
clusters in order of their keys ─ allot ─> selection

Memory: one shard of keys; n / 8 bytes for n documents and some 20 for each that is held together with
another.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import Json, Receipt
from tokmill.artifacts.step import Input, Made, Task, TaskOptions, table_input
from tokmill.artifacts.upstream import Shard
from tokmill.duplicates.near import Components, Members
from tokmill.duplicates.shingling import partition_of
from tokmill.errors import InputError, RecipeError
from tokmill.schema import NO_SPLIT
from tokmill.stages.external.appended import open_table, read_tables
from tokmill.stages.external.drawers import Drawers, open_scratch
from tokmill.stages.external.runs import Layout, Run, open_runs, write_run
from tokmill.stages.split.keys import (
    SPLITS,
    TEST,
    TRAIN,
    VALID,
    Bound,
    formula_size,
    label_keys,
    shuffle_keys,
)
from tokmill.stages.split.options import CountsSplit, FormulaSplit, HashSplit, ShuffledSplit
from tokmill.stages.split.quotas import Clusters, Quota, Singles, allot, count_singles, find_bounds
from tokmill.storage.digests import id_hashes

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


class SelectOptions(TaskOptions, frozen=True):
    shards: tuple[str, ...]
    starts: tuple[int, ...]
    groups: tuple[int, ...]  # per shard
    quotas: tuple[Quota, ...]
    bounds: tuple[Bound, ...] | None  # where they are known before
    rest: int


class Held(NamedTuple):
    """Who is held together: members of the corpus, and of each the place of its cluster in order of the
    keys."""

    members: Members
    places: NDArray[np.uint32]
    clusters: Clusters


class _Keys:
    """The documents of all shards by number: their place among all that are kept."""

    def __init__(self, task: Task[SelectOptions]) -> None:
        self.runs = open_runs(task.inputs, "keys", KEYS)
        self.starts = task.options.starts
        self.groups = task.options.groups
        self.group_count = max(self.groups, default=0) + 1

    def shards(self) -> Iterator[tuple[int, Run, int, int]]:
        """(group, run, first number, number after the last)."""
        for group, run, (start, stop) in zip(
            self.groups, self.runs, itertools.pairwise(self.starts), strict=True
        ):
            yield group, run, start, stop


def perform_select(task: Task[SelectOptions]) -> Made:
    options, keys = task.options, _Keys(task)
    held = _hold_together(task, keys)
    if options.bounds is not None:
        known = list(options.bounds)
        cluster_keys = held.clusters.keys
        labels = label_keys(cluster_keys, np.zeros(len(cluster_keys), np.int64), known, options.rest)
        bounds, short = [known] * keys.group_count, []
    else:
        quotas = list(options.quotas)

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
        labels[labels == NO_SPLIT] = options.rest
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


def _hold_together(task: Task[SelectOptions], keys: _Keys) -> Held:
    """The members of a cluster that are still there;
    and equal texts, for those without a word are in no cluster."""
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


def _cluster_links(task: Task[SelectOptions], keys: _Keys) -> Iterator[tuple[Numbers, Numbers]]:
    """Each document with the one before it in its cluster."""
    names = pa.array(task.options.shards, pa.string())
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
    """Clusters, each at the key of its first document;
    of equal keys the one whose first document comes before."""
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


class KeyOptions(TaskOptions, frozen=True):
    method: str  # hash, counts, formula
    seed: int | None  # None: keys are of the ids alone
    source: str


class ShardSelection(NamedTuple):
    """What a shard is labelled with."""

    inputs: list[Input]
    bounds: tuple[Bound, ...]
    start: int  # number of its first kept document, of all


def select(
    options: ShuffledSplit,
    home: Path,
    upstream: Mapping[str, Artifact],
    shards: list[Shard],
    kept: list[Input],
) -> Generator[list[Task], list[Receipt], tuple[list[ShardSelection], Json]]:
    """What each shard is labelled with; and what the manifest says of it."""
    directory = str(home)
    seed = None if isinstance(options, HashSplit) else options.seed
    method = str(options.__struct_config__.tag)
    clusters = _clusters(upstream) if options.by == "cluster" else []
    keyed = yield [
        Task(
            function="split.keys",
            key=f"k{shard.number:05d}",
            options=KeyOptions(method=method, seed=seed, source=shard.source),
            inputs=[shard.documents, shard.marks, item],
            directory=directory,
        )
        for shard, item in zip(shards, kept, strict=True)
    ]
    keys = [table_input("keys", home, receipt.files[0]) for receipt in keyed]
    starts = list(itertools.accumulate((item.rows for item in keys), initial=0))
    domains = list(dict.fromkeys(shard.domain for shard in shards))
    by_domain = isinstance(options, FormulaSplit)
    groups = [domains.index(shard.domain) if by_domain else 0 for shard in shards]
    totals = [0] * (max(groups, default=0) + 1)
    for group, item in zip(groups, keys, strict=True):
        totals[group] += item.rows
    quotas = _quotas(options, totals)
    (selected,) = yield [
        Task(
            function="split.select",
            key="selection",
            options=SelectOptions(
                shards=tuple(shard.name for shard in shards),
                starts=tuple(starts),
                groups=tuple(groups),
                quotas=tuple(quotas),
                bounds=options.bounds() if isinstance(options, HashSplit) else None,
                rest=rest_of(options),
            ),
            inputs=[*keys, *clusters],
            directory=directory,
        )
    ]
    selection = table_input("selection", home, selected.files[0])
    bounds = msgspec.convert(selected.facts["bounds"], list[tuple[Bound, ...]])
    chosen = [
        ShardSelection([own, selection], bounds[group], start)
        for own, group, start in zip(keys, groups, starts, strict=False)
    ]
    return chosen, _facts(options, domains, quotas, selected.facts)


def rest_of(options: ShuffledSplit) -> int:
    """What documents are that no split took."""
    is_counted = isinstance(options, CountsSplit) and options.counts.train is not None
    return NO_SPLIT if is_counted else TRAIN


def _quotas(options: ShuffledSplit, totals: list[int]) -> list[Quota]:
    """In the order in which splits are filled; `totals` are documents by group."""
    if isinstance(options, CountsSplit):
        counts, there = options.counts, sum(totals)
        wanted = [(VALID, counts.valid), (TEST, counts.test), (TRAIN, counts.train or 0)]
        asked = sum(count for _, count in wanted)
        if asked > there:
            raise InputError(
                f"the counts ask for {asked:,} documents, and there are {there:,}",
                where="split.counts",
                next="lower them; `train` may be left out, and is then the rest",
            )
        return [Quota(split, [count]) for split, count in wanted if count]
    if isinstance(options, FormulaSplit):
        sizes = [formula_size(total) for total in totals]
        return [Quota(split, sizes) for split in ((VALID, TEST) if options.test else (VALID,))]
    return []


def _clusters(upstream: Mapping[str, Artifact]) -> list[Input]:
    dedup = upstream.get("dedup")
    entries = dedup.manifest.entries("clusters") if dedup is not None else []
    if dedup is None or not entries:
        raise RecipeError(
            "there are no clusters to hold together",
            where="split.by",
            next="set `dedup: {near: {}}`, with `policy: report` if nothing is to be dropped",
        )
    return [table_input("clusters", dedup.directory, entry) for entry in entries]


def _facts(options: ShuffledSplit, domains: list[str], quotas: list[Quota], found: Json) -> Json:
    """What was asked for, and how many documents it fell short, because clusters are not parted."""
    facts: Json = {}
    for name, sizes in (("asked", [quota.sizes for quota in quotas]), ("short", found["short"])):
        by_split = {SPLITS[quota.split]: row for quota, row in zip(quotas, sizes, strict=True)}
        if isinstance(options, FormulaSplit):
            facts[name] = {
                domain: {split: row[group] for split, row in by_split.items()}
                for group, domain in enumerate(domains)
            }
        elif isinstance(options, CountsSplit):
            facts[name] = {split: row[0] for split, row in by_split.items()}
    if options.by == "cluster":
        facts["together"] = found["together"]
    return facts


# --- tasks ---


def perform_keys(task: Task[KeyOptions]) -> Made:
    options = task.options
    rows = np.flatnonzero(np.asarray(task.load("kept", ["kept"]).column("kept")))
    doc_ids = task.load("documents", ["doc_id"]).column("doc_id").take(pa.array(rows))
    marks = task.load("marks", ["exact_high", "exact_low"])
    hashes = np.stack([np.asarray(marks.column(name))[rows] for name in marks.column_names], axis=1)
    if options.seed is None:
        keys = id_hashes(doc_ids)
    else:
        keys = shuffle_keys(doc_ids, hashes, options.source, options.seed)
    return Made([write_run(task, "keys", [keys, hashes[:, 1], rows], KEYS)], {})

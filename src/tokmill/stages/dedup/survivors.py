"""Which copies are kept: one walk over all documents that are like another one, without holding them.

    copies (by URL, by text)  ─┐
    edges (near duplicates)   ─┴─ in keep order, a piece at a time ─ walk ─> url.parquet  matches.parquet
                                                                             near duplicates, aside
    edges of documents that are left ─ union-find ─> components
    near duplicates, members that are kept ─ drawers by component ─> clusters.parquet
                                           └ drawers by number ───> near.parquet

A document is known here by its number: its row, counted through all shards. Those with equal URLs or texts
are a group, known by the number of its first document (docs/near-duplicates.md has the definition).

Memory: dedup.members, two bits per document, 17 bytes per group of copies, one piece of edges, one drawer.
A cluster lies in one drawer, so the largest of them has to fit.

Near duplicates are found, judged and named by the fingerprints of all shards:

fingerprints-<s>.bin    rank 8 │ digest 8 │ row 4 │ values 4 x positions        a run of the shard's documents

They have numbers of their own: the place among all documents with a fingerprint, in the order of the corpus.

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
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.artifacts.manifest import FileEntry, Json, file_entry
from tokmill.artifacts.step import Input, Made, Task, TaskOptions
from tokmill.duplicates.near import Components, Members, NearOptions
from tokmill.kernels.survivors import (
    EXACT,
    LIKE,
    NEAR,
    URL,
    Dropped,
    get_bits,
    no_bits,
    no_groups,
    set_bits,
    walk_edges,
)
from tokmill.schema import CLUSTERS, DROPS, MATCHES
from tokmill.stages.dedup.method import TABLES
from tokmill.stages.external.appended import open_table, read_tables
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


# `a` comes before `b` in keep order, or is the group of `b`; a run is in order of (rank, b).
EDGES: Layout = {
    "rank": "<i8",
    "b": "<i8",
    "first_rank": "<i8",
    "a": "<i8",
    "similarity": "<f8",
    "kind": "|u1",
}

MEMBER = [("number", "<i8"), ("cluster", "<i8"), ("survivor", "<i8"), ("similarity", "<f8")]
TOLD = [*MEMBER, ("size", "<i8")]
_WALKED: list[tuple[str, str]] = [
    ("number", "<i8"),
    ("survivor", "<i8"),
    ("similarity", "<f8"),
    ("kind", "|u1"),
]
_NO_CLUSTER = -1

# Edges or members that are looked at together:
# 41 bytes an edge, 40 a member, and some five times that on the way.
AT_ONCE = 250_000
# Ranges of members that drawers are made of.
_BINS = 1 << 16


class ResolveOptions(TaskOptions, frozen=True):
    near: NearOptions | None  # None: copies by URL and text alone
    starts: tuple[int, ...]  # number of the first row of each shard, and how many rows there are
    shards: tuple[str, ...]
    sources: tuple[str, ...]  # per shard
    reference: tuple[str, ...]
    copies: tuple[str, ...]  # tables of copies that are asked for: `url`, `matches`
    # Copies of a near duplicate are dropped for the same document; not where templates of a site may have
    # been taken out of one and not of the other.
    inherits: bool = True


class Places:
    """Shards and rows of documents by their numbers, with the names of the shards."""

    def __init__(self, starts: Sequence[int], shards: Sequence[str]) -> None:
        self._starts = np.asarray(starts, np.int64)
        self._names = pa.array(shards, pa.string())

    def of(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        shards = np.searchsorted(self._starts, numbers, side="right") - 1
        return shards, numbers - self._starts[shards]

    def named(self, numbers: Numbers) -> list[Any]:
        """Two columns: name of the shard, and row."""
        shards, rows = self.of(numbers)
        return [self._names.take(pa.array(shards)), rows.astype(np.uint32)]

    def counted(self, numbers: Numbers) -> list[Any]:
        """Two columns: number of the shard, and row."""
        return [column.astype(np.uint32) for column in self.of(numbers)]

    def read_drops(self, item: Input) -> Iterator[tuple[Numbers, Numbers]]:
        """Documents of a table of drops and their survivors, where they have one."""
        for part in read_tables(Path(item.path), MATCHES.names):
            part = part.filter(pc.is_valid(part.column("survivor_shard")))
            shards = np.asarray(pc.index_in(part.column("survivor_shard"), value_set=self._names))
            own, rows, others = (
                np.asarray(part.column(name)).astype(np.int64) for name in ("shard", "row", "survivor_row")
            )
            yield self._starts[own] + rows, self._starts[shards] + others


def perform_resolve(task: Task[ResolveOptions]) -> Made:
    options, places = task.options, Places(task.options.starts, task.options.shards)
    edges = open_runs(task.inputs, "edges", EDGES)
    dropped = _dropped_before(task)
    outside = dropped.copy()  # of every cluster: dropped, and not for being similar itself
    counts = np.zeros(LIKE + 1, np.int64)
    with open_scratch(task) as scratch:
        walked = Drawers(scratch, "walked", _WALKED)
        for found in _walk(options, edges, dropped):
            walked.put(np.zeros(len(found.documents), np.int64), *found)
            set_bits(outside, found.documents[found.kinds != NEAR])
            counts += np.bincount(found.kinds, minlength=len(counts))
        files = [
            _write_copies(task, places, walked, kind, table, int(counts[kind]))
            for kind, table in ((URL, "url"), (EXACT, "matches"))
            if table in options.copies
        ]
        if options.near is None:
            return Made(files, {})
        members, edge_count = _find_members(edges, outside)
        components = _join(edges, members, outside)
        by_cluster = _ByCluster(scratch, members, components.roots)
        for part in walked.read(0):
            own = part[part["kind"] == NEAR]
            by_cluster.put(own["number"], own["survivor"], own["similarity"])
        for start in range(0, options.starts[-1], AT_ONCE):
            kept = members.between(start, min(start + AT_ONCE, options.starts[-1]))
            kept = kept[~get_bits(dropped, kept)]
            by_cluster.put(kept, kept, np.ones(len(kept)))
        duplicates = int(counts[NEAR] + counts[LIKE])
        near, largest = _write(task, places, by_cluster, walked, duplicates, scratch)
    facts: Json = {
        "policy": options.near.policy,
        "clusters": components.count(),
        "largest_cluster": largest,
        "edges": edge_count,
        "duplicates": duplicates,
    }
    return Made([*near, *files], {}, facts)


def _dropped_before(task: Task[ResolveOptions]) -> Any:
    """A bit per document: dropped by a method before copies are resolved."""
    dropped = no_bits(task.options.starts[-1])
    starts = np.asarray(task.options.starts, np.int64)
    for item in task.inputs:
        if item.role in TABLES.values():
            for part in read_tables(Path(item.path), ["shard", "row"]):
                shards, rows = (np.asarray(part.column(name)).astype(np.int64) for name in ("shard", "row"))
                set_bits(dropped, starts[shards] + rows)
    return dropped


def _walk(options: ResolveOptions, edges: Sequence[Run], dropped: Any) -> Iterator[Dropped]:
    """Documents in keep order: dropped, if one that they are like is kept."""
    starts = np.asarray(options.starts, np.int64)
    is_safe = np.array([source in options.reference for source in options.sources], np.bool_)
    of_url, of_text = (_firsts(edges, kind, options.starts[-1]) for kind in (URL, EXACT))
    groups = no_groups(of_url.count + of_text.count)
    for _, later, first_rank, earlier, similarity, kinds in read_in_order(edges, "rank", "b", AT_ONCE):
        by_url, by_text = kinds == URL, kinds == EXACT
        earlier[by_url] = of_url.places(earlier[by_url])
        earlier[by_text] = of_url.count + of_text.places(earlier[by_text])
        safe = is_safe[np.searchsorted(starts, later, side="right") - 1]
        yield walk_edges(
            earlier,
            first_rank,
            later,
            similarity,
            safe,
            dropped,
            kinds,
            groups,
            inherits=options.inherits,
        )


def _firsts(edges: Sequence[Run], kind: int, documents: int) -> Members:
    """The first documents of all groups of a kind."""
    firsts = Members(documents)
    for first, kinds in _read(edges, ["a", "kind"]):
        firsts.add(first[kinds == kind])
    firsts.seal()
    return firsts


def _read(edges: Sequence[Run], names: Sequence[str]) -> Iterator[list[Any]]:
    for run in edges:
        for start in range(0, run.rows, AT_ONCE):
            yield run.read(start, min(start + AT_ONCE, run.rows), names)


def _read_similar(edges: Sequence[Run], outside: Any, names: Sequence[str]) -> Iterator[list[Any]]:
    """Of pairs of near duplicates that are both in the clusters."""
    for a, b, kinds, *columns in _read(edges, ["a", "b", "kind", *names]):
        similar = np.flatnonzero(kinds == NEAR)
        similar = similar[~(get_bits(outside, a[similar]) | get_bits(outside, b[similar]))]
        yield [column[similar] for column in (a, b, *columns)]


def _find_members(edges: Sequence[Run], outside: Any) -> tuple[Members, int]:
    """Documents of clusters, and how many edges they have."""
    members, count = Members(64 * len(outside)), 0
    for a, b in _read_similar(edges, outside, []):
        members.add(a)
        members.add(b)
        count += len(a)
    members.seal()
    return members, count


def _join(edges: Sequence[Run], members: Members, outside: Any) -> Components:
    """The root of a component is its first document in keep order."""
    components = Components(members.count, _ranks(edges, members, outside))
    for a, b in _read_similar(edges, outside, []):
        components.join(members.places(a), members.places(b))
    components.seal()
    return components


def _ranks(edges: Sequence[Run], members: Members, outside: Any) -> Numbers | None:
    """Of all members; None where they are all the same, and a document comes before another by its number."""
    ends = [
        (int(part.min()), int(part.max()))
        for parts in _read(edges, ["first_rank", "rank", "kind"])
        for part in (column[parts[2] == NEAR] for column in parts[:2])
        if len(part)
    ]
    if not ends or min(low for low, _ in ends) == max(high for _, high in ends):
        return None
    ranks = np.empty(members.count, np.int64)
    for a, b, first_rank, rank in _read_similar(edges, outside, ["first_rank", "rank"]):
        ranks[members.places(a)], ranks[members.places(b)] = first_rank, rank
    return ranks


class _ByCluster:
    """Members, each with its survivor, in drawers that follow each other in order of the clusters."""

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

    def load(self, drawer: int) -> NDArray[Any]:
        """Members in order of cluster and number, with the sizes of their clusters."""
        held = self._held.load(drawer)
        held = held[np.lexsort((held["number"], held["cluster"]))]
        told = np.empty(len(held), TOLD)
        for name, _ in MEMBER:
            told[name] = held[name]
        _, place, sizes = np.unique(told["cluster"], return_inverse=True, return_counts=True)
        told["size"] = sizes[place]
        return told


class ByNumber:
    """Rows in order of their numbers, a drawer at a time. `rows`: about how many there will be."""

    def __init__(self, scratch: Path, name: str, record: Any, documents: int, rows: int) -> None:
        self._held, self._documents = Drawers(scratch, name, record), documents
        self._drawers = -(-rows // AT_ONCE)

    def put(self, numbers: Numbers, *columns: NDArray[Any]) -> None:
        self._held.put(numbers * self._drawers // max(self._documents, 1), numbers, *columns)

    def read(self) -> Iterator[Any]:
        for drawer in range(self._drawers):
            rows = self._held.load(drawer)
            yield rows[np.argsort(rows["number"], kind="stable")]


def _write_copies(
    task: Task[ResolveOptions], places: Places, walked: Drawers, kind: int, table: str, rows: int
) -> FileEntry:
    """Documents dropped as copies of one kind, in order."""
    with (
        open_scratch(task) as scratch,
        open_table(task, f"{table}.parquet", table, MATCHES, by="shard") as written,
    ):
        by_number = ByNumber(scratch, table, _WALKED, task.options.starts[-1], rows)
        for part in walked.read(0):
            own = part[part["kind"] == kind]
            by_number.put(*(own[name] for name, _ in _WALKED))
        for part in by_number.read():
            columns = [*places.counted(part["number"]), *places.named(part["survivor"])]
            written.append(pa.table(columns, schema=MATCHES))
    return written.entry


def _write(
    task: Task[ResolveOptions],
    places: Places,
    by_cluster: _ByCluster,
    walked: Drawers,
    duplicates: int,
    scratch: Path,
) -> tuple[list[FileEntry], int]:
    """Both tables of near duplicates, and the size of the largest cluster."""
    assert task.options.near is not None
    drops, largest = task.options.near.policy == "drop", 0
    by_number = ByNumber(scratch, "number", TOLD, task.options.starts[-1], duplicates)
    with open_table(task, "clusters.parquet", "clusters", CLUSTERS, by="cluster") as clusters:
        for drawer in range(by_cluster.drawers):
            told = by_cluster.load(drawer)
            is_like = told["survivor"] != told["number"]
            clusters.append(_clusters(told, ~(is_like & drops), places))
            largest = max(largest, int(told["size"].max(initial=0)))
            if drops:
                by_number.put(*(told[is_like][name] for name, _ in TOLD))
    for part in walked.read(0):
        copies = part[part["kind"] == LIKE]
        none = np.full(len(copies), _NO_CLUSTER)
        by_number.put(copies["number"], none, copies["survivor"], copies["similarity"], none)
    with open_table(task, "near.parquet", "near", DROPS, by="shard") as near:
        for part in by_number.read():
            near.append(_drops(part, places))
    return [near.entry, clusters.entry], largest


def _clusters(told: Any, kept: Any, places: Places) -> Any:
    columns = [
        *(told["cluster"], told["size"], *places.named(told["number"]), kept),
        *(*places.named(told["survivor"]), told["similarity"]),
    ]
    return pa.table(columns, schema=CLUSTERS)


def _drops(told: Any, places: Places) -> Any:
    is_alone = told["cluster"] == _NO_CLUSTER
    return pa.table(
        [
            *places.counted(told["number"]),
            *places.named(told["survivor"]),
            told["similarity"],
            *(pa.array(told[name], mask=is_alone) for name in ("cluster", "size")),
            pa.nulls(len(told), pa.string()),
        ],
        schema=DROPS,
    )

"""Near duplicates as tasks: every step bounded by a shard, a partition, or the edges that were found.

    shard ─ fingerprint ─> fingerprints-<s>.bin (rank, digest, signature: by position)   bands-<s> (by partition)
    partition ─ candidates ─> pairs-<p>      buckets of equal band keys, estimated from the signatures
    shard ─ extract ─> texts-<s>.arrow       texts of the documents that an estimate leaves in doubt
    partition ─ verify ─> edges-<p>          pairs in doubt settled by exact Jaccard
    all edges ─ resolve ─> near (duplicate -> survivor, by shard)  clusters

Documents that are candidates have a number: their place among all candidates, in the order of the corpus. All but
`near` and `clusters` is scaffolding, gone when the step is done.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.dedup.buckets import pairs_in_buckets, unique_pairs
from tokmill.dedup.components import linked, resolve
from tokmill.dedup.cuda import signatures_on
from tokmill.dedup.exact import partition_of
from tokmill.dedup.near import (
    SHINGLE_NORMALIZATION,
    NearOptions,
    compare_pairs,
    judge_pairs,
)
from tokmill.environment import DEVICE
from tokmill.kernels.buckets import repeated
from tokmill.kernels.minhash import band_keys
from tokmill.manifest import FileEntry, Json, Receipt, file_entry
from tokmill.schema import CLUSTERS, DROPS
from tokmill.stages.numbered import load_numbered_texts, write_numbered_texts
from tokmill.stages.ranking import Considered, load_ranked
from tokmill.stages.step import (
    Made,
    Step,
    write_shard_table,
    write_sorted_shard_table,
    write_task_table,
)
from tokmill.storage.commit import open_commit
from tokmill.storage.parquet import load_range, load_table
from tokmill.task import Task, table_input

BANDS = pa.schema(
    [
        pa.field("partition", pa.uint16(), nullable=False),
        pa.field("key", pa.uint64(), nullable=False),
        pa.field("index", pa.uint32(), nullable=False),
    ]
)
PAIRS = pa.schema(
    [
        pa.field("partition", pa.uint16(), nullable=False),
        pa.field("a", pa.int64(), nullable=False),
        pa.field("b", pa.int64(), nullable=False),
        pa.field("similarity", pa.float64(), nullable=False),
        pa.field("is_sure", pa.bool_(), nullable=False),
    ]
)
EDGES = pa.schema([PAIRS.field(name) for name in ("a", "b", "similarity")])

Phase = Generator[list[Task], list[Receipt], list[Receipt]]
Numbers = NDArray[np.int64]


def find_near(step: Step, considered: Sequence[Considered]) -> Phase:
    near = {**step.config["near"], "normalization": SHINGLE_NORMALIZATION}
    shards = [one.shard for one in considered]
    partitions = step.config["partitions"]
    sources = list(dict.fromkeys(shard.source for shard in shards))
    per_source = step.config["scope"] == "per-source"
    fingerprints = yield [
        Task(
            function="dedup.fingerprint",
            key=f"f{shard.number:05d}",
            config={
                "near": near,
                "keep": keep,
                "partitions": partitions,
                "number": shard.number,
                "group": sources.index(shard.source) + 1 if per_source else 0,
            },
            inputs=inputs,
            directory=str(step.directory),
        )
        for shard, keep, inputs in considered
    ]
    starts = [0, *itertools.accumulate(receipt.files[0].rows for receipt in fingerprints)]
    common = {"near": near, "starts": starts}
    prints = [table_input("fingerprints", step.directory, receipt.files[0]) for receipt in fingerprints]
    bands = [table_input("bands", step.directory, receipt.files[1]) for receipt in fingerprints]
    candidates = yield [
        Task(
            function="dedup.candidates",
            key=f"c{partition:04d}",
            config={**common, "partition": partition, "partitions": partitions},
            inputs=[*prints, *bands],
            directory=str(step.directory),
        )
        for partition in range(partitions)
    ]
    pairs = [table_input("pairs", step.directory, receipt.files[0]) for receipt in candidates]
    texts: list[Receipt] = []
    if near["verify"] == "exact":
        texts = yield [
            Task(
                function="dedup.extract",
                key=f"x{shard.number:05d}",
                config={**common, "number": shard.number, "keep": keep},
                inputs=[*inputs, *prints, *pairs],
                directory=str(step.directory),
            )
            for shard, keep, inputs in considered
        ]
    stored = [table_input("texts", step.directory, receipt.files[0]) for receipt in texts]
    verified = yield [
        Task(
            function="dedup.verify",
            key=f"v{partition:04d}",
            config={**common, "partition": partition},
            inputs=[*pairs, *stored],
            directory=str(step.directory),
        )
        for partition in range(partitions)
    ]
    edges = [table_input("edges", step.directory, receipt.files[0]) for receipt in verified]
    names = [shard.name for shard in shards]
    owners = [shard.source for shard in shards]
    return (
        yield [
            Task(
                function="dedup.resolve",
                key="near",
                config={**common, "shards": names, "sources": owners, "reference": step.config["reference"]},
                inputs=[*prints, *edges],
                directory=str(step.directory),
            )
        ]
    )


# --- fingerprints ---


def perform_fingerprint(task: Task) -> Made:
    options = near_options(task.config["near"])
    ranked = load_ranked(task.inputs, task.config["number"], task.config["keep"])
    made = signatures_on(os.environ.get(DEVICE, "cpu"), ranked.texts, options)
    has_words = np.flatnonzero(made.digests != 0)
    records = np.empty(len(has_words), _record(options))
    records["row"], records["rank"] = ranked.rows[has_words], ranked.ranks[has_words]
    records["digest"], records["values"] = made.digests[has_words], made.values[has_words]
    # of another source is of another bucket, where sources are kept apart
    salt = np.uint64((task.config["group"] * 0x9E3779B97F4A7C15) & (2**64 - 1))
    keys = band_keys(records["values"], options.bands, options.rows) ^ salt
    index = np.repeat(np.arange(len(records), dtype=np.uint32), options.bands)
    flat = keys.reshape(-1)
    partition = partition_of(flat, task.config["partitions"]).astype(np.uint16)
    order = np.argsort(partition, kind="stable")
    bands = pa.table([partition[order], flat[order], index[order]], schema=BANDS)
    return Made([_write_records(task, records), write_task_table(task, "bands", bands, "partition")], {})


def _record(options: NearOptions) -> Any:
    fields = [("row", "<u4"), ("rank", "<i8"), ("digest", "<u8"), ("values", "<u4", (options.positions,))]
    return np.dtype(fields)


def _write_records(task: Task, records: Any) -> FileEntry:
    name = f"fingerprints-{task.key}.bin"
    with open_commit(Path(task.directory) / name) as file:
        if len(records):
            file.write(records.view(np.uint8))
    return file_entry(name, "fingerprints", file.written, rows=len(records))


class _Records:
    """Fingerprints of all shards by number, mapped: only what is asked for is read."""

    def __init__(self, task: Task) -> None:
        self._starts = np.asarray(task.config["starts"], np.int64)
        record = _record(near_options(task.config["near"]))
        self._maps = [
            np.memmap(path, record, mode="r") if end > start else np.empty(0, record)
            for path, (start, end) in zip(
                task.paths("fingerprints"), itertools.pairwise(self._starts.tolist()), strict=True
            )
        ]

    def load(self, numbers: Numbers, field: str) -> Any:
        """`numbers` ascending."""
        shards = np.searchsorted(self._starts, numbers, side="right") - 1
        parts = [
            self._maps[shard][field][numbers[shards == shard] - self._starts[shard]]
            for shard in np.unique(shards).tolist()
        ]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def places(self, numbers: Numbers) -> tuple[Numbers, Any]:
        """Shard and row of each number, ascending."""
        return np.searchsorted(self._starts, numbers, side="right") - 1, self.load(numbers, "row")


# --- candidates ---


def perform_candidates(task: Task) -> Made:
    options, partition = near_options(task.config["near"]), task.config["partition"]
    records, starts = _Records(task), task.config["starts"]
    keys, numbers = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for start, path in zip(starts, task.paths("bands"), strict=False):
        found = load_range(path, "partition", partition)
        keys.append(np.asarray(found.column("key")))
        numbers.append(np.asarray(found.column("index")).astype(np.int64) + start)
    key, number = np.concatenate(keys), np.concatenate(numbers)
    in_company = repeated(key)
    key, number = key[in_company], number[in_company]
    docs, places = np.unique(number, return_inverse=True)
    pairs = unique_pairs(
        *pairs_in_buckets(
            key,
            number,
            digests=records.load(docs, "digest")[places],
            ranks=records.load(docs, "rank")[places],
        )
    )
    judged = judge_pairs(pairs.a, pairs.b, options, lambda numbers: records.load(numbers, "values"))
    is_open = judged.is_similar | judged.is_doubtful
    a, b, similarity, is_sure = (
        column[is_open] for column in (pairs.a, pairs.b, judged.similarity, judged.is_similar)
    )
    mixed = a.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    owner = partition_of(mixed, task.config["partitions"]).astype(np.uint16)
    order = np.argsort(owner, kind="stable")
    table = pa.table([column[order] for column in (owner, a, b, similarity, is_sure)], schema=PAIRS)
    return Made([write_task_table(task, "pairs", table, "partition")], {})


# --- verification ---


def perform_extract(task: Task) -> Made:
    """Texts of this shard's documents that a pair in doubt has as an end."""
    number = task.config["number"]
    start, end = task.config["starts"][number : number + 2]
    ends: list[Any] = [np.empty(0, np.int64)]
    for path in task.paths("pairs"):
        pairs = load_table(path, ["a", "b", "is_sure"])
        doubtful = ~np.asarray(pairs.column("is_sure"))
        for name in ("a", "b"):
            column = np.asarray(pairs.column(name))[doubtful]
            ends.append(column[(column >= start) & (column < end)])
    wanted = np.unique(np.concatenate(ends))
    texts = pa.array([], pa.large_string())
    if len(wanted):
        ranked = load_ranked(task.inputs, number, task.config["keep"])
        rows = _Records(task).load(wanted, "row").astype(np.int64)
        texts = ranked.texts.take(pa.array(np.searchsorted(ranked.rows, rows)))
    return Made([write_numbered_texts(task, wanted, texts)], {})


def perform_verify(task: Task) -> Made:
    options = near_options(task.config["near"])
    found = pa.concat_tables(
        [load_range(path, "partition", task.config["partition"]) for path in task.paths("pairs")]
    )
    a, b, similarity, is_sure = (np.asarray(found.column(name)) for name in PAIRS.names[1:])
    # a pair meets in many bands, each time with the same estimate
    order = np.lexsort((b, a))
    a, b, similarity, is_sure = a[order], b[order], similarity[order].copy(), is_sure[order]
    fresh = np.ones(len(a), np.bool_)
    fresh[1:] = (a[1:] != a[:-1]) | (b[1:] != b[:-1])
    a, b, similarity, is_sure = a[fresh], b[fresh], similarity[fresh], is_sure[fresh]
    is_edge = is_sure.copy()
    doubtful = np.flatnonzero(~is_sure)
    if len(doubtful):
        texts = load_numbered_texts(task)
        similarity[doubtful] = compare_pairs(
            a[doubtful],
            b[doubtful],
            options,
            texts.take,
        )
        is_edge[doubtful] = similarity[doubtful] >= options.threshold
    edges = pa.table([column[is_edge] for column in (a, b, similarity)], schema=EDGES)
    return Made([write_shard_table(task.directory, f"edges-{task.key}.parquet", "edges", edges)], {})


# --- survivors ---


def perform_resolve(task: Task) -> Made:
    records, names = _Records(task), pa.array(task.config["shards"], pa.string())
    edges = pa.concat_tables([load_table(path) for path in task.paths("edges")])
    a, b, similarity = (np.asarray(edges.column(name)) for name in EDGES.names)
    docs, a, b = linked(a, b)
    shard, row = records.places(docs)
    reference = np.isin(np.asarray(task.config["sources"], object)[shard], task.config["reference"])
    found = resolve(len(docs), a, b, similarity, records.load(docs, "rank"), reference)
    is_like = found.survivor >= 0  # one that comes before it
    is_dropped = is_like & (task.config["near"]["policy"] == "drop")
    dropped = np.flatnonzero(is_dropped)
    survivor = found.survivor[dropped]
    near = pa.table(
        [
            shard[dropped].astype(np.uint32),
            row[dropped],
            names.take(pa.array(shard[survivor])),
            row[survivor],
            found.similarity[dropped],
            docs[found.component[dropped]],
            found.component_size[dropped],
            pa.nulls(len(dropped), pa.string()),
        ],
        schema=DROPS,
    )
    kept_as = np.where(is_like, found.survivor, np.arange(len(docs)))
    order = np.lexsort((docs, docs[found.component]))
    clusters = pa.table(
        [
            docs[found.component][order],
            found.component_size[order],
            names.take(pa.array(shard[order])),
            row[order],
            ~is_dropped[order],
            names.take(pa.array(shard[kept_as][order])),
            row[kept_as][order],
            np.where(is_like, found.similarity, 1.0)[order],
        ],
        schema=CLUSTERS,
    )
    entry = write_sorted_shard_table(task.directory, "near.parquet", "near", near, by="shard")
    largest = int(found.component_size.max(initial=0))
    facts = {
        "policy": task.config["near"]["policy"],
        "clusters": len(np.unique(found.component)),
        "largest_cluster": largest,
        "edges": len(a),
        "duplicates": int(is_like.sum()),
    }
    return Made(
        [entry, write_shard_table(task.directory, "clusters.parquet", "clusters", clusters)], {}, facts
    )


def near_options(near: Json) -> NearOptions:
    return NearOptions(
        threshold=float(near["threshold"]),
        shingle=near["unit"],
        ngram=near["ngram"],
        bands=near["bands"],
        rows=near["rows"],
        verify=near["verify"],
    )

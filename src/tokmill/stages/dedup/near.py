"""Near duplicates as tasks: every step bounded by a shard, or by a partition as large as a task can hold.

shard ─ fingerprint ─> fingerprints-<s> (by number)      bands-<s> (a run by band key)
partition ─ candidates ─> pairs-<p>      buckets of equal band keys, estimated from the signatures
                        └ doubtful-<p>   documents that an estimate leaves in doubt
shard ─ extract ─> texts-<s>.arrow       texts of the documents in doubt
partition ─ verify ─> edges-<p>          pairs in doubt resolved by exact Jaccard; a run in keep order
                    └ compared           pairs whose texts were compared, in the cache
edges, those of other copies ─ resolve ─> near (duplicate -> survivor, by shard)  clusters
                                                                        tokmill.stages.dedup.survivors

Signatures depend on a text alone: those of an earlier run are looked up (tokmill.stages.dedup.signed), and so
is the similarity of two texts that were compared before. Ranks, numbers and scopes are added here.

Runs are of any number of partitions (tokmill.stages.external), so there are as many as their rows call for.
All but `near` and `clusters` is scaffolding, gone when the step is done.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from numpy.typing import NDArray

from tokmill.artifacts.manifest import FileEntry, Json, Receipt
from tokmill.artifacts.step import Made, Task, TaskFunction, TaskOptions, table_input, tables_of
from tokmill.duplicates.near import (
    SHINGLE_NORMALIZATION,
    NearOptions,
    compare_pairs,
    judge_pairs,
    read_pairs,
    unique_pairs,
)
from tokmill.errors import DedupLimit
from tokmill.kernels.minhash import band_keys, repeated
from tokmill.kernels.survivors import NEAR
from tokmill.stages.dedup.compared import ComparedPairs, compared_pairs, save_compared, sweep_compared
from tokmill.stages.dedup.marked import SHARE as PASSAGES_SHARE
from tokmill.stages.dedup.method import (
    Considered,
    DedupOptions,
    DedupStep,
    Keep,
    Method,
    Phase,
    cached_shards,
    considered_rows,
    later_copies,
    load_ranks,
    load_texts,
    row_starts,
    scope_salts,
)
from tokmill.stages.dedup.signed import SIGNATURES, signature_config, signed_rows
from tokmill.stages.dedup.survivors import (
    EDGES,
    NUMBERS,
    Fingerprints,
    NumberedOptions,
    NumberedTexts,
    fingerprint_layout,
    wanted_numbers,
    write_numbered_texts,
)
from tokmill.stages.external.appended import read_tables
from tokmill.stages.external.runs import (
    Layout,
    by_hash,
    hash_pairs,
    joined,
    load_numbered,
    load_partition,
    open_runs,
    partitions_for,
    partitions_to_share,
    write_run,
)

BANDS: Layout = {"key": "<u8", "index": "<u4"}
PAIRS: Layout = {
    "key": "<u8",
    "first_rank": "<i8",
    "a": "<i8",
    "rank": "<i8",
    "b": "<i8",
    "similarity": "<f8",
    "standing": "|u1",
}
# Of a pair: the texts have to be compared; the fingerprints say that it is similar; the texts were compared.
DOUBTFUL, SURE, COMPARED = 0, 1, 2

# 2 million band keys take 340 MB where every one of them is shared, and 70 where few are:
# 143,000 documents of 14 bands. A billion documents make 7,000 partitions.
BANDS_AT_ONCE = 2_000_000
# A pair is 49 bytes, and three times that while pairs are sorted.
PAIRS_AT_ONCE = 1_000_000

_SPREAD = np.uint64(0x9E3779B97F4A7C15)

Numbers = NDArray[np.int64]


class FingerprintOptions(TaskOptions, frozen=True):
    near: NearOptions
    keep: Keep
    number: int
    group: int
    by_source: bool = False


class PartitionOptions(NumberedOptions, frozen=True):
    partition: int
    partitions: int


class VerifyOptions(PartitionOptions, frozen=True):
    row_starts: tuple[int, ...]  # number of the first row of each shard, and how many rows there are


class ExtractOptions(NumberedOptions, frozen=True):
    number: int
    keep: Keep


def _find_near(step: DedupStep, asked: NearOptions, considered: Sequence[Considered]) -> Phase:
    near = replace(asked, normalization=SHINGLE_NORMALIZATION)
    shards = [one.shard for one in considered]
    directory = str(step.directory)
    # marks of passages save 0.26 CPU seconds for each per cent of the bench texts, signatures 0.11
    reserved = PASSAGES_SHARE if getattr(step.options, "window", None) else 0.0
    how = signature_config(near)
    kept = cached_shards(
        step, considered, SIGNATURES, how, row_bytes=4 * near.positions + 12, reserved=reserved
    )
    signed = yield [
        Task(
            function="dedup.fingerprint",
            key=f"f{shard.number:05d}",
            options=FingerprintOptions(
                near=near, keep=keep, number=shard.number, group=group, by_source=step.options.by_source
            ),
            inputs=inputs,
            directory=directory,
            cached=cached,
        )
        for (shard, keep, inputs), group, cached in zip(
            considered, step.options.groups(shards), kept, strict=True
        )
    ]
    compared = compared_pairs(step, considered, kept)
    starts = (0, *itertools.accumulate(receipt.files[0].rows for receipt in signed))
    at_least = max(step.options.partitions, partitions_to_share(starts[-1]))
    fingerprints, bands = (tables_of(step, signed, name) for name in ("fingerprints", "bands"))
    partitions = partitions_for(sum(item.rows for item in bands), BANDS_AT_ONCE, at_least)
    runs = [*fingerprints, *bands]  # one list for all: a thousand tasks name ten thousand files each
    candidates = yield [
        Task(
            function="dedup.candidates",
            key=f"c{partition:04d}",
            options=PartitionOptions(near=near, starts=starts, partition=partition, partitions=partitions),
            inputs=runs,
            directory=directory,
            cached=compared,
        )
        for partition in range(partitions)
    ]
    pairs, doubtful = (tables_of(step, candidates, name) for name in ("pairs", "doubtful"))
    texts: list[Receipt] = []
    if near.verify == "exact":
        texts = yield [
            Task(
                function="dedup.extract",
                key=f"x{shard.number:05d}",
                options=ExtractOptions(near=near, starts=starts, number=shard.number, keep=keep),
                inputs=[*inputs, fingerprints[shard.number], *doubtful],
                directory=directory,
            )
            for shard, keep, inputs in considered
        ]
    stored = [table_input("texts", step.directory, receipt.files[0]) for receipt in texts]
    partitions = partitions_for(sum(item.rows for item in pairs), PAIRS_AT_ONCE, at_least)
    runs = [*pairs, *stored, *fingerprints]
    verified = yield [
        Task(
            function="dedup.verify",
            key=f"v{partition:04d}",
            options=VerifyOptions(
                near=near,
                starts=starts,
                partition=partition,
                partitions=partitions,
                row_starts=row_starts(shards),
            ),
            inputs=runs,
            directory=directory,
            cached=compared,
        )
        for partition in range(partitions)
    ]
    sweep_compared(compared, partitions)
    return verified


# --- fingerprints ---


def perform_fingerprint(task: Task[FingerprintOptions]) -> Made:
    options, near = task.options, task.options.near
    ranks = load_ranks(task.inputs, options.keep)
    copies = later_copies(task.inputs, options.number, len(ranks))
    rows = considered_rows(task.inputs, options.number)
    rows = rows[~copies.is_settled[rows]]
    digests, values = signed_rows(task, rows, near)
    has_words = np.flatnonzero(digests != 0)
    digests, values, rows = digests[has_words], values[has_words], rows[has_words]
    # Of equal fingerprints the first stands for all where candidates are listed. One that may be dropped for
    # its URL stands for itself alone: then the others are still to be compared.
    own = copies.by_url[rows]
    digests[own] ^= (np.uint64(options.number << 32) + rows[own].astype(np.uint64) + np.uint64(1)) * _SPREAD
    columns: list[Any] = [ranks[rows], digests, rows, values]
    fingerprints = write_run(task, "fingerprints", columns, fingerprint_layout(near))
    # of another source is of another bucket, where sources are kept apart
    salt = scope_salts(task, rows, group=options.group, by_source=options.by_source)
    keys = (band_keys(values, near.bands, near.rows) ^ np.reshape(salt, (-1, 1))).reshape(-1)
    order = by_hash(keys)
    index = (order // near.bands).astype(np.uint32)
    return Made([fingerprints, write_run(task, "bands", [keys[order], index], BANDS)], {})


# --- candidates ---


def perform_candidates(task: Task[PartitionOptions]) -> Made:
    options, fingerprints = task.options, Fingerprints(task.inputs, task.options)
    runs = open_runs(task.inputs, "bands", BANDS)
    key, number = load_numbered(runs, BANDS, options.partition, options.partitions, options.starts)
    in_company = repeated(key)
    key, number = key[in_company], number[in_company]
    docs, places = np.unique(number, return_inverse=True)
    digests, ranks = fingerprints.load_all(docs, ["digest", "rank"])
    files: list[FileEntry] = []
    waiting: list[list[Any]] = []
    known = ComparedPairs(task, fingerprints)
    for pairs in read_pairs(key, number, digests=digests.view(np.uint64)[places], ranks=ranks[places]):
        a, b = unique_pairs(*pairs)
        judged = judge_pairs(a, b, options.near, lambda numbers: fingerprints.load(numbers, "values"))
        is_open = judged.is_similar | judged.is_doubtful
        a, b = a[is_open], b[is_open]
        similarity = judged.similarity[is_open]
        standing = np.where(judged.is_similar[is_open], SURE, DOUBTFUL)
        in_doubt = np.flatnonzero(standing == DOUBTFUL)
        is_known, exact = known.look_up(a[in_doubt], b[in_doubt])
        standing[in_doubt[is_known]] = COMPARED
        similarity[in_doubt[is_known]] = exact[is_known]
        first_rank, rank = (ranks[np.searchsorted(docs, ends)] for ends in (a, b))
        waiting.append([first_rank, a, rank, b, similarity, standing])
        if sum(len(columns[0]) for columns in waiting) >= PAIRS_AT_ONCE:
            files += _write_pairs(task, waiting, len(files))
    return Made([*files, *_write_pairs(task, waiting, len(files))], {})


def _write_pairs(task: Task, waiting: list[list[Any]], part: int) -> list[FileEntry]:
    """What waits, as a run; and the documents whose texts will be asked for. The list is emptied."""
    columns = [np.concatenate(column) for column in zip(*waiting, strict=True)]
    waiting.clear()
    if not columns or not len(columns[0]):
        return []
    _, a, _, b, _, standing = columns
    key = hash_pairs(a, b)
    order = by_hash(key)
    in_doubt = standing == DOUBTFUL
    doubtful = np.unique(np.concatenate([a[in_doubt], b[in_doubt]]))
    suffix = f"-{part:05d}"
    return [
        write_run(task, "pairs", [column[order] for column in (key, *columns)], PAIRS, suffix),
        write_run(task, "doubtful", [doubtful], NUMBERS, suffix),
    ]


# --- verification ---


def perform_extract(task: Task[ExtractOptions]) -> Made:
    """Texts of this shard's documents that a pair in doubt has as an end."""
    number = task.options.number
    wanted = wanted_numbers(task, "doubtful")
    texts = pa.array([], pa.large_string())
    if len(wanted):
        rows = Fingerprints(task.inputs, task.options, shard=number).load(wanted, "row").astype(np.int64)
        texts = load_texts(task.inputs, rows)
    return Made([write_numbered_texts(task, wanted, texts)], {})


def perform_verify(task: Task[VerifyOptions]) -> Made:
    options, near = task.options, task.options.near
    runs = open_runs(task.inputs, "pairs", PAIRS)
    columns = joined(load_partition(runs, options.partition, options.partitions), PAIRS)[1:]
    # a pair meets in many bands, each time with the same estimate; and the texts of a are read once
    order = np.lexsort((columns[3], columns[1]))
    columns = [column[order] for column in columns]
    a, b = columns[1], columns[3]
    is_new = np.ones(len(a), np.bool_)
    is_new[1:] = (a[1:] != a[:-1]) | (b[1:] != b[:-1])
    first_rank, a, rank, b, similarity, standing = (column[is_new] for column in columns)
    doubtful = np.flatnonzero(standing == DOUBTFUL)
    if len(doubtful):
        texts = NumberedTexts(task, options.starts)
        similarity[doubtful] = compare_pairs(a[doubtful], b[doubtful], near, texts.take)
    by_texts = standing != SURE
    save_compared(task, a[by_texts], b[by_texts], similarity[by_texts])
    chosen = np.flatnonzero(~by_texts | (similarity >= float(near.threshold)))
    chosen = chosen[np.lexsort((a[chosen], b[chosen], rank[chosen]))]
    rank, b, first_rank, a, similarity = (column[chosen] for column in (rank, b, first_rank, a, similarity))
    a, b = _rows_of(task, a, b)
    edges = [rank, b, first_rank, a, similarity, np.full(len(a), NEAR, np.uint8)]
    return Made([write_run(task, "edges", edges, EDGES)], {})


def _rows_of(task: Task[VerifyOptions], *ends: Numbers) -> list[Numbers]:
    """Documents by their rows, counted through all shards, in the place of their numbers here."""
    numbers, places = np.unique(np.concatenate(ends), return_inverse=True)
    shards, rows = Fingerprints(task.inputs, task.options).places(numbers)
    counted = (np.asarray(task.options.row_starts, np.int64)[shards] + rows)[places]
    return np.split(counted, np.cumsum([len(end) for end in ends])[:-1])


def _facts(step: DedupStep, receipts: Sequence[Receipt]) -> Json:
    (resolved,) = receipts
    limit, largest = step.options.max_cluster, resolved.facts["largest_cluster"]
    if limit is not None and largest > limit:
        (clusters,) = (entry for entry in resolved.files if entry.table == "clusters")
        row, shard = _first_of_size(step.directory / clusters.path, largest)
        raise DedupLimit(
            f"a cluster of {largest:,} near duplicates is larger than max_cluster {limit:,}; "
            f"its first member is row {row} of {shard}",
            where="dedup",
            next=(
                "look at it with the limit raised (`tokmill clusters DIR`); boilerplate often calls for a "
                "filter or a higher `near.threshold`"
            ),
        )
    return resolved.facts


def _first_of_size(path: Path, size: int) -> tuple[int, str]:
    """Row and shard of the first member of a cluster of this size; the table is read in parts."""
    return next(
        (rows["row"][place], rows["shard"][place])
        for rows in (table.to_pydict() for table in read_tables(path, ["cluster_size", "row", "shard"]))
        for place, own in enumerate(rows["cluster_size"])
        if own == size
    )


def _versions(options: DedupOptions, asked: NearOptions, has_chats: bool) -> list[str]:
    is_compared = asked.threshold == 1 and asked.verify == "exact"
    return [SHINGLE_NORMALIZATION, *(["all are compared"] if is_compared else [])]


METHOD = Method(
    key="near",
    options=NearOptions,
    reason="near_dup",
    find=_find_near,
    tasks={
        "dedup.fingerprint": TaskFunction(FingerprintOptions, perform_fingerprint),
        "dedup.candidates": TaskFunction(PartitionOptions, perform_candidates),
        "dedup.extract": TaskFunction(ExtractOptions, perform_extract),
        "dedup.verify": TaskFunction(VerifyOptions, perform_verify),
    },
    facts=_facts,
    cached=(SIGNATURES,),
    versions=_versions,
)

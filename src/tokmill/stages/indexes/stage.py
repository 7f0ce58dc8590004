"""An index of what a run kept, as tasks.

    order of a mixture ─ stretch ─> turns-<t>      (shard, sequence) of the documents that it gives a turn,
                                                   it or any of its stages
    shard ─ sketch ─> sketched-<s>                 hash, sketch and keys of its documents, a run by hash
    range of the hashes ─ entries ─> entries-<p>, ids-<p>
                        ─ keys ────> keys-<p>      keys of the same documents, a run by key
    range of the keys ─ bands ─> bands-<q>

Texts are as cleaned: before passages, or lines of a site, were taken out of them. That is what deduplication
compares with it, and it does not depend on what else a run had.

The same tasks make an index of a run that a recipe names as its reference, for as long as the step lasts:
then `places-<p>` tell where the texts are, and a listing takes the place of the manifest.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import NO_DOCUMENTS, Json, Receipt, add_counts, file_entry, sum_counts
from tokmill.artifacts.step import (
    Conduct,
    Input,
    Made,
    Outcome,
    Stage,
    Step,
    Task,
    TaskFunction,
    TaskOptions,
    table_input,
)
from tokmill.artifacts.upstream import Shard, kept_inputs, list_shards
from tokmill.duplicates.shingling import HASH_NORMALIZATION
from tokmill.duplicates.sketches import SketchOptions, sketch
from tokmill.errors import DedupLimit
from tokmill.schema import one_piece
from tokmill.stages.build.stage import all_turns_of
from tokmill.stages.dedup.method import load_texts
from tokmill.stages.external.runs import (
    Layout,
    by_hash,
    hash_range,
    joined,
    load_between,
    load_numbered,
    open_runs,
    partitions_for,
    write_run,
)
from tokmill.stages.indexes.files import (
    BANDS,
    ENTRIES,
    HASH_BITS,
    MOST_DOCUMENTS,
    PLACES,
    Listing,
    Part,
    short_keys,
)
from tokmill.stages.tokens.reading import load_labels
from tokmill.storage.digests import table_sha256
from tokmill.storage.disk import commit_bytes
from tokmill.storage.tables import load_rows, open_arrow, write_arrow, write_for_rows

# Grows when the files of the same index may be others.
INDEX_VERSION = 1

# 80 bytes an entry and 64 of keys, three times over while they are sorted: 450 MB.
# A billion documents make 1,000 files of 80 MB.
ENTRIES_AT_ONCE = 1_000_000
BANDS_AT_ONCE = 8_000_000
# Turns of a mixture that are sorted at once.
_TURNS_AT_ONCE = 4_000_000

TURNS: Layout = {"shard": "<u8", "sequence": "<u4"}
KEYS: Layout = {"key": "<u8", "index": "<u4"}
IDS = pa.schema(
    [pa.field("source", pa.string(), nullable=False), pa.field("doc_id", pa.string(), nullable=False)]
)


class IndexOptions(msgspec.Struct, frozen=True, kw_only=True):
    """All that can change a byte of an index, besides the run."""

    name: str
    splits: tuple[str, ...]  # none: all
    ids: bool
    sketch: SketchOptions
    hash_normalization: str = HASH_NORMALIZATION
    version: int = INDEX_VERSION


class TurnsOptions(TaskOptions, frozen=True):
    first: int
    stop: int


class SketchTaskOptions(TaskOptions, frozen=True):
    number: int
    splits: tuple[int, ...]
    mixed: tuple[int, ...]  # of these splits: those that a mixture orders
    sketch: SketchOptions
    ids: bool


class EntriesOptions(TaskOptions, frozen=True):
    partition: int
    partitions: int
    sketch: SketchOptions
    ids: bool
    places: bool


class BandsOptions(TaskOptions, frozen=True):
    key: str  # of the file
    partition: int
    partitions: int
    starts: tuple[int, ...]


class ListingOptions(TaskOptions, frozen=True):
    listing: Listing


class MadeIndex(NamedTuple):
    lasting: list[Receipt]  # whose files make the index
    listing: Listing
    counts: Json
    shards: list[Shard]


def sketched_layout(options: SketchOptions) -> Layout:
    return {**ENTRIES, "row": "<u4", "keys": ("<u8", (options.bands,))}


Phases = Generator[list[Task], list[Receipt], MadeIndex]


def conduct(step: Step[IndexOptions], upstream: Mapping[str, Artifact]) -> Conduct:
    options = step.options
    made = yield from make_index(step.directory, upstream, options)
    files = [entry for receipt in made.lasting for entry in receipt.files]
    facts: Json = {
        "name": options.name,
        "documents": made.counts["kept"],
        "text_bytes": made.counts["text_bytes"],
        "without_words": made.counts["without_words"],
        "index_bytes": sum(entry.bytes for entry in files),
        "standard_error": f"{options.sketch.error:.5f}",
    }
    return Outcome(made.lasting, made.counts, facts)


def make_index(
    directory: Path,
    upstream: Mapping[str, Artifact],
    options: IndexOptions,
    *,
    prefix: str = "",
    places: bool = False,
) -> Phases:
    """The tasks, in turn. `prefix` comes before their keys, where others write into the directory too."""
    shards = list_shards(upstream)
    known = list(upstream["split"].manifest.facts["splits"])
    splits = [number for number, name in enumerate(known) if not options.splits or name in options.splits]
    # what any stage chose: turns of all of them are read as one
    mixed = {
        number: [turns[0] for turns in found]
        for number in splits
        if (found := all_turns_of(upstream, known[number]))
    }
    turned = yield [
        Task(
            function="index.turns",
            key=f"{prefix}t{number}-{at:05d}",
            options=TurnsOptions(first=first, stop=min(first + _TURNS_AT_ONCE, order.rows)),
            inputs=[order],
            directory=str(directory),
        )
        for number, orders in mixed.items()
        for at, (order, first) in enumerate(_stretches(orders))
    ]
    # the key says which split they are of
    turns = [
        table_input(f"turns {receipt.key.removeprefix(prefix)[1:].partition('-')[0]}", directory, entry)
        for receipt in turned
        for entry in receipt.files
    ]
    sketched = yield [
        Task(
            function="index.sketch",
            key=f"{prefix}s{shard.number:05d}",
            options=SketchTaskOptions(
                number=shard.number,
                splits=tuple(splits),
                mixed=tuple(mixed),
                sketch=options.sketch,
                ids=options.ids,
            ),
            inputs=[*inputs, *turns],
            directory=str(directory),
        )
        for shard, inputs in _labelled(upstream, shards)
    ]
    counts = add_counts(
        {**NO_DOCUMENTS, "text_bytes": 0, "without_words": 0, "splits": {}}, sum_counts(sketched)
    )
    counts["splits"] = {name: counts["splits"].get(str(n), 0) for n, name in enumerate(known) if n in splits}
    if counts["kept"] > MOST_DOCUMENTS:
        raise DedupLimit(
            f"{counts['kept']:,} documents, more than {MOST_DOCUMENTS:,}",
            where="tokmill index",
            next="index the run in parts, split by split: `tokmill index --splits`",
        )
    tables = {table: _tables(directory, sketched, table) for table in ("sketched", "names")}
    partitions = partitions_for(counts["kept"], ENTRIES_AT_ONCE, 1)
    of_entries = EntriesOptions(
        partition=0, partitions=partitions, sketch=options.sketch, ids=options.ids, places=places
    )
    made = yield [
        Task(
            function="index.entries",
            key=f"{prefix}{partition:05d}",
            options=replace(of_entries, partition=partition),
            inputs=[*tables["sketched"], *tables["names"]],
            directory=str(directory),
        )
        for partition in range(partitions)
    ]
    keyed = yield [
        Task(
            function="index.keys",
            key=f"{prefix}k{partition:05d}",
            options=replace(of_entries, partition=partition, ids=False, places=False),
            inputs=tables["sketched"],
            directory=str(directory),
        )
        for partition in range(partitions)
    ]
    keys = _tables(directory, keyed, "keys")
    entries = _tables(directory, made, "entries")
    partitions = partitions_for(sum(item.rows for item in keys), BANDS_AT_ONCE, 1)
    starts = (0, *itertools.accumulate(item.rows for item in entries))
    of_bands = BandsOptions(key="", partition=0, partitions=partitions, starts=starts[:-1])
    banded = yield [
        Task(
            function="index.bands",
            key=f"{prefix}b{partition:05d}",
            options=replace(of_bands, key=f"{prefix}{partition:05d}", partition=partition),
            inputs=keys,
            directory=str(directory),
        )
        for partition in range(partitions)
    ]
    lasting = [*made, *banded]
    listing = Listing(
        **{
            table: tuple(
                Part(entry.path, entry.rows)
                for receipt in lasting
                for entry in receipt.files
                if entry.table == table
            )
            for table in ("entries", "bands", "ids", "places")
        }
    )
    return MadeIndex(lasting, listing, counts, shards)


def _stretches(orders: Sequence[Input]) -> Iterator[tuple[Input, int]]:
    for order in orders:
        yield from ((order, first) for first in range(0, order.rows, _TURNS_AT_ONCE))


def _labelled(upstream: Mapping[str, Artifact], shards: Sequence[Shard]) -> list[tuple[Shard, list[Input]]]:
    """Every shard with its documents as cleaned, and its labels."""
    split = upstream["split"]
    labels = [table_input("labels", split.directory, entry) for entry in split.manifest.entries("labels")]
    kept = kept_inputs(upstream, list(shards))
    return [
        (shard, [*shard.inputs(), verdicts, label])
        for shard, verdicts, label in zip(shards, kept, labels, strict=True)
    ]


def _tables(directory: Path, receipts: Sequence[Receipt], table: str) -> list[Input]:
    return [
        table_input(table, directory, entry)
        for receipt in receipts
        for entry in receipt.files
        if entry.table == table
    ]


def perform_turns(task: Task[TurnsOptions]) -> Made:
    """Each document of the stretch once."""
    (path,) = task.paths("order")
    order = load_rows(path, task.options.first, task.options.stop)
    shard, sequence = (np.asarray(order.column(name)).astype(np.uint64) for name in ("shard", "sequence"))
    both = np.unique((shard << np.uint64(32)) | sequence)
    columns = [both >> np.uint64(32), both & np.uint64((1 << 32) - 1)]
    return Made([write_run(task, "turns", columns, TURNS)], {})


def _rows(task: Task[SketchTaskOptions]) -> tuple[Any, Json]:
    """Of the documents that are indexed, ascending; and how many are of each split."""
    labels, options = load_labels(task.inputs), task.options
    is_chosen = np.zeros(len(labels), np.bool_)
    counts: Json = {}
    for split in options.splits:
        rows = np.flatnonzero(labels == split)
        if split in options.mixed:
            runs = open_runs(task.inputs, f"turns {split}", TURNS)
            parts = load_between(runs, options.number, options.number + 1)
            rows = rows[np.unique(joined(parts, TURNS)[1])]
        is_chosen[rows] = True
        counts[str(split)] = len(rows)
    return np.flatnonzero(is_chosen), counts


def perform_sketch(task: Task[SketchTaskOptions]) -> Made:
    options = task.options
    rows, splits = _rows(task)
    marks = task.load("marks", ["exact_high", "exact_low", "bytes"])
    high, low, size = (np.asarray(marks.column(name))[rows] for name in marks.column_names)
    sketches = sketch(load_texts(task.inputs, rows), options.sketch)
    order = np.lexsort((rows, low, high))
    columns = [column[order] for column in (high, low, sketches.bits, rows, sketches.keys)]
    files = [write_run(task, "sketched", columns, sketched_layout(options.sketch))]
    if options.ids:
        documents = task.load("documents", IDS.names).take(pa.array(rows[order]))
        table = pa.table([one_piece(documents.column(name)) for name in IDS.names], schema=IDS)
        path = f"names-{task.key}.arrow"
        written = write_arrow(Path(task.directory) / path, table)
        digest = table_sha256(table)
        files.append(file_entry(path, "names", written, rows=len(rows), content_sha256=digest))
    counts = {**NO_DOCUMENTS, "in": len(rows), "kept": len(rows), "splits": splits}
    without = int((sketches.keys[:, 0] == 0).sum())
    return Made(files, {**counts, "text_bytes": int(size.sum()), "without_words": without})


class _Sorted(NamedTuple):
    """The documents of a range of hashes, in the order that numbers them."""

    order: Any
    columns: list[Any]  # as in their runs
    shard: Any
    ranges: list[list[int]]  # of each run


def _sorted(task: Task[EntriesOptions]) -> _Sorted:
    options, layout = task.options, sketched_layout(task.options.sketch)
    runs = open_runs(task.inputs, "sketched", layout)
    bounds = hash_range(options.partition, options.partitions, HASH_BITS)
    ranges = [run.find(bounds) for run in runs]
    parts = [run.read(start, stop) for run, (start, stop) in zip(runs, ranges, strict=True)]
    shard = np.repeat(np.arange(len(parts)), [len(part[0]) for part in parts])
    columns = joined(iter(parts), layout)
    del parts
    high, low, _, row, _ = columns
    order = np.lexsort((row, shard, low, high))
    return _Sorted(order, [column[order] for column in columns], shard[order], ranges)


def perform_entries(task: Task[EntriesOptions]) -> Made:
    options, found = task.options, _sorted(task)
    files = [write_run(task, "entries", found.columns[:3], ENTRIES)]
    if options.ids:
        slices = [
            open_arrow(path).slice(start, stop - start)
            for path, (start, stop) in zip(task.paths("names"), found.ranges, strict=True)
        ]
        table = pa.concat_tables([IDS.empty_table(), *slices]).take(pa.array(found.order)).combine_chunks()
        path = f"ids-{task.key}.parquet"
        written, digest = write_for_rows(Path(task.directory) / path, table), table_sha256(table)
        files.append(file_entry(path, "ids", written, rows=table.num_rows, content_sha256=digest))
    if options.places:
        files.append(write_run(task, "places", [found.shard, found.columns[3]], PLACES))
    return Made(files, {})


def perform_keys(task: Task[EntriesOptions]) -> Made:
    """Apart from the entries: they are scaffolding, and a receipt stands for files that last, or for none."""
    keys = _sorted(task).columns[4]
    index = np.repeat(np.arange(len(keys), dtype=np.uint32), task.options.sketch.bands)
    flat = keys.reshape(-1)
    flat, index = flat[flat != 0], index[flat != 0]
    order = by_hash(flat)
    return Made([write_run(task, "keys", [flat[order], index[order]], KEYS)], {})


def perform_bands(task: Task[BandsOptions]) -> Made:
    options = task.options
    runs = open_runs(task.inputs, "keys", KEYS)
    key, document = load_numbered(runs, KEYS, options.partition, options.partitions, options.starts)
    short = short_keys(key, options.partition, options.partitions)
    order = np.lexsort((document, short))
    # of a document that shares what is left of two keys, one is enough
    short, document = short[order], document[order].astype(np.uint32)
    is_new = np.ones(len(short), np.bool_)
    is_new[1:] = (short[1:] != short[:-1]) | (document[1:] != document[:-1])
    columns = [short[is_new], document[is_new]]
    return Made([write_run(task, "bands", columns, BANDS, key=options.key)], {})


def perform_listing(task: Task[ListingOptions]) -> Made:
    path = f"listing-{task.key}.json"
    data = msgspec.json.encode(task.options.listing)
    return Made([file_entry(path, "listing", commit_bytes(Path(task.directory) / path, data), rows=1)], {})


STAGE = Stage(
    "index",
    IndexOptions,
    conduct,
    {
        "index.turns": TaskFunction(TurnsOptions, perform_turns),
        "index.sketch": TaskFunction(SketchTaskOptions, perform_sketch),
        "index.entries": TaskFunction(EntriesOptions, perform_entries),
        "index.keys": TaskFunction(EntriesOptions, perform_keys),
        "index.bands": TaskFunction(BandsOptions, perform_bands),
        "index.listing": TaskFunction(ListingOptions, perform_listing),
    },
)

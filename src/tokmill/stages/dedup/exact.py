"""Exact duplicates as tasks: equal hashes, one range of them at a time.

    shard ─ marks ─> hashes-<s>                 a run by hash: row and rank of what is considered
    range p of the hashes ─ equal? ─> matches-<p>       duplicate -> survivor, by shard

Memory is bounded by a range, and there are as many of them as the documents call for.

Who comes first: of equal or similar documents, the one that is kept.

    rank = source priority, then the policy's own key, then position (ties are by number everywhere)

    first     position alone
    longest   most characters
    newest    latest created_at, as far as its digits say (2024-05-01T12:00 as 202405011200); without one, last
    best      farthest from being dropped: the least margin over all rules, in shares of their bounds; then longest

A rank is an int64, the least is kept first. Shards are ranked one by one: nothing needs the whole corpus.

What deduplication is asked for; who is considered for it in a shard, and who comes before whom.

Benchmark items in documents, as tasks: one per shard, each with the whole index in memory.

benchmark files ─ index ─┐
shard ───────────────────┴─> contamination-<s>  item, place, share      contaminated-<s>  rows to drop
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Json, Receipt
from tokmill.artifacts.step import (
    Artifact,
    Input,
    Made,
    Shard,
    Step,
    Task,
    TaskFunction,
    TaskOptions,
    table_input,
    write_shard_table,
    write_task_table,
)
from tokmill.clean.edits import apply_edits
from tokmill.clean.examine import CleanOptions
from tokmill.clean.rules import Rule, columns_of
from tokmill.duplicates.decontaminate import (
    AgainstOptions,
    BenchmarkIndex,
    Items,
    contaminated_rows,
    find_contamination,
    load_benchmark,
    ngram_index,
)
from tokmill.duplicates.near import NearOptions
from tokmill.duplicates.shingling import WORD_NORMALIZATION, match_equal
from tokmill.duplicates.window import WindowOptions
from tokmill.kernels import hashing
from tokmill.schema import CONTAMINATION, DROPS, EDITS, MATCHES, one_piece, string_column
from tokmill.stages.external import (
    Layout,
    hash_range,
    joined,
    load_between,
    open_runs,
    partitions_for,
    write_run,
)
from tokmill.storage.location import InputFile
from tokmill.storage.tables import load_range, load_table

KeepRule = Literal["first", "longest", "newest", "best"]
Ranks = NDArray[np.int64]

# 15 bits for the place in the list of priorities, 48 for the policy's key.
_KEY_BITS = 48
_MAX_KEY = (1 << _KEY_BITS) - 1
_NOT_DIGITS = re.compile(r"\D")
_DATE_DIGITS = 14  # down to the second: below 2^48
_MARGIN_STEPS = 1 << 15
_MAX_CHARS = (1 << 32) - 1


def priority_of(source: str, priorities: Sequence[str]) -> int:
    """Listed sources in their order, then all others alike."""
    return priorities.index(source) if source in priorities else len(priorities)


def rank_documents(
    keep: KeepRule,
    priority: int,
    chars: NDArray[np.int64],
    *,
    created_at: Any = None,
    measures: Mapping[str, NDArray[Any]] | None = None,
    rules: Sequence[Rule] = (),
) -> Ranks:
    if keep == "first":
        keys = np.zeros(len(chars), np.int64)
    elif keep == "longest":
        keys = _MAX_CHARS - np.minimum(chars, _MAX_CHARS)
    elif keep == "newest":
        keys = _MAX_KEY - np.array([_date_key(date) for date in created_at.to_pylist()], np.int64)
    else:
        keys = _best_keys(chars, measures or {}, rules)
    return (np.int64(priority) << np.int64(_KEY_BITS)) + keys


def _date_key(date: str | None) -> int:
    digits = _NOT_DIGITS.sub("", date or "")[:_DATE_DIGITS]
    return int(digits.ljust(_DATE_DIGITS, "0")) if len(digits) >= 4 else 0


def _best_keys(
    chars: NDArray[np.int64], measures: Mapping[str, NDArray[Any]], rules: Sequence[Rule]
) -> Ranks:
    margin = np.full(len(chars), 1.0)
    for rule in rules:
        if rule.column in measures:
            values = rule.margins(measures[rule.column].astype(np.float64))
            margin = np.minimum(margin, values / max(abs(rule.threshold), 1e-9))
    steps = (np.clip(margin, 0.0, 1.0) * (_MARGIN_STEPS - 1)).astype(np.int64)
    longest = _MAX_CHARS - np.minimum(chars, _MAX_CHARS)
    keys: Ranks = ((_MARGIN_STEPS - 1 - steps) << np.int64(32)) + longest
    return keys


# Tables of who goes already.
EARLIER = ("contaminated", "matches", "near")


# A scope besides those of a recipe: documents of several sources in one, told apart by what their records said.
OWN_SOURCE = "own-source"

Policy = Literal["first", "longest", "newest", "best"]


class DedupOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`dedup` of a recipe: all that can change a verdict."""

    exact: bool
    near: NearOptions | None
    window: WindowOptions | None
    against: AgainstOptions | None
    scope: Literal["global", "per-source", "own-source"]
    keep: Policy
    priority: tuple[str, ...]
    reference: tuple[str, ...]
    max_cluster: int | None
    max_source_loss: Decimal | None
    partitions: int

    @property
    def by_source(self) -> bool:
        """Whether each record says which source it is compared within."""
        return self.scope == OWN_SOURCE

    def groups(self, shards: Sequence[Shard]) -> list[int]:
        """Of each shard the number of its source, from 1, where sources are kept apart; else 0."""
        if self.scope != "per-source":
            return [0] * len(shards)
        sources = list(dict.fromkeys(shard.source for shard in shards))
        return [sources.index(shard.source) + 1 for shard in shards]


@dataclass(frozen=True)
class DedupExtra:
    against: list[InputFile]  # the benchmarks
    warn_source_loss: Decimal | None = None


DedupStep = Step[DedupOptions, DedupExtra]


class Keep(msgspec.Struct, frozen=True):
    """Who comes before whom in a shard; the rules are those of its source, for `best`."""

    policy: Policy
    priority: int
    rules: tuple[Rule, ...]


class Considered(NamedTuple):
    """What a task needs to know and to read of one shard."""

    shard: Shard
    keep: Keep
    inputs: list[Input]


class Ranked(NamedTuple):
    """The considered documents of a shard, in row order."""

    rows: NDArray[np.int64]
    ranks: NDArray[np.int64]
    texts: Any


def keep_of(dedup: DedupOptions, shard: Shard, upstream: Mapping[str, Artifact]) -> Keep:
    """Reference sources come before all others."""
    priority = priority_of(shard.source, [*dedup.reference, *dedup.priority])
    rules: tuple[Rule, ...] = ()
    if dedup.keep == "best":
        rules = upstream[f"clean/{shard.source}"].manifest.options(CleanOptions).sieve.rules
    return Keep(dedup.keep, priority, rules)


def rank_inputs(dedup: DedupOptions, shard: Shard, upstream: Mapping[str, Artifact]) -> list[Input]:
    """What ranking reads besides the marks: dates are in the documents, margins in the measures."""
    if dedup.keep == "newest":
        return [shard.documents]
    if dedup.keep == "best":
        cleaned = upstream[f"clean/{shard.source}"]
        path = f"measures-{shard.key}.parquet"
        return [
            table_input("measures", cleaned.directory, entry)
            for entry in cleaned.manifest.entries("measures")
            if entry.path == path
        ]
    return []


def scope_salts(task: Task, rows: NDArray[np.int64], *, group: int, by_source: bool) -> Any:
    """What moves the hashes of documents that must not meet: one number for the shard, or one per document."""
    if not by_source:
        return np.uint64((group * 0x9E3779B97F4A7C15) & (2**64 - 1))
    sources = task.load("documents", ["source"]).column("source").take(pa.array(rows))
    state = np.zeros((len(rows), 2), np.uint64)
    hashing.mix_column(*string_column(sources), state)
    return np.ascontiguousarray(state[:, 0])


def load_ranks(inputs: Sequence[Input], keep: Keep) -> NDArray[np.int64]:
    """One rank per row of the shard; that of a document which cleaning did not keep says nothing."""
    paths = {item.role: Path(item.path) for item in inputs}
    chars = np.asarray(load_table(paths["marks"], ["chars"]).column("chars"))
    dates = measures = None
    if keep.policy == "newest":
        dates = one_piece(load_table(paths["documents"], ["created_at"]).column("created_at"))
    if keep.policy == "best" and "measures" in paths:
        measures = columns_of(load_table(paths["measures"]))
    return rank_documents(
        keep.policy, keep.priority, chars, created_at=dates, measures=measures, rules=list(keep.rules)
    )


def load_ranked(inputs: Sequence[Input], number: int, keep: Keep) -> Ranked:
    """Kept by cleaning and not dropped by an earlier look of this step (its tables are sorted by shard)."""
    paths = {item.role: Path(item.path) for item in inputs}
    considered = np.asarray(load_table(paths["marks"], ["kept"]).column("kept")).copy()
    for item in inputs:
        if item.role in EARLIER:
            considered[np.asarray(load_range(Path(item.path), "shard", number).column("row"))] = False
    rows = np.flatnonzero(considered)
    texts = one_piece(load_table(paths["documents"], ["text"]).column("text"))
    edits = load_table(paths["edits"], ["row", "text"]) if "edits" in paths else EDITS.empty_table()
    texts = apply_edits(texts, np.asarray(edits.column("row")), one_piece(edits.column("text")), rows)
    return Ranked(rows, load_ranks(inputs, keep)[rows], texts)


HASHES: Layout = {"high": "<u8", "low": "<u8", "rank": "<i8", "row": "<u4"}

# 28 bytes a document, and four times that to sort them. A billion documents make 1,000 ranges.
HASHES_AT_ONCE = 1_000_000
# Ranges are told apart by the upper 32 bits, as `partition_of` does it.
_RANGE_BITS = 32

Phase = Generator[list[Task], list[Receipt], list[Receipt]]


def _all_of(options: DedupOptions, shard: Shard) -> list[Input]:
    return shard.inputs()


class Method(NamedTuple):
    """One way to find documents that say what another one already says."""

    key: str  # of `dedup` in a recipe; what is asked for, in DedupOptions
    table: str  # of files that tell who goes, and for whom (schema.DROPS)
    reason: str  # of such a drop
    find: Callable[
        [DedupStep, Any, Sequence[Considered]], Phase
    ]  # what is asked for, and what is left to look at
    tasks: Mapping[str, TaskFunction[Any]]
    kernels: frozenset[str] = frozenset()
    facts: Callable[[DedupStep, Sequence[Receipt]], Json] | None = (
        None  # for the manifest; may refuse what it sees
    )
    reads: Callable[[DedupOptions, Shard], list[Input]] = _all_of


class HashOptions(TaskOptions, frozen=True):
    number: int
    keep: Keep
    by_source: bool = False


class MatchOptions(TaskOptions, frozen=True):
    partition: int
    partitions: int
    groups: tuple[int, ...]  # per shard, likewise the others
    shards: tuple[str, ...]
    is_reference: tuple[bool, ...]


def _find_equal(step: DedupStep, asked: Literal[True], considered: Sequence[Considered]) -> Phase:
    """The receipts of all ranges."""
    options, shards, directory = step.options, [one.shard for one in considered], str(step.directory)
    hashed = yield [
        Task(
            function="dedup.hashes",
            key=f"h{shard.number:05d}",
            options=HashOptions(number=shard.number, keep=keep, by_source=options.by_source),
            inputs=inputs,
            directory=directory,
        )
        for shard, keep, inputs in considered
    ]
    hashes = [table_input("hashes", step.directory, receipt.files[0]) for receipt in hashed]
    documents = sum(item.rows for item in hashes)
    partitions = partitions_for(documents, HASHES_AT_ONCE, options.partitions)
    whole = MatchOptions(
        partition=0,
        partitions=partitions,
        groups=tuple(max(group - 1, 0) for group in options.groups(shards)),
        shards=tuple(shard.name for shard in shards),
        is_reference=tuple(shard.source in options.reference for shard in shards),
    )
    return (
        yield [
            Task(
                function="dedup.match",
                key=f"p{partition:04d}",
                options=replace(whole, partition=partition),
                inputs=hashes,
                directory=directory,
            )
            for partition in range(partitions)
        ]
    )


def perform_hashes(task: Task[HashOptions]) -> Made:
    marks = task.load("marks", ["kept", "exact_high", "exact_low"])
    kept = np.asarray(marks.column("kept")).copy()
    for drops in task.paths("contaminated"):
        kept[np.asarray(load_range(drops, "shard", task.options.number).column("row"))] = False
    rows = np.flatnonzero(kept)
    high, low = (np.asarray(marks.column(name))[rows] for name in ("exact_high", "exact_low"))
    if task.options.by_source:
        high = high ^ scope_salts(task, rows, group=0, by_source=True)
    order = np.argsort(high, kind="stable")
    ranks = load_ranks(task.inputs, task.options.keep)[rows]
    columns = [column[order] for column in (high, low, ranks, rows)]
    return Made([write_run(task, "hashes", columns, HASHES)], {})


def perform_match(task: Task[MatchOptions]) -> Made:
    """Duplicates within one range of the hash space."""
    options = task.options
    bounds = hash_range(options.partition, options.partitions, _RANGE_BITS)
    parts = list(load_between(open_runs(task.inputs, "hashes", HASHES), *bounds))
    shard = np.repeat(
        np.arange(len(parts), dtype=np.uint32), np.array([len(part[0]) for part in parts], np.int64)
    )
    high, low, rank, row = joined(iter(parts), HASHES)
    del parts
    # positions decide between equal ranks, and a run is in order of its hashes
    by_position = np.lexsort((row, shard))
    high, low, rank, row = (column[by_position] for column in (high, low, rank, row))
    group = np.asarray(options.groups, np.uint32)[shard]
    found = match_equal(high, low, group, rank)
    may_go = ~np.asarray(options.is_reference, np.bool_)[shard[found.duplicates]]
    duplicates, survivors = found.duplicates[may_go], found.survivors[may_go]
    in_order = np.lexsort((row[duplicates], shard[duplicates]))
    duplicates, survivors = duplicates[in_order], survivors[in_order]
    names = pa.array(options.shards, pa.string())
    table = pa.table(
        [
            shard[duplicates],
            row[duplicates],
            names.take(pa.array(shard[survivors])),
            row[survivors],
        ],
        schema=MATCHES,
    )
    return Made([write_task_table(task, "matches", table, "shard")], {})


class ContaminationOptions(TaskOptions, frozen=True):
    against: AgainstOptions
    names: tuple[str, ...]  # of the benchmark files
    number: int
    keep: Keep


def _find_contaminated(step: DedupStep, asked: AgainstOptions, considered: Sequence[Considered]) -> Phase:
    against = replace(asked, normalization=WORD_NORMALIZATION)
    files = [
        Input("benchmark", str(file.path), step.files[f"against {file.name}"]) for file in step.extra.against
    ]
    names = tuple(file.name for file in step.extra.against)
    return (
        yield [
            Task(
                function="dedup.contamination",
                key=f"b{shard.number:05d}",
                options=ContaminationOptions(against=against, names=names, number=shard.number, keep=keep),
                inputs=[*inputs, *files],
                directory=str(step.directory),
            )
            for shard, keep, inputs in considered
        ]
    )


def perform_contamination(task: Task[ContaminationOptions]) -> Made:
    options, against = task.options, task.options.against
    paths = tuple(str(path) for path in task.paths("benchmark"))
    digests = tuple(item.content_sha256 for item in task.inputs if item.role == "benchmark")
    items, index = _index(paths, digests, against.fields, against.ngram, against.min_words)
    ranked = load_ranked(task.inputs, options.number, options.keep)
    hits = find_contamination(ranked.texts, index)
    labels = [f"{options.names[items.files[item]]}:{items.records[item]}" for item in hits.items.tolist()]
    table = pa.table(
        [ranked.rows[hits.rows].astype(np.uint32), labels, hits.starts, hits.ends, hits.grams, hits.share],
        schema=CONTAMINATION,
    )
    is_dropped = np.zeros(len(ranked.rows), np.bool_)
    if against.policy == "drop":
        is_dropped = contaminated_rows(hits, len(ranked.rows), float(against.min_share))
    drops = _drops(options.number, ranked.rows, is_dropped, hits, labels)
    entry = write_task_table(task, "contaminated", drops, "shard")
    found = write_shard_table(task.directory, f"contamination-{task.key}.parquet", "contamination", table)
    return Made(
        [entry, found], {}, {"documents": len(np.unique(hits.rows)), "unused_items": len(index.unused)}
    )


def _drops(number: int, rows: Any, is_dropped: Any, hits: Any, labels: list[str]) -> Any:
    """Each dropped row with the item of which it holds most."""
    order = np.lexsort((np.arange(len(hits.rows)), -hits.share, hits.rows))
    _, first = np.unique(hits.rows[order], return_index=True)
    best = {int(hits.rows[order[at]]): int(order[at]) for at in first.tolist()}
    chosen = np.flatnonzero(is_dropped)
    told = [best[row] for row in chosen.tolist()]
    return pa.table(
        {
            "shard": pa.array(np.full(len(chosen), number, np.uint32)),
            "row": pa.array(rows[chosen].astype(np.uint32)),
            "survivor_shard": pa.nulls(len(chosen), pa.string()),
            "survivor_row": pa.nulls(len(chosen), pa.uint32()),
            "similarity": pa.array([float(hits.share[hit]) for hit in told], pa.float64()),
            "cluster": pa.nulls(len(chosen), pa.int64()),
            "cluster_size": pa.nulls(len(chosen), pa.int64()),
            "detail": pa.array(
                [f"{labels[hit]} at bytes {hits.starts[hit]}-{hits.ends[hit]}" for hit in told], pa.string()
            ),
        },
        schema=DROPS,
    )


@functools.lru_cache(maxsize=2)
def _index(
    paths: tuple[str, ...], digests: tuple[str, ...], fields: tuple[str, ...], ngram: int, min_words: int
) -> tuple[Items, BenchmarkIndex]:
    """Once per worker process; the digests say which bytes are meant."""
    items = load_benchmark([Path(path) for path in paths], fields)
    return items, ngram_index(items, ngram, min_words)


def _contamination_facts(step: DedupStep, receipts: Sequence[Receipt]) -> Json:
    return {
        "documents": sum(receipt.facts["documents"] for receipt in receipts),
        "unused_items": max((receipt.facts["unused_items"] for receipt in receipts), default=0),
    }


EXACT = Method(
    key="exact",
    table="matches",
    reason="exact_dup",
    find=_find_equal,
    tasks={
        "dedup.hashes": TaskFunction(HashOptions, perform_hashes),
        "dedup.match": TaskFunction(MatchOptions, perform_match),
    },
    # hashes are in the marks; which source a document says it is of, in the documents
    reads=lambda options, shard: [shard.marks, *([shard.documents] if options.by_source else [])],
)

AGAINST = Method(
    key="against",
    table="contaminated",
    reason="contaminated",
    find=_find_contaminated,
    tasks={"dedup.contamination": TaskFunction(ContaminationOptions, perform_contamination)},
    kernels=frozenset({"windows", "passages"}),
    facts=_contamination_facts,
)

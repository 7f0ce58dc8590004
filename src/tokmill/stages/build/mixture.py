"""Mixture: which documents are built, and in which order,
so that every stretch has the shares that were asked for.

shards of a large split ─ sorted runs, by tasks of their own (`runs`)
lengths of a split ─ schedule by weight, to the target
    ─┬> order-<split>.parquet           shard, sequence: one row per turn
     └> turns-<split>-00000.parquet …   the same turns, for builds: where the ids begin, how many, whose

Documents come out of each source in the order of their turns and go straight into the files:
memory does not grow with the corpus.

A target is for all splits together: each has its part. Where a source repeats, so do its documents. Held-out
splits take the same weights as far as they go: what they lack is renormalized, never repeated, and never
stops a run.

A source as a mixture sees it: its documents in the order of each epoch, and those that were taken, once more.

    lengths-<shard> … ─ mark by the keyed hash of the id ─ sort ─> lengths of an epoch, in batches  read_epoch
    sorted runs … ──────────────────────────────────────── merge ─┘ └─ kept until they are passed
                                                                       ─> taken: TURNS and their place

Two things are held: what the schedule has not passed yet, and what sorting holds.
Both are bounded by constants.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import asdict
from msgspec.structs import replace as replace_fields
from numpy.typing import NDArray

from tokmill.artifacts.manifest import FileEntry, Json, Receipt, sum_counts
from tokmill.artifacts.step import (
    Artifact,
    Conduct,
    Input,
    Made,
    Outcome,
    Stage,
    Step,
    Task,
    TaskFunction,
    tables_of,
    usable_receipts,
    write_shard_table,
)
from tokmill.packing.mixture import (
    STARVED,
    Exhausted,
    Holding,
    Limit,
    Mixture,
    Part,
    Target,
    Unit,
    limit_of_weights,
    natural_mixture,
    split_budget,
)
from tokmill.packing.schedule import (
    Offered,
    Scheduling,
    Summary,
    TurnBatch,
    refuse_long_documents,
)
from tokmill.schema import ORDER, one_piece
from tokmill.stages.build.documents import TURNS
from tokmill.stages.build.runs import (
    MARK,
    RUNS,
    RunOptions,
    Runs,
    Taken,
    is_place,
    joined,
    load_documents,
    mark_documents,
    open_runs,
    perform_run,
)
from tokmill.stages.build.scored import (
    LEFT_OUT,
    SCORES,
    ByScore,
    SelectByScore,
    perform_select,
    score_inputs,
    times_of,
)
from tokmill.stages.external import open_table, sort_tables
from tokmill.stages.sampling import HashSplit, SplitOptions
from tokmill.stages.tokens.stage import shards_of_split
from tokmill.stages.warnings import tell
from tokmill.storage.tables import id_hashes, load_table

# In memory of all sources together, while their runs are merged.
_MERGE_ROWS = 1 << 19


# How often each document of a shard is offered in an epoch, by the number of the shard; None: once.
Times = Callable[[int], NDArray[np.int64]]

_COPY = np.uint64(0x9E3779B97F4A7C15)


class StreamOptions(NamedTuple):
    """What the streams of a mixture have in common."""

    order: Literal["shuffle", "corpus"]
    seed: int
    unit: Unit
    directory: Path
    sources: int  # that share the memory


class SourceStream:
    """The documents of the shards of one source: their numbers, and where their lengths are."""

    def __init__(
        self,
        name: str,
        domain: str,
        shards: list[tuple[int, Path]],
        options: StreamOptions,
        runs: Runs | None = None,
        times: Times | None = None,
    ) -> None:
        """`runs`: the same documents, where they were sorted before."""
        self._name, self._shards, self._options, self._runs = name, shards, options, runs
        self._times = times
        self.documents = self.offered = self.left_out = tokens = longest = 0
        self.tokens_once = 0  # of documents that are offered at all
        self._is_taken: dict[int, NDArray[np.uint8]] = {}  # of each shard, a bit for each document
        for number, lengths in zip(self._numbers(), self._lengths(), strict=True):
            refuse_long_documents(lengths, name)
            often = np.ones(len(lengths), np.int64) if times is None else times(number)
            self.documents += len(lengths)
            self.offered += int(often.sum())
            self.left_out += int((often == 0).sum())
            self.tokens_once += int(lengths[often > 0].sum())
            tokens += int((lengths * often).sum())
            longest = max(longest, int(lengths[often > 0].max(initial=0)))
            if times is not None:
                self._is_taken[number] = np.zeros(-(-len(lengths) // 8), np.uint8)
        self.holding = Holding(name, domain, tokens, longest)
        self._read = 0
        self._waiting: deque[tuple[int, Any]] = deque()  # position of the first row, rows

    def read_epoch(self, epoch: int) -> Iterator[Offered]:
        for table in self._tables() if self._options.order == "corpus" else self._shuffled(epoch):
            self._waiting.append((self._read, table))
            self._read += table.num_rows
            lengths = np.asarray(table.column("tokens"))
            match self._options.unit:
                case "documents":
                    yield Offered(lengths, np.ones(len(lengths), np.int64))
                case "megabytes":
                    yield Offered(lengths, np.asarray(table.column("text_bytes")))
                case _:
                    yield Offered(lengths)

    def take(self, positions: NDArray[np.int64]) -> Taken:
        """The documents at these positions, ascending; nobody asks for one of them or before them again."""
        found = []
        while len(positions):
            assert self._waiting, f"{self._name}: {len(positions)} documents that were not read"
            first, table = self._waiting[0]
            stop = int(np.searchsorted(positions, first + table.num_rows))
            mine, positions = positions[:stop] - first, positions[stop:]
            if len(mine) and int(mine[-1]) - int(mine[0]) == len(mine) - 1:
                found.append(table.slice(int(mine[0]), len(mine)))
            else:
                found.append(table.take(pa.array(mine)))
            if len(positions) or int(mine[-1]) == table.num_rows - 1:
                self._waiting.popleft()
        for table in found if self._times is not None else ():
            self._note(table)
        return joined([self._documents(table) for table in found if table.num_rows])

    def distinct(self, turns: int) -> int:
        """How many different documents have had a turn, of so many turns.

        A source begins an epoch when all its documents have had their turn: none of them is passed over
        before the last epoch, where the room that is left may be too small. So there are as many different
        documents as turns, up to all; where some repeat within an epoch, they are counted one by one.
        """
        if self._times is None:
            return min(turns, self.documents)
        return sum(int(np.unpackbits(bits).sum()) for bits in self._is_taken.values())

    def _note(self, table: Any) -> None:
        shards, rows = (np.asarray(one_piece(table.column(name))) for name in ("shard", "sequence"))
        for number in np.unique(shards).tolist():
            mine = rows[shards == number].astype(np.int64)
            np.bitwise_or.at(self._is_taken[number], mine >> 3, (1 << (mine & 7)).astype(np.uint8))

    def _numbers(self) -> Iterator[int]:
        if self._runs is not None:
            yield from range(len(self._runs.lengths))  # of runs, which no document repeats in
        else:
            yield from (number for number, _ in self._shards)

    def _documents(self, table: Any) -> Taken:
        if self._runs is not None and is_place(table):
            return self._runs.take(table)
        return Taken(table, np.arange(table.num_rows))

    def _lengths(self) -> Iterator[NDArray[np.int64]]:
        if self._runs is not None:
            yield from self._runs.lengths
        else:
            for _, path in self._shards:
                yield np.asarray(load_table(path, ["tokens"]).column("tokens"))

    def _shuffled(self, epoch: int) -> Iterator[Any]:
        memory = _MERGE_ROWS // self._options.sources
        if self._runs is not None and not epoch:
            yield from self._runs.read(memory)
            return

        def marked() -> Iterator[Any]:
            first = 0
            for table, copies in self._copied():
                identities = id_hashes(table.column("doc_id"))
                if copies is not None:  # each copy has a place of its own
                    identities = identities ^ (copies.astype(np.uint64) * _COPY)
                yield mark_documents(
                    table, identities, self._name, self._options.seed, epoch, first, self.offered
                )
                first += table.num_rows

        for table in sort_tables(marked(), MARK.name, self.offered, self._options.directory, memory):
            yield table.drop_columns([MARK.name])

    def _tables(self) -> Iterator[Any]:
        """In the order of the corpus; a document that repeats stands there so often."""
        yield from (table for table, _ in self._copied())

    def _copied(self) -> Iterator[tuple[Any, NDArray[np.int64] | None]]:
        for number, path in self._shards:
            table = load_documents(number, path)
            if self._times is None:
                yield table, None
                continue
            often = self._times(number)
            rows = np.repeat(np.arange(table.num_rows), often)
            copies = np.arange(len(rows)) - np.repeat(np.cumsum(often) - often, often)
            yield table.take(pa.array(rows)).combine_chunks(), copies


# Turns of a part: a quarter of the documents that a build plans at once, some 20 MB of names and numbers.
_PART_TURNS = 1 << 18


class MixtureOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`mixture` of a recipe. Weights are exact fractions, as text: "1/4"."""

    domains: dict[str, str] | None  # None: by what they have
    sources: dict[str, dict[str, str]]  # within a domain
    domain_of: dict[str, str]
    target: tuple[Unit, int] | None
    exhausted: Exhausted
    max_epochs: int
    order: Literal["shuffle", "corpus"]
    held_out: Literal["mixed", "whole"] = "mixed"
    seed: int
    seq_len: int | msgspec.UnsetType = msgspec.UNSET  # of a target in blocks
    # of a target in blocks, told so that mixtures of before, which came short of them, are made again
    met: Literal["from above"] | msgspec.UnsetType = msgspec.UNSET
    chosen: ByScore | msgspec.UnsetType = msgspec.UNSET  # of training, where a score says how often


class SplitMixtureOptions(MixtureOptions, frozen=True, kw_only=True):
    """The same for one split."""

    is_held_out: bool
    amount: int | None  # its part of the target
    shards: tuple[tuple[int, str], ...]  # number and source
    least: int | msgspec.UnsetType | None = msgspec.UNSET  # of a selection: the smallest key that is in it


def conduct(step: Step[MixtureOptions], upstream: Mapping[str, Artifact]) -> Conduct:
    options = step.options
    splits = upstream["tokens"].manifest.facts["splits"]
    mixed = splits[:1] if options.held_out == "whole" else splits
    targets = _targets(options, mixed, upstream)
    tasks: list[Task] = []
    for split in mixed:
        shards = shards_of_split(upstream, split)
        if not shards or targets.get(split) == 0:
            continue
        own = SplitMixtureOptions(
            **asdict(options),
            is_held_out=split != splits[0],
            amount=targets.get(split),
            shards=tuple((shard.number, shard.source) for shard in shards),
        )
        inputs = [shard.lengths for shard in shards]
        if options.chosen:
            if split != splits[0]:
                own = replace_fields(own, chosen=msgspec.UNSET)
            else:
                inputs += score_inputs(upstream, [shard.number for shard in shards], options.chosen)
                if isinstance(options.chosen, SelectByScore):
                    (picked,) = yield [_select_task(step, own, inputs)]
                    own = replace_fields(own, least=picked.facts["least"])
        tasks.append(
            Task(function="mixture", key=split, options=own, inputs=inputs, directory=str(step.directory))
        )
    receipts = yield from _perform_mixtures(step, tasks)
    facts: Json = {"splits": {receipt.key: receipt.facts for receipt in receipts}}
    limit = limit_of_mixture(options, facts["splits"].get(splits[0]))
    if limit is not None and limit.is_starved:
        facts["warnings"] = [f"{limit}; {STARVED}"]
        tell(step.name, facts["warnings"])
    return Outcome(receipts, sum_counts(receipts), facts)


# Reading, hashing and sorting are four fifths of a mixture: tasks of so many documents share it. Fewer than
# three of them are not worth another round of tasks.
_SORTED_AT_ONCE = 1 << 15


def _perform_mixtures(
    step: Step[MixtureOptions], wholes: list[Task[SplitMixtureOptions]]
) -> Generator[list[Task], list[Receipt], list[Receipt]]:
    """The receipts of these tasks; of large ones, documents are sorted before, by tasks of their own."""
    large = [whole for whole in wholes if _is_large(whole)]
    done = usable_receipts(step.directory, [whole.fingerprint for whole in large])
    sorting = [_run_tasks(whole) for whole in large if whole.fingerprint not in done]
    runs = {}
    if sorting:
        made = iter((yield [task for tasks in sorting for task in tasks]))
        for tasks in sorting:
            own = list(itertools.islice(made, len(tasks)))
            runs[tasks[0].key.partition(".")[0]] = tables_of(step, own, RUNS)
    asked = [
        replace_fields(whole, inputs=[*whole.inputs, *runs.get(whole.key, [])])
        for whole in wholes
        if whole.fingerprint not in done
    ]
    found = {receipt.key: receipt for receipt in (yield asked)} if asked else {}
    # the order is that of the documents, whoever sorted them
    return [
        done.get(whole.fingerprint) or replace_fields(found[whole.key], fingerprint=whole.fingerprint)
        for whole in wholes
    ]


def _is_large(whole: Task[SplitMixtureOptions]) -> bool:
    rows = sum(item.rows for item in whole.inputs)
    return whole.options.order == "shuffle" and not whole.options.chosen and rows >= 3 * _SORTED_AT_ONCE


def _run_tasks(whole: Task[SplitMixtureOptions]) -> list[Task]:
    """Of whole shards of one source, in their order."""
    by_source: dict[str, list[tuple[int, Input]]] = {}
    for (number, source), item in zip(whole.options.shards, whole.inputs, strict=True):
        by_source.setdefault(source, []).append((number, item))
    tasks: list[Task] = []
    for source, shards in by_source.items():
        documents, first = sum(item.rows for _, item in shards), 0
        while shards:
            ends = np.cumsum([item.rows for _, item in shards])
            count = int(np.searchsorted(ends, _SORTED_AT_ONCE)) + 1
            mine, shards = shards[:count], shards[count:]
            options = RunOptions(
                source=source,
                seed=whole.options.seed,
                shards=tuple(number for number, _ in mine),
                first=first,
                documents=documents,
            )
            tasks.append(
                replace_fields(
                    whole,
                    function="mixture.run",
                    key=f"{whole.key}.run-{len(tasks):05d}",
                    options=options,
                    inputs=[item for _, item in mine],
                )
            )
            first += sum(item.rows for _, item in mine)
    return tasks


def limit_of_mixture(options: MixtureOptions, facts: Json | None) -> Limit | None:
    """Who ended the mixture of a split, as its manifest tells it; None where a target did."""
    if options.target is not None or not facts:
        return None
    return limit_of_weights(
        {
            source: Part(options.domain_of[source], told["wanted"], told["available"], told["tokens"])
            for source, told in facts["sources"].items()
        },
        options.sources,
    )


def perform_mixture(task: Task[SplitMixtureOptions]) -> Made:
    options, streams = task.options, _streams(task)
    holdings = [stream.holding for stream in streams]
    mixture = _mixture(options, holdings)
    exhausted = options.exhausted
    if options.is_held_out:
        exhausted = "stop" if options.target is None else "renormalize"
    target = None
    if options.target is not None and options.amount is not None:
        target = Target(options.target[0], options.amount)
    scheduling = Scheduling(
        streams,
        mixture,
        target,
        exhausted=exhausted,
        max_epochs=options.max_epochs,
        seq_len=None if options.seq_len is msgspec.UNSET else options.seq_len,
    )
    parts: list[FileEntry] = []
    with open_table(task, f"order-{task.key}.parquet", "order", ORDER, by="shard") as order:
        for part in _parts(_taken(streams, turns) for turns in scheduling):
            order.append(part.select(ORDER.names))
            name = f"turns-{task.key}-{len(parts):05d}.parquet"
            parts.append(write_shard_table(task.directory, name, "turns", part.select(TURNS.names)))
    found = scheduling.summary
    facts = _facts(found)
    if options.chosen:
        if options.least is not msgspec.UNSET:
            facts["least"] = options.least
        for number, stream in enumerate(streams):
            facts["sources"][found.names[number]] |= {
                "tokens_once": stream.tokens_once,
                "seen": round(found.tokens[number] / stream.tokens_once, 6) if stream.tokens_once else 0.0,
                "left_out": stream.left_out,
            }
    if options.target is not None and options.target[0] == "blocks":
        facts["blocks"] = options.amount
    return Made([order.entry, *parts], _counts(found, streams), facts)


def _streams(task: Task[SplitMixtureOptions]) -> list[SourceStream]:
    """The documents of each source, in the order of the recipe."""
    options, by_source = task.options, dict[str, list[tuple[int, Path]]]()
    for (number, source), path in zip(options.shards, task.paths("lengths"), strict=True):
        by_source.setdefault(source, []).append((number, path))
    unit: Unit = options.target[0] if options.target is not None else "tokens"
    shared = StreamOptions(options.order, options.seed, unit, Path(task.directory), len(by_source))
    runs = open_runs(task.paths(RUNS), dict(options.shards))
    times = _times(task)
    return [
        SourceStream(name, options.domain_of[name], shards, shared, runs.get(name), times)
        for name, shards in by_source.items()
    ]


def _times(task: Task[SplitMixtureOptions]) -> Times | None:
    """How often the documents of a shard are offered, by its number."""
    options = task.options
    if not options.chosen:
        return None
    places = {number: place for place, (number, _) in enumerate(options.shards)}
    lengths, scores, chosen = task.paths("lengths"), task.paths(SCORES), options.chosen
    least = None if options.least is msgspec.UNSET else options.least
    return lambda number: times_of(lengths[places[number]], scores[places[number]], chosen, least)


def _select_task(
    step: Step[MixtureOptions], own: SplitMixtureOptions, inputs: list[Input]
) -> Task[SelectByScore]:
    assert isinstance(own.chosen, SelectByScore)
    return Task(
        function="mixture.select",
        key="selection",
        options=own.chosen,
        inputs=inputs,
        directory=str(step.directory),
    )


def _taken(streams: list[SourceStream], turns: TurnBatch) -> Any:
    """The documents of some turns, as one table in their order."""
    by_source = np.argsort(turns.source, kind="stable")
    bounds = np.searchsorted(turns.source[by_source], np.arange(len(streams) + 1))
    taken = [
        stream.take(turns.position[by_source[first:stop]])
        for stream, (first, stop) in zip(streams, itertools.pairwise(bounds.tolist()), strict=True)
        if stop > first
    ]
    documents = joined(taken)
    place = np.empty(len(by_source), np.int64)
    place[by_source] = documents.order
    return documents.table.combine_chunks().take(pa.array(place))


def _parts(tables: Iterator[Any]) -> Iterator[Any]:
    """Tables of equal size, but for the last."""
    waiting: list[Any] = []
    for table in tables:
        waiting.append(table)
        while sum(one.num_rows for one in waiting) >= _PART_TURNS:
            whole = pa.concat_tables(waiting)
            yield whole.slice(0, _PART_TURNS).combine_chunks()
            waiting = [whole.slice(_PART_TURNS)]
    rest = [table for table in waiting if table.num_rows]
    if rest:
        yield pa.concat_tables(rest).combine_chunks()


def _targets(options: MixtureOptions, splits: list[str], upstream: Mapping[str, Artifact]) -> dict[str, int]:
    """The part of the target that each split has: by the fractions of the split,
    or by the tokens that there are."""
    if options.target is None:
        return {}
    amount = options.target[1]
    rule: SplitOptions = upstream["split"].manifest.options(SplitOptions)
    if isinstance(rule, HashSplit):
        shares = {"valid": rule.valid_fraction, "test": rule.test_fraction}
        held_out = {name: Fraction(shares[name]) for name in splits[1:]}
    else:
        tokens = upstream["tokens"].manifest.counts["tokens"]
        total = sum(tokens.get(name, 0) for name in splits) or 1
        held_out = {name: Fraction(tokens.get(name, 0), total) for name in splits[1:]}
    return split_budget(amount, splits, held_out)


def _mixture(options: SplitMixtureOptions, holdings: list[Holding]) -> Mixture:
    within = {
        domain: {name: Fraction(weight) for name, weight in weights.items()}
        for domain, weights in options.sources.items()
    }
    tokens = dict.fromkeys((holding.domain for holding in holdings), 0)
    for holding in holdings:
        tokens[holding.domain] += holding.tokens
    if options.domains is None:
        return replace(natural_mixture(tokens), sources=within)
    domains = {name: Fraction(weight) for name, weight in options.domains.items()}
    if options.is_held_out:
        present = {name: weight for name, weight in domains.items() if name in tokens}
        total = sum(present.values())
        domains = {name: weight / total for name, weight in present.items()} if total else present
    return Mixture(domains, within)


def _counts(found: Summary, streams: list[SourceStream]) -> Json:
    """Documents, each once; turns beyond the first are `repeats`."""
    counts: Json = {"in": 0, "kept": 0, "dropped": {}, "quarantined": {}, "repeats": 0}
    for number, stream in enumerate(streams):
        turns = found.documents[number]
        distinct = stream.distinct(turns)
        rest = stream.documents - distinct - stream.left_out
        counts["in"] += stream.documents
        counts["kept"] += distinct
        counts["repeats"] += turns - distinct
        if stream.left_out:
            counts["dropped"][LEFT_OUT] = counts["dropped"].get(LEFT_OUT, 0) + stream.left_out
        if rest:
            reason = "over_budget" if found.wanted[number] else "no_weight"
            counts["dropped"][reason] = counts["dropped"].get(reason, 0) + rest
    return counts


def _facts(found: Summary) -> Json:
    return {
        "sources": {
            name: {
                "wanted": round(float(found.wanted[number]), 9),
                "built": round(found.shares[number], 9),
                "tokens": found.tokens[number],
                "available": found.available[number],
                "documents": found.documents[number],
                "passed_over": found.passed_over[number],
                "epochs": round(found.epochs[number], 6),
            }
            for number, name in enumerate(found.names)
        },
        "tokens": found.total_tokens,
        "reached": found.reached,
        "left_over": found.left_over,
        "exhausted": found.exhausted,
        "max_error": round(found.max_error, 9),
    }


STAGE = Stage(
    "mixture",
    MixtureOptions,
    conduct,
    {
        "mixture": TaskFunction(SplitMixtureOptions, perform_mixture),
        "mixture.run": TaskFunction(RunOptions, perform_run),
        "mixture.select": TaskFunction(SelectByScore, perform_select),
    },
)

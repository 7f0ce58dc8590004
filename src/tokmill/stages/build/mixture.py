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

Sources are read by streams.py, in the order of their passes.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import asdict
from msgspec.structs import replace as replace_fields
from numpy.typing import NDArray

from tokmill.artifacts.history import Continues, History
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
from tokmill.errors import InputError, plural
from tokmill.packing.mixture import (
    STARVED,
    Exhausted,
    Holding,
    Limit,
    Mixture,
    Part,
    SourceExhausted,
    Target,
    Unit,
    limit_of_weights,
    natural_mixture,
    shares_of,
    split_budget,
)
from tokmill.packing.schedule import (
    Scheduling,
    Summary,
    TurnBatch,
)
from tokmill.schema import ORDER
from tokmill.stages.build.continued import (
    MOST_PASSES,
    MetOptions,
    TokenFile,
    count_sets,
    history_input,
    met_warning,
    open_history,
    perform_met,
    refuse_other_tokenizer,
    refuse_used_up,
    seen_levels,
    seen_of_target,
    what_is_left,
)
from tokmill.stages.build.documents import TURNS
from tokmill.stages.build.runs import (
    RUNS,
    RunOptions,
    joined,
    open_runs,
    perform_run,
)
from tokmill.stages.build.scored import (
    LEFT_OUT,
    SCORES,
    ByScore,
    Offer,
    SelectByScore,
    perform_select,
    refuse_domains_left_out,
    score_inputs,
    times_of,
)
from tokmill.stages.build.staged import (
    HAD,
    HAD_BEFORE,
    LEFT_OUT_BY_STAGE,
    StageOptions,
    levels_of,
    load_had,
    score_tables,
    stage_inputs,
    write_had,
)
from tokmill.stages.build.streams import Last, Levels, SourceStream, StreamOptions, Times
from tokmill.stages.external import open_table
from tokmill.stages.sampling import HashSplit, SplitOptions
from tokmill.stages.tokens.stage import shards_of_split
from tokmill.stages.warnings import tell

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
    continues: Continues | msgspec.UnsetType = msgspec.UNSET  # of training, what was seen before
    stage: StageOptions | msgspec.UnsetType = msgspec.UNSET  # one of several, which go through the sources

    @property
    def passes(self) -> int:
        """That a document may have, in all."""
        return self.max_epochs if self.exhausted == "repeat" else 1


class SplitMixtureOptions(MixtureOptions, frozen=True, kw_only=True):
    """The same for one split."""

    is_held_out: bool
    amount: int | None  # its part of the target
    shards: tuple[tuple[int, str], ...]  # number and source
    least: int | msgspec.UnsetType | None = msgspec.UNSET  # of a selection: the smallest key that is in it


def conduct(step: Step[MixtureOptions], upstream: Mapping[str, Artifact]) -> Conduct:
    options = step.options
    splits = upstream["tokens"].manifest.facts["splits"]
    continues = options.continues or None
    if continues is not None:
        refuse_other_tokenizer(continues, upstream["tokens"].manifest.facts["tokenizer"])
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
        if continues is not None and split == splits[0]:
            inputs.append(history_input(step.extra, continues))
        elif continues is not None:
            own = replace_fields(own, continues=msgspec.UNSET)
        if options.chosen:
            if split != splits[0]:
                own = replace_fields(own, chosen=msgspec.UNSET)
            else:
                inputs += score_inputs(upstream, [shard.number for shard in shards], options.chosen)
                if isinstance(options.chosen, SelectByScore):
                    (picked,) = yield [_select_task(step, own, inputs)]
                    own = replace_fields(own, least=picked.facts["least"])
        if options.stage:
            inputs += stage_inputs(upstream, split, [shard.number for shard in shards], options.stage)
        tasks.append(
            Task(function="mixture", key=split, options=own, inputs=inputs, directory=str(step.directory))
        )
    receipts = yield from _perform_mixtures(step, tasks)
    facts: Json = {"splits": {receipt.key: receipt.facts for receipt in receipts}}
    limit = limit_of_mixture(options, facts["splits"].get(splits[0]))
    warnings = [f"{limit}; {STARVED}"] if limit is not None and limit.is_starved else []
    if continues is not None:
        held_out = [task for split in splits[1:] if (task := _met_task(step, split, continues, upstream))]
        for receipt in (yield held_out) if held_out else ():
            if receipt.facts["met"]:
                warnings.append(met_warning(receipt.key.removesuffix(".met"), receipt.facts["met"]))
    if warnings:
        facts["warnings"] = warnings
        tell(step.name, warnings)
    return Outcome(receipts, sum_counts(receipts), facts)


def _met_task(
    step: Step[MixtureOptions], split: str, continues: Continues, upstream: Mapping[str, Artifact]
) -> Task[MetOptions] | None:
    shards = shards_of_split(upstream, split)
    if not shards:
        return None
    return Task(
        function="mixture.met",
        key=f"{split}.met",
        options=MetOptions(sources=tuple(shard.source for shard in shards)),
        inputs=[*(shard.lengths for shard in shards), history_input(step.extra, continues)],
        directory=str(step.directory),
    )


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
    rows = sum(item.rows for item in whole.inputs if item.role == "lengths")
    return whole.options.order == "shuffle" and not whole.options.chosen and rows >= 3 * _SORTED_AT_ONCE


def _run_tasks(whole: Task[SplitMixtureOptions]) -> list[Task]:
    """Of whole shards of one source, in their order."""
    by_source: dict[str, list[tuple[int, Input]]] = {}
    lengths = [item for item in whole.inputs if item.role == "lengths"]
    for (number, source), item in zip(whole.options.shards, lengths, strict=True):
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
    stage = task.options.stage
    try:
        return _perform(task)
    except SourceExhausted as error:
        told = error if stage else _of_whole_target(error, task.options)
        where = f"stage {stage.name}" if stage else told.where
        raise InputError(told.what, where=where, next=told.next) from error
    except InputError as error:
        if not stage:
            raise
        if error.where != "mixture":
            raise
        raise InputError(error.what, where=f"stage {stage.name}", next=error.next) from error


def _of_whole_target(error: SourceExhausted, options: SplitMixtureOptions) -> SourceExhausted:
    """The budget that it advises is the target of the recipe: of all splits, and of the whole run."""
    found = error.found
    if found is None or options.target is None or options.amount is None:
        return error
    unit, whole = options.target
    seq_len = None if options.seq_len is msgspec.UNSET else options.seq_len
    continues = options.continues or None
    seen = seen_of_target(unit, seq_len, continues) if continues is not None else 0
    met = found.met(unit, whole, options.amount, seq_len, seen)
    return found.error(plural(met, unit.removesuffix("s")) if met > 0 else "", is_rest=continues is not None)


def _perform(task: Task[SplitMixtureOptions]) -> Made:
    options, had, history = task.options, _had(task), open_history(task)
    streams = _streams(task, had, history)
    holdings = [stream.holding for stream in streams]
    mixture = _mixture(options, holdings)
    exhausted = options.exhausted
    if options.is_held_out:
        exhausted = "stop" if options.target is None else "renormalize"
    if options.chosen and exhausted != "renormalize":
        offers = [Offer(stream.holding.domain, stream.documents, stream.left_out) for stream in streams]
        refuse_domains_left_out(offers, mixture, options.chosen)
    target = None
    if options.target is not None and options.amount is not None:
        target = Target(options.target[0], options.amount)
    if history is not None and target is None:
        refuse_used_up(holdings, shares_of(holdings, mixture))
    scheduling = Scheduling(
        streams,
        mixture,
        target,
        exhausted=exhausted,
        max_epochs=options.max_epochs,
        seq_len=None if options.seq_len is msgspec.UNSET else options.seq_len,
        ends_at_target=bool(options.stage),  # what has a turn and is in no row would be lost to the others
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
    if history is not None:
        lengths = [item for item in task.inputs if item.role == "lengths"]
        documents = [
            TokenFile(number, source, Path(item.path), item.rows)
            for (number, source), item in zip(options.shards, lengths, strict=True)
        ]
        facts["continued"] = count_sets(documents, Path(task.directory) / order.entry.path, history)
        for name, sets in facts["continued"]["sources"].items():
            facts["sources"][name]["epochs"] = sets["epochs"]
    files = [order.entry, *parts]
    if had is not None:
        for number, stream in enumerate(streams):
            facts["sources"][found.names[number]] |= _passed(stream, had, found.tokens[number])
        for stream in streams:
            had |= stream.had_by_now(had)
        files.append(write_had(task, had))
    return Made(files, _counts(found, streams, options.passes), facts)


def _passed(stream: SourceStream, had: dict[int, NDArray[np.uint8]], taken: int) -> Json:
    """How far the stages have come with a source: of all its documents, whichever this one is of."""
    before, whole = stream.tokens_of(had)
    return {
        "before": before,
        "passes": round((before + taken) / whole, 6) if whole else 0.0,
        "again": stream.again(),
        "left_out": stream.left_out,
    }


def _streams(
    task: Task[SplitMixtureOptions], had: dict[int, NDArray[np.uint8]] | None, history: History | None
) -> list[SourceStream]:
    """The documents of each source, in the order of the recipe."""
    options, by_source = task.options, dict[str, list[tuple[int, Path]]]()
    for (number, source), path in zip(options.shards, task.paths("lengths"), strict=True):
        by_source.setdefault(source, []).append((number, path))
    unit: Unit = options.target[0] if options.target is not None else "tokens"
    shared = StreamOptions(options.order, options.seed, unit, Path(task.directory), len(by_source))
    runs = open_runs(task.paths(RUNS), dict(options.shards))
    times = _times(task)
    levels: Levels | None = None
    last: Last | None = None
    if had is not None:
        assert options.stage, "what was had is of stages"
        tables = score_tables(task.inputs, options.stage)
        levels = levels_of(had, options.stage, task.paths("lengths"), tables).__getitem__
    elif history is not None:
        levels, last = _seen_before(task, history)
    return [
        SourceStream(name, options.domain_of[name], shards, shared, runs.get(name), times, levels, last)
        for name, shards in by_source.items()
    ]


def _seen_before(task: Task[SplitMixtureOptions], history: History) -> tuple[Levels, Last]:
    """Whole passes of the documents of a shard, by its number; and whose next one has begun."""
    files = zip(task.options.shards, task.paths("lengths"), strict=True)
    had = {
        number: np.minimum(seen_levels(history, source, path), 2 * MOST_PASSES).astype(np.uint16)
        for (number, source), path in files
    }
    return lambda number: (had[number] >> 1).astype(np.uint8), lambda number: (had[number] & 1) > 0


def _had(task: Task[SplitMixtureOptions]) -> dict[int, NDArray[np.uint8]] | None:
    """How often each document was had by the stages before; None: there are no stages."""
    if not task.options.stage:
        return None
    numbers = [number for number, _ in task.options.shards]
    rows = [item.rows for item in task.inputs if item.role == "lengths"]
    return load_had(next(iter(task.paths(HAD)), None), dict(zip(numbers, rows, strict=True)))


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
    unit, amount = options.target
    rule: SplitOptions = upstream["split"].manifest.options(SplitOptions)
    if isinstance(rule, HashSplit):
        shares = {"valid": rule.valid_fraction, "test": rule.test_fraction}
        held_out = {name: Fraction(shares[name]) for name in splits[1:]}
    else:
        tokens = upstream["tokens"].manifest.counts["tokens"]
        total = sum(tokens.get(name, 0) for name in splits) or 1
        held_out = {name: Fraction(tokens.get(name, 0), total) for name in splits[1:]}
    parts = split_budget(amount, splits, held_out)
    if options.continues:
        seq_len = None if options.seq_len is msgspec.UNSET else options.seq_len
        parts[splits[0]] = what_is_left(parts[splits[0]], unit, seq_len, options.continues)
    return parts


def _mixture(options: SplitMixtureOptions, holdings: list[Holding]) -> Mixture:
    within = {
        domain: {name: Fraction(weight) for name, weight in weights.items()}
        for domain, weights in options.sources.items()
    }
    wanted = _wanted(options)
    tokens = dict.fromkeys((holding.domain for holding in holdings), 0)
    for holding, count in zip(holdings, _natural(options, holdings, wanted), strict=True):
        tokens[holding.domain] += count
    natural = natural_mixture(tokens)
    if options.continues:  # sources go by what they have left, as domains do
        asked = natural.domains if options.domains is None else options.domains
        for domain in [name for name in tokens if name not in within]:
            own = [holding for holding in holdings if holding.domain == domain]
            has = _natural(options, own, int(wanted * Fraction(asked.get(domain, 0))))
            whole = sum(has) or 1
            within[domain] = {one.name: Fraction(count, whole) for one, count in zip(own, has, strict=True)}
    if options.domains is None:
        return replace(natural, sources=within)
    domains = {name: Fraction(weight) for name, weight in options.domains.items()}
    if options.is_held_out:
        present = {name: weight for name, weight in domains.items() if name in tokens}
        total = sum(present.values())
        domains = {name: weight / total for name, weight in present.items()} if total else present
    return Mixture(domains, within)


def _natural(options: SplitMixtureOptions, holdings: list[Holding], wanted: int) -> list[int]:
    """What each has, for shares that nobody asked for. In the rest of a run, what it has left: until each
    document had as many passes as so many tokens take of all, so that the whole run has natural shares."""
    if options.continues:
        for passes in range(1, options.passes + 1):
            left = [holding.capacity(passes) for holding in holdings]
            if sum(left) >= max(wanted, 1):
                return left
    return [holding.tokens for holding in holdings]


def _wanted(options: SplitMixtureOptions) -> int:
    """Tokens, where the target says so."""
    if options.target is None or options.amount is None:
        return 0
    seq_len = None if options.seq_len is msgspec.UNSET else options.seq_len
    return Target(options.target[0], options.amount).in_tokens(seq_len) or 0


def _counts(found: Summary, streams: list[SourceStream], passes: int) -> Json:
    """Documents, each once; turns beyond the first are `repeats`. `passes`: that each may have, with those
    that it had before."""
    counts: Json = {"in": 0, "kept": 0, "dropped": {}, "quarantined": {}, "repeats": 0}
    for number, stream in enumerate(streams):
        turns = found.documents[number]
        distinct = stream.distinct(turns)
        used_up = stream.used_up(passes)
        rest = stream.documents - distinct - stream.left_out - used_up
        counts["in"] += stream.documents
        counts["kept"] += distinct
        counts["repeats"] += turns - distinct
        left_out = LEFT_OUT_BY_STAGE if stream.has_levels else LEFT_OUT
        unused = "over_budget" if found.wanted[number] else "no_weight"
        for reason, documents in ((left_out, stream.left_out), (HAD_BEFORE, used_up), (unused, rest)):
            if documents:
                counts["dropped"][reason] = counts["dropped"].get(reason, 0) + documents
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
        "mixture.met": TaskFunction(MetOptions, perform_met),
        "mixture.select": TaskFunction(SelectByScore, perform_select),
    },
)

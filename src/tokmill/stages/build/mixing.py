"""The mixture of one split: which documents are built, and in which order, so that every stretch has the
shares that were asked for.

lengths of a split ─ schedule by weight, to the target
    ─┬> order-<split>.parquet           shard, sequence: one row per turn
     └> turns-<split>-00000.parquet …   the same turns, for builds: where the ids begin, how many, whose

Documents come out of each source in the order of their turns and go straight into the files: memory does not
grow with the corpus. Where a source repeats, so do its documents. Sources are read by streams.py, in the
order of their passes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifacts.directory import open_artifact
from tokmill.artifacts.history import History
from tokmill.artifacts.manifest import FileEntry, Json
from tokmill.artifacts.step import Made, Task
from tokmill.artifacts.upstream import write_shard_table
from tokmill.clean.examine import CleanOptions
from tokmill.errors import InputError
from tokmill.packing.quotas import Exhaustion, SourceExhausted, Target, Unit, shares_of
from tokmill.packing.schedule import Scheduling, Summary, TurnBatch
from tokmill.schema import ORDER
from tokmill.stages.build.continued import (
    MOST_PASSES,
    TokenFile,
    count_sets,
    open_history,
    refuse_used_up,
    seen_levels,
)
from tokmill.stages.build.documents import TURNS
from tokmill.stages.build.mixture import SplitMixtureOptions, mixture_for, of_whole_target
from tokmill.stages.build.runs import RUNS, joined, open_runs
from tokmill.stages.build.scored import (
    LEFT_OUT,
    SCORES,
    Offer,
    SelectByScore,
    refuse_domains_left_out,
    times_of,
)
from tokmill.stages.build.staged import (
    HAD,
    HAD_BEFORE,
    LEFT_OUT_BY_STAGE,
    levels_of,
    load_had,
    score_tables,
    write_had,
)
from tokmill.stages.build.streams import Last, Levels, SourceStream, StreamOptions, Times
from tokmill.stages.external.appended import open_table
from tokmill.stages.losses import Loss, cleaning_losses, name_run
from tokmill.stages.warnings import loss_limit

# Turns of a part: a quarter of the documents that a build plans at once, some 20 MB of names and numbers.
_PART_TURNS = 1 << 18


def perform_mixture(task: Task[SplitMixtureOptions]) -> Made:
    stage = task.options.stage
    try:
        return _perform(task)
    except SourceExhausted as error:
        told = error if stage else of_whole_target(error, task.options)
        where = f"stage {stage.name}" if stage else told.where
        cause = _loss_before(task, error.found) if error.found is not None else None
        if cause is None:
            raise InputError(told.what, where=where, next=told.next) from error
        says, mend = cause
        raise InputError(
            f"{says}; so {told.what}", where=where, next=f"{mend}; or, if the loss is meant, {told.next}"
        ) from error
    except InputError as error:
        if not stage:
            raise
        if error.where != "mixture":
            raise
        raise InputError(error.what, where=f"stage {stage.name}", next=error.next) from error


def _loss_before(task: Task[SplitMixtureOptions], found: Exhaustion) -> tuple[str, str] | None:
    """The largest loss in cleaning of a source that is exhausted, or of a domain that has no tokens, and what
    would mend it. It is read from the run around the tokens, beside the inputs of the task: for the error."""
    lengths = (Path(path) for path in task.paths("lengths"))
    run = next((up.parent for path in lengths for up in path.parents if up.name == "tokens"), None)
    losses: list[Loss] = []
    for source, domain in task.options.domain_of.items():
        cleaned = (
            open_artifact(run / "clean" / source)
            if run is not None and found.name in (source, f"domain {domain}")
            else None
        )
        if cleaned is not None:
            ledgers = [cleaned.path(entry) for entry in cleaned.manifest.entries("ledger")]
            options, limit = cleaned.manifest.options(CleanOptions), loss_limit({}, "clean")
            losses += cleaning_losses(options, cleaned.manifest.counts, limit, ledgers)
    if run is None or not losses:
        return None
    loss = max(losses, key=lambda loss: loss.lost)
    return loss.says, name_run(loss.mend, run)


def _perform(task: Task[SplitMixtureOptions]) -> Made:
    options, had, history = task.options, _had(task), open_history(task)
    streams = _streams(task, had, history)
    holdings = [stream.holding for stream in streams]
    mixture = mixture_for(options, holdings)
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
        for name, left in zip(found.names, found.capacities, strict=True):
            facts["sources"][name]["left"] = left
    files = [order.entry, *parts]
    if had is not None:
        for number, stream in enumerate(streams):
            facts["sources"][found.names[number]] |= _passed(stream, had, found.tokens[number])
        for stream in streams:
            had |= stream.had_by_now(had)
        files.append(write_had(task, had))
    return Made(files, _counts(found, streams, options.passes), facts)


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
    idle = (isinstance(chosen, SelectByScore) and chosen.without) or ()
    least = {
        number: None if options.least is msgspec.UNSET or source in idle else options.least
        for number, source in options.shards
    }
    return lambda number: times_of(lengths[places[number]], scores[places[number]], chosen, least[number])


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


def _passed(stream: SourceStream, had: dict[int, NDArray[np.uint8]], taken: int) -> Json:
    """How far the stages have come with a source: of all its documents, whichever this one is of."""
    before, whole = stream.tokens_of(had)
    return {
        "before": before,
        "passes": round((before + taken) / whole, 6) if whole else 0.0,
        "again": stream.again(),
        "left_out": stream.left_out,
    }


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

"""Scores: where each document stands among all, and what rules on percentiles decide. No text is read.

    shard ─ measures, marks, domains ─> run-<score>-<s>   every (score, group) that is kept here once, in
                                                          order, and how many documents have it
    runs of all shards ─ a range of scores ─> below-<score>   for each of them, how many documents of the
                                                          group score less
    shard ─ measures, marks, below ─┬─> percentiles-<s>   score.edu.percentile: 100 x less / all of the group
                                    ├─> marks-<s>         those of cleaning, with fewer that are kept
                                    └─> ledger-<s>        who left, the percentile and the threshold

A group is a domain, a language, or the corpus; documents are those that cleaning kept. Less and all are whole
numbers and the percentile is one division, so no cut into shards and no order can change it. Runs are in
order of the score, so a range of it is read from each of them alone, and every row is read once: memory is
that of a range, whatever the corpus.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import NO_DOCUMENTS, FileEntry, Receipt, add_counts, sum_counts
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
    tables_of,
)
from tokmill.artifacts.upstream import UNKNOWN, Shard, list_shards, write_shard_table
from tokmill.clean.examine import CleanOptions
from tokmill.clean.rules import Rule, judge
from tokmill.schema import PERCENTILE, SCORE, ledger_table, one_piece
from tokmill.stages.external.appended import open_table
from tokmill.stages.external.drawers import Drawers, open_scratch
from tokmill.stages.external.runs import Run, joined, load_between, open_runs, write_run
from tokmill.stages.warnings import tell
from tokmill.storage.tables import load_range

Column = NDArray[Any]
By = Literal["domain", "language", "corpus"]

_RUN = {"key": "<u8", "group": "<u8", "count": "<i8"}
_BELOW = pa.schema(
    [
        pa.field("shard", pa.uint32(), nullable=False),
        pa.field("place", pa.uint32(), nullable=False),  # in the run of the shard
        pa.field("below", pa.int64(), nullable=False),
    ]
)
_RANKED_AT_ONCE = 1 << 20  # rows of runs


class RankedScore(msgspec.Struct, frozen=True):
    name: str
    by: By


class RankOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Scores with `percentile`, and the rules on percentiles by source."""

    ranked: tuple[RankedScore, ...]
    rules: dict[str, tuple[Rule, ...]] = {}
    version: int = 1


class RunOptions(TaskOptions, frozen=True):
    ranked: tuple[RankedScore, ...]


class BelowOptions(TaskOptions, frozen=True):
    score: str
    shards: tuple[int, ...]
    at_once: int = _RANKED_AT_ONCE


class DecideOptions(TaskOptions, frozen=True):
    number: int
    shard: str  # its name
    source: str
    ranked: tuple[RankedScore, ...]
    totals: dict[str, dict[str, int]]  # by score and group
    rules: tuple[Rule, ...]


def conduct(step: Step[RankOptions], upstream: Mapping[str, Artifact]) -> Conduct:
    options, shards = step.options, list_shards(upstream)
    inputs = {shard.number: _inputs(upstream, shard) for shard in shards}
    runs = yield [
        Task(
            function="scores.runs",
            key=f"run-{shard.number:05d}",
            options=RunOptions(ranked=options.ranked),
            inputs=inputs[shard.number],
            directory=str(step.directory),
        )
        for shard in shards
    ]
    numbers = tuple(shard.number for shard in shards)
    below = yield [
        Task(
            function="scores.below",
            key=f"below-{ranked.name}",
            options=BelowOptions(score=ranked.name, shards=numbers),
            inputs=tables_of(step, runs, f"run {ranked.name}"),
            directory=str(step.directory),
        )
        for ranked in options.ranked
    ]
    totals = {one.name: found.facts["totals"] for one, found in zip(options.ranked, below, strict=True)}
    decided = yield [
        Task(
            function="scores",
            key=f"{shard.number:05d}",
            options=DecideOptions(
                number=shard.number,
                shard=shard.name,
                source=shard.source,
                ranked=options.ranked,
                totals=totals,
                rules=options.rules.get(shard.source, ()),
            ),
            inputs=[*inputs[shard.number], *_of_task(step, own), *tables_of(step, below, "below")],
            directory=str(step.directory),
        )
        for shard, own in zip(shards, runs, strict=True)
    ]
    tell(step.name, _without_languages(options.ranked, upstream))
    return Outcome(decided, add_counts(NO_DOCUMENTS, sum_counts(decided)), {})


def _without_languages(ranked: Sequence[RankedScore], upstream: Mapping[str, Artifact]) -> Iterator[str]:
    plans = {
        name.removeprefix("clean/"): artifact.manifest.options(CleanOptions).language
        for name, artifact in upstream.items()
        if name.startswith("clean/")
    }
    sources = [name for name, plan in plans.items() if plan is None or plan.applied == "none"]
    for score in ranked:
        if score.by == "language" and sources:
            yield (
                f"percentiles of {score.name} by language: documents of {', '.join(sources)} have none, and "
                "are ranked together"
            )


def _of_task(step: Step[RankOptions], receipt: Receipt) -> list[Input]:
    return [table_input(entry.table, step.directory, entry) for entry in receipt.files]


def _inputs(upstream: Mapping[str, Artifact], shard: Shard) -> list[Input]:
    cleaned = upstream[f"clean/{shard.source}"]
    path = f"measures-{shard.key}.parquet"
    (entry,) = (one for one in cleaned.manifest.entries("measures") if one.path == path)
    return [shard.documents, shard.marks, table_input("measures", cleaned.directory, entry)]


class _Ranked:
    """The kept documents of a shard: each has a key, in the order of scores, and a group."""

    def __init__(self, task: Task[Any], score: RankedScore) -> None:
        marks = task.load("marks", ["kept", "language"])
        self.rows = np.flatnonzero(np.asarray(marks.column("kept")))
        values = one_piece(task.load("measures", [SCORE + score.name]).column(0))
        # `+ 0.0`: minus zero is zero
        self.keys = ordered(np.asarray(values.fill_null(0)).astype(np.float64)[self.rows] + 0.0)
        match score.by:
            case "corpus":
                self.groups = np.full(len(self.rows), group_of(""), np.uint64)
            case "language":
                self.groups = _groups(one_piece(marks.column("language")))[self.rows]
            case "domain":
                self.groups = _groups(one_piece(task.load("documents", ["domain"]).column(0)))[self.rows]

    def distinct(self) -> tuple[Column, Column, Column, Column]:
        """Keys and groups that there are, in order; how many documents have each; and the place of each
        document's among them."""
        order = np.lexsort((self.groups, self.keys))
        keys, groups = self.keys[order], self.groups[order]
        is_first = np.ones(len(order), np.bool_)
        is_first[1:] = (keys[1:] != keys[:-1]) | (groups[1:] != groups[:-1])
        starts = np.flatnonzero(is_first)
        places = np.empty(len(order), np.int64)
        places[order] = np.cumsum(is_first) - 1
        counts = np.diff(np.append(starts, len(order)))
        return keys[starts], groups[starts], counts, places


def ordered(values: Column) -> Column:
    """Whole numbers in the order of these float64."""
    bits = np.ascontiguousarray(values, np.float64).view(np.uint64)
    top = np.uint64(1 << 63)
    return np.where(bits & top, ~bits, bits | top)


def group_of(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def _groups(names: Any) -> Column:
    coded = names.fill_null(UNKNOWN).dictionary_encode()
    groups = np.array([group_of(name) for name in coded.dictionary.to_pylist()], np.uint64)
    return groups[np.asarray(coded.indices)] if len(groups) else np.zeros(0, np.uint64)


def perform_runs(task: Task[RunOptions]) -> Made:
    files: list[FileEntry] = []
    for score in task.options.ranked:
        keys, groups, counts, _ = _Ranked(task, score).distinct()
        entry = write_run(task, f"run-{score.name}", [keys, groups, counts], _RUN)
        files.append(msgspec.structs.replace(entry, table=f"run {score.name}"))
    return Made(files, {})


def perform_below(task: Task[BelowOptions]) -> Made:
    options = task.options
    runs = open_runs(task.inputs, f"run {options.score}", _RUN)
    totals: dict[int, int] = {}
    path = f"below-{options.score}.parquet"
    with open_scratch(task) as folder:
        drawers = Drawers(folder, "below", [("place", "<u4"), ("below", "<i8")])
        first = np.zeros(len(runs), np.int64)  # rows of each run that are done
        for low, high in _ranges(runs, options.at_once):
            parts = list(load_between(runs, low, high))
            sizes = np.array([len(part[0]) for part in parts], np.int64)
            keys, groups, counts = joined(parts, _RUN)
            shard = np.repeat(np.arange(len(runs)), sizes)
            place = np.arange(len(keys)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + first[shard]
            drawers.put(shard, place, _count_below(keys, groups, counts, totals))
            first += sizes
        with open_table(task, path, "below", _BELOW, by="shard") as table:
            for number, shard_number in enumerate(options.shards):
                rows = drawers.load(number)
                rows = rows[np.argsort(rows["place"], kind="stable")]
                numbers = np.full(len(rows), shard_number, np.uint32)
                table.append(pa.table([numbers, rows["place"].copy(), rows["below"].copy()], schema=_BELOW))
    return Made(
        [table.entry], {}, {"totals": {f"{group:016x}": count for group, count in sorted(totals.items())}}
    )


def _ranges(runs: Sequence[Run], at_once: int) -> Iterator[tuple[int, int]]:
    """Ranges of keys with about so many rows of all runs; one key is never in two."""
    every = max(at_once // (4 * max(len(runs), 1)), 1)
    looked = np.sort(
        np.concatenate([run.every(every, ["key"])[0] for run in runs] or [np.zeros(0, np.uint64)])
    )
    cuts = np.unique(looked[:: max(at_once // every, 1)][1:]).tolist()
    yield from itertools.pairwise(dict.fromkeys([0, *cuts, 1 << 64]))


def _count_below(keys: Column, groups: Column, counts: Column, totals: dict[int, int]) -> Column:
    """Documents of the group with a smaller key, of this range and those before; `totals` is added to."""
    order = np.lexsort((keys, groups))
    keys, groups, counts = keys[order], groups[order], counts[order]
    before = np.cumsum(counts) - counts
    is_group = np.ones(len(order), np.bool_)
    is_group[1:] = groups[1:] != groups[:-1]
    is_key = is_group.copy()
    is_key[1:] |= keys[1:] != keys[:-1]
    below = np.empty(len(order), np.int64)
    for start, stop in itertools.pairwise([*np.flatnonzero(is_group).tolist(), len(order)]):
        group = int(groups[start])
        known = totals.get(group, 0)
        firsts = np.maximum.accumulate(np.where(is_key[start:stop], np.arange(start, stop), 0))
        below[start:stop] = before[firsts] - before[start] + known
        totals[group] = known + int(counts[start:stop].sum())
    found = np.empty(len(order), np.int64)
    found[order] = below
    return found


def perform_decide(task: Task[DecideOptions]) -> Made:
    options = task.options
    marks = task.load("marks")
    kept = np.asarray(marks.column("kept")).copy()
    came = int(kept.sum())
    columns: dict[str, Any] = {}
    for score, path in zip(options.ranked, task.paths("below"), strict=True):
        ranked = _Ranked(task, score)
        places = ranked.distinct()[3]
        below = np.asarray(load_range(path, "shard", options.number).column("below"))
        totals = options.totals[score.name]
        of_group = {group: totals[f"{group:016x}"] for group in np.unique(ranked.groups).tolist()}
        all_of = np.array([of_group[group] for group in ranked.groups.tolist()], np.float64)
        values = np.zeros(marks.num_rows)
        values[ranked.rows] = 100.0 * below[places] / all_of if len(places) else 0.0
        columns[SCORE + score.name + PERCENTILE] = values
    judged = judge(columns, options.rules, marks.num_rows)
    drops = np.flatnonzero(kept & (judged.first < len(options.rules)))
    kept_before = kept.copy()
    kept[drops] = False
    reasons = [options.rules[rule].reason for rule in judged.first[drops].tolist()]
    number = f"{options.number:05d}"

    def write(name: str, table: Any) -> None:
        files.append(write_shard_table(task.directory, f"{name}-{number}.parquet", name, table))

    files: list[FileEntry] = []  # percentiles are of what cleaning kept
    write("percentiles", pa.table({name: pa.array(v, mask=~kept_before) for name, v in columns.items()}))
    write(
        "marks",
        marks.set_column(marks.schema.get_field_index("kept"), marks.schema.field("kept"), pa.array(kept)),
    )
    if len(drops):
        doc_ids = one_piece(task.load("documents", ["doc_id"]).column(0))
        ledger = {
            "shard": options.shard,
            "row": drops.astype(np.uint32),
            "source": options.source,
            "doc_id": doc_ids.take(pa.array(drops)),
            "stage": "scores",
            "verdict": "drop",
            "reason": reasons,
            "value": judged.values[drops],
            "threshold": judged.thresholds[drops],
        }
        write("ledger", ledger_table(ledger, len(drops)))
    dropped = {reason: reasons.count(reason) for reason in sorted(set(reasons))}
    counts = {"in": came, "kept": int(kept.sum()), "dropped": dropped, "quarantined": {}}
    return Made(files, counts)


STAGE = Stage(
    "scores",
    RankOptions,
    conduct,
    {
        "scores.runs": TaskFunction(RunOptions, perform_runs),
        "scores.below": TaskFunction(BelowOptions, perform_below),
        "scores": TaskFunction(DecideOptions, perform_decide),
    },
)

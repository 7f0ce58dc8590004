"""Dedup: which documents say what another one already says. Every drop names its survivor.

    against    tokmill.stages.dedup.exact          ─> contaminated-<s>   items of a benchmark
    exact      tokmill.stages.dedup.exact                   ─> matches-<p>        duplicate -> survivor
    near       tokmill.stages.dedup.near                  ─> near, clusters
    window     tokmill.stages.dedup.passages                 ─> window, trims-<s>  passages said before
    all of these ─ shard s ─> verdicts-<s>  every row      ledger-<s>  what was dropped and for whom

The result depends on the order of documents and the policy alone, not on shards or partitions.

Sources that lose most of their documents to one rule, here or in cleaning, are told while a run works:

    counts of clean, or of dedup by shard ─ by source and reason ─> losses over `dedup.warn_source_loss`
                                            ledgers ─> one id of each, to look up
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokmill.artifacts.manifest import Json, Receipt, sum_counts
from tokmill.artifacts.step import (
    Artifact,
    Conduct,
    Input,
    Made,
    Outcome,
    Shard,
    Stage,
    Step,
    Task,
    TaskFunction,
    TaskOptions,
    list_shards,
    tables_of,
    write_shard_table,
)
from tokmill.clean.examine import CleanOptions
from tokmill.errors import DedupLimit, InputError
from tokmill.packing.mixture import spelled_share
from tokmill.schema import DROPS, VERDICTS, ledger_table
from tokmill.stages.dedup.exact import (
    AGAINST,
    EXACT,
    Considered,
    DedupOptions,
    DedupStep,
    Method,
    keep_of,
    rank_inputs,
)
from tokmill.stages.dedup.near import NEAR
from tokmill.stages.dedup.passages import WINDOW
from tokmill.storage.tables import load_range, load_table

_LOG = logging.getLogger("tokmill.duplicates")

TRIMMED = "passages_trimmed"

# A document is looked at in this order, and goes for the first.
METHODS = (AGAINST, EXACT, NEAR, WINDOW)


class VerdictOptions(TaskOptions, frozen=True):
    number: int
    shard: str
    source: str


def conduct(step: DedupStep, upstream: Mapping[str, Artifact]) -> Conduct:
    options, shards = step.options, list_shards(upstream)
    if options.keep == "newest":
        _check_dates(upstream)
    facts: Json = {"shards": [shard.name for shard in shards]}
    found: list[Input] = []  # who goes, by what was looked at so far
    kept: list[Receipt] = []  # whose files stay

    def considered(method: Method) -> list[Considered]:
        return [
            Considered(
                shard,
                keep_of(options, shard, upstream),
                [*_roles(method.reads(options, shard), rank_inputs(options, shard, upstream)), *found],
            )
            for shard in shards
        ]

    for method in METHODS:
        asked = getattr(options, method.key)
        if not asked:
            continue
        receipts = yield from method.find(step, asked, considered(method))
        found += [*tables_of(step, receipts, method.table), *tables_of(step, receipts, "trims")]
        kept += receipts
        if method.facts is not None:
            facts[method.key] = method.facts(step, receipts)
    verdicts = yield [_verdict_task(step, shard, found) for shard in shards]
    _check_losses(step, verdicts, shards)
    _tell_losses(step, verdicts, shards)
    return Outcome([*kept, *verdicts], sum_counts(verdicts), facts)


def _check_dates(upstream: Mapping[str, Artifact]) -> None:
    """Who has no date comes last: said where some have none, and an error where nobody is newer than anybody."""
    ingested = {
        name.removeprefix("ingest/"): artifact.manifest.counts
        for name, artifact in upstream.items()
        if name.startswith("ingest/")
    }
    there = sum(counts["kept"] for counts in ingested.values())
    absent = {source: counts["absent"].get("created_at", 0) for source, counts in ingested.items()}
    undated = sum(absent.values())
    if there and undated == there:
        raise InputError(
            f"`keep: newest`, and none of {there:,} documents has a date",
            where="dedup.keep",
            next="name the field that holds it with `fields: {created_at: …}` of a source, or set `keep: first`",
        )
    if undated:
        worst = ", ".join(f"{count:,} of {source}" for source, count in absent.items() if count)
        message = "dedup: %s of %s documents have no `created_at` and come last in `keep: newest` (%s)"
        _LOG.warning(message, f"{undated:,}", f"{there:,}", worst)


def _roles(first: list[Input], more: list[Input]) -> list[Input]:
    """Each input once."""
    known = {item.role for item in first}
    return [*first, *(item for item in more if item.role not in known)]


def perform_verdicts(task: Task[VerdictOptions]) -> Made:
    kept = np.asarray(task.load("marks", ["kept"]).column("kept")).copy()
    considered = int(kept.sum())
    doc_ids = task.load("documents", ["doc_id"]).column("doc_id")
    parts = [
        _drops(
            [load_range(path, "shard", task.options.number) for path in task.paths(method.table)],
            method.reason,
        )
        for method in METHODS
    ]
    found = pa.concat_tables(parts).sort_by("row").combine_chunks()
    rows = np.asarray(found.column("row"))
    kept[rows] = False
    place = np.full(len(kept), -1, np.int64)
    place[rows] = np.arange(len(rows))
    where = pa.array(place, mask=place < 0)
    told = [found.column(name).combine_chunks().take(where) for name in VERDICTS.names[1:]]
    verdicts = pa.table([kept, *told], schema=VERDICTS)
    files = [write_shard_table(task.directory, f"verdicts-{task.key}.parquet", "verdicts", verdicts)]
    trims = [load_table(path, ["row"]) for path in task.paths("trims") if _is_of(path, task.key)]
    ledger = pa.concat_tables([_ledger(task, doc_ids, found), *(_edits(task, doc_ids, t) for t in trims)])
    if ledger.num_rows:
        files.append(
            write_shard_table(task.directory, f"ledger-{task.key}.parquet", "ledger", ledger.combine_chunks())
        )
    reasons = found.column("reason").to_pylist()
    dropped = {method.reason: reasons.count(method.reason) for method in METHODS if method.reason in reasons}
    counts = {"in": considered, "kept": int(kept.sum()), "dropped": dropped, "quarantined": {}}
    return Made(
        files, {**counts, "edited": {TRIMMED: sum(table.num_rows for table in trims)} if trims else {}}
    )


def _drops(tables: list[Any], reason: str) -> Any:
    """Rows of one reason, with the columns of a verdict."""
    table = pa.concat_tables([DROPS.empty_table(), *tables], promote_options="default")
    similarity = table.column("similarity").fill_null(1.0)  # equal texts
    table = table.set_column(table.column_names.index("similarity"), "similarity", similarity)
    return table.append_column("reason", pa.repeat(pa.scalar(reason, pa.string()), table.num_rows))


def _is_of(path: Path, key: str) -> bool:
    return path.stem.endswith(f"-{key}")


def _verdict_task(step: Step, shard: Shard, found: list[Input]) -> Task:
    return Task(
        function="dedup.verdicts",
        key=f"{shard.number:05d}",
        options=VerdictOptions(number=shard.number, shard=shard.name, source=shard.source),
        inputs=[shard.documents, shard.marks, *found],
        directory=str(step.directory),
    )


def _ledger(task: Task[VerdictOptions], doc_ids: Any, found: Any) -> Any:
    columns = {
        "shard": task.options.shard,
        "row": found.column("row"),
        "source": task.options.source,
        "doc_id": doc_ids.take(found.column("row")),
        "stage": "dedup",
        "verdict": "drop",
        "reason": found.column("reason"),
        "match_shard": found.column("survivor_shard"),
        "match_row": found.column("survivor_row"),
        "similarity": found.column("similarity"),
        "detail": found.column("detail"),
    }
    return ledger_table(columns, found.num_rows)


def _edits(task: Task[VerdictOptions], doc_ids: Any, trims: Any) -> Any:
    columns = {
        "shard": task.options.shard,
        "row": trims.column("row"),
        "source": task.options.source,
        "doc_id": doc_ids.take(trims.column("row")),
        "stage": "dedup",
        "verdict": "edit",
        "reason": TRIMMED,
    }
    return ledger_table(columns, trims.num_rows)


def _tell_losses(step: DedupStep, verdicts: list[Receipt], shards: list[Shard]) -> None:
    counts = by_source((shard.source, v.counts) for shard, v in zip(shards, verdicts, strict=True))
    ledgers = [step.directory / e.path for v in verdicts for e in v.files if e.table == "ledger"]
    for loss in find_losses(counts, step.extra.warn_source_loss, ledgers):
        _LOG.warning("%s: %s", step.name, loss)


def _check_losses(step: DedupStep, verdicts: list[Receipt], shards: list[Shard]) -> None:
    limit = step.options.max_source_loss
    if limit is None:
        return
    considered: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    for shard, receipt in zip(shards, verdicts, strict=True):
        # a record may have said which source it is of: not always that of the shard
        sources = np.asarray(load_table(Path(shard.documents.path), ["source"]).column("source"))
        was_in = np.asarray(load_table(Path(shard.marks.path), ["kept"]).column("kept"))
        is_in = np.asarray(load_table(step.directory / receipt.files[0].path, ["kept"]).column("kept"))
        considered.update(sources[was_in].tolist())
        lost.update(sources[was_in & ~is_in].tolist())
    over = [
        f"{source} loses {lost[source]:,} of {considered[source]:,}"
        for source in considered
        if lost[source] * 10**9 > considered[source] * int(float(limit) * 10**9)
    ]
    if over:
        raise DedupLimit(
            f"{'; '.join(over)}: more than max_source_loss {limit}",
            where="dedup",
            next="check that the source is not a copy of another; set its `priority`, or raise the limit",
        )


def _kernels(options: DedupOptions) -> set[str]:
    return set().union(*(method.kernels for method in METHODS if getattr(options, method.key)))


# --- losses ---

Counts = Mapping[
    str, tuple[int, Mapping[str, int]]
]  # source -> documents that came, and of them dropped by reason


class Loss(NamedTuple):
    """To one reason; or to several together, where none of them is enough to be told by itself."""

    source: str
    reasons: tuple[str, ...]  # the one that took most first
    rules: tuple[str, ...]  # that drop for the first
    lost: int
    came: int
    example: str  # the first document that went for the first reason

    @property
    def to(self) -> str:
        first = self.reasons[0] + (f" ({', '.join(self.rules)})" if self.rules else "")
        return first if len(self.reasons) == 1 else f"{len(self.reasons)} reasons, {first} first of them"

    def __str__(self) -> str:
        return (
            f"{self.source} loses {spelled_share(self.lost, self.came)} of its documents ({self.lost:,} of "
            f"{self.came:,}) to {self.to}; one of them is {self.example}"
        )


def find_losses(
    counts: Counts,
    limit: Decimal | None,
    ledgers: Iterable[Path],
    rules: Mapping[str, tuple[str, ...]] | None = None,
) -> list[Loss]:
    """Of more than this share of a source; in the order of the sources, the largest first."""
    over: list[Loss] = []
    for source, (came, dropped) in counts.items() if limit is not None else ():
        ranked = sorted(dropped, key=lambda reason: (-dropped[reason], reason))
        most = Fraction(limit) * came  # type: ignore[arg-type]
        alone: list[tuple[str, ...]] = [(reason,) for reason in ranked if dropped[reason] > most]
        for reasons in alone or ([tuple(ranked)] if sum(dropped.values()) > most else []):
            lost = sum(dropped[reason] for reason in reasons)
            over.append(Loss(source, reasons, (rules or {}).get(reasons[0], ()), lost, came, ""))
    examples = _examples([(loss.source, loss.reasons[0]) for loss in over], ledgers)
    return [loss._replace(example=examples.get((loss.source, loss.reasons[0]), "")) for loss in over]


def cleaning_losses(
    options: CleanOptions, counts: Json, limit: Decimal | None, ledgers: Iterable[Path]
) -> list[Loss]:
    """Of one source."""
    rules: dict[str, tuple[str, ...]] = {}
    for rule in options.sieve.rules:
        rules[rule.reason] = (*rules.get(rule.reason, ()), rule.name)
    return find_losses({options.source: (counts["in"], counts["dropped"])}, limit, ledgers, rules)


def by_source(counted: Iterable[tuple[str, Json]]) -> Counts:
    """Of shards: the source of each, and its counts."""
    found: dict[str, tuple[int, dict[str, int]]] = {}
    for source, counts in counted:
        came, dropped = found.get(source, (0, {}))
        added = {
            reason: dropped.get(reason, 0) + counts["dropped"].get(reason, 0)
            for reason in {**dropped, **counts["dropped"]}
        }
        found[source] = came + counts["in"], added
    return found


def _examples(wanted: list[tuple[str, str]], ledgers: Iterable[Path]) -> dict[tuple[str, str], str]:
    """The first id of each source and reason; no more ledgers are read than that takes."""
    found: dict[tuple[str, str], str] = {}
    paths: Iterator[Path] = iter(ledgers)
    while len(found) < len(wanted) and (path := next(paths, None)) is not None:
        table = load_table(path, ["source", "reason", "doc_id", "verdict"])
        for source, reason in wanted:
            if (source, reason) not in found:
                is_it = pc.and_(
                    pc.equal(table.column("source"), source), pc.equal(table.column("reason"), reason)
                )
                at = pc.index(pc.and_(is_it, pc.equal(table.column("verdict"), "drop")), True).as_py()
                if at >= 0:
                    found[source, reason] = table.column("doc_id")[at].as_py()
    return found


STAGE = Stage(
    "dedup",
    DedupOptions,
    conduct,
    {
        **{name: function for method in METHODS for name, function in method.tasks.items()},
        "dedup.verdicts": TaskFunction(VerdictOptions, perform_verdicts),
    },
    _kernels,
)

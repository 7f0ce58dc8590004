"""Dedup: which documents say what another one already says. Every drop names its survivor.

    against    ─> contaminated-<s>   items of a benchmark
    earlier    ─> earlier-<s>        documents of earlier corpora
    url        ─> url-<p>            a page that was there already
    exact      ─> matches-<p>        duplicate -> survivor
    templates  ─> templates-<s>, stripped-<s>  lines that recur on the pages of a site
    near       ─> near, clusters
    window     ─> window, trims-<s>  passages said before
    all of these ─ shard s ─> verdicts-<s>  every row      ledger-<s>  what was dropped and for whom

A method is a module of its name, with the record METHOD; the recipe's section says which there are, and in
which order. The result depends on the order of documents and the policy alone, not on shards or partitions.
"""

from __future__ import annotations

import logging
import shlex
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pyarrow as pa

from tokmill.artifacts.cache import cache_of, sweep_table, sweep_texts
from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import NO_DOCUMENTS, Json, Receipt, add_counts, sum_counts
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
    tables_of,
)
from tokmill.artifacts.upstream import Shard, list_shards, write_shard_table
from tokmill.duplicates.near import NearOptions
from tokmill.errors import DedupLimit, InputError
from tokmill.recipe import names
from tokmill.schema import DEDUP_EDITS, DROPS, VERDICTS, ledger_table, one_piece
from tokmill.stages.dedup.exact import FOLDED
from tokmill.stages.dedup.method import (
    TABLES,
    UNSAID,
    Considered,
    DedupOptions,
    DedupStep,
    Method,
    is_date,
    keep_of,
    rank_inputs,
    resolves_copies,
    row_starts,
)
from tokmill.stages.dedup.survivors import ResolveOptions, perform_resolve
from tokmill.stages.losses import by_source, find_losses
from tokmill.stages.warnings import tell
from tokmill.storage.tables import load_range, load_table

_LOG = logging.getLogger("tokmill.duplicates")

METHODS: tuple[Method[Any], ...] = tuple(
    import_module(f"tokmill.stages.dedup.{key}").METHOD for key in names.METHODS
)

_SHOWN = 40  # characters of a date that is none
_OF_A_SHARD = (*DEDUP_EDITS, *(method.table for method in METHODS if method.by_shard))

AllOptions = cast(
    type[DedupOptions],
    msgspec.defstruct(
        "AllOptions",
        # a method that recipes did not always have is not in the config where it is not asked for
        [
            (method.key, method.options | None, None)
            if method.key in ("earlier", *names.LATER_METHODS)
            else (method.key, method.options | None)
            for method in METHODS
        ],
        bases=(DedupOptions,),
        frozen=True,
        kw_only=True,
        omit_defaults=True,
    ),
)


class DateOptions(TaskOptions, frozen=True):
    number: int


class VerdictOptions(TaskOptions, frozen=True):
    number: int
    shard: str
    source: str
    details: dict[str, str]  # by the table of a method: what the ledger tells of all its drops


def said_versions(options: DedupOptions, *, has_chats: bool) -> dict[str, str]:
    """For the fingerprint of the step: how the methods that are asked for read texts and decide."""
    found = {
        f"version of {method.key}": [
            version
            for version in method.versions(options, getattr(options, method.key), has_chats)
            if version not in UNSAID
        ]
        for method in METHODS
        if getattr(options, method.key)
    }
    return {name: ", ".join(versions) for name, versions in found.items() if versions}


def conduct(step: DedupStep, upstream: Mapping[str, Artifact]) -> Conduct:
    options, shards = step.options, list_shards(upstream)
    if options.keep == "newest":
        _check_dates(shards, (yield [_date_task(step, shard) for shard in shards]))
    facts: Json = {"shards": [shard.name for shard in shards]}
    _sweep_cache(step, shards)
    found: list[Input] = []  # who goes, by what was looked at so far
    kept: list[Receipt] = []  # whose files stay

    def considered(method: Method[Any]) -> list[Considered]:
        return [
            Considered(
                shard,
                keep_of(options, shard, upstream),
                [
                    *_roles(method.reads(options, shard), rank_inputs(options, shard, upstream)),
                    *_concerning(shard, found),
                ],
            )
            for shard in shards
        ]

    edges: list[Input] = []  # of copies that are still to be resolved
    for method in METHODS:
        asked = getattr(options, method.key)
        if method.key == "near" and edges and not (asked and asked.policy == "drop"):
            receipts = yield [resolve_task(step, shards, None, edges, found)]
            found += _drop_tables(step, receipts)
            kept += receipts
            edges = []
        if not asked:
            continue
        receipts = yield from method.find(step, asked, considered(method))
        alike = tables_of(step, receipts, "edges")
        edges += alike
        found += tables_of(step, receipts, "later")
        if method.key == "near":
            receipts = yield [resolve_task(step, shards, asked, edges, found)]
            edges = []
        elif alike:
            continue
        found += _drop_tables(step, receipts)
        found += tables_of(step, receipts, method.edits.table) if method.edits else []
        kept += receipts
        if method.facts is not None:
            facts[method.key] = method.facts(step, receipts)
    verdicts = yield [_verdict_task(step, shard, found) for shard in shards]
    _check_losses(step, verdicts, shards)
    _tell_losses(step, verdicts, shards)
    return Outcome([*kept, *verdicts], add_counts(NO_DOCUMENTS, sum_counts(verdicts)), facts)


def _drop_tables(step: DedupStep, receipts: list[Receipt]) -> list[Input]:
    return [item for table in TABLES.values() for item in tables_of(step, receipts, table)]


def resolve_task(
    step: DedupStep,
    shards: list[Shard],
    near: NearOptions | None,
    edges: list[Input],
    found: list[Input],
) -> Task[ResolveOptions]:
    """Plan the walk over all copies: `near` only where near duplicates are among them."""
    options = step.options
    asked = [key for key in ("url", "exact") if getattr(options, key)]
    finds_copies = near is None or (near.policy == "drop" and resolves_copies(options))
    return Task(
        function="dedup.resolve",
        key="near" if near else "copies",
        options=ResolveOptions(
            near=near,
            starts=row_starts(shards),
            shards=tuple(shard.name for shard in shards),
            sources=tuple(shard.source for shard in shards),
            reference=options.reference,
            copies=tuple(TABLES[key] for key in asked) if finds_copies else (),
            inherits=not getattr(options, "templates", None),
        ),
        inputs=[*edges, *(item for item in found if item.role in TABLES.values())],
        directory=str(step.directory),
    )


def _sweep_cache(step: DedupStep, shards: list[Shard]) -> None:
    """What is kept of shards that are gone, and of methods that are not asked for."""
    directory = cache_of(step.directory.parent, step.name)
    if directory is None:
        return
    sweep_texts(directory, [shard.documents.content_sha256 for shard in shards])
    for method in METHODS:
        if not getattr(step.options, method.key):
            for table in method.cached:
                sweep_table(directory, table, ())


def _date_task(step: DedupStep, shard: Shard) -> Task[DateOptions]:
    return Task(
        function="dedup.dates",
        key=f"d{shard.number:05d}",
        options=DateOptions(number=shard.number),
        inputs=[shard.documents],
        directory=str(step.directory),
    )


def perform_dates(task: Task[DateOptions]) -> Made:
    """How many documents have no date, or one that is not compared."""
    dates = one_piece(task.load("documents", ["created_at"]).column("created_at"))
    counted = dates.drop_null().value_counts().to_pylist()
    unread = {one["values"]: one["counts"] for one in counted if not is_date(one["values"])}
    facts = {"of": len(dates), "absent": dates.null_count, "unread": sum(unread.values())}
    return Made([], {}, {**facts, "example": next(iter(unread), "")})


def _check_dates(shards: list[Shard], dated: list[Receipt]) -> None:
    """Who has no date comes last: said where some have none,
    and an error where nobody is newer than anybody."""
    absent: Counter[str] = Counter()
    unread: Counter[str] = Counter()
    for shard, receipt in zip(shards, dated, strict=True):
        absent[shard.source] += receipt.facts["absent"]
        unread[shard.source] += receipt.facts["unread"]
    there = sum(receipt.facts["of"] for receipt in dated)
    example = next((receipt.facts["example"][:_SHOWN] for receipt in dated if receipt.facts["unread"]), "")
    if there and absent.total() == there:
        raise InputError(
            f"`keep: newest`, and none of {there:,} documents has a date",
            where="dedup.keep",
            next=(
                "name the field that holds it with `fields: {created_at: …}` of a source, or set `keep: "
                "first`"
            ),
        )
    if there and absent.total() + unread.total() == there:
        raise InputError(
            f"`keep: newest`, and none of {there:,} documents has a date that can be compared: `{example}` "
            "is none",
            where="dedup.keep",
            next="write dates as 2024-05-31 or 2024-05-31T12:30:00Z, or set `keep: first`",
        )
    foreign = f"a `created_at` that does not begin with the year, month and day, such as `{example}`,"
    for counts, what in ((absent, "no `created_at`"), (unread, foreign)):
        if counts.total():
            worst = ", ".join(f"{count:,} of {source}" for source, count in counts.items() if count)
            message = "dedup: %s of %s documents have %s and come last in `keep: newest` (%s)"
            _LOG.warning(message, f"{counts.total():,}", f"{there:,}", what, worst)


def _concerning(shard: Shard, found: list[Input]) -> list[Input]:
    """Who goes, of all shards where the table does not say which; changed texts of this one."""
    key = f"{shard.number:05d}"
    return [item for item in found if item.role not in _OF_A_SHARD or _is_of(Path(item.path), key)]


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
            method,
            task.options.details.get(method.table),
        )
        for method in METHODS
    ]
    found = _last_of_row(pa.concat_tables(parts))
    rows = np.asarray(found.column("row"))
    kept[rows] = False
    place = np.full(len(kept), -1, np.int64)
    place[rows] = np.arange(len(rows))
    where = pa.array(place, mask=place < 0)
    told = [found.column(name).combine_chunks().take(where) for name in VERDICTS.names[1:]]
    verdicts = pa.table([kept, *told], schema=VERDICTS)
    files = [write_shard_table(task.directory, f"verdicts-{task.key}.parquet", "verdicts", verdicts)]
    edited = {
        reason: load_table(path)
        for table, reason in (method.edits for method in METHODS if method.edits)
        for path in task.paths(table)
    }
    told_edits = [_edits(task, doc_ids, reason, table) for reason, table in edited.items()]
    ledger = pa.concat_tables([_ledger(task, doc_ids, found), *told_edits])
    if ledger.num_rows:
        files.append(
            write_shard_table(task.directory, f"ledger-{task.key}.parquet", "ledger", ledger.combine_chunks())
        )
    reasons = found.column("reason").to_pylist()
    known = [reason for method in METHODS for reason in (method.reason, *method.others)]
    dropped = {reason: reasons.count(reason) for reason in known if reason in reasons}
    counts = {"in": considered, "kept": int(kept.sum()), "dropped": dropped, "quarantined": {}}
    return Made(files, {**counts, "edited": {reason: table.num_rows for reason, table in edited.items()}})


def _last_of_row(found: Any) -> Any:
    """By row; where several methods tell of a document, as the last of them does."""
    rows = np.asarray(found.column("row"))
    order = np.argsort(rows, kind="stable")
    is_last = np.diff(rows[order], append=np.uint32(0)) != 0
    is_last[-1:] = True
    return found.take(pa.array(order[is_last])).combine_chunks()


def _drops(tables: list[Any], method: Method[Any], detail: str | None) -> Any:
    """Rows of one reason, with the columns of a verdict."""
    table = pa.concat_tables([DROPS.empty_table(), *tables], promote_options="default")
    if detail is not None:
        details = pa.repeat(pa.scalar(detail, pa.string()), table.num_rows)
        table = table.set_column(table.column_names.index("detail"), "detail", details)
    if method.similarity is not None:
        similarity = table.column("similarity").fill_null(method.similarity)
        table = table.set_column(table.column_names.index("similarity"), "similarity", similarity)
    if "reason" in table.column_names:
        return table.set_column(
            table.column_names.index("reason"), "reason", table.column("reason").fill_null(method.reason)
        )
    return table.append_column("reason", pa.repeat(pa.scalar(method.reason, pa.string()), table.num_rows))


def _is_of(path: Path, key: str) -> bool:
    return path.stem.endswith(f"-{key}")


def _verdict_task(step: Step, shard: Shard, found: list[Input]) -> Task:
    is_folded = step.options.exact == FOLDED
    details = {TABLES["exact"]: "folded: case, white space and Unicode form aside"} if is_folded else {}
    return Task(
        function="dedup.verdicts",
        key=f"{shard.number:05d}",
        options=VerdictOptions(number=shard.number, shard=shard.name, source=shard.source, details=details),
        inputs=[shard.documents, shard.marks, *_concerning(shard, found)],
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


def _edits(task: Task[VerdictOptions], doc_ids: Any, reason: str, edited: Any) -> Any:
    columns = {
        "shard": task.options.shard,
        "row": edited.column("row"),
        "source": task.options.source,
        "doc_id": doc_ids.take(edited.column("row")),
        "stage": "dedup",
        "verdict": "edit",
        "reason": reason,
        # how many characters and of what, where the table tells
        "value": edited.column("chars") if "chars" in edited.column_names else None,
        "detail": edited.column("host") if "host" in edited.column_names else None,
    }
    return ledger_table(columns, edited.num_rows)


def _tell_losses(step: DedupStep, verdicts: list[Receipt], shards: list[Shard]) -> None:
    counts = by_source((shard.source, v.counts) for shard, v in zip(shards, verdicts, strict=True))
    ledgers = [step.directory / e.path for v in verdicts for e in v.files if e.table == "ledger"]
    tell(step.name, find_losses(counts, step.extra.warn_source_loss, ledgers))


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
        run = shlex.quote(str(step.directory.parent))
        raise DedupLimit(
            f"{'; '.join(over)}: more than max_source_loss {limit}",
            where="dedup",
            next=(
                "see what they are lost to: run once without the limit, then "
                f"`tokmill why {run} --reason all`; of copies of another source set the `priority`, of "
                "others change what drops them, or raise the limit"
            ),
        )


STAGE = Stage(
    "dedup",
    AllOptions,
    conduct,
    {
        **{name: function for method in METHODS for name, function in method.tasks.items()},
        "dedup.dates": TaskFunction(DateOptions, perform_dates),
        "dedup.resolve": TaskFunction(ResolveOptions, perform_resolve),
        "dedup.verdicts": TaskFunction(VerdictOptions, perform_verdicts),
    },
)

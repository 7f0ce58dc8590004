"""Templates of a site as tasks: lines that recur on the pages of one host, taken out of them.

    shard ─ URLs ─> hosts-<s>                   a run by host: its pages
    range of hosts ─ add up ─> sites-<p>        hosts that are large enough: pages, and those a line needs
    shard ─ lines ─> blocks-<s>                 a run by host and line: pages that have it, and those it needs
    range of lines ─ add up ─> recurring-<p>    a run of the lines that recur
    shard ─ lines again ─> stripped-<s>         texts without them
                         ├ template_spans-<s>   what went
                         └ templates-<s>        pages of which nothing is left

Numbers are added, so no cut of the corpus matters. Memory is bounded by a shard or a range: a host with many
pages has its lines in all ranges. Copies of one page, by URL or by text, would make templates of its prose:
of several the first is counted. Lines are taken out of all of them, for another one may be kept.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Json, Receipt
from tokmill.artifacts.step import Made, Task, TaskFunction, TaskOptions, tables_of
from tokmill.artifacts.upstream import write_shard_table, write_task_table
from tokmill.clean.urls import URL_NORMALIZATION, meta_strings, normalize_urls
from tokmill.duplicates.templates import (
    LINE_NORMALIZATION,
    Hosts,
    TemplateOptions,
    count_pages,
    fewest_pages,
    hosts_of,
    site_lines,
    strip_lines,
)
from tokmill.kernels.sitelines import Lines
from tokmill.schema import DROPS, STRIPPED, TEMPLATE_SPANS, large_strings, one_piece
from tokmill.stages.dedup.method import (
    Considered,
    DedupOptions,
    DedupStep,
    Edited,
    Keep,
    Method,
    Phase,
    considered_rows,
    later_copies,
    load_texts,
    scope_salts,
)
from tokmill.stages.external.runs import (
    Layout,
    hash_range,
    joined,
    load_between,
    open_runs,
    partitions_for,
    write_run,
)

_LOG = logging.getLogger("tokmill.duplicates")

HOSTS: Layout = {"host": "<u8", "pages": "<i8"}
SITES: Layout = {"host": "<u8", "pages": "<i8", "needed": "<i8"}
BLOCKS: Layout = {"key": "<u8", "pages": "<i8", "needed": "<i8"}
RECURRING: Layout = {"key": "<u8", "pages": "<i8"}

# 24 bytes a line of a shard, and four times that to sort and add them.
BLOCKS_AT_ONCE = 1_000_000

Keys = NDArray[np.uint64]


class HostOptions(TaskOptions, frozen=True):
    templates: TemplateOptions
    number: int
    group: int
    keep: Keep
    by_source: bool
    normalization: tuple[str, str]  # of URLs and of lines
    is_reference: bool = False
    is_chat: bool = False


class RangeOptions(TaskOptions, frozen=True):
    templates: TemplateOptions
    partition: int
    partitions: int


class _Loaded(NamedTuple):
    """The considered documents of a shard, their lines, and what is known of their hosts; 0 pages where that
    is no site that is large enough."""

    rows: NDArray[np.int64]
    texts: Any
    hosts: Hosts
    lines: Lines
    host_pages: NDArray[np.int64]
    needed: NDArray[np.int64]


def _find_templates(step: DedupStep, asked: TemplateOptions, considered: Sequence[Considered]) -> Phase:
    directory, at_least = str(step.directory), step.options.partitions
    groups = step.options.groups([one.shard for one in considered])

    def shard_tasks(function: str, key: str, more: Sequence[Any] = ()) -> list[Task]:
        return [
            Task(
                function=function,
                key=f"{key}{shard.number:05d}",
                options=HostOptions(
                    templates=asked,
                    number=shard.number,
                    group=group,
                    keep=keep,
                    by_source=step.options.by_source,
                    normalization=(URL_NORMALIZATION, LINE_NORMALIZATION),
                    is_reference=shard.source in step.options.reference,
                    is_chat=shard.is_chat,
                ),
                inputs=[*inputs, *more],
                directory=directory,
            )
            for (shard, keep, inputs), group in zip(considered, groups, strict=True)
        ]

    def range_tasks(function: str, key: str, runs: Sequence[Any]) -> list[Task]:
        partitions = partitions_for(sum(item.rows for item in runs), BLOCKS_AT_ONCE, at_least)
        return [
            Task(
                function=function,
                key=f"{key}{partition:04d}",
                options=RangeOptions(templates=asked, partition=partition, partitions=partitions),
                inputs=list(runs),
                directory=directory,
            )
            for partition in range(partitions)
        ]

    counted = yield shard_tasks("dedup.hosts", "a")
    hosts = tables_of(step, counted, "hosts")
    if not sum(item.rows for item in hosts):
        message = "dedup: no document has a URL in `meta.%s`; carry it along with `fields: {meta: [%s]}`"
        _LOG.warning(message, asked.field, asked.field)
    large = yield range_tasks("dedup.sites", "i", hosts)
    sites = tables_of(step, large, "sites")
    hashed = yield shard_tasks("dedup.blocks", "l", sites)
    added = yield range_tasks("dedup.recurring", "r", tables_of(step, hashed, "blocks"))
    return (yield shard_tasks("dedup.strip", "", [*sites, *tables_of(step, added, "recurring")]))


def _load_hosts(task: Task[HostOptions], rows: NDArray[np.int64]) -> Hosts:
    """Hosts of sources that are kept apart are not the same; a conversation is no page of any: its headers,
    which are a line each, recur."""
    options = task.options
    meta = one_piece(task.load("documents", ["meta"]).column("meta")).take(pa.array(rows))
    hosts = hosts_of(normalize_urls(meta_strings(meta, options.templates.field)))
    salts = scope_salts(task, rows, group=options.group, by_source=options.by_source)
    is_known = hosts.is_known & (not options.is_chat)
    return hosts._replace(keys=hosts.keys ^ salts, is_known=is_known)


def _load_lines(task: Task[HostOptions], rows: NDArray[np.int64]) -> _Loaded:
    options = task.options
    texts, hosts = load_texts(task.inputs, rows), _load_hosts(task, rows)
    known, places = np.unique(hosts.keys, return_inverse=True)
    is_site, (pages, needed) = _look_up(task, "sites", SITES, known)
    is_wanted = is_site[places] & hosts.is_known
    lines = site_lines(texts, hosts.keys, is_wanted, options.templates.max_chars)
    return _Loaded(rows, texts, hosts, lines, pages[places], needed[places])


def _counted_rows(task: Task[HostOptions]) -> NDArray[np.int64]:
    """Documents of a shard without a copy before them."""
    rows = considered_rows(task.inputs, task.options.number)
    (marks,) = (item for item in task.inputs if item.role == "marks")
    copies = later_copies(task.inputs, task.options.number, marks.rows)
    return rows[~(copies.by_url | copies.by_text)[rows]]


def _look_up(task: Task[Any], role: str, layout: Layout, keys: Keys) -> tuple[Any, list[Any]]:
    """Which of these keys, ascending, are in the runs of all ranges, and what is told of them there."""
    _, *names = layout
    is_there, told = np.zeros(len(keys), np.bool_), [np.zeros(len(keys), np.int64) for _ in names]
    runs = open_runs(task.inputs, role, layout)
    for partition, run in enumerate(runs):
        first, stop = _bounds(keys, *hash_range(partition, len(runs)))
        if first == stop or not run.rows:
            continue
        places = run.search(keys[first:stop], next(iter(layout)))
        at = np.flatnonzero(places < run.rows)
        found, *columns = run.take(places[at], list(layout))
        is_equal = found == keys[first:stop][at]
        is_there[first + at[is_equal]] = True
        for column, values in zip(told, columns, strict=True):
            column[first + at[is_equal]] = values[is_equal]
    return is_there, told


def _bounds(keys: Keys, low: int, high: int) -> tuple[int, int]:
    first = int(np.searchsorted(keys, np.uint64(low)))
    return first, len(keys) if high >= 1 << 64 else int(np.searchsorted(keys, np.uint64(high)))


def _load_range(task: Task[RangeOptions], role: str, layout: Layout) -> list[Any]:
    bounds = hash_range(task.options.partition, task.options.partitions)
    return joined(load_between(open_runs(task.inputs, role, layout), *bounds), layout)


def perform_hosts(task: Task[HostOptions]) -> Made:
    hosts = _load_hosts(task, _counted_rows(task))
    keys, pages = np.unique(hosts.keys[hosts.is_known], return_counts=True)
    return Made([write_run(task, "hosts", [keys, pages], HOSTS)], {})


def perform_sites(task: Task[RangeOptions]) -> Made:
    """The hosts of a range that are large enough."""
    options = task.options.templates
    host, pages = _load_range(task, "hosts", HOSTS)
    hosts, places = np.unique(host, return_inverse=True)
    totals = np.zeros(len(hosts), np.int64)
    np.add.at(totals, places, pages)
    is_large = totals >= options.min_host_pages
    columns = [hosts[is_large], totals[is_large], options.pages_needed(totals[is_large])]
    return Made([write_run(task, "sites", columns, SITES)], {})


def perform_blocks(task: Task[HostOptions]) -> Made:
    loaded = _load_lines(task, _counted_rows(task))
    keys, pages, rows = count_pages(loaded.lines)
    return Made([write_run(task, "blocks", [keys, pages, loaded.needed[rows]], BLOCKS)], {})


def perform_recurring(task: Task[RangeOptions]) -> Made:
    """The lines of a range that are on as many pages as they need."""
    key, pages, needed = _load_range(task, "blocks", BLOCKS)
    keys, firsts, places = np.unique(key, return_index=True, return_inverse=True)
    totals = np.zeros(len(keys), np.int64)
    np.add.at(totals, places, pages)
    recurs = totals >= needed[firsts]
    return Made([write_run(task, "recurring", [keys[recurs], totals[recurs]], RECURRING)], {})


def perform_strip(task: Task[HostOptions]) -> Made:
    """The texts of one shard without the lines that recur."""
    facts = {
        "hosts": sum(item.rows for item in task.inputs if item.role == "sites"),
        "blocks": sum(item.rows for item in task.inputs if item.role == "recurring"),
        "lines_cut": 0,
        "bytes_cut": 0,
    }
    if task.options.is_reference or task.options.is_chat:
        return Made([], {}, facts)
    loaded = _load_lines(task, considered_rows(task.inputs, task.options.number))
    lines = loaded.lines
    keys, places = np.unique(lines.keys, return_inverse=True)
    recurs, (pages,) = _look_up(task, "recurring", RECURRING, keys)
    is_cut = recurs[places]
    if not is_cut.any():
        return Made([], {}, facts)
    cut = strip_lines(loaded.texts, lines, is_cut)
    rows = loaded.rows[cut.rows].astype(np.uint32)
    gone = np.bincount(lines.rows[is_cut], minlength=len(loaded.rows))[cut.rows]
    hosts = loaded.hosts.names.take(pa.array(cut.rows)).cast(pa.string())
    texts = large_strings(cut.data, cut.offsets)
    edited = pa.table([rows, texts, cut.chars, gone, hosts], schema=STRIPPED)
    stripped = edited.filter(pa.array(cut.is_filled)).combine_chunks()
    emptied = edited.filter(pa.array(~cut.is_filled))
    spans = pa.table(
        [
            loaded.rows[cut.span_rows].astype(np.uint32),
            cut.span_starts,
            cut.span_ends,
            fewest_pages(cut, lines.rows[is_cut], lines.starts[is_cut], pages[places][is_cut]),
            loaded.host_pages[cut.span_rows],
        ],
        schema=TEMPLATE_SPANS,
    )
    drops = _drops(task.options.number, emptied)
    files = [write_task_table(task, "templates", drops, "shard")]
    tables = {"stripped": stripped, "template_spans": spans}
    files += [
        write_shard_table(task.directory, f"{name}-{task.key}.parquet", name, table)
        for name, table in tables.items()
        if table.num_rows
    ]
    cut_bytes = int((cut.span_ends - cut.span_starts).sum())
    return Made(files, {}, {**facts, "lines_cut": int(is_cut.sum()), "bytes_cut": cut_bytes})


def _drops(number: int, emptied: Any) -> Any:
    """Pages that are nothing but lines of their site."""
    rows = emptied.num_rows
    told = [
        f"all {lines} lines recur on {host}"
        for lines, host in zip(
            emptied.column("lines").to_pylist(), emptied.column("host").to_pylist(), strict=True
        )
    ]
    columns = {
        "shard": pa.array(np.full(rows, number, np.uint32)),
        "row": one_piece(emptied.column("row")),
        "detail": pa.array(told, pa.string()),
    }
    return pa.table([columns.get(field.name, pa.nulls(rows, field.type)) for field in DROPS], schema=DROPS)


def _facts(step: DedupStep, receipts: Sequence[Receipt]) -> Json:
    sums = {name: sum(receipt.facts[name] for receipt in receipts) for name in ("lines_cut", "bytes_cut")}
    of_all = {name: max((r.facts[name] for r in receipts), default=0) for name in ("hosts", "blocks")}
    return {**of_all, **sums}


def _versions(options: DedupOptions, asked: TemplateOptions, has_chats: bool) -> list[str]:
    spared = ["conversations are no pages"] if has_chats else []
    return [URL_NORMALIZATION, LINE_NORMALIZATION, *spared]


METHOD = Method(
    key="templates",
    options=TemplateOptions,
    reason="only_site_template",
    find=_find_templates,
    tasks={
        "dedup.hosts": TaskFunction(HostOptions, perform_hosts),
        "dedup.sites": TaskFunction(RangeOptions, perform_sites),
        "dedup.blocks": TaskFunction(HostOptions, perform_blocks),
        "dedup.recurring": TaskFunction(RangeOptions, perform_recurring),
        "dedup.strip": TaskFunction(HostOptions, perform_strip),
    },
    facts=_facts,
    similarity=None,  # it is like no other page
    versions=_versions,
    edits=Edited("stripped", "site_template"),
)

"""Where each split ends, for methods that have to see all documents first.

    shard s ─ doc_id, marks ─> keys-<s>          row, key, and what makes texts equal
    keys of all shards ─ select ─> bounds        by group: all documents, or those of a domain
    clusters of near duplicates ┘ └> selection   (shard, row, split) of documents that are held together

All of it is scaffolding, gone when the step is done.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokmill.artifact import Artifact
from tokmill.errors import InputError, RecipeError
from tokmill.manifest import Json, Receipt
from tokmill.schema import NO_SPLIT
from tokmill.split import (
    SPLITS,
    TEST,
    TRAIN,
    VALID,
    Bound,
    Quota,
    Together,
    allot,
    bound_at,
    formula_size,
    hash_bounds,
    hash_keys,
    hold_together,
    label_keys,
    list_clusters,
    shuffle_keys,
)
from tokmill.stages.step import Made, Shard, Step, write_shard_table, write_sorted_shard_table
from tokmill.storage.parquet import load_table
from tokmill.task import Input, Task, table_input

KEYS = pa.schema(
    [
        pa.field("row", pa.uint32(), nullable=False),
        pa.field("key", pa.uint64(), nullable=False),
        pa.field("text", pa.uint64(), nullable=False),  # half of the exact hash
    ]
)
SELECTION = pa.schema(
    [
        pa.field("shard", pa.uint32(), nullable=False),
        pa.field("row", pa.uint32(), nullable=False),
        pa.field("split", pa.uint8(), nullable=False),
    ]
)


class ShardSelection(NamedTuple):
    """What a shard is labelled with."""

    inputs: list[Input]
    bounds: Json
    start: int  # number of its first kept document, of all


class Selected(NamedTuple):
    shards: list[ShardSelection]
    facts: Json


def select(
    step: Step, upstream: Mapping[str, Artifact], shards: list[Shard], kept: list[Input]
) -> Generator[list[Task], list[Receipt], Selected]:
    config, directory = step.config, str(step.directory)
    how = {"method": config["method"], "seed": config.get("seed")}
    clusters = _clusters(upstream) if config["by"] == "cluster" else []
    keyed = yield [
        Task(
            function="split.keys",
            key=f"k{shard.number:05d}",
            config={**how, "source": shard.source},
            inputs=[shard.documents, shard.marks, item],
            directory=directory,
        )
        for shard, item in zip(shards, kept, strict=True)
    ]
    keys = [table_input("keys", step.directory, receipt.files[0]) for receipt in keyed]
    starts = list(itertools.accumulate((item.rows for item in keys), initial=0))
    domains = list(dict.fromkeys(shard.domain for shard in shards))
    groups = [domains.index(shard.domain) if config["method"] == "formula" else 0 for shard in shards]
    totals = [0] * (max(groups, default=0) + 1)
    for group, item in zip(groups, keys, strict=True):
        totals[group] += item.rows
    quotas = _quotas(config, totals)
    (selected,) = yield [
        Task(
            function="split.select",
            key="selection",
            config={
                "shards": [shard.name for shard in shards],
                "starts": starts,
                "groups": groups,
                "quotas": [list(quota) for quota in quotas],
                "bounds": _known_bounds(config),
                "rest": rest_of(config),
            },
            inputs=[*keys, *clusters],
            directory=directory,
        )
    ]
    selection = table_input("selection", step.directory, selected.files[0])
    return Selected(
        [
            ShardSelection([own, selection], selected.facts["bounds"][group], start)
            for own, group, start in zip(keys, groups, starts, strict=False)
        ],
        _facts(config, domains, quotas, selected.facts),
    )


def rest_of(config: Json) -> int:
    """What documents are that no split took."""
    is_counted = config["method"] == "counts" and config["counts"]["train"] is not None
    return NO_SPLIT if is_counted else TRAIN


def _known_bounds(config: Json) -> list[list[Any]] | None:
    if config["method"] != "hash":
        return None
    bounds = hash_bounds(Decimal(config["valid_fraction"]), Decimal(config["test_fraction"]))
    return [list(bound) for bound in bounds]


def _quotas(config: Json, totals: list[int]) -> list[Quota]:
    """In the order in which splits are filled; `totals` are documents by group."""
    if config["method"] == "counts":
        counts, there = config["counts"], sum(totals)
        wanted = [(VALID, counts["valid"]), (TEST, counts["test"]), (TRAIN, counts["train"] or 0)]
        asked = sum(count for _, count in wanted)
        if asked > there:
            raise InputError(
                f"the counts ask for {asked:,} documents, and there are {there:,}",
                where="split.counts",
                next="lower them; `train` may be left out, and is then the rest",
            )
        return [Quota(split, [count]) for split, count in wanted if count]
    if config["method"] == "formula":
        sizes = [formula_size(total) for total in totals]
        return [Quota(split, sizes) for split in ((VALID, TEST) if config["test"] else (VALID,))]
    return []


def _clusters(upstream: Mapping[str, Artifact]) -> list[Input]:
    dedup = upstream.get("dedup")
    entries = dedup.manifest.entries("clusters") if dedup is not None else []
    if dedup is None or not entries:
        raise RecipeError(
            "there are no clusters to hold together",
            where="split.by",
            next="set `dedup: {near: {}}`, with `policy: report` if nothing is to be dropped",
        )
    return [table_input("clusters", dedup.directory, entry) for entry in entries]


def _facts(config: Json, domains: list[str], quotas: list[Quota], found: Json) -> Json:
    """What was asked for, and how many documents it fell short, because clusters are not parted."""
    facts: Json = {}
    for name, sizes in (("asked", [quota.sizes for quota in quotas]), ("short", found["short"])):
        by_split = {SPLITS[quota.split]: row for quota, row in zip(quotas, sizes, strict=True)}
        if config["method"] == "formula":
            facts[name] = {
                domain: {split: row[group] for split, row in by_split.items()}
                for group, domain in enumerate(domains)
            }
        elif config["method"] == "counts":
            facts[name] = {split: row[0] for split, row in by_split.items()}
    if config["by"] == "cluster":
        facts["together"] = found["together"]
    return facts


# --- tasks ---


def perform_keys(task: Task) -> Made:
    config = task.config
    rows = np.flatnonzero(np.asarray(task.load("kept", ["kept"]).column("kept")))
    doc_ids = task.load("documents", ["doc_id"]).column("doc_id").take(pa.array(rows))
    marks = task.load("marks", ["exact_high", "exact_low"])
    hashes = np.stack([np.asarray(marks.column(name))[rows] for name in marks.column_names], axis=1)
    if config["method"] == "hash":
        keys = hash_keys(doc_ids)
    else:
        keys = shuffle_keys(doc_ids, hashes, config["source"], config["seed"])
    table = pa.table([rows.astype(np.uint32), keys, hashes[:, 1]], schema=KEYS)
    return Made([write_shard_table(task.directory, f"keys-{task.key}.parquet", "keys", table)], {})


def perform_select(task: Task) -> Made:
    """Memory: a key and its sorted copy, 20 bytes per document in all, and 420 per cluster (docs/splits.md)."""
    config, paths = task.config, task.paths("keys")
    starts, groups = np.asarray(config["starts"]), np.asarray(config["groups"], np.int64)
    together = _together(task, paths)
    keys = _columns(task, "key")
    shards = np.searchsorted(starts, together.docs, side="right") - 1
    clusters, place = list_clusters(together, keys[together.docs], groups[shards])
    n_groups = int(groups.max(initial=0)) + 1
    if config["bounds"] is not None:
        known = [Bound(*bound) for bound in config["bounds"]]
        labels = label_keys(clusters.keys, np.zeros(len(clusters.keys), np.int64), known, config["rest"])
        bounds, short = [[list(bound) for bound in known]] * n_groups, []
    else:
        quotas = [Quota(*quota) for quota in config["quotas"]]
        is_single = np.ones(len(keys), np.bool_)
        is_single[together.docs] = False

        def members(group: int) -> Any:
            return is_single & np.repeat(groups == group, np.diff(starts))

        ordered = [keys[members(group)] for group in range(n_groups)]
        for own in ordered:
            own.sort()
        found = allot(ordered, clusters, quotas)
        labels, short = found.clusters, found.short
        labels[labels == NO_SPLIT] = config["rest"]
        bounds = [
            [
                list(bound_at(keys, members(group), ordered[group], ends[group], quota.split))
                for quota, ends in zip(quotas, found.ends, strict=True)
            ]
            for group in range(n_groups)
        ]
    rows = [np.empty(0, np.uint32)]
    for shard in np.unique(shards).tolist():
        rows.append(_column(paths[shard], "row")[together.docs[shards == shard] - starts[shard]])
    table = pa.table([shards.astype(np.uint32), np.concatenate(rows), labels[place]], schema=SELECTION)
    entry = write_sorted_shard_table(task.directory, "selection.parquet", "selection", table, by="shard")
    held = {"clusters": len(clusters.parts), "documents": len(together.docs)}
    return Made([entry], {}, {"bounds": bounds, "short": short, "together": held})


def _together(task: Task, paths: Sequence[Path]) -> Together:
    """The members of a cluster that are still there; and equal texts, for those without a word are in no cluster."""
    if not task.paths("clusters"):
        return hold_together([])
    texts = _columns(task, "text")
    texts.sort()
    repeated = np.unique(texts[1:][texts[1:] == texts[:-1]])
    del texts
    clusters = task.load("clusters", ["shard", "row", "cluster"])
    owners = np.asarray(pc.index_in(clusters.column("shard"), pa.array(task.config["shards"], pa.string())))
    by_owner = np.argsort(owners, kind="stable")
    ends = np.searchsorted(owners[by_owner], np.arange(len(paths) + 1))
    cluster_rows, names = (np.asarray(clusters.column(name))[by_owner] for name in ("row", "cluster"))
    members, equals = [], []
    for number, (start, path) in enumerate(zip(task.config["starts"], paths, strict=False)):
        own = slice(ends[number], ends[number + 1])
        at, is_there = _find(_column(path, "row"), cluster_rows[own])
        members.append((at[is_there] + start, names[own][is_there]))
        at, is_there = _find(repeated, _column(path, "text"))
        equals.append((np.flatnonzero(is_there) + start, at[is_there]))
    return hold_together([_joined(members), _joined(equals)])


def _joined(parts: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    docs, names = zip(*parts, strict=True)
    return np.concatenate(docs), np.concatenate(names)


def _find(ordered: Any, wanted: Any) -> tuple[Any, Any]:
    """Place in `ordered` of each wanted value, and whether it is there at all."""
    at = np.searchsorted(ordered, wanted)
    if not len(ordered):
        return at, np.zeros(len(wanted), np.bool_)
    return at, ordered[np.minimum(at, len(ordered) - 1)] == wanted


def _column(path: Path, name: str) -> Any:
    return np.asarray(load_table(path, [name]).column(name))


def _columns(task: Task, name: str) -> Any:
    """Of all documents, in place: joining a list of parts would hold it twice."""
    starts = task.config["starts"]
    whole = np.empty(starts[-1], np.uint64)
    for path, (start, end) in zip(task.paths("keys"), itertools.pairwise(starts), strict=True):
        whole[start:end] = _column(path, name)
    return whole

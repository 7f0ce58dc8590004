"""Where each split ends, for methods that have to see all documents first.

    shard s ─ doc_id, marks ─> keys-<s>          row, key, and what makes texts equal
    keys of all shards ─ select ─> bounds        by group: all documents, or those of a domain
    clusters of near duplicates ┘ └> selection   (shard, row, split) of documents that are held together
                                                 tokmill.stages.quotas

All of it is scaffolding, gone when the step is done.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tokmill.artifact import Artifact
from tokmill.errors import InputError, RecipeError
from tokmill.manifest import Json, Receipt
from tokmill.schema import NO_SPLIT
from tokmill.split import (
    SPLITS,
    TEST,
    TRAIN,
    VALID,
    Quota,
    formula_size,
    hash_bounds,
    hash_keys,
    shuffle_keys,
)
from tokmill.stages.quotas import KEYS
from tokmill.stages.runs import write_run
from tokmill.stages.step import Made, Shard, Step
from tokmill.task import Input, Task, table_input


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
    return Made([write_run(task, "keys", [keys, hashes[:, 1], rows], KEYS)], {})

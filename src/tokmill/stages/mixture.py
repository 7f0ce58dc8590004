"""Mixture: which documents are built, and in which order, so that every stretch has the shares that were asked for.

lengths of a split ─ schedule by weight, to the target ─> order-<split>.parquet        shard, sequence: one row per turn
                                                       └> turns-<split>-00000.parquet …   the same turns, for builds: where
                                                          the ids begin, how many, whose

Documents come out of each source in the order of their turns and go straight into the files: memory does not grow with
the corpus.

A target is for all splits together: each has its part. Where a source repeats, so do its documents. Held-out splits take
the same weights as far as they go: what they lack is renormalized, never repeated, and never stops a run.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tokmill.artifact import Artifact
from tokmill.manifest import FileEntry, Json, sum_counts
from tokmill.pack.budget import Holding, Target, Unit, largest_budget, split_budget
from tokmill.pack.mixture import Limit, Mixture, Part, limit_of_weights, natural_mixture
from tokmill.pack.scheduling import Scheduling, Summary
from tokmill.pack.turning import TurnBatch
from tokmill.schema import ORDER
from tokmill.stages.appending import open_table
from tokmill.stages.documents import TURNS
from tokmill.stages.offering import Offering, Way
from tokmill.stages.step import Conduct, Made, Outcome, Step, write_shard_table
from tokmill.stages.tokenized import shards_of_split, token_shards
from tokmill.task import Task

_LOG = logging.getLogger("tokmill.mixture")

# Turns of a part: a quarter of the documents that a build plans at once, some 20 MB of names and numbers.
_PART_TURNS = 1 << 18


def conduct(step: Step, upstream: Mapping[str, Artifact]) -> Conduct:
    splits = upstream["tokens"].manifest.facts["splits"]
    mixed = splits[:1] if step.config["held_out"] == "whole" else splits
    targets = _targets(step.config, mixed, upstream)
    tasks = []
    for split in mixed:
        shards = shards_of_split(upstream, split)
        if not shards or targets.get(split) == 0:
            continue
        config = {
            **step.config,
            "is_held_out": split != splits[0],
            "amount": targets.get(split),
            "shards": [[shard.number, shard.source] for shard in shards],
        }
        inputs = [shard.lengths for shard in shards]
        tasks.append(
            Task(function="mixture", key=split, config=config, inputs=inputs, directory=str(step.directory))
        )
    receipts = yield tasks
    facts: Json = {"splits": {receipt.key: receipt.facts for receipt in receipts}}
    limit = limit_of_mixture(step.config, facts["splits"].get(splits[0]))
    if limit is not None and limit.is_starved:
        facts["warnings"] = [str(limit)]
        _LOG.warning("%s: %s", step.name, limit)
    return Outcome(receipts, sum_counts(receipts), facts)


def limit_of_mixture(config: Json, facts: Json | None) -> Limit | None:
    """Who ended the mixture of a split, as its manifest tells it; None where a target did."""
    if config["target"] is not None or not facts:
        return None
    return limit_of_weights(
        {
            source: Part(config["domain_of"][source], told["wanted"], told["available"], told["tokens"])
            for source, told in facts["sources"].items()
        },
        config["sources"],
    )


def perform_mixture(task: Task) -> Made:
    config = task.config
    offerings = _offerings(task)
    holdings = [offering.holding for offering in offerings]
    mixture = _mixture(config, holdings)
    exhausted = config["exhausted"]
    if config["is_held_out"]:
        exhausted = "stop" if config["target"] is None else "renormalize"
    scheduling = Scheduling(
        offerings,
        mixture,
        _target(config, holdings, mixture, exhausted),
        exhausted=exhausted,
        max_epochs=config["max_epochs"],
    )
    parts: list[FileEntry] = []
    with open_table(task, f"order-{task.key}.parquet", "order", ORDER, by="shard") as order:
        for part in _parts(_taken(offerings, turns) for turns in scheduling):
            order.append(part.select(ORDER.names))
            name = f"turns-{task.key}-{len(parts):05d}.parquet"
            parts.append(write_shard_table(task.directory, name, "turns", part.select(TURNS.names)))
    found = scheduling.summary
    facts = _facts(found)
    if config["target"] and config["target"][0] == "blocks":
        facts["blocks"] = config["amount"]
    return Made([order.entry, *parts], _counts(found, offerings), facts)


def _offerings(task: Task) -> list[Offering]:
    """The documents of each source, in the order of the recipe."""
    config, shards = task.config, token_shards(task, task.config["shards"])
    names = list(dict.fromkeys(shard.source for shard in shards))
    unit: Unit = config["target"][0] if config["target"] is not None else "tokens"
    way = Way(config["order"], config["seed"], unit, Path(task.directory), len(names))
    return [
        Offering(name, config["domain_of"][name], [shard for shard in shards if shard.source == name], way)
        for name in names
    ]


def _taken(offerings: list[Offering], turns: TurnBatch) -> Any:
    """The documents of some turns, as one table in their order."""
    by_source = np.argsort(turns.source, kind="stable")
    bounds = np.searchsorted(turns.source[by_source], np.arange(len(offerings) + 1))
    taken = [
        offering.take(turns.position[by_source[first:stop]])
        for offering, (first, stop) in zip(offerings, itertools.pairwise(bounds.tolist()), strict=True)
        if stop > first
    ]
    place = np.empty(len(by_source), np.int64)
    place[by_source] = np.arange(len(by_source))
    return pa.concat_tables(taken).combine_chunks().take(pa.array(place))


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


def _target(config: Json, holdings: list[Holding], mixture: Mixture, exhausted: str) -> Target | None:
    """Blocks are cut off at their number in the build: one row of tokens more, if there is, and the last is full."""
    if config["target"] is None:
        return None
    unit, amount = config["target"][0], config["amount"]
    if unit != "blocks":
        return Target(unit, amount)
    tokens = amount * config["seq_len"]
    has_more = exhausted != "stop" or largest_budget(holdings, mixture) >= tokens + config["seq_len"]
    return Target("tokens", tokens + config["seq_len"] if has_more else tokens)


def _targets(config: Json, splits: list[str], upstream: Mapping[str, Artifact]) -> dict[str, int]:
    """The part of the target that each split has: by the fractions of the split, or by the tokens that there are."""
    if config["target"] is None:
        return {}
    amount, rule = config["target"][1], upstream["split"].manifest.config
    if rule["method"] == "hash":
        held_out = {name: Fraction(rule.get(f"{name}_fraction") or 0) for name in splits[1:]}
    else:
        tokens = upstream["tokens"].manifest.counts["tokens"]
        total = sum(tokens.get(name, 0) for name in splits) or 1
        held_out = {name: Fraction(tokens.get(name, 0), total) for name in splits[1:]}
    return split_budget(amount, splits, held_out)


def _mixture(config: Json, holdings: list[Holding]) -> Mixture:
    within = {
        domain: {name: Fraction(weight) for name, weight in weights.items()}
        for domain, weights in config["sources"].items()
    }
    tokens = dict.fromkeys((holding.domain for holding in holdings), 0)
    for holding in holdings:
        tokens[holding.domain] += holding.tokens
    if config["domains"] is None:
        return replace(natural_mixture(tokens), sources=within)
    domains = {name: Fraction(weight) for name, weight in config["domains"].items()}
    if config["is_held_out"]:
        present = {name: weight for name, weight in domains.items() if name in tokens}
        total = sum(present.values())
        domains = {name: weight / total for name, weight in present.items()} if total else present
    return Mixture(domains, within)


def _counts(found: Summary, offerings: list[Offering]) -> Json:
    """Documents, each once; turns beyond the first are `repeats`.

    A source begins an epoch when all its documents have had their turn: none of them is passed over before the last
    epoch, where the room that is left may be too small. So there are as many different documents as turns, up to all.
    """
    counts: Json = {"in": 0, "kept": 0, "dropped": {}, "quarantined": {}, "repeats": 0}
    for number, offering in enumerate(offerings):
        turns = found.documents[number]
        distinct = min(turns, offering.documents)
        rest = offering.documents - distinct
        counts["in"] += offering.documents
        counts["kept"] += distinct
        counts["repeats"] += turns - distinct
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

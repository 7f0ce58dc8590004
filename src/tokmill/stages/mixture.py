"""Mixture: which documents are built, and in which order, so that every stretch has the shares that were asked for.

lengths of a split ─ schedule by weight, to the target ─> order-<split>.parquet      shard, sequence: one row per turn

A target is for all splits together: each has its part. Where a source repeats, so do its documents. Held-out splits take
the same weights as far as they go: what they lack is renormalized, never repeated, and never stops a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from tokmill.artifact import Artifact
from tokmill.kernels import sha256
from tokmill.manifest import Json, sum_counts
from tokmill.pack.budget import Holding, Target, largest_budget, split_budget
from tokmill.pack.mixture import Mixture, natural_mixture
from tokmill.pack.schedule import Corpus, Schedule, in_order, schedule
from tokmill.schema import ORDER, string_column
from tokmill.stages.step import Conduct, Made, Outcome, Step, write_shard_table
from tokmill.stages.tokenized import TokenShard, shards_of_split, token_shards
from tokmill.storage.parquet import load_table
from tokmill.task import Task


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
    facts = {receipt.key: receipt.facts for receipt in receipts}
    return Outcome(receipts, sum_counts(receipts), {"splits": facts})


def perform_mixture(task: Task) -> Made:
    config = task.config
    shards = token_shards(task, config["shards"])
    corpora, places = _corpora(shards, config)
    mixture = _mixture(config, corpora)
    exhausted = config["exhausted"]
    if config["is_held_out"]:
        exhausted = "stop" if config["target"] is None else "renormalize"
    found = schedule(
        corpora,
        mixture,
        _target(config, corpora, mixture, exhausted),
        exhausted=exhausted,
        max_epochs=config["max_epochs"],
        order=config["order"],
        seed=config["seed"],
    )
    shard, sequence = (in_order(found, [place[at] for place in places]) for at in (0, 1))
    order = pa.table([pa.array(shard, pa.uint32()), pa.array(sequence, pa.uint32())], schema=ORDER)
    entry = write_shard_table(task.directory, f"order-{task.key}.parquet", "order", order)
    facts = _facts(found)
    if config["target"] and config["target"][0] == "blocks":
        facts["blocks"] = config["amount"]
    return Made([entry], _counts(found, corpora), facts)


def _target(config: Json, corpora: list[Corpus], mixture: Mixture, exhausted: str) -> Target | None:
    """Blocks are cut off at their number in the build: one row of tokens more, if there is, and the last is full."""
    if config["target"] is None:
        return None
    unit, amount = config["target"][0], config["amount"]
    if unit != "blocks":
        return Target(unit, amount)
    tokens = amount * config["seq_len"]
    holdings = [Holding(c.name, c.domain, int(c.lengths.sum())) for c in corpora]
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


def _corpora(shards: list[TokenShard], config: Json) -> tuple[list[Corpus], list[tuple[Any, Any]]]:
    """The documents of each source, and for each document its shard and its sequence in it."""
    corpora, places = [], []
    needs_bytes = config["target"] is not None and config["target"][0] == "megabytes"
    for source in dict.fromkeys(shard.source for shard in shards):
        mine = [shard for shard in shards if shard.source == source]
        columns = ["doc_id", "tokens", *(["text_bytes"] if needs_bytes else [])]
        tables = [load_table(shard.path, columns) for shard in mine]
        whole = pa.concat_tables(tables)
        corpora.append(
            Corpus(
                source,
                config["domain_of"][source],
                np.asarray(whole.column("tokens")),
                sha256.sha256_prefixes(*string_column(whole.column("doc_id"))[:2]),
                np.asarray(whole.column("text_bytes")) if needs_bytes else None,
            )
        )
        counts = [table.num_rows for table in tables]
        places.append(
            (
                np.repeat(np.array([shard.number for shard in mine], np.uint32), counts),
                np.concatenate([np.arange(count, dtype=np.uint32) for count in counts]),
            )
        )
    return corpora, places


def _mixture(config: Json, corpora: list[Corpus]) -> Mixture:
    within = {
        domain: {name: Fraction(weight) for name, weight in weights.items()}
        for domain, weights in config["sources"].items()
    }
    tokens = dict.fromkeys((corpus.domain for corpus in corpora), 0)
    for corpus in corpora:
        tokens[corpus.domain] += int(corpus.lengths.sum())
    if config["domains"] is None:
        return replace(natural_mixture(tokens), sources=within)
    domains = {name: Fraction(weight) for name, weight in config["domains"].items()}
    if config["is_held_out"]:
        present = {name: weight for name, weight in domains.items() if name in tokens}
        total = sum(present.values())
        domains = {name: weight / total for name, weight in present.items()} if total else present
    return Mixture(domains, within)


def _counts(found: Schedule, corpora: list[Corpus]) -> Json:
    """Documents, each once; turns beyond the first are `repeats`."""
    counts: Json = {"in": 0, "kept": 0, "dropped": {}, "quarantined": {}, "repeats": 0}
    for number, corpus in enumerate(corpora):
        taken = found.document[found.source == number]
        distinct = len(np.unique(taken))
        rest = len(corpus.lengths) - distinct
        counts["in"] += len(corpus.lengths)
        counts["kept"] += distinct
        counts["repeats"] += len(taken) - distinct
        if rest:
            reason = "over_budget" if found.wanted[number] else "no_weight"
            counts["dropped"][reason] = counts["dropped"].get(reason, 0) + rest
    return counts


def _facts(found: Schedule) -> Json:
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

"""Bounds on percentiles of scores, and which documents change sides with others: from the percentiles alone.

Percentiles are of what cleaning kept, so a bound on one of them changes no other; a bound of cleaning would.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

import msgspec
import numpy as np

from tokmill.artifacts.upstream import domain_of
from tokmill.audit.bounds import Mover, Sides
from tokmill.audit.opened import Found, ShardTables
from tokmill.clean.rules import BOUNDS, Rule, columns_of, fault_of, judge
from tokmill.errors import InputError
from tokmill.schema import PERCENTILE, SCORE
from tokmill.stages.ranking import RankOptions
from tokmill.storage.tables import load_table


def is_of_percentile(name: str) -> bool:
    """`score.edu.percentile.min`, or that of a domain or a source."""
    return name.endswith(tuple(f"{PERCENTILE}.{bound}" for bound in BOUNDS))


def move_percentiles(found: Found, asked: Mapping[str, float]) -> Iterator[Sides]:
    scores = found.artifacts.get("scores")
    if scores is None:
        raise InputError(
            "no percentiles are known of this run",
            where="--set",
            next="give the score `percentile: corpus`, or domain, or language, and run the recipe",
        )
    options: RankOptions = scores.manifest.options(RankOptions)
    columns = [SCORE + ranked.name + PERCENTILE for ranked in options.ranked]
    _check_names(found, [f"{column}.{bound}" for column in columns for bound in BOUNDS], asked)
    for shard in found.shards():
        yield _moved(found, shard, options, columns, asked)


def _check_names(found: Found, names: list[str], asked: Mapping[str, float]) -> None:
    scopes = {scope for source in found.of_kind("clean") for scope in _scopes(found, source)}
    known = {scope + name for scope in scopes for name in names}
    for name in asked:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.4)
            raise InputError(
                f"no rule of this run is called {name}",
                where="--set",
                next=f"did you mean {near[0]}?" if near else f"one of {', '.join(names)}",
            )


def _scopes(found: Found, source: str) -> tuple[str, ...]:
    """Of names of rules, the narrowest last."""
    return ("", f"domains.{domain_of(found.artifacts[f'ingest/{source}'])}.", f"sources.{source}.")


def _moved(
    found: Found, shard: ShardTables, options: RankOptions, columns: list[str], asked: Mapping[str, float]
) -> Sides:
    ingested = found.artifacts[f"ingest/{shard.source}"]
    scopes = _scopes(found, shard.source)
    old = list(options.rules.get(shard.source, ()))
    have = {rule.name for rule in old}
    old += [
        Rule(name, column, bound, -np.inf if bound == "min" else np.inf, fault_of(column, bound))
        for column in columns
        for bound in BOUNDS
        if (name := f"{column}.{bound}") not in have and any(scope + name in asked for scope in scopes)
    ]
    new = []
    for rule in old:
        wanted = [asked[scope + rule.name] for scope in scopes if scope + rule.name in asked]
        new.append(msgspec.structs.replace(rule, threshold=wanted[-1]) if wanted else rule)
    directory = found.artifacts["scores"].directory
    cleaned = found.artifacts[f"clean/{shard.source}"].directory
    marks = load_table(cleaned / f"marks-{shard.key}.parquet", ["kept", "chars"])
    came, chars = (np.asarray(marks.column(name)) for name in ("kept", "chars"))
    table = columns_of(load_table(directory / f"percentiles-{shard.number:05d}.parquet"))
    before, after = (judge(table, rules, marks.num_rows).first for rules in (old, new))
    is_kept, stays = came & (before == len(old)), came & (after == len(old))
    movers = []
    rows = np.flatnonzero(is_kept != stays)
    ids = load_table(ingested.path(shard.documents), ["doc_id"]).column("doc_id") if len(rows) else None
    for row in rows.tolist():
        rule = new[int(before[row] if stays[row] else after[row])]
        value = float(table[rule.column][row])
        distance = abs(value - rule.threshold) / max(abs(rule.threshold), 1e-9)
        assert ids is not None
        movers.append(
            Mover(
                *(shard.source, ids[row].as_py(), "kept" if stays[row] else "dropped", rule.reason),
                *(value, rule.threshold, int(chars[row]), distance),
            )
        )
    return Sides(is_kept, stays, chars, movers)

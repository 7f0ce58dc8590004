"""Documents and tokens of a run, from those of a run in miniature: what is kept of each source, dropped for
what reason, and encoded into which split; and how far each may be off, 95 times of 100.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from tokmill.pipeline.estimation.drawn import Came, DrawnRun, DrawnSource
from tokmill.pipeline.estimation.figures import NOTHING, Interval, SourceEstimate
from tokmill.stages.split.keys import SPLITS, TRAIN
from tokmill.stages.split.stage import NOT_COUNTED
from tokmill.storage.tables import load_table

_Z = 1.96  # of a normal distribution: 95 %


def ranked_out(view: DrawnRun) -> dict[str, dict[str, int]]:
    """By source and reason: documents of those drawn that a rule on a percentile drops."""
    found: dict[str, dict[str, int]] = {}
    if (scores := view.artifacts.get("scores")) is not None:
        for entry in scores.manifest.entries("ledger"):
            table = load_table(scores.path(entry), ["source", "reason"])
            for row in table.group_by(["source", "reason"]).aggregate([([], "count_all")]).to_pylist():
                own = found.setdefault(row["source"], {})
                own[row["reason"]] = own.get(row["reason"], 0) + row["count_all"]
    return found


class _Counted(NamedTuple):
    """What a split by numbers takes of all documents that come to it."""

    docs: float
    error: float
    share: float  # of them, over all splits
    training: float  # of those that are not held out


def counted_split(view: DrawnRun, cleaned: Collection[_Cleaned]) -> _Counted | None:
    """None: another split, or one that does in the miniature what it does in the run."""
    counts, docs = view.recipe.split.counts, sum(one.docs for one in cleaned)
    if counts is None or counts.train is None or not docs or view.share >= 1:
        return None
    held_out = counts.valid + counts.test
    return _Counted(
        docs,
        math.hypot(*(one.error for one in cleaned)),
        min((counts.train + held_out) / docs, 1.0),
        min(counts.train / max(docs - held_out, counts.train), 1.0),
    )


class _Cleaned(NamedTuple):
    """Of a source, what comes to the split."""

    stays: int  # of those drawn, before duplicates
    docs: float
    error: float
    copied: dict[str, float]
    dropped: dict[str, float]


def clean_source(
    view: DrawnRun, name: str, copies: Mapping[str, tuple[float, float]], ranked: Mapping[str, int]
) -> _Cleaned:
    source = view.sources[name]
    counts = view.artifacts[f"clean/{name}"].manifest.counts
    stays = counts["kept"] - sum(ranked.values())
    clean = stays * source.by_docs
    copied = {reason: min(count, clean) for reason, (count, _) in copies.items()}
    kept = max(clean - sum(copied.values()), 0)
    dropped = {f"ingest: {reason}": count for reason, count in view.left_out(name).items()}
    for verdict in ("dropped", "quarantined"):
        dropped |= {f"clean: {reason}": n * source.by_docs for reason, n in counts[verdict].items()}
    dropped |= {f"scores: {reason}": n * source.by_docs for reason, n in ranked.items()}
    dropped |= {f"dedup: {reason}": count for reason, count in copied.items()}
    drawn = source.by_docs * math.sqrt((1 - view.share) * _variance(stays, source.docs))
    error = _Z * math.hypot(drawn, kept * source.spread, *(deviation for _, deviation in copies.values()))
    return _Cleaned(stays, kept, error, copied, dropped)


def estimate_source(
    view: DrawnRun, name: str, cleaned: _Cleaned, counted: _Counted | None, came: Came
) -> SourceEstimate:
    source = view.sources[name]
    kept, error, lost = _after_split(view, cleaned, counted, came)
    sizes = sum(_tokens(source, split, counted) for split in view.splits)
    sizes = sizes + np.zeros(len(source.sizes))
    # documents that a share finds no copy of go too, with as many tokens as the others have
    found = (cleaned.stays - came.docs) * source.by_docs
    before = float(sizes.sum()) * source.by_bytes
    copied = sum(cleaned.copied.values())
    more = (copied - found) / max(cleaned.docs + copied - found, 1) if view.splits else 0
    value = before * (1 - max(more, 0))
    spread = _Z * math.hypot(_deviation(sizes, source, view.share), value * source.spread)
    most = source.all_docs * (1 + _Z * source.spread)
    return SourceEstimate(
        documents=source.all_docs,
        kept=Interval(kept, max(kept - error, 0), min(kept + error, most)),
        dropped=cleaned.dropped | {f"split: {reason}": count for reason, count in lost.items()},
        tokens=Interval(value, max(value - spread, 0), value + spread),
        text_bytes=source.all_bytes,
    )


def _after_split(
    view: DrawnRun, cleaned: _Cleaned, counted: _Counted | None, came: Came
) -> tuple[float, float, dict[str, float]]:
    """Documents that it leaves, how far they may be off, and those that it drops, by reason."""
    docs = cleaned.docs
    if counted is not None:
        # all sources have the same share of a number that is certain: what one has more others have less
        part = docs / counted.docs
        others = math.sqrt(max(counted.error**2 - cleaned.error**2, 0))
        error = counted.share * math.hypot((1 - part) * cleaned.error, part * others)
        error = math.hypot(error, _Z * math.sqrt(docs * counted.share * (1 - part) * (1 - counted.share)))
        lost = docs * (1 - counted.share)
        return docs - lost, error, {NOT_COUNTED: lost} if lost else {}
    shares = {reason: count / came.docs for reason, count in came.dropped.items()}
    left = 1 - sum(shares.values())
    deviation = docs * math.sqrt((1 - view.share) * left * (1 - left) / max(came.docs, 1))
    return (
        docs * left,
        math.hypot(cleaned.error * left, _Z * deviation),
        {reason: docs * share for reason, share in shares.items()},
    )


def _tokens(source: DrawnSource, split: str, counted: _Counted | None) -> Any:
    """Of each document that was drawn; in training as many as a number of documents has of all."""
    return source.tokens[split] * (counted.training if counted is not None and split == SPLITS[TRAIN] else 1)


def _variance(kept: int, drawn: int) -> float:
    """Of how many of those drawn are kept (Agresti and Coull 1998: four more, two of them kept)."""
    share = (kept + 2) / (drawn + 4)
    return drawn * share * (1 - share)


def _deviation(tokens: Any, source: DrawnSource, share: float) -> float:
    """Of the tokens of all, as bytes of text times the tokens of a byte (Cochran 1977, 6.3)."""
    if len(tokens) < 2 or share >= 1:
        return 0.0
    rest = tokens - tokens.sum() / max(source.sizes.sum(), 1) * source.sizes
    return float(source.all_docs * math.sqrt((1 - share) * rest.var(ddof=1) / len(rest)))


def split_tokens(
    view: DrawnRun, sources: Mapping[str, SourceEstimate], split: str, counted: _Counted | None
) -> Interval:
    total = NOTHING
    for name, source in view.sources.items():
        drawn = {own: _tokens(source, own, counted) for own in view.splits}
        share = float(drawn[split].sum() / max(sum(one.sum() for one in drawn.values()), 1))
        of = sources[name].tokens
        own = _Z * math.hypot(_deviation(drawn[split], source, view.share), of.value * share * source.spread)
        total += Interval(of.value * share, max(of.value * share - own, 0), of.value * share + own)
    return total

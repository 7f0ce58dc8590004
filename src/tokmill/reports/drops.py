"""Who left, at which step, for which reason: how many, some of them,
and the largest clusters of near duplicates.

    ledgers ─ reason, value, threshold ─> by reason: how many of which source,
                                          the nearest to the threshold that went
    measures, marks ─ the rule of the reason ─> the nearest that stayed
    ledgers ─ survivors ─> which source repeats which
    clusters.parquet ─> the largest, each with its survivor beside the member least like it, word against word

Near is measured in shares of the threshold: |value - threshold| / threshold.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokmill.artifacts.manifest import Json
from tokmill.audit.bounds import rules_of
from tokmill.audit.clusters import largest_clusters
from tokmill.audit.examples import SHOWN_PER_REASON, first_lines
from tokmill.audit.opened import Found, ShardTables, load_of, read_ledgers
from tokmill.audit.texts import Place, load_texts
from tokmill.clean.rules import Rule
from tokmill.stages.dedup.near import METHOD as NEAR
from tokmill.stages.ranking import RankOptions
from tokmill.storage.tables import load_table

_NEAR_DUP = "near_dup"
_COLUMNS = [
    *("row", "doc_id", "verdict", "reason", "value", "threshold"),
    *("match_shard", "match_row", "similarity", "file", "offset", "detail"),
]


class Mark(NamedTuple):
    """A document and how near it was; sorts by nearness, then by place."""

    distance: float
    number: int  # of the shard
    place: Place
    source: str
    told: Json


class Drop:
    """All that left for one reason at one step."""

    def __init__(self, stage: str, verdict: str, reason: str) -> None:
        self.stage, self.verdict, self.reason = stage, verdict, reason
        self.by_source: dict[str, int] = {}
        self.kept_in: Counter[tuple[str, str]] = (
            Counter()
        )  # of copies: source, and the source of the survivor
        self.out: list[Mark] = []
        self.kept: list[Mark] = []
        self.bounds: list[Json] = []
        self.records: list[Json] = []  # that never became documents

    @property
    def docs(self) -> int:
        return sum(self.by_source.values())


def find_drops(found: Found) -> list[Drop]:
    """Every reason of every step, by step and then by how many it took."""
    drops: dict[tuple[str, str, str], Drop] = {}
    _count_records(found, drops)
    for shard in found.shards():
        _note_ledgers(found, shard, drops)
    _add_bounds(found, drops)
    for shard in found.shards():
        _note_kept(found, shard, drops)
    order = {"ingest": 0, "clean": 1, "scores": 2, "dedup": 3, "split": 4}
    return sorted(drops.values(), key=lambda d: (order[d.stage], -d.docs, d.reason))


def describe_drops(found: Found, drops: list[Drop]) -> list[Json]:
    marks = [mark for drop in drops for mark in (*drop.out, *drop.kept)]
    survivors = [place for mark in marks if (place := _survivor(mark)) is not None]
    texts = load_texts(found.artifacts, [*(mark.place for mark in marks), *survivors])

    def example(mark: Mark) -> Json:
        text, survivor = texts[mark.place], _survivor(mark)
        told = {key: value for key, value in mark.told.items() if not key.startswith("match_")}
        if survivor is not None:
            told["survivor"] = {"source": survivor.shard.rpartition("/")[0], "doc_id": texts[survivor].doc_id}
        return {
            "source": mark.source,
            "doc_id": text.doc_id,
            **told,
            "chars": text.chars,
            "text": text.text,
        }

    return [
        {
            "stage": drop.stage,
            "verdict": drop.verdict,
            "reason": drop.reason,
            "docs": drop.docs,
            "by_source": dict(sorted(drop.by_source.items())),
            "bounds": drop.bounds,
            "just_out": [example(mark) for mark in drop.out],
            "just_kept": [example(mark) for mark in drop.kept],
            "records": drop.records,
        }
        for drop in drops
    ]


def describe_duplicates(drops: list[Drop]) -> list[Json]:
    """Documents of a source that went because another, of the same source or of another one,
    says the same."""
    pairs: dict[tuple[str, str], dict[str, int]] = {}
    for drop in drops:
        for pair, docs in drop.kept_in.items():
            pairs.setdefault(pair, {})[drop.reason] = docs
    rows = [
        {"source": source, "kept_in": kept_in, "docs": sum(reasons.values()), "reasons": reasons}
        for (source, kept_in), reasons in pairs.items()
    ]
    return sorted(rows, key=lambda row: (-row["docs"], row["source"], row["kept_in"]))


def _survivor(mark: Mark) -> Place | None:
    shard, row = mark.told.get("match_shard"), mark.told.get("match_row")
    return None if shard is None or row is None else Place(shard, row)


def _count_records(found: Found, drops: dict[tuple[str, str, str], Drop]) -> None:
    """Ingest counts by reason; its ledgers say where the records lie."""
    for source, ingested in found.of_kind("ingest").items():
        counts = ingested.manifest.counts
        for verdict, key in (("drop", "dropped"), ("quarantine", "quarantined")):
            for reason, docs in sorted(counts.get(key, {}).items()):
                drop = drops.setdefault(("ingest", verdict, reason), Drop("ingest", verdict, reason))
                drop.by_source[source] = docs
        for entry in ingested.manifest.entries("ledger"):
            for row in first_lines(load_table(ingested.path(entry), ["source", *_COLUMNS])):
                known = drops.get(("ingest", row["verdict"], row["reason"]))
                if known is not None and len(known.records) < SHOWN_PER_REASON:
                    told = ("doc_id", "file", "offset", "value", "threshold", "detail")
                    known.records.append({"source": source, **{key: row[key] for key in told}})


def _note_ledgers(found: Found, shard: ShardTables, drops: dict[tuple[str, str, str], Drop]) -> None:
    for stage, ledger in read_ledgers(found.artifacts, shard, _COLUMNS):
        if ledger is None:
            continue
        pairs = pa.table([ledger.column("verdict"), ledger.column("reason")], names=["verdict", "reason"])
        for pair in pairs.group_by(["verdict", "reason"]).aggregate([]).sort_by("reason").to_pylist():
            verdict, reason = pair["verdict"], pair["reason"]
            chosen = ledger.filter(
                pc.and_(
                    pc.equal(ledger.column("verdict"), verdict), pc.equal(ledger.column("reason"), reason)
                )
            )
            drop = drops.setdefault((stage, verdict, reason), Drop(stage, verdict, reason))
            drop.by_source[shard.source] = drop.by_source.get(shard.source, 0) + chosen.num_rows
            for match in chosen.column("match_shard").drop_null().value_counts().to_pylist():
                drop.kept_in[shard.source, match["values"].rpartition("/")[0]] += match["counts"]
            drop.out = _nearest([*drop.out, *_marks_of(found, shard, chosen, stage, reason)])


def _marks_of(found: Found, shard: ShardTables, ledger: Any, stage: str, reason: str) -> Iterator[Mark]:
    if (stage, reason) == ("dedup", _NEAR_DUP):
        values = ledger.column("similarity").to_numpy()
        bound = _near_threshold(found)
        bounds = np.full(len(values), bound)
    else:
        values = ledger.column("value").to_numpy()
        bounds = ledger.column("threshold").to_numpy()
    has_bound = ~(np.isnan(values.astype(float)) | np.isnan(bounds.astype(float)))
    distances = np.where(has_bound, _distance(values, bounds), 0.0)
    for at in np.argsort(distances, kind="stable")[:SHOWN_PER_REASON].tolist():
        row = ledger.slice(at, 1).to_pylist()[0]
        told = {key: row[key] for key in ("match_shard", "match_row", "detail") if row[key] is not None}
        if has_bound[at]:
            told |= {"value": float(values[at]), "bound": float(bounds[at])}
        yield Mark(float(distances[at]), shard.number, Place(shard.name, row["row"]), shard.source, told)


def _near_threshold(found: Found) -> float:
    asked = NEAR.asked_in(found.artifacts["dedup"].manifest)
    assert asked is not None, "a near duplicate was dropped"
    return float(asked.threshold)


def _distance(values: Any, bounds: Any) -> Any:
    return np.abs(values - bounds) / np.maximum(np.abs(bounds), 1e-9)


def _nearest(marks: list[Mark]) -> list[Mark]:
    marks.sort(key=lambda mark: (mark.distance, mark.number, mark.place.row))
    return marks[:SHOWN_PER_REASON]


def _add_bounds(found: Found, drops: dict[tuple[str, str, str], Drop]) -> None:
    for source in found.of_kind("clean"):
        for stage, rule in _rules_on(found, source):
            drop = drops.get((stage, "drop", rule.reason))
            if drop is not None:
                bound = {"source": source, "rule": rule.name, "measure": rule.column}
                drop.bounds.append({**bound, "bound": rule.bound, "threshold": rule.threshold})
    near = drops.get(("dedup", "drop", _NEAR_DUP))
    if near is not None:
        threshold = _near_threshold(found)
        near.bounds.append(
            {
                "source": None,
                "rule": "dedup.near.threshold",
                "measure": "similarity",
                "bound": "max",
                "threshold": threshold,
            }
        )


def _rules_on(found: Found, source: str) -> list[tuple[str, Rule]]:
    """Those of cleaning, and those on percentiles after it."""
    cleaned, ranked = found.artifacts.get(f"clean/{source}"), found.artifacts.get("scores")
    rules = [("clean", rule) for rule in rules_of(cleaned)] if cleaned is not None else []
    after = ranked.manifest.options(RankOptions).rules.get(source, ()) if ranked is not None else ()
    return [*rules, *(("scores", rule) for rule in after)]


def _note_kept(found: Found, shard: ShardTables, drops: dict[tuple[str, str, str], Drop]) -> None:
    """Of the documents that a step kept, those with the least room under each of its bounds that took
    somebody."""
    number = f"{shard.number:05d}"
    for stage, step, measured, marked in (
        ("clean", f"clean/{shard.source}", f"measures-{shard.key}.parquet", f"marks-{shard.key}.parquet"),
        ("scores", "scores", f"percentiles-{number}.parquet", f"marks-{number}.parquet"),
    ):
        rules = [
            rule
            for own, rule in _rules_on(found, shard.source)
            if own == stage and (stage, "drop", rule.reason) in drops
        ]
        columns = list(dict.fromkeys(rule.column for rule in rules))
        measures = load_of(found.artifacts.get(step), measured, columns) if rules else None
        if measures is not None:
            marks = load_table(found.artifacts[step].directory / marked, ["kept"])
            _note_nearest(shard, stage, rules, measures, np.asarray(marks.column("kept")), drops)


def _note_nearest(
    shard: ShardTables,
    stage: str,
    rules: list[Rule],
    measures: Any,
    kept: Any,
    drops: dict[tuple[str, str, str], Drop],
) -> None:
    rows = np.flatnonzero(kept)
    for rule in rules:
        values = np.asarray(measures.column(rule.column))[rows].astype(np.float64)
        distances = _distance(values, rule.threshold)
        drop = drops[stage, "drop", rule.reason]
        nearest = np.argsort(distances, kind="stable")[:SHOWN_PER_REASON].tolist()
        drop.kept = _nearest(
            [
                *drop.kept,
                *(
                    Mark(
                        float(distances[at]),
                        shard.number,
                        Place(shard.name, int(rows[at])),
                        shard.source,
                        {"value": float(values[at]), "bound": float(rule.threshold)},
                    )
                    for at in nearest
                ),
            ]
        )


SHOWN_CLUSTERS = 8
_SHOWN_MEMBERS = 6
_DIFF_CHARS = 4_000  # of each text: difflib is quadratic at its worst
_CONTEXT_WORDS = 18
_SHOWN_PARTS = 24
_WORD = re.compile(r"\s*\S+\s*|\s+")


def describe_clusters(found: Found) -> Json | None:
    """None where near duplicates were not looked for."""
    dedup = found.artifacts.get("dedup")
    asked = NEAR.asked_in(dedup.manifest) if dedup is not None else None
    if dedup is None or asked is None or not dedup.manifest.entries("clusters"):
        return None
    counted: Json = dedup.manifest.facts.get("near", {})
    largest = largest_clusters(dedup, SHOWN_CLUSTERS, _SHOWN_MEMBERS)
    pairs = [_pair(cluster.rows) for cluster in largest]
    places = [_place(row) for cluster in largest for row in cluster.rows]
    texts = load_texts(found.artifacts, [*places, *itertools.chain(*pairs)], _DIFF_CHARS)
    clusters = []
    for cluster, pair in zip(largest, pairs, strict=True):
        left, right = (texts[place] for place in pair)
        last = cluster.rows[-1]
        clusters.append(
            {
                "cluster": cluster.number,
                "size": cluster.size,
                "kept": cluster.kept,
                "members": [
                    {
                        "source": row["shard"].rpartition("/")[0],
                        "doc_id": texts[_place(row)].doc_id,
                        "kept": row["kept"],
                        "similarity": round(row["similarity"], 6),
                    }
                    for row in cluster.rows[:_SHOWN_MEMBERS]
                ],
                "left": left.doc_id,
                "right": right.doc_id,
                "similarity": None if last["kept"] else round(last["similarity"], 6),
                "parts": compare_words(left.text, right.text),
                "cut": max(left.chars, right.chars) > _DIFF_CHARS,
            }
        )
    return {
        "clusters": counted.get("clusters", len(largest)),
        "largest": counted.get("largest_cluster"),
        "threshold": float(asked.threshold),
        "shown": clusters,
    }


def _pair(rows: list[Json]) -> tuple[Place, Place]:
    """Who went and is least like the one it went for, after that one;
    where all stay, the first and the last."""
    last = rows[-1]
    stayed = _place(rows[0]) if last["kept"] else Place(last["survivor_shard"], last["survivor_row"])
    return stayed, _place(last)


def _place(row: Json) -> Place:
    return Place(row["shard"], row["row"])


def compare_words(left: str, right: str) -> list[Json]:
    """Parts that both have ("same"), that differ ("other"), and how much was left out between ("skip")."""
    one, two = _WORD.findall(left), _WORD.findall(right)
    matcher = difflib.SequenceMatcher(None, one, two, autojunk=False)
    parts: list[Json] = []
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind != "equal":
            parts.append({"kind": "other", "left": "".join(one[a:b]), "right": "".join(two[c:d])})
        elif b - a <= 2 * _CONTEXT_WORDS + 4:
            parts.append({"kind": "same", "left": "".join(one[a:b]), "right": "".join(two[c:d])})
        else:
            # nothing before the first difference needs explaining, nor after the last
            head = a if a == 0 and b < len(one) else a + _CONTEXT_WORDS
            tail = b if b == len(one) else b - _CONTEXT_WORDS
            parts += [_same(one, a, head), {"kind": "skip", "words": tail - head}, _same(one, tail, b)]
    return [part for part in parts if part.get("left") or part.get("right") or part["kind"] == "skip"][
        :_SHOWN_PARTS
    ]


def _same(words: list[str], start: int, end: int) -> Json:
    text = "".join(words[start:end])
    return {"kind": "same", "left": text, "right": text}

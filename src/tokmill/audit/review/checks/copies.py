"""Copies and leaks: clusters that are too large to be chance, benchmark items in what is trained on."""

from __future__ import annotations

from collections import Counter

import numpy as np

from tokmill.audit.review.evidence import Evidence
from tokmill.audit.review.finding import (
    Assumption,
    Finding,
    Found,
    Measure,
    NotMeasured,
    percent,
    plural,
    share,
)
from tokmill.audit.review.thresholds import MAX_CLUSTER, MIN_CLUSTER
from tokmill.manifest import Json
from tokmill.schema import NO_SPLIT
from tokmill.storage.parquet import load_table

# Survivors of exact duplicates that are counted at a time; one with a hundredth of a corpus is always among them.
_HELD = 100_000


def giant_clusters(evidence: Evidence) -> Found:
    dedup = evidence.artifact("dedup").manifest
    considered = int(dedup.counts["in"])
    near: Json = dedup.facts.get("near") or {}
    found: list[tuple[str, int, str, str]] = []
    if near:
        kept = "all of them stay" if near.get("policy") == "report" else "one of each is kept"
        found.append(("near duplicates", int(near["largest_cluster"]), "dedup/manifest.json: near", kept))
    else:
        yield Assumption(
            "giant_clusters", "near duplicates were not looked for: the recipe has no `dedup.near`"
        )
    if dedup.config.get("exact"):
        found.append(
            ("equal texts", largest_exact(evidence), "dedup/verdicts-*.parquet", "one of each is kept")
        )
    for what, size, read_from, fate in found:
        if size >= MIN_CLUSTER and size > MAX_CLUSTER * considered:
            yield Finding(
                "giant_clusters",
                "medium" if fate.startswith("all") else "low",
                what,
                f"{plural(size, 'document')} ({share(size, considered)}) are one cluster of {what}; {fate}",
                (
                    Measure("the largest cluster", size, "documents", read_from),
                    Measure("of the documents compared", percent(size, considered), "%", read_from),
                ),
                Measure(
                    "one cluster", 100 * MAX_CLUSTER, "% of the documents", f"and {MIN_CLUSTER} at least"
                ),
            )


def largest_exact(evidence: Evidence) -> int:
    """The document with the most exact copies, counted with them."""
    dedup = evidence.artifact("dedup")
    copies: Counter[tuple[str, int]] = Counter()
    for entry in dedup.manifest.entries("verdicts"):
        table = load_table(dedup.path(entry), ["reason", "survivor_shard", "survivor_row"])
        grouped = table.group_by(["reason", "survivor_shard", "survivor_row"]).aggregate([([], "count_all")])
        for row in grouped.to_pylist():
            if row["reason"] == "exact_dup":
                copies[row["survivor_shard"], row["survivor_row"]] += row["count_all"]
        if len(copies) > _HELD:
            copies = Counter(
                dict(sorted(copies.items(), key=lambda item: (-item[1], item[0]))[: _HELD // 10])
            )
    return max(copies.values(), default=0) + 1


def contamination(evidence: Evidence) -> Found:
    """Of the documents that are still there when all is decided."""
    dedup = evidence.artifact("dedup")
    against: Json | None = dedup.manifest.config.get("against")
    if against is None:
        raise NotMeasured("no benchmark was given (`dedup.against`)")
    facts: Json = dedup.manifest.facts["against"]
    kept: dict[str, int] = {}
    items: Counter[str] = Counter()
    split = evidence.artifact("split")
    names = split.manifest.facts["splits"]
    for entry in dedup.manifest.entries("contamination"):
        number = entry.path.removeprefix("contamination-b").removesuffix(".parquet")
        hits = load_table(dedup.path(entry), ["row", "item"])
        labels = np.asarray(load_table(split.directory / f"labels-{number}.parquet").column("split"))
        stays = labels[np.asarray(hits.column("row"))]
        for label in np.unique(stays[stays != NO_SPLIT]).tolist():
            rows = np.asarray(hits.column("row"))[stays == label]
            kept[names[label]] = kept.get(names[label], 0) + len(np.unique(rows))
        items.update(np.asarray(hits.column("item"))[stays != NO_SPLIT].tolist())
    if facts["unused_items"]:
        says = f"{plural(facts['unused_items'], 'benchmark item')} of fewer than {against['min_words']} words were not looked for"
        yield Assumption("contamination", says)
    if kept:
        total = sum(kept.values())
        yield Finding(
            "contamination",
            "high",
            "benchmarks",
            f"{plural(total, 'document')} that are kept hold words of {plural(len(items), 'benchmark item')}",
            (
                *(
                    Measure(
                        f"contaminated documents in {name}",
                        count,
                        "documents",
                        "dedup/contamination-*.parquet",
                    )
                    for name, count in kept.items()
                ),
                Measure(
                    f"items found ({sorted(items)[0]}, …)",
                    len(items),
                    "items",
                    "dedup/contamination-*.parquet",
                ),
                Measure(
                    "found in all, dropped ones included",
                    facts["documents"],
                    "documents",
                    "dedup/manifest.json",
                ),
            ),
            Measure(
                "kept documents with an item",
                0,
                f"documents with {against['ngram']} equal words",
                "dedup.against",
            ),
        )

"""What is held out: how much, whether training has it too, and whether rows were dealt out instead of documents.

Copies and leaks: clusters that are too large to be chance, benchmark items in what is trained on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from tokmill.artifacts.manifest import Json
from tokmill.recipe import Split
from tokmill.reviews.evidence import Evidence, manifest_of, named, together
from tokmill.reviews.finding import (
    MAX_CLUSTER,
    MAX_HELD_OUT,
    MAX_NEAR_OVERLAP,
    MIN_CLUSTER,
    MIN_HELD_OUT,
    Assumption,
    Finding,
    Found,
    Measure,
    NotMeasured,
    percent,
    plural,
    share,
)
from tokmill.reviews.overlap import Example
from tokmill.reviews.subject import TRAIN, Build
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


def exact_overlap(evidence: Evidence) -> Found:
    found = evidence.exact_overlap
    if not found.held_out:
        raise NotMeasured("nothing is held out")
    if found.overlapping:
        read_from = "clean/*/marks-*.parquet, split/labels-*.parquet"
        yield Finding(
            "exact_overlap",
            "high",
            "splits",
            f"{found.overlapping:,} of {plural(found.held_out, 'held-out document')} "
            f"({share(found.overlapping, found.held_out)}) are in another split too",
            (
                Measure("equal to a document of another split", found.overlapping, "documents", read_from),
                Measure("of what is held out", percent(found.overlapping, found.held_out), "%", read_from),
                *(_pair(example) for example in found.examples),
            ),
            Measure("exact copies", 0, "documents", "any"),
        )


def near_overlap(evidence: Evidence) -> Found:
    if not evidence.exact_overlap.held_out:
        raise NotMeasured("nothing is held out")
    found = evidence.near_overlap
    if not found.is_complete:
        yield Assumption(
            "near_overlap",
            f"looked for near duplicates of {found.looked_at:,} of {found.held_out:,} held-out documents among "
            f"{found.train_documents:,} of {found.of_train_documents:,} training documents, chosen by the hash of their ids: "
            "the share is a lower bound",
        )
    if found.overlapping > MAX_NEAR_OVERLAP * found.looked_at:
        read_from = "texts of ingest/* and clean/*, split/labels-*.parquet"
        yield Finding(
            "near_overlap",
            "high",
            "splits",
            f"{found.overlapping:,} of {plural(found.looked_at, 'held-out document')} "
            f"({share(found.overlapping, found.looked_at)}) have a near duplicate in another split",
            (
                Measure(
                    f"with a document of Jaccard {found.threshold:g} or more ({found.ngram} words) in another split",
                    found.overlapping,
                    "documents",
                    read_from,
                ),
                Measure("of what was looked at", percent(found.overlapping, found.looked_at), "%", read_from),
                *(_pair(example) for example in found.examples),
            ),
            Measure("near duplicates", 100 * MAX_NEAR_OVERLAP, "% of what is held out", "exact copies aside"),
        )


def _pair(example: Example) -> Measure:
    return Measure(
        f"{example.source}/{example.doc_id} and {example.other_source}/{example.other_doc_id}",
        float(example.similarity),
        "Jaccard",
        "ingest/*/documents-*.parquet",
    )


def split_after_packing(evidence: Evidence) -> Found:
    """Then rows are dealt out, and a document that crosses from one row into the next is on both sides."""
    looked = 0
    for build in evidence.builds():
        if len(build.splits) < 2:
            continue
        try:
            found = evidence.rows(build)
        except NotMeasured as reason:
            yield Assumption("split_after_packing", str(reason))
            continue
        looked += 1
        if found.cut:
            source, doc_id, at = found.cut[0]
            read_from = f"{manifest_of(build).removesuffix('manifest.json')}*/index.jsonl.zst"
            yield Finding(
                "split_after_packing",
                "high",
                named([build]),
                f"{plural(len(found.cut), 'document')} go on in another split: it was split after it was packed",
                (
                    Measure("documents cut by the split", len(found.cut), "documents", read_from),
                    Measure(f"the first, {source}/{doc_id}, at its token", at, "", read_from),
                ),
                Measure("documents in two splits", 0, "documents", "any"),
            )
    if not looked and all(len(build.splits) < 2 for build in evidence.builds()):
        raise NotMeasured("no build has two splits")


class _Amounts(NamedTuple):
    """Of each split, training first."""

    about: str
    by_split: dict[str, int]
    unit: str
    read_from: str


def held_out(evidence: Evidence) -> Found:
    for amounts in _held_out_amounts(evidence):
        yield from _judge_held_out(*amounts)


def _judge_held_out(about: str, amounts: dict[str, int], unit: str, read_from: str) -> Iterator[Finding]:
    bound = Measure("held out", f"{100 * MIN_HELD_OUT:g} to {100 * MAX_HELD_OUT:g}", "%", "of the tokens")
    total = sum(amounts.values())
    held = {name: count for name, count in amounts.items() if name not in (TRAIN, "")}
    train = total - sum(held.values())
    figures = tuple(Measure(name or TRAIN, count, unit, read_from) for name, count in amounts.items())
    largest = max(held, key=lambda name: (held[name], name), default="")
    if not sum(held.values()):
        says = f"nothing is held out of {total:,} {unit}"
        yield Finding("held_out", "high", about, says, figures, bound, "outside")
    elif held[largest] > train:
        yield Finding(
            "held_out",
            "high",
            about,
            f"{largest} has more than is trained on: {held[largest]:,} {unit}, and {train:,} for training",
            figures,
            Measure(f"{unit} of a held-out split", train, unit, "those of training"),
        )
    elif not MIN_HELD_OUT * total <= sum(held.values()) <= MAX_HELD_OUT * total:
        way = "only" if sum(held.values()) < MIN_HELD_OUT * total else "as much as"
        part = percent(sum(held.values()), total)
        yield Finding(
            "held_out",
            "medium",
            about,
            f"{way} {share(sum(held.values()), total)} of the {unit} are held out",
            (Measure("held out", part, f"% of the {unit}", read_from), *figures),
            bound,
            "outside",
        )


def _held_out_amounts(evidence: Evidence) -> Iterator[_Amounts]:
    """Of what is built, where there are builds: a mixture may leave another part than was split off."""
    groups = together(evidence.subject.builds, lambda build: _built(evidence, build))
    if groups:
        for builds, amounts in groups:
            read_from = manifest_of(builds[0])
            if evidence.subject.found is None:
                read_from = "*/index.jsonl.zst"
            yield _Amounts(named(builds), amounts, "tokens", read_from)
    elif evidence.has("tokens"):
        tokens = evidence.artifact("tokens").manifest
        amounts = {name: tokens.counts["tokens"].get(name, 0) for name in tokens.facts["splits"]}
        yield _Amounts("splits", amounts, "tokens", "tokens/manifest.json")
    elif evidence.has("split"):
        split = evidence.artifact("split").manifest
        amounts = {name: split.counts[name] for name in split.facts["splits"]}
        yield _Amounts("splits", amounts, "documents", "split/manifest.json")
    else:
        asked = _planned(evidence.recipe.split)
        yield _Amounts("splits", asked, "documents of 10,000", f"{evidence.subject.recipe_file}: split")


def _built(evidence: Evidence, build: Build) -> dict[str, int] | None:
    """Tokens in the rows of each split; None where a build has nothing."""
    if evidence.subject.found is None:
        return {rows.split: rows.tokens for rows in evidence.rows(build).splits}
    receipts = {
        receipt.key: receipt.counts["tokens"]["written"] for receipt in build.artifact.manifest.receipts()
    }
    return {split: receipts[split] for split in build.splits if split in receipts} or None


def _planned(split: Split) -> dict[str, int]:
    """What the recipe asks for, of ten thousand documents."""
    whole = 10_000
    if split.method == "hash":
        parts = {"valid": Fraction(split.valid_fraction), "test": Fraction(split.test_fraction)}
    elif split.method == "formula":
        parts = {"valid": Fraction(1, 20), "test": Fraction(1, 20) if split.test else Fraction(0)}
    elif split.method == "counts" and split.counts is not None and split.counts.train is not None:
        counts = split.counts
        total = split.counts.train + counts.valid + counts.test
        parts = {"valid": Fraction(counts.valid, total), "test": Fraction(counts.test, total)}
    else:
        raise NotMeasured(
            f"how much `method: {split.method}` holds out shows only when the documents are there"
        )
    held = {name: int(whole * part) for name, part in parts.items() if part}
    return {"train": whole - sum(held.values()), **held}

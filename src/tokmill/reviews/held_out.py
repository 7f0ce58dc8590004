"""What is held out and what is held twice: overlap between splits, clusters of copies,
benchmark items in what is kept.

marks, labels, texts ─ overlap.py ─┐
rows of a build ─ rows.py ─────────┼─ checks: exact_overlap, near_overlap, split_after_packing, held_out, …
dedup: verdicts, contamination ────┘  answers: what is held out, what flatters an evaluation
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from tokmill.artifacts.manifest import Json
from tokmill.errors import plural
from tokmill.recipe import Split
from tokmill.reviews.evidence import Answering, Evidence, check, manifest_of, named, place_of, together
from tokmill.reviews.finding import (
    Finding,
    Found,
    Measure,
    NotMeasured,
    part,
    percent,
    quoted,
    share,
    spelled,
)
from tokmill.reviews.overlap import Exact, NearOverlap
from tokmill.reviews.separability import noise_sentences, probed_builds
from tokmill.reviews.subject import TRAIN, Trained
from tokmill.reviews.texts import MIN_DOCUMENTS, PREFIX_MEDIUM, longest_prefix
from tokmill.schema import NO_SPLIT
from tokmill.stages.dedup.against import METHOD as AGAINST
from tokmill.stages.dedup.exact import METHOD as EXACT
from tokmill.stages.split.options import HashSplit, SplitOptions
from tokmill.storage.tables import load_table

MAX_NEAR_OVERLAP = 0.001  # of the held-out documents; an exact copy is one too many
MIN_HELD_OUT, MAX_HELD_OUT = 0.01, 0.20  # of the tokens, or of the documents where there are no tokens
MAX_DRAWN_OFF = 0.1  # of the share that was asked for, and is within those
MAX_CLUSTER, MIN_CLUSTER = 0.01, 20  # of the documents that came to deduplication, and at least so many


@check("Set `dedup: {exact: folded, scope: global}`, or split `by: cluster`.")
def exact_overlap(evidence: Evidence) -> Found:
    """Has another split a copy of what is held out?"""
    found = evidence.exact_overlap
    if not found.held_out:
        raise NotMeasured("nothing is held out")
    if found.overlapping:
        copies = "equal to a document of another split, case and spacing aside"
        read_from = "clean/*/marks-*.parquet, split/labels-*.parquet"
        yield Finding(
            "high",
            "splits",
            f"{found.overlapping:,} of {plural(found.held_out, 'held-out document')} "
            f"({share(found.overlapping, found.held_out)}) are in another split too",
            _pairs(copies, found, found.held_out, "of what is held out", read_from),
            Measure("exact copies", 0, "documents", "any"),
        )


@check("Set `dedup.near`, and `split: {by: cluster}` so that versions of a text stay on one side.")
def near_overlap(evidence: Evidence) -> Found:
    """Has another split a near duplicate of what is held out?"""
    if not evidence.exact_overlap.held_out:
        raise NotMeasured("nothing is held out")
    found = evidence.near_overlap
    if not found.is_complete:
        yield (
            f"looked for near duplicates of {found.looked_at:,} of {found.held_out:,} held-out documents "
            f"among {found.train_documents:,} of {found.of_train_documents:,} training documents, chosen by "
            "the hash of their ids: the share is a lower bound"
        )
    if found.overlapping > MAX_NEAR_OVERLAP * found.looked_at:
        read_from = "texts of ingest/* and clean/*, split/labels-*.parquet"
        alike = (
            f"with a document of Jaccard {found.threshold:g} or more ({found.ngram} words) in another split"
        )
        yield Finding(
            "high",
            "splits",
            f"{found.overlapping:,} of {plural(found.looked_at, 'held-out document')} "
            f"({share(found.overlapping, found.looked_at)}) have a near duplicate in another split",
            _pairs(alike, found, found.looked_at, "of what was looked at", read_from),
            Measure("near duplicates", 100 * MAX_NEAR_OVERLAP, "% of what is held out", "exact copies aside"),
        )


def _pairs(name: str, found: Exact | NearOverlap, whole: int, of: str, read_from: str) -> tuple[Measure, ...]:
    """How many overlap, which share that is, and some of them beside their copies."""
    examples = (
        Measure(
            f"{one.source}/{one.doc_id} and {one.other_source}/{one.other_doc_id}",
            float(one.similarity),
            "Jaccard",
            "ingest/*/documents-*.parquet",
        )
        for one in found.examples
    )
    return *part(name, found.overlapping, "documents", of, whole, read_from), *examples


@check("Build again from the documents: the mill splits before it packs.")
def split_after_packing(evidence: Evidence) -> Found:
    """Is a document on both sides of the split? Where rows were dealt out,
    one that crosses into the next row is."""
    builds = [build for build in evidence.builds() if len(build.splits) > 1]
    for build in builds:
        try:
            found = evidence.rows(build)
        except NotMeasured as reason:
            yield str(reason)
            continue
        if found.cut:
            source, doc_id, at = found.cut[0]
            read_from = f"{place_of(build)}*/index.jsonl.zst"
            yield Finding(
                "high",
                named([build]),
                f"{plural(len(found.cut), 'document')} go on in another split: it was split after it was "
                "packed",
                (
                    Measure("documents cut by the split", len(found.cut), "documents", read_from),
                    Measure(f"the first, {source}/{doc_id}, at its token", at, "", read_from),
                ),
                Measure("documents in two splits", 0, "documents", "any"),
            )
    if not builds:
        raise NotMeasured("no build has two splits")


@check(
    "Set `split.valid_fraction` to 0.01 … 0.2, or `method: formula`, which adapts to the size of each domain."
)
def held_out(evidence: Evidence) -> Found:
    """Is enough held out, and not too much?"""
    bound = Measure("held out", f"{100 * MIN_HELD_OUT:g} to {100 * MAX_HELD_OUT:g}", "%", "of the tokens")
    for about, amounts, unit, read_from in _held_out_amounts(evidence):
        total = sum(amounts.values())
        held = {name: count for name, count in amounts.items() if name not in (TRAIN, "")}
        out = sum(held.values())
        figures = tuple(Measure(name or TRAIN, count, unit, read_from) for name, count in amounts.items())
        largest = max(held, key=lambda name: (held[name], name), default="")
        if not out:
            says = f"nothing is held out of {total:,} {unit}"
            yield Finding("high", about, says, figures, bound, "outside")
        elif held[largest] > total - out:
            says = (
                f"{largest} has more than is trained on: {held[largest]:,} {unit}, and {total - out:,} for "
                "training"
            )
            most = Measure(f"{unit} of a held-out split", total - out, unit, "those of training")
            yield Finding("high", about, says, figures, most)
        elif not (MIN_HELD_OUT * total <= out <= MAX_HELD_OUT * total or _is_as_asked(evidence, out, total)):
            way = "only" if out < MIN_HELD_OUT * total else "as much as"
            says = f"{way} {share(out, total)} of the {unit} are held out"
            figures = (Measure("held out", percent(out, total), f"% of the {unit}", read_from), *figures)
            yield Finding("medium", about, says, figures, bound, "outside")


def _is_as_asked(evidence: Evidence, out: int, total: int) -> bool:
    """Documents are drawn one by one, and differ in length: 1 % may come to 0.998 % of the tokens."""
    if not evidence.has("split"):
        return False
    rule: SplitOptions = evidence.artifact("split").manifest.options(SplitOptions)
    if not isinstance(rule, HashSplit):
        return False
    asked = float(Fraction(rule.valid_fraction) + Fraction(rule.test_fraction))
    is_usual = MIN_HELD_OUT <= asked <= MAX_HELD_OUT
    return is_usual and abs(out - asked * total) <= MAX_DRAWN_OFF * asked * total


def _held_out_amounts(evidence: Evidence) -> Iterator[tuple[str, dict[str, int], str, str]]:
    """What of, how much in each split (training first), unit, where that is read:
    of builds, where there are some, for a mixture may leave another part than was split off."""
    trained = evidence.trained() if evidence.subject.builds else []
    groups = together(trained, lambda build: _built(evidence, build))
    for builds, amounts in groups:
        read_from = "*/index.jsonl.zst" if evidence.subject.found is None else manifest_of(builds[0])
        yield evidence.named_whole(builds), amounts, "tokens", read_from
    if groups:
        return
    if evidence.has("tokens"):
        tokens = evidence.artifact("tokens").manifest
        amounts = {name: tokens.counts["tokens"].get(name, 0) for name in tokens.facts["splits"]}
        yield "splits", amounts, "tokens", "tokens/manifest.json"
    elif evidence.has("split"):
        split = evidence.artifact("split").manifest
        amounts = {name: split.counts.get(name, 0) for name in split.facts["splits"]}
        yield "splits", amounts, "documents", "split/manifest.json"
    else:
        read_from = f"{evidence.subject.recipe_file}: split"
        yield "splits", _planned(evidence.recipe.split), "documents of 10,000", read_from


def _built(evidence: Evidence, trained: Trained) -> dict[str, int] | None:
    """Tokens in the rows of each split; None where a build has nothing."""
    build = trained.first
    if evidence.subject.found is None:
        return {rows.split: rows.tokens for rows in evidence.rows(build).splits}
    written = {one.key: one.counts["tokens"]["written"] for one in build.artifact.manifest.receipts()}
    if TRAIN in written:
        written[TRAIN] = sum(evidence.train_tokens(trained).values())
    return {split: written[split] for split in build.splits if split in written} or None


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


# --- copies ---


@check(
    "Look at it (`tokmill clusters`): boilerplate calls for a filter, a mirrored source for leaving it out."
)
def giant_clusters(evidence: Evidence) -> Found:
    """Is a large part of the corpus one cluster of copies?"""
    dedup = evidence.artifact("dedup").manifest
    considered = int(dedup.counts["in"])
    near: Json = dedup.facts.get("near") or {}
    clusters: list[tuple[str, int, str, str]] = []
    if near:
        kept = "all of them stay" if near.get("policy") == "report" else "one of each is kept"
        clusters.append(("near duplicates", int(near["largest_cluster"]), "dedup/manifest.json: near", kept))
    else:
        yield "near duplicates were not looked for: the recipe has no `dedup.near`"
    if EXACT.asked_in(dedup):
        size = _largest_exact(evidence)
        clusters.append(("equal texts", size, "dedup/verdicts-*.parquet", "one of each is kept"))
    for what, size, read_from, kept in clusters:
        if size >= MIN_CLUSTER and size > MAX_CLUSTER * considered:
            of = "of the documents compared"
            yield Finding(
                "medium" if kept.startswith("all") else "low",
                what,
                f"{plural(size, 'document')} ({share(size, considered)}) are one cluster of {what}; {kept}",
                part("the largest cluster", size, "documents", of, considered, read_from),
                Measure(
                    "one cluster", 100 * MAX_CLUSTER, "% of the documents", f"and {MIN_CLUSTER} at least"
                ),
            )


# Survivors of exact duplicates that are counted at a time;
# one with a hundredth of a corpus is always among them.
_HELD = 100_000


def _largest_exact(evidence: Evidence) -> int:
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


@check("Set `dedup.against.policy: drop` (and `min_share: 0`), or report the affected benchmarks as seen.")
def contamination(evidence: Evidence) -> Found:
    """Do kept documents hold benchmark items? Of those that are still there when all is decided."""
    dedup = evidence.artifact("dedup")
    asked = AGAINST.asked_in(dedup.manifest)
    if asked is None:
        raise NotMeasured("no benchmark was given (`dedup.against`)")
    facts: Json = dedup.manifest.facts["against"]
    kept: Counter[str] = Counter()
    items: Counter[str] = Counter()
    split = evidence.artifact("split")
    names = split.manifest.facts["splits"]
    for entry in dedup.manifest.entries("contamination"):
        number = entry.path.removeprefix("contamination-b").removesuffix(".parquet")
        hits = load_table(dedup.path(entry), ["row", "item"])
        rows = np.asarray(hits.column("row"))
        labels = np.asarray(load_table(split.directory / f"labels-{number}.parquet").column("split"))[rows]
        for label in np.unique(labels[labels != NO_SPLIT]).tolist():
            kept[names[label]] += len(np.unique(rows[labels == label]))
        items.update(np.asarray(hits.column("item"))[labels != NO_SPLIT].tolist())
    if facts["unused_items"]:
        unused = plural(facts["unused_items"], "benchmark item")
        yield f"{unused} of fewer than {asked.min_words} words were not looked for"
    if kept:
        read_from = "dedup/contamination-*.parquet"
        equal = f"documents with {asked.ngram} equal words"
        yield Finding(
            "high",
            "benchmarks",
            f"{plural(kept.total(), 'document')} that are kept hold words of "
            f"{plural(len(items), 'benchmark item')}",
            (
                *(
                    Measure(f"contaminated documents in {name}", count, "documents", read_from)
                    for name, count in kept.items()
                ),
                Measure(f"items found ({min(items)}, …)", len(items), "items", read_from),
                Measure(
                    "found in all, dropped ones included",
                    facts["documents"],
                    "documents",
                    "dedup/manifest.json",
                ),
            ),
            Measure("kept documents with an item", 0, equal, "dedup.against"),
        )


# --- answers ---


def held_out_set(evidence: Evidence, found: Answering) -> None:
    """What is held out, and is it clean?"""
    if evidence.subject.kind == "recipe":
        split = evidence.recipe.split
        asked = ", ".join(
            f"{key} {value}" for key, value in split.settings(0).items() if value not in (None, False)
        )
        found.say(f"The recipe asks for: {asked}.")
        found.base("the recipe: split").lack(
            "documents and tokens that are held out, and whether training has them too"
        )
        return
    if evidence.subject.found is None:
        rows = found.attempt(lambda: evidence.rows(evidence.builds()[0]))
        _noise(evidence, found)
        if rows is not None:
            listed = ", ".join(f"{one.split or 'one split'} {one.tokens:,} tokens" for one in rows.splits)
            found.say(f"{listed}; {plural(len(rows.cut), 'document')} cut by the split.")
            found.base("*/index.jsonl.zst")
        found.lack("copies between splits: a published build holds no text")
        return
    lengths = found.attempt(lambda: evidence.lengths)
    if lengths is not None:
        tokens, docs = lengths.sums("tokens", "split"), lengths.sums("docs", "split")
        total = sum(tokens.values())
        listed = ", ".join(
            f"{n} {docs[n]:,} documents, {tokens[n]:,} tokens ({share(tokens[n], total)})" for n in tokens
        )
        found.say(f"{listed}.")
        found.figures |= {"documents": docs, "tokens": tokens}
        held = {
            d: sum(p.docs for p in lengths.parts if p.domain == d and p.split != TRAIN)
            for d in lengths.sums("docs", "domain")
        }
        found.say(
            "Held out of each domain: "
            + ", ".join(f"{name} {count:,}" for name, count in held.items())
            + " documents."
        )
        found.figures["held_out_by_domain"] = held
        found.base("tokens/*/lengths-*.parquet")
    _noise(evidence, found)
    _overlaps(evidence, found)


def _noise(evidence: Evidence, found: Answering) -> None:
    """Of a loss of each domain, as far as the documents that are held out of it decide."""
    for _, probe in found.attempt(lambda: probed_builds(evidence)) or []:
        for sentence in noise_sentences(probe):
            found.say(sentence)
        found.figures["noise"] = {
            name: {key: round(value, 6) for key, value in noise._asdict().items()}
            if noise is not None
            else None
            for name, noise in zip(probe.domains, probe.noise, strict=True)
        }
        found.base("build/*/*/index.jsonl.zst and the rows")


def _overlaps(evidence: Evidence, found: Answering) -> None:
    exact = found.attempt(lambda: evidence.exact_overlap)
    if exact is not None and exact.held_out:
        found.say(
            f"{exact.overlapping:,} of {exact.held_out:,} held-out documents have an exact copy in another "
            "split."
        )
        found.figures["exact_copies"] = exact.overlapping
        near = found.attempt(lambda: evidence.near_overlap)
        if near is not None:
            found.say(
                f"{near.overlapping:,} of {near.looked_at:,} looked at have a near duplicate there (Jaccard "
                f"{near.threshold:g})."
            )
            found.figures["near_duplicates"] = near.overlapping
        found.base("clean/*/marks-*.parquet", "split/labels-*.parquet", "texts")


def evaluation_risks(evidence: Evidence, found: Answering) -> None:
    """What would make an evaluation look better than it is?"""
    if evidence.subject.kind == "recipe":
        against = evidence.recipe.dedup.against
        found.say(
            "Benchmarks are "
            f"{'given: ' + ', '.join(against.files) if against else 'not given (`dedup.against`)'}."
        )
        found.base("the recipe: dedup.against").lack("items found in documents, copies between splits")
        return
    if evidence.subject.found is None:
        found.lack("benchmark items and copies between splits: a published build holds no text")
        return
    dedup = found.attempt(lambda: evidence.artifact("dedup").manifest)
    if dedup is not None and AGAINST.asked_in(dedup):
        facts, dropped = dedup.facts["against"], dedup.counts["dropped"].get("contaminated", 0)
        found.say(
            f"Benchmark items stand in {plural(facts['documents'], 'document')}, of which {dropped:,} were "
            "dropped."
        )
        found.figures |= {"contaminated": facts["documents"], "contaminated_dropped": dropped}
        found.base("dedup/manifest.json: against")
    else:
        found.lack("benchmark items in the documents: no benchmark was given (`dedup.against`)")
    _overlaps(evidence, found)
    texts = found.attempt(lambda: evidence.texts)
    for domain, tallies in texts.domains().items() if texts is not None else ():
        docs = sum(one.docs for one in tallies)
        prefix = longest_prefix(tallies, PREFIX_MEDIUM) if docs >= MIN_DOCUMENTS else None
        if prefix is not None:
            found.say(
                f"{share(prefix[1], docs)} of {domain} begin with {quoted(prefix[0])}: loss on it is easy to "
                "lower."
            )
            found.figures.setdefault("constant_beginnings", {})[domain] = round(prefix[1] / docs, 6)
            found.base("texts")
    for _, probe in found.attempt(lambda: probed_builds(evidence)) or []:
        rows = probe.views[0]
        found.say(
            f"Single tokens tell the domain of {spelled(100 * rows.accuracy())} % of held-out rows: a "
            "router, or a probe of hidden states, that does as well has shown nothing beyond them."
        )

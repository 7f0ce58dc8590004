"""Ten questions that a project of code, mathematics and prose asks before it trains, answered with figures.

An answer is put together from what was measured, and names it; what was not measured it says too. In a recipe alone
nothing is measured, so the answers are what it asks for.

What the layout of a build costs its training documents, counted in the rows that were built.

Answers that rest on texts and splits: languages of code, styles of mathematics, what is held out, what flatters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from tokmill.artifacts.manifest import Json
from tokmill.recipe import template_parts
from tokmill.reviews.evidence import Answering, Evidence, answering, manifest_of, named
from tokmill.reviews.finding import (
    MIN_DOCUMENTS,
    PREFIX_HIGH,
    PREFIX_MEDIUM,
    Answer,
    plural,
    quoted,
    share,
    spelled,
)
from tokmill.reviews.rows import boundary_figures, boundary_sentences
from tokmill.reviews.separability import noise_sentences, probed_builds, separability
from tokmill.reviews.size_answers import balance, size_target
from tokmill.reviews.subject import TRAIN, Build
from tokmill.reviews.surface import longest_prefix
from tokmill.reviews.texts import ARTEFACTS, DOCUMENTS, TextTally, most_common


class Packed(NamedTuple):
    """Documents are counted each time that they are built."""

    rows: int
    documents: int  # with a token in a row
    tokens_kept: int
    fragmented: int  # documents on more than one row
    without_beginning: int  # documents whose first token is in no row
    without_end: int
    incomplete: int | None  # documents of which a token is in no row; None: a build by itself does not say
    rows_of_several: int  # rows with more than one document
    cross_document: int  # tokens that stand in their row after another document

    def as_json(self) -> Json:
        """As an answer has them."""
        return {
            "rows": self.rows,
            "documents": self.documents,
            "fragmented_documents": self.fragmented,
            "without_beginning": self.without_beginning,
            "without_end": self.without_end,
            "incomplete_documents": self.incomplete,
            "rows_of_several": self.rows_of_several,
            "cross_document_tokens": self.cross_document,
        }


def packing_cost(evidence: Evidence, build: Build) -> Packed:
    """From the index, the ids and the places of the build: nothing is planned again."""
    found = evidence.rows(build).splits[0]
    incomplete = None
    if evidence.has("tokens") and found.split == TRAIN:
        built = evidence.built(build, TRAIN)
        is_in = built.written > 0
        incomplete = int(np.count_nonzero(is_in & (built.written < built.turns.lengths())))
    return Packed(
        found.rows,
        found.documents,
        found.tokens,
        found.fragmented,
        found.without_beginning,
        found.without_end,
        incomplete,
        found.several,
        found.after_another,
    )


class BuiltSource(NamedTuple):
    docs: int  # with a token in a row, each once
    tokens: int  # in rows, repeats counted again


def built_sources(evidence: Evidence, build: Build) -> dict[str, BuiltSource]:
    """What a build that lies in its run has of each source, all splits together."""
    found: dict[str, BuiltSource] = {}
    for split in build.splits:
        built = evidence.built(build, split)
        shards = built.turns.shards
        ends = np.cumsum([shard.lengths.rows for shard in shards])
        shard_of = np.searchsorted(ends, built.position, side="right")
        written = np.bincount(shard_of, weights=built.written, minlength=len(shards)).astype(np.int64)
        for shard, tokens, marks in zip(shards, written.tolist(), built.in_rows().values(), strict=True):
            before = found.get(shard.source, BuiltSource(0, 0))
            found[shard.source] = BuiltSource(before.docs + int(marks.sum()), before.tokens + tokens)
    return found


_SHOWN = 6


def code_languages(evidence: Evidence, found: Answering) -> None:
    """Which programming languages is the code in?"""
    for domain, tallies in tallies_of(evidence, found, "code"):
        docs = sum(one.docs for one in tallies)
        whole = sum(one.text_bytes for one in tallies)
        languages: dict[str, list[int]] = {}
        for one in tallies:
            for name, (count, size) in one.languages.items():
                sums = languages.setdefault(name, [0, 0])
                sums[0] += count
                sums[1] += size
        told_by = sum((one.told_by for one in tallies), Counter[str]())
        if not languages:
            found.say(f"{domain}: unknown; none of {plural(docs, 'document')} has a label or a file ending.")
            found.lack(f"languages of domain {domain}: no label, no file ending")
            continue
        ranked = sorted(languages.items(), key=lambda item: (-item[1][1], item[0]))
        listed = ", ".join(
            f"{name} {share(size, whole)} ({plural(count, 'document')})"
            for name, (count, size) in ranked[:_SHOWN]
        )
        more = f" and {len(ranked) - _SHOWN} more" if len(ranked) > _SHOWN else ""
        how = ", ".join(f"{count:,} by {way}" for way, count in sorted(told_by.items()))
        unknown = docs - sum(told_by.values())
        found.say(f"{domain}, of the bytes of text: {listed}{more}. Told {how}; {unknown:,} not known.")
        found.figures[domain] = {
            "documents": docs,
            "text_bytes": whole,
            "told_by": dict(sorted(told_by.items())),
            "languages": {name: {"documents": count, "text_bytes": size} for name, (count, size) in ranked},
        }
        found.base("ingest/*/documents-*.parquet: meta, doc_id")


def math_styles(evidence: Evidence, found: Answering) -> None:
    """Do two styles of mathematics mix?"""
    for domain, tallies in tallies_of(evidence, found, "math"):
        lengths = found.attempt(lambda: evidence.lengths)
        tokens = lengths.tokens_by("source") if lengths is not None else {}
        docs = sum(one.docs for one in tallies)
        whole = sum(tokens.get(one.source, 0) for one in tallies)
        found.say(f"{domain}: {plural(len(tallies), 'source')}, {plural(docs, 'document')}.")
        for one in tallies:
            found.say(_style(one, docs, tokens.get(one.source), whole))
            for part in _parts(one):
                found.say(part)
            best = most_common(one.prefixes[min(one.prefixes)])
            found.figures[one.source] = {
                "documents": one.docs,
                "tokens": tokens.get(one.source),
                "commonest_beginning": list(best) if best else None,
                "answers": {name: one.answers[name] for name in sorted(one.answers)},
                "parts": {origin: dict(sorted(one.styles[origin].items())) for origin in sorted(one.styles)},
            }
        found.base("texts of the domain's sources", "tokens/*/lengths-*.parquet" if tokens else "")


def _style(one: TextTally, docs: int, tokens: int | None, whole: int) -> str:
    told = f"{one.source}: {share(one.docs, docs)} of the documents"
    if tokens is not None:
        told += f", {share(tokens, whole)} of the tokens"
    prefix = longest_prefix([one], PREFIX_MEDIUM) if one.docs >= MIN_DOCUMENTS else None
    best = most_common(one.prefixes[min(one.prefixes)])
    if prefix is not None:
        told += f"; {share(prefix.docs, one.docs)} begin with {quoted(prefix.text)}"
    elif best is not None:
        told += f"; no common beginning (the commonest, {quoted(best[0])}, in {share(best[1], one.docs)})"
    forms = sorted(((n, c) for n, c in one.answers.items() if c), key=lambda item: (-item[1], item[0]))
    listed = ", ".join(f"{name} {share(count, one.docs)}" for name, count in forms[:_SHOWN])
    return f"{told}; forms: {listed or 'none of those looked for'}."


def _parts(one: TextTally) -> Iterator[str]:
    """The largest parts of a source, by the labels of its documents, where there is more than one."""
    ranked = sorted(one.styles.items(), key=lambda item: (-item[1][DOCUMENTS], item[0]))
    for origin, counts in ranked[:_SHOWN] if len(ranked) > 1 else ():
        docs = counts[DOCUMENTS]
        forms = sorted(
            ((n, c) for n, c in counts.items() if c and n != DOCUMENTS), key=lambda i: (-i[1], i[0])
        )
        listed = ", ".join(f"{name} {share(count, docs)}" for name, count in forms[:3])
        yield f"{one.source}, {origin or 'not labelled'}: {share(docs, one.docs)} of it; forms: {listed or 'none'}."


def leftovers(evidence: Evidence, found: Answering) -> None:
    """What have the datasets left in their texts?"""
    if evidence.subject.kind == "recipe":
        for source in evidence.recipe.sources:
            if source.template is not None:
                literals = [literal for literal, _ in template_parts(source.template) if literal.strip()]
                found.say(
                    f"{source.name}: every document has {', '.join(map(quoted, literals)) or 'nothing'} of its template."
                )
        found.base("the recipe: template").lack("marks, blanks and endings: a recipe alone has no documents")
        return
    scan = found.attempt(lambda: evidence.texts)
    for one in scan.sources.values() if scan is not None else ():
        if not one.docs:
            continue
        counts = {name: one.left.counts[name] for name in ARTEFACTS if one.left.counts[name]}
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        told = ", ".join(f"{name} {share(count, one.docs)}" for name, count in ranked)
        ends = []
        prefix = longest_prefix([one], PREFIX_HIGH) if one.docs >= MIN_DOCUMENTS else None
        suffix = one.left.common_suffix(one.docs) if one.docs >= MIN_DOCUMENTS else None
        if prefix is not None:
            ends.append(f"{share(prefix.docs, one.docs)} begin with {quoted(prefix.text)}")
        if suffix is not None:
            ends.append(f"{share(suffix[1], one.docs)} end with {quoted(suffix[0])}")
        found.say(f"{one.source}: {'; '.join([told or 'none of the marks looked for', *ends])}.")
        found.figures[one.source] = {
            "documents": one.docs,
            "marks": counts,
            "common_beginning": [prefix.text, prefix.docs] if prefix is not None else None,
            "common_ending": list(suffix) if suffix is not None else None,
        }
    found.base("texts of ingest/* and clean/*")


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
        tokens, docs = lengths.tokens_by("split"), lengths.docs_by("split")
        total = sum(tokens.values())
        listed = ", ".join(
            f"{n} {docs[n]:,} documents, {tokens[n]:,} tokens ({share(tokens[n], total)})" for n in tokens
        )
        found.say(f"{listed}.")
        found.figures |= {"documents": docs, "tokens": tokens}
        held = {
            d: sum(p.docs for p in lengths.parts if p.domain == d and p.split != TRAIN)
            for d in lengths.docs_by("domain")
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
            f"{exact.overlapping:,} of {exact.held_out:,} held-out documents have an exact copy in another split."
        )
        found.figures["exact_copies"] = exact.overlapping
        near = found.attempt(lambda: evidence.near_overlap)
        if near is not None:
            found.say(
                f"{near.overlapping:,} of {near.looked_at:,} looked at have a near duplicate there (Jaccard {near.threshold:g})."
            )
            found.figures["near_duplicates"] = near.overlapping
        found.base("clean/*/marks-*.parquet", "split/labels-*.parquet", "texts")


def evaluation_risks(evidence: Evidence, found: Answering) -> None:
    """What would make an evaluation look better than it is?"""
    if evidence.subject.kind == "recipe":
        against = evidence.recipe.dedup.against
        found.say(
            f"Benchmarks are {'given: ' + ', '.join(against.files) if against else 'not given (`dedup.against`)'}."
        )
        found.base("the recipe: dedup.against").lack("items found in documents, copies between splits")
        return
    if evidence.subject.found is None:
        found.lack("benchmark items and copies between splits: a published build holds no text")
        return
    dedup = found.attempt(lambda: evidence.artifact("dedup").manifest)
    if dedup is not None and dedup.config.get("against"):
        facts, dropped = dedup.facts["against"], dedup.counts["dropped"].get("contaminated", 0)
        found.say(
            f"Benchmark items stand in {plural(facts['documents'], 'document')}, of which {dropped:,} were dropped."
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
                f"{share(prefix.docs, docs)} of {domain} begin with {quoted(prefix.text)}: loss on it is easy to lower."
            )
            found.figures.setdefault("constant_beginnings", {})[domain] = round(prefix.docs / docs, 6)
            found.base("texts")
    for _, probe in found.attempt(lambda: probed_builds(evidence)) or []:
        rows = probe.views[0]
        found.say(
            f"Single tokens tell the domain of {spelled(100 * rows.accuracy())} % of held-out rows: a router, or a probe of hidden "
            "states, that does as well has shown nothing beyond them."
        )


def tallies_of(evidence: Evidence, found: Answering, kind: str) -> Iterator[tuple[str, list[TextTally]]]:
    """Domains of this kind, by their names."""
    if evidence.subject.kind == "recipe":
        listed = [source.name for source in evidence.recipe.sources if kind in source.domain.lower()]
        found.say(f"Sources of {kind}: {', '.join(listed) or 'none'}.").base("the recipe: sources")
        found.lack("what their documents look like: a recipe alone has none")
        return
    scan = found.attempt(lambda: evidence.texts)
    if scan is None:
        return
    domains = {name: tallies for name, tallies in scan.domains().items() if kind in name.lower()}
    if not domains:
        found.say(f"No domain is called {kind} (there are {', '.join(scan.domains())}).").base(
            "ingest/*/manifest.json"
        )
    yield from domains.items()


def answer_questions(evidence: Evidence) -> list[Answer]:
    return [answering(question, answer, evidence) for question, answer in QUESTIONS]


def source_choice(evidence: Evidence, found: Answering) -> None:
    """Which sources, and what does each give?"""
    ingested = evidence.subject.of_kind("ingest")
    if not ingested and evidence.subject.kind == "build":
        for build in found.attempt(evidence.builds) or []:
            counts = build.artifact.manifest.counts.get("sources", {})
            total = sum(told["tokens"] for told in counts.values())
            for name, told in counts.items():
                found.say(
                    f"{name}: {plural(told['docs'], 'document')}, {share(told['tokens'], total)} of the tokens."
                )
                found.figures[name] = dict(told)
            found.base("manifest.json: counts.sources")
        return
    if not ingested:
        for source in evidence.recipe.sources:
            place = (
                source.hub.dataset
                if source.hub is not None
                else ", ".join(source.files or ["a corpus manifest"])
            )
            found.say(f"{source.name} ({source.domain}): {place}, licence {source.license or 'not stated'}.")
            found.figures[source.name] = {"domain": source.domain, "license": source.license}
        found.base("the recipe").lack("documents, tokens and what each source loses: a recipe alone has none")
        return
    lengths = found.attempt(lambda: evidence.lengths)
    tokens = lengths.tokens_by("source") if lengths is not None else {}
    docs = lengths.docs_by("source") if lengths is not None else {}
    total = sum(tokens.values())
    built = (found.attempt(lambda: built_sources(evidence, evidence.builds()[0])) if lengths else None) or {}
    for name, artifact in ingested.items():
        counts = artifact.manifest.counts
        figures = {"records": counts["in"], "ingested": counts["kept"], "text_bytes": counts["text_bytes"]}
        told = f"{name} ({artifact.manifest.config['reading']['domain']}): {plural(counts['in'], 'record')}"
        if name in tokens:
            figures |= {"documents": docs[name], "tokens": tokens[name]}
            told += f", {docs[name]:,} of them kept, {tokens[name]:,} tokens ({share(tokens[name], total)})"
        if name in built:
            figures |= {"built_documents": built[name].docs, "built_tokens": built[name].tokens}
            told += f", {built[name].docs:,} of them built ({share(built[name].docs, counts['in'])})"
            told += f" with {built[name].tokens:,} tokens"
        scanned = artifact.manifest.facts.get("scanned", {})
        if not scanned.get("is_complete", True):
            told += f", {share(scanned['fraction'], 1)} of the source read"
        found.say(f"{told}, licence {artifact.manifest.config['reading'].get('license') or 'by document'}.")
        found.figures[name] = figures
    found.base("ingest/*/manifest.json", "tokens/*/lengths-*.parquet" if tokens else "")


def packing_pitfalls(evidence: Evidence, found: Answering) -> None:
    """What does packing cost?"""
    if evidence.subject.kind == "recipe":
        pack = evidence.recipe.pack
        found.say(f"The recipe asks for layout {pack.layout}, rows of {pack.length:,}, tail {pack.tail}.")
        found.base("the recipe: pack").lack("what that costs: it depends on the lengths of the documents")
        return
    for build in found.attempt(evidence.builds) or []:
        pack, tokens = build.artifact.manifest.config["pack"], build.artifact.manifest.counts["tokens"]
        told = f"{named([build]).capitalize()} ({pack['layout']}"
        told += f", rows of {pack['length']:,})" if "length" in pack else ")"
        columns = tokens["written"] + tokens["padding"]
        told += f": padding {share(tokens['padding'], columns)} of the columns, tail dropped {share(tokens['tail_dropped'], tokens['in'])}"
        told += f", truncated {share(tokens['truncated'], tokens['in'])}, left out {share(tokens['left_out'], tokens['in'])} of the tokens"
        cost = found.attempt(lambda build=build: packing_cost(evidence, build))  # type: ignore[misc]
        figures = dict(tokens)
        if cost is not None:
            told += f"; {cost.without_beginning:,} of {cost.documents:,} documents lack their beginning, {cost.without_end:,} their end"
            told += f"; {share(cost.fragmented, cost.documents)} of the documents on more than one row"
            told += f", {share(cost.cross_document, cost.tokens_kept)} of the tokens after another document in their row"
            told += f", {share(cost.rows_of_several, cost.rows)} of the rows hold more than one document"
            figures |= cost.as_json()
        found.say(f"{told}.")
        found.figures[build.name] = figures
        found.base(
            "build/*/manifest.json" if evidence.subject.found else "manifest.json",
            "train/index.jsonl.zst, places.npy and ids of the build" if cost else "",
        )


def packing(evidence: Evidence, found: Answering) -> None:
    """What does packing cost, and what does a row lack?"""
    packing_pitfalls(evidence, found)
    for build in evidence.subject.builds:
        if "length" not in build.artifact.manifest.config["pack"]:
            continue  # every document is whole
        boundaries = found.attempt(lambda build=build: evidence.boundaries(build))  # type: ignore[misc]
        if boundaries is not None and boundaries.pieces:
            for sentence in boundary_sentences(build, boundaries):
                found.say(sentence)
            found.figures.setdefault("boundaries", {})[build.name] = boundary_figures(boundaries)
            found.base(
                f"{manifest_of(build).removesuffix('manifest.json')}train/index.jsonl.zst and the rows"
            )


QUESTIONS: tuple[tuple[str, Callable[[Evidence, Answering], None]], ...] = (
    ("Which sources, and what does each give?", source_choice),
    ("Is it large enough?", size_target),
    ("Are the domains in balance, and what does that cost?", balance),
    ("Which programming languages is the code in?", code_languages),
    ("Do two styles of mathematics mix?", math_styles),
    ("What have the datasets left in their texts?", leftovers),
    ("What is held out, is it clean, and is it enough to measure?", held_out_set),
    ("What does packing cost, and what does a row lack?", packing),
    ("How well are domains told apart by surface tokens alone?", separability),
    ("What would make an evaluation look better than it is?", evaluation_risks),
)

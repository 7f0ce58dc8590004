"""The surface of the texts: how documents begin and end, what hides in them, what their datasets left,
how they are written.

    texts.py ─ TextTally of each source ─┬─ checks, by domain: beginnings, first and hidden characters,
                                         │  control tokens
                                         ├─ checks, by source: artefacts
                                         └─ answers: languages of code, styles of mathematics, leftovers

What a model learns first, and where a domain gives itself away.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tokmill.audit.check import has_conversations
from tokmill.errors import plural
from tokmill.loader.dataset import open_dataset
from tokmill.recipe import template_parts
from tokmill.reviews.evidence import Answering, Evidence, check
from tokmill.reviews.finding import Finding, Found, Measure, part, percent, quoted, share
from tokmill.reviews.texts import (
    ARTEFACTS,
    COMMON_SUFFIX,
    DOCUMENTS,
    MIN_DOCUMENTS,
    PREFIX_CHARS,
    PREFIX_HIGH,
    PREFIX_MEDIUM,
    RESERVED,
    Scan,
    TextTally,
    longest_prefix,
    longest_suffix,
    most_common,
    ranked_counts,
)

MAX_FIRST_CHARACTER = 0.50
MAX_LEADING, MAX_SKEW = 0.01, 3.0  # of the documents of a domain; times those of another domain
MIN_SKEWED = 0.001  # three times nothing is nothing: below one in a thousand no skew is told
MAX_ARTEFACT = 0.01  # of the documents of a source


_TEXTS = "texts of ingest/* and clean/*"
ONLY_TEMPLATES = "only templates were looked at: a recipe alone has no documents"


class Judged(NamedTuple):
    """A domain that is large enough to be judged."""

    name: str
    docs: int
    tallies: list[TextTally]


def _judged(scan: Scan) -> list[Judged]:
    found = [Judged(name, sum(one.docs for one in own), own) for name, own in scan.domains().items()]
    return [one for one in found if one.docs >= MIN_DOCUMENTS]


def _not_judged(scan: Scan) -> Iterator[str]:
    """That not all was read, and what is too small, in a sentence each."""
    yield from _sampled(scan)
    for domain, tallies in scan.domains().items():
        docs = sum(one.docs for one in tallies)
        if docs < MIN_DOCUMENTS:
            yield f"domain {domain} has {plural(docs, 'document')}: fewer than {MIN_DOCUMENTS} are not judged"


def _sampled(scan: Scan) -> Iterator[str]:
    if not scan.is_complete:
        yield (
            f"texts of {scan.shards:,} of {scan.of_shards:,} shards were read ({scan.text_bytes / 1e9:.1f} "
            f"of {scan.of_bytes / 1e9:.1f} GB), chosen by the hash of their names"
        )


@check(
    "Vary the template, or leave the constant part out: the domain is known by its first tokens, and they "
    "teach nothing."
)
def constant_prefix(evidence: Evidence) -> Found:
    """Do documents of a domain begin alike?"""
    if evidence.subject.kind == "recipe":
        yield from _templates(evidence)
        return
    yield from _not_judged(evidence.texts)
    for one in _judged(evidence.texts):
        prefix = longest_prefix(one.tallies, PREFIX_HIGH) or longest_prefix(one.tallies, PREFIX_MEDIUM)
        if prefix is None:
            continue
        text, docs = prefix
        is_high = docs > PREFIX_HIGH * one.docs
        yield Finding(
            "high" if is_high else "medium",
            f"domain {one.name}",
            f"{share(docs, one.docs)} of {plural(one.docs, 'document')} begin with {quoted(text)}",
            part(f"begin with {quoted(text)}", docs, "documents", "of the domain", one.docs, _TEXTS),
            _one_beginning(PREFIX_HIGH if is_high else PREFIX_MEDIUM),
        )


def _one_beginning(share: float) -> Measure:
    return Measure("one beginning", 100 * share, "% of a domain", f"{PREFIX_CHARS[0]} characters or more")


def _templates(evidence: Evidence) -> Found:
    """A domain all of whose sources have templates that begin alike."""
    size = PREFIX_CHARS[0]
    domains: dict[str, set[str]] = {}
    for source in evidence.recipe.sources:
        literal = template_parts(source.template)[0][0] if source.template is not None else ""
        domains.setdefault(source.domain, set()).add(literal[:size])
    for domain, beginnings in domains.items():
        (beginning, *others) = sorted(beginnings)
        if not others and len(beginning) == size:
            read_from = f"{evidence.subject.recipe_file}: template"
            yield Finding(
                "high",
                f"domain {domain}",
                f"the templates of all its sources begin with {quoted(beginning)}",
                (Measure(f"begin with {quoted(beginning)}", 100, "% of the documents", read_from),),
                _one_beginning(PREFIX_HIGH),
            )
    yield ONLY_TEMPLATES


@check("Look at the beginnings (`tokmill peek`): headings, indentation or a marker may have to go.")
def first_character(evidence: Evidence) -> Found:
    """Does one character begin most documents of a domain?
    A constant prefix is told by that check, and left out."""
    yield from _not_judged(evidence.texts)
    for one in _judged(evidence.texts):
        counts, docs = sum((tally.first for tally in one.tallies), Counter[str]()), one.docs
        shortest = longest_prefix(one.tallies, PREFIX_MEDIUM, PREFIX_CHARS[:1])
        if shortest is not None:
            counts[shortest[0][:1]] -= shortest[1]
            docs -= shortest[1]
        best = most_common(counts)
        if docs < MIN_DOCUMENTS or best is None or best[1] <= MAX_FIRST_CHARACTER * docs:
            continue
        character, begun = quoted(best[0]), best[1]
        of = "of the domain, but for a constant prefix"
        yield Finding(
            "medium",
            f"domain {one.name}",
            f"{share(begun, docs)} of {plural(docs, 'document')} begin with the character {character}",
            part(f"begin with {character}", begun, "documents", of, docs, _TEXTS),
            Measure("one first character", 100 * MAX_FIRST_CHARACTER, "% of a domain", ""),
        )


@check(
    "Take them out where the source is written, before they mark a domain, or with a function of your own "
    "(`transforms: [hooks.py:function]`); or drop such documents with a filter (`{measure: "
    "hooks.py:function, max: 0}`)."
)
def hidden_characters(evidence: Evidence) -> Found:
    """Do texts begin with whitespace, or hide characters?"""
    yield from _not_judged(evidence.texts)
    judged = _judged(evidence.texts)
    for what, attribute in (
        ("begin with whitespace", "leading_space"),
        ("hold invisible characters", "invisible"),
    ):
        rates = {
            one.name: (sum(getattr(tally, attribute) for tally in one.tallies), one.docs) for one in judged
        }
        yield from _too_many(what, rates)
        yield from _skewed(what, rates)


def _too_many(what: str, rates: dict[str, tuple[int, int]]) -> Iterator[Finding]:
    for domain, (count, docs) in rates.items():
        if count > MAX_LEADING * docs:
            yield Finding(
                "medium",
                f"domain {domain}",
                f"{count:,} of {plural(docs, 'document')} ({share(count, docs)}) {what}",
                part(what, count, "documents", "of the domain", docs, _TEXTS),
                Measure(what, 100 * MAX_LEADING, "% of a domain", ""),
            )


def _skewed(what: str, rates: dict[str, tuple[int, int]]) -> Iterator[Finding]:
    """Told of domains that are not over the threshold by themselves: those are told already."""
    calm = {domain: counted for domain, counted in rates.items() if counted[0] <= MAX_LEADING * counted[1]}
    if len(calm) < 2:
        return
    ranked = sorted(calm, key=lambda domain: (calm[domain][0] / calm[domain][1], domain))
    most, least = ranked[-1], ranked[0]
    (many, of_many), (few, of_few) = calm[most], calm[least]
    # one document more or less decides nothing: as many are expected where there is no skew
    if many * of_few > MAX_SKEW * max(few, 1) * of_many and many > MIN_SKEWED * of_many and many > MAX_SKEW:
        yield Finding(
            "low",
            f"domains {most}, {least}",
            f"{share(many, of_many)} of {most} {what}, but {share(few, of_few)} of {least}",
            (
                Measure(f"{most}: {what}", percent(many, of_many), "% of its documents", _TEXTS),
                Measure(f"{least}: {what}", percent(few, of_few), "% of its documents", _TEXTS),
            ),
            Measure("between two domains", MAX_SKEW, "times", f"from {100 * MIN_SKEWED:g} % of a domain on"),
        )


@check(
    "Read an edition without them (raw instead of tokenized, decoded as UTF-8), or drop such documents with "
    "a filter (`{measure: hooks.py:function, max: 0}`): a model learns to write what it reads."
)
def dataset_artefacts(evidence: Evidence) -> Found:
    """Have the datasets left marks in their texts? Of each source:
    it has them, whatever domain it is put into."""
    yield from _sampled(evidence.texts)
    for one in evidence.texts.sources.values():
        if one.docs >= MIN_DOCUMENTS:
            yield from _artefacts(one)


def _artefacts(one: TextTally) -> Iterator[Finding]:
    for name, artefact in ARTEFACTS.items():
        count = one.artefacts[name]
        is_meant = artefact.of == "text" and "code" in one.domain.lower()
        if not artefact.is_told or is_meant or count <= MAX_ARTEFACT * one.docs:
            continue
        yield Finding(
            "low" if artefact.of == "text" else "medium",
            f"source {one.source}",
            f"{count:,} of {plural(one.docs, 'document')} ({share(count, one.docs)}) {artefact.says}",
            part(name, count, "documents", "of the source", one.docs, _TEXTS),
            Measure("with an artefact", 100 * MAX_ARTEFACT, "% of a source", ""),
        )
    suffix = longest_suffix(one)
    if suffix is not None:
        text, count = quoted(suffix[0]), suffix[1]
        chars = f"{PREFIX_CHARS[0]} characters or more"
        yield Finding(
            "medium",
            f"source {one.source}",
            f"{share(count, one.docs)} of {plural(one.docs, 'document')} end with {text}",
            part(f"end with {text}", count, "documents", "of the source", one.docs, _TEXTS),
            Measure("one ending", 100 * COMMON_SUFFIX, "% of a source", chars),
        )


@check(
    "Keep them out of `tokenizer.control`, and escape or drop them if other tools will encode these texts."
)
def control_tokens(evidence: Evidence) -> Found:
    """Do texts hold literals of control tokens? Where there is no text:
    is the id that ends documents inside of one?"""
    if evidence.subject.kind == "recipe":
        yield from _in_templates(evidence)
        return
    if evidence.subject.found is None:
        yield from _eos_inside(evidence)
        return
    own = set(evidence.control_literals())
    becomes = set()
    if evidence.has("tokenizer"):
        becomes = set(evidence.artifact("tokenizer").manifest.facts.get("controls", {}))
    yield from _sampled(evidence.texts)
    for name, tally in evidence.texts.sources.items():
        if not tally.reserved:
            continue
        listed = ranked_counts(tally.reserved)
        is_control = not tally.is_chat and any(literal in becomes for literal, _ in listed)
        outcome = "stays ordinary text here, unlike with most other encoders"
        if is_control:
            outcome = "becomes a control token here"
        literal, docs = listed[0]
        yield Finding(
            "high" if is_control else "medium",
            f"source {name}",
            f"{quoted(literal)} stands in {docs:,} of {plural(tally.docs, 'document')}; it {outcome}",
            tuple(
                Measure(
                    f"documents with {quoted(token)}{' (of this tokenizer)' if token in own else ''}",
                    count,
                    "documents",
                    f"texts of source {name}",
                )
                for token, count in listed[:5]
            ),
            Measure("literals of control tokens in text", 0, "documents", "any"),
        )


def _in_templates(evidence: Evidence) -> Found:
    pattern = "|".join([RESERVED, *(re.escape(literal) for literal in evidence.control_literals())])
    for source in evidence.recipe.sources:
        literals = [literal for literal, _ in template_parts(source.template)] if source.template else []
        tokens = sorted({token for literal in literals for token in re.findall(pattern, literal)})
        if tokens:
            read_from = f"{evidence.subject.recipe_file}: template"
            yield Finding(
                "medium",
                f"source {source.name}",
                f"its template writes {quoted(tokens[0])} into every document",
                (Measure(f"literals in the template ({', '.join(tokens)})", len(tokens), "", read_from),),
                Measure("literals of control tokens in text", 0, "", "any"),
            )
    yield ONLY_TEMPLATES


def _eos_inside(evidence: Evidence) -> Found:
    for build in evidence.builds():
        rows = evidence.rows(build)
        inside = sum(split.eos_inside for split in rows.splits)
        datasets = (open_dataset(build.artifact.directory / split.split) for split in rows.splits)
        if inside and any(map(has_conversations, datasets)):
            yield f"id {rows.eos_id} stands {inside:,} times inside of documents, where it ends turns"
        elif inside:
            read_from = "*/index.jsonl.zst and the rows"
            yield Finding(
                "high",
                "this build",
                f"id {rows.eos_id}, which ends documents, stands {inside:,} times inside of one",
                (Measure(f"id {rows.eos_id} inside a document", inside, "tokens", read_from),),
                Measure("ends inside a document", 0, "tokens", "any"),
            )
    yield "literals in the text were not looked for: a published build holds no text"


# --- answers ---

_SHOWN = 6


def code_languages(evidence: Evidence, found: Answering) -> None:
    """Which programming languages is the code in?"""
    for domain, tallies in _tallies_of(evidence, found, "code"):
        docs = sum(one.docs for one in tallies)
        whole = sum(one.text_bytes for one in tallies)
        documents = sum((one.code_docs for one in tallies), Counter[str]())
        sizes = sum((one.code_bytes for one in tallies), Counter[str]())
        told_by = sum((one.told_by for one in tallies), Counter[str]())
        if not documents:
            found.say(f"{domain}: unknown; none of {plural(docs, 'document')} has a label or a file ending.")
            found.lack(f"languages of domain {domain}: no label, no file ending")
            continue
        ranked = sorted(documents, key=lambda name: (-sizes[name], name))
        listed = ", ".join(
            f"{name} {share(sizes[name], whole)} ({plural(documents[name], 'document')})"
            for name in ranked[:_SHOWN]
        )
        more = f" and {len(ranked) - _SHOWN} more" if len(ranked) > _SHOWN else ""
        how = ", ".join(f"{count:,} by {way}" for way, count in sorted(told_by.items()))
        unknown = docs - told_by.total()
        found.say(f"{domain}, of the bytes of text: {listed}{more}. Told {how}; {unknown:,} not known.")
        found.figures[domain] = {
            "documents": docs,
            "text_bytes": whole,
            "told_by": dict(sorted(told_by.items())),
            "languages": {name: {"documents": documents[name], "text_bytes": sizes[name]} for name in ranked},
        }
        found.base("ingest/*/documents-*.parquet: meta, doc_id")


def math_styles(evidence: Evidence, found: Answering) -> None:
    """Do two styles of mathematics mix?"""
    for domain, tallies in _tallies_of(evidence, found, "math"):
        lengths = found.attempt(lambda: evidence.lengths)
        tokens = lengths.sums("tokens", "source") if lengths is not None else {}
        docs = sum(one.docs for one in tallies)
        whole = sum(tokens.get(one.source, 0) for one in tallies)
        found.say(f"{domain}: {plural(len(tallies), 'source')}, {plural(docs, 'document')}.")
        for one in tallies:
            best = most_common(one.prefixes[PREFIX_CHARS[0]])
            found.say(_style(one, docs, tokens.get(one.source), whole, best))
            for part_of_it in _parts(one):
                found.say(part_of_it)
            found.figures[one.source] = {
                "documents": one.docs,
                "tokens": tokens.get(one.source),
                "commonest_beginning": list(best) if best else None,
                "answers": dict(sorted(one.answers.items())),
                "parts": {origin: dict(sorted(one.styles[origin].items())) for origin in sorted(one.styles)},
            }
        found.base("texts of the domain's sources", "tokens/*/lengths-*.parquet" if tokens else "")


def _style(one: TextTally, docs: int, tokens: int | None, whole: int, best: tuple[str, int] | None) -> str:
    told = f"{one.source}: {share(one.docs, docs)} of the documents"
    if tokens is not None:
        told += f", {share(tokens, whole)} of the tokens"
    prefix = longest_prefix([one], PREFIX_MEDIUM)
    if prefix is not None and one.docs >= MIN_DOCUMENTS:
        told += f"; {share(prefix[1], one.docs)} begin with {quoted(prefix[0])}"
    elif best is not None:
        told += f"; no common beginning (the commonest, {quoted(best[0])}, in {share(best[1], one.docs)})"
    return f"{told}; forms: {_forms(one.answers, one.docs, _SHOWN) or 'none of those looked for'}."


def _parts(one: TextTally) -> Iterator[str]:
    """The largest parts of a source, by the labels of its documents, where there is more than one."""
    ranked = sorted(one.styles.items(), key=lambda item: (-item[1][DOCUMENTS], item[0]))
    for origin, counts in ranked[:_SHOWN] if len(ranked) > 1 else ():
        docs = counts[DOCUMENTS]
        listed = _forms(counts, docs, 3) or "none"
        yield f"{one.source}, {origin or 'not labelled'}: {share(docs, one.docs)} of it; forms: {listed}."


def _forms(counts: Mapping[str, int], docs: int, most: int) -> str:
    ranked = [(name, count) for name, count in ranked_counts(counts) if count and name != DOCUMENTS]
    return ", ".join(f"{name} {share(count, docs)}" for name, count in ranked[:most])


def leftovers(evidence: Evidence, found: Answering) -> None:
    """What have the datasets left in their texts?"""
    if evidence.subject.kind == "recipe":
        for source in evidence.recipe.sources:
            if source.template is not None:
                literals = [literal for literal, _ in template_parts(source.template) if literal.strip()]
                listed = ", ".join(map(quoted, literals)) or "nothing"
                found.say(f"{source.name}: every document has {listed} of its template.")
        found.base("the recipe: template").lack("marks, blanks and endings: a recipe alone has no documents")
        return
    scan = found.attempt(lambda: evidence.texts)
    for one in scan.sources.values() if scan is not None else ():
        if not one.docs:
            continue
        counts = {name: one.artefacts[name] for name in ARTEFACTS if one.artefacts[name]}
        told = ", ".join(f"{name} {share(count, one.docs)}" for name, count in ranked_counts(counts))
        is_judged = one.docs >= MIN_DOCUMENTS
        prefix = longest_prefix([one], PREFIX_HIGH) if is_judged else None
        suffix = longest_suffix(one) if is_judged else None
        ends = [
            f"{share(end[1], one.docs)} {word} with {quoted(end[0])}"
            for word, end in (("begin", prefix), ("end", suffix))
            if end is not None
        ]
        found.say(f"{one.source}: {'; '.join([told or 'none of the marks looked for', *ends])}.")
        found.figures[one.source] = {
            "documents": one.docs,
            "marks": counts,
            "common_beginning": list(prefix) if prefix is not None else None,
            "common_ending": list(suffix) if suffix is not None else None,
        }
    found.base("texts of ingest/* and clean/*")


def _tallies_of(evidence: Evidence, found: Answering, kind: str) -> Iterator[tuple[str, list[TextTally]]]:
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

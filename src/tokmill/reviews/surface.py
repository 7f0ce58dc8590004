"""Control tokens where text should be: literals in documents and templates, or the id that ends documents inside of one.

How documents begin and what hides in them: what a model learns first, and where a domain gives itself away.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from tokmill.recipe import template_parts
from tokmill.reviews.evidence import Evidence
from tokmill.reviews.finding import (
    MAX_FIRST_CHARACTER,
    MAX_LEADING,
    MAX_SKEW,
    MIN_DOCUMENTS,
    MIN_SKEWED,
    PREFIX_CHARS,
    PREFIX_HIGH,
    PREFIX_MEDIUM,
    Assumption,
    Finding,
    Found,
    Measure,
    percent,
    plural,
    quoted,
    share,
)
from tokmill.reviews.texts import RESERVED, Scan, TextTally, joined, judge, most_common

_TEXTS = "texts of ingest/* and clean/*"
ONLY_TEMPLATES = "only templates were looked at: a recipe alone has no documents"


class Prefix(NamedTuple):
    text: str
    docs: int


def _domains(evidence: Evidence, check: str) -> Iterator[tuple[str, int, list[TextTally]] | Assumption]:
    """Domain, documents, sources; what is too small to be judged, and that not all was read, as assumptions."""
    scan = evidence.texts
    if not scan.is_complete:
        yield Assumption(check, sampled(scan))
    for domain, tallies in scan.domains().items():
        docs = sum(one.docs for one in tallies)
        if docs < MIN_DOCUMENTS:
            yield Assumption(
                check,
                f"domain {domain} has {plural(docs, 'document')}: fewer than {MIN_DOCUMENTS} are not judged",
            )
        else:
            yield domain, docs, tallies


def sampled(scan: Scan) -> str:
    return (
        f"texts of {scan.shards:,} of {scan.of_shards:,} shards were read ({scan.text_bytes / 1e9:.1f} of "
        f"{scan.of_bytes / 1e9:.1f} GB), chosen by the hash of their names"
    )


def longest_prefix(tallies: list[TextTally], at_least: float) -> Prefix | None:
    """The beginning that more than this share of the documents have: the longest of those that are counted."""
    docs = sum(one.docs for one in tallies)
    found = None
    for size in PREFIX_CHARS:
        best = most_common(joined(tallies, size))
        if best is None or best[1] <= at_least * docs:
            break
        found = Prefix(*best)
    return found


def constant_prefix(evidence: Evidence) -> Found:
    if evidence.subject.kind == "recipe":
        yield from _templates(evidence)
        return
    for one in _domains(evidence, "constant_prefix"):
        if isinstance(one, Assumption):
            yield one
            continue
        domain, docs, tallies = one
        prefix = longest_prefix(tallies, PREFIX_HIGH) or longest_prefix(tallies, PREFIX_MEDIUM)
        if prefix is None:
            continue
        is_high = prefix.docs > PREFIX_HIGH * docs
        yield Finding(
            "constant_prefix",
            "high" if is_high else "medium",
            f"domain {domain}",
            f"{share(prefix.docs, docs)} of {plural(docs, 'document')} begin with {quoted(prefix.text)}",
            (
                Measure(f"begin with {quoted(prefix.text)}", prefix.docs, "documents", _TEXTS),
                Measure("of the domain", percent(prefix.docs, docs), "%", _TEXTS),
            ),
            Measure(
                "one beginning",
                100 * (PREFIX_HIGH if is_high else PREFIX_MEDIUM),
                "% of a domain",
                f"{PREFIX_CHARS[0]} characters or more",
            ),
        )


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
                "constant_prefix",
                "high",
                f"domain {domain}",
                f"the templates of all its sources begin with {quoted(beginning)}",
                (Measure(f"begin with {quoted(beginning)}", 100, "% of the documents", read_from),),
                Measure("one beginning", 100 * PREFIX_HIGH, "% of a domain", f"{size} characters or more"),
            )
    yield Assumption("constant_prefix", ONLY_TEMPLATES)


def first_character(evidence: Evidence) -> Found:
    """Documents with a constant prefix are told by that check, and left out here."""
    for one in _domains(evidence, "first_character"):
        if isinstance(one, Assumption):
            yield one
            continue
        domain, docs, tallies = one
        counts = sum((tally.first for tally in tallies), Counter[str]())
        prefix = longest_prefix(tallies, PREFIX_MEDIUM)
        if prefix is not None:
            shortest = Prefix(*most_common(joined(tallies, PREFIX_CHARS[0])))  # type: ignore[misc]
            counts[shortest.text[:1]] -= shortest.docs
            docs -= shortest.docs
        best = most_common(counts)
        if docs < MIN_DOCUMENTS or best is None or best[1] <= MAX_FIRST_CHARACTER * docs:
            continue
        character, found = best
        yield Finding(
            "first_character",
            "medium",
            f"domain {domain}",
            f"{share(found, docs)} of {plural(docs, 'document')} begin with the character {quoted(character)}",
            (
                Measure(f"begin with {quoted(character)}", found, "documents", _TEXTS),
                Measure("of the domain, but for a constant prefix", percent(found, docs), "%", _TEXTS),
            ),
            Measure("one first character", 100 * MAX_FIRST_CHARACTER, "% of a domain", ""),
        )


def hidden_characters(evidence: Evidence) -> Found:
    found: dict[str, tuple[int, list[TextTally]]] = {}
    for one in _domains(evidence, "hidden_characters"):
        if isinstance(one, Assumption):
            yield one
        else:
            found[one[0]] = one[1], one[2]
    for what, attribute in (
        ("begin with whitespace", "leading_space"),
        ("hold invisible characters", "invisible"),
    ):
        rates = {
            domain: (sum(getattr(tally, attribute) for tally in tallies), docs)
            for domain, (docs, tallies) in found.items()
        }
        yield from _too_many(what, rates)
        yield from _skewed(what, rates)


def _too_many(what: str, rates: dict[str, tuple[int, int]]) -> Iterator[Finding]:
    for domain, (count, docs) in rates.items():
        if count > MAX_LEADING * docs:
            yield Finding(
                "hidden_characters",
                "medium",
                f"domain {domain}",
                f"{count:,} of {plural(docs, 'document')} ({share(count, docs)}) {what}",
                (
                    Measure(what, count, "documents", _TEXTS),
                    Measure("of the domain", percent(count, docs), "%", _TEXTS),
                ),
                Measure(what, 100 * MAX_LEADING, "% of a domain", ""),
            )


def _skewed(what: str, rates: dict[str, tuple[int, int]]) -> Iterator[Finding]:
    """Told of domains that are not over the bound by themselves: those are told already."""
    calm = {domain: counted for domain, counted in rates.items() if counted[0] <= MAX_LEADING * counted[1]}
    if len(calm) < 2:
        return
    most = max(calm, key=lambda domain: (calm[domain][0] / calm[domain][1], domain))
    least = min(calm, key=lambda domain: (calm[domain][0] / calm[domain][1], domain))
    (many, of_many), (few, of_few) = calm[most], calm[least]
    # one document more or less decides nothing: as many are expected where there is no skew
    if many * of_few > MAX_SKEW * max(few, 1) * of_many and many > MIN_SKEWED * of_many and many > MAX_SKEW:
        yield Finding(
            "hidden_characters",
            "low",
            f"domains {most}, {least}",
            f"{share(many, of_many)} of {most} {what}, but {share(few, of_few)} of {least}",
            (
                Measure(f"{most}: {what}", percent(many, of_many), "% of its documents", _TEXTS),
                Measure(f"{least}: {what}", percent(few, of_few), "% of its documents", _TEXTS),
            ),
            Measure("between two domains", MAX_SKEW, "times", f"from {100 * MIN_SKEWED:g} % of a domain on"),
        )


def dataset_artefacts(evidence: Evidence) -> Found:
    """Of each source: a dataset has them, whatever domain it is put into."""
    scan = evidence.texts
    if not scan.is_complete:
        yield Assumption("dataset_artefacts", sampled(scan))
    for one in scan.sources.values():
        yield from judge(one.source, one.domain, one.docs, one.left)


def control_tokens(evidence: Evidence) -> Found:
    """Literals in the text; and where there is no text, the id that ends documents inside of one."""
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
    if not evidence.texts.is_complete:
        yield Assumption("control_tokens", sampled(evidence.texts))
    for name, tally in evidence.texts.sources.items():
        if not tally.reserved:
            continue
        listed = sorted(tally.reserved.items(), key=lambda item: (-item[1], item[0]))
        worst = any(literal in becomes for literal, _ in listed)
        fate = (
            "becomes a control token here"
            if worst
            else "stays ordinary text here, unlike with most other encoders"
        )
        literal, docs = listed[0]
        yield Finding(
            "control_tokens",
            "high" if worst else "medium",
            f"source {name}",
            f"{quoted(literal)} stands in {docs:,} of {plural(tally.docs, 'document')}; it {fate}",
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
        found = sorted({token for literal in literals for token in re.findall(pattern, literal)})
        if found:
            read_from = f"{evidence.subject.recipe_file}: template"
            yield Finding(
                "control_tokens",
                "medium",
                f"source {source.name}",
                f"its template writes {quoted(found[0])} into every document",
                (Measure(f"literals in the template ({', '.join(found)})", len(found), "", read_from),),
                Measure("literals of control tokens in text", 0, "", "any"),
            )
    yield Assumption("control_tokens", ONLY_TEMPLATES)


def _eos_inside(evidence: Evidence) -> Found:
    for build in evidence.builds():
        rows = evidence.rows(build)
        inside = sum(split.eos_inside for split in rows.splits)
        if inside:
            yield Finding(
                "control_tokens",
                "high",
                "this build",
                f"id {rows.eos_id}, which ends documents, stands {inside:,} times inside of one",
                (
                    Measure(
                        f"id {rows.eos_id} inside a document",
                        inside,
                        "tokens",
                        "*/index.jsonl.zst and the rows",
                    ),
                ),
                Measure("ends inside a document", 0, "tokens", "any"),
            )
    yield Assumption(
        "control_tokens", "literals in the text were not looked for: a published build holds no text"
    )

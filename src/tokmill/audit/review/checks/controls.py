"""Control tokens where text should be: literals in documents and templates, or the id that ends documents inside of one."""

from __future__ import annotations

import re

from tokmill.audit.review.checks.surface import ONLY_TEMPLATES, sampled
from tokmill.audit.review.evidence import Evidence
from tokmill.audit.review.finding import Assumption, Finding, Found, Measure, plural, quoted
from tokmill.audit.review.texts import RESERVED
from tokmill.recipe import template_parts


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

"""Review: every check and every question on whatever is there, and what could not be measured said beside it.

    subject ─ evidence ─┬─ CHECKS ─> findings, by severity; assumptions; recommendations ─┬─ render: text,
                        └─ QUESTIONS ─> answers ──────────────────────────────────────────┘  Markdown, JSON

All formats say the same words in the same order.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from tokmill.errors import plural
from tokmill.recipe import TrainingPlan
from tokmill.reviews import composition, held_out, mixture, packing, separability, size, sources, surface
from tokmill.reviews.evidence import READ_ERRORS, Answering, Check, Evidence, Limits, told
from tokmill.reviews.finding import (
    SEVERITIES,
    Answer,
    Assumption,
    Finding,
    NotMeasured,
    Review,
    spelled,
)
from tokmill.reviews.subject import Subject, open_subject

# In the order in which they are told.
CHECKS: tuple[Check, ...] = (
    sources.unpinned_revision,
    sources.remote_code,
    sources.license_missing,
    sources.license_outside_policy,
    sources.head_sampling,
    sources.subsource_labels,
    held_out.exact_overlap,
    held_out.near_overlap,
    held_out.split_after_packing,
    held_out.held_out,
    separability.held_out_noise,
    surface.constant_prefix,
    surface.first_character,
    surface.hidden_characters,
    surface.dataset_artefacts,
    separability.surface_shortcut,
    mixture.domain_imbalance,
    mixture.built_mix,
    mixture.starved_build,
    sources.source_loss,
    sources.run_warnings,
    composition.language_mixture,
    mixture.source_repeats,
    mixture.budget_epochs,
    size.tokens_per_parameter,
    size.plan_epochs,
    composition.drift,
    composition.giant_document,
    packing.tail_drop,
    packing.padding,
    packing.truncation,
    packing.missing_eos,
    surface.control_tokens,
    held_out.giant_clusters,
    held_out.contamination,
    composition.counts_and_hashes,
)

# What a project of code, mathematics and prose asks before it trains.
QUESTIONS: tuple[tuple[str, Callable[[Evidence, Answering], None]], ...] = (
    ("Which sources, and what does each give?", sources.source_choice),
    ("Is it large enough?", size.size_target),
    ("Are the domains in balance, and what does that cost?", mixture.balance),
    ("Which programming languages is the code in?", surface.code_languages),
    ("Do two styles of mathematics mix?", surface.math_styles),
    ("What have the datasets left in their texts?", surface.leftovers),
    ("What is held out, is it clean, and is it enough to measure?", held_out.held_out_set),
    ("What does packing cost, and what does a row lack?", packing.packing),
    ("How well are domains told apart by surface tokens alone?", separability.separability),
    ("What would make an evaluation look better than it is?", held_out.evaluation_risks),
)


def review(
    target: str | Path,
    *,
    model_params: int | None = None,
    train_tokens: int | None = None,
    no_verify: bool = False,
    limits: Limits | None = None,
    checks: Sequence[Check] = CHECKS,
    on_check: Callable[[str], None] | None = None,
) -> Review:
    """Of a run, a build or a recipe. Reads only, with `no_verify` not every byte;
    `on_check(name)` is told what comes next.

    `model_params` and `train_tokens` come before what the recipe's `review` section says.
    """
    subject = open_subject(target)
    said = subject.training
    subject = replace(
        subject,
        training=TrainingPlan(
            model_params=model_params or said.model_params, train_tokens=train_tokens or said.train_tokens
        ),
    )
    evidence = Evidence(subject, limits or Limits(reads_every_byte=not no_verify))
    findings: list[Finding] = []
    assumptions: list[Assumption] = list(_of_subject(subject))
    made: list[str] = []
    not_made: list[str] = []
    for check in checks:
        if on_check is not None:
            on_check(check.name)
        try:
            for one in check.make(evidence):
                if isinstance(one, Finding):
                    findings.append(replace(one, check=check.name))
                else:
                    assumptions.append(Assumption(check.name, one))
            made.append(check.name)
        except (NotMeasured, *READ_ERRORS) as error:
            assumptions.append(Assumption(check.name, f"not measured: {told(error, subject.directory)}"))
            not_made.append(check.name)
    order = [check.name for check in checks]
    findings.sort(
        key=lambda one: (SEVERITIES.index(one.severity), order.index(one.check), one.about, one.says)
    )
    if on_check is not None:
        on_check("questions")
    answers = [Answering(evidence).answer(*asked) for asked in QUESTIONS]
    advice = {check.name: check.advice for check in checks}
    return Review(
        target=subject.name,
        kind=subject.kind,
        checks_made=tuple(made),
        checks_not_made=tuple(not_made),
        findings=tuple(findings),
        assumptions=tuple(dict.fromkeys(assumptions)),
        recommendations=tuple((name, advice[name]) for name in dict.fromkeys(one.check for one in findings)),
        questions=tuple(answers),
    )


def _of_subject(subject: Subject) -> Iterator[Assumption]:
    """What holds for the review as a whole."""
    if subject.kind == "recipe":
        says = "nothing was measured: this is what the recipe says, not what its documents are"
        yield Assumption("recipe", says)
    elif subject.found is None:
        says = "the build was reviewed by itself: the run that made it, and its texts, are not here"
        yield Assumption("build", says)
    else:
        for step in subject.found.missing:
            yield Assumption("run", f"{step} is not there: the run was cut short")
        for step, why in subject.found.set_aside.items():
            yield Assumption("run", f"{step} was not read: it {why}")
        if subject.kind == "build":
            says = f"files of build {subject.name} were proven, those of its run were not"
            yield Assumption("build", says)


Format = Literal["text", "markdown", "json"]
FORMATS: tuple[Format, ...] = ("text", "markdown", "json")

_WIDTH = 110
_SIGNS = {"more than": ">", "less than": "<", "outside": "outside", "other than": "≠"}


def render(review: Review, format: Format) -> str:
    """Ends in a newline."""
    if format == "json":
        return json.dumps(review.as_json(), ensure_ascii=False, indent=2) + "\n"
    lines = _text(review) if format == "text" else _markdown(review)
    return "\n".join(lines).rstrip("\n") + "\n"


def summary(review: Review) -> str:
    counts = [f"{review.count(severity)} {severity}" for severity in SEVERITIES if review.count(severity)]
    told = f"{plural(len(review.findings), 'finding')}: {', '.join(counts)}" if counts else "no findings"
    not_made = f", {len(review.checks_not_made)} could not be made" if review.checks_not_made else ""
    return f"{told}; {plural(len(review.checks_made), 'check')} made{not_made}"


# --- text ---


def _text(review: Review) -> Iterator[str]:
    yield f"Review of {review.kind} {review.target}"
    yield summary(review)
    yield from ("", "Findings", "")
    for finding in review.findings:
        yield from _wrapped(
            f"{finding.severity.upper():<8}{finding.about}: {finding.says}  [{finding.check}]", 8
        )
        place = ""
        for measure in finding.evidence:
            told = f"  [{measure.read_from}]" if measure.read_from != place else ""
            yield from _wrapped(f"        - {measure}{told}", 10)
            place = measure.read_from
        yield from _wrapped(f"        threshold: {_bound(finding)}", 10)
        yield ""
    if not review.findings:
        yield from ("  none", "")
    yield from ("Assumptions", "")
    for about, says in _grouped(review):
        yield from _wrapped(f"  - {', '.join(about)}: {says}", 4)
    if not review.assumptions:
        yield "  none"
    yield from ("", "Recommendations", "")
    for number, (check, says) in enumerate(review.recommendations, 1):
        yield from _wrapped(f"  {number}. {says} ({check})", 5)
    if not review.recommendations:
        yield "  none"
    yield from ("", "Questions", "")
    for number, answer in enumerate(review.questions, 1):
        yield f"  {number}. {answer.question}"
        for sentence in answer.says:
            yield from _wrapped(f"     {sentence}", 7)
        yield from _wrapped(f"     ({_footing(answer)})", 6)
        yield ""


def _wrapped(line: str, indent: int) -> list[str]:
    start = len(line) - len(line.lstrip(" "))
    return textwrap.wrap(
        line.lstrip(" "),
        _WIDTH,
        initial_indent=" " * start,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _grouped(review: Review) -> list[tuple[list[str], str]]:
    """What holds for several checks is said once."""
    groups: dict[str, list[str]] = {}
    for one in review.assumptions:
        groups.setdefault(one.says, []).append(one.about)
    return [(about, says) for says, about in groups.items()]


def _bound(finding: Finding) -> str:
    bound = finding.threshold
    note = f" ({bound.read_from})" if bound.read_from else ""
    unit = f" {bound.unit}" if bound.unit else ""
    return f"{bound.name} {_SIGNS[finding.relation]} {spelled(bound.value)}{unit}{note}"


def _footing(answer: Answer) -> str:
    based = f"from {', '.join(answer.based_on)}" if answer.based_on else "from nothing that is here"
    lacks = f"; not measured: {'; '.join(answer.not_measured)}" if answer.not_measured else ""
    return based + lacks


# --- markdown ---


def _markdown(review: Review) -> Iterator[str]:
    yield f"# Review of {review.kind} {_escaped(review.target)}"
    yield from ("", f"{summary(review).capitalize()}.", "", "## Findings", "")
    for finding in review.findings:
        yield f"### {finding.severity.capitalize()}: {_escaped(finding.about)}"
        yield from ("", f"{_escaped(finding.says)} (`{finding.check}`)", "")
        yield from ("| measured | value | read from |", "| --- | --- | --- |")
        for measure in finding.evidence:
            name, value = str(measure).rpartition(": ")[::2]
            yield f"| {_escaped(name)} | {_escaped(value)} | {_escaped(measure.read_from)} |"
        yield from ("", f"Threshold: {_escaped(_bound(finding))}.")
        yield ""
    if not review.findings:
        yield from ("None.", "")
    yield from ("## Assumptions", "")
    for about, says in _grouped(review):
        yield f"- {', '.join(f'`{name}`' for name in about)}: {_escaped(says)}"
    yield from ("" if review.assumptions else "None.", "## Recommendations", "")
    for number, (check, says) in enumerate(review.recommendations, 1):
        yield f"{number}. {says} (`{check}`)"
    yield from ("" if review.recommendations else "None.", "## Questions", "")
    for answer in review.questions:
        yield from (f"### {answer.question}", "")
        yield from (f"- {_escaped(sentence)}" for sentence in answer.says)
        yield from ("", f"*{_escaped(_footing(answer).capitalize())}.*", "")


_SPECIAL = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|#"})


def _escaped(text: str) -> str:
    """Words of documents and names are words here, not markup."""
    return text.translate(_SPECIAL)

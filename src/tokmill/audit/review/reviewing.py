"""Review: every check on whatever is there, and what could not be checked said beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tokmill.audit.review.evidence import READ_ERRORS, Evidence, Limits, told
from tokmill.audit.review.finding import SEVERITIES, Assumption, Finding, NotMeasured, Review
from tokmill.audit.review.questions import answer_questions
from tokmill.audit.review.registry import CHECKS, Check
from tokmill.audit.review.subject import Subject, open_subject
from tokmill.recipe import TrainingPlan


def review(
    target: str | Path,
    *,
    model_params: int | None = None,
    train_tokens: int | None = None,
    limits: Limits | None = None,
    checks: Sequence[Check] = CHECKS,
    on_check: Callable[[str], None] | None = None,
) -> Review:
    """Of a run, a build or a recipe. Reads only; `on_check(name)` is told what comes next.

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
    evidence = Evidence(subject, limits)
    findings: list[Finding] = []
    assumptions: list[Assumption] = list(_of_subject(subject))
    made: list[str] = []
    not_made: list[str] = []
    for check in checks:
        if on_check is not None:
            on_check(check.name)
        try:
            for one in check.make(evidence):
                findings.append(one) if isinstance(one, Finding) else assumptions.append(one)
            made.append(check.name)
        except NotMeasured as reason:
            assumptions.append(Assumption(check.name, f"not measured: {reason}"))
            not_made.append(check.name)
        except READ_ERRORS as error:
            says = f"not measured: {told(error, subject.directory)}"
            assumptions.append(Assumption(check.name, says))
            not_made.append(check.name)
    order = [check.name for check in checks]
    findings.sort(
        key=lambda one: (SEVERITIES.index(one.severity), order.index(one.check), one.about, one.says)
    )
    if on_check is not None:
        on_check("questions")
    answers = answer_questions(evidence)
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


def _of_subject(subject: Subject) -> list[Assumption]:
    """What holds for the review as a whole."""
    if subject.kind == "recipe":
        return [
            Assumption(
                "recipe", "nothing was measured: this is what the recipe says, not what its documents are"
            )
        ]
    if subject.found is None:
        return [
            Assumption(
                "build", "the build was reviewed by itself: the run that made it, and its texts, are not here"
            )
        ]
    said = [
        Assumption("run", f"{step} is not there: the run was cut short") for step in subject.found.missing
    ]
    said += [
        Assumption("run", f"{step} was not read: it {why}") for step, why in subject.found.set_aside.items()
    ]
    if subject.kind == "build":
        said.append(
            Assumption("build", f"files of build {subject.name} were proven, those of its run were not")
        )
    return said

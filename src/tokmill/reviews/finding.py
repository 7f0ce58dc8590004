"""What a review is made of.

    Measure ─┬─ Finding: evidence, and the threshold it is over ─┐
             │  Assumption: what was not measured, and why       ├─ Review
             └─ Answer: sentences, figures, what they rest on ───┘

A finding without a figure and a threshold cannot be made. A threshold lies beside its check, with the reason;
docs/review.md lists them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.manifest import Json

Severity = Literal["high", "medium", "low"]
SEVERITIES: tuple[Severity, ...] = ("high", "medium", "low")

Value = int | float | str
Relation = Literal["more than", "less than", "outside", "other than"]


@dataclass(frozen=True)
class Measure:
    """One figure: what, how much of which unit, and the file (or key of the recipe) it was read from."""

    name: str
    value: Value
    unit: str
    read_from: str

    def as_json(self) -> Json:
        value = round(self.value, 6) if isinstance(self.value, float) else self.value
        return {**asdict(self), "value": value}

    def __str__(self) -> str:
        return f"{self.name}: {spelled(self.value)}{' ' + self.unit if self.unit else ''}"


@dataclass(frozen=True)
class Finding:
    """`about` is the source, domain, split or build; `says` is one line with the figure that decided."""

    severity: Severity
    about: str
    says: str
    evidence: tuple[Measure, ...]
    threshold: Measure
    relation: Relation = "more than"  # the threshold is told for
    check: str = ""  # that made it: the review writes it in

    def __post_init__(self) -> None:
        assert self.evidence, f"{self.about}: a finding without evidence"

    def as_json(self) -> Json:
        return {
            "check": self.check,
            "severity": self.severity,
            "about": self.about,
            "says": self.says,
            "evidence": [measure.as_json() for measure in self.evidence],
            "threshold": {"relation": self.relation, **self.threshold.as_json()},
        }


@dataclass(frozen=True)
class Assumption:
    """What was taken for granted, or not measured, and why."""

    about: str  # the check, or what the answer is about
    says: str


class NotMeasured(Exception):
    """A figure that cannot be had from what is there; the message says why, and becomes an assumption."""


# What a check yields: findings, and in a sentence each what it took for granted.
Found = Iterator[Finding | str]


@dataclass(frozen=True)
class Answer:
    """To one of the questions of a project before it trains. `says` are sentences with figures."""

    question: str
    says: list[str]
    figures: Json
    based_on: list[str]
    not_measured: list[str]


@short_repr
@dataclass(frozen=True)
class Review:
    target: str
    kind: str  # run | build | recipe
    checks_made: tuple[str, ...]
    checks_not_made: tuple[str, ...]
    findings: tuple[Finding, ...]
    assumptions: tuple[Assumption, ...]
    recommendations: tuple[tuple[str, str], ...]  # check, what to do
    questions: tuple[Answer, ...]

    def count(self, severity: Severity) -> int:
        return sum(finding.severity == severity for finding in self.findings)

    def fails(self, at: Severity | None) -> bool:
        """Is there a finding of this severity, or of a worse one?"""
        if at is None:
            return False
        return any(SEVERITIES.index(finding.severity) <= SEVERITIES.index(at) for finding in self.findings)

    def as_json(self) -> Json:
        return {
            "review_version": 2,
            "target": self.target,
            "kind": self.kind,
            "counts": {severity: self.count(severity) for severity in SEVERITIES},
            "findings": [finding.as_json() for finding in self.findings],
            "assumptions": [asdict(assumption) for assumption in self.assumptions],
            "recommendations": [{"check": check, "says": says} for check, says in self.recommendations],
            "questions": [asdict(answer) for answer in self.questions],
            "checks": {"made": list(self.checks_made), "not_made": list(self.checks_not_made)},
        }


# --- figures as people read them ---


def percent(part: float, whole: float) -> float:
    return 100.0 * part / whole if whole else 0.0


def spelled(value: Any) -> str:
    """1,234,567 · 0.123 · 12.3: enough places to tell it from its bound, no more."""
    if isinstance(value, float):
        return f"{value:,.1f}".removesuffix(".0") if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def part(name: str, count: int, unit: str, of: str, whole: float, read_from: str) -> tuple[Measure, Measure]:
    """How many, and which share that is: what most findings rest on."""
    return Measure(name, count, unit, read_from), Measure(of, percent(count, whole), "%", read_from)


def share(part: float, whole: float) -> str:
    """ "12.3 %"."""
    return f"{spelled(percent(part, whole))} %"


def quoted(text: str) -> str:
    """A piece of a document, on one line, with nothing in it that a terminal would obey."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return f'"{shown}"'

"""What a review is made of. A finding without a number and a bound cannot be made.

Every bound that a check holds a figure against, in one place; docs/review.md lists them with their reasons.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

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
        return {"name": self.name, "value": value, "unit": self.unit, "read_from": self.read_from}

    def __str__(self) -> str:
        return f"{self.name}: {spelled(self.value)}{' ' + self.unit if self.unit else ''}"


@dataclass(frozen=True)
class Finding:
    """`about` is the source, domain, split or build; `says` is one line with the figure that decided."""

    check: str
    severity: Severity
    about: str
    says: str
    evidence: tuple[Measure, ...]
    threshold: Measure
    relation: Relation = "more than"  # the threshold is told for

    def __post_init__(self) -> None:
        assert self.evidence, f"{self.check}: a finding without evidence"

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

    def as_json(self) -> Json:
        return {"about": self.about, "says": self.says}


class NotMeasured(Exception):
    """A figure that cannot be had from what is there; the message says why, and becomes an assumption."""


Found = Iterator[Finding | Assumption]


@dataclass(frozen=True)
class Answer:
    """To one of the questions of a project before it trains. `says` are sentences with figures."""

    question: str
    says: tuple[str, ...]
    figures: Json
    based_on: tuple[str, ...]
    not_measured: tuple[str, ...] = ()

    def as_json(self) -> Json:
        return {
            "question": self.question,
            "says": list(self.says),
            "figures": self.figures,
            "based_on": list(self.based_on),
            "not_measured": list(self.not_measured),
        }


@dataclass(frozen=True)
class Review:
    target: str
    kind: str  # run | build | recipe
    checks_made: tuple[str, ...]
    checks_not_made: tuple[str, ...]
    findings: tuple[Finding, ...]
    assumptions: tuple[Assumption, ...]
    recommendations: tuple[tuple[str, str], ...]  # check, what to do
    questions: tuple[Answer, ...] = field(default=())

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
            "assumptions": [assumption.as_json() for assumption in self.assumptions],
            "recommendations": [{"check": check, "says": says} for check, says in self.recommendations],
            "questions": [answer.as_json() for answer in self.questions],
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


def share(part: float, whole: float) -> str:
    """ "12.3 %"."""
    return f"{spelled(percent(part, whole))} %"


def quoted(text: str) -> str:
    """A piece of a document, on one line, with nothing in it that a terminal would obey."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return f'"{shown}"'


def plural(count: int, thing: str) -> str:
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


# --- splits ---

MAX_NEAR_OVERLAP = 0.001  # of the held-out documents; an exact copy is one too many
MIN_HELD_OUT, MAX_HELD_OUT = 0.01, 0.20  # of the tokens, or of the documents where there are no tokens

MAX_NOISE = 0.05  # half of a 95 % interval, of a domain's held-out loss
SURFACE_LOW = 0.95  # of held-out rows that single tokens tell the domain of, each domain counted alike
SURFACE_DROP = (
    0.10  # of these, lost when twenty markers of each domain are masked: a template, not a language
)

# --- how documents begin ---

PREFIX_CHARS = (
    8,
    12,
    16,
    24,
    32,
)  # "Problem: " has nine characters; the longest that is over the bound is shown
PREFIX_HIGH, PREFIX_MEDIUM = 0.50, 0.20  # of the documents of a domain
MAX_FIRST_CHARACTER = 0.50
MAX_LEADING, MAX_SKEW = 0.01, 3.0  # of the documents of a domain; times those of another domain
MIN_SKEWED = 0.001  # three times nothing is nothing: below one in a thousand no skew is told
MIN_DOCUMENTS = 20  # of a domain: in fewer, one document is more than a twentieth

# --- what a dataset was made with ---

MAX_ARTEFACT = 0.01  # of the documents of a source
COMMON_SUFFIX = 0.50  # of the documents of a source end alike

# --- size ---

TOKENS_PER_PARAMETER = 20  # compute-optimal (Hoffmann et al. 2022)

# --- mixture ---

MAX_IMBALANCE = 1.5  # tokens of the largest domain, in those of the smallest
MAX_MIX_POINTS = 2.0  # percentage points between a share that was asked for and the built one
MIN_DOMINANT = 0.95  # of the tokens of a domain, in one language
EPOCHS_MEDIUM, EPOCHS_HIGH = 1.0, 4.0  # four repetitions are nearly as good as new text (docs/mixtures.md)
MAX_DRIFT = 0.03  # between the first and the last half of the build
SIGMAS = (
    3.0  # and more than chance gives documents of such lengths: 300 short ones differ by 3 % for no reason
)
MAX_DOCUMENT = 0.01  # of the tokens of a build

# --- rows ---

MAX_TAIL, MAX_PADDING = 0.005, 0.02  # of the tokens, of the columns
PADDING_MEDIUM = 0.20  # a fifth of the compute
TRUNCATION_HIGH = 0.01  # of the tokens; one truncated token is told

# --- copies ---

MAX_CLUSTER, MIN_CLUSTER = 0.01, 20  # of the documents that came to deduplication, and at least so many

# --- sources ---

LITTLE_SCANNED = 0.10  # of a source: what its head says of the rest is a guess
MAX_UNLABELLED = 0.01  # of the documents of a source

# --- how much is read ---

SCANNED_BYTES = 4 << 30  # of text: less than a minute of one core (89 MB/s measured)
EVAL_DOCUMENTS = 20_000  # held-out documents whose near duplicates are looked for: 25 MB of fingerprints
TRAIN_BYTES = 1 << 30  # of training text that they are compared with: thirteen seconds of one core
PROBE_TRAIN_TOKENS, PROBE_HELD_OUT_TOKENS = 64 << 20, 16 << 20  # of rows that are told apart: some seconds

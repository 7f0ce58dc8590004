"""Counts and hashes, as `tokmill verify` proves them."""

from __future__ import annotations

from tokmill.audit.review.evidence import Evidence
from tokmill.audit.review.finding import Assumption, Finding, Found, Measure, plural
from tokmill.audit.verify import Problem

# What a run that was cut short leaves, and files that people put beside it: no mismatch, but worth a word.
_UNFINISHED = ("the run is not finished", "left over from", "is not part of this run")
_EXTRA = "extra file"

_SHOWN = 5


def counts_and_hashes(evidence: Evidence) -> Found:
    proven = evidence.verification
    unfinished = [problem for problem in proven.problems if problem.what.startswith(_UNFINISHED)]
    extra = [problem for problem in proven.problems if problem.what.startswith(_EXTRA)]
    wrong = [problem for problem in proven.problems if problem not in unfinished and problem not in extra]
    if unfinished:
        yield Assumption("counts_and_hashes", f"the run is not finished: {_listed(unfinished)}")
    if extra:
        yield Assumption(
            "counts_and_hashes",
            f"{plural(len(extra), 'file')} that no manifest lists were not read: {_listed(extra)}",
        )
    if wrong:
        yield Finding(
            "counts_and_hashes",
            "high",
            wrong[0].where,
            f"{len(wrong):,} files or counts of {plural(proven.files, 'file')} do not match: {wrong[0].what}",
            (
                Measure("that do not match", len(wrong), "files or counts", "tokmill verify"),
                *(Measure(problem.where, problem.what, "", problem.where) for problem in wrong[:_SHOWN]),
            ),
            Measure("that do not match", 0, "files or counts", "every manifest"),
        )


def _listed(problems: list[Problem]) -> str:
    shown = ", ".join(problem.where for problem in problems[:_SHOWN])
    return shown + (f" and {len(problems) - _SHOWN:,} more" if len(problems) > _SHOWN else "")

"""Runs in miniature, each step by itself in this process: what it made, its CPU seconds, its bytes on disk.

Scores that learn do so once for all runs, from all documents that are read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.progress import Silence
from tokmill.artifacts.step import Step
from tokmill.engines.local import Resources
from tokmill.errors import InputError
from tokmill.pipeline.estimation.miniature import Miniature, learning_steps, without_score
from tokmill.pipeline.session import Session
from tokmill.recipe import Recipe


class Measured(NamedTuple):
    artifacts: dict[str, Artifact]
    cpu: dict[str, float]
    disk: dict[str, int]


def measure(steps: Sequence[Step], given: Mapping[str, Artifact], base: Path) -> Measured:
    """Each step by itself, in this process."""
    artifacts, cpu, disk = dict(given), {}, {}
    out = steps[0].directory.parents[len(Path(steps[0].name).parts) - 1]
    session = Session(base, out, Resources(1), 0, Silence())
    try:
        for step in steps:
            begun = time.process_time()
            made, _, _ = session.run_steps([step], artifacts)
            cpu[step.name] = time.process_time() - begun
            artifacts.update(made)
            disk[step.name] = sum(path.stat().st_size for path in step.directory.rglob("*") if path.is_file())
    finally:
        session.close()
    return Measured(artifacts, cpu, disk)


def measure_others(steps: Sequence[Step], given: Mapping[str, Artifact], base: Path) -> Measured:
    return measure([step for step in steps if step.name not in given], given, base)


# --- scores that learn ---


class _Learned(NamedTuple):
    """A step of a score that learns, done twice."""

    artifact: Artifact
    cold: float  # CPU seconds, with what is loaded once
    warm: float
    disk: int


class _Learning(NamedTuple):
    recipe: Recipe  # without scores that found no examples
    steps: dict[str, _Learned]
    notes: list[str]


def learn(recipe: Recipe, base: Path, out: Path, miniature: Miniature) -> _Learning:
    """Some of few labels may be none: then the estimate goes on without that score, and says so."""
    rest, learned, notes = recipe, dict[str, _Learned](), list[str]()
    artifacts: dict[str, Artifact] = {}
    for step in learning_steps(recipe, base, out / "learning", miniature):
        name = step.name.removeprefix("score/")
        try:
            cold = measure([step], artifacts, base)
        except InputError as error:
            # where all is read, the run would fail too
            if miniature.learned >= 1 or not error.where.startswith(f"scores.{name}.train"):
                raise
            rest, used = without_score(rest, name)
            learned = {own: one for own, one in learned.items() if not own.startswith(f"examples/{name}-")}
            notes.append(_left_out(name, used, miniature))
            continue
        artifacts |= cold.artifacts
        if step.kind != "ingest":
            warm = measure([replace(step, directory=out / "relearning" / step.name)], artifacts, base)
            made = artifacts[step.name]
            learned[step.name] = _Learned(
                made, cold.cpu[step.name], warm.cpu[step.name], cold.disk[step.name]
            )
        # without a rule that asks for it no figure hangs on the score
        if step.kind == "score" and miniature.learned < 1 and without_score(recipe, name)[1]:
            notes.append(_less_certain(name, artifacts[step.name], miniature))
    return _Learning(rest, learned, notes)


def _left_out(name: str, used: Sequence[str], miniature: Miniature) -> str:
    told = f", and without what asks for it: {', '.join(used)}" if used else ""
    return (
        f"score.{name}: {_read_share(miniature)} of the documents were read, with too few examples to learn "
        f"from; the estimate is without this score{told}"
    )


def _less_certain(name: str, artifact: Artifact, miniature: Miniature) -> str:
    examples = artifact.manifest.facts["examples"]
    told = " and ".join(f"{count:,} {label}" for label, count in examples.items())
    return (
        f"score.{name}: learned from {told} examples, among {_read_share(miniature)} of the documents; "
        "the run learns from all, and what it does by this score may be further off than ± says"
    )


def _read_share(miniature: Miniature) -> str:
    return f"{float(miniature.learned):.1%}"

"""A whole run over a corpus that every machine has: the corpus, the recipe, the run, its proof;
a report if asked for."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.progress import Progress, Silence
from tokmill.artifacts.side_files import DECISIONS
from tokmill.audit.decisions import write_decisions
from tokmill.audit.verification import Verification
from tokmill.audit.verify import verify
from tokmill.demos.corpus import write_corpus, write_recipe
from tokmill.pipeline.run import RunResult, run
from tokmill.reports.page import report as report_run


@short_repr
class Demo(NamedTuple):
    recipe: Path
    run: RunResult
    verified: Verification
    extra: dict[str, str]  # the paths of what was asked for besides

    def as_json(self) -> Json:
        return {**self.verified.as_json(), "run": self.run.as_json(), **self.extra}


def demo(
    out: str | Path = "demo",
    *,
    report: bool = False,
    decisions: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Demo:
    """Run a recipe over the Python standard library, its language reference and a small corpus of our own.

    A tokenizer is trained, so nothing is downloaded.
    `report` also writes report.html and report.json, `decisions` the verdict on every document.
    """
    directory = Path(out)
    recipe = directory / "recipe.yaml"
    if not recipe.exists():
        (progress or Silence()).say("writing the corpus …")
        write_corpus(directory / "corpus")
        write_recipe(directory)
    result = run(recipe, directory / "out", workers=workers, progress=progress)
    verified = verify(result.out)
    extra: dict[str, str] = {}
    if report:
        made = report_run(result.out, directory)
        extra |= {"report": str(made.page), "figures": str(made.figures)}
    if decisions:
        write_decisions(directory / DECISIONS, result.artifacts)
        extra["decisions"] = str(directory / DECISIONS)
    return Demo(recipe, result, verified, extra)

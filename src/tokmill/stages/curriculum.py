"""Curriculum: the builds of the stages of a mixture, in the order in which they are trained on.

    stage/main    stage/long    stage/anneal           which documents, in which order
        │             │             │
    build/rows-main   rows-long     rows-anneal        rows, each stage in its own length
        └─────────────┴─────────────┴─> curriculum/rows.json     what tokmill.loader.open_curriculum walks

    {"version": 1, "build": "rows", "split": "train", "batch_tokens": 65536, "tokens": …, "steps": …,
     "stages": [{"name": "main", "directory": "build/rows-main", "length": 2048, "rows": 320,
                 "tokens": 655360, "asked": 655360, "batch_rows": 32, "steps": 10, "last_rows": 32}, …]}

`asked` are the tokens that the recipe names; `last_rows` the rows of a stage's last step, which may be fewer
than `batch_rows`. Without `batch_tokens` a recipe leaves it to the trainer, and steps are not counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from tokmill.artifacts.directory import Artifact, open_artifact
from tokmill.artifacts.manifest import Json, file_entry, sum_counts
from tokmill.artifacts.step import Conduct, Made, Outcome, Stage, Step, Task, TaskFunction
from tokmill.errors import InputError
from tokmill.stages.warnings import tell
from tokmill.storage.disk import commit_bytes

_VERSION = 1


class PlannedStage(msgspec.Struct, frozen=True):
    name: str
    build: str  # the step
    length: int
    asked: int  # tokens


class CurriculumOptions(msgspec.Struct, frozen=True, kw_only=True):
    builds: dict[str, tuple[PlannedStage, ...]]  # by the name that the recipe has for it
    batch_tokens: int | None


class ScheduleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The file of one build."""

    schedule: Json


def conduct(step: Step[CurriculumOptions], upstream: Mapping[str, Artifact]) -> Conduct:
    options = step.options
    tasks = [
        Task(
            function="curriculum",
            key=name,
            options=ScheduleOptions(schedule=_schedule(name, stages, options.batch_tokens, upstream)),
            inputs=[],
            directory=str(step.directory),
        )
        for name, stages in options.builds.items()
    ]
    receipts = yield tasks
    # by themselves: a build may be called as anything is that a manifest says besides
    facts: Json = {"builds": {receipt.key: receipt.facts for receipt in receipts}}
    # the stages are those of every build
    warnings = list(_warnings(receipts[0].facts)) if receipts else []
    if warnings:
        facts["warnings"] = warnings
        tell(step.name, warnings)
    return Outcome(receipts, sum_counts(receipts), facts)


def _warnings(schedule: Json) -> Iterator[str]:
    """Of stages that their documents did not fill. One in tokens is rounded to whole rows."""
    for stage in schedule["stages"]:
        asked, length = stage["asked"], stage["length"]
        wanted = max((2 * asked + length) // (2 * length), 1)
        if stage["rows"] < wanted:
            steps = ""
            if "steps" in stage:
                steps = f", {stage['steps']:,} of {-(-wanted // stage['batch_rows']):,} steps"
            yield (
                f"the stage {stage['name']} has {stage['rows']:,} of {wanted:,} rows{steps}: its documents "
                "are used up; ask for less, or let them come again with `exhausted: repeat`"
            )


def _schedule(
    name: str, stages: tuple[PlannedStage, ...], batch_tokens: int | None, upstream: Mapping[str, Artifact]
) -> Json:
    split = upstream["tokens"].manifest.facts["splits"][0]
    told = [_stage(stage, batch_tokens, upstream[stage.build], split) for stage in stages]
    return {
        "version": _VERSION,
        "build": name,
        "split": split,
        "batch_tokens": batch_tokens,
        "tokens": sum(stage["tokens"] for stage in told),
        "steps": sum(stage["steps"] for stage in told) if batch_tokens is not None else None,
        "stages": told,
    }


def _stage(stage: PlannedStage, batch_tokens: int | None, build: Artifact, split: str) -> Json:
    rows = next(receipt.counts["rows"] for receipt in build.manifest.receipts() if receipt.key == split)
    if not rows:
        raise _no_row(stage, build, split)
    told: Json = {
        "name": stage.name,
        "directory": stage.build,
        "length": stage.length,
        "rows": rows,
        "tokens": rows * stage.length,
        "asked": stage.asked,
    }
    if batch_tokens is not None:
        batch_rows = batch_tokens // stage.length
        told |= {
            "batch_rows": batch_rows,
            "steps": -(-rows // batch_rows),
            "last_rows": (rows - 1) % batch_rows + 1,
        }
    return told


def _no_row(stage: PlannedStage, build: Artifact, split: str) -> InputError:
    counts = next(receipt.counts for receipt in build.manifest.receipts() if receipt.key == split)
    if counts["tokens"]["in"]:
        return InputError(
            f"the stage {stage.name} has no row",
            where=stage.build,
            next="give it more tokens, or shorter rows",
        )
    mixture = open_artifact(build.directory.parent.parent / "stage" / stage.name)
    dropped = mixture.manifest.counts["dropped"] if mixture is not None else {}
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(dropped.items()))
    return InputError(
        f"the stage {stage.name} has no row: no document is left for it ({reasons or 'there is none'})",
        where=stage.build,
        next="give the stages before it less, let documents come again with `exhausted: repeat`, or give it "
        "wider bounds",
    )


def perform_schedule(task: Task[ScheduleOptions]) -> Made:
    name = f"{task.key}.json"
    text = json.dumps(task.options.schedule, indent=1, ensure_ascii=False) + "\n"
    written = commit_bytes(Path(task.directory) / name, text.encode())
    stages = task.options.schedule["stages"]
    counts = {"stages": len(stages), "rows": sum(stage["rows"] for stage in stages)}
    return Made([file_entry(name, "schedule", written, rows=len(stages))], counts, task.options.schedule)


STAGE = Stage(
    "curriculum",
    CurriculumOptions,
    conduct,
    {"curriculum": TaskFunction(ScheduleOptions, perform_schedule)},
)

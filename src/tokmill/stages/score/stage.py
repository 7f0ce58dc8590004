"""Score: a classifier is trained from labelled documents, before anything is cleaned.

    shards ─ labelling.py ─ examples ─ draft ─ model.py ─> <name>.model, card.json

Documents are as they were ingested: of sources of the recipe, or of files that are no part of the corpus. The
draft is learned in an order that comes from label and id: shards, workers and engines leave no trace in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import Json, Receipt
from tokmill.artifacts.step import (
    Conduct,
    Input,
    Outcome,
    Stage,
    Step,
    Task,
    TaskFunction,
    TaskOptions,
    table_input,
    tables_of,
)
from tokmill.errors import InputError
from tokmill.scores.scoring import ScorePlan
from tokmill.stages.score.labelling import (
    LABELS_FILE,
    ExampleOptions,
    ScoreOptions,
    perform_examples,
    perform_unmet,
    spoken,
)
from tokmill.stages.score.model import (
    MODEL,
    CardOptions,
    DraftOptions,
    MeasureOptions,
    perform_draft,
    perform_measure,
    perform_score,
)
from tokmill.stages.warnings import tell


@dataclass(frozen=True)
class ScoreExtra:
    labels: tuple[Path, str] | None = None  # the file, and its sha256


class _Part(NamedTuple):
    number: int
    step: str
    documents: Input


def conduct(step: Step[ScoreOptions, ScoreExtra], upstream: Mapping[str, Artifact]) -> Conduct:
    asked, parts = step.options, list(_parts(upstream))
    given = step.extra.labels if step.extra is not None else None
    labels = [Input(LABELS_FILE, str(given[0]), given[1])] if given is not None else []
    sets = {name: tuple(one for one in asked.sets if one.step == name) for name in upstream}

    def task(function: str, key: str, options: Any, inputs: list[Input]) -> Task:
        return Task(function=function, key=key, options=options, inputs=inputs, directory=str(step.directory))

    def of_part(part: _Part) -> Json:
        return {
            "step": part.step,
            "labels": asked.labels,
            "training": asked.training,
            "held_out": asked.held_out,
            "sets": sets[part.step],
            "without_marks": part.step in (asked.chats or ()),
            "has_entries": bool(labels),
        }

    found = yield [
        task(
            "score.examples", f"examples-{p.number:05d}", ExampleOptions(**of_part(p)), [p.documents, *labels]
        )
        for p in parts
    ]
    _check_examples(step, parts, found)
    options = DraftOptions(labels=asked.labels, training=asked.training, max_docs=asked.max_docs)
    drafts = yield [task("score.draft", "draft", options, tables_of(step, found, "examples"))]
    draft = tables_of(step, drafts, "draft")
    measured = yield [
        task(
            "score.measure",
            f"measured-{part.number:05d}",
            MeasureOptions(**of_part(part), label=asked.label),
            [part.documents, *tables_of(step, [own], "labelled"), *draft],
        )
        for part, own in zip(parts, found, strict=True)
    ]
    data = {name: upstream[name].manifest.identity for name in sorted({part.step for part in parts})}
    data |= {LABELS_FILE: given[1]} if given is not None else {}
    inputs = [*draft, *tables_of(step, measured, "names"), *tables_of(step, measured, "scored")]
    unmet = 0
    if labels:
        (met,) = yield [
            task("score.unmet", "unmet", TaskOptions(), [*tables_of(step, found, "labelled"), *labels])
        ]
        unmet = met.facts["unmet"]
        if unmet:
            tell(step.name, [_unmet_labels(unmet, met.facts["entries"])])
    (made,) = yield [task("score", "model", CardOptions(asked=asked, data=data, unmet=unmet), inputs)]
    if made.facts["auc"] is None:
        tell(step.name, [f"too few examples are held out to measure it: {_counted(made.facts['held_out'])}"])
    return Outcome([made], {}, made.facts)


def _unmet_labels(unmet: int, entries: int) -> str:
    who = "is of a document that is" if unmet == 1 else "are of documents that are"
    return (
        f"{unmet:,} of {entries:,} labels {who} not there: look at their ids, and at what is read of a source"
    )


def _counted(documents: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {label}" for label, count in documents.items())


def _parts(upstream: Mapping[str, Artifact]) -> Iterator[_Part]:
    number = 0
    for name, artifact in upstream.items():
        for entry in artifact.manifest.entries("documents"):
            yield _Part(number, name, table_input("documents", artifact.directory, entry))
            number += 1


def _check_examples(
    step: Step[ScoreOptions, ScoreExtra], parts: Sequence[_Part], found: Sequence[Receipt]
) -> None:
    """What only the documents can tell: a field that none has, a label without a document."""
    asked, where = step.options, f"scores.{step.options.name}.train"
    for number, one in enumerate(asked.sets):
        own = [
            receipt.facts["sets"] for part, receipt in zip(parts, found, strict=True) if part.step == one.step
        ]
        place = [other for other in asked.sets if other.step == one.step].index(one)
        for rule_number, rule in enumerate(one.where):
            if rule.field is not None and not any(facts[place]["with_field"][rule_number] for facts in own):
                raise InputError(
                    f"no document of {spoken(one.step)} has `{rule.field}` in its `meta`",
                    where=where,
                    next=f"carry it along with `fields: {{meta: [{rule.field}]}}`, or correct its name",
                )
        if not any(facts[place]["documents"] for facts in own):
            side = asked.labels[one.label]
            raise InputError(
                f"no document of {spoken(one.step)} is an example of `{side}`",
                where=f"{where}.{side}[{sum(other.label == one.label for other in asked.sets[:number])}]",
                next="change its `where`, or leave it out",
            )
    for number, label in enumerate(asked.labels):
        learned = sum(receipt.facts["learned"][number] for receipt in found)
        if not learned:
            raise InputError(
                f"there is no example of `{label}` to learn from",
                where=where,
                next="label documents of the corpus by their ids, and hold out fewer of them",
            )


def with_models(
    plans: Sequence[ScorePlan], upstream: Mapping[str, Artifact]
) -> tuple[tuple[ScorePlan, ...], dict[str, tuple[Path, str]]]:
    """Plans that know the digests of the models that steps have trained; and where these models are."""
    files: dict[str, tuple[Path, str]] = {}
    known = []
    for plan in plans:
        if plan.step is not None:
            artifact = upstream[plan.step]
            (entry,) = artifact.manifest.entries(MODEL)
            files[plan.name] = (artifact.path(entry), entry.sha256)
            plan = msgspec.structs.replace(plan, files=(entry.sha256,), step=None)
        known.append(plan)
    return tuple(known), files


STAGE = Stage(
    "score",
    ScoreOptions,
    conduct,
    {
        "score.examples": TaskFunction(ExampleOptions, perform_examples),
        "score.draft": TaskFunction(DraftOptions, perform_draft),
        "score.unmet": TaskFunction(TaskOptions, perform_unmet),
        "score.measure": TaskFunction(MeasureOptions, perform_measure),
        "score": TaskFunction(CardOptions, perform_score),
    },
)

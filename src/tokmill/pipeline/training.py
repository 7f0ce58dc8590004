"""Steps of scores that learn: files of examples are ingested by themselves, a model is made of all examples.

ingest/<source> ──────────────┐
examples/<score>-<side>-<n> ──┴─ score/<score> ─ clean/<source> …
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import msgspec

from tokmill.artifacts.step import Step
from tokmill.clean.measures import MEASURES, unknown_measure
from tokmill.errors import InputError, RecipeError
from tokmill.pipeline.documents import ingest_files
from tokmill.recipe import ExampleSet, Recipe, Score, Source, Train
from tokmill.recipe.training import SIDES
from tokmill.scores.labels import POSITIVE, load_labels, wanted_label
from tokmill.scores.linear import Training
from tokmill.scores.training import LABELS, check_training
from tokmill.sources.readers import list_source, resolve_reading
from tokmill.stages.score.labelling import RuleOptions, ScoreOptions, SetOptions
from tokmill.stages.score.stage import ScoreExtra
from tokmill.storage.location import file_sha256


def training_steps(recipe: Recipe, score: Score, base: Path, out: Path) -> list[Step]:
    """Of a score with `train`: one for each of its `files`, and the one that makes the model."""
    train = _of(score)
    check_score_training(recipe, score, base)
    chosen = list(_chosen(score))
    ingests = [
        ingest_files(recipe, _as_source(one), base, out / one.step)
        for one in chosen
        if one.set.files is not None
    ]
    sets = tuple(
        SetOptions(
            step=one.step,
            label=LABELS.index(one.side),
            where=tuple(msgspec.convert(rule.model_dump(), RuleOptions) for rule in one.set.where),
        )
        for one in chosen
    )
    given = labels_file(train, base)
    labels: tuple[str, ...] = LABELS
    label = POSITIVE
    if given is not None:
        labels = load_labels(*given).names
        label = wanted_label(labels, train.label, f"scores.{score.name}.train.label")
        needs = [f"ingest/{source.name}" for source in recipe.sources]
    else:
        needs = list(dict.fromkeys(one.step for one in chosen))
    chats = tuple(f"ingest/{source.name}" for source in recipe.sources if source.chat is not None)
    beside = [("windows", score.windows is not None), ("output: margin", train.output == "margin")]
    options = ScoreOptions(
        name=score.name,
        labels=labels,
        label=label,
        training=_training(recipe, train),
        max_docs=train.max_docs,
        held_out=_held_out(recipe, train),
        sets=sets,
        chats=tuple(name for name in chats if name in needs) or msgspec.UNSET,
        beside=tuple(key for key, is_there in beside if is_there) or msgspec.UNSET,
    )
    files = {f"labels of {score.name}": given[1]} if given is not None else {}
    step = f"score/{score.name}"
    return [*ingests, Step(step, "score", out / step, options, tuple(needs), files, ScoreExtra(given))]


def training_names(score: Score) -> list[str]:
    """Of `training_steps`, without looking at a file."""
    return [*(one.step for one in _chosen(score) if one.set.files is not None), f"score/{score.name}"]


def check_score_training(recipe: Recipe, score: Score, base: Path) -> None:
    """What can be known before a document is read."""
    train, where = _of(score), f"scores.{score.name}.train"
    check_training(_training(recipe, train), where)
    for side in SIDES:
        for rule in (rule for one in getattr(train, side) for rule in one.where):
            if rule.measure is not None and rule.measure not in MEASURES:
                what, advice = unknown_measure(rule.measure)
                raise RecipeError(what, where=f"{where}.{side}", next=advice)
    for source in (_as_source(one) for one in _chosen(score) if one.set.files is not None):
        resolve_reading(source, list_source(source, base), base, ())
    given = labels_file(train, base)
    if given is not None:
        labels = load_labels(*given)
        wanted_label(labels.names, train.label, f"{where}.label")
        _refuse_strange_sources(labels.sources, [source.name for source in recipe.sources], given[0])


def _refuse_strange_sources(named: Collection[str], known: list[str], path: Path) -> None:
    for name in sorted(named):
        if name not in known:
            raise InputError(
                f"labels name the source {name}, and the recipe has none that is called so",
                where=str(path),
                next=f"correct `source`, or leave it out: {', '.join(known)}",
            )


class _Chosen(NamedTuple):
    step: str  # that ingests it
    side: str
    set: ExampleSet


def _chosen(score: Score) -> Iterator[_Chosen]:
    for side in SIDES:
        for number, one in enumerate(getattr(_of(score), side)):
            files = f"examples/{score.name}-{side}-{number}"
            yield _Chosen(files if one.files is not None else f"ingest/{one.source}", side, one)


def _as_source(one: _Chosen) -> Source:
    meta = sorted({rule.field for rule in one.set.where if rule.field is not None})
    fields = {"meta": meta} | ({"text": one.set.text} if one.set.text is not None else {})
    name = one.step.partition("/")[2]
    return Source.model_validate({"name": name, "files": one.set.files, "fields": fields})


def _of(score: Score) -> Train:
    assert score.train is not None, "asked of scores that learn"
    return score.train


def _training(recipe: Recipe, train: Train) -> Training:
    return Training(
        words=train.words,
        min_chars=train.min_chars,
        max_chars=train.max_chars,
        epochs=train.epochs,
        rate=float(train.rate),
        min_docs=train.min_docs,
        seed=recipe.seed if train.seed is None else train.seed,
    )


def _held_out(recipe: Recipe, train: Train) -> Decimal:
    """What a split by hash holds out is not learned from: it is the lower part of the same range."""
    split = recipe.split
    asked = Decimal(train.valid_fraction)
    return max(asked, split.valid_fraction + split.test_fraction) if split.method == "hash" else asked


def labels_file(train: Train, base: Path) -> tuple[Path, str] | None:
    """Where it is, and its sha256."""
    if train.labels is None:
        return None
    path = base / Path(train.labels).expanduser()
    if not path.is_file():
        raise InputError(
            "no such file of labels", where=str(path), next="`train.labels` names it, relative to the recipe"
        )
    return path, file_sha256(path)

"""How a classifier is trained and measured, whoever asks for it: `score train`, or a step of a recipe.

    documents, labels of a shard ─ make_lesson ─> Lesson ─ learn_from ─> Examples    of those not held out
    examples of all shards ─ train_draft ─> model ─┬─ name_strongest    n-grams, in the texts of a shard
                                                   └─ score_held_out    of a shard
    names, scores of all shards ─ finish_model ─> the model with its card

Held out is who would be by `split: {method: hash}`, by the hash of the id alone: what the corpus holds out by
that rule is not learned from, if the share is as large; a copy of it under another id may be. The order in
which documents are learned comes from seed, label and id. Neither knows of shards, files or names of sources,
so the model is one for all.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import RecipeError
from tokmill.kernels.linear import ONE
from tokmill.schema import StringColumn, string_column
from tokmill.scores.evaluation import area_under_curve, at_thresholds, calibration
from tokmill.scores.examples import Examples, identity_keys, join_examples, make_examples
from tokmill.scores.linear import (
    LinearModel,
    LinearOptions,
    LinearScorer,
    Training,
    strongest_buckets,
    train_linear,
    with_names,
)
from tokmill.scores.names import Names, join_names, name_buckets
from tokmill.storage.digests import id_hashes

LABELS = ("negative", "positive")
NO_LABEL = -1
THRESHOLDS = tuple(tenth / 10 for tenth in range(1, 10))
_STRONGEST = 20  # n-grams of either side that the model knows by name
_NAMED_BY = 20_000  # examples, about: 0.1 ms for each, and a strong n-gram is in many
_MAX_RATE = 16

Labels = NDArray[np.int32]
Metrics = dict[str, Any]


class Lesson(NamedTuple):
    """The labelled documents of a shard."""

    texts: StringColumn
    labels: Labels
    keys: NDArray[np.uint64]
    is_held_out: NDArray[np.bool_]


def held_out(doc_ids: Any, share: Decimal) -> NDArray[np.bool_]:
    """By the rule of `split: {method: hash}`."""
    if share >= 1:
        return np.ones(len(doc_ids), np.bool_)
    return np.asarray(id_hashes(doc_ids) < np.uint64(int(Fraction(share) * (1 << 64))), np.bool_)


def make_lesson(
    documents: Any, labels: Labels, names: Sequence[str], training: Training, share: Decimal
) -> Lesson:
    """Of the rows with a label. `documents` have `text` and `doc_id`; `share` is held out."""
    rows = np.flatnonzero(labels != NO_LABEL)
    labelled, own = documents.take(rows), labels[rows]
    doc_ids = string_column(labelled.column("doc_id"))
    keys = np.zeros((len(rows), 2), np.uint64)
    for number, name in enumerate(names):
        is_mine = own == number
        if is_mine.any():
            keys[is_mine] = identity_keys([doc_ids], training.seed, f"train {name}")[is_mine]
    return Lesson(
        string_column(labelled.column("text")), own, keys, held_out(labelled.column("doc_id"), share)
    )


def learn_from(lesson: Lesson, training: Training) -> Examples:
    labels = np.where(lesson.is_held_out, np.int32(NO_LABEL), lesson.labels)
    return make_examples(lesson.texts, labels, lesson.keys, training.shape)


def train_draft(
    parts: Iterable[Examples], labels: Sequence[str], training: Training, max_docs: int | None = None
) -> LinearModel:
    """Without names and card; of each label at most `max_docs`, and no more than these are in memory, with
    those of one shard."""
    if max_docs is not None:
        parts = [functools.reduce(lambda first, more: join_examples([first, more], max_docs), parts)]
    return train_linear(join_examples(parts, max_docs), labels, training)


def name_strongest(model: LinearModel, lesson: Lesson) -> Names:
    """What its strongest n-grams are called in these texts, of which the hash of their ids draws some."""
    share = Fraction(_NAMED_BY, max(sum(model.examples), _NAMED_BY))
    is_drawn = lesson.keys[:, 0] <= np.uint64(int(share * ((1 << 64) - 1)))
    return name_buckets(lesson.texts, model.shape, strongest_buckets(model, _STRONGEST), is_drawn)


def score_held_out(
    model: LinearModel, lesson: Lesson, label: str | None = None
) -> tuple[NDArray[np.float64], Labels]:
    """Scores and labels."""
    scores = LinearScorer(model, LinearOptions(label=label)).score(lesson.texts)
    return scores[lesson.is_held_out], lesson.labels[lesson.is_held_out]


def finish_model(
    model: LinearModel,
    names: Iterable[Names],
    scores: NDArray[np.float64],
    labels: Labels,
    label: str | None = None,
) -> LinearModel:
    """With the names of its strongest n-grams, and with what was measured on those held out."""
    numbers = np.bincount(labels, minlength=len(model.labels)).tolist()
    wanted = model.labels.index(model.labels[-1] if label is None else label)
    card = {
        "held_out": dict(zip(model.labels, numbers, strict=True)),
        "metrics": measure_scores(scores, labels == wanted),
    }
    return with_names(model, join_names(names), _STRONGEST)._replace(card=card)


def measure_scores(scores: NDArray[np.float64], is_positive: NDArray[np.bool_]) -> Metrics | None:
    """None: there are not both kinds."""
    if len(set(is_positive.tolist())) < 2:
        return None
    tenths, error = calibration(scores, is_positive)
    thresholds = at_thresholds(scores, is_positive, THRESHOLDS)
    return {
        "auc": area_under_curve(scores, is_positive),
        "thresholds": [one._asdict() for one in thresholds],
        "calibration": [one._asdict() for one in tenths],
        "calibration_error": error,
    }


def check_training(training: Training, where: str) -> None:
    """Before anything is read."""
    try:
        training.shape.checked()
    except ValueError as error:
        raise RecipeError(
            f"{error} (`words`, `min_chars`, `max_chars`)",
            where=where,
            next="up to 3 words, up to 6 characters",
        ) from None
    if training.rate > 0 and not round(training.rate * ONE):
        raise RecipeError(
            f"a `rate` of {training.rate:g} is 0 in the {ONE:,}ths that it is counted in",
            where=where,
            next="take a larger one: the default is 2",
        )
    if not (0 < training.rate <= _MAX_RATE and training.epochs >= 1 and training.min_docs >= 1):
        raise RecipeError(
            "cannot be learned with this `rate`, `epochs` or `min_docs`",
            where=where,
            next=f"a rate above 0, up to {_MAX_RATE}",
        )

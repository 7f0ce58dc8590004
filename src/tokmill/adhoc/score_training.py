"""`score train` and `score eval`: a linear classifier from labelled files, and how good one is on others.

positive files ─ ingest ─┐                   ┌─ 9 of 10 ─ examples of each shard ─ train ─ names ─┐
negative files ─ ingest ─┴─ by hash of id ─ ─┴─ 1 of 10, held out ─────────────────────── measured ┴─> model

The order in which documents are learned and who is held out come from source and id alone: the model file is
one, whatever the number of files and shards. What was measured on those held out is on the model's card.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.adhoc.reading import Files, files_source, one_source_recipe
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.step import open_artifact
from tokmill.errors import InputError, RecipeError
from tokmill.pipeline.run import run
from tokmill.schema import StringColumn, string_column
from tokmill.scores.evaluation import area_under_curve, at_thresholds, calibration
from tokmill.scores.examples import Examples, identity_keys, join_examples, make_examples
from tokmill.scores.linear import (
    LinearModel,
    LinearOptions,
    LinearScorer,
    Training,
    load_linear,
    strongest_buckets,
    train_linear,
    with_names,
    write_linear,
)
from tokmill.scores.names import join_names, name_buckets
from tokmill.storage.tables import load_table

LABELS = ("negative", "positive")
THRESHOLDS = tuple(tenth / 10 for tenth in range(1, 10))
_STRONGEST = 20  # n-grams of either side that the model knows by name


class Trained(NamedTuple):
    out: Path
    sha256: str
    examples: dict[str, int]  # by label
    held_out: dict[str, int]
    metrics: Json | None  # None: too few were held out to measure
    strongest: dict[str, list[tuple[str, float]]]

    def as_json(self) -> Json:
        return {**self._asdict(), "out": str(self.out)}


class Evaluated(NamedTuple):
    sha256: str  # of the model
    documents: dict[str, int]  # by label
    metrics: Json

    def as_json(self) -> Json:
        return self._asdict()


class _Shard(NamedTuple):
    texts: StringColumn
    keys: NDArray[np.uint64]
    label: int


def score_train(
    *,
    positive: Files,
    negative: Files,
    out: str | Path,
    text: str | None = None,
    words: int = 2,
    min_chars: int = 0,
    max_chars: int = 0,
    epochs: int = 5,
    rate: float = 2.0,
    min_docs: int = 2,
    max_docs: int | None = None,
    valid_fraction: float = 0.1,
    seed: int = 0,
    replace: bool = False,
) -> Trained:
    """A classifier of documents like those of `positive` against those like `negative`."""
    target = Path(out)
    if target.exists() and not replace:
        raise RecipeError("is there already", where=str(out), next="give another name, or `--replace`")
    training = Training(words, min_chars, max_chars, 20, epochs, rate, min_docs, seed)
    _check_training(training, valid_fraction)
    bound = np.uint64(min(int(valid_fraction * 2**64), 2**64 - 1))
    parts: list[Examples] = []
    with tempfile.TemporaryDirectory(prefix="tokmill-train-") as folder:
        shards = list(_shards([negative, positive], text, Path(folder), seed))
        for shard in shards:
            labels = np.full(len(shard.keys), shard.label, np.int32)
            labels[_is_held_out(shard, bound)] = -1
            parts.append(make_examples(shard.texts, labels, shard.keys, training.shape))
        examples = join_examples(parts, max_docs)
        model = train_linear(examples, LABELS, training)
        wanted = strongest_buckets(model, _STRONGEST)
        names = join_names(name_buckets(shard.texts, model.shape, wanted) for shard in shards)
        model = with_names(model, names, _STRONGEST)
        scores, is_positive = _scored(model, shards, bound)
    metrics = _metrics(scores, is_positive) if len(set(is_positive.tolist())) == 2 else None
    held_out = _by_label(is_positive)
    model = model._replace(card={"held_out": held_out, "metrics": metrics})
    written = write_linear(target, model)
    counts = dict(zip(LABELS, model.examples, strict=True))
    return Trained(target, written.sha256, counts, held_out, metrics, model.strongest)


def score_eval(
    model: str | Path, *, positive: Files, negative: Files, text: str | None = None, label: str | None = None
) -> Evaluated:
    """How well a classifier tells documents of `positive` from those of `negative`."""
    opened = load_linear(Path(model))
    opened.column(label)
    with tempfile.TemporaryDirectory(prefix="tokmill-eval-") as folder:
        shards = list(_shards([negative, positive], text, Path(folder), 0))
        scores, is_positive = _scored(opened, shards, None, label)
    return Evaluated(opened.sha256, _by_label(is_positive), _metrics(scores, is_positive))


def _check_training(training: Training, valid_fraction: float) -> None:
    try:
        training.shape.checked()
    except ValueError as error:
        raise RecipeError(
            str(error), where="--words, --min-chars, --max-chars", next="up to 3 words, up to 6 characters"
        ) from None
    if not (0 < training.rate <= 16 and training.epochs >= 1 and training.min_docs >= 1):
        raise RecipeError(
            "cannot be learned with", where="--rate, --epochs, --min-docs", next="a rate above 0, up to 16"
        )
    if not 0 <= valid_fraction < 1:
        raise RecipeError("is no share", where="--valid-fraction", next="from 0 to less than 1, such as 0.1")


def _shards(sides: Sequence[Files], text: str | None, folder: Path, seed: int) -> Iterator[_Shard]:
    for label, files in enumerate(sides):
        recipe = one_source_recipe(files_source(files, **({"text": text} if text else {})))
        made = run(recipe, folder / LABELS[label], until="ingest", workers=1).out
        artifact = open_artifact(made / "ingest" / recipe.sources[0].name)
        assert artifact is not None
        count = 0
        for entry in artifact.manifest.entries("documents"):
            table = load_table(artifact.path(entry), ["text", "source", "doc_id"])
            identity = [string_column(table.column(name)) for name in ("source", "doc_id")]
            keys = identity_keys(identity, seed, f"train {LABELS[label]}")
            count += len(keys)
            yield _Shard(string_column(table.column("text")), keys, label)
        if not count:
            raise InputError(
                f"no {LABELS[label]} document", where=str(files), next="give files with documents"
            )


def _is_held_out(shard: _Shard, bound: np.uint64) -> NDArray[np.bool_]:
    """By the half of the key that does not order the epochs alone."""
    return shard.keys[:, 1] < bound


def _scored(
    model: LinearModel, shards: Sequence[_Shard], bound: np.uint64 | None, label: str | None = None
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Of those held out below the bound; None: of all."""
    scorer = LinearScorer(model, LinearOptions(label=label))
    scores, labels = [np.empty(0)], [np.empty(0, np.bool_)]
    for shard in shards:
        rows = np.ones(len(shard.keys), np.bool_) if bound is None else _is_held_out(shard, bound)
        scores.append(scorer.score(shard.texts)[rows])
        labels.append(np.full(int(rows.sum()), shard.label == 1))
    return np.concatenate(scores), np.concatenate(labels)


def _metrics(scores: NDArray[np.float64], is_positive: NDArray[np.bool_]) -> Json:
    tenths, error = calibration(scores, is_positive)
    thresholds = at_thresholds(scores, is_positive, THRESHOLDS)
    return {
        "auc": area_under_curve(scores, is_positive),
        "thresholds": [one._asdict() for one in thresholds],
        "calibration": [one._asdict() for one in tenths],
        "calibration_error": error,
    }


def _by_label(is_positive: NDArray[Any]) -> dict[str, int]:
    positives = int(is_positive.sum())
    return dict(zip(LABELS, (len(is_positive) - positives, positives), strict=True))

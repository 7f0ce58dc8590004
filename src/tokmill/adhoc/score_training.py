"""`score train` and `score eval`: models of texts from files, and how good a classifier is on others.

positive files ─ ingest ─┐                   ┌─ 9 of 10 ─ examples of each shard ─ train ─ names ─┐
negative files ─ ingest ─┴─ by hash of id ─ ─┴─ 1 of 10, held out ─────────────────────── measured ┴─> model

The order in which documents are learned and who is held out come from label and id alone: the model file is
one, whatever the number of files and shards. What was measured on those held out is on the model's card. A
recipe trains by the same code, `tokmill.scores.training`. Two other kinds count texts and hold nobody out:

target, raw files ─ ingest ─ n-grams counted ─ log ratios ─> weights (importance)
files ─ ingest ─ words ─ n-grams counted ─ Kneser and Ney ─> model (perplexity)
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.adhoc.reading import Files, files_source, one_source_recipe, told_without_recipe
from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.directory import open_artifact
from tokmill.artifacts.manifest import Json
from tokmill.errors import InputError, RecipeError
from tokmill.pipeline.run import run
from tokmill.schema import string_column
from tokmill.scores.importance import count_texts, fit_importance, join_counts, write_importance
from tokmill.scores.kneserney import join_ngrams
from tokmill.scores.linear import LinearModel, Training, load_linear, write_linear
from tokmill.scores.perplexity import (
    count_text_ngrams,
    count_words,
    make_vocabulary,
    train_language_model,
    write_language_model,
)
from tokmill.scores.training import (
    LABELS,
    Labels,
    Lesson,
    check_training,
    finish_model,
    learn_from,
    make_lesson,
    measure_scores,
    name_strongest,
    score_held_out,
    train_draft,
)
from tokmill.storage.tables import load_table

_VALID_FRACTION = 0.1
_ORDER = 5

Kind = Literal["linear", "importance", "perplexity"]


@short_repr
class Trained(NamedTuple):
    out: Path
    sha256: str
    examples: dict[str, int]  # by label
    held_out: dict[str, int]
    metrics: Json | None  # None: too few were held out to measure, or it is no classifier
    strongest: dict[str, list[tuple[str, float]]]
    kind: Kind = "linear"

    def as_json(self) -> Json:
        return {**self._asdict(), "out": str(self.out)}


@short_repr
class Evaluated(NamedTuple):
    sha256: str  # of the model
    documents: dict[str, int]  # by label
    metrics: Json

    def as_json(self) -> Json:
        return self._asdict()


def score_train(
    *,
    positive: Files,
    negative: Files = (),
    out: str | Path,
    kind: Kind = "linear",
    text: str | None = None,
    order: int | None = None,
    words: int = 2,
    min_chars: int = 0,
    max_chars: int = 0,
    epochs: int = 5,
    rate: float = 2.0,
    min_docs: int = 2,
    max_docs: int | None = None,
    valid_fraction: float = _VALID_FRACTION,
    seed: int = 0,
    replace: bool = False,
) -> Trained:
    """A classifier of documents like those of `positive` against those like `negative`.

    Of other kinds: how much likelier a text is under `positive` than under `negative`; a language model of
    `positive` alone.
    """
    target = Path(out)
    if target.exists() and not replace:
        raise RecipeError("is there already", where=str(out), next="give another name, or `--replace`")
    training = Training(words, min_chars, max_chars, 20, epochs, rate, min_docs, seed)
    _check_kind(kind, negative, order, (training, max_docs, valid_fraction))
    if kind != "linear":
        with tempfile.TemporaryDirectory(prefix="tokmill-train-") as folder:
            if kind == "importance":
                return _train_importance(positive, negative, text, Path(folder), target)
            return _train_perplexity(positive, text, Path(folder), target, order or _ORDER)
    check_training(training, "the command line")
    if not 0 <= valid_fraction < 1:
        raise RecipeError("is no share", where="--valid-fraction", next="from 0 to less than 1, such as 0.1")
    share = Decimal(str(valid_fraction))
    with tempfile.TemporaryDirectory(prefix="tokmill-train-") as folder:
        lessons = list(_lessons([negative, positive], text, Path(folder), training, share))
        draft = train_draft((learn_from(lesson, training) for lesson in lessons), LABELS, training, max_docs)
        names = (name_strongest(draft, lesson) for lesson in lessons)
        model = finish_model(draft, names, *_scored(draft, lessons))
    written = write_linear(target, model)
    counts = dict(zip(LABELS, model.examples, strict=True))
    card = model.card
    return Trained(target, written.sha256, counts, card["held_out"], card["metrics"], model.strongest)


def score_eval(
    model: str | Path, *, positive: Files, negative: Files, text: str | None = None, label: str | None = None
) -> Evaluated:
    """How well a classifier tells documents of `positive` from those of `negative`."""
    opened = load_linear(Path(model))
    opened.column(label)
    with tempfile.TemporaryDirectory(prefix="tokmill-eval-") as folder:
        lessons = list(_lessons([negative, positive], text, Path(folder), Training(), Decimal(1)))
        scores, labels = _scored(opened, lessons, label)
    documents = np.bincount(labels, minlength=len(LABELS)).tolist()
    metrics = measure_scores(scores, labels == LABELS.index("positive"))
    assert metrics is not None, "both sides have documents"
    return Evaluated(opened.sha256, dict(zip(LABELS, documents, strict=True)), metrics)


def _check_kind(kind: Kind, negative: Files, order: int | None, of_linear: tuple[object, ...]) -> None:
    """Options that a kind does not have are no options of its."""
    if (kind == "perplexity") == bool(negative):
        raise RecipeError(
            f"{'is for other kinds' if negative else 'is missing'}: --kind {kind}",
            where="--negative",
            next="a language model has `--positive` alone; other kinds have both",
        )
    if order is not None and kind != "perplexity":
        raise RecipeError(f"is not for --kind {kind}", where="--order", next="leave it out")
    if kind != "linear" and of_linear != (Training(), None, _VALID_FRACTION):
        raise RecipeError(
            f"has options of a classifier: --kind {kind}",
            where="the command line",
            next="leave out `--words` and what else says how a classifier learns",
        )


def _train_importance(target: Files, raw: Files, text: str | None, folder: Path, out: Path) -> Trained:
    sides = [
        join_counts(
            count_texts(string_column(table.column("text"))) for table in _tables(files, label, text, folder)
        )
        for files, label in ((target, "positive"), (raw, "negative"))
    ]
    written = write_importance(out, fit_importance(*sides))
    counts = {"negative": sides[1].texts, "positive": sides[0].texts}
    return Trained(out, written.sha256, counts, {}, None, {}, "importance")


def _train_perplexity(files: Files, text: str | None, folder: Path, out: Path, order: int) -> Trained:
    texts = [string_column(table.column("text")) for table in _tables(files, "positive", text, folder)]
    words = make_vocabulary(count_words(one) for one in texts)
    counts = join_ngrams(count_text_ngrams(one, words, order) for one in texts)
    written = write_language_model(out, train_language_model(counts, words))
    documents = sum(len(one.offsets) - 1 for one in texts)
    return Trained(out, written.sha256, {"positive": documents}, {}, None, {}, "perplexity")


def _lessons(
    sides: Sequence[Files], text: str | None, folder: Path, training: Training, share: Decimal
) -> Iterator[Lesson]:
    for label, files in enumerate(sides):
        for table in _tables(files, LABELS[label], text, folder):
            yield make_lesson(table, np.full(table.num_rows, label, np.int32), LABELS, training, share)


def _tables(files: Files, label: str, text: str | None, folder: Path) -> Iterator[Any]:
    """Texts and ids, shard by shard."""
    recipe = one_source_recipe(files_source(files, **({"text": text} if text else {})))
    with told_without_recipe():
        made = run(recipe, folder / label, until="ingest", workers=1).out
    artifact = open_artifact(made / "ingest" / recipe.sources[0].name)
    assert artifact is not None
    count = 0
    for entry in artifact.manifest.entries("documents"):
        table = load_table(artifact.path(entry), ["text", "doc_id"])
        count += table.num_rows
        yield table
    if not count:
        raise InputError(f"no {label} document", where=str(files), next="give files with documents")


def _scored(
    model: LinearModel, lessons: Sequence[Lesson], label: str | None = None
) -> tuple[NDArray[np.float64], Labels]:
    found = [score_held_out(model, lesson, label) for lesson in lessons]
    return np.concatenate([scores for scores, _ in found]), np.concatenate([labels for _, labels in found])

"""A linear classifier over n-grams, trained here: one model file for any shards, workers and machine.

    file     kind "linear": labels, n-grams, options of training, names of the strongest, a card
    buckets  uint32[m]           those with a weight, ascending
    weights  int16[m, column]    times 2^scale / 2^20; one column for two labels, or one for each label
    bias     int64[column]       in 1/2^20

    margin   bias + (sum of the weights of all n n-grams) / sqrt(n)
    score    sigmoid(margin) of the label that is asked for, in 1/65,536

With two labels the one column speaks for the second. With more, each label stands against all others.

Training: `epochs` passes of gradient descent, each in an order of its own that comes from the keys of the
examples; the step of an n-gram is divided by the root of the number of examples that have it. N-grams of
fewer than `min_docs` examples are left out. What was tried: docs/decisions/0025.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.errors import CorruptFile, InputError, RecipeError
from tokmill.kernels.linear import MAX_RATE, ONE, UNIT, inverse_roots, margins, probabilities, train
from tokmill.kernels.ngrams import Shape, locate_ngrams
from tokmill.schema import StringColumn
from tokmill.scores import Piece, ScoreKind
from tokmill.scores.arrayfile import checked_arrays, load_arrays, write_arrays
from tokmill.scores.examples import Examples
from tokmill.scores.names import name_of
from tokmill.storage.disk import Written

KIND = "linear"
_ARRAYS = {"buckets": ("<u4", 1), "weights": ("<i2", 2), "bias": ("<i8", 1)}
_LARGEST = 32767
_U64 = np.uint64

Named = list[tuple[str, float]]  # n-grams and their weights


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By cross-validation on posts of StackExchange, and on five domains: half or twice of any of them moves
    the area under the curve by about 0.01."""

    words: int = 2
    min_chars: int = 0
    max_chars: int = 0
    bits: int = 20
    epochs: int = 5
    rate: float = 2.0
    min_docs: int = 2
    seed: int = 0

    @property
    def shape(self) -> Shape:
        return Shape(self.words, self.min_chars, self.max_chars, self.bits)


class LinearModel(NamedTuple):
    labels: list[str]
    shape: Shape
    buckets: NDArray[np.uint32]
    weights: NDArray[np.int16]
    scale: int
    bias: NDArray[np.int64]
    training: Training
    examples: list[int]  # of each label
    strongest: dict[str, Named]  # by label
    card: dict[str, Any]  # what its maker says of it: data, metrics
    sha256: str = ""  # of its file, once it has one

    def column(self, label: str | None = None) -> tuple[int, int]:
        """The column of a label, and the sign that it has for it. None: the last label."""
        label = self.labels[-1] if label is None else label
        if label not in self.labels:
            raise RecipeError(
                f"the model has no label {label!r}", where="scores", next=f"one of {', '.join(self.labels)}"
            )
        number = self.labels.index(label)
        if self.weights.shape[1] > 1:
            return number, 1
        return 0, 1 if number else -1


# --- training ---


def train_linear(examples: Examples, labels: Sequence[str], training: Training) -> LinearModel:
    """`examples` are joined: in the order that `join_examples` gives."""
    numbers = np.bincount(examples.labels, minlength=len(labels))
    if len(labels) < 2 or len(set(labels)) < len(labels) or len(numbers) > len(labels):
        raise ValueError(f"labels {list(labels)} of examples with {len(numbers)}")
    for label, number in zip(labels, numbers, strict=True):
        if not number:
            raise InputError(
                f"there is no example of {label!r}", where="scores", next="give documents for every label"
            )
    if training.epochs < 1 or not 0 < training.rate * ONE <= MAX_RATE or training.shape != examples.shape:
        raise ValueError(f"cannot train with {training}")
    frequencies = np.bincount(examples.buckets, minlength=1 << training.bits)
    known = np.flatnonzero(frequencies >= training.min_docs)
    if not len(known):
        raise InputError(
            f"no n-gram is in {training.min_docs} of {len(examples.labels):,} examples",
            where="scores",
            next="give more documents, or fewer `--min-docs`",
        )
    # ids in the order of frequency, so that weights which are often asked for lie together
    known = known[np.argsort(-frequencies[known], kind="stable")]
    ids = np.full(1 << training.bits, -1, np.int32)
    ids[known] = np.arange(len(known))
    of = ids[examples.buckets]
    is_known = of >= 0
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(is_known)])[examples.ends]
    columns = 1 if len(labels) == 2 else len(labels)
    weights, bias = np.zeros((len(known), columns), np.int32), np.zeros(columns, np.int64)
    train(
        of[is_known],
        examples.counts[is_known],
        ends,
        examples.totals,
        examples.labels,
        _orders(examples.keys, training),
        inverse_roots(frequencies[known]),
        weights,
        bias,
        rate=round(training.rate * ONE),
    )
    by_bucket = np.argsort(known, kind="stable")
    stored, scale = _rounded(weights[by_bucket])
    has_weight = stored.any(axis=1)
    return LinearModel(
        list(labels),
        examples.shape,
        known[by_bucket][has_weight].astype(np.uint32),
        stored[has_weight],
        scale,
        bias,
        training,
        [int(number) for number in numbers],
        {},
        {},
    )


def _orders(keys: NDArray[np.uint64], training: Training) -> NDArray[np.int64]:
    """Rows of every epoch, one epoch after the other."""
    orders = []
    for epoch in range(training.epochs):
        word = keys[:, 0] ^ (
            keys[:, 1] + _U64(((training.seed << 16) + epoch) * 0x9E3779B97F4A7C15 & ~(~0 << 64))
        )
        word = (word ^ (word >> _U64(33))) * _U64(0xFF51AFD7ED558CCD)
        word = (word ^ (word >> _U64(33))) * _U64(0xC4CEB9FE1A85EC53)
        orders.append(np.argsort(word, kind="stable"))
    return np.concatenate(orders)


def _rounded(weights: NDArray[np.int32]) -> tuple[NDArray[np.int16], int]:
    """In 16 bits, with the smallest scale that has room for the largest."""
    largest, scale = int(np.abs(weights).max(initial=0)), 0
    while (largest + (1 << scale >> 1)) >> scale > _LARGEST:
        scale += 1
    return ((weights.astype(np.int64) + (1 << scale >> 1)) >> scale).astype(np.int16), scale


# --- what it knows ---


def strongest_buckets(model: LinearModel, count: int) -> NDArray[np.uint32]:
    """Those with the largest weights for and against every label: what to find names for, ascending."""
    rows: set[int] = set()
    for column in model.weights.T.astype(np.int32):
        order = np.argsort(column, kind="stable")
        rows.update(order[:count].tolist(), order[-count:].tolist())
    return model.buckets[np.array(sorted(rows), np.int64)]


def with_names(model: LinearModel, names: dict[int, str], count: int) -> LinearModel:
    """Its strongest n-grams told by name: of each label `count` that speak for it, and `count` against it."""
    strongest: dict[str, Named] = {}
    for label in model.labels:
        column, sign = model.column(label)
        weights = sign * model.weights[:, column].astype(np.int64)
        known = [
            (int(weights[row]), names[bucket])
            for row, bucket in enumerate(model.buckets.tolist())
            if bucket in names
        ]
        known.sort(key=lambda pair: (-pair[0], pair[1]))
        one = (1 << model.scale) / UNIT
        speaking = [(name, weight * one) for weight, name in known if weight > 0][:count]
        against = [(name, weight * one) for weight, name in known if weight < 0][-count:]
        strongest[label] = [*speaking, *against]
    return model._replace(strongest=strongest)


# --- the file ---


class _Facts(msgspec.Struct, forbid_unknown_fields=True):
    labels: list[str]
    scale: int
    training: Training
    examples: list[int]
    strongest: dict[str, Named]
    card: dict[str, Any]


def write_linear(path: Path, model: LinearModel) -> Written:
    facts = _Facts(model.labels, model.scale, model.training, model.examples, model.strongest, model.card)
    return write_arrays(
        path, KIND, facts, {"buckets": model.buckets, "weights": model.weights, "bias": model.bias}
    )


def load_linear(path: Path) -> LinearModel:
    file = load_arrays(path, KIND)
    buckets, weights, bias = checked_arrays(file, path, _ARRAYS)
    try:
        facts = msgspec.json.decode(file.facts, type=_Facts)
        shape = facts.training.shape.checked()
        columns = 1 if len(facts.labels) == 2 else len(facts.labels)
        if len(set(facts.labels)) < max(len(facts.labels), 2) or len(facts.examples) != len(facts.labels):
            raise ValueError(f"its labels are {facts.labels}")
        if weights.shape != (len(buckets), columns) or bias.shape != (columns,):
            raise ValueError(f"{weights.shape} weights of {len(buckets)} buckets and {columns} columns")
        if not 0 <= facts.scale <= 16 or (np.abs(bias) > 1 << 40).any():
            raise ValueError(f"a scale of {facts.scale}, or a bias out of bounds")
        if buckets.size and (int(buckets[-1]) >> shape.bits or (buckets[1:] <= buckets[:-1]).any()):
            raise ValueError("its buckets are not in order")
    except (ValueError, msgspec.DecodeError) as error:
        raise CorruptFile(
            f"no model that can be used: {error}",
            where=str(path),
            next="copy the file again, or train it again",
        ) from None
    return LinearModel(
        facts.labels,
        shape,
        buckets,
        weights,
        facts.scale,
        bias,
        facts.training,
        facts.examples,
        facts.strongest,
        facts.card,
        file.sha256,
    )


# --- scoring ---


def label_margins(model: LinearModel, texts: StringColumn) -> NDArray[np.int64]:
    """[row, column], in 1/2^20: of every column of the model."""
    return margins(
        texts.data, texts.offsets, model.shape, _table(model, slice(None)), model.scale, model.bias
    )


def _table(model: LinearModel, columns: slice) -> NDArray[np.int16]:
    """A weight for every bucket there can be: two bytes and one look for an n-gram."""
    weights = model.weights[:, columns]
    table = np.zeros((1 << model.shape.bits, weights.shape[1]), np.int16)
    table[model.buckets] = weights
    return table


class LinearOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    label: str | None = None  # None: the last of the model
    output: Literal["probability", "margin"] = "probability"


class LinearScorer:
    def __init__(self, model: LinearModel, options: LinearOptions) -> None:
        self._model, self._options = model, options
        self._column, self._sign = model.column(options.label)
        self._table = _table(model, slice(self._column, self._column + 1))
        self._bias = model.bias[self._column : self._column + 1]

    def score(self, texts: StringColumn) -> NDArray[np.float64]:
        model = self._model
        found = margins(texts.data, texts.offsets, model.shape, self._table, model.scale, self._bias)[:, 0]
        found *= self._sign
        return probabilities(found) if self._options.output == "probability" else found / UNIT

    def explain(self, text: str) -> list[Piece]:
        """In margins, which add up to that of the text; the last of all is what every text begins with."""
        data = text.encode()
        located = locate_ngrams(data, self._model.shape)
        root = float(inverse_roots(np.array([len(located.buckets)]), UNIT)[0]) / UNIT
        unit = self._sign * (1 << self._model.scale) / UNIT * root
        adds: dict[str, float] = {}
        weights = self._table[located.buckets, 0]
        for place in np.flatnonzero(weights).tolist():
            name = name_of(data, located, place)
            adds[name] = adds.get(name, 0.0) + int(weights[place]) * unit
        adds[EVERY_TEXT] = self._sign * int(self._bias[0]) / UNIT
        return [Piece(*pair) for pair in sorted(adds.items(), key=lambda pair: (-abs(pair[1]), pair[0]))]


EVERY_TEXT = "(every text)"


def _open(options: LinearOptions, files: Sequence[Path]) -> LinearScorer:
    return LinearScorer(load_linear(files[0]), options)


LINEAR = ScoreKind(key="linear", options=LinearOptions, open=_open)

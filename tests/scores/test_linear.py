"""A classifier from examples to scores: one file for any shards, and an explanation that adds up."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.slow_ngrams import named_ngrams
from scores.reviews import column, documents, examples_of, texts_of
from tokmill.errors import CorruptFile, InputError, RecipeError
from tokmill.kernels.linear import UNIT
from tokmill.kernels.ngrams import Shape
from tokmill.scores.arrayfile import load_arrays, write_arrays
from tokmill.scores.examples import join_examples, load_examples, write_examples
from tokmill.scores.linear import (
    EVERY_TEXT,
    LINEAR,
    LinearModel,
    LinearOptions,
    LinearScorer,
    Training,
    label_margins,
    load_linear,
    strongest_buckets,
    train_linear,
    with_names,
    write_linear,
)
from tokmill.scores.names import join_names, name_buckets

LABELS = ["bad", "good"]
# Trained on x86-64; a machine that gives another one has broken the promise.
GOLDEN = "9f7c076cc879d9704f49aec8bbb191425a15c821f23268565579d4f6641960c1"


def trained(rows: list[dict[str, Any]], training: Training, cuts: tuple[int, ...] = ()) -> LinearModel:
    """From shards that are cut here, in any order."""
    bounds = [0, *sorted(cuts), len(rows)]
    shards = [examples_of(rows[low:high], training.shape) for low, high in itertools.pairwise(bounds)]
    labels = LABELS if max(row["label"] for row in rows) == 1 else ["bean", "spam", "number"]
    return train_linear(join_examples(shards[::-1]), labels, training)


def test_the_model_file_is_the_same_on_every_machine(tmp_path: Path) -> None:
    rows = documents(300)
    training = Training(min_chars=3, max_chars=4, seed=7)
    model = trained(rows, training)
    names = join_names([name_buckets(texts_of(rows), model.shape, strongest_buckets(model, 5))])
    assert write_linear(tmp_path / "m", with_names(model, names, 5)).sha256 == GOLDEN


@settings(deadline=None, max_examples=20)
@given(st.data())
def test_shards_and_their_order_do_not_change_the_model(data: st.DataObject) -> None:
    rows = documents(60, kinds=data.draw(st.integers(2, 3)))
    rows += rows[:10]  # ids need not be unique
    rows[0] = rows[0] | {"doc_id": "d1"}
    expected = trained(rows, Training(epochs=2))
    shuffled = data.draw(st.permutations(rows))
    cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=4))
    found = trained(shuffled, Training(epochs=2), tuple(cuts))
    assert found.buckets.tolist() == expected.buckets.tolist()
    assert found.weights.tolist() == expected.weights.tolist()
    assert (found.bias.tolist(), found.scale) == (expected.bias.tolist(), expected.scale)


def test_another_seed_is_another_order_and_so_another_model() -> None:
    rows = documents(60)
    one, two = (trained(rows, Training(seed=seed)) for seed in (0, 1))
    assert one.weights.tolist() != two.weights.tolist()


def test_it_tells_documents_apart_that_it_has_not_seen() -> None:
    for kinds in (2, 3):
        rows = documents(600, kinds)
        model = trained(rows[:400], Training())
        margins = label_margins(model, texts_of(rows[400:]))
        found = margins.argmax(1) if kinds > 2 else (margins[:, 0] > 0).astype(np.int64)
        assert (found == [row["label"] for row in rows[400:]]).mean() > 0.95


def test_what_was_written_is_read_and_scores_alike(tmp_path: Path) -> None:
    rows = documents(200, 3)
    model = trained(rows, Training())._replace(card={"data": "made"})
    written = write_linear(tmp_path / "m", model)
    again = load_linear(tmp_path / "m")
    assert again.sha256 == written.sha256
    assert (again.labels, again.card, again.training) == (model.labels, model.card, model.training)
    assert (label_margins(again, texts_of(rows)) == label_margins(model, texts_of(rows))).all()
    every = label_margins(model, texts_of(rows))
    for place, label in enumerate(model.labels):
        scorer = LINEAR.open(LinearOptions(label=label, output="margin"), [tmp_path / "m"])
        assert (scorer.score(texts_of(rows)) == every[:, place] / UNIT).all()


def test_the_two_labels_of_a_binary_model_are_each_others_mirror() -> None:
    rows = documents(100)
    model = trained(rows, Training())
    good, bad, last = (
        LinearScorer(model, LinearOptions(label=label)).score(texts_of(rows))
        for label in ("good", "bad", None)
    )
    assert (good == last).all()
    assert np.abs(good + bad - 1).max() <= 2 / 65_536
    assert ((good > 0.5) == [row["label"] == 1 for row in rows]).mean() > 0.95


@pytest.mark.parametrize("training", [Training(), Training(words=3, min_chars=2, max_chars=3)])
@pytest.mark.parametrize("label", LABELS)
def test_pieces_of_an_explanation_add_up_to_the_margin(training: Training, label: str) -> None:
    model = trained(documents(100), training)
    scorer = LinearScorer(model, LinearOptions(label=label, output="margin"))
    for text in ("The bean, the BEAN! click free", "", "東京 buy"):
        pieces = scorer.explain(text)
        assert sum(piece.contribution for piece in pieces) == pytest.approx(
            float(scorer.score(column([text]))[0]), abs=1e-5
        )
        names = [piece.piece for piece in pieces]
        assert len(set(names)) == len(names)
        assert set(names) - {EVERY_TEXT} <= {name for name, _ in named_ngrams(text, model.shape)}
        sizes = [abs(piece.contribution) for piece in pieces]
        assert sizes == sorted(sizes, reverse=True)


def test_the_strongest_ngrams_are_named_by_their_most_frequent_spelling() -> None:
    rows = documents(400)
    model = trained(rows, Training(bits=10))  # few buckets: many collide
    wanted = strongest_buckets(model, 5)
    halves = [name_buckets(texts_of(part), model.shape, wanted) for part in (rows[:150], rows[150:])]
    names = join_names(halves)
    counts: dict[int, dict[str, int]] = {}
    for row in rows:
        for name, bucket in named_ngrams(row["text"], model.shape):
            if bucket in set(wanted.tolist()):
                of = counts.setdefault(bucket, {})
                of[name] = of.get(name, 0) + 1
    assert names == {b: min(of, key=lambda n: (-of[n], n)) for b, of in sorted(counts.items())}
    strongest = with_names(model, names, 5).strongest
    weights = dict(zip(model.buckets.tolist(), model.weights[:, 0].tolist(), strict=True))
    top = max(weights, key=lambda bucket: weights[bucket])
    assert strongest["good"][0][0] == names[top]
    assert strongest["good"][0][1] == max(weights.values()) * (1 << model.scale) / UNIT
    assert [weight for _, weight in strongest["bad"]] == [-w for _, w in strongest["good"]][::-1]


# --- bad input ---


def test_a_label_without_an_example_and_one_that_the_model_has_not_are_told() -> None:
    rows = [row for row in documents(20) if row["label"] == 0]
    with pytest.raises(InputError, match="no example of 'good'"):
        train_linear(join_examples([examples_of(rows, Shape())]), LABELS, Training())
    model = trained(documents(20), Training())
    with pytest.raises(RecipeError, match="no label 'best'"):
        LinearScorer(model, LinearOptions(label="best"))


def test_examples_that_share_nothing_are_told() -> None:
    rows = [
        {"doc_id": "a", "source": "s", "text": "one", "label": 0},
        {"doc_id": "b", "source": "s", "text": "two", "label": 1},
    ]
    with pytest.raises(InputError, match="no n-gram is in 2 of 2 examples"):
        trained(rows, Training())


def test_of_each_label_the_first_by_key_are_taken_whatever_the_shards() -> None:
    rows = documents(40)
    one = join_examples([examples_of(rows, Shape())], max_rows=5)
    two = join_examples([examples_of(rows[k::3], Shape()) for k in range(3)], max_rows=5)
    assert np.bincount(one.labels).tolist() == [5, 5]
    for first, second in zip(one, two, strict=True):
        assert np.array_equal(first, second)


def test_a_file_of_examples_is_read_back_and_rows_without_a_label_are_not_in_it(tmp_path: Path) -> None:
    rows = documents(10)
    rows[3] = rows[3] | {"label": -1}
    examples = examples_of(rows, Shape(3, 2, 2, 12))
    assert len(examples.labels) == 9
    write_examples(tmp_path / "e", examples)
    for first, second in zip(load_examples(tmp_path / "e"), examples, strict=True):
        assert np.array_equal(first, second)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"buckets": np.array([5, 4], np.uint32)}, "not in order"),
        ({"buckets": np.array([1, 1 << 21], np.uint32)}, "not in order"),
        ({"weights": np.zeros((3, 1), np.int16)}, "weights of"),
        ({"weights": np.zeros((2, 2), np.int16)}, "weights of"),
        ({"weights": np.full((2, 1), np.nan)}, "has arrays"),
        ({"bias": np.array([1 << 50])}, "bias"),
        ({"labels": ["one"]}, "labels"),
        ({"labels": ["one", "one"]}, "labels"),
        ({"scale": 40}, "scale"),
        ({"scale": "x"}, "scale"),
        ({"training": {"bits": 60}}, "no n-grams"),
        ({"card": None}, "card"),
    ],
)
def test_a_model_that_does_not_hold_together_is_told_before_it_scores(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    facts: dict[str, Any] = {
        "labels": LABELS, "scale": 0, "training": {}, "examples": [1, 1], "strongest": {}, "card": {},
    }  # fmt: skip
    arrays: dict[str, Any] = {
        "buckets": np.array([4, 5], np.uint32),
        "weights": np.zeros((2, 1), np.int16),
        "bias": np.zeros(1, np.int64),
    }
    write_arrays(tmp_path / "whole", "linear", facts, arrays)
    assert load_linear(tmp_path / "whole").labels == LABELS
    for key, value in change.items():
        (arrays if key in arrays else facts)[key] = value
    write_arrays(tmp_path / "m", "linear", facts, arrays)
    with pytest.raises(CorruptFile, match=why):
        load_linear(tmp_path / "m")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ends", np.array([0, 3, 2])),
        ("ends", np.array([0, 1, 9])),
        ("keys", np.zeros((2, 1), np.uint64)),
        ("totals", np.array([0, 0])),
        ("labels", np.array([-1, 0], np.int32)),
        ("labels", np.array([0, 0, 0], np.int32)),
        ("buckets", np.array([1, 1 << 30, 2], np.uint32)),
        ("counts", np.array([1, 0, 1], np.uint16)),
    ],
)
def test_examples_that_do_not_hold_together_are_told(tmp_path: Path, name: str, value: Any) -> None:
    rows = [
        {"doc_id": "a", "source": "s", "text": "one two", "label": 0},
        {"doc_id": "b", "source": "s", "text": "", "label": 1},
    ]
    write_examples(tmp_path / "e", examples_of(rows, Shape()))
    file = load_arrays(tmp_path / "e", "examples")
    write_arrays(tmp_path / "f", "examples", msgspec.Raw(file.facts), file.arrays | {name: value})
    with pytest.raises(CorruptFile, match="not examples"):
        load_examples(tmp_path / "f")

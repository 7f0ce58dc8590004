"""The reader and the kernel beside the fastText library, on models that it trains here."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scores.trained_fasttext import (
    DOMAINS,
    ask_library,
    column,
    domain_texts,
    needs_library,
    write_training,
)
from tokmill.errors import CorruptFile, RecipeError
from tokmill.schema import string_column
from tokmill.scores import find_kind
from tokmill.scores.fasttext import FastTextOptions, open_fasttext
from tokmill.scores.fasttextfile import load_fasttext

pytestmark = needs_library

# long enough that labels are told apart: of one that has learned nothing, rounding chooses the likeliest
SMALL: dict[str, Any] = {"dim": 20, "epoch": 9, "lr": 0.8, "bucket": 20_000, "minCount": 2}
NGRAMS = {"wordNgrams": 3}
SUBWORDS = {"minn": 2, "maxn": 5}
# The library looks for 256 centres among all vectors of a part: of 20,000 buckets in 25 seconds, which are
# numbers like those of 1,000.
QUANTIZED = SMALL | {"bucket": 1000, "minCount": 5}
# every loss, each with word n-grams or subwords, and every way to quantize
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "softmax": (SMALL, None),
    "softmax-ngrams": (SMALL | NGRAMS, None),
    "softmax-subwords": (SMALL | SUBWORDS, None),
    "softmax-narrow": (SMALL | {"dim": 3} | NGRAMS | SUBWORDS, None),  # fewer dimensions than labels
    "hs": (SMALL | NGRAMS | {"loss": "hs"}, None),
    "hs-subwords": (SMALL | SUBWORDS | {"loss": "hs"}, None),
    "ns": (SMALL | NGRAMS | {"loss": "ns"}, None),
    "ova": (SMALL | SUBWORDS | {"loss": "ova"}, None),
    "quantized": (QUANTIZED | NGRAMS, {}),
    "quantized-norms": (QUANTIZED | SUBWORDS, {"qnorm": True}),
    "quantized-odd": (QUANTIZED | {"dim": 21}, {"qnorm": True, "dsub": 4}),  # the last part is narrower
    "pruned": (SMALL | NGRAMS | SUBWORDS, {"cutoff": 3000, "qnorm": True, "retrain": True}),
    "pruned-words": (SMALL, {"cutoff": 300}),
    "many-labels": (SMALL, None),
    "quantized-outputs": (QUANTIZED | NGRAMS | {"loss": "hs", "dim": 32}, {"qout": True, "qnorm": True}),
}
# fastText quantizes no fewer than 256 outputs
MANY_LABELS = ("many-labels", "quantized-outputs")
# what they have is in others too, one by one: trained by `make recipes` alone
LATER = ("hs-subwords", "quantized-odd", "pruned-words", "many-labels")


@pytest.fixture(scope="session")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training(tmp_path_factory.mktemp("fasttext") / "train.txt")


def held_out(count: int) -> list[str]:
    texts = [text for domain in DOMAINS for text in domain_texts(domain)[300 : 300 + count // len(DOMAINS)]]
    return [text[:3000] for text in texts]


def scored(model: Path, labels: list[str], texts: list[str], **more: Any) -> np.ndarray:
    found = [
        open_fasttext(FastTextOptions(label=label, **more), [model]).score(string_column(column(texts)))
        for label in labels
    ]
    return np.column_stack(found)


def trained(name: str, training: Path, texts: list[str]) -> tuple[Path, Any]:
    options, quantize = MODELS[name]
    model = training.parent / f"{name}{'.bin' if quantize is None else '.ftz'}"
    train = None if model.exists() else training
    if train and name in MANY_LABELS:
        train = write_training(training.parent / "many.txt", parts=60)
    return model, ask_library(training.parent, model, texts, train, options, quantize)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow_recipes] * (name in LATER)) for name in MODELS]
)
def test_scores_are_those_of_the_library(name: str, training: Path) -> None:
    texts = [*held_out(1500), "", " ", "\t", "naïve café", "日本語 の 文章", "x" * 5000, "__label__web a b",
             "one </s> two three", "a\0b \v c", "word"]  # fmt: skip
    check_against_the_library(name, training, texts)


@pytest.mark.slow_recipes
@pytest.mark.parametrize("name", MODELS)
def test_scores_of_twenty_thousand_whole_texts_are_those_of_the_library(name: str, training: Path) -> None:
    others = [text for domain in DOMAINS for text in domain_texts(domain)[300:]]
    texts = [others[place * len(others) // 20_000] for place in range(20_000)]
    check_against_the_library(name, training, texts)


def check_against_the_library(name: str, training: Path, texts: list[str]) -> None:
    model, answers = trained(name, training, texts)
    some = answers.labels[:: 1 if name not in MANY_LABELS else 60]
    expected = np.array(answers.scores)[:, [answers.labels.index(label) for label in some]]
    found = scored(model, some, texts)
    difference = np.abs(np.clip(expected, 0, 1) - found)
    agree = expected.argmax(axis=1) == found.argmax(axis=1)
    assert difference.max() <= 1e-4
    assert agree.mean() >= 0.9999
    assert name in MANY_LABELS or expected.argmax(axis=1).std() > 0.5
    assert len(np.unique(found[:, 0])) > 20  # it does tell texts apart


@pytest.mark.parametrize("name", ["softmax-ngrams", "quantized-norms", "hs", "softmax-narrow"])
def test_the_cut_into_batches_and_what_came_before_change_no_bit(name: str, training: Path) -> None:
    texts = held_out(200)
    model, answers = trained(name, training, texts[:1])
    scorer = open_fasttext(FastTextOptions(label=answers.labels[0]), [model])
    whole = scorer.score(string_column(column(texts)))
    again = scorer.score(string_column(column(texts[::-1])))[::-1]
    alone = [scorer.score(string_column(column([text])))[0] for text in texts]
    sliced = scorer.score(string_column(column(["before", *texts])[1:]))
    assert whole.tolist() == again.tolist() == alone == sliced.tolist()


def test_pieces_of_an_explanation_add_up_to_the_log_odds(training: Path) -> None:
    """Of two labels: what pieces add is what the chance is made of."""
    two = write_training(training.parent / "two.txt", domains=("math", "prose"))
    model = training.parent / "two.bin"
    ask_library(training.parent, model, ["a"], two, SMALL | NGRAMS | SUBWORDS)
    scorer = open_fasttext(FastTextOptions(label="math"), [model])
    for text in held_out(50):
        pieces = scorer.explain(text)
        total = sum(piece.contribution for piece in pieces)
        (chance,) = scorer.score(string_column(column([text])))
        assert 1 / (1 + np.exp(-total)) == pytest.approx(chance, abs=2e-5)
        assert len({piece.piece for piece in pieces}) == len(pieces)
        sizes = [abs(piece.contribution) for piece in pieces]
        assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("name", ["softmax-subwords", "hs", "ova", "pruned", "softmax-narrow"])
def test_the_strongest_piece_taken_out_moves_the_score_against_it(name: str, training: Path) -> None:
    text = "We prove the theorem by induction and the integral equals zero for every function"
    model, answers = trained(name, training, [text])
    scorer = open_fasttext(FastTextOptions(label="math"), [model])
    words = [
        piece for piece in scorer.explain(text) if " " not in piece.piece and piece.piece in text.split()
    ]
    up = next(piece for piece in words if piece.contribution > 0)
    before, after = scorer.score(
        string_column(column([text, " ".join(word for word in text.split() if word != up.piece)]))
    )
    assert after < before
    assert answers.labels.index("__label__math") >= 0


@pytest.mark.parametrize(
    ("chars", "columns"),
    [(SUBWORDS, 1), (SUBWORDS, 8), ({"minn": 3, "maxn": 6}, 16), ({"minn": 1, "maxn": 3}, 8)],
)
@settings(max_examples=40, deadline=None)
@given(
    lines=st.lists(
        st.lists(
            st.one_of(
                st.text(max_size=12),
                st.text("abcde", min_size=1, max_size=70),
                st.sampled_from(
                    ["the", "theorem", "</s>", "__label__web", "__label__x", "e" * 900, "\u2028"]
                ),
            ),
            max_size=15,
        ).map(" ".join),
        min_size=1,
        max_size=4,
    )
)
def test_the_slow_twin_counts_the_features_that_the_kernel_counts(
    lines: list[str], training: Path, chars: dict[str, int], columns: int
) -> None:
    from tokmill.kernels.fasttext import sum_features
    from tokmill.scores.fasttext import _features

    path = training.parent / f"twin-{chars['minn']}.bin"
    if not path.exists():
        ask_library(training.parent, path, ["a"], training, SMALL | NGRAMS | chars)
    model = load_fasttext(path)
    factors = np.arange(1, columns + 1)
    table = ((np.arange(model.inputs.rows)[:, None] + 1) * factors).astype(np.int32)
    texts = string_column(column([*lines, *lines, "x" * 40]))
    sums, counts = sum_features(texts.data, texts.offsets, model.vocabulary, table)
    for row, line in enumerate([*lines, *lines]):
        rows = [one for _, found in _features(line.encode(), model.vocabulary) for one in found]
        assert counts[row] == len(rows)
        assert sums[row].tolist() == ((sum(rows) + len(rows)) * factors).tolist()


@pytest.mark.parametrize(
    ("given_text", "prepared", "options"),
    [
        ("A Line\nof TEXT", "a line of text", {"lower": True}),
        ("one two three four five", "one two three", {"first_words": 3}),
        ("one\u2028two\x85three\x1cfour", "one two three four", {"prepare": "dclm"}),
        ("  one\n\ntwo \r\n three ", "one two three", {"prepare": "fineweb"}),
        ("ÉTÉ " * 9 + "end", "été été", {"lower": True, "first_words": 2, "prepare": "dclm"}),
    ],
)
def test_texts_are_prepared_as_asked(
    given_text: str, prepared: str, options: dict[str, Any], training: Path
) -> None:
    model, _ = trained("softmax-ngrams", training, ["a"])
    plain = scored(model, ["math", "web"], [prepared])
    assert scored(model, ["math", "web"], [given_text], **options).tolist() == plain.tolist()


def test_a_label_that_is_not_there_is_named_with_those_that_are(training: Path) -> None:
    model, _ = trained("softmax", training, ["a"])
    with pytest.raises(RecipeError, match=r"no label `mathh`\n.*did you mean `__label__math`"):
        open_fasttext(FastTextOptions(label="mathh"), [model])
    with pytest.raises(RecipeError, match=r"its labels are .*__label__code"):
        open_fasttext(FastTextOptions(label="zzz"), [model])


@pytest.mark.parametrize("name", ["softmax-ngrams", "pruned"])
def test_a_model_that_is_cut_anywhere_is_an_error_that_names_it(name: str, training: Path) -> None:
    model, _ = trained(name, training, ["a"])
    data, cut = model.read_bytes(), training.parent / "cut.bin"
    for size in [0, 1, 7, 8, 30, 63, 100, len(data) // 3, len(data) // 2, len(data) - 5000, len(data) - 1]:
        cut.write_bytes(data[:size])
        with pytest.raises(CorruptFile, match=r"cut\.bin"):
            load_fasttext(cut)
    cut.write_bytes(data + b"\0")
    with pytest.raises(CorruptFile, match="goes on after its end"):
        load_fasttext(cut)


HEADER = {"magic": 0, "version": 4, "dimension": 8, "ngrams": 28, "loss": 32, "model": 36, "buckets": 40}


@pytest.mark.parametrize(
    ("at", "value", "told"),
    [
        ("magic", 1, "no fastText model"),
        ("version", 13, "no fastText model"),
        ("dimension", 21, "columns"),
        ("dimension", -1, "cannot be"),
        ("dimension", 0, "cannot be"),
        ("loss", 9, "no classifier"),
        ("model", 2, "word vectors have no labels"),
        ("buckets", 2_000_000_000, "has no vector"),
        ("buckets", -5, "cannot be"),
        ("ngrams", 0, "cannot be"),
        (64, 2_000_000_000, "are not its entries"),  # words and labels
        (68, 2_000_000_000, "are not its entries"),
        (72, 0, "no labels"),
    ],
)
def test_a_model_that_lies_is_an_error(at: Any, value: int, told: str, training: Path) -> None:
    model, _ = trained("softmax-ngrams", training, ["a"])
    data = bytearray(model.read_bytes())
    struct.pack_into("<i", data, HEADER.get(at, at), value)
    lying = training.parent / "lying.bin"
    lying.write_bytes(data)
    with pytest.raises(CorruptFile, match=told):
        load_fasttext(lying)


def test_more_entries_than_the_file_can_hold_take_no_memory(training: Path) -> None:
    model, _ = trained("softmax-ngrams", training, ["a"])
    data = bytearray(model.read_bytes())
    struct.pack_into("<3i", data, 64, 2_000_000_005, 2_000_000_000, 5)
    (training.parent / "huge.bin").write_bytes(data)
    with pytest.raises(CorruptFile, match="ends too soon"):
        load_fasttext(training.parent / "huge.bin")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [-4, -4 * 20 * 5 - 17 - 4 * 1000])
def test_a_weight_that_is_no_number_is_an_error_before_anything_is_scored(
    value: float, place: int, training: Path
) -> None:
    model, _ = trained("softmax-ngrams", training, ["a"])
    data = bytearray(model.read_bytes())
    struct.pack_into("<f", data, len(data) + place, value)
    (training.parent / "nan.bin").write_bytes(data)
    with pytest.raises(CorruptFile, match="not a finite number"):
        open_fasttext(FastTextOptions(label="math"), [training.parent / "nan.bin"])


def test_the_record_is_found_by_its_key() -> None:
    assert find_kind("fasttext").options is FastTextOptions
    with pytest.raises(RecipeError, match="no kind of score 'fastext'"):
        find_kind("fastext")

"""The kernel beside fastText itself, and beside a slow twin that needs no fastText."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hard_texts import SENTENCES, WORDS
from tokmill.clean.detectors import load_detector, model_files
from tokmill.clean.fasttext_model import load_language_model
from tokmill.errors import InputError, MissingExtra
from tokmill.kernels.languages import Classifier, likeliest_labels, word_hash
from tokmill.schema import string_column

try:
    (MODEL,) = model_files("fasttext")
    fasttext = load_detector("fasttext")
except MissingExtra:
    pytest.skip("needs the extra `language`", allow_module_level=True)

model = load_language_model(MODEL)
LETTERS = st.text(st.characters(categories=["L", "M"]), min_size=1, max_size=12)
LINES = st.lists(LETTERS, max_size=30).map(" ".join)


def judged(lines: list[str]) -> list[tuple[str, float]]:
    column = string_column(pa.array(lines, pa.large_string()))
    labels, scores = likeliest_labels(column.data, column.offsets, model.classifier)
    return [
        (model.codes[label], score) for label, score in zip(labels.tolist(), scores.tolist(), strict=True)
    ]


@settings(max_examples=300, deadline=None)
@given(lines=st.lists(LINES, min_size=1, max_size=5))
def test_labels_and_scores_are_those_of_fasttext(lines: list[str]) -> None:
    for found, line in zip(judged(lines), lines, strict=True):
        code, score = fasttext(line.encode())
        assert found == (code, pytest.approx(score, abs=1e-6))  # the last bit is up to the build of fastText


@pytest.mark.parametrize(
    "line",
    [
        "",
        " ",
        "the quick brown fox",
        "Ωδή εις την χαράν",
        "素早い茶色の狐",
        "привет мир",
        "l'été à la plage",
        "a" * 5000,
    ],
)
def test_a_line_is_labelled_as_by_fasttext(line: str) -> None:
    code, score = fasttext(line.encode())
    assert judged([line]) == [(code, pytest.approx(score, abs=1e-6))]


def test_hard_texts_on_one_line_are_labelled_as_by_fasttext() -> None:
    lines = [" ".join(text.split()) for text in [*SENTENCES, *WORDS]]
    for line, (code, score) in zip(lines, judged(lines), strict=True):
        their_code, their_score = fasttext(line.encode())
        assert (code, score) == (their_code, pytest.approx(their_score, abs=1e-6)), line


@settings(max_examples=50, deadline=None)
@given(line=LINES)
def test_the_slow_twin_agrees(line: str) -> None:
    ((code, score),) = judged([line])
    slow_code, slow_score = slow_label(line.encode(), model.classifier)
    assert score == pytest.approx(slow_score, rel=1e-3)
    assert code == model.codes[slow_code] or score < 0.5


def slow_label(line: bytes, model: Classifier) -> tuple[int, float]:
    """Dictionaries, strings and double precision; every leaf of the tree is scored."""
    known = {
        model.words[first:end].tobytes(): row
        for row, (first, end) in enumerate(zip(model.word_ends[:-1], model.word_ends[1:], strict=True))
    }
    rows = []
    for word in line.split():
        rows += [known[word]] if word in known else []
        text = f"<{word.decode()}>"
        for start in range(len(text)):
            for stop in range(start + model.min_chars, min(start + model.max_chars, len(text)) + 1):
                row = model.gram_rows[word_hash(text[start:stop].encode()) % len(model.gram_rows)]
                rows += [row] if row >= 0 else []
    hidden = model.vectors[[*rows, 0]].sum(axis=0) / (len(rows) + 1)
    leaves = (len(model.left) + 1) // 2

    def walk(node: int, score: float) -> list[tuple[float, int]]:
        if model.left[node] < 0:
            return [(score, node)]
        chance = 1 / (1 + math.exp(-float(model.outputs[node - leaves] @ hidden)))
        return walk(model.left[node], score * (1 - chance + 1e-5)) + walk(
            model.right[node], score * (chance + 1e-5)
        )

    score, label = max(walk(len(model.left) - 1, 1.0))
    return int(label), score


def test_the_cut_into_batches_changes_nothing() -> None:
    lines = ["der schnelle Fuchs", "", "le renard brun", "the brown fox"]
    assert judged(lines) == [found for line in lines for found in judged([line])]


@pytest.mark.parametrize("cut", [3, 60, 5000, 200_000, 500_000])
def test_a_truncated_model_is_an_error_that_names_the_file(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "cut.ftz"
    path.write_bytes(MODEL.read_bytes()[:cut])
    with pytest.raises(InputError, match=r"cut\.ftz"):
        load_language_model(path)


def test_a_model_of_another_make_is_an_error(tmp_path: Path) -> None:
    data = bytearray(MODEL.read_bytes())
    struct.pack_into("<i", data, 8 + 4 * 6, 3)  # softmax instead of a tree
    (tmp_path / "other.ftz").write_bytes(data)
    with pytest.raises(InputError, match="hierarchical softmax"):
        load_language_model(tmp_path / "other.ftz")
    assert np.count_nonzero(model.classifier.gram_rows >= 0) == 42_765

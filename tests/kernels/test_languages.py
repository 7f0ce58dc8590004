"""The kernel beside fastText itself, and beside a slow twin that needs no fastText."""

from __future__ import annotations

import math
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hard_texts import SENTENCES, WORDS
from tokmill.clean.fasttext import load_language_model
from tokmill.clean.language import _words, known_languages, model_files
from tokmill.errors import InputError, MissingExtra
from tokmill.kernels.fasttext_words import mix_key
from tokmill.kernels.languages import _SLOT_BITS, Classifier, likeliest_labels, word_memory
from tokmill.schema import string_column

try:
    (MODEL,) = model_files("fasttext")
except MissingExtra:
    pytest.skip("needs the extra `language`", allow_module_level=True)

reference: Any = pytest.importorskip("fasttext_pybind").fasttext()
reference.loadModel(str(MODEL))
model = load_language_model(MODEL)
BUCKETS = np.flatnonzero(np.unpackbits(model.classifier.gram_bits.view(np.uint8), bitorder="little"))
LETTERS = st.text(st.characters(categories=["L", "M"]), min_size=1, max_size=12)
LINES = st.lists(LETTERS, max_size=30).map(" ".join)


def judged(lines: list[str]) -> list[tuple[str, float]]:
    column = string_column(pa.array(lines, pa.large_string()))
    labels, scores = likeliest_labels(column.data, column.offsets, model.classifier)
    return [
        (model.codes[label], score) for label, score in zip(labels.tolist(), scores.tolist(), strict=True)
    ]


def judged_by_fasttext(lines: list[str]) -> list[Any]:
    found = [reference.predict(line.encode() + b"\n", 1, 0.0, "strict")[0] for line in lines]
    # the last bits are up to its build: on x86 it sums without fused multiplications,
    # and is 2e-6 off for 5,000 letters
    return [(label.removeprefix("__label__"), pytest.approx(score, abs=1e-5)) for score, label in found]


@settings(max_examples=300, deadline=None)
@given(lines=st.lists(LINES, min_size=1, max_size=5))
def test_labels_and_scores_are_those_of_fasttext(lines: list[str]) -> None:
    assert judged(lines) == judged_by_fasttext(lines)


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
    assert judged([line]) == judged_by_fasttext([line])


def test_hard_texts_on_one_line_are_labelled_as_by_fasttext() -> None:
    lines = [" ".join(text.split()) for text in [*SENTENCES, *WORDS]]
    assert judged(lines) == judged_by_fasttext(lines)


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
                rows += slow_gram(text[start:stop].encode(), model)
    vectors = model.units.astype(np.float64) * model.norms[:, None]
    hidden = (vectors[[*rows, 0]].sum(axis=0) / (len(rows) + 1))[: model.outputs.shape[1]]
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


def slow_gram(gram: bytes, model: Classifier) -> list[int]:
    """Its row, if it has one: all buckets that are known, in order, stand beside their rows."""
    state = 2166136261
    for byte in gram:
        state = ((state ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619) & 0xFFFFFFFF
    place = np.searchsorted(BUCKETS, state % model.buckets)
    return (
        model.gram_rows[place : place + 1].tolist()
        if state % model.buckets in BUCKETS[place : place + 1]
        else []
    )


def test_the_cut_into_batches_changes_nothing() -> None:
    lines = ["der schnelle Fuchs", "", "le renard brun", "the brown fox"]
    assert judged(lines) == [found for line in lines for found in judged([line])]


# Words at the bounds of a key, 8, 16, 24 and 32 bytes in letters of one to three,
# each the beginning of the next.
EDGES = [
    letters[:size]
    for letters in (
        "wissenschaftlichkeitsbestrebungen",
        "e" * 40,
        "абвгдежзийклмнопрст",
        "日本語の文章を読む人々",
    )
    for size in (1, 3, 4, 7, 8, 9, 11, 15, 16, 17, 24, 31, 32, 33)
]


@settings(max_examples=200, deadline=None)
@given(
    lines=st.lists(
        st.lists(
            st.one_of(st.sampled_from(EDGES), LETTERS, st.sampled_from(["a\x01b", "\x1f", "x\ty", "\0", ""])),
            max_size=12,
        ).map(" ".join),
        min_size=1,
        max_size=6,
    )
)
def test_what_is_remembered_of_words_changes_nothing(lines: list[str]) -> None:
    column = string_column(pa.array([*lines, *lines, "x" * 40], pa.large_string()))
    memory = word_memory()
    first, again = (likeliest_labels(column.data, column.offsets, model.classifier, memory) for _ in range(2))
    alone = [judged([line]) for line in lines]  # too short for the memory, most of them
    assert [label.tolist() for label in first] == [label.tolist() for label in again]
    assert [(model.codes[label], score) for label, score in zip(*first, strict=True)][: len(lines)] == [
        found for (found,) in alone
    ]


def test_a_word_with_the_slot_and_the_first_bytes_of_another_is_not_taken_for_it() -> None:
    beginning = b"qqqqqqqqqqqqowie"  # 16 bytes, few enough n-grams to be kept, and its end has one of its own
    endings = [str(number) for number in range(10_000_000, 10_200_000)]
    a, b = (np.full(1, part, np.uint64) for part in np.frombuffer(beginning, np.uint64))
    rest = np.frombuffer("".join(endings).encode(), np.uint64)
    none = np.zeros(1, np.uint64)
    long, short = (mix_key(a, b, end, none) >> np.uint64(64 - _SLOT_BITS) for end in (rest, none))  # type: ignore[arg-type]
    same = np.flatnonzero(long == short)
    assert len(same) > 1
    words = [beginning.decode() + endings[place] for place in same]
    lines = [f"{first} {second} und noch ein paar Wörter mehr" for first in words for second in words]
    lines += [
        f"{beginning.decode()} {word} {beginning.decode()} und noch ein paar Wörter mehr" for word in words
    ]
    assert judged(lines) == judged_by_fasttext(lines)


@pytest.mark.parametrize(
    "lines",
    [
        ["wis", "senschaft und mehr", "wissenschaft und mehr", "und ein Ende, das lang genug ist"],
        ["mange\x01ons les pommes du jardin de la voisine", "mange les pommes du jardin de la voisine"],
    ],
)
def test_a_word_that_ends_with_its_row_or_has_a_control_inside_is_another_word(lines: list[str]) -> None:
    assert judged(lines) == judged_by_fasttext(lines)


def test_more_words_than_slots() -> None:
    """50,000 for 16,384, and every row is judged as it is alone."""
    words = [
        f"{first}{second}{third}"
        for first in EDGES[:25]
        for second in "abcdefghijklmnopqrst"
        for third in range(100)
    ]
    lines = [" ".join(words[start : start + 20]) for start in range(0, len(words), 20)]
    lines += lines
    memory = word_memory()
    column = string_column(pa.array(lines, pa.large_string()))
    labels, scores = likeliest_labels(column.data, column.offsets, model.classifier, memory)
    half = len(lines) // 2
    assert (labels[:half] == labels[half:]).all()
    assert (scores[:half] == scores[half:]).all()
    for row in range(0, half, 97):
        assert judged([lines[row]]) == [(model.codes[labels[row]], scores[row])]


def test_each_thread_has_a_memory_of_its_own() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: _words.memory).result() is not _words.memory


def test_the_codes_are_those_that_fasttext_can_answer_with() -> None:
    # it does not list its labels, but scores all of them if asked to; from 0.0 on it leaves out the least
    scored = reference.predict(b"a\n", 1000, -1.0, "strict")
    assert known_languages("fasttext") == {label.removeprefix("__label__") for _, label in scored}


def test_a_line_of_more_rows_than_are_summed_at_once_is_labelled_as_by_fasttext() -> None:
    lines = ["les enfants mangent des pommes " * 400, "mangeaient" * 900, "é" * 3000]
    assert judged(lines) == judged_by_fasttext(lines)


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
    assert len(model.classifier.gram_rows) == len(BUCKETS) == 42_765


def test_a_model_that_points_outside_itself_is_an_error(tmp_path: Path) -> None:
    path, data = tmp_path / "other.ftz", bytearray(MODEL.read_bytes())
    struct.pack_into("<i", data, 8 + 4 * 8, 1000)  # buckets
    path.write_bytes(data)
    with pytest.raises(InputError, match="outside its buckets"):
        load_language_model(path)
    data = bytearray(MODEL.read_bytes())
    last = int(model.classifier.gram_rows.max()) - len(model.classifier.word_ends) + 1
    bucket = int(BUCKETS[model.classifier.gram_rows.argmax()])
    struct.pack_into("<2i", data, data.index(struct.pack("<2i", bucket, last)), bucket, last + 1)
    path.write_bytes(data)
    with pytest.raises(InputError, match="has no vector"):
        load_language_model(path)

"""Text to units, against splitting and hashing in plain Python."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.arrow_buffers import QUICK, buffers, column, columns
from plain import near as slow
from tokmill.duplicates.shingling import unit_kinds
from tokmill.kernels.shingles import char_units, word_units
from tokmill.kernels.wordclasses import fold

MAKERS = {"word": word_units, "char": char_units}

PIECES = [
    *"aZ09_.,'-\0",
    " ",
    "\n",
    "é",
    "e\u0301",
    "word",
    "Straße",
    "日本語",
    "カﾅ",
    "ไทย",
    "ที่",
    "한국어",
    "हिन्दी",
    "٣",
    "𝟘",
    "①",
]
PIECES += ["\u00ad", "\u200b", "\u0301", "😀", "—", "ﬁ", "x" * 20, "12", "$5.00"]
TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=25).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)


def units_of(array: pa.LargeStringArray, kind: str, *, keep_digits: bool) -> list[list[int]]:
    data, offsets, _ = buffers(array)
    found = MAKERS[kind](data, offsets, unit_kinds(), keep_digits=keep_digits)
    assert found.units.dtype == np.uint32
    expected = [0 if keep_digits else slow.numbers(text) for text in array.to_pylist()]
    assert found.numbers.tolist() == expected
    return [found.units[a:b].tolist() for a, b in pairwise(found.offsets)]


@pytest.mark.parametrize("keep_digits", [False, True])
@pytest.mark.parametrize("kind", ["word", "char"])
@QUICK
@given(columns(TEXTS.map(fold)))
def test_units_are_what_splitting_and_hashing_in_python_gives(
    kind: str, keep_digits: bool, array: pa.LargeStringArray
) -> None:
    found = units_of(array, kind, keep_digits=keep_digits)
    assert found == [slow.units(text, kind, keep_digits=keep_digits) for text in array.to_pylist()]


@QUICK
@given(st.text("aZ 09.\n", max_size=60))
def test_an_ascii_text_need_not_be_folded(text: str) -> None:
    array = column([text, fold(text)])
    one, other = units_of(array, "word", keep_digits=False)
    assert one == other


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Call me_Ishmael, don't!", ["call", "me", "ishmael", "don", "t"]),
        ("日本語 text", ["日", "本", "語", "text"]),
        ("ที่นี่", ["ที่", "นี่"]),
        ("한국어 문장", ["한국어", "문장"]),
        ("हिन्दी", ["हिन्दी"]),
        ("🙂 — $ …", []),
        ("", []),
    ],
)
def test_words_are_runs_of_letters_marks_and_digits_or_letters_of_scripts_without_spaces(
    text: str, words: list[str]
) -> None:
    assert slow.words(text) == words
    assert units_of(column([fold(text)]), "word", keep_digits=True) == [
        [slow.unit_of(word, "word", zero=False) for word in words]
    ]


def test_a_digit_in_prose_is_a_zero_and_the_unit_says_so() -> None:
    first, second = units_of(
        column([f"released in {year} under another licence, with no other change" for year in (2019, 2024)]),
        "word",
        keep_digits=False,
    )
    assert first == second
    assert [unit & 1 for unit in first[:4]] == [0, 0, 1, 0]


def test_a_table_of_numbers_keeps_its_digits() -> None:
    tables = ["\n".join(f"row {(row * seed) % 97} {row * 7 + seed}" for row in range(20)) for seed in (3, 5)]
    first, second = units_of(column(tables), "word", keep_digits=False)
    assert first != second
    assert not any(unit & 1 for unit in first)


def test_one_digit_in_ten_word_characters_is_the_most_that_is_replaced() -> None:
    at, above = units_of(column(["a" * 9 + "7", "a" * 8 + "7"]), "word", keep_digits=False)
    assert at[0] & 1 == 1
    assert above[0] & 1 == 0

"""The tables against `unicodedata` itself, on every code point and on arbitrary text."""

from __future__ import annotations

import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.kernels import wordclasses as folding
from tokmill.kernels.wordclasses import fold, fold_table, form_classes
from tokmill.schema import string_column

CHARACTERS = [chr(code) for code in range(0x80, 0x110000) if not 0xD800 <= code < 0xE000]

# Hangul, Indic, Arabic and Thai marks, composing accents, ligatures, widths: where forms really differ.
MARKS = st.sampled_from("aeoAE ̧̱́̀̈̇̊̃̂̆가ᄀ ᅡᆨिक्ष़กำ้ัูبًٍّٔﬁﬀ½①Ａｶﾞガか゛がʼnßẞİıΣςͅẛſK")
ASCII_RUNS = st.lists(
    st.sampled_from(["a", "bc", "def", "eight or", "é", "ß", "你", "😀", "ﬁ", "\u0301"])
).map("".join)
TEXTS = st.one_of(
    ASCII_RUNS, st.text(), st.text(MARKS), st.text(st.characters(min_codepoint=0x300, max_codepoint=0x3100))
)


def folded(texts: list[str]) -> tuple[list[str], list[bool]]:
    column = string_column(pa.array(texts, pa.large_string()))
    result = folding.fold_rows(column.data, column.offsets, fold_table())
    rows = [
        bytes(result.data[start:end]).decode()
        for start, end in zip(result.offsets[:-1], result.offsets[1:], strict=True)
    ]
    return rows, result.is_exact.tolist()


def suspected(texts: list[str], form: str) -> list[bool]:
    column = string_column(pa.array(texts, pa.large_string()))
    return folding.suspects(column.data, column.offsets, form_classes(form)).tolist()


def test_every_code_point_folds_as_unicodedata_says_or_is_sent_the_slow_way() -> None:
    rows, is_exact = folded(CHARACTERS)
    wrong = [c for c, row, exact in zip(CHARACTERS, rows, is_exact, strict=True) if exact and row != fold(c)]
    assert wrong == []
    assert sum(is_exact) > 0.999 * len(CHARACTERS)


@pytest.mark.parametrize("form", ["NFC", "NFKC"])
def test_every_code_point_that_is_not_in_the_form_is_suspected(form: str) -> None:
    missed = [
        c
        for c, is_suspect in zip(CHARACTERS, suspected(CHARACTERS, form), strict=True)
        if not is_suspect and not unicodedata.is_normalized(form, c)
    ]
    assert missed == []


@settings(deadline=None, max_examples=400)
@given(st.lists(TEXTS, max_size=6))
def test_folding_code_point_by_code_point_is_exact_where_it_says_so(texts: list[str]) -> None:
    rows, is_exact = folded(texts)
    for text, row, exact in zip(texts, rows, is_exact, strict=True):
        ascii_folded = "".join(c.lower() if c.isascii() else c for c in row)
        assert not exact or ascii_folded == fold(text)


@settings(deadline=None, max_examples=400)
@given(st.lists(TEXTS, max_size=6), st.sampled_from(["NFC", "NFKC"]))
def test_a_text_that_is_not_suspected_is_in_the_form(texts: list[str], form: str) -> None:
    for text, is_suspect in zip(texts, suspected(texts, form), strict=True):
        assert is_suspect or unicodedata.is_normalized(form, text)


def test_ordinary_text_of_many_scripts_takes_the_fast_way() -> None:
    texts = [
        "Ça va très bien à Noël",
        "日本語のテキスト。",
        "Привет, мир",
        "हिन्दी में पाठ",
        "ภาษาไทย",
        "العربية",
        "中文",
        "Ελληνικά",
    ]
    assert folded(texts)[1] == [True] * len(texts)
    assert suspected(texts, "NFC") == [False] * len(texts)
    assert np.count_nonzero(form_classes("NFC") == folding.UNSAFE) < 2000

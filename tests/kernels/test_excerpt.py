from __future__ import annotations

import re
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.arrow_buffers import QUICK, TEXTS, buffers, column, columns
from tokmill.clean.language import letter_classes
from tokmill.kernels.excerpt import (
    CLOSER,
    CODE,
    JOINER,
    LETTER,
    MARK,
    MAX_TOKEN_CHARS,
    OPENER,
    QUOTE,
    SEPARATOR,
    excerpt_letters,
)

# One character per class, so that a regular expression can say what the kernel does.
NAMES = {SEPARATOR: " ", LETTER: "L", MARK: "M", JOINER: "J", OPENER: "O", CLOSER: "C", QUOTE: "Q", CODE: "x"}
PROSE = re.compile(r"[OQJM]*(L(?:[LMJ]*[LM])?)J*(?:[CQ][CQJ]*)?")
RUN = re.compile(r"L[LM]*")
CLASSES = letter_classes()


def slow_words(text: str, kinds: str, first: int, last: int, every_run: bool) -> list[tuple[int, int]]:
    """(start, end) of the words of the token text[first:last]."""
    prose = PROSE.fullmatch(kinds, first, last)
    if prose:
        return [prose.span(1)]
    runs = [run.span() for run in RUN.finditer(kinds, first, last)]
    return [(a, b) for a, b in runs if every_run or not text[a:b].isascii()]


def slow_excerpt(text: str, places: int, bytes_per_place: int, min_bytes: int) -> str:
    kinds = "".join(NAMES[CLASSES[ord(c)]] for c in text)
    starts = [0, *accumulate(len(c.encode()) for c in text)]  # in bytes; the last is the end
    excerpt = ""
    for every_run in (False, True):
        excerpt, at, word_end = "", 0, -1
        for place in range(places):
            begin, stop = (starts[-1] * (place + step) // places for step in (0, 1))
            if starts[at] < begin:
                at = next(i for i, start in enumerate(starts) if start >= begin)
                separator = kinds.find(" ", at, at + MAX_TOKEN_CHARS)
                at = separator + 1 if separator >= 0 else min(at + MAX_TOKEN_CHARS, len(text))
            while starts[at] < stop and len(excerpt.encode()) < bytes_per_place * (place + 1):
                separator = kinds.find(" ", at, at + MAX_TOKEN_CHARS)
                last = separator if separator >= 0 else min(at + MAX_TOKEN_CHARS, len(text))
                for start, end in slow_words(text, kinds, at, last, every_run):
                    excerpt += " " * (excerpt != "" and start != word_end) + text[start:end]
                    word_end = end
                at = max(last, at + 1)
        if len(excerpt.encode()) >= min_bytes:
            break
    return excerpt


def excerpts(array: pa.LargeStringArray, places: int, bytes_per_place: int, min_bytes: int) -> list[str]:
    data, offsets, _ = buffers(array)
    out, ends = excerpt_letters(
        data, offsets, CLASSES, places=places, bytes_per_place=bytes_per_place, min_bytes=min_bytes
    )
    assert ends[0] == 0
    assert ends[-1] == out.size
    return [out[a:b].tobytes().decode() for a, b in pairwise(ends)]


def excerpt(text: str, places: int = 4, bytes_per_place: int = 150, min_bytes: int = 0) -> str:
    return excerpts(column([text], margin=1), places, bytes_per_place, min_bytes)[0]


TOKENS = st.lists(
    st.one_of(
        st.text("aé本'-’(\"*.,)1_/ \u0301\u200c", max_size=8),
        st.sampled_from(
            ["The ", "l'été, ", "{{ref('x')}} ", "https://a.b/c ", "使用map()方法。", "ไทย", "\0", "😀"]
        ),
        # Where eight bytes at a time begin and end: marks after letters, code before other scripts, controls.
        st.sampled_from(
            ["word, ", "words). ", "a;\x7f", "f(x)=[1,2];", "<b>été</b>", "x_1é ", "\x1f", "Z{", "@`"]
        ),
        st.text("aZ", min_size=55, max_size=80),
        st.text("a=", min_size=90, max_size=105),
        st.text("abc", min_size=95, max_size=105),
        st.text("日é", min_size=95, max_size=105),
    ),
    max_size=25,
).map("".join)


@QUICK
@given(
    columns(st.one_of(TEXTS, TOKENS)),
    st.integers(1, 6),
    st.integers(1, 40),
    st.sampled_from([0, 1, 10, 1000]),
)
def test_the_excerpt_is_what_regular_expressions_find(
    array: pa.LargeStringArray, places: int, bytes_per_place: int, min_bytes: int
) -> None:
    expected = [slow_excerpt(text, places, bytes_per_place, min_bytes) for text in array.to_pylist()]
    assert excerpts(array, places, bytes_per_place, min_bytes) == expected


@QUICK
@given(columns(st.one_of(TEXTS, TOKENS)))
def test_an_excerpt_has_no_separators_but_single_spaces_and_fits_its_text(array: pa.LargeStringArray) -> None:
    for text, found in zip(array.to_pylist(), excerpts(array, 3, 20, 30), strict=True):
        assert len(found.encode()) <= min(len(text.encode()), 3 * 20 + 4 * MAX_TOKEN_CHARS)
        words = found.split(" ")
        assert words == [""] or all(words)
        assert all(word in text for word in words)
        assert not {CLASSES[ord(c)] for c in found} & {OPENER, CLOSER, QUOTE, CODE}
        assert not set(found) & set("\n\r\t\0")


@QUICK
@given(st.lists(TOKENS, max_size=8), st.integers(0, 8))
def test_a_row_does_not_depend_on_its_neighbours(texts: list[str], cut: int) -> None:
    whole = column(texts)
    assert excerpts(whole, 3, 9, 5) == excerpts(whole[:cut], 3, 9, 5) + excerpts(whole[cut:], 3, 9, 5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("\0" * 100, ""),
        ("1234 5678, 90", ""),
        ("\u0301 \u200d", ""),
        ('He said: "No (really)!" **Bold** _it_.', "He said No really Bold it"),
        ("L'été, rock-'n'-roll, aujourd’hui", "L'été rock-'n'-roll aujourd’hui"),
        ("see https://a.example/b or foo_bar(x) and H2O in <b>bold</b> text", "see or and in text"),
        ("one\ntwo\r\nthree\u2028four\u3000five", "one two three four five"),
        ("我们使用map()方法来处理。好", "我们使用map 方法来处理 好"),
        ("می\u200cخواهم نمی‌دانم", "می\u200cخواهم نمی\u200cدانم"),
        ("हिन्दी में लिखा।", "हिन्दी में लिखा"),
        ("Привет, wörld! 日本", "Привет wörld 日本"),
        ("f(x)=[1,2]\x7fdelete it", "delete it"),
        ("a" * 120 + " b c", "a" * 120 + " b c"),
    ],
)
def test_words_of_a_short_text(text: str, expected: str) -> None:
    assert excerpt(text) == expected


def test_a_text_of_code_alone_gives_all_its_letters() -> None:
    code = "x=foo(bar); y=h2o"
    assert excerpt(code) == ""
    assert excerpt(code, min_bytes=1) == "x foo bar y h o"


def test_places_lie_apart_and_start_with_a_whole_word() -> None:
    text = " ".join(letter * 9 for letter in "abcdefghijklmnopqrstuvwxyz")
    assert excerpt(text, places=5, bytes_per_place=8).split() == [letter * 9 for letter in "aglqv"]


def test_what_markup_leaves_unfilled_later_places_fill() -> None:
    text = "<a/> " * 100 + "word " * 400
    assert excerpt(text, places=4, bytes_per_place=20) == " ".join(["word"] * 17)


@pytest.mark.parametrize("letter", ["a", "é", "本", "𝒳"])
def test_ten_megabytes_of_one_letter_are_read_in_bounded_steps(letter: str) -> None:
    found = excerpt(letter * (10_000_000 // len(letter.encode())), min_bytes=40)
    assert set(found.replace(" ", "")) == {letter}
    assert len(found.encode()) <= 4 * 150 + 4 * MAX_TOKEN_CHARS


def test_ten_megabytes_without_a_letter_are_empty() -> None:
    assert excerpt("0" * 10_000_000, min_bytes=40) == ""


def test_no_rows() -> None:
    out, ends = excerpt_letters(
        np.empty(0, np.uint8), np.empty(0, np.int64), CLASSES, places=4, bytes_per_place=9, min_bytes=0
    )
    assert out.size == 0
    assert ends.tolist() == [0]

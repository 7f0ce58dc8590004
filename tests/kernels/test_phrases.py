"""Phrases found with a window that leaps, against a look at every place."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.arrow_buffers import QUICK, buffers
from plain.measures import ascii_lower
from tokmill.kernels.patterns import (
    BOILERPLATE,
    JAVASCRIPT,
    POLICY_PHRASES,
    URL_STARTS,
    count_phrases,
    phrase_table,
)

Groups = tuple[tuple[str, ...], ...]

PHRASES = st.text("abc é", min_size=1, max_size=6)


@st.composite
def phrase_groups(draw: st.DrawFn) -> Groups:
    """Of one group, none is in another."""
    groups = []
    for phrases in draw(st.lists(st.lists(PHRASES, max_size=4, unique=True), max_size=3)):
        groups.append(tuple(p for p in phrases if not any(p in other for other in phrases if other != p)))
    return tuple(groups)


def slow_count(text: str, phrases: tuple[str, ...]) -> tuple[int, int]:
    folded = ascii_lower(text)
    hits = sum(folded.startswith(phrase, place) for place in range(len(folded)) for phrase in phrases)
    return hits, sum(any(phrase in line for phrase in phrases) for line in folded.split("\n"))


def assert_counted(texts: list[str], groups: Groups) -> None:
    data, offsets, _ = buffers(pa.array(texts, pa.large_string()))
    found = count_phrases(data, offsets, phrase_table(groups))
    assert found.hits.shape == found.lines.shape == (len(groups), len(texts))
    for group, phrases in enumerate(groups):
        counted = list(zip(found.hits[group].tolist(), found.lines[group].tolist(), strict=True))
        assert counted == [slow_count(text, phrases) for text in texts]


# ` @ and \0 are a space in their low five bits, A! and a1 and é share some with letters.
@QUICK
@given(st.lists(st.text("aAbBcC é\n`@\0!1", max_size=60), max_size=6), phrase_groups())
def test_phrases_are_found_wherever_they_are(texts: list[str], groups: Groups) -> None:
    assert_counted(texts, groups)


@QUICK
@given(
    st.lists(
        st.lists(
            st.sampled_from(
                [
                    *JAVASCRIPT,
                    *POLICY_PHRASES,
                    *URL_STARTS,
                    *BOILERPLATE,
                    "COOKIE",
                    "java",
                    "Script",
                    "\n",
                    " ",
                    "x",
                ]
            ),
            max_size=12,
        ).map("".join),
        max_size=4,
    )
)
def test_phrases_of_the_word_lists_are_found_between_parts_of_each_other(texts: list[str]) -> None:
    assert_counted(texts, (JAVASCRIPT, POLICY_PHRASES, URL_STARTS, BOILERPLATE))
    assert_counted(texts, (JAVASCRIPT, POLICY_PHRASES))


@pytest.mark.parametrize("size", [1, 2, 3, 8, 255, 256, 257, 600])
def test_a_phrase_of_any_length_is_found_at_any_place(size: int) -> None:
    phrase = ("abcdefghij" * 60)[:size]
    whole = [" " * before + phrase.upper() + " " * after for before in range(12) for after in (0, 1, 300)]
    almost = [" " * before + phrase[:-1] + "?" for before in range(12)]
    assert_counted([*whole, *almost, phrase[:-1], phrase], ((phrase,),))
    assert_counted([*whole, *almost], ((phrase, "z" * (size + 40)), ("yy",)))


def test_phrases_that_overlap_count_each_and_a_line_once() -> None:
    assert_counted(["ababab aba\nab", "\nab\n\naba", "xab" * 50 + "\n" + "ab" * 50], (("aba",), ("ab", "ba")))


def test_a_phrase_does_not_reach_into_the_next_row() -> None:
    assert_counted(["javasc", "ript", "javascript", ""], (JAVASCRIPT,))


@pytest.mark.parametrize("groups", [(), ((),), ((), ("ab",))])
def test_no_phrases_are_nowhere(groups: Groups) -> None:
    assert_counted(["", "ab", "x" * 2000], groups)

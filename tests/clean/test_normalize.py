"""normalize_texts against the same edits written in plain Python."""

from __future__ import annotations

import itertools
import unicodedata

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleaned import clean
from tokmill import Normalize
from tokmill.clean.edits import Normalized, apply_edits, normalize_texts

EVERY_RULE = [
    Normalize(unicode=unicode, nul=nul, newlines=newlines)
    for unicode, nul, newlines in itertools.product(
        ("none", "NFC", "NFKC"), ("strip", "keep"), ("keep", "lf")
    )
]
# Marks that compose, reorder or hide behind a NUL, line ends that touch, and the rest of Unicode.
MARKS = ["\0", "\r", "\n", "e", "\u0301", "\u0323", "é", "ﬁ", "가", "ᄀ", "ᅡ", "\u0344"]
PIECES = st.sampled_from([*MARKS, "\r\n", "\r\0\n", "①", "a" * 20])
TEXTS = st.one_of(
    st.lists(PIECES, max_size=12).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.text(st.characters(max_codepoint=127), max_size=30),
)


def slow_normalize(text: str, rules: Normalize) -> str:
    if rules.nul == "strip":
        text = text.replace("\0", "")
    if rules.newlines == "lf":
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text if rules.unicode == "none" else unicodedata.normalize(rules.unicode, text)


def slow_reasons(text: str, rules: Normalize) -> dict[str, int]:
    """Why the text is changed, and how often."""
    found = {}
    if "\0" in text and rules.nul == "strip":
        found["nul_stripped"] = text.count("\0")
    if "\r" in text and rules.newlines == "lf":
        found["newlines_to_lf"] = text.count("\r")
    if rules.unicode != "none" and not unicodedata.is_normalized(rules.unicode, text):
        found[f"unicode_{rules.unicode.lower()}"] = 0
    return found


def column(texts: list[str], margin: int) -> pa.LargeStringArray:
    """A slice out of a longer column, as shards cut out of a table are."""
    around = ["a\r\n\0e\u0301"] * margin
    return pa.array([*around, *texts, *around], pa.large_string()).slice(margin, len(texts))


# Every order of up to three of them: what touches what is all that there is to it.
ORDERS = ["x" + "".join(order) for size in range(4) for order in itertools.product(MARKS, repeat=size)]


@pytest.mark.parametrize("rules", EVERY_RULE, ids=str)
def test_what_a_run_writes_is_what_plain_python_makes_of_every_text(rules: Normalize) -> None:
    section = {"unicode": rules.unicode, "nul": rules.nul, "newlines": rules.newlines}
    found = clean(({"text": text} for text in ORDERS), normalize=section)
    expected = [slow_normalize(text, rules) for text in ORDERS]
    assert found.texts == expected
    assert [mark["chars"] for mark in found.marks] == [len(text) for text in expected]
    assert [mark["bytes"] for mark in found.marks] == [len(text.encode()) for text in expected]
    told = {
        row: {reason: line["value"] for reason, line in lines.items()} for row, lines in found.edits.items()
    }
    assert told == {row: reasons for row, text in enumerate(ORDERS) if (reasons := slow_reasons(text, rules))}
    assert found.counts["nul_chars"] == sum(text.count("\0") for text in ORDERS)
    assert found.counts["chars_in"] == sum(map(len, ORDERS))


def reasons_of(result: Normalized) -> dict[str, dict[int, int]]:
    return {
        reason: dict(zip(rows.tolist(), counts.tolist(), strict=True))
        for reason, rows, counts in result.edits.reasons
    }


@settings(deadline=None, max_examples=300)
@given(st.lists(TEXTS, max_size=6), st.sampled_from(EVERY_RULE), st.integers(0, 2))
def test_texts_edits_and_counts_are_those_of_plain_python(
    texts: list[str], rules: Normalize, margin: int
) -> None:
    result = normalize_texts(column(texts, margin), rules)
    expected = [slow_normalize(text, rules) for text in texts]
    changed = [row for row, text in enumerate(texts) if expected[row] != text]
    assert result.texts.to_pylist() == expected
    assert result.edits.rows.tolist() == changed
    assert result.edits.texts.to_pylist() == [expected[row] for row in changed]
    assert result.chars.tolist() == [len(text) for text in expected]
    assert result.is_ascii.tolist() == [text.isascii() for text in expected]
    assert result.nuls == sum(text.count("\0") for text in texts)
    assert result.chars_in == sum(len(text) for text in texts)


@settings(deadline=None, max_examples=200)
@given(st.lists(TEXTS, max_size=6), st.sampled_from(EVERY_RULE))
def test_every_edit_has_a_reason_and_every_reason_an_edit(texts: list[str], rules: Normalize) -> None:
    result = normalize_texts(column(texts, 0), rules)
    expected: dict[str, dict[int, int]] = {}
    for row, text in enumerate(texts):
        for reason, count in slow_reasons(text, rules).items():
            expected.setdefault(reason, {})[row] = count
    assert reasons_of(result) == expected
    assert {row for rows in expected.values() for row in rows} == set(result.edits.rows.tolist())


@pytest.mark.parametrize("rules", EVERY_RULE, ids=str)
def test_normalizing_twice_changes_nothing_more(rules: Normalize) -> None:
    section = {"unicode": rules.unicode, "nul": rules.nul, "newlines": rules.newlines}
    once = [slow_normalize(text, rules) for text in ORDERS]
    assert clean(({"text": text} for text in once), normalize=section).edits == {}


def test_marks_that_meet_when_a_nul_between_them_goes_are_composed() -> None:
    found = clean([{"text": "cafe\0\u0301"}], normalize={"unicode": "NFC", "nul": "strip"})
    assert found.texts == ["café"]


def test_clean_text_is_passed_on_as_it_is_and_not_copied() -> None:
    texts = column(["plain ascii\n", "déjà composed", ""], 1)
    result = normalize_texts(texts, Normalize(unicode="NFC", newlines="lf"))
    assert result.texts is texts
    assert result.edits.reasons == []
    assert len(result.edits.texts) == 0


@pytest.mark.parametrize("rules", EVERY_RULE)
def test_a_column_without_rows_stays_empty(rules: Normalize) -> None:
    result = normalize_texts(pa.array([], pa.large_string()), rules)
    assert result.texts.to_pylist() == []
    assert (result.nuls, result.chars_in, len(result.edits.rows)) == (0, 0, 0)


@settings(deadline=None, max_examples=100)
@given(st.lists(TEXTS, min_size=1, max_size=6), st.data())
def test_edits_are_laid_over_the_rows_they_belong_to(texts: list[str], data: st.DataObject) -> None:
    rows = sorted(data.draw(st.sets(st.integers(0, len(texts) - 1))))
    edited = [f"new text of {row}" for row in rows]
    expected = list(texts)
    for row, text in zip(rows, edited, strict=True):
        expected[row] = text
    whole = apply_edits(
        column(texts, 2), pa.array(rows, pa.int64()).to_numpy(), pa.array(edited, pa.large_string())
    )
    assert whole.to_pylist() == expected

"""Exact duplicates against folding and comparing in plain Python."""

from __future__ import annotations

import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleaned import clean
from duplicates.deduped import dedup
from tokmill.duplicates.shingling import Matches, folded_hashes, match_equal, partition_of

# Pairs and triples that fold together, and neighbours that must not.
LETTERS = [*"AaＡﬁßẞéÉKkİı①1Σςσᾳ가가\u0301\u0307\u0345", "fi", "FI", "SS", "e\u0301", "i\u0307", "日本語"]
SPACES = [" ", "  ", "\n", "\t\r\n", "\u3000", "\u00a0", "\u2028", "\x1c", "\u200b", "\0"]
PIECES = st.sampled_from([*LETTERS, *SPACES, "x" * 20])
TEXTS = st.one_of(
    st.lists(PIECES, max_size=8).map("".join), st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
)


def slow_fold(text: str) -> str:
    """What version 1 of the hash normalization says:
    NFKC, casefold, NFKC, and one space for any whitespace."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())


def hashes_of(texts: list[str], margin: int = 0) -> list[tuple[int, int]]:
    around = ["outside É"] * margin
    column = pa.array([*around, *texts, *around], pa.large_string()).slice(margin, len(texts))
    found = folded_hashes(column, np.array([text.isascii() for text in texts], np.bool_))
    assert found.dtype == np.uint64
    assert found.shape == (len(texts), 2)
    return [(int(high), int(low)) for high, low in found]


def marks_of(texts: list[str]) -> list[tuple[int, int]]:
    """The hashes that a run writes beside its documents."""
    marks = clean(({"text": text} for text in texts), normalize={"nul": "keep"}).marks
    return [(mark["exact_high"], mark["exact_low"]) for mark in marks]


@settings(deadline=None, max_examples=300)
@given(st.lists(TEXTS, max_size=8), st.integers(0, 2))
def test_hashes_are_equal_exactly_when_the_folded_texts_are(texts: list[str], margin: int) -> None:
    hashes = hashes_of(texts, margin)
    for one, first in zip(texts, hashes, strict=True):
        for other, second in zip(texts, hashes, strict=True):
            assert (first == second) == (slow_fold(one) == slow_fold(other)), (one, other)


def test_folding_makes_no_character_blank_that_was_visible() -> None:
    """So a document without a visible character, and no other, has the hash 0,
    whether it is folded first or not."""
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    assert [c for c in characters if c.split() and not slow_fold(c)] == []
    assert {c for c in characters if not c.split() and slow_fold(c)} == set()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Straße", "STRASSE"),
        ("ﬁrst  line\r\nnext", " First line next "),
        ("caf\u00e9", "CAFE\u0301"),
        ("①", "1"),
        ("\u3000wide\u3000", "wide"),
        ("K", "k"),
        ("ＡＢＣ", "abc"),
    ],
)
def test_a_text_and_its_folding_are_duplicates_even_when_only_one_of_them_is_ascii(
    one: str, other: str
) -> None:
    assert not any(dedup([one, "something else", other], exact=True).is_dropped)
    found = dedup([one, "something else", other], exact="folded")
    assert found.is_dropped == [False, False, True]
    assert [(line["reason"], line["row"], line["match_row"]) for line in found.ledger] == [
        ("exact_dup", 2, 0)
    ]
    assert marks_of([one]) == marks_of([other]), "a hash does not depend on the rows beside it"


@pytest.mark.parametrize(
    ("one", "other"),
    [("ab", "a b"), ("a.b", "ab"), ("e", "é"), ("a\u200bb", "ab"), ("a\0b", "ab"), ("a", "aa")],
)
def test_texts_that_differ_in_more_than_form_case_and_space_are_not_duplicates(one: str, other: str) -> None:
    assert dedup([one, other], exact="folded").is_dropped == [False, False]
    assert len(set(marks_of([one, other]))) == 2


@pytest.mark.parametrize("text", ["", " ", "\n\t\r\n", "\u3000\u2028", "\u00a0" * 50, "\x1c\x1f"])
def test_a_text_without_a_visible_character_hashes_to_zero_and_no_other_does(text: str) -> None:
    found = marks_of([text, "\0", "\u200b", "."])
    assert found[0] == (0, 0)
    assert (0, 0) not in found[1:]


def test_more_rows_than_one_batch_are_hashed_like_single_rows() -> None:
    texts = [f"Zeile é {number}" if number % 3 else f"plain {number}" for number in range(2500)]
    hashes = marks_of(texts)
    assert len(set(hashes)) == len(texts)
    for row in (0, 1, 1023, 1024, 1025, 1537, 2499):
        assert hashes[row] == marks_of([texts[row]])[0]


def test_no_rows_have_no_hashes() -> None:
    assert hashes_of([]) == []


def slow_match(rows: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    first: dict[tuple[int, int, int], int] = {}
    return [(index, first[row]) for index, row in enumerate(rows) if first.setdefault(row, index) != index]


def matched(rows: list[tuple[int, int, int]]) -> Matches:
    group, high, low = (
        np.array([row[part] for row in rows], kind)
        for part, kind in enumerate((np.uint32, np.uint64, np.uint64))
    )
    return match_equal(high, low, group)


def pairs(found: Matches) -> list[tuple[int, int]]:
    return sorted(zip(found.duplicates.tolist(), found.survivors.tolist(), strict=True))


EDGES = st.sampled_from([0, 1, 2, 2**32, 2**63, 2**64 - 1])
ROWS = st.lists(st.tuples(st.integers(0, 2), EDGES, EDGES), max_size=30)


@settings(deadline=None, max_examples=300)
@given(ROWS)
def test_every_row_after_the_first_of_its_equals_is_matched_with_that_first(
    rows: list[tuple[int, int, int]],
) -> None:
    assert pairs(matched(rows)) == slow_match(rows)


@settings(deadline=None, max_examples=150)
@given(ROWS, st.integers(1, 7))
def test_the_matches_are_the_same_however_many_partitions_there_are(
    rows: list[tuple[int, int, int]], partitions: int
) -> None:
    high = np.array([row[1] for row in rows], np.uint64)
    found: list[tuple[int, int]] = []
    for partition in range(partitions):
        chosen = np.flatnonzero(partition_of(high, partitions) == partition)
        part = matched([rows[index] for index in chosen])
        found += zip(chosen[part.duplicates].tolist(), chosen[part.survivors].tolist(), strict=True)
    assert sorted(found) == slow_match(rows)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.integers(0, 2**64 - 1) | EDGES, max_size=20), st.integers(1, 4096))
def test_a_partition_is_a_range_of_hashes_in_order(values: list[int], partitions: int) -> None:
    found = partition_of(np.array(sorted(values), np.uint64), partitions).tolist()
    assert found == sorted(found)
    assert all(0 <= partition < partitions for partition in found)
    assert found == [((value >> 32) * partitions) >> 32 for value in sorted(values)]


@pytest.mark.parametrize("partitions", [1, 2, 3, 7, 64, 4096])
def test_every_partition_gets_its_share_of_evenly_spread_hashes(partitions: int) -> None:
    evenly = np.arange(0, 2**64, 2**64 // 2**15, dtype=np.uint64)
    counts = np.bincount(partition_of(evenly, partitions).astype(np.int64), minlength=partitions)
    assert len(counts) == partitions
    assert counts.max() - counts.min() <= 1


def test_the_partition_of_a_hash_does_not_depend_on_the_hashes_beside_it() -> None:
    hashes = np.array([5, 2**63, 2**64 - 1], np.uint64)
    for position in range(3):
        assert partition_of(hashes[position : position + 1], 10)[0] == partition_of(hashes, 10)[position]

"""The split: decided by identity, in whole numbers."""

from __future__ import annotations

import hashlib
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tokmill.split import is_valid_split

IDS = [f"doc-{number}" for number in range(20_000)]


def slow_split(doc_id: str, fraction: Decimal) -> bool:
    """sha256(doc_id)[:8] / 2^64 < fraction, without a division."""
    first = int.from_bytes(hashlib.sha256(doc_id.encode()).digest()[:8], "big")
    return first < math.floor(Fraction(fraction) * 2**64)


def split(ids: list[str], fraction: str) -> list[bool]:
    return is_valid_split(pa.array(ids, pa.string()), Decimal(fraction)).tolist()


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=80), max_size=20),
    st.decimals(0, Decimal("0.999999"), places=6),
)
@example(["", "a", "a" * 55, "a" * 56, "a" * 64, "é" * 100], Decimal("0.5"))
def test_every_label_is_what_hashlib_says(ids: list[str], fraction: Decimal) -> None:
    expected = [slow_split(doc_id, fraction) for doc_id in ids]
    assert is_valid_split(pa.array(ids, pa.large_string()), fraction).tolist() == expected
    assert is_valid_split(pa.chunked_array([ids], pa.string()), fraction).tolist() == expected


def test_the_threshold_is_exact_at_the_very_document_it_cuts() -> None:
    """A fraction that equals a document's own place leaves it in train; one step more takes it."""
    place = int.from_bytes(hashlib.sha256(b"edge").digest()[:8], "big")
    with localcontext(prec=100):  # 64 binary places take 64 decimal ones
        exact, above = Decimal(place) / 2**64, Decimal(place + 1) / 2**64
    assert Fraction(exact) == Fraction(place, 2**64)
    assert split(["edge"], str(exact)) == [False]
    assert split(["edge"], str(above)) == [True]


def test_nothing_is_held_out_at_zero_and_nearly_all_just_below_one() -> None:
    assert not any(split(IDS, "0"))
    assert not any(split(IDS, "1e-25"))
    assert all(split(IDS, "0." + "9" * 30))


@pytest.mark.parametrize("fraction", ["0.001", "0.01", "0.1", "0.5", "0.9"])
def test_the_share_that_is_held_out_is_the_fraction_within_chance(fraction: str) -> None:
    share = float(fraction)
    spread = math.sqrt(len(IDS) * share * (1 - share))
    assert abs(sum(split(IDS, fraction)) - len(IDS) * share) < 4 * spread


def test_a_larger_fraction_only_adds_to_what_is_held_out() -> None:
    smaller, larger = split(IDS, "0.05"), split(IDS, "0.06")
    assert all(after for before, after in zip(smaller, larger, strict=True) if before)
    assert sum(larger) > sum(smaller)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.text("abcdef", max_size=6), max_size=10), st.lists(st.text("abcdef", max_size=6), max_size=10)
)
def test_documents_that_are_added_move_none_to_the_other_side(before: list[str], more: list[str]) -> None:
    grown = split([*more, *before], "0.3")
    assert grown[len(more) :] == split(before, "0.3")


def test_equal_ids_are_on_the_same_side() -> None:
    labels = split(["a", "b", "a", "c", "a"], "0.5")
    assert labels[0] == labels[2] == labels[4]


def test_a_column_without_rows_has_no_labels() -> None:
    assert split([], "0.5") == []
    assert is_valid_split(pa.chunked_array([], pa.string()), Decimal("0.5")).tolist() == []

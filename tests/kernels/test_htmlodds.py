"""Odds of words."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.kernels.htmlodds import odds_table


@settings(deadline=None, max_examples=50)
@given(
    st.dictionaries(st.integers(1, 2**64 - 1), st.integers(-99, 99), max_size=600), st.integers(1, 2**64 - 1)
)
def test_odds_are_found_by_their_hash(odds: dict[int, int], other: int) -> None:
    table = odds_table(odds)
    pairs = dict(zip(table.hashes.tolist(), table.values.tolist(), strict=True))
    assert {value: pairs[value] for value in odds} == odds
    assert other in odds or pairs.get(other, 0) == 0
    assert len(table.hashes) >= 2 * len(odds)

"""How good a score is, recounted pair by pair and document by document."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokmill.errors import InputError
from tokmill.scores.evaluation import area_under_curve, at_thresholds, calibration, kept_by_group

BOTH = st.lists(
    st.tuples(st.integers(0, 20).map(lambda n: n / 20), st.booleans()), min_size=2, max_size=60
).filter(lambda rows: 0 < sum(is_positive for _, is_positive in rows) < len(rows))


def arrays(rows: list[tuple[float, bool]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([score for score, _ in rows]), np.array([is_positive for _, is_positive in rows])


@given(BOTH)
def test_the_area_is_the_share_of_pairs_in_the_right_order(rows: list[tuple[float, bool]]) -> None:
    up, down = ([score for score, is_positive in rows if is_positive is side] for side in (True, False))
    won = sum(Fraction(1 if a > b else 0) + Fraction(int(a == b), 2) for a in up for b in down)
    assert area_under_curve(*arrays(rows)) == float(won / (len(up) * len(down)))


@given(BOTH, st.lists(st.integers(-1, 21).map(lambda n: n / 20), max_size=4))
def test_precision_and_recall_are_recounted(rows: list[tuple[float, bool]], thresholds: list[float]) -> None:
    positives = sum(is_positive for _, is_positive in rows)
    for row in at_thresholds(*arrays(rows), thresholds):
        kept = [is_positive for score, is_positive in rows if score >= row.threshold]
        assert (row.kept, row.share) == (len(kept), len(kept) / len(rows))
        assert row.precision == (sum(kept) / len(kept) if kept else None)
        assert row.recall == sum(kept) / positives
        if row.precision and row.recall:
            assert row.f1 == pytest.approx(2 / (1 / row.precision + 1 / row.recall))
        else:
            assert row.f1 == 0


@given(BOTH)
def test_calibration_is_recounted(rows: list[tuple[float, bool]]) -> None:
    found = calibration(*arrays(rows))
    off = 0.0
    for number, tenth in enumerate(found.tenths):
        inside = [(s, p) for s, p in rows if tenth.low <= s < tenth.high or (number == 9 and s == 1)]
        assert tenth.documents == len(inside)
        if inside:
            said, so = (sum(pair[side] for pair in inside) / len(inside) for side in (0, 1))
            assert tenth.mean_score == pytest.approx(said)
            assert tenth.positive_share == so
            off += abs(said - so) * len(inside) / len(rows)
    assert found.error == pytest.approx(off)
    assert sum(tenth.documents for tenth in found.tenths) == len(rows)


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["web", "code", "é"])), min_size=1))
def test_what_a_threshold_keeps_of_each_group_is_recounted(rows: list[tuple[int, str]]) -> None:
    found = kept_by_group(np.array([score for score, _ in rows]), [group for _, group in rows], [0, 5, 99])
    assert sorted(found) == sorted({group for _, group in rows})
    for group, shares in found.items():
        own = [score for score, of in rows if of == group]
        assert shares == [sum(score >= bound for score in own) / len(own) for bound in (0, 5, 99)]


def test_documents_of_one_kind_are_told() -> None:
    with pytest.raises(InputError, match="3 of 3 documents are positive"):
        area_under_curve(np.ones(3), np.ones(3, np.bool_))

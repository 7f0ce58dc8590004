"""Logarithms against decimals of forty digits, and bits that must be the same everywhere."""

from __future__ import annotations

import hashlib
import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokmill.scores.logarithm import exp, log


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_it_is_the_logarithm_to_two_units_of_the_last_place(value: float) -> None:
    with localcontext() as context:
        context.prec = 40
        exact = Decimal(value).ln()
        off = abs(Decimal(float(log(np.array([value]))[0])) - exact)
    assert off <= 2 * Decimal(math.ulp(float(exact)))


def test_the_bits_are_the_same_on_every_machine() -> None:
    found = log(np.arange(1, 20_001) / 7.0)
    assert hashlib.sha256(found.astype("<f8").tobytes()).hexdigest() == GOLDEN


@given(st.floats(min_value=-690, max_value=690))
def test_powers_are_right_to_three_units_of_the_last_place(value: float) -> None:
    with localcontext() as context:
        context.prec = 40
        exact = Decimal(value).exp()
        off = abs(Decimal(float(exp(np.array([value]))[0])) - exact)
    assert off <= 3 * Decimal(math.ulp(float(exact)))


def test_powers_beyond_what_there_is_are_finite_and_the_bits_are_the_same_on_every_machine() -> None:
    assert np.isfinite(exp(np.array([-1e9, 1e9]))).all()
    found = exp(np.arange(-10_000, 10_001) / 200)
    assert hashlib.sha256(found.astype("<f8").tobytes()).hexdigest() == GOLDEN_POWERS


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_what_has_no_logarithm_is_refused(value: float) -> None:
    with pytest.raises(ValueError):
        log(np.array([value]))


GOLDEN_POWERS = "4265d59be34bbf436ac8e046c2f74d264ee10ccdfa5d68957bad0a588b9529c5"
GOLDEN = "b6316f2d5fabd971eb859dda2fdc60820adedd89eceba27e0ae68ceadebd7792"

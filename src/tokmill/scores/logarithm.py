"""Natural logarithms, and powers of e, with the same bits on every machine.

    x = m * 2^e,  m from sqrt(1/2) to sqrt(2)          frexp: exact
    s = (m - 1) / (m + 1)
    log x = e * log 2 + 2 (s + s^3/3 + s^5/5 + …)      the odd powers up to 23

libm's differ in the last bit, between systems and between versions. IEEE 754 rounds +, -, * and / of two
numbers in one way, and here each of them is a call of its own that NumPy cannot join into another. The error
is below 2 units of the last place.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_ROOT = 0.7071067811865476  # of a half: which side of it a number falls on changes no digit that counts
_HIGH, _LOW = 0.693147180369123816490, 1.90821492927058770002e-10  # of log 2; e * _HIGH is exact
_POWERS = 23
_TERMS = 18  # of exp, of at most half of log 2
LN10 = 2.302585092994046


def log(values: Floats) -> Floats:
    """Of positive, finite numbers."""
    if not (np.isfinite(values) & (values > 0)).all():
        raise ValueError("a logarithm of a number that has none")
    mantissa, exponent = np.frexp(values)
    is_small = mantissa < _ROOT
    mantissa = np.where(is_small, mantissa * 2.0, mantissa)
    power = (exponent - is_small).astype(np.float64)
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    square = ratio * ratio
    series = np.full_like(ratio, 1.0 / _POWERS)
    for odd in range(_POWERS - 2, 1, -2):
        series = series * square
        series = series + 1.0 / odd
    # ratio itself is added last, and twice of everything is exact
    series = series * square
    series = series * ratio
    rest = power * _LOW
    rest = rest + 2.0 * series
    rest = rest + 2.0 * ratio
    return power * _HIGH + rest


def exp(values: Floats) -> Floats:
    """Likewise, to two units or so of the last place. Beyond -700 and 700, as there."""
    values = np.clip(values, -700.0, 700.0)
    power = np.rint(values / (_HIGH + _LOW))
    rest = values - power * _HIGH
    rest = rest - power * _LOW
    series = np.ones_like(rest)
    for number in range(_TERMS, 0, -1):
        series = series * rest
        series = series / number
        series = series + 1.0
    return np.ldexp(series, power.astype(np.int64))

"""Gumbel noise beside NumPy's logarithms, and as a way to draw."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from tokmill.kernels.chances import gumbel_of


def test_noise_is_minus_the_logarithm_of_minus_the_logarithm_of_a_uniform_number() -> None:
    hashes = np.arange(1, 20_001, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    found = gumbel_of(hashes)
    uniform = ((hashes >> np.uint64(12)) + 0.5) * 2.0**-52
    assert np.abs(found + np.log(-np.log(uniform))).max() < 1e-12
    assert found.mean() == pytest.approx(0.5772, abs=0.02)  # Euler's constant
    assert np.isfinite(gumbel_of(np.array([0, 1, (1 << 64) - 1], np.uint64))).all()


def test_the_largest_of_logarithms_of_weights_with_noise_is_drawn_in_proportion_to_the_weights() -> None:
    weights = np.log(np.array([1.0, 2.0, 5.0]))
    states = b"".join(hashlib.sha256(str(seed).encode()).digest()[:24] for seed in range(20_000))
    hashes = np.frombuffer(states, np.uint64)
    firsts = np.bincount((weights + gumbel_of(hashes).reshape(-1, 3)).argmax(axis=1))
    assert firsts / firsts.sum() == pytest.approx([1 / 8, 2 / 8, 5 / 8], abs=0.012)

"""From sums of whole numbers to a chance: the same bits on every machine.

    sums / (features x 2^shift) ─> logits, float64 ─┬─ softmax      exp(x - largest), over the sum of all
                                                    ├─ sigmoid      of one number, or by fastText's table
                                                    └─ tree         product along the path of a leaf
    hidden . outputs ─> logits                        where there are more outputs than dimensions

The exponential is made of multiplications and additions that every CPU rounds alike. Those of C libraries,
and NumPy's, which has one for each kind of CPU, differ in their last bits.

What fastText tells of a label is its chance and 1e-5: it adds that before it takes a logarithm. Of a tree, to
the chance at every node.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import Int, frozen, raw_kernel, raw_step

U64 = np.uint64
Reals = NDArray[np.float64]

ADDED = 1e-5
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 0.6931471803691238, 1.9082149292705877e-10
_LARGEST = 700.0
_HALF_ROOT = 0.7071067811865476
# 1/n!: to the 13th power, below 0.35, the rest is less than 2^-60
_TERMS = tuple(1.0 / math.factorial(n) for n in range(14))[::-1]
# fastText looks a sigmoid up: 512 steps from -8 to 8
TABLE_STEPS, TABLE_END = 512, 8.0


def logits_of(sums: NDArray[np.int64], features: NDArray[np.int64], shift: int) -> Reals:
    """The means of what features add; 0 of none."""
    count = np.maximum(features, 1).astype(np.float64) * 2.0**shift
    found: Reals = sums.astype(np.float64) / count[:, None]
    return found


def dot_outputs(hidden: Reals, outputs: NDArray[np.float32]) -> Reals:
    """[row, output], each summed in the order of the dimensions. BLAS sums in an order of its own."""
    found = np.zeros((hidden.shape[0], outputs.shape[0]))
    _dot(frozen(hidden, np.float64), frozen(outputs, np.float32), found)
    return found


def softmax_of(logits: Reals, label: int) -> Reals:
    """Of one label among all."""
    found = np.zeros(len(logits))
    _softmax(frozen(logits, np.float64), label, found)
    return found


def sigmoid_of(logits: Reals) -> Reals:
    found = np.zeros(len(logits))
    _sigmoid(frozen(logits, np.float64), found)
    return found


def table_sigmoid_of(logits: Reals) -> Reals:
    """By the table of fastText, in whose steps scores of ns and ova come: a step is found in float32."""
    end = np.float32(TABLE_END)
    logits = np.clip(logits, -2 * TABLE_END, 2 * TABLE_END).astype(np.float32)
    at = np.clip((logits + end) * np.float32(TABLE_STEPS) / end / np.float32(2), 0, TABLE_STEPS).astype(
        np.int64
    )
    places = np.arange(TABLE_STEPS + 1, dtype=np.float64) * (2 * TABLE_END / TABLE_STEPS) - TABLE_END
    steps = sigmoid_of(np.asarray(places, np.float64))
    return np.where(logits < -TABLE_END, 0.0, np.where(logits > TABLE_END, 1.0, steps[at]))


def path_of(logits: Reals, goes_right: NDArray[np.bool_]) -> Reals:
    """Of a leaf: logits are of the nodes on its path, in order."""
    found = np.ones(len(logits))
    for node, is_right in enumerate(goes_right.tolist()):
        right = sigmoid_of(np.ascontiguousarray(logits[:, node]))
        found *= (right if is_right else 1.0 - right) + ADDED
    return found


@raw_step
def exponential(x: float) -> float:
    """Of a number that is not far from 0: within 1e-16 of its size."""
    x = min(max(x, -_LARGEST), _LARGEST)
    power = math.floor(x * _LOG2_E + 0.5)
    rest = (x - power * _LN2_HIGH) - power * _LN2_LOW
    total = 0.0
    for term in _TERMS:
        total = total * rest + term
    return math.ldexp(total, int(power))


@raw_step
def logarithm(x: float) -> float:
    """Of a number above zero."""
    part, power = math.frexp(x)
    if part < _HALF_ROOT:
        part, power = part * 2.0, power - 1
    ratio = (part - 1.0) / (part + 1.0)
    square = ratio * ratio
    total = 0.0
    for n in range(12, -1, -1):
        total = total * square + 1.0 / (2 * n + 1)
    return (power * _LN2_LOW + 2.0 * ratio * total) + power * _LN2_HIGH


def gumbel_of(hashes: NDArray[np.uint64]) -> Reals:
    """Noise of Gumbel's distribution, from hashes that are spread evenly."""
    found = np.zeros(len(hashes))
    _gumbel(frozen(hashes, np.uint64), found)
    return found


@raw_kernel(lambda: gumbel_of(np.zeros(1, np.uint64)))
def _gumbel(hashes: NDArray[np.uint64], found: Reals) -> None:
    for row in range(hashes.size):
        uniform = (np.float64(hashes[row] >> U64(12)) + 0.5) * 2.0**-52
        found[row] = -logarithm(-logarithm(uniform))


@raw_kernel(lambda: softmax_of(np.zeros((1, 1)), 0))
def _softmax(logits: Reals, label: Int, found: Reals) -> None:
    for row in range(logits.shape[0]):
        largest = logits[row, 0]
        for k in range(1, logits.shape[1]):
            largest = max(largest, logits[row, k])
        total = 0.0
        for k in range(logits.shape[1]):
            total += exponential(logits[row, k] - largest)
        found[row] = exponential(logits[row, label] - largest) / total


@raw_kernel(lambda: sigmoid_of(np.zeros(1)))
def _sigmoid(logits: Reals, found: Reals) -> None:
    for row in range(logits.size):
        found[row] = 1.0 / (1.0 + exponential(-logits[row]))


@raw_kernel(lambda: dot_outputs(np.zeros((1, 1)), np.zeros((1, 1), np.float32)))
def _dot(hidden: Reals, outputs: NDArray[np.float32], found: Reals) -> None:
    for row in range(hidden.shape[0]):
        for k in range(outputs.shape[0]):
            total = 0.0
            for d in range(hidden.shape[1]):
                total += hidden[row, d] * np.float64(outputs[k, d])
            found[row, k] = total


def project(rows: NDArray[np.float32], outputs: NDArray[np.float32]) -> Reals:
    """What each row adds to each output: `dot_outputs` of float32."""
    return dot_outputs(rows.astype(np.float64), outputs)

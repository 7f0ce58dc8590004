"""Scores of ns and ova at the seams of fastText's table.

    logit  ... | step 255 | step 256 | step 257 | ...      0.031 wide; a chance jumps by up to 1/128 at a seam

fastText looks a sigmoid up, so on which side of a seam its float falls decides the third digit of a chance.
Sums of whole numbers are closer to the truth than its floats, and of 100,000 real chances 18 fell on the
other side. A text whose logit is near a seam is added up once more as fastText does it, in float32 and in its
order: one in 300 of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.chances import TABLE_END, TABLE_STEPS
from tokmill.kernels.fasttext_rows import add_in_order, dot_in_order, feature_rows
from tokmill.scores.fasttextfile import FastTextModel

# What floats may be off by: of 8,000 features 3e-6 at the middle of texts, of 40,000 up to 1e-4 was seen.
_NEAR, _NEAR_BY_FEATURE = 2e-5, 4e-9
_MAX_BYTES = 1 << 20  # of a text: rows of its features are held in memory
_ROWS = 4096  # of the model, at a time

Reals = NDArray[np.float64]


def settle_seams(
    logits: Reals,
    features: NDArray[np.int64],
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    model: FastTextModel,
    output: int,
) -> Reals:
    """Logits of one output: those near a seam as fastText has them."""
    width = 2 * TABLE_END / TABLE_STEPS
    places = (logits + TABLE_END) / width
    reach = _NEAR + features * _NEAR_BY_FEATURE
    near = np.abs(places - np.rint(places)) * width <= reach
    near &= (np.abs(logits) <= TABLE_END + reach) & (np.diff(offsets) <= _MAX_BYTES)
    settled = logits.copy()
    for row in np.flatnonzero(near).tolist():
        settled[row] = _logit(data[offsets[row] : offsets[row + 1]], model, output, logits[row])
    return settled


def _logit(line: NDArray[np.uint8], model: FastTextModel, output: int, of_none: float) -> float:
    features = feature_rows(line, model.vocabulary)
    if not len(features):
        return of_none
    hidden = np.zeros(model.dimension, np.float32)
    for first in range(0, len(features), _ROWS):
        add_in_order(hidden, model.inputs.load(features[first : first + _ROWS]))
    hidden *= np.float32(1.0 / len(features))
    one = slice(output, output + 1)  # a norm is multiplied after the sum
    return float(dot_in_order(hidden, model.outputs.units(one)[0]) * model.outputs.norms(one)[0])

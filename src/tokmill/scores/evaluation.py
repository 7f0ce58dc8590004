"""How good a score is, from scores and labels of documents that it was not trained on.

    area_under_curve   share of pairs, one positive and one not, that are in the right order; half of the ties
    at_thresholds      kept, precision, recall and F1 of `score >= threshold`
    calibration        tenths of the scores: what was said, and what was so
    kept_by_group      the share of each group (a domain, a source) that a threshold keeps

Counts are whole numbers and every ratio is taken once, at the end: shards may come in any order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import InputError

Scores = NDArray[Any]
Positive = NDArray[np.bool_]


class Threshold(NamedTuple):
    threshold: float
    kept: int
    share: float  # kept, of all
    precision: float | None  # None: nothing is kept
    recall: float
    f1: float


class Tenth(NamedTuple):
    low: float
    high: float
    documents: int
    mean_score: float | None  # None: no document
    positive_share: float | None


class Calibration(NamedTuple):
    tenths: list[Tenth]
    error: float  # mean distance of what was said from what was so, by documents


def area_under_curve(scores: Scores, is_positive: Positive) -> float:
    """Exact: pairs are counted."""
    positives, negatives = _both_sides(scores, is_positive)
    values, places = np.unique(scores, return_inverse=True)
    up = np.bincount(places[is_positive], minlength=len(values))
    down = np.bincount(places[~is_positive], minlength=len(values))
    below = np.cumsum(down) - down
    # in Python's numbers: 2^31 documents on either side have more pairs than 64 bits
    twice = int((up * below).sum(dtype=object)) * 2 + int((up * down).sum(dtype=object))
    return twice / (2 * positives * negatives)


def at_thresholds(scores: Scores, is_positive: Positive, thresholds: Sequence[float]) -> list[Threshold]:
    positives, _ = _both_sides(scores, is_positive)
    of_positives, of_all = np.sort(scores[is_positive]), np.sort(scores)
    rows = []
    for threshold in thresholds:
        right = positives - int(np.searchsorted(of_positives, threshold))
        kept = len(scores) - int(np.searchsorted(of_all, threshold))
        precision = right / kept if kept else None
        f1 = 2 * right / (kept + positives)
        rows.append(Threshold(threshold, kept, kept / len(scores), precision, right / positives, f1))
    return rows


def calibration(scores: Scores, is_positive: Positive) -> Calibration:
    """Of probabilities. A tenth has its lower end, and the last one both."""
    _both_sides(scores, is_positive)
    edges = np.arange(11) / 10
    tenth = np.minimum(np.searchsorted(edges, scores, side="right") - 1, 9)
    rows, off = [], 0.0
    for number in range(10):
        inside = scores[tenth == number]
        positive = int((is_positive & (tenth == number)).sum())
        low, high = float(edges[number]), float(edges[number + 1])
        if len(inside):
            mean, share = math.fsum(inside.tolist()) / len(inside), positive / len(inside)
            off += abs(mean - share) * len(inside)
            rows.append(Tenth(low, high, len(inside), mean, share))
        else:
            rows.append(Tenth(low, high, 0, None, None))
    return Calibration(rows, off / len(scores))


def kept_by_group(
    scores: Scores, groups: Sequence[str], thresholds: Sequence[float]
) -> dict[str, list[float]]:
    """The share of each group's documents with `score >= threshold`, for each threshold."""
    names, places = np.unique(np.asarray(groups, object).astype(str), return_inverse=True)
    shares = {}
    for number, name in enumerate(names.tolist()):
        of_group = np.sort(scores[places == number])
        kept = len(of_group) - np.searchsorted(of_group, np.asarray(thresholds, np.float64))
        shares[name] = [int(one) / len(of_group) for one in kept]
    return shares


def _both_sides(scores: Scores, is_positive: Positive) -> tuple[int, int]:
    if scores.shape != is_positive.shape or scores.ndim != 1:
        raise ValueError(f"{scores.shape} scores and {is_positive.shape} labels")
    positives = int(is_positive.sum())
    if not positives or positives == len(scores):
        raise InputError(
            f"{positives:,} of {len(scores):,} documents are positive: there is nothing to compare",
            where="scores",
            next="evaluate on documents of both kinds",
        )
    return positives, len(scores) - positives

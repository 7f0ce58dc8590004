"""Who comes first: of equal or similar documents, the one that is kept.

    rank = source priority, then the policy's own key, then position (ties are by number everywhere)

    first     position alone
    longest   most characters
    newest    latest created_at, as far as its digits say (2024-05-01T12:00 as 202405011200); without one, last
    best      farthest from being dropped: the least margin over all rules, in shares of their bounds; then longest

A rank is an int64, the least is kept first. Shards are ranked one by one: nothing needs the whole corpus.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tokmill.clean.rules import Rule

Keep = Literal["first", "longest", "newest", "best"]
Ranks = NDArray[np.int64]

# 15 bits for the place in the list of priorities, 48 for the policy's key.
_KEY_BITS = 48
_MAX_KEY = (1 << _KEY_BITS) - 1
_NOT_DIGITS = re.compile(r"\D")
_DATE_DIGITS = 14  # down to the second: below 2^48
_MARGIN_STEPS = 1 << 15
_MAX_CHARS = (1 << 32) - 1


def priority_of(source: str, priorities: Sequence[str]) -> int:
    """Listed sources in their order, then all others alike."""
    return priorities.index(source) if source in priorities else len(priorities)


def rank_documents(
    keep: Keep,
    priority: int,
    chars: NDArray[np.int64],
    *,
    created_at: Any = None,
    measures: Mapping[str, NDArray[Any]] | None = None,
    rules: Sequence[Rule] = (),
) -> Ranks:
    if keep == "first":
        keys = np.zeros(len(chars), np.int64)
    elif keep == "longest":
        keys = _MAX_CHARS - np.minimum(chars, _MAX_CHARS)
    elif keep == "newest":
        keys = _MAX_KEY - np.array([_date_key(date) for date in created_at.to_pylist()], np.int64)
    else:
        keys = _best_keys(chars, measures or {}, rules)
    return (np.int64(priority) << np.int64(_KEY_BITS)) + keys


def _date_key(date: str | None) -> int:
    digits = _NOT_DIGITS.sub("", date or "")[:_DATE_DIGITS]
    return int(digits.ljust(_DATE_DIGITS, "0")) if len(digits) >= 4 else 0


def _best_keys(
    chars: NDArray[np.int64], measures: Mapping[str, NDArray[Any]], rules: Sequence[Rule]
) -> Ranks:
    margin = np.full(len(chars), 1.0)
    for rule in rules:
        if rule.column in measures:
            values = rule.margins(measures[rule.column].astype(np.float64))
            margin = np.minimum(margin, values / max(abs(rule.threshold), 1e-9))
    steps = (np.clip(margin, 0.0, 1.0) * (_MARGIN_STEPS - 1)).astype(np.int64)
    longest = _MAX_CHARS - np.minimum(chars, _MAX_CHARS)
    keys: Ranks = ((_MARGIN_STEPS - 1 - steps) << np.int64(32)) + longest
    return keys

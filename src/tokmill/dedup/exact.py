"""Exact duplicates: equal after NFKC, case folding and collapsing of whitespace.

    texts ─ fold ─ 128-bit hash          in the cleaning pass, into `marks`
    marks of all shards ─ one range of hashes at a time ─ sort ─ first in stable order survives ─> matches

Hash normalization (version 1) is its own: it never touches the text that is trained on. ASCII documents are
folded and hashed in one compiled pass; others go through `unicodedata` first.
"""

from __future__ import annotations

import unicodedata
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tokmill.kernels import hashing
from tokmill.schema import string_column

HASH_NORMALIZATION = "nfkc-casefold-collapse-1"

Column = np.ndarray[Any, Any]


class Matches(NamedTuple):
    """Duplicate and survivor as indices into the rows that were compared."""

    duplicates: Column
    survivors: Column


def exact_hashes(texts: Any, is_ascii: Column) -> Column:
    """uint64 (n, 2); a document without a visible character hashes to (0, 0)."""
    column = string_column(texts)
    hashes = hashing.fold_hashes(column.data, column.offsets)
    rows = np.flatnonzero(~is_ascii)
    if len(rows):
        folded = string_column(
            pa.array([_fold(t) for t in texts.take(pa.array(rows)).to_pylist()], pa.large_string())
        )
        hashes[rows] = hashing.fold_hashes(folded.data, folded.offsets)
    return hashes


def match_equal(high: Column, low: Column, group: Column) -> Matches:
    """Rows with equal (group, high, low): each one after the first, and that first. Rows come in stable order."""
    order = np.lexsort((np.arange(len(high)), low, high, group))
    same = np.zeros(len(order), np.bool_)
    if len(order) > 1:
        before, after = order[:-1], order[1:]
        same[1:] = (
            (high[before] == high[after]) & (low[before] == low[after]) & (group[before] == group[after])
        )
    first = np.maximum.accumulate(np.where(same, 0, np.arange(len(order))))
    return Matches(order[same], order[first[same]])


def partition_of(high: Column, partitions: int) -> Column:
    """Equal ranges of the 64-bit hash space, in integer arithmetic: the top 32 bits scaled to the count."""
    return ((high >> np.uint64(32)) * np.uint64(partitions)) >> np.uint64(32)


def _fold(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).casefold()
    return unicodedata.normalize("NFKC", folded)

"""Exact duplicates: equal after NFKC, case folding and collapsing of whitespace.

    texts ─ fold ─ 128-bit hash          in the cleaning pass, into `marks`
    marks of all shards ─ one range of hashes at a time ─ sort ─ first in stable order survives ─> matches

Hash normalization (version 1) is its own: it never touches the text that is trained on. ASCII documents are
folded and hashed in one compiled pass, others in two; only text whose marks compose needs `unicodedata`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tokmill.kernels import folding, hashing
from tokmill.kernels.wordclasses import fold, fold_table
from tokmill.schema import string_column

HASH_NORMALIZATION = "nfkc-casefold-collapse-1"

# Documents folded at a time: bounds the copy of their bytes.
_BATCH_ROWS = 1024

Column = np.ndarray[Any, Any]


class Matches(NamedTuple):
    """Duplicate and survivor as indices into the rows that were compared."""

    duplicates: Column
    survivors: Column


def exact_hashes(texts: Any, is_ascii: Column, is_wanted: Column | None = None) -> Column:
    """uint64 (n, 2); (0, 0) for a document without a visible character, and for one that is not wanted."""
    column = string_column(texts)
    wanted = np.ones(len(is_ascii), np.bool_) if is_wanted is None else is_wanted
    hashes = hashing.fold_hashes(column.data, column.offsets, wanted & is_ascii)
    wide = np.flatnonzero(wanted & ~is_ascii)
    for start in range(0, len(wide), _BATCH_ROWS):
        rows = wide[start : start + _BATCH_ROWS]
        chosen = string_column(texts.take(pa.array(rows)))
        folded = folding.fold_rows(chosen.data, chosen.offsets, fold_table())
        hashes[rows] = hashing.fold_hashes(folded.data, folded.offsets)
        _hash_slowly(texts, rows[~folded.is_exact], hashes)
    return hashes


def _hash_slowly(texts: Any, rows: Column, hashes: Column) -> None:
    """Rows in which marks compose or change places: through `unicodedata`, one by one."""
    if len(rows):
        folded = string_column(
            pa.array([fold(text) for text in texts.take(pa.array(rows)).to_pylist()], pa.large_string())
        )
        hashes[rows] = hashing.fold_hashes(folded.data, folded.offsets)


def match_equal(high: Column, low: Column, group: Column, ranks: Column | None = None) -> Matches:
    """Rows with equal (group, high, low): each one after the first, and that first. Rows come in stable order;
    `ranks` go before it, the least first."""
    ranks = np.zeros(len(high), np.int64) if ranks is None else ranks
    order = np.lexsort((np.arange(len(high)), ranks, low, high, group))
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

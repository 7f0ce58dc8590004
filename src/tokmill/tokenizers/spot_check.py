"""A sample of every shard, encoded by the reference too.

    which    documents that spell a control token     all of them: where a tokenizer is most likely to be wrong
             a sample by hash of doc_id               a share that keeps the reference below 15 % of the encoding
             the one with the least hash              so that no shard goes unchecked

The choice depends on ids and texts alone, not on the engine: the same documents are counted wherever it runs.

A fault that touches a share f of the documents passes a shard of n documents with a sample of share s unseen with
probability (1 - s)^(f n): at s = 1/256, one in a thousand of 1.8 million documents is missed once in a thousand runs.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels import sha256
from tokmill.kernels.literals import LiteralTable, find_literals
from tokmill.schema import string_column
from tokmill.tokenizers.fast import starts
from tokmill.tokenizers.protocol import Encoded

# One document in so many: the speed of gigatoken over that of the reference, divided by 0.15 and then some.
_ONE_IN: Final = {"tiktoken": 256, "huggingface": 2048, "sentencepiece": 256}

# A longer document is not drawn. References need minutes for a word of a hundred megabytes.
_MAX_BYTES: Final = 1 << 20


class Difference(NamedTuple):
    row: int
    position: int  # of the first id that differs, or that one of them lacks
    found: int | None
    expected: int | None


def rows_to_check(doc_ids: Any, texts: Any, kind: str, literals: LiteralTable) -> NDArray[np.int64]:
    """Ascending."""
    column, names = string_column(texts), string_column(doc_ids)
    chosen = np.zeros(len(column.offsets) - 1, np.bool_)
    chosen[find_literals(column.data, column.offsets, literals).rows] = True
    drawable = np.flatnonzero(np.diff(column.offsets) <= _MAX_BYTES)
    if len(drawable):
        draws = _scrambled(sha256.sha256_prefixes(names.data, names.offsets)[drawable])
        chosen[drawable[draws < np.uint64((1 << 64) // _ONE_IN[kind])]] = True
        chosen[drawable[int(draws.argmin())]] = True
    return np.flatnonzero(chosen)


def first_difference(encoded: Encoded, rows: NDArray[np.int64], expected: Encoded) -> Difference | None:
    """Between the sequences `rows` of `encoded` and those of the reference, one for each of them."""
    offsets, others = starts(encoded.lengths), starts(expected.lengths)
    for number, row in enumerate(rows.tolist()):
        found = encoded.ids[offsets[row] : offsets[row + 1]]
        wanted = expected.ids[others[number] : others[number + 1]]
        if not np.array_equal(found, wanted):
            shorter = min(len(found), len(wanted))
            differing = np.flatnonzero(found[:shorter] != wanted[:shorter])
            at = int(differing[0]) if len(differing) else shorter
            return Difference(row, at, _at(found, at), _at(wanted, at))
    return None


def _at(ids: NDArray[np.int32], position: int) -> int | None:
    return int(ids[position]) if position < len(ids) else None


def _scrambled(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Another number from the same hash (splitmix64): splits go by the hash itself, low ones are held out."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))

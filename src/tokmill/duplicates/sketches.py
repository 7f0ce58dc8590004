"""Sketches: what an index keeps of a text, so that it can be recognized without its text.

    texts ─ word n-grams, digits as written ─ MinHash of 512 positions ─┬─ one bit of each ─> 64 bytes
                                                                        └─ bands ─> keys, to be found by

Two texts of Jaccard similarity J agree at a position with probability J, and otherwise in one bit by chance:
a share p = J + (1 - J) / 2 of the bits agrees, and

    J^ = 2 p^ - 1           standard error  2 sqrt(p (1 - p) / 512)        0.027 at J = 0.8

("b-bit minwise hashing", Li and König 2010: of so many bytes, one bit of many positions tells more about
similar texts than many bits of few: 64 positions of eight bits would have an error of 0.05.)

Digits count as they are written, as in the exact comparison of near duplicates: the estimate is one of the
number that comparison measures, and tables of other figures are other texts here too.

Keys are made from all bits of the positions of a band. Bands are few and short: what they find too much costs
a look at 64 bytes, and every band is 8 bytes of the index.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.duplicates.shingling import Shingle, unit_batches
from tokmill.kernels import minhash, wordclasses
from tokmill.kernels.minhash import band_keys
from tokmill.kernels.sketches import Bits, Rows, differing_bits

# Grows when the same text may get another sketch; the Unicode version grows by itself.
SKETCH_NORMALIZATION = f"nfkc-casefold-words-sketch-1 ({wordclasses.VERSION})"

POSITIONS = 512
WORDS = POSITIONS // 64

# What the bands must find of the texts right at the threshold. 8 bands of 5 rows find 96 % at 0.8, 99.9 % at
# 0.9; 14 of 8, which is what near duplicates within a run are found by, 92 %, and take 112 bytes, not 64.
MIN_FOUND = 0.95
_BANDS = 8
# Of fewer rows, every other text has a band in common with what is boilerplate.
_MIN_ROWS, _MAX_ROWS = 4, 32

# Standard errors below the threshold down to which texts are compared, where there are texts:
# one in 30,000 of those at the threshold lies lower.
SIGMAS = 4.0

Keys = NDArray[np.uint64]


class SketchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """All that a sketch and its keys depend on besides the text."""

    threshold: Decimal  # the least similarity that bands were chosen for
    unit: Shingle
    ngram: int
    bands: int
    rows: int
    normalization: str

    @property
    def error(self) -> float:
        """The standard error of an estimate at the threshold."""
        return standard_error(float(self.threshold))


class Sketches(NamedTuple):
    bits: Bits  # documents x WORDS
    keys: Keys  # documents x bands; 0: the text has no words, and is never found


def sketch_options(threshold: Decimal, unit: Shingle, ngram: int) -> SketchOptions:
    bands, rows = choose_few_bands(float(threshold))
    return SketchOptions(
        threshold=threshold,
        unit=unit,
        ngram=ngram,
        bands=bands,
        rows=rows,
        normalization=SKETCH_NORMALIZATION,
    )


def choose_few_bands(threshold: float) -> tuple[int, int]:
    """The most rows of which eight bands are enough; where those would be too few rows, more bands."""
    rows = _MAX_ROWS
    while rows > _MIN_ROWS and _bands_for(threshold, rows) > _BANDS:
        rows -= 1
    while rows > 1 and _bands_for(threshold, rows) * rows > POSITIONS:
        rows -= 1
    return min(_bands_for(threshold, rows), POSITIONS // rows), rows


def _bands_for(threshold: float, rows: int) -> int:
    """How many bands of so many rows find enough."""
    found = threshold**rows
    return max(math.ceil(math.log(1.0 - MIN_FOUND) / math.log1p(-found)), 1) if found < 1 else 1


def sketch(texts: Any, options: SketchOptions) -> Sketches:
    found = Sketches(
        np.zeros((len(texts), WORDS), np.uint64), np.zeros((len(texts), options.bands), np.uint64)
    )
    for start, part in unit_batches(texts, options.unit, keep_digits=True):
        values = minhash.sketch(part.units, part.offsets, options.ngram, POSITIONS).values
        stop = start + len(values)
        found.keys[start:stop] = band_keys(values, options.bands, options.rows)
        # the lowest bit is no bit of the hash
        is_set = (values >> np.uint32(1)) & np.uint32(1)
        packed = np.packbits(is_set.astype(np.bool_), axis=1, bitorder="little")
        found.bits[start:stop] = packed.view("<u8")
    return found


def estimate_similarity(one: Bits, left: Rows, other: Bits, right: Rows) -> NDArray[np.float64]:
    """Of each pair of rows. Unlike texts may come out below 0."""
    similarity: NDArray[np.float64] = 1.0 - 2.0 * differing_bits(one, left, other, right) / POSITIONS
    return similarity


def standard_error(similarity: float) -> float:
    agreeing = (1.0 + similarity) / 2.0
    return 2.0 * math.sqrt(agreeing * (1.0 - agreeing) / POSITIONS)

"""Which documents are held out: decided by identity, never by order or chance.

    valid  <=>  uint64(sha256(doc_id)[:8]) < floor(valid_fraction * 2^64)

The fraction is the decimal of the recipe, exact; growing a corpus never moves a document to the other side.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from tokmill.kernels import sha256
from tokmill.schema import string_column


def is_valid_split(doc_ids: Any, valid_fraction: Decimal) -> np.ndarray[Any, np.dtype[np.bool_]]:
    column = string_column(doc_ids)
    threshold = int(Fraction(valid_fraction) * (1 << 64))
    return sha256.sha256_prefixes(column.data, column.offsets) < np.uint64(threshold)

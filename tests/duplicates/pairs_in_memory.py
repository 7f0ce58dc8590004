"""All candidate pairs at once, for corpora that fit in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from tokmill.duplicates.near import Pairs, read_pairs


def all_pairs(keys: Any, docs: Any, digests: Any = None, ranks: Any = None, **limits: int) -> Pairs:
    """Without digests all fingerprints are different;
    without ranks a document comes before another by its number."""
    found = read_pairs(
        keys,
        docs,
        digests=np.arange(len(keys), dtype=np.uint64) if digests is None else digests,
        ranks=docs if ranks is None else ranks,
        **limits,
    )
    return Pairs(*map(np.concatenate, zip(Pairs(docs[:0], docs[:0]), *found, strict=True)))

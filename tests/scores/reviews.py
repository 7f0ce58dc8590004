"""Made documents of two or three kinds, the same on every machine."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa

from tokmill.kernels.ngrams import Shape
from tokmill.schema import StringColumn, string_column
from tokmill.scores.examples import Examples, identity_keys, make_examples

KINDS = (
    "the bean was roasted with care and the water had the right temperature",
    "buy cheap pills now click here free offer limited winner",
    "la théorie des nombres étudie les entiers et leurs propriétés 東京",
)
SHARED = "and a of in to it is that we you . , ! ? ( ) 2026"


def drawn(seed: str, below: int) -> int:
    return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big") % below


def documents(count: int, kinds: int = 2) -> list[dict[str, Any]]:
    rows = []
    for number in range(count):
        label = number % kinds
        own, both = KINDS[label].split(), SHARED.split()
        words = [
            own[drawn(f"{number} {place} own", len(own))]
            if drawn(f"{number} {place}", 4) == 0
            else both[drawn(f"{number} {place} both", len(both))]
            for place in range(5 + drawn(f"{number}", 30))
        ]
        rows.append({"doc_id": f"d{number}", "source": "made", "text": " ".join(words), "label": label})
    return rows


def column(values: list[str]) -> StringColumn:
    return string_column(pa.array(values, pa.large_string()))


def texts_of(rows: list[dict[str, Any]]) -> StringColumn:
    return column([row["text"] for row in rows])


def examples_of(rows: list[dict[str, Any]], shape: Shape, seed: int = 0) -> Examples:
    keys = identity_keys(
        [column([row["source"] for row in rows]), column([row["doc_id"] for row in rows])], seed, "train"
    )
    return make_examples(texts_of(rows), np.array([row["label"] for row in rows], np.int32), keys, shape)

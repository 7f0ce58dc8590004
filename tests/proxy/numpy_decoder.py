"""The decoder again, in NumPy and float64, from the names of its weights alone: the oracle of the tests.

It follows the papers and shares no line with tokmill.proxy: one head at a time, one place at a time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def normed(x: Array, gain: Array) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * gain


def rotated(x: Array, place: int) -> Array:
    """One head of one place: pairs (i, i + half) turn by place / 10000^(2i / size)."""
    half = len(x) // 2
    turned = np.empty_like(x)
    for i in range(half):
        angle = place * 10_000.0 ** (-2 * i / len(x))
        turned[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        turned[i + half] = x[i] * math.sin(angle) + x[i + half] * math.cos(angle)
    return turned


def log_chances(weights: dict[str, Array], head_size: int, ids: list[int], starts: Any = None) -> Array:
    """(T, V): of what follows each place. `starts`: places where a document begins, and the past ends."""
    width = weights["embedding"].shape[1]
    x = weights["embedding"][ids].astype(np.float64)
    begins = [max([s for s in (starts or [0]) if s <= t]) for t in range(len(ids))]
    layer = 0
    while f"blocks.{layer}.qkv.weight" in weights:
        own = {
            name.removeprefix(f"blocks.{layer}."): value.astype(np.float64)
            for name, value in weights.items()
            if name.startswith(f"blocks.{layer}.")
        }
        q, k, v = np.split(normed(x, own["first.gain"]) @ own["qkv.weight"].T, 3, axis=1)
        mixed = np.zeros_like(x)
        for h in range(0, width, head_size):
            part = slice(h, h + head_size)
            queries = [rotated(q[t, part], t) for t in range(len(ids))]
            keys = [rotated(k[t, part], t) for t in range(len(ids))]
            for t in range(len(ids)):
                seen = range(begins[t], t + 1)
                scores = np.array([queries[t] @ keys[s] * 8 / head_size for s in seen])
                shares = np.exp(scores - scores.max())
                shares /= shares.sum()
                mixed[t, part] = sum(share * v[s, part] for share, s in zip(shares, seen, strict=True))
        x = x + mixed @ own["out.weight"].T
        gate, up = np.split(normed(x, own["second.gain"]) @ own["gate_up.weight"].T, 2, axis=1)
        x = x + (gate / (1 + np.exp(-gate)) * up) @ own["down.weight"].T
        layer += 1
    head = weights.get("head", weights["embedding"]).astype(np.float64)
    logits = normed(x, weights["last.gain"].astype(np.float64)) @ head.T / (width / 256)
    highest = logits.max(-1, keepdims=True)
    shifted: Array = logits - highest - np.log(np.exp(logits - highest).sum(-1, keepdims=True))
    return shifted

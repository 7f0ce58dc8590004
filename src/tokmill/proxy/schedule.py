"""How a model is trained: all that its curve depends on besides the build, its order and the device."""

from __future__ import annotations

import math

import msgspec

from tokmill.proxy.shapes import Shape

_WARMUP, _LAST_RATE = 0.05, 0.05


class Schedule(msgspec.Struct, frozen=True):
    shape: Shape
    steps: int
    rows: int  # of a step, as the build has them
    length: int  # tokens of a piece: the length of rows, or a part of it
    rate: float
    decay: float = 0.1
    clip: float = 1.0
    mask: str = "causal"
    is_tied: bool = True

    def rate_at(self, step: int) -> float:
        """Of the base rate, for step 0, 1, …"""
        warm = max(round(_WARMUP * self.steps), 1)
        if step < warm:
            return (step + 1) / warm
        done = (step - warm) / max(self.steps - warm, 1)
        return _LAST_RATE + (1 - _LAST_RATE) * 0.5 * (1 + math.cos(math.pi * done))

"""One batch learnt by heart by the decoder of `tokmill ablate`, for `tokmill check --train`.

    tokens (B, T) ─ renumbered: those that occur ─ one more in front ─ Decoder ─ AdamW ─> loss of every step

The same question as tokmill.loader.tiny asks in NumPy, of a model with the parts that others are trained
with: rotary positions, SwiGLU, fused attention with the mask of the batch. What stands in front lets it
count: rotary positions alone cannot tell the second of two equal tokens at the beginning of a row from the
first.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from tokmill.proxy.learning import deterministic
from tokmill.proxy.model import Decoder
from tokmill.proxy.shapes import Shape
from tokmill.proxy.vocabulary import total_nats
from tokmill.proxy.widths import draw_weights, groups_of

_SHAPE = Shape(96, 2, 32)
_RATE = 0.0015


def overfit(
    tokens: NDArray[np.integer],
    targets: NDArray[np.integer],
    allowed: NDArray[np.bool_],
    *,
    steps: int = 300,
) -> Iterator[float]:
    """The loss of every step on one batch; `allowed` is (B, T, T)."""
    known = np.unique(np.concatenate((tokens.reshape(-1), targets[targets >= 0])))
    rows, length = tokens.shape
    inputs = np.full((rows, length + 1), len(known), np.int64)
    inputs[:, 1:] = np.searchsorted(known, tokens)
    wanted = np.full((rows, length + 1), -1, np.int64)
    wanted[:, 1:] = np.where(targets >= 0, np.searchsorted(known, np.maximum(targets, known[0])), -1)
    seen = np.ones((rows, length + 1, length + 1), bool)
    seen[:, 0, 1:] = False
    seen[:, 1:, 1:] = allowed
    model = Decoder(_SHAPE, len(known) + 1, length + 1)
    draw_weights(model, 0)
    weights = dict(model.named_parameters())
    groups = [
        {"params": [weights[name] for name in group.names], "lr": _RATE * group.rate}
        for group in groups_of(list(weights), _SHAPE)
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99), weight_decay=0)
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    tensors = [torch.from_numpy(array) for array in (inputs, wanted, seen)]
    count = max(int((wanted >= 0).sum()), 1)
    with deterministic("cpu"):
        for step in range(steps):
            for group, first in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = first * (1 - step / steps)  # at one rate it forgets what it had learnt
            places = model(tensors[0], tensors[2])
            loss = total_nats(places, model.head_weights, tensors[1], model.scale, torch.float32) / count
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            yield float(loss.detach())

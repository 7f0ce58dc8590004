"""Cross entropy over a vocabulary, some places at a time: logits of a whole batch are never in memory.

    places (N, width) ─ some of them ── * scale @ head ─ logits ─┬─ nats
                                                                 └─ softmax - one hot ─ @ head ─> d places
                                                                                      └ @ places ─> d head

Gradients are made on the way, while the logits are at hand, so that nothing is computed twice; `backward`
only multiplies them. A batch of 131,072 places and 32,000 ids has 17 GB of logits in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Logits at a time: what the caches of a CPU hold, and what fills a GPU. On a CPU 2^20 of them take a half of
# the time of 2^25.
_LOGITS = {"cpu": 1 << 20, "cuda": 1 << 28}


def _places(head: Any) -> int:
    return max(_LOGITS[head.device.type] // len(head), 1)


def loss_and_gradients(logits: Any, targets: Any) -> tuple[Any, Any]:
    """Nats of all places together, and d nats / d logits: few passes over them, for a CPU."""
    slopes = torch.log_softmax(logits.float(), dim=-1)
    wanted = targets >= 0
    picked = slopes.gather(1, targets.clamp(min=0)[:, None])[:, 0]
    nats = -torch.where(wanted, picked, 0.0).sum()
    slopes.exp_()
    slopes[torch.arange(len(targets), device=targets.device), targets.clamp(min=0)] -= 1
    return nats, slopes.mul_(wanted[:, None]).to(logits.dtype)


def loss_to_compile(logits: Any, targets: Any) -> tuple[Any, Any]:
    """The same by elements alone, which becomes two kernels of a GPU: one hot is a comparison, and nothing is
    written by index, in an order that no one knows."""
    wide = logits.float()
    whole = torch.logsumexp(wide, dim=-1, keepdim=True)
    wanted = (targets >= 0)[:, None]
    is_target = torch.arange(logits.shape[-1], device=logits.device)[None, :] == targets[:, None]
    nats = torch.where(wanted, whole, 0.0).sum() - torch.where(is_target, wide, 0.0).sum()
    slopes = torch.where(wanted, torch.exp(wide - whole) - is_target.float(), 0.0)
    return nats, slopes.to(logits.dtype)


class _VocabularyLoss(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, places: Any, head: Any, targets: Any, scale: float, dtype: Any, act: Any) -> Any:
        cast = head.to(dtype)
        d_places = torch.empty_like(places)
        d_head = torch.zeros_like(head)
        nats = torch.zeros((), dtype=torch.float32, device=places.device)
        count = _places(head)
        for start in range(0, len(places), count):
            some = (places[start : start + count] * scale).to(dtype)
            own, slopes = act(some @ cast.T, targets[start : start + count])
            nats += own
            d_places[start : start + count] = slopes @ cast * scale
            d_head += slopes.T @ some
        ctx.save_for_backward(d_places, d_head)
        return nats

    @staticmethod
    def backward(ctx: Any, slope: Any) -> Any:
        d_places, d_head = ctx.saved_tensors
        return d_places * slope.to(d_places.dtype), d_head * slope, None, None, None, None


def total_nats(
    places: Any,
    head: Any,
    targets: Any,
    scale: float,
    dtype: Any,
    act: Callable[..., tuple[Any, Any]] = loss_and_gradients,
) -> Any:
    """Of all targets that are not negative, to be differentiated. `act` may be compiled."""
    return _VocabularyLoss.apply(
        places.reshape(-1, places.shape[-1]), head, targets.reshape(-1), scale, dtype, act
    )


def nats_of_each(places: Any, head: Any, targets: Any, scale: float) -> Any:
    """(B, T) in fp32: of every target, nothing where it is negative."""
    flat, wanted = places.reshape(-1, places.shape[-1]), targets.reshape(-1)
    nats = torch.empty(len(flat), dtype=torch.float32, device=places.device)
    count = _places(head)
    for start in range(0, len(flat), count):
        logits = (flat[start : start + count] * scale @ head.T).float()
        some = wanted[start : start + count]
        picked = logits.gather(1, some.clamp(min=0)[:, None])[:, 0]
        nats[start : start + count] = torch.where(some >= 0, torch.logsumexp(logits, dim=-1) - picked, 0.0)
    return nats.view(targets.shape)

"""A model and its optimizer: one step from tokens and targets.

    tokens, targets (B, T) ─ micro-batches ─ model ─ vocabulary.py ─ gradients ─ clip ─ AdamW ─> loss

On a GPU products are in bf16 and sums in fp32, layers and loss compiled where Triton is. What is looked up by
ids, the embedding, is not: compiled, its gradient would be added up in any order.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import torch

from tokmill.proxy.model import Decoder
from tokmill.proxy.schedule import Schedule
from tokmill.proxy.shapes import Shape
from tokmill.proxy.vocabulary import loss_and_gradients, loss_to_compile, total_nats
from tokmill.proxy.widths import draw_weights, groups_of

_BETAS, _EPSILON = (0.9, 0.95), 1e-8

# Tokens that go through the model at once: what fits into the caches of a CPU, and fills a GPU.
MICRO_TOKENS = {"cpu": 2048, "cuda": 65_536}


def can_compile(device: str) -> bool:
    """On a GPU, where Triton is: it takes a minute, once for a process."""
    return device == "cuda" and importlib.util.find_spec("triton") is not None


class Learner:
    def __init__(
        self, schedule: Schedule, *, seed: int, vocab_size: int, device: str, is_compiled: bool = False
    ) -> None:
        self.schedule, self.device = schedule, device
        make = _compiled_decoder if is_compiled else _decoder
        self.model = make(schedule.shape, vocab_size, schedule.length, schedule.is_tied, device)
        draw_weights(self.model, seed)
        self.optimizer = _optimizer(self.model, schedule)
        self._dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self._act = _compiled_loss() if is_compiled else loss_and_gradients

    def learn(self, step: int, tokens: Any, targets: Any, allowed: Any, count: int) -> Any:
        """One step of AdamW; `count` targets are not negative. Its loss, still on the device."""
        for group in self.optimizer.param_groups:
            group["lr"] = group["own_rate"] * self.schedule.rate_at(step)
        total = torch.zeros((), device=self.device)
        some = max(MICRO_TOKENS[self.device] // tokens.shape[1], 1)
        for start in range(0, len(tokens), some):
            part = slice(start, start + some)
            nats = self.nats(tokens[part], targets[part], None if allowed is None else allowed[part])
            loss = nats / max(count, 1)
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.schedule.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total

    def nats(self, tokens: Any, targets: Any, allowed: Any = None) -> Any:
        """Of all targets together, to be differentiated."""
        model = self.model
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            places = model(tokens, allowed, self._dtype)
        return total_nats(places, model.head_weights, targets, model.scale, self._dtype, self._act)


def _decoder(shape: Shape, vocab_size: int, length: int, is_tied: bool, device: str) -> Decoder:
    model = Decoder(shape, vocab_size, length, is_tied=is_tied)
    model.to(device)
    return model


@functools.lru_cache(maxsize=1)
def _compiled_decoder(shape: Shape, vocab_size: int, length: int, is_tied: bool, device: str) -> Decoder:
    """The same one for every seed, with other weights: compiling takes longer than many a training."""
    model = _decoder(shape, vocab_size, length, is_tied, device)
    model.layers = torch.compile(model.layers, dynamic=False)  # type: ignore[method-assign]
    return model


@functools.cache
def _compiled_loss() -> Any:
    return torch.compile(loss_to_compile, dynamic=False)


def _optimizer(model: Decoder, schedule: Schedule) -> Any:
    weights = dict(model.named_parameters())
    groups = [
        {
            "params": [weights[name] for name in group.names],
            "own_rate": group.rate * schedule.rate,
            "weight_decay": group.decay * schedule.decay,
        }
        for group in groups_of(list(weights), schedule.shape)
    ]
    return torch.optim.AdamW(groups, lr=schedule.rate, betas=_BETAS, eps=_EPSILON, fused=True)


@contextlib.contextmanager
def deterministic(device: str) -> Iterator[None]:
    """The same result twice, and an error where PyTorch knows no way: on an H200 the attention that it only
    warns of gave two curves. Memory that nobody has written is not filled: nothing here reads it."""
    is_on = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    filled, products = torch.utils.deterministic.fill_uninitialized_memory, torch.backends.cuda.matmul
    reduced = products.allow_bf16_reduced_precision_reduction
    if device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        products.allow_bf16_reduced_precision_reduction = False
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(is_on, warn_only=only_warns)
        torch.utils.deterministic.fill_uninitialized_memory = filled
        products.allow_bf16_reduced_precision_reduction = reduced

"""A decoder: tokens in, for each place what comes next out.

    tokens (B, T) ─ embedding ─ x ─┬─ norm ─ q, k, v ─ rotate q, k ─ attention ─ out ─(+)─┐   layers times
                                   └───────────────────────────────────────────────────┘  │
                   ┌───────────────────────────────────────────────────────────────────────┘
                   └─┬─ norm ─ gate, up ─ silu(gate) * up ─ down ─(+)─> norm ─> (B, T, width)
                     └─────────────────────────────────────────────┘
    logits = that @ head * scale                             vocabulary.py, some places at a time

RMSNorm before every part (Zhang and Sennrich 2019), rotary positions (Su et al. 2021), SwiGLU (Shazeer
2020), no biases; the head is the embedding's own matrix unless asked otherwise. q, k and v are one matrix,
and so are gate and up: fewer, larger products. A place sees itself and those before it, and with `allowed`
only those of its own document.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn

from tokmill.proxy.shapes import Shape
from tokmill.proxy.widths import multiple_of

_EPSILON = 1e-5
_ROTATION_BASE = 10_000.0

# Attention is divided by the size of a head (muP); at 64 this is the usual 1 / sqrt.
_ATTENTION_SCALE = 8.0


class Norm(nn.Module):  # type: ignore[misc]
    """Divided by the root of the mean square."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Any) -> Any:
        return F.rms_norm(x, self.gain.shape, self.gain.to(x.dtype), _EPSILON).to(x.dtype)


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.first, self.second = Norm(shape.width), Norm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.gate_up = nn.Linear(shape.width, 2 * shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Any, turns: Any, allowed: Any) -> Any:
        rows, length, width = x.shape
        qkv = self.qkv(self.first(x)).view(rows, length, 3, self.shape.heads, self.shape.head)
        q, k = _rotated(qkv[:, :, :2], turns).unbind(dim=2)
        mixed = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            qkv[:, :, 2].transpose(1, 2),
            attn_mask=allowed,
            is_causal=allowed is None,
            scale=_ATTENTION_SCALE / self.shape.head,
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        gate, up = self.gate_up(self.second(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Decoder(nn.Module):  # type: ignore[misc]
    """Of `vocab_size` ids in rows of at most `length`."""

    def __init__(self, shape: Shape, vocab_size: int, length: int, *, is_tied: bool = True) -> None:
        super().__init__()
        self.shape, self.vocab_size, self.length = shape, vocab_size, length
        self.embedding = nn.Parameter(torch.empty(vocab_size, shape.width))
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.last = Norm(shape.width)
        self.head = None if is_tied else nn.Parameter(torch.empty(vocab_size, shape.width))
        self.register_buffer("turns", _turns(length, shape.head), persistent=False)

    def forward(self, tokens: Any, allowed: Any = None, dtype: Any = torch.float32) -> Any:
        """`allowed` is (B, T, T), true where a place may look; the stream between layers is of `dtype`."""
        places = self.layers(F.embedding(tokens, self.embedding).to(dtype), allowed)
        assert places.dtype == dtype, "or memory is wasted"
        return places

    def layers(self, x: Any, allowed: Any) -> Any:
        turns = self.turns[: x.shape[1]].to(x.dtype)
        masks = None if allowed is None else allowed[:, None]
        for block in self.blocks:
            x = block(x, turns, masks)
        return self.last(x)

    @property
    def head_weights(self) -> Any:
        return self.embedding if self.head is None else self.head

    @property
    def scale(self) -> float:
        """Of logits."""
        return 1 / multiple_of(self.shape)


def _turns(length: int, head: int) -> Any:
    """(T, 2, head / 2): cosine and sine of every place, slower and slower."""
    speeds = _ROTATION_BASE ** (-torch.arange(0, head, 2, dtype=torch.float64) / head)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * speeds
    return torch.stack([angles.cos(), angles.sin()], dim=1).to(torch.float32)


def _rotated(x: Any, turns: Any) -> Any:
    """(B, T, 2, heads, head): the first half with the second."""
    first, second = x.chunk(2, dim=-1)
    cosine, sine = turns[None, :, 0, None, None, :], turns[None, :, 1, None, None, :]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)

"""Sizes of models by name: what needs no PyTorch to be known. What they mean is in widths.py."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from tokmill.errors import InputError

# What multiples are of: the rate is that of this width (docs/decisions/0029-proxy-models.md).
BASE_WIDTH = 256

Size = Literal["0.2M", "2M", "8M", "20M", "60M"]
SIZE_NAMES: tuple[str, ...] = get_args(Size)


class Shape(NamedTuple):
    width: int
    layers: int
    head: int = 64  # numbers per head

    @property
    def heads(self) -> int:
        return self.width // self.head

    @property
    def hidden(self) -> int:
        """Of SwiGLU: 8/3 of the width (Shazeer 2020), as a multiple of 64, which GPUs like."""
        return max(round(self.width * 8 / 3 / 64), 1) * 64

    def weights(self, vocab_size: int = 0, *, is_tied: bool = True) -> int:
        """Without a vocabulary: those that names of sizes count."""
        a_layer = 4 * self.width**2 + 3 * self.width * self.hidden + 2 * self.width
        return self.layers * a_layer + self.width + vocab_size * self.width * (1 if is_tied else 2)

    def flops_per_token(self, vocab_size: int, length: int) -> int:
        """Of training: 6 for every weight that a token is multiplied with, the head's among them, and 6 for
        every number of attention that a causal mask leaves. That is half of what PaLM counts
        (Chowdhery et al. 2022, appendix B)."""
        matrices = self.layers * (4 * self.width**2 + 3 * self.width * self.hidden) + vocab_size * self.width
        return 6 * matrices + 6 * self.layers * self.width * length


SIZES: dict[str, Shape] = {
    "0.2M": Shape(64, 4, 32),
    "2M": Shape(192, 5),
    "8M": Shape(320, 6),
    "20M": Shape(512, 6),
    "60M": Shape(896, 6),
}


def find_size(name: str) -> Shape:
    if name not in SIZES:
        raise InputError(f"no size {name!r}", where="size", next=f"set one of {', '.join(SIZE_NAMES)}")
    return SIZES[name]

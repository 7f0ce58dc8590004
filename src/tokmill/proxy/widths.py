"""Sizes of models by name, and how weights begin and learn so that one learning rate serves all of them.

    name     width  layers  heads    weights without the embedding
    0.2M        64       4      2        214 k    for tests and a first look
    2M         192       5      3        2.2 M
    8M         320       6      5        7.3 M
    20M        512       6      8       18.7 M
    60M        896       6     14       57.5 M

Depth hardly changes, so that only the width does, and what is known of widths holds. In the maximal update
parametrization (Yang et al. 2022, "Tensor Programs V", arXiv:2203.03466, table 8, for Adam), with
m = width / 256:

    weights            begin with a deviation of          learn with          are multiplied by
    embedding          0.02                               rate                1
    hidden matrix      1 / sqrt(fan-in)                   rate / m            1
    head               0.02, or the embedding's own       rate                1 / m
    gains of norms     1                                  rate                1
    attention          -                                  -                   8 / size of a head, not 1 / sqrt

A matrix that writes into the residual stream begins smaller by sqrt(2 * layers) (Radford et al. 2019). Weight
decay is divided by the rate of each group, so that all forget equally fast (Wang and Aitchison 2024,
arXiv:2405.13698): with AdamW of PyTorch, which multiplies decay by the rate, hidden matrices have m times it.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import torch

from tokmill.proxy.shapes import BASE_WIDTH, Shape

EMBEDDING_DEVIATION = 0.02


class Group(NamedTuple):
    """Weights that learn alike."""

    names: tuple[str, ...]
    rate: float  # of the base rate
    decay: float  # of the base decay


def multiple_of(shape: Shape) -> float:
    return shape.width / BASE_WIDTH


def groups_of(names: list[str], shape: Shape) -> list[Group]:
    m = multiple_of(shape)
    hidden = tuple(name for name in names if is_hidden(name))
    gains = tuple(name for name in names if name.endswith("gain"))
    others = tuple(name for name in names if name not in {*hidden, *gains})
    return [Group(hidden, 1 / m, m), Group(others, 1.0, 1.0), Group(gains, 1.0, 0.0)]


def is_hidden(name: str) -> bool:
    return name.startswith("blocks.") and not name.endswith("gain")


def draw_weights(model: Any, seed: int) -> None:
    """In place. Each by its own name: models of two vocabularies begin with the same hidden matrices, and a
    GPU with what a CPU has."""
    deep = (2 * model.shape.layers) ** -0.5
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("gain"):
                weight.fill_(1.0)
                continue
            deviation = weight.shape[1] ** -0.5 if is_hidden(name) else EMBEDDING_DEVIATION
            if name.endswith((".out.weight", ".down.weight")):
                deviation *= deep
            generator = torch.Generator().manual_seed(seed_of("weights", seed, name))
            drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float32)
            weight.copy_(drawn * deviation)


def seed_of(purpose: str, *identity: object) -> int:
    """From what it is for and of what: never from an order or a clock."""
    words = "/".join(["proxy", purpose, *map(str, identity)])
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:8]) >> 1

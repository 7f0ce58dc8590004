"""A language model small enough to be read in one go:
one block of causal attention in NumPy, with its gradients.

    tokens (B, T) ─ embed + place ─ x ─┬─ norm ─ q, k, v ─ softmax(q kᵀ + mask) v ─ out ─(+)─ y
                                       └──────────────────────────────────────────────────┘
    y ─┬─ norm ─ up ─ relu ─ down ─(+)─ norm ─ head
       └────────────────────────────┘

It is for one question: can a model learn these batches by heart? Tokens, targets and mask that are made well
go to a loss of about nothing in a few hundred steps of AdamW; with targets that are not the next tokens, or a
mask that hides what they depend on, they do not. A mask that shows the future is found by moving a token and
looking who noticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # float32; what NumPy makes of a product is not always known to be

_EPSILON = np.float32(1e-5)
_BETAS = 0.9, 0.99


class TinyModel:
    """Of `vocab_size` ids in rows of at most `length`."""

    def __init__(self, vocab_size: int, length: int, width: int) -> None:
        draw = np.random.Generator(np.random.PCG64(0))

        def weights(*shape: int) -> Array:
            drawn: Array = (draw.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
            return drawn

        self.weights: dict[str, Array] = {
            "embed": 0.3 * weights(vocab_size, width) * np.float32(np.sqrt(vocab_size)),
            "place": 0.3 * weights(length, width) * np.float32(np.sqrt(length)),
            "query": weights(width, width),
            "key": weights(width, width),
            "value": weights(width, width),
            "out": weights(width, width),
            "up": weights(width, 4 * width),
            "down": weights(4 * width, width),
            "head": weights(width, vocab_size),
        }

    def loss(
        self, tokens: NDArray[np.integer], targets: NDArray[np.integer], allowed: NDArray[np.bool_]
    ) -> tuple[float, dict[str, Array]]:
        """Mean cross entropy over the targets that are not negative, and its gradients.
        `allowed` is (B, T, T)."""
        w, grads = self.weights, {}
        kept, logits = self._forward(tokens, allowed)
        wanted = targets >= 0
        count = max(int(wanted.sum()), 1)
        shares = _softmax(logits)
        rows, columns = np.nonzero(wanted)
        picked = shares[rows, columns, targets[rows, columns]]
        loss = float(-np.log(np.maximum(picked, 1e-30)).sum() / count)

        d_logits = np.where(wanted[..., None], shares, 0) / np.float32(count)
        d_logits[rows, columns, targets[rows, columns]] -= np.float32(1 / count)
        grads["head"] = _outer(kept["normed_out"], d_logits)
        d_x = _norm_back(d_logits @ w["head"].T, kept["normed_out"], kept["scale_out"])
        grads["down"] = _outer(kept["hidden"], d_x)
        d_hidden = (d_x @ w["down"].T) * (kept["hidden"] > 0)
        grads["up"] = _outer(kept["normed_mid"], d_hidden)
        d_x = d_x + _norm_back(d_hidden @ w["up"].T, kept["normed_mid"], kept["scale_mid"])
        grads["out"] = _outer(kept["mixed"], d_x)
        d_mixed = d_x @ w["out"].T
        d_value = kept["attention"].transpose(0, 2, 1) @ d_mixed
        d_attention = d_mixed @ kept["value"].transpose(0, 2, 1)
        weighed = (d_attention * kept["attention"]).sum(-1, keepdims=True)
        d_scores = kept["attention"] * (d_attention - weighed) / np.float32(np.sqrt(d_x.shape[-1]))
        d_query, d_key = d_scores @ kept["key"], d_scores.transpose(0, 2, 1) @ kept["query"]
        d_normed = d_query @ w["query"].T + d_key @ w["key"].T + d_value @ w["value"].T
        for name, gradient in (("query", d_query), ("key", d_key), ("value", d_value)):
            grads[name] = _outer(kept["normed_in"], gradient)
        d_x = d_x + _norm_back(d_normed, kept["normed_in"], kept["scale_in"])
        grads["embed"] = np.zeros_like(w["embed"])
        np.add.at(grads["embed"], tokens.reshape(-1), d_x.reshape(-1, d_x.shape[-1]))
        grads["place"] = np.zeros_like(w["place"])
        grads["place"][: tokens.shape[1]] = d_x.sum(0)
        return loss, grads

    def logits(self, tokens: NDArray[np.integer], allowed: NDArray[np.bool_]) -> Array:
        return self._forward(tokens, allowed)[1]

    def _forward(
        self, tokens: NDArray[np.integer], allowed: NDArray[np.bool_]
    ) -> tuple[dict[str, Array], Array]:
        w, kept = self.weights, {}
        x = w["embed"][tokens] + w["place"][: tokens.shape[1]]
        kept["normed_in"], kept["scale_in"] = _norm(x)
        for name in ("query", "key", "value"):
            kept[name] = kept["normed_in"] @ w[name]
        scores = kept["query"] @ kept["key"].transpose(0, 2, 1) / np.float32(np.sqrt(x.shape[-1]))
        kept["attention"] = _softmax(np.where(allowed, scores, np.float32(-1e30)))
        kept["mixed"] = kept["attention"] @ kept["value"]
        x = x + kept["mixed"] @ w["out"]
        kept["normed_mid"], kept["scale_mid"] = _norm(x)
        kept["hidden"] = np.maximum(kept["normed_mid"] @ w["up"], 0)
        x = x + kept["hidden"] @ w["down"]
        kept["normed_out"], kept["scale_out"] = _norm(x)
        return kept, kept["normed_out"] @ w["head"]


class AdamW:
    """Of Loshchilov and Hutter, 2019; what is to be learnt by heart needs no weight decay."""

    def __init__(self, weights: dict[str, Array], lr: float) -> None:
        self.weights, self.lr = weights, lr
        self._first = {name: np.zeros_like(value) for name, value in weights.items()}
        self._second = {name: np.zeros_like(value) for name, value in weights.items()}
        self._steps = 0

    def step(self, grads: dict[str, Array]) -> None:
        self._steps += 1
        one, two = _BETAS
        for name, gradient in grads.items():
            first, second, weight = self._first[name], self._second[name], self.weights[name]
            first += np.float32(1 - one) * (gradient - first)
            second += np.float32(1 - two) * (gradient * gradient - second)
            corrected = np.sqrt(second / np.float32(1 - two**self._steps)) + np.float32(1e-8)
            weight -= np.float32(self.lr) * (first / np.float32(1 - one**self._steps) / corrected)


def overfit(
    tokens: NDArray[np.integer],
    targets: NDArray[np.integer],
    allowed: NDArray[np.bool_],
    *,
    steps: int = 300,
    lr: float = 1e-3,
    width: int = 64,
) -> Iterator[float]:
    """The loss of every step on one batch. Ids are renumbered:
    a model of those that occur is all it takes."""
    known = np.unique(np.concatenate((tokens.reshape(-1), targets[targets >= 0])))
    inputs = np.searchsorted(known, tokens)
    wanted = np.where(targets >= 0, np.searchsorted(known, np.maximum(targets, known[0])), -1)
    model = TinyModel(len(known), tokens.shape[1], width)
    optimizer = AdamW(model.weights, lr)
    for _ in range(steps):
        loss, grads = model.loss(inputs, wanted, allowed)
        optimizer.step(grads)
        yield loss


def lowest_loss(
    tokens: NDArray[np.integer], targets: NDArray[np.integer], allowed: NDArray[np.bool_]
) -> float:
    """What no model can go below: where two places see the same tokens at the same places and must say
    different ones."""
    seen: dict[bytes, dict[int, int]] = {}
    for row, column in zip(*np.nonzero(targets >= 0), strict=True):
        visible = np.flatnonzero(allowed[row, column])
        context = visible.tobytes() + tokens[row, visible].astype(np.int64).tobytes()
        answers = seen.setdefault(context, {})
        answer = int(targets[row, column])
        answers[answer] = answers.get(answer, 0) + 1
    total = sum(sum(answers.values()) for answers in seen.values())
    nats = 0.0
    for answers in seen.values():
        whole = sum(answers.values())
        nats -= sum(count * float(np.log(count / whole)) for count in answers.values())
    return nats / max(total, 1)


def _softmax(scores: Array) -> Array:
    powers: Array = np.exp(scores - scores.max(-1, keepdims=True))
    powers /= powers.sum(-1, keepdims=True)
    return powers


def _norm(x: Array) -> tuple[Array, Array]:
    """Divided by the root of the mean square."""
    scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + _EPSILON)
    return x * scale, scale


def _norm_back(gradient: Array, normed: Array, scale: Array) -> Array:
    back: Array = (gradient - normed * (gradient * normed).mean(-1, keepdims=True)) * scale
    return back


def _outer(left: Array, right: Array) -> Array:
    return left.reshape(-1, left.shape[-1]).T @ right.reshape(-1, right.shape[-1])

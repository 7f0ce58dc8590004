"""Questions with several answers, one of which is right: which does a model find likeliest?

    prompt + choice ─ encode together ─ tokens whose last byte lies behind the prompt are the choice's

    accuracy                 the choice of the highest log-likelihood is the right one
    accuracy_by_bytes        the highest per byte of the choice: long answers are not punished
    answer_bits_per_byte     of the right choice alone: it moves long before a small model is right

Small models guess most questions: accuracy of 0.25 among four answers says nothing, and its noise is large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tokmill.proxy.items import Item, Items
from tokmill.proxy.judging import token_nats
from tokmill.proxy.model import Decoder
from tokmill.tokenizers.protocol import Tokenizer, boundaries

METRICS = ("accuracy", "accuracy_by_bytes", "answer_bits_per_byte")


def answer_items(
    model: Decoder,
    items: Items,
    tokenizer: Tokenizer,
    controls: Mapping[str, int],
    context_id: int | None,
    device: str,
) -> dict[str, float]:
    """The metrics, over all items."""
    nats = choice_nats(model, items.items, tokenizer, controls, context_id, device)
    right = right_by_bytes = 0
    bits, size = [], 0
    for item, own in zip(items.items, nats, strict=True):
        lengths = [len(choice.encode()) for choice in item.choices]
        per_byte = [one / length for one, length in zip(own, lengths, strict=True)]
        assert isinstance(item.answer, int), "made a number when it was read"
        right += int(np.argmin(own)) == item.answer
        right_by_bytes += int(np.argmin(per_byte)) == item.answer
        bits.append(own[item.answer] / math.log(2))
        size += lengths[item.answer]
    count = len(items.items)
    return dict(zip(METRICS, (right / count, right_by_bytes / count, math.fsum(bits) / size), strict=True))


def choice_nats(
    model: Decoder,
    items: Sequence[Item],
    tokenizer: Tokenizer,
    controls: Mapping[str, int],
    context_id: int | None,
    device: str,
) -> list[list[float]]:
    """Of every choice of every item, after its prompt. Where nothing stands before a choice its first token
    costs what a guess does."""
    sequences: list[Any] = []
    firsts: list[int] = []
    for item in items:
        begin = len(item.prompt.encode())
        for choice in item.choices:
            ids, bounds = boundaries(tokenizer, item.prompt + choice, controls)
            own = int((bounds[1:] > begin).sum())
            given = [] if context_id is None else [context_id]
            sequences.append(np.concatenate([given, ids]).astype(np.int64))
            firsts.append(len(sequences[-1]) - own)
    nats = token_nats(model, sequences, device)
    guess = math.log(model.vocab_size)
    each = iter(
        float(one[first - 1 :].sum()) if first else float(one.sum()) + guess
        for one, first in zip(nats, firsts, strict=True)
    )
    return [[next(each) for _ in item.choices] for item in items]

"""How many bits a model needs for each byte of a text: what can be compared whatever the tokenizer.

    text ─ encode ─ ids of one document      judged alone, after what stands before one in training: BOS, or
                                             the EOS of the one before. It is given and costs nothing
    [EOS  t0 t1 t2 │ t3 t4 │ t5 t6]          length 4: the first window judges 4 tokens,
     └── window ──┘                          every next one moves by 2 and judges its last 2:
           └── window ──┘                    a token is judged once, and sees half a length before
                 └── window ──┘              it at least, where there is as much
    bits per byte = sum of -log2 p(token) / bytes of the text in UTF-8

A model of another tokenizer has other tokens, and the same bytes. What a tokenizer cannot give back (it
normalizes, or has unknown tokens) is not counted as lost. In fp32 on every device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tokmill.proxy.held_out import Texts
from tokmill.proxy.model import Decoder
from tokmill.proxy.vocabulary import nats_of_each
from tokmill.tokenizers.protocol import Tokenizer

_BATCH_TOKENS = {"cpu": 8192, "cuda": 65_536}


class Window(NamedTuple):
    """Tokens start … end of a sequence go in; targets from `judged` on are counted."""

    sequence: int
    start: int
    end: int
    judged: int  # the first target's place in the sequence


def windows_of(lengths: Sequence[int], length: int) -> Iterator[Window]:
    """Every place of every sequence but the first is the target of one window."""
    stride = max(length // 2, 1)
    for sequence, count in enumerate(lengths):
        start, judged = 0, 1
        while judged < count:
            end = min(start + length, count - 1)
            yield Window(sequence, start, end, judged)
            judged = end + 1
            start += stride


def token_nats(model: Decoder, sequences: Sequence[NDArray[np.int64]], device: str) -> list[NDArray[Any]]:
    """Of every token of every sequence but the first, which is given."""
    found = [np.zeros(max(len(ids) - 1, 0)) for ids in sequences]
    windows = sorted(
        windows_of([len(ids) for ids in sequences], model.length),
        key=lambda window: (window.start - window.end, window.sequence, window.start),
    )
    at = 0
    with torch.no_grad():
        while at < len(windows):
            longest = windows[at].end - windows[at].start
            some = windows[at : at + max(_BATCH_TOKENS[device] // longest, 1)]
            at += len(some)
            tokens = np.zeros((len(some), longest), np.int64)
            targets = np.full((len(some), longest), -1, np.int64)
            for row, window in enumerate(some):
                ids, width = sequences[window.sequence], window.end - window.start
                tokens[row, :width] = ids[window.start : window.end]
                skipped = window.judged - 1 - window.start
                targets[row, skipped:width] = ids[window.judged : window.end + 1]
            nats = _nats(model, tokens, targets, device)
            for row, window in enumerate(some):
                own = nats[row, window.judged - 1 - window.start : window.end - window.start]
                found[window.sequence][window.judged - 1 : window.end] = own
    return found


def _nats(model: Decoder, tokens: Any, targets: Any, device: str) -> Any:
    places = model(torch.from_numpy(tokens).to(device))
    wanted = torch.from_numpy(targets).to(device)
    return nats_of_each(places, model.head_weights, wanted, model.scale).cpu().numpy().astype(np.float64)


def document_bits(
    model: Decoder, texts: Sequence[str], tokenizer: Tokenizer, context_id: int | None, device: str
) -> list[float]:
    """Of each text. Where nothing stands before a document its first token costs what a guess does."""
    encoded = tokenizer.encode(texts)
    ends = np.cumsum(encoded.lengths)
    given = [] if context_id is None else [context_id]
    sequences = [
        np.concatenate([given, encoded.ids[end - count : end]]).astype(np.int64)
        for end, count in zip(ends, encoded.lengths, strict=True)
    ]
    guess = math.log(model.vocab_size) if context_id is None else 0.0
    nats = token_nats(model, sequences, device)
    return [
        (float(own.sum()) + (guess if len(ids) else 0.0)) / math.log(2)
        for own, ids in zip(nats, sequences, strict=True)
    ]


def bits_per_byte(
    model: Decoder, texts: Texts, tokenizer: Tokenizer, context_id: int | None, device: str
) -> float:
    return math.fsum(document_bits(model, texts.texts, tokenizer, context_id, device)) / texts.bytes

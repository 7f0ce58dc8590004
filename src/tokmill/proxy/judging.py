"""How many bits a model needs for each byte of a text: what can be compared whatever the tokenizer.

    text ─ encode ─ ids of one document      judged alone, after what stands before one in training: BOS, or
                                             the EOS of the one before. It is given and costs nothing
    [EOS  t0 t1 t2 │ t3 t4 │ t5 t6]          length 4: the first window judges 4 tokens,
     └── window ──┘                          every next one moves by 2 and judges its last 2:
           └── window ──┘                    a token is judged once, and sees half a length before
                 └── window ──┘              it at least, where there is as much
    bits per byte = sum of -log2 p(token) / bytes of the text in UTF-8
    of a conversation: of the tokens that are learned / bytes of its answers

Ids are those that the build has of such a text: `tokenizer.control`, and the control tokens of a template.
A model of another tokenizer has other tokens, and the same bytes. What a tokenizer cannot give back (it
normalizes, or has unknown tokens) is not counted as lost. In fp32 on every device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from tokmill.proxy.held_out import Texts
from tokmill.proxy.model import Decoder
from tokmill.proxy.vocabulary import nats_of_each
from tokmill.stages.tokens.encoding import Encoding, encode_documents
from tokmill.tokenizers.fast import starts
from tokmill.tokenizers.protocol import Tokenizer
from tokmill.tokenizers.regions import has_marks

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
    model: Decoder,
    texts: Sequence[str],
    tokenizer: Tokenizer,
    controls: Mapping[str, int],
    context_id: int | None,
    device: str,
) -> list[float]:
    """Of each text. Where nothing stands before a document its first token costs what a guess does."""
    documents = _encoded(texts, tokenizer, controls)
    given = [] if context_id is None else [context_id]
    sequences = [np.concatenate([given, ids]).astype(np.int64) for ids, _ in documents]
    nats = token_nats(model, sequences, device)
    guess = [math.log(model.vocab_size)] if context_id is None else []
    return [
        float((np.concatenate([guess[: len(ids)], own]) * is_learned).sum()) / math.log(2)
        for own, (ids, is_learned) in zip(nats, documents, strict=True)
    ]


def _encoded(
    texts: Sequence[str], tokenizer: Tokenizer, controls: Mapping[str, int]
) -> list[tuple[NDArray[np.int32], NDArray[np.uint8]]]:
    """The ids of each text, and what is learned of them."""
    found: dict[int, tuple[NDArray[np.int32], NDArray[np.uint8]]] = {}
    is_talk = np.array([has_marks(text) for text in texts], np.bool_)
    for rows, specials in ((np.flatnonzero(~is_talk), None), (np.flatnonzero(is_talk), tokenizer.specials)):
        if not len(rows):
            continue
        column = pa.array([texts[row] for row in rows.tolist()], pa.large_string())
        (ids, lengths), masked = encode_documents(
            column, None, lambda some: tokenizer.encode(some.to_pylist()), Encoding(controls, specials)
        )
        loss = np.ones(len(ids), np.uint8) if masked is None else masked.loss
        ends = starts(lengths)[1:-1]
        parts = zip(np.split(ids, ends), np.split(loss, ends), strict=True)
        found |= dict(zip(rows.tolist(), parts, strict=True))
    return [found[row] for row in range(len(texts))]


def bits_per_byte(
    model: Decoder,
    texts: Texts,
    tokenizer: Tokenizer,
    controls: Mapping[str, int],
    context_id: int | None,
    device: str,
) -> float:
    return math.fsum(document_bits(model, texts.texts, tokenizer, controls, context_id, device)) / texts.bytes

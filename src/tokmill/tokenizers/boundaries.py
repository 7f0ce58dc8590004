"""From tokens back to the bytes of the text that they were read from.

    text      ça va          c3 a7 61 20 76 61           6 bytes, 5 characters
    tokens    [c3][a7 61][20 76 61]
    bounds    0   1      3         6                     n + 1: token i is bytes [bounds[i], bounds[i + 1])

Bounds have no gap: what a normalizer removed belongs to the token before it, at the start of a text to the first. A
token may be a part of a character. A character belongs to the token that has its first byte, so the characters of all
tokens, one after the other, are the text.

    tiktoken, byte-level BPE   by the bytes of each token, which are those of the text
    SentencePiece, others      by the offsets that the library gives; pieces for bytes get a byte each
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.tokenizers.protocol import Boundaries, Tokenizer


class Characters(NamedTuple):
    """Characters [start, end) of a text; cut: a token ends inside the one before `start` or `end`."""

    start: int
    end: int
    is_cut: bool


def boundaries(tokenizer: Tokenizer, text: str, controls: Mapping[str, int]) -> Boundaries:
    """As a build encodes the text: literals of `controls` are tokens of their own."""
    if not controls:
        return tokenizer.boundaries(text)
    # leftmost, then longest, as a build finds them
    literals = sorted(controls, key=len, reverse=True)
    pattern = re.compile("|".join(re.escape(literal) for literal in literals))
    ids: list[NDArray[np.int32]] = []
    starts: list[NDArray[np.int64]] = []
    at = byte = 0
    for found in [*pattern.finditer(text), None]:
        stop = found.start() if found is not None else len(text)
        part = tokenizer.boundaries(text[at:stop])
        ids.append(part.ids)
        starts.append(part.bounds[: len(part.ids)] + byte)
        byte += len(text[at:stop].encode())
        if found is not None:
            ids.append(np.array([controls[found.group()]], np.int32))
            starts.append(np.array([byte], np.int64))
            byte += len(found.group().encode())
            at = found.end()
    return Boundaries(np.concatenate(ids), tile(np.concatenate(starts), byte))


def tile(starts: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Bounds of tokens that start there, in a text of `size` bytes."""
    bounds = np.append(np.minimum(starts, size), size)
    if len(starts):
        bounds[0] = 0
    return np.maximum.accumulate(bounds)


def by_bytes(ids: NDArray[np.int32], tokens: Sequence[bytes], text: bytes) -> Boundaries | None:
    """Where the tokens spell the text, a blank before it aside; None where they do not."""
    whole = b"".join(tokens)
    added = len(whole) - len(text)
    if whole != b" " * added + text or added not in (0, 1):
        return None
    ends = np.cumsum([len(token) for token in tokens], dtype=np.int64)
    return Boundaries(ids, tile(np.append(0, ends[:-1])[: len(ids)] - added, len(text)))


def by_offsets(
    ids: NDArray[np.int32], offsets: NDArray[np.int64], is_byte: NDArray[np.bool_], size: int
) -> Boundaries:
    """From (begin, end) in bytes. Byte pieces of one character share its place, or only the last has one."""
    starts = offsets[:, 0].copy()
    at = 0
    while at < len(ids):
        stop = at + 1
        if is_byte[at]:
            begin = starts[at]
            while stop < len(ids) and is_byte[stop] and starts[stop] == begin:
                stop += 1
            width = int(offsets[at:stop, 1].max()) - begin
            starts[at:stop] = begin + np.minimum(np.arange(stop - at), max(width - 1, 0))
        at = stop
    return Boundaries(ids, tile(starts, size))


def characters_between(text: bytes, first: int, stop: int) -> Characters:
    """The characters whose first byte is in [first, stop)."""
    return Characters(
        _firsts(text, first), _firsts(text, stop), _is_inside(text, first) or _is_inside(text, stop)
    )


def _firsts(text: bytes, stop: int) -> int:
    """Bytes before `stop` that begin a character."""
    part = np.frombuffer(text, np.uint8, stop) if stop else np.empty(0, np.uint8)
    return int(((part & 0xC0) != 0x80).sum())


def _is_inside(text: bytes, at: int) -> bool:
    return at < len(text) and (text[at] & 0xC0) == 0x80

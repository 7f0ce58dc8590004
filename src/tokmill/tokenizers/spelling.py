"""The bytes that some ids stand for, from the tokenizer's file alone: without a library, in a tenth of its time to load.

    tiktoken ranks      base64 rank, one line each
    tokenizer.json      vocabulary of a byte-level BPE, each letter for a byte

Whoever asks compares: ids that spell the text are those of the text, by whatever library.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.tokenizers.boundaries import by_bytes
from tokmill.tokenizers.protocol import Boundaries


def _byte_letters() -> dict[str, int]:
    """The letter that byte-level BPE writes for each byte: itself where that can be seen, else from U+0100 on."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    unseen = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + at): byte for at, byte in enumerate(unseen)}


BYTE_LETTERS: Final = _byte_letters()


def spelled_boundaries(
    path: Path, kind: str, ids: NDArray[np.integer], text: str, controls: Mapping[str, int]
) -> Boundaries | None:
    """Where each of the ids begins in the text; None where they do not spell it, or the file does not say how."""
    wanted = set(ids.tolist())
    tokens = {id: literal.encode() for literal, id in controls.items() if id in wanted}
    data = path.read_bytes()
    try:
        if kind == "tiktoken":
            tokens |= _ranks(data, wanted - set(tokens))
        elif kind == "huggingface":
            tokens |= _vocabulary(data, wanted - set(tokens))
    except (ValueError, KeyError, msgspec.MsgspecError, binascii.Error):
        return None
    if len(tokens) < len(wanted):
        return None
    return by_bytes(ids.astype(np.int32), [tokens[id] for id in ids.tolist()], text.encode())


def _ranks(data: bytes, wanted: set[int]) -> dict[int, bytes]:
    names = {b"%d" % id: id for id in wanted}
    found = {}
    for line in data.split(b"\n"):
        encoded, _, rank = line.partition(b" ")
        if rank in names:
            found[names[rank]] = base64.b64decode(encoded)
    return found


class _Model(msgspec.Struct):
    vocab: Any
    type: str | None = None


class _File(msgspec.Struct):
    model: _Model


def _vocabulary(data: bytes, wanted: set[int]) -> dict[int, bytes]:
    model = msgspec.json.decode(data, type=_File).model
    if not isinstance(model.vocab, dict):
        return {}  # scores, not letters for bytes
    return {
        id: bytes(BYTE_LETTERS[letter] for letter in token)
        for token, id in model.vocab.items()
        if id in wanted
    }
